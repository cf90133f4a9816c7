#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/cpu.h"
#include "base/dtype.h"
#include "base/json.h"
#include "base/mem.h"

static void test_f16_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(f16_to_f32(f32_to_f16(f))));
        else
            assert_int_equal(f32_to_f16(f), h);
    }
    assert_int_equal(f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00); /* half way: to even, which is infinity */
    assert_int_equal(f32_to_f16(0x1p-25f), 0);      /* half way to the least subnormal: to even */
    assert_int_equal(f32_to_f16(0x1.8p-25f), 1);
}

static void test_bf16_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        if (!isnan(f))
            assert_int_equal(f32_to_bf16(f), h);
    }
}

/* All codes by the definition; a few by hand. */
static void test_f8_e4m3(void **state)
{
    (void)state;
    for (int h = 0; h < 256; h++) {
        int exp = h >> 3 & 15, man = h & 7;
        double want = exp ? ldexp(8 + man, exp - 10) : ldexp(man, -9);
        float f = f8_e4m3_to_f32((uint8_t)h);
        assert_int_equal(!!signbit(f), h >> 7);
        if ((h & 0x7f) == 0x7f)
            assert_true(isnan(f));
        else
            assert_true(f == (h & 0x80 ? -want : want));
    }
    assert_true(f8_e4m3_to_f32(0x38) == 1);
    assert_true(f8_e4m3_to_f32(0x7e) == 448);
    assert_true(f8_e4m3_to_f32(0xfe) == -448);
    assert_true(f8_e4m3_to_f32(0x08) == 0x1p-6f); /* the least normal one */
    assert_true(f8_e4m3_to_f32(0x07) == 0x1.cp-7f);
    assert_true(f8_e4m3_to_f32(0x01) == 0x1p-9f);
}

static void test_buf(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    assert_string_equal(b.s, "");
    buf_addf(&b, "%d-%s", 12, "ab");
    buf_add_utf8(&b, 0x1F600);
    buf_add_utf8(&b, 0xD800);
    assert_string_equal(b.s, "12-ab\xF0\x9F\x98\x80\xEF\xBF\xBD");
    buf_remove(&b, 0, 3);
    assert_memory_equal(b.s, "ab", 2);
    buf_release(&b);
    assert_string_equal(b.s, "");
}

static void test_json_errors(void **state)
{
    (void)state;
    struct err e = {0};
    json_t *o;
    const char *text = "{\"a\": 3, \"b\": \"x\", \"c\": 4.0, \"d\": null}";
    assert_int_equal(json_parse(text, strlen(text), "t", &o, &e), 0);
    int64_t n;
    assert_int_equal(json_get_int(o, "a", 0, 10, 7, "t", &n, &e), 0);
    assert_int_equal(n, 3);
    assert_int_equal(json_get_int(o, "c", 0, 10, 7, "t", &n, &e), 0);
    assert_int_equal(n, 4);
    assert_int_equal(json_get_int(o, "d", 0, 10, 7, "t", &n, &e), 0);
    assert_int_equal(n, 7);
    assert_int_equal(json_get_int(o, "a", 4, 10, 7, "t", &n, &e), ERR_FORMAT);
    assert_string_equal(e.msg, "t: \"a\" is 3, which is outside 4..10");
    assert_int_equal(json_get_int(o, "b", 4, 10, 7, "t", &n, &e), ERR_FORMAT);
    assert_string_equal(e.msg, "t: \"b\" should be an integer, but is a string");
    json_decref(o);
}

static void test_arena_and_cpu(void **state)
{
    (void)state;
    struct arena *a = arena_new();
    for (int i = 0; i < 1000; i++) {
        char *p = arena_alloc(a, (size_t)i * 7);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (int j = 0; j < i * 7; j++)
            assert_int_equal(p[j], 0);
    }
    assert_string_equal(arena_printf(a, "%s.%d", "layer", 3), "layer.3");
    arena_free(a);
    assert_true(cpu_count() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_round_trip), cmocka_unit_test(test_bf16_round_trip),
        cmocka_unit_test(test_f8_e4m3),        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_json_errors),    cmocka_unit_test(test_arena_and_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
