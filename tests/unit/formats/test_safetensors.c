#include "tests/unit/formats/helpers.h"
#include "formats/safetensors.h"

static void test_golden(void **state)
{
    struct safetensors *s;
    struct err e = {0};
    if (safetensors_open(GOLDEN("one_file/model.safetensors"), &s, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(safetensors_n_tensors(s), 10);
    assert_string_equal(json_string_value(json_object_get(safetensors_metadata(s), "format")), "pt");
    static const struct {
        const char *name, *dtype_name;
        enum dtype dtype;
        int n_dims;
        int64_t dim[3];
        uint64_t n_bytes;
    } want[] = {
        {"a.f32", "F32", DT_F32, 2, {12, 5}, 240},
        {"b.f16", "F16", DT_F16, 2, {12, 5}, 120},
        {"c.bf16", "BF16", DT_BF16, 3, {3, 4, 5}, 120},
        {"d.vector", "F32", DT_F32, 1, {12}, 48},
        {"e.i64", "I64", DT_I64, 1, {6}, 48},
        {"f.f8", "F8_E4M3", DT_F8_E4M3, 2, {12, 5}, 60},
        {"g.f8_e5m2", "F8_E5M2", DT_NONE, 2, {12, 5}, 60},
        {"h.scalar", "F32", DT_F32, 0, {0}, 4},
        {"i.empty", "F32", DT_F32, 2, {0, 5}, 0},
        {"j.bool", "BOOL", DT_BOOL, 1, {2}, 2},
    };
    uint64_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        const struct safetensor *t = safetensors_find(s, want[i].name);
        assert_non_null(t);
        assert_string_equal(t->dtype_name, want[i].dtype_name);
        assert_int_equal(t->dtype, want[i].dtype);
        assert_int_equal(t->n_dims, want[i].n_dims);
        assert_memory_equal(t->dim, want[i].dim, sizeof(want[i].dim));
        assert_int_equal(t->n_bytes, want[i].n_bytes);
        t = safetensors_tensor(s, i); /* in the order of their bytes */
        assert_true(i == 0 || t->offset == at);
        at = t->offset + t->n_bytes;
    }
    assert_null(safetensors_find(s, "no.such"));
    safetensors_close(s);
    safetensors_close(NULL);
    assert_int_equal(safetensors_open("/nonexistent.safetensors", &s, &e), ERR_IO);
}

static const struct {
    const char *what, *json;
    size_t n_data;
} goods[] = {
    {"no tensors", "{}", 0},
    {"padding", "{}        ", 0},
    {"metadata only", "{\"__metadata__\":{}}", 0},
    {"unknown fields", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"x\":1}}", 2},
    {"eight dims", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,2],\"data_offsets\":[0,2]}}", 2},
    {"fp4", "{\"a\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[0,3]}}", 3},
    {"fp6", "{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3},
    {"not in order",
     "{\"a\":{\"dtype\":\"U16\",\"shape\":[],\"data_offsets\":[2,4]},"
     "\"b\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
     4},
    {"empty ones",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[0,9223372036854775807],\"data_offsets\":[1,1]},"
     "\"b\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
     1},
};

static void test_good_files(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(goods); i++) {
        struct safetensors *s;
        struct err e = {0};
        struct buf b = safetensors_bytes(goods[i].json, goods[i].n_data);
        if (safetensors_open_bytes(b.s, b.len, "mem", &s, &e))
            fail_msg("%s: %s", goods[i].what, e.msg);
        for (size_t t = 0; t < safetensors_n_tensors(s); t++)
            assert_true(safetensors_tensor(s, t)->offset + safetensors_tensor(s, t)->n_bytes <= b.len);
        safetensors_close(s);
        buf_release(&b);
    }
}

#define A(rest)  "{\"a\":{" rest "}}"
#define A8(rest) A("\"dtype\":\"F32\",\"shape\":[2]," rest)

static const struct {
    const char *what, *json;
    size_t n_data;
    int code;
    const char *words[3];
} bads[] = {
    {"no JSON", "[]", 0, ERR_FORMAT, {"does not start with \"{\""}},
    {"space first", " {}", 0, ERR_FORMAT, {"does not start with \"{\""}},
    {"empty", "", 0, ERR_FORMAT, {"does not start with \"{\""}},
    {"half of it", "{\"a\":", 0, ERR_FORMAT, {"not valid JSON", "line 1"}},
    {"text behind", "{} x", 0, ERR_FORMAT, {"not valid JSON"}},
    {"no UTF-8", "{\"\xff\":{}}", 0, ERR_FORMAT, {"not valid JSON"}},
    {"key twice",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
     0,
     ERR_FORMAT,
     {"not valid JSON", "duplicate"}},
    {"no object", "{\"a\":3}", 0, ERR_FORMAT, {"tensor \"a\" should be"}},
    {"no dtype", A("\"shape\":[2],\"data_offsets\":[0,8]"), 8, ERR_FORMAT, {"tensor \"a\" should be"}},
    {"no shape", A("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, ERR_FORMAT, {"tensor \"a\" should be"}},
    {"no offsets", A("\"dtype\":\"F32\",\"shape\":[2]"), 8, ERR_FORMAT, {"tensor \"a\" should be"}},
    {"three offsets", A8("\"data_offsets\":[0,8,8]"), 8, ERR_FORMAT, {"tensor \"a\" should be"}},
    {"offsets of text", A8("\"data_offsets\":[\"0\",8]"), 8, ERR_FORMAT, {"\"a\"", "two integers"}},
    {"negative offset", A8("\"data_offsets\":[-8,0]"), 8, ERR_FORMAT, {"\"a\"", "two integers"}},
    {"backwards", A8("\"data_offsets\":[8,0]"), 8, ERR_FORMAT, {"\"a\"", "begin <= end"}},
    {"offset of 2^64", A8("\"data_offsets\":[0,18446744073709551616]"), 8, ERR_FORMAT, {"not valid JSON"}},
    {"unknown dtype",
     A("\"dtype\":\"Q4\",\"shape\":[2],\"data_offsets\":[0,8]"),
     8,
     ERR_FORMAT,
     {"unknown dtype \"Q4\"", "F32, F16, BF16"}},
    {"dtype in lower case",
     A("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"),
     8,
     ERR_FORMAT,
     {"unknown dtype \"f32\""}},
    {"nine dimensions",
     A("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]"),
     1,
     ERR_UNSUPPORTED,
     {"\"a\" has 9 dimensions", "up to 8"}},
    {"negative dimension",
     A("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"),
     8,
     ERR_FORMAT,
     {"dimension 0 of tensor \"a\""}},
    {"a dimension of 2.0",
     A("\"dtype\":\"F32\",\"shape\":[1,2.0],\"data_offsets\":[0,8]"),
     8,
     ERR_FORMAT,
     {"dimension 1 of tensor \"a\""}},
    {"too many bytes", A8("\"data_offsets\":[0,12]"), 12, ERR_FORMAT, {"\"a\"", "needs 8 bytes", "span 12"}},
    {"too few bytes", A8("\"data_offsets\":[0,4]"), 4, ERR_FORMAT, {"\"a\"", "needs 8 bytes", "span 4"}},
    {"overflow to what fits",
     A("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]"),
     0,
     ERR_FORMAT,
     {"\"a\"", "more elements than can be counted"}},
    {"overflow with a zero behind",
     A("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4,0],\"data_offsets\":[0,0]"),
     0,
     ERR_FORMAT,
     {"\"a\"", "more elements than can be counted"}},
    {"half a byte",
     A("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]"),
     1,
     ERR_FORMAT,
     {"\"a\" of dtype F4"}},
    {"past the end", A8("\"data_offsets\":[0,8]"), 7, ERR_FORMAT, {"\"a\"", "only 7 bytes", "truncated"}},
    {"far past the end",
     A8("\"data_offsets\":[9223372036854775799,9223372036854775807]"),
     8,
     ERR_FORMAT,
     {"\"a\" should end at data offset 9223372036854775807"}},
    {"hole in front", A8("\"data_offsets\":[4,12]"), 12, ERR_FORMAT, {"before tensor \"a\"", "no holes"}},
    {"bytes behind", A8("\"data_offsets\":[0,8]"), 9, ERR_FORMAT, {"end at data offset 8", "has 9 bytes"}},
    {"overlap",
     "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
     6,
     ERR_FORMAT,
     {"\"a\" and \"b\" overlap"}},
    {"one place",
     "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
     4,
     ERR_FORMAT,
     {"overlap"}},
    {"hole between",
     "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
     6,
     ERR_FORMAT,
     {"before tensor \"b\"", "3 to 4", "no holes"}},
    {"metadata of numbers", "{\"__metadata__\":{\"a\":1}}", 0, ERR_FORMAT, {"__metadata__", "strings"}},
    {"metadata a list", "{\"__metadata__\":[]}", 0, ERR_FORMAT, {"__metadata__", "strings"}},
    {"control characters",
     "{\"a\\u001b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
     0,
     ERR_FORMAT,
     {"name of tensor 0 holds control characters"}},
    {"a zero in the name",
     "{\"a\\u0000\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
     0,
     ERR_FORMAT,
     {"not valid JSON"}},
    {"no name",
     "{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
     0,
     ERR_FORMAT,
     {"name of tensor 0 is empty"}},
};

static void test_bad_files(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(bads); i++) {
        struct safetensors *s = NULL;
        struct err e = {0};
        struct buf b = safetensors_bytes(bads[i].json, bads[i].n_data);
        print_message("%s\n", bads[i].what);
        int rc = safetensors_open_bytes(b.s, b.len, "mem.safetensors", &s, &e);
        assert_error(rc, &e, bads[i].code, WORDS("mem.safetensors"));
        for (int k = 0; k < 3; k++)
            if (bads[i].words[k])
                assert_error(rc, &e, bads[i].code, WORDS(bads[i].words[k]));
        assert_null(s);
        buf_release(&b);
    }
}

static void open_bad(const char *bytes, size_t n, const char *const *words)
{
    struct safetensors *s = NULL;
    struct err e = {0};
    char *copy = xmalloc(n);
    memcpy(copy, bytes, n);
    assert_error(safetensors_open_bytes(copy, n, "mem", &s, &e), &e, ERR_FORMAT, words);
    xfree(copy);
}

static void test_bad_starts(void **state)
{
    open_bad("", 0, WORDS("mem has 0 bytes", "truncated"));
    open_bad("\2\0\0", 3, WORDS("mem has 3 bytes"));
    open_bad("\3\0\0\0\0\0\0\0{}", 10, WORDS("should have 3 bytes", "only 10"));
    open_bad("\1\xe1\xf5\5\0\0\0\0{}", 10, WORDS("100000001 bytes", "at most 100000000"));
    open_bad("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10,
             WORDS("18446744073709551615 bytes", "not a safetensors"));
    open_bad("\x00\x00\x00\x00\x00\x00\x00\x80{}", 10, WORDS("not a safetensors"));
    open_bad("version https://git-lfs.github.com/spec/v1\n", 43, WORDS("Git LFS pointer"));
    open_bad("<!DOCTYPE html>", 15, WORDS("web page"));
    open_bad("PK\3\4aaaaaaaa", 12, WORDS("zip archive", "convert it to safetensors"));
}

/* Nesting is bounded by the parser, not by the stack. */
static void test_deep_json(void **state)
{
    struct buf b = BUF_INIT;
    const size_t depth = 200000;
    put_u64(&b, 5 + depth);
    buf_adds(&b, "{\"a\":");
    for (size_t i = 0; i < depth; i++)
        buf_addc(&b, '[');
    open_bad(b.s, b.len, WORDS("not valid JSON", "depth"));
    buf_release(&b);
}

static void read_golden(struct buf *b)
{
    struct err e = {0};
    if (file_slurp(GOLDEN("one_file/model.safetensors"), 1 << 20, b, &e))
        fail_msg("%s", e.msg);
}

static void test_truncation(void **state)
{
    struct buf b = BUF_INIT;
    read_golden(&b);
    for (size_t n = 0; n < b.len; n++)
        open_bad(b.s, n, WORDS("mem"));
    buf_release(&b);
}

static void test_every_byte_damaged(void **state)
{
    static const uint8_t masks[] = {0x01, 0x80, 0xff, 0x10};
    struct buf b = BUF_INIT;
    read_golden(&b);
    for (size_t i = 0; i < b.len; i++) {
        for (size_t k = 0; k < ARRAY_LEN(masks); k++) {
            struct safetensors *s = NULL;
            struct err e = {0};
            b.s[i] ^= (char)masks[k];
            int rc = safetensors_open_bytes(b.s, b.len, "mem", &s, &e);
            b.s[i] ^= (char)masks[k];
            if (rc) {
                assert_int_equal(rc, e.code);
                assert_non_null(strstr(e.msg, "mem"));
                continue;
            }
            for (size_t t = 0; t < safetensors_n_tensors(s); t++)
                assert_true(safetensors_tensor(s, t)->offset + safetensors_tensor(s, t)->n_bytes <= b.len);
            safetensors_close(s);
        }
    }
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_good_files),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_starts),
        cmocka_unit_test(test_deep_json),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_every_byte_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
