#include "tests/unit/formats/helpers.h"
#include "formats/gguf.h"

/* A good file with a value of every kind, and two tensors. */
static struct gguf_spec good(void)
{
    struct gguf_spec s = GGUF_SPEC;
    key_str(&s, "general.architecture", "llama");
    key_u32(&s, "n.u32", 4000000000u);
    key_start(&s, "n.i8", 1);
    put_u8(&s.keys, 0xfe);
    key_start(&s, "n.u64", 10);
    put_u64(&s.keys, UINT64_MAX);
    key_array(&s, "a.u64", 10, 2);
    put_u64(&s.keys, INT64_MAX);
    put_u64(&s.keys, (uint64_t)INT64_MAX + 1);
    key_array(&s, "a.u8", 0, 2);
    buf_add(&s.keys, "\x80\xff", 2);
    key_start(&s, "n.i64", 11);
    put_u64(&s.keys, (uint64_t)-5);
    key_start(&s, "n.f64", 12);
    double d = 0.1;
    buf_add(&s.keys, &d, 8);
    key_f32(&s, "n.f32", 0.5f);
    key_bool(&s, "n.bool", 1);
    key_array(&s, "a.str", 8, 3);
    put_str(&s.keys, "one");
    put_str(&s.keys, "");
    put_u64(&s.keys, 3);
    buf_add(&s.keys, "a\0b", 3);
    key_array(&s, "a.i16", 3, 2);
    buf_add(&s.keys, "\x01\x00\xff\xff", 4);
    key_array(&s, "a.f32", 6, 2);
    buf_add(&s.keys, "\0\0\x80\x3f\0\0\0\x40", 8);
    key_array(&s, "a.empty", 8, 0);
    tensor_f32(&s, "first", 8, 2);
    tensor_f32(&s, "second", 3, 0);
    return s;
}

static void test_values(void **state)
{
    struct gguf_spec s = good();
    struct buf b = gguf_bytes(&s);
    struct gguf *g;
    struct err e = {0};
    struct gguf_str str;
    enum gguf_type type;
    size_t n;
    int64_t i = 7;
    double d = 7;
    bool flag = false;
    assert_int_equal(gguf_open_bytes(b.s, b.len, "mem", &g, &e), 0);
    buf_release(&b); /* what is handed out belongs to the object */
    assert_string_equal(gguf_path(g), "mem");
    assert_int_equal(gguf_n_keys(g), 14);
    assert_string_equal(gguf_key(g, 1), "n.u32");

    assert_true(gguf_get_string(g, "general.architecture", &str));
    assert_string_equal(str.s, "llama");
    assert_int_equal(str.len, 5);
    assert_true(gguf_get_int(g, "n.u32", &i));
    assert_int_equal(i, 4000000000);
    assert_true(gguf_get_int(g, "n.i8", &i));
    assert_int_equal(i, -2);
    assert_true(gguf_get_int(g, "n.i64", &i));
    assert_int_equal(i, -5);
    assert_false(gguf_get_int(g, "n.u64", &i)); /* does not fit */
    assert_true(gguf_get_double(g, "n.u64", &d));
    assert_true(d == 0x1p64);
    assert_true(gguf_get_double(g, "n.i8", &d));
    assert_true(d == -2);
    assert_true(gguf_get_double(g, "n.f64", &d));
    assert_true(d == 0.1);
    assert_true(gguf_get_double(g, "n.f32", &d));
    assert_true(d == 0.5);
    assert_true(gguf_get_bool(g, "n.bool", &flag));
    assert_true(flag);

    /* another kind, or absent */
    assert_false(gguf_get_int(g, "n.f32", &i));
    assert_false(gguf_get_int(g, "n.bool", &i));
    assert_false(gguf_get_double(g, "general.architecture", &d));
    assert_false(gguf_get_bool(g, "n.u32", &flag));
    assert_false(gguf_get_string(g, "n.u32", &str));
    assert_false(gguf_get_int(g, "no.such", &i));
    assert_false(gguf_get_array(g, "n.u32", &type, &n));
    assert_int_equal(i, -5); /* set on success only */

    assert_true(gguf_get_array(g, "a.str", &type, &n));
    assert_int_equal(type, GGUF_STRING);
    assert_int_equal(n, 3);
    assert_true(gguf_array_string(g, "a.str", 0, &str));
    assert_string_equal(str.s, "one");
    assert_true(gguf_array_string(g, "a.str", 1, &str));
    assert_int_equal(str.len, 0);
    assert_string_equal(str.s, "");
    assert_true(gguf_array_string(g, "a.str", 2, &str));
    assert_int_equal(str.len, 3);
    assert_memory_equal(str.s, "a\0b\0", 4);
    assert_false(gguf_array_string(g, "a.str", 3, &str));
    assert_false(gguf_array_string(g, "a.i16", 0, &str));
    assert_false(gguf_array_int(g, "a.str", 0, &i));
    assert_true(gguf_array_int(g, "a.i16", 1, &i));
    assert_int_equal(i, -1);
    assert_true(gguf_array_int(g, "a.u8", 1, &i));
    assert_int_equal(i, 255);
    assert_true(gguf_array_int(g, "a.u64", 0, &i));
    assert_int_equal(i, INT64_MAX);
    assert_false(gguf_array_int(g, "a.u64", 1, &i));
    assert_true(gguf_array_double(g, "a.f32", 1, &d));
    assert_true(d == 2);
    assert_true(gguf_array_double(g, "a.i16", 0, &d));
    assert_true(d == 1);
    assert_true(gguf_get_array(g, "a.empty", &type, &n));
    assert_int_equal(n, 0);

    assert_int_equal(gguf_n_tensors(g), 2);
    const struct gguf_tensor *t = gguf_find(g, "first");
    assert_ptr_equal(t, gguf_tensor(g, 0));
    assert_string_equal(t->name, "first");
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dim[0], 2); /* outermost first */
    assert_int_equal(t->dim[1], 8);
    assert_int_equal(t->n_bytes, 64);
    assert_int_equal(gguf_find(g, "second")->offset - t->offset, 64);
    assert_int_equal(t->offset % 32, 0);
    assert_null(gguf_find(g, "third"));
    gguf_close(g);
    gguf_close(NULL);
}

static void test_versions_and_alignment(void **state)
{
    for (uint32_t version = 2; version <= 3; version++) {
        for (size_t align = 8; align <= 4096; align *= 8) {
            struct gguf_spec s = GGUF_SPEC;
            struct gguf *g;
            struct err e = {0};
            s.version = version;
            s.align = align;
            key_u32(&s, "general.alignment", (uint32_t)align);
            tensor_f32(&s, "t", 1, 0);
            tensor_f32(&s, "u", 5, 7);
            struct buf b = gguf_bytes(&s);
            if (gguf_open_bytes(b.s, b.len, "mem", &g, &e))
                fail_msg("%s", e.msg);
            assert_int_equal(gguf_find(g, "u")->offset - gguf_find(g, "t")->offset, align);
            assert_int_equal(gguf_find(g, "u")->offset + 140, b.len);
            gguf_close(g);
            buf_release(&b);
        }
    }
}

static void test_nested_arrays_are_walked_over(void **state)
{
    struct gguf_spec s = GGUF_SPEC;
    struct gguf *g;
    struct err e = {0};
    enum gguf_type type;
    size_t n;
    int64_t i;
    key_array(&s, "nested", 9, 2);
    put_u32(&s.keys, 8); /* ["x", ""] */
    put_u64(&s.keys, 2);
    put_str(&s.keys, "x");
    put_str(&s.keys, "");
    put_u32(&s.keys, 0); /* [u8, u8, u8] */
    put_u64(&s.keys, 3);
    buf_add(&s.keys, "abc", 3);
    key_u32(&s, "after", 5);
    struct buf b = gguf_bytes(&s);
    if (gguf_open_bytes(b.s, b.len, "mem", &g, &e))
        fail_msg("%s", e.msg);
    assert_true(gguf_get_array(g, "nested", &type, &n));
    assert_int_equal(type, GGUF_ARRAY);
    assert_int_equal(n, 2);
    assert_false(gguf_array_int(g, "nested", 0, &i));
    assert_true(gguf_get_int(g, "after", &i));
    assert_int_equal(i, 5);
    gguf_close(g);
    buf_release(&b);
}

/* One kind of damage to a file each. */
struct bad {
    const char *what;
    int code;
    const char *words[3];
    void (*make)(struct gguf_spec *s);
};

#define MAKE(name) static void name(struct gguf_spec *s)

MAKE(wrong_magic)
{
    s->magic = "GGML";
}
MAKE(lfs_pointer)
{
    s->magic = "vers";
    s->version = 0x206e6f69; /* "ion " */
    memcpy(&s->n_tensors, "https://", 8);
    memcpy(&s->n_keys, "git-lfs.", 8);
}
MAKE(big_endian)
{
    s->version = 0x03000000;
}
MAKE(version_1)
{
    s->version = 1;
}
MAKE(version_4)
{
    s->version = 4;
}
MAKE(too_many_tensors)
{
    s->n_tensors = (uint64_t)1 << 63;
}
MAKE(one_tensor_too_many)
{
    s->n_tensors++;
}
MAKE(too_many_keys)
{
    s->n_keys = UINT64_MAX;
}
MAKE(key_too_long)
{
    s->n_keys++;
    put_u64(&s->keys, UINT64_MAX - 7);
}
MAKE(key_empty)
{
    key_u32(s, "", 1);
}
MAKE(key_control)
{
    key_u32(s, "a\x1b[2J", 1);
}
MAKE(key_with_zero)
{
    s->n_keys++;
    put_u64(&s->keys, 3);
    buf_add(&s->keys, "a\0b", 3);
    put_u32(&s->keys, 4);
    put_u32(&s->keys, 4);
}
MAKE(key_very_long)
{
    char name[1100];
    memset(name, 'k', sizeof(name));
    name[sizeof(name) - 1] = 0;
    key_u32(s, name, 1);
}
MAKE(key_twice)
{
    key_u32(s, "n.u32", 1);
}
MAKE(unknown_type)
{
    key_start(s, "k", 13);
}
MAKE(string_too_long)
{
    key_start(s, "k", 8);
    put_u64(&s->keys, (uint64_t)1 << 62);
}
MAKE(bool_2)
{
    key_bool(s, "k", 2);
}
MAKE(bool_in_array)
{
    key_array(s, "k", 7, 3);
    buf_add(&s->keys, "\0\1\7", 3);
}
MAKE(array_overflows)
{
    key_array(s, "k", 10, (uint64_t)1 << 61); /* times 8 is 0 */
}
MAKE(array_too_long)
{
    key_array(s, "k", 8, 100000);
}
MAKE(array_unknown_type)
{
    key_array(s, "k", 99, 1);
}
MAKE(array_too_deep)
{
    key_array(s, "k", 9, 1);
    for (int i = 0; i < 100; i++) {
        put_u32(&s->keys, 9);
        put_u64(&s->keys, 1);
    }
}
MAKE(tensor_twice)
{
    tensor_f32(s, "first", 8, 0);
}
MAKE(tensor_name_empty)
{
    tensor_f32(s, "", 8, 0);
}
MAKE(five_dims)
{
    s->n_tensors++;
    put_str(&s->tensors, "five");
    put_u32(&s->tensors, 5);
    for (int i = 0; i < 5; i++)
        put_u64(&s->tensors, 1);
    put_u32(&s->tensors, 0);
    put_u64(&s->tensors, 0);
}
MAKE(zero_dim)
{
    tensor_at(s, "bad", 0, 0, 1, 128);
}
MAKE(negative_dim)
{
    tensor_at(s, "bad", 0, (uint64_t)-8, 2, 128);
}
MAKE(dims_overflow)
{
    tensor_at(s, "bad", 0, (uint64_t)1 << 32, (uint64_t)1 << 32, 128);
}
MAKE(bytes_overflow)
{
    tensor_at(s, "bad", 0, (uint64_t)1 << 62, 1, 128);
}
MAKE(half_a_block)
{
    tensor_at(s, "bad", 8, 33, 1, 128);
}
MAKE(half_a_k_block)
{
    tensor_at(s, "bad", 14, 128, 2, 128);
}
MAKE(unsupported_type)
{
    tensor_at(s, "bad", 10, 256, 1, 128);
}
MAKE(removed_type)
{
    tensor_at(s, "bad", 4, 256, 1, 128);
}
MAKE(far_type)
{
    tensor_at(s, "bad", 4000000000u, 256, 1, 128);
}
MAKE(unaligned_offset)
{
    tensor_at(s, "bad", 0, 1, 0, 4);
}
MAKE(overlap)
{
    tensor_at(s, "bad", 0, 1, 0, 32);
}
MAKE(overlap_same_place)
{
    tensor_at(s, "bad", 0, 16, 0, 0);
}
MAKE(past_the_end)
{
    tensor_at(s, "bad", 0, 8, 0, 96);
}
MAKE(offset_overflows)
{
    tensor_at(s, "bad", 0, 8, 0, UINT64_MAX - 31);
}
MAKE(no_data)
{
    s->n_data = 0;
}
MAKE(alignment_0)
{
    key_u32(s, "general.alignment", 0);
}
MAKE(alignment_48)
{
    key_u32(s, "general.alignment", 48);
}
MAKE(alignment_string)
{
    key_str(s, "general.alignment", "32");
}

static const struct bad bads[] = {
    {"magic", ERR_FORMAT, {"not a GGUF file", "47 47 4d 4c"}, wrong_magic},
    {"LFS pointer", ERR_FORMAT, {"Git LFS pointer", "git lfs pull"}, lfs_pointer},
    {"big-endian", ERR_UNSUPPORTED, {"big-endian"}, big_endian},
    {"version 1", ERR_UNSUPPORTED, {"version 1", "2 and 3"}, version_1},
    {"version 4", ERR_UNSUPPORTED, {"version 4", "2 and 3"}, version_4},
    {"2^63 tensors", ERR_FORMAT, {"9223372036854775808 tensors", "can hold"}, too_many_tensors},
    {"a tensor too many", ERR_FORMAT, {"tensor"}, one_tensor_too_many},
    {"2^64-1 keys", ERR_FORMAT, {"18446744073709551615 metadata keys"}, too_many_keys},
    {"key length", ERR_FORMAT, {"name of metadata key 14", "truncated"}, key_too_long},
    {"empty key", ERR_FORMAT, {"name of metadata key 14 is empty"}, key_empty},
    {"control characters", ERR_FORMAT, {"name of metadata key 14 holds control characters"}, key_control},
    {"0 in a key", ERR_FORMAT, {"holds control characters"}, key_with_zero},
    {"long key", ERR_FORMAT, {"longer than 1024"}, key_very_long},
    {"key twice", ERR_FORMAT, {"\"n.u32\" twice"}, key_twice},
    {"value type", ERR_FORMAT, {"\"k\"", "value type 13"}, unknown_type},
    {"string length", ERR_FORMAT, {"\"k\"", "4611686018427387904"}, string_too_long},
    {"bool", ERR_FORMAT, {"\"k\"", "value 2", "0 and 1"}, bool_2},
    {"bool in an array", ERR_FORMAT, {"\"k\"", "value 7", "0 and 1"}, bool_in_array},
    {"array size overflow", ERR_FORMAT, {"\"k\"", "2305843009213693952 values of type u64"}, array_overflows},
    {"array length", ERR_FORMAT, {"\"k\"", "100000 values of type string"}, array_too_long},
    {"array type", ERR_FORMAT, {"\"k\"", "value type 99"}, array_unknown_type},
    {"array depth", ERR_FORMAT, {"\"k\"", "nested deeper than 4"}, array_too_deep},
    {"tensor twice", ERR_FORMAT, {"tensor \"first\" twice"}, tensor_twice},
    {"tensor without name", ERR_FORMAT, {"name of tensor 2 is empty"}, tensor_name_empty},
    {"five dimensions", ERR_FORMAT, {"\"five\"", "5 dimensions", "up to 4"}, five_dims},
    {"dimension 0", ERR_FORMAT, {"\"bad\"", "dimension of 0"}, zero_dim},
    {"negative dimension", ERR_FORMAT, {"\"bad\"", "dimension of 18446744073709551608"}, negative_dim},
    {"elements overflow", ERR_FORMAT, {"\"bad\"", "more elements than can be counted"}, dims_overflow},
    {"bytes overflow", ERR_FORMAT, {"\"bad\"", "more elements than can be counted"}, bytes_overflow},
    {"half a block", ERR_FORMAT, {"\"bad\"", "rows of 33", "q8_0 stores blocks of 32"}, half_a_block},
    {"half a k-block", ERR_FORMAT, {"\"bad\"", "rows of 128", "q6_k stores blocks of 256"}, half_a_k_block},
    {"Q2_K", ERR_UNSUPPORTED, {"\"bad\"", "Q2_K", "it reads F32, F16, Q4_0"}, unsupported_type},
    {"removed type", ERR_UNSUPPORTED, {"\"bad\"", "unknown type 4"}, removed_type},
    {"type beyond", ERR_UNSUPPORTED, {"\"bad\"", "unknown type 4000000000"}, far_type},
    {"unaligned", ERR_FORMAT, {"\"bad\"", "offset 4", "alignment, 32"}, unaligned_offset},
    {"overlap", ERR_FORMAT, {"\"first\" and \"bad\" overlap"}, overlap},
    {"two in one place", ERR_FORMAT, {"\"first\" and \"bad\" overlap"}, overlap_same_place},
    {"past the end", ERR_FORMAT, {"\"bad\"", "32 bytes at data offset 96", "truncated"}, past_the_end},
    {"offset overflow", ERR_FORMAT, {"\"bad\"", "data offset 18446744073709551584"}, offset_overflows},
    {"no data", ERR_FORMAT, {"\"first\"", "has only 0 bytes"}, no_data},
    {"alignment 0", ERR_FORMAT, {"general.alignment is 0", "power of two"}, alignment_0},
    {"alignment 48", ERR_FORMAT, {"general.alignment is 48", "power of two"}, alignment_48},
    {"alignment of text", ERR_FORMAT, {"general.alignment is not an integer"}, alignment_string},
};

static void test_bad_files(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(bads); i++) {
        struct gguf_spec s = good();
        struct gguf *g = NULL;
        struct err e = {0};
        bads[i].make(&s);
        struct buf b = gguf_bytes(&s);
        print_message("%s\n", bads[i].what);
        int rc = gguf_open_bytes(b.s, b.len, "mem.gguf", &g, &e);
        assert_error(rc, &e, bads[i].code, (const char *const[]){"mem.gguf", bads[i].words[0], NULL});
        for (int k = 1; k < 3; k++)
            if (bads[i].words[k])
                assert_error(rc, &e, bads[i].code, WORDS(bads[i].words[k]));
        assert_null(g);
        buf_release(&b);
    }
}

/* Cut anywhere, the file is refused: it says so, and reads nothing beyond (the sanitisers watch: each piece
 * is in a block of its own size). */
static void test_truncation(void **state)
{
    struct gguf_spec s = good();
    struct buf b = gguf_bytes(&s);
    for (size_t n = 0; n < b.len; n++) {
        struct gguf *g = NULL;
        struct err e = {0};
        char *piece = xmalloc(n);
        memcpy(piece, b.s, n);
        int rc = gguf_open_bytes(piece, n, "mem.gguf", &g, &e);
        assert_error(rc, &e, ERR_FORMAT, WORDS("mem.gguf"));
        xfree(piece);
    }
    buf_release(&b);
}

/* Any one byte changed: an error with a sentence, or a file whose tensors still lie within it. */
static void test_every_byte_damaged(void **state)
{
    static const uint8_t masks[] = {0x01, 0x80, 0xff, 0x20};
    struct gguf_spec s = good();
    struct buf b = gguf_bytes(&s);
    for (size_t i = 0; i < b.len; i++) {
        for (size_t k = 0; k < ARRAY_LEN(masks); k++) {
            struct gguf *g = NULL;
            struct err e = {0};
            b.s[i] ^= (char)masks[k];
            int rc = gguf_open_bytes(b.s, b.len, "mem.gguf", &g, &e);
            b.s[i] ^= (char)masks[k];
            if (rc) {
                assert_int_equal(rc, e.code);
                assert_non_null(strstr(e.msg, "mem.gguf"));
                continue;
            }
            for (size_t t = 0; t < gguf_n_tensors(g); t++)
                assert_true(gguf_tensor(g, t)->offset + gguf_tensor(g, t)->n_bytes <= b.len);
            gguf_close(g);
        }
    }
    buf_release(&b);
}

/* A header longer than one piece of reading, from a file; strings survive the buffer's growth. */
static void test_long_header_from_file(void **state)
{
    char *folder = temp_folder();
    struct gguf_spec s = GGUF_SPEC;
    struct gguf *g;
    struct err e = {0};
    struct gguf_str str;
    char word[64];
    const size_t n = 100000;
    key_str(&s, "before", "kept");
    key_array(&s, "words", 8, n);
    for (size_t i = 0; i < n; i++) {
        snprintf(word, sizeof(word), "word %zu", i);
        put_str(&s.keys, word);
    }
    tensor_f32(&s, "t", 4, 4);
    struct buf b = gguf_bytes(&s);
    write_file(folder, "x.gguf", b.s, b.len);
    buf_release(&b);
    char *path = path_join(folder, "x.gguf");
    if (gguf_open(path, &g, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < n; i++) {
        snprintf(word, sizeof(word), "word %zu", i);
        assert_true(gguf_array_string(g, "words", i, &str));
        assert_string_equal(str.s, word);
        assert_int_equal(str.len, strlen(word));
    }
    assert_true(gguf_get_string(g, "before", &str));
    assert_string_equal(str.s, "kept");
    assert_int_equal(gguf_find(g, "t")->n_bytes, 64);
    gguf_close(g);
    assert_int_equal(gguf_open("/nonexistent.gguf", &g, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "/nonexistent.gguf"));
    xfree(path);
    remove_folder(folder);
}

/* Bounds that only a large (here: sparse) file can break. */
static void test_limits(void **state)
{
    char *folder = temp_folder();
    struct gguf *g = NULL;
    struct err e = {0};
    char *path = path_join(folder, "x.gguf");
    struct gguf_spec s = GGUF_SPEC;
    s.n_keys = 100000;
    struct buf b = gguf_bytes(&s);
    write_file(folder, "x.gguf", b.s, b.len);
    buf_release(&b);
    assert_int_equal(truncate(path, (off_t)1 << 30), 0);
    assert_error(gguf_open(path, &g, &e), &e, ERR_LIMIT, WORDS("100000 metadata keys", "at most 65536"));

    s = (struct gguf_spec)GGUF_SPEC;
    key_array(&s, "large", 10, (uint64_t)90 << 20); /* 720 MiB: in the file, but not in a header */
    b = gguf_bytes(&s);
    write_file(folder, "x.gguf", b.s, b.len);
    buf_release(&b);
    assert_int_equal(truncate(path, (off_t)1 << 30), 0);
    assert_error(gguf_open(path, &g, &e), &e, ERR_LIMIT, WORDS("\"large\" would end", "536870912 bytes"));
    xfree(path);
    remove_folder(folder);
}

/* As the gguf package writes it. */
static void test_golden(void **state)
{
    struct gguf *g;
    struct err e = {0};
    struct gguf_str str;
    double d;
    if (gguf_open(GOLDEN("every_type.gguf"), &g, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(gguf_n_tensors(g), 11);
    assert_int_equal(gguf_find(g, "blk.1.attn_k.weight")->dtype, DT_Q6_K);
    assert_int_equal(gguf_find(g, "token_embd.weight")->dim[0], 3);
    assert_int_equal(gguf_find(g, "token_embd.weight")->dim[1], 512);
    assert_true(gguf_array_string(g, "tokenizer.ggml.tokens", 3, &str));
    assert_string_equal(str.s, "\xc4\xa0"
                               "c");
    assert_true(gguf_array_double(g, "tokenizer.ggml.scores", 2, &d));
    assert_true(d == -2.5);
    gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_versions_and_alignment),
        cmocka_unit_test(test_nested_arrays_are_walked_over),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_every_byte_damaged),
        cmocka_unit_test(test_long_header_from_file),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
