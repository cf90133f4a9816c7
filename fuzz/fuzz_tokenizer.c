/* The input is a tokenizer.json, or a GGUF with a tokenizer in it. Where it can be read, texts of every kind
 * are encoded with it, decoded at once and token by token; the two must agree. */

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "formats/gguf.h"
#include "text/tokenizer.h"

static const char text[] =
    "Hello, world! It's 2024: we'LL see  <s>x</s> <|im_start|>user\n\n\t caf\xC3\xA9 e\xCC\x81\xCC\xA7 "
    "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x81 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB\xE2\x96\x81 "
    "\xED\x95\x9C\xEA\xB8\x80 <0x41>\x00\xFF\xE2\x82 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

static void round_trip(const struct tokenizer *t, const int32_t *id, size_t n, bool skip)
{
    struct buf whole = BUF_INIT, parts = BUF_INIT;
    tokenizer_decode(t, id, n, skip, &whole);
    struct detokenizer *d = detokenizer_new(t, skip);
    for (size_t i = 0; i < n; i++)
        detokenizer_add(d, id[i], &parts);
    detokenizer_flush(d, &parts);
    detokenizer_free(d);
    assert(whole.len == parts.len && !memcmp(whole.s, parts.s, whole.len));
    buf_release(&whole);
    buf_release(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    struct gguf *g = NULL;
    int rc;
    if (size > 4 && !memcmp(data, "GGUF", 4)) {
        rc = gguf_open_bytes(data, size, "fuzz", &g, &e);
        if (!rc)
            rc = tokenizer_from_gguf(g, &t, &e);
        gguf_close(g);
    } else {
        rc = tokenizer_from_json((const char *)data, size, NULL, 0, "fuzz", &t, &e);
    }
    if (rc) {
        assert(e.code < 0 && e.msg[0]);
        return 0;
    }
    for (int mode = 0; mode < 4; mode++) {
        struct ids ids = {0};
        struct encode_options o = {mode & 1, mode & 2};
        if (!tokenizer_encode(t, text, sizeof(text) - 1, o, &ids, &e))
            for (int skip = 0; skip < 2; skip++)
                round_trip(t, ids.id, ids.n, skip);
        ids_release(&ids);
    }
    int32_t some[64];
    for (int i = 0; i < 64; i++)
        some[i] = i - 2;
    round_trip(t, some, 64, true);
    for (int id = -1; id <= tokenizer_n_vocab(t) && id < 4096; id++) {
        const char *s = tokenizer_token(t, id);
        int back = s ? tokenizer_id(t, s) : -1; /* a spelling with a NUL in it cannot be asked for */
        assert(back < 0 || !strcmp(tokenizer_token(t, back), s));
    }
    tokenizer_free(t);
    return 0;
}
