/* helpers.h: bytes of GGUF and safetensors files, right and wrong ones; folders that go away. */
#ifndef YOKE_TESTS_FORMATS_HELPERS_H
#define YOKE_TESTS_FORMATS_HELPERS_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

#define GOLDEN(name) (YOKE_SOURCE_DIR "/tests/golden/formats/" name)
#define UNUSED       __attribute__((unused))

/* -- bytes, little-endian -- */

UNUSED static void put_u8(struct buf *b, uint8_t v)
{
    buf_add(b, &v, 1);
}
UNUSED static void put_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, 4);
}
UNUSED static void put_u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, 8);
}
UNUSED static void put_str(struct buf *b, const char *s)
{
    put_u64(b, strlen(s));
    buf_adds(b, s);
}

/* -- GGUF -- */

/* A file in the making: the keys and tensor entries so far, and their numbers, which a test may falsify. */
struct gguf_spec {
    const char *magic;
    uint32_t version;
    uint64_t n_tensors, n_keys;
    struct buf keys, tensors;
    size_t n_data, align;
};
#define GGUF_SPEC                                                                                            \
    {                                                                                                        \
        "GGUF", 3, 0, 0, BUF_INIT, BUF_INIT, 0, 32                                                           \
    }

UNUSED static void key_start(struct gguf_spec *s, const char *key, uint32_t type)
{
    s->n_keys++;
    put_str(&s->keys, key);
    put_u32(&s->keys, type);
}
UNUSED static void key_u32(struct gguf_spec *s, const char *key, uint32_t v)
{
    key_start(s, key, 4);
    put_u32(&s->keys, v);
}
UNUSED static void key_f32(struct gguf_spec *s, const char *key, float v)
{
    key_start(s, key, 6);
    buf_add(&s->keys, &v, 4);
}
UNUSED static void key_bool(struct gguf_spec *s, const char *key, uint8_t v)
{
    key_start(s, key, 7);
    put_u8(&s->keys, v);
}
UNUSED static void key_str(struct gguf_spec *s, const char *key, const char *v)
{
    key_start(s, key, 8);
    put_str(&s->keys, v);
}
UNUSED static void key_array(struct gguf_spec *s, const char *key, uint32_t type, uint64_t n)
{
    key_start(s, key, 9);
    put_u32(&s->keys, type);
    put_u64(&s->keys, n);
}
/* d0: the innermost dimension, which comes first in the file; d1 = 0: a vector. */
UNUSED static void tensor_at(struct gguf_spec *s, const char *name, uint32_t type, uint64_t d0, uint64_t d1,
                             uint64_t offset)
{
    s->n_tensors++;
    put_str(&s->tensors, name);
    put_u32(&s->tensors, d1 ? 2 : 1);
    put_u64(&s->tensors, d0);
    if (d1)
        put_u64(&s->tensors, d1);
    put_u32(&s->tensors, type);
    put_u64(&s->tensors, offset);
}
/* An f32 tensor behind the last one. */
UNUSED static void tensor_f32(struct gguf_spec *s, const char *name, uint64_t d0, uint64_t d1)
{
    s->n_data = ROUND_UP(s->n_data, s->align);
    tensor_at(s, name, 0, d0, d1, s->n_data);
    s->n_data += d0 * (d1 ? d1 : 1) * 4;
}
/* Data: floats 1, 2, 3, ... */
UNUSED static struct buf gguf_bytes(struct gguf_spec *s)
{
    struct buf b = BUF_INIT;
    buf_add(&b, s->magic, 4);
    put_u32(&b, s->version);
    put_u64(&b, s->n_tensors);
    put_u64(&b, s->n_keys);
    buf_add(&b, s->keys.s, s->keys.len);
    buf_add(&b, s->tensors.s, s->tensors.len);
    while (b.len % s->align)
        buf_addc(&b, 0);
    for (size_t i = 0; i < s->n_data / 4; i++) {
        float f = (float)(i + 1);
        buf_add(&b, &f, 4);
    }
    buf_release(&s->keys);
    buf_release(&s->tensors);
    return b;
}

/* -- safetensors -- */

UNUSED static struct buf safetensors_bytes(const char *json, size_t n_data)
{
    struct buf b = BUF_INIT;
    put_u64(&b, strlen(json));
    buf_adds(&b, json);
    for (size_t i = 0; i < n_data; i++)
        buf_addc(&b, (char)i);
    return b;
}

/* -- errors -- */

/* The code and every one of the words (ended by NULL) in the sentence, which names the file as well. */
UNUSED static void assert_error(int rc, const struct err *e, int code, const char *const *words)
{
    if (rc != code)
        fail_msg("code %d instead of %d: %s", rc, code, rc ? e->msg : "no error");
    assert_int_equal(e->code, code);
    for (; *words; words++)
        if (!strstr(e->msg, *words))
            fail_msg("no \"%s\" in: %s", *words, e->msg);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

struct warnings {
    struct warn_sink sink;
    struct buf text;
    int n;
};
UNUSED static void keep_warning(struct warn_sink *sink, const char *sentence)
{
    struct warnings *w = (struct warnings *)sink;
    buf_addf(&w->text, "%s\n", sentence);
    w->n++;
}
#define WARNINGS                                                                                             \
    {                                                                                                        \
        {keep_warning}, BUF_INIT, 0                                                                          \
    }

/* -- folders -- */

UNUSED static char *temp_folder(void)
{
    char *p = xstrdup("/tmp/yoke_test_XXXXXX");
    assert_non_null(mkdtemp(p));
    return p;
}
UNUSED static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}
UNUSED static void remove_folder(char *path)
{
    assert_int_equal(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    xfree(path);
}
UNUSED static void write_file(const char *folder, const char *name, const void *p, size_t n)
{
    char *path = path_join(folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    xfree(path);
}
UNUSED static void write_text(const char *folder, const char *name, const char *s)
{
    write_file(folder, name, s, strlen(s));
}

#endif
