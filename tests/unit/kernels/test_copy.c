/* wmat_copy: a slice put together from other slices has the bits of one that was packed from the rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "kernels/matmul.h"

static uint64_t seed = 1;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

#define ROWS 45
#define COLS 1024

/* The whole tensor as the checkpoint has it: floats, or random blocks (any bits are a legal block). */
struct tensor {
    enum dtype src, dtype;
    uint8_t *data;
    size_t stride;
};

static struct tensor tensor_make(enum dtype src, enum dtype dtype)
{
    struct tensor t = {src, dtype, NULL, dtype_bytes(src, COLS)};
    t.data = xmalloc(t.stride * ROWS);
    for (size_t i = 0; i < t.stride * ROWS; i++)
        t.data[i] = (uint8_t)rnd(256);
    for (size_t i = 0; src == DT_F32 && i < t.stride * ROWS / 4; i++) {
        float f = (float)(int32_t)(rnd(2001) - 1000) / 1000 * (float)(1 + rnd(4));
        memcpy(t.data + 4 * i, &f, 4);
    }
    return t;
}

/* Rows and columns of the tensor, and the chunks' ends. */
struct part {
    int32_t row0, rows, col0, cols;
    struct cuts cuts;
    struct wmat m;
};

/* chunk: the tensor's chunks' width, 0: one chunk. */
static void part_init(struct part *p, const struct tensor *t, int32_t row0, int32_t rows, int32_t col0,
                      int32_t cols, int32_t chunk)
{
    *p = (struct part){.row0 = row0, .rows = rows, .col0 = col0, .cols = cols};
    for (int32_t at = 0; at < cols;) {
        at = chunk ? MIN((col0 + at) / chunk * chunk + chunk - col0, cols) : cols;
        p->cuts.at[++p->cuts.n] = at;
    }
    bool k = dtype_info(t->dtype)->block == 256;
    wmat_init(&p->m, t->dtype, rows, cols, k ? col0 % 256 : 0, &p->cuts);
    p->m.data = xaligned(64, wmat_bytes(&p->m));
}

static void part_pack(struct part *p, const struct tensor *t)
{
    size_t block = (size_t)dtype_info(t->src)->block;
    const uint8_t *src =
        t->data + (size_t)p->row0 * t->stride + dtype_bytes(t->src, (size_t)p->col0 / block * block);
    wmat_pack(&p->m, 0, p->rows, t->src, src, t->stride);
}

static const struct kind {
    enum dtype src, dtype;
} kinds[] = {{DT_F32, DT_F32},   {DT_F16, DT_F16},   {DT_BF16, DT_BF16}, {DT_Q8_0, DT_Q8_0},
             {DT_Q4_0, DT_Q4_0}, {DT_Q4_1, DT_Q4_1}, {DT_Q5_0, DT_Q5_0}, {DT_Q5_1, DT_Q5_1},
             {DT_Q4_K, DT_Q4_K}, {DT_Q5_K, DT_Q5_K}, {DT_Q6_K, DT_Q6_K}, {DT_F32, DT_I8C},
             {DT_F32, DT_I4G}};

/* Sources cut at `rc` rows and `cc` columns; the target is another rectangle, on the same chunks of 128. */
static void compose(const struct tensor *t, int32_t rc, int32_t cc, int32_t row0, int32_t rows, int32_t col0,
                    int32_t cols)
{
    struct part want, got;
    part_init(&want, t, row0, rows, col0, cols, 128);
    part_init(&got, t, row0, rows, col0, cols, 128);
    part_pack(&want, t);
    memset(got.m.data, 0, wmat_bytes(&got.m));
    for (int32_t r = 0; r < ROWS; r += rc)
        for (int32_t c = 0; c < COLS; c += cc) {
            struct part from;
            part_init(&from, t, r, MIN(rc, ROWS - r), c, MIN(cc, COLS - c), 128);
            part_pack(&from, t);
            int32_t r0 = MAX(r, row0), r1 = MIN(r + from.rows, row0 + rows);
            int32_t c0 = MAX(c, col0), c1 = MIN(c + from.cols, col0 + cols);
            if (r0 < r1 && c0 < c1) {
                assert_true(wmat_same_chunks(&got.m, c0 - col0, &from.m, c0 - c, c1 - c0));
                wmat_copy(&got.m, r0 - row0, c0 - col0, &from.m, r0 - r, c0 - c, r1 - r0, c1 - c0);
            }
            xfree(from.m.data);
        }
    assert_memory_equal(got.m.data, want.m.data, wmat_bytes(&want.m));
    xfree(want.m.data);
    xfree(got.m.data);
}

static void test_compose(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tensor t = tensor_make(kinds[k].src, kinds[k].dtype);
        compose(&t, ROWS, COLS, 0, ROWS, 0, COLS);
        compose(&t, 8, COLS, 0, ROWS, 0, COLS);    /* from many ranks to one, whole panels */
        compose(&t, 13, COLS, 3, 29, 0, COLS);     /* rows fall anywhere in panels */
        compose(&t, ROWS, 128, 0, ROWS, 0, COLS);  /* columns: chunks from 8 ranks */
        compose(&t, ROWS, 512, 0, ROWS, 128, 384); /* K-quants: blocks begin in the middle */
        compose(&t, 16, 256, 5, 40, 640, 384);
        compose(&t, ROWS, COLS, 44, 1, 896, 128);
        xfree(t.data);
    }
}

/* float8: blocks of 96 columns, which chunks and slices cut anywhere. */
static void f8_part(struct part *p, const struct tensor *t, const float *scales, int32_t row0, int32_t rows,
                    int32_t col0, int32_t cols)
{
    part_init(p, t, row0, rows, col0, cols, 128);
    xfree(p->m.data);
    struct scale_blocks b = scale_blocks_at(40, 96, row0, col0);
    wmat_init_f8(&p->m, rows, cols, &b, &p->cuts);
    p->m.data = xaligned(64, wmat_bytes(&p->m));
    wmat_pack_f8(&p->m, 0, rows, t->data + (size_t)row0 * t->stride + col0, t->stride,
                 scales + row0 / 40 * 11 + col0 / 96, 11 * sizeof(float));
}

static void test_float8(void **state)
{
    struct tensor t = tensor_make(DT_F8_E4M3, DT_F8_E4M3);
    float scales[2 * 11];
    for (int i = 0; i < 22; i++)
        scales[i] = (float)(1 + rnd(1000)) / 64;
    for (size_t i = 0; i < t.stride * ROWS; i++)
        t.data[i] &= 0xfe; /* no NaN: a slice knows only of its own ones */
    for (int32_t step = 1; step <= 512; step *= 8) {
        struct part want, got;
        f8_part(&want, &t, scales, 3, 41, 64, 900);
        f8_part(&got, &t, scales, 3, 41, 64, 900);
        memset(got.m.data, 0, wmat_bytes(&got.m));
        for (int32_t c = 0; c < COLS; c += step + 7) {
            struct part from;
            int32_t n = MIN(step + 7, COLS - c), c0 = MAX(c, 64), c1 = MIN(c + n, 964);
            f8_part(&from, &t, scales, 0, ROWS, c, n);
            if (c0 < c1)
                wmat_copy(&got.m, 0, c0 - 64, &from.m, 3, c0 - c, 41, c1 - c0);
            xfree(from.m.data);
        }
        assert_memory_equal(got.m.data, want.m.data, wmat_bytes(&want.m));
        xfree(want.m.data);
        xfree(got.m.data);
    }
    xfree(t.data);
}

/* The last columns of a tensor that is no whole number of groups: padding is the packer's. */
static void test_ragged_end(void **state)
{
    static const struct kind ragged[] = {{DT_F32, DT_I8C}, {DT_F32, DT_I4G}, {DT_BF16, DT_BF16}};
    for (size_t k = 0; k < ARRAY_LEN(ragged); k++) {
        struct tensor t = tensor_make(ragged[k].src, ragged[k].dtype);
        struct part a, b, want, got;
        part_init(&a, &t, 0, ROWS, 0, 128, 128);
        part_init(&b, &t, 0, ROWS, 128, 77, 128);
        part_init(&want, &t, 0, ROWS, 0, 205, 128);
        part_init(&got, &t, 0, ROWS, 0, 205, 128);
        part_pack(&a, &t);
        part_pack(&b, &t);
        part_pack(&want, &t);
        wmat_copy(&got.m, 0, 0, &a.m, 0, 0, ROWS, 128);
        wmat_copy(&got.m, 0, 128, &b.m, 0, 0, ROWS, 77);
        assert_memory_equal(got.m.data, want.m.data, wmat_bytes(&want.m));
        struct part *all[] = {&a, &b, &want, &got};
        for (int i = 0; i < 4; i++)
            xfree(all[i]->m.data);
        xfree(t.data);
    }
}

static void test_chunks(void **state)
{
    struct tensor i8 = tensor_make(DT_F32, DT_I8C), q4 = tensor_make(DT_Q4_0, DT_Q4_0);
    struct part whole, half, odd, one;
    part_init(&whole, &i8, 0, 8, 0, 1024, 128);
    part_init(&half, &i8, 0, 8, 512, 512, 128);
    part_init(&odd, &i8, 0, 8, 320, 320, 128); /* clips the chunks at both of its ends */
    part_init(&one, &i8, 0, 8, 0, 1024, 0);
    assert_true(wmat_same_chunks(&whole.m, 512, &half.m, 0, 512));
    assert_true(wmat_same_chunks(&half.m, 128, &whole.m, 640, 256));
    assert_true(wmat_same_chunks(&half.m, 0, &whole.m, 0, 0));
    assert_true(wmat_same_chunks(&whole.m, 384, &odd.m, 64, 256)); /* its two whole ones */
    assert_false(wmat_same_chunks(&whole.m, 320, &odd.m, 0, 320));
    assert_false(wmat_same_chunks(&whole.m, 384, &odd.m, 64, 250));
    assert_false(wmat_same_chunks(&whole.m, 0, &one.m, 0, 1024));
    assert_false(wmat_same_chunks(&one.m, 0, &whole.m, 0, 1024));
    struct part a, b;
    part_init(&a, &q4, 0, 8, 0, 1024, 128);
    part_init(&b, &q4, 0, 8, 0, 1024, 0);
    assert_true(wmat_same_chunks(&a.m, 32, &b.m, 32, 64)); /* scales belong to groups */
    struct part *all[] = {&whole, &half, &odd, &one, &a, &b};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        xfree(all[i]->m.data);
    xfree(i8.data);
    xfree(q4.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compose),
        cmocka_unit_test(test_float8),
        cmocka_unit_test(test_ragged_end),
        cmocka_unit_test(test_chunks),
    };
    return cmocka_run_group_tests_name("copy", tests, NULL, NULL);
}
