#include "tests/unit/formats/helpers.h"
#include "formats/dequant.h"
#include "formats/gguf.h"

/* Every type, to the bit as gguf's reference has it (tests/golden/make_formats.py). */
static void test_as_the_reference(void **state)
{
    struct buf file = BUF_INIT, want = BUF_INIT;
    struct err e = {0};
    struct gguf *g;
    bool seen[DT_COUNT] = {false};
    size_t at = 0;
    if (file_slurp(GOLDEN("every_type.gguf"), 1 << 20, &file, &e) ||
        file_slurp(GOLDEN("every_type.gguf.f32"), 1 << 20, &want, &e) ||
        gguf_open_bytes(file.s, file.len, "every_type.gguf", &g, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor(g, i);
        int64_t cols = t->dim[t->n_dims - 1], rows = t->n_dims == 2 ? t->dim[0] : 1;
        size_t row_bytes = dtype_bytes(t->dtype, (size_t)cols);
        float *y = xmalloc((size_t)cols * 4);
        /* at an odd address: rows of 34-byte blocks are anywhere */
        char *odd = xmalloc(row_bytes + 1);
        for (int64_t r = 0; r < rows; r++) {
            memcpy(odd + 1, file.s + t->offset + (size_t)r * row_bytes, row_bytes);
            memset(y, 0x7f, (size_t)cols * 4);
            dequant_row(t->dtype, odd + 1, cols, y);
            assert_true(at + (size_t)cols * 4 <= want.len);
            if (memcmp(y, want.s + at, (size_t)cols * 4))
                fail_msg("%s: row %d differs", t->name, (int)r);
            at += (size_t)cols * 4;
        }
        seen[t->dtype] = true;
        xfree(odd);
        xfree(y);
    }
    assert_int_equal(at, want.len);
    for (int t = DT_F32; t <= DT_Q6_K; t++)
        assert_true(seen[t]);
    gguf_close(g);
    buf_release(&file);
    buf_release(&want);
}

/* Float8 rows are their codes' values; scales are not this function's business. */
static void test_f8_e4m3(void **state)
{
    uint8_t code[256];
    float y[256];
    for (int i = 0; i < 256; i++)
        code[i] = (uint8_t)i;
    dequant_row(DT_F8_E4M3, code, 256, y);
    for (int i = 0; i < 256; i++)
        assert_true(i % 128 == 127 ? y[i] != y[i] : y[i] == f8_e4m3_to_f32((uint8_t)i));
}

/* By hand: a block of q5_1, whose parts are easily mixed up. */
static void test_q5_1_by_hand(void **state)
{
    uint8_t b[24] = {0};
    float y[32];
    uint16_t d = f32_to_f16(0.5f), m = f32_to_f16(-3.0f);
    uint32_t high = 1u << 0 | 1u << 17;
    memcpy(b, &d, 2);
    memcpy(b + 2, &m, 2);
    memcpy(b + 4, &high, 4);
    b[8] = 0x9f; /* elements 0 (15) and 16 (9) */
    b[9] = 0x21; /* elements 1 (1) and 17 (2) */
    dequant_row(DT_Q5_1, b, 32, y);
    assert_true(y[0] == 0.5f * 31 - 3);
    assert_true(y[1] == 0.5f * 1 - 3);
    assert_true(y[2] == -3);
    assert_true(y[16] == 0.5f * 9 - 3);
    assert_true(y[17] == 0.5f * 18 - 3);
    dequant_row(DT_Q5_1, b, 0, y); /* nothing is nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_the_reference),
        cmocka_unit_test(test_q5_1_by_hand),
        cmocka_unit_test(test_f8_e4m3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
