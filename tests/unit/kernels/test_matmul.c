/* The matmul family against its contract, evaluated literally, one product at a time, from the checkpoint's
 * own bytes; at each CPU level that this machine has. Buffers are exactly as large as promised, so that ASan
 * sees strays. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "kernels/matmul.h"

static uint64_t seed = 1;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}
static float rnd_float(void)
{
    return ((float)rnd(20001) - 10000) / 10000;
}

static const enum dtype block_types[] = {DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0,
                                         DT_Q5_1, DT_Q4_K, DT_Q5_K, DT_Q6_K};
static const enum dtype float_types[] = {DT_F32, DT_F16, DT_BF16};
static const enum dtype scaled_types[] = {DT_F8_E4M3}; /* floats with scales of blocks */
static int is_k(enum dtype t)
{
    return t == DT_Q4_K || t == DT_Q5_K || t == DT_Q6_K;
}

/* ---- the formats, from their description: element k of a row of blocks ---- */

struct element {
    float scale, min;
    int code, has_min;
};

static float half(const uint8_t *p)
{
    return f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static struct element element(enum dtype t, const uint8_t *row, int k)
{
    struct element e = {0};
    int size = dtype_info(t)->block;
    const uint8_t *b = row + (size_t)(k / size) * (size_t)dtype_info(t)->block_bytes;
    int i = k % size;
    switch (t) {
    case DT_Q8_0: /* d, qs[32] */
        e.scale = half(b);
        e.code = (int8_t)b[2 + i];
        break;
    case DT_Q4_0: /* d, qs[16]: low nibbles first, then high */
        e.scale = half(b);
        e.code = (i < 16 ? b[2 + i] & 15 : b[2 + i - 16] >> 4) - 8;
        break;
    case DT_Q4_1: /* d, m, qs[16] */
        e.scale = half(b);
        e.min = half(b + 2);
        e.has_min = 1;
        e.code = i < 16 ? b[4 + i] & 15 : b[4 + i - 16] >> 4;
        break;
    case DT_Q5_0: /* d, qh (32 bits), qs[16] */
        e.scale = half(b);
        e.code = ((i < 16 ? b[6 + i] & 15 : b[6 + i - 16] >> 4) | (b[2 + i / 8] >> (i % 8) & 1) * 16) - 16;
        break;
    case DT_Q5_1: /* d, m, qh, qs[16] */
        e.scale = half(b);
        e.min = half(b + 2);
        e.has_min = 1;
        e.code = (i < 16 ? b[8 + i] & 15 : b[8 + i - 16] >> 4) | (b[4 + i / 8] >> (i % 8) & 1) * 16;
        break;
    case DT_Q4_K: /* d, dmin, scales[12], qs[128] */
    case DT_Q5_K: /* d, dmin, scales[12], qh[32], qs[128] */ {
        const uint8_t *s = b + 4, *qs = b + (t == DT_Q4_K ? 16 : 48);
        int j = i / 32, sc, m;
        if (j < 4) {
            sc = s[j] & 63;
            m = s[j + 4] & 63;
        } else {
            sc = (s[j + 4] & 15) + (s[j - 4] / 64) * 16;
            m = s[j + 4] / 16 + (s[j] / 64) * 16;
        }
        e.scale = half(b) * (float)sc;
        e.min = -(half(b + 2) * (float)m);
        e.has_min = 1;
        e.code = j % 2 ? qs[j / 2 * 32 + i % 32] >> 4 : qs[j / 2 * 32 + i % 32] & 15;
        if (t == DT_Q5_K && (b[16 + i % 32] & (1 << j)))
            e.code += 16;
        break;
    }
    case DT_Q6_K: /* ql[128], qh[64], scales[16], d */ {
        int h = i / 128, q = i % 128 / 32, l = i % 32;
        uint8_t ql = b[h * 64 + (q % 2) * 32 + l], qh = b[128 + h * 32 + l];
        e.scale = half(b + 208) * (float)(int8_t)b[192 + i / 16];
        e.code = ((q < 2 ? ql & 15 : ql >> 4) | (qh >> (2 * q) & 3) << 4) - 32;
        break;
    }
    default: /* f32, f16, bf16, f8_e4m3 (its value without the block's scale) */
        if (t == DT_F8_E4M3)
            e.scale = f8_e4m3_to_f32(b[0]);
        else if (t == DT_F32)
            memcpy(&e.scale, b, 4);
        else
            e.scale = t == DT_F16 ? half(b) : bf16_to_f32((uint16_t)(b[0] | b[1] << 8));
        e.code = 1;
    }
    return e;
}

enum scales { SCALES_USUAL, SCALES_TINY, SCALES_HUGE, SCALES_MIXED };

static uint16_t rnd_half(enum scales s)
{
    if (s == SCALES_MIXED)
        s = (enum scales)rnd(3);
    if (rnd(16) == 0)
        return (uint16_t)(rnd(2) << 15);
    if (s == SCALES_TINY)
        return (uint16_t)(rnd(2) << 15 | rnd(1024)); /* subnormal */
    if (s == SCALES_HUGE)
        return (uint16_t)(rnd(2) << 15 | (0x7bff - rnd(100)));
    return f32_to_f16(rnd_float());
}

/* A row of `cols` columns (whole blocks) of random bytes that are a legal checkpoint's. */
static void fill_row(enum dtype t, uint8_t *row, int cols, enum scales s)
{
    size_t bytes = dtype_bytes(t, (size_t)cols), step = (size_t)dtype_info(t)->block_bytes;
    for (size_t i = 0; i < bytes; i++)
        row[i] = (uint8_t)(rnd(8) ? rnd(256) : rnd(2) * 255);
    for (size_t i = 0; i < bytes && t == DT_F8_E4M3; i++)
        if ((row[i] & 0x7f) == 0x7f)
            row[i] ^= (uint8_t)(1 + rnd(127)); /* not NaN */
    if (t == DT_F8_E4M3)
        return;
    for (size_t i = 0; i < bytes; i += step) {
        float f = rnd_float();
        uint16_t h = t == DT_BF16 ? f32_to_bf16(f) : rnd_half(s), m = rnd_half(s);
        if (t == DT_F32)
            memcpy(row + i, &f, 4);
        else
            memcpy(row + i + (t == DT_Q6_K ? 208 : 0), &h, 2);
        if (t == DT_Q4_1 || t == DT_Q5_1 || t == DT_Q4_K || t == DT_Q5_K)
            memcpy(row + i + 2, &m, 2);
        if (t == DT_Q8_0 && rnd(4) == 0)
            memset(row + i + 2, rnd(2) ? 0x80 : 0x7f, 32); /* -128 in a file is legal */
    }
}

/* Cuts in n chunks at random multiples of `unit`, some empty. */
static struct cuts rnd_cuts(int32_t cols, int n, int32_t unit)
{
    struct cuts c = {.n = n};
    for (int i = 1; i < n; i++)
        c.at[i] = (int32_t)rnd((uint32_t)(cols / unit) + 1) * unit;
    c.at[n] = cols;
    for (int i = 1; i < n; i++) /* sort */
        for (int j = i; j > 1 && c.at[j - 1] > c.at[j]; j--) {
            int32_t swap = c.at[j];
            c.at[j] = c.at[j - 1];
            c.at[j - 1] = swap;
        }
    return c;
}
static struct cuts even_cuts(int32_t cols, int n, int32_t unit)
{
    struct cuts c = {.n = n};
    for (int i = 1; i < n; i++)
        c.at[i] = (int32_t)((int64_t)(cols / unit) * i / n) * unit;
    c.at[n] = cols;
    return c;
}

static float tree_of(const float *leaf, int n)
{
    int left = 1;
    if (n == 1)
        return leaf[0];
    while (2 * left < n)
        left *= 2;
    return tree_of(leaf, left) + tree_of(leaf + left, n - left);
}

/* ---- one matrix and some tokens ---- */

struct problem {
    enum dtype t, src_t;
    int32_t rows, cols, skip, n_tokens;
    struct cuts cuts;
    uint8_t *src; /* rows of src_t, src_stride bytes apart */
    size_t src_stride;
    struct scale_blocks blocks; /* f8_e4m3, and its scales: rows of f32, at odd addresses */
    uint8_t *scales;
    size_t scale_stride;
    struct wmat w;
    struct act_layout a;
    float *x;        /* [n_tokens, cols] */
    uint8_t *act;    /* records, or NULL: x itself */
    float *y, *want; /* [n_tokens, rows] */
};

static void *exactly(size_t bytes)
{
    return xaligned(64, bytes ? bytes : 1);
}

static float scale_of(const struct problem *p, int32_t r, int32_t k)
{
    float f;
    int64_t br = ((int64_t)r + p->blocks.row_in_block) / p->blocks.scale_rows;
    int64_t bk = ((int64_t)k + p->blocks.col_in_block) / p->blocks.scale_cols;
    memcpy(&f, p->scales + (size_t)br * p->scale_stride + 4 * (size_t)bk, 4);
    return f;
}

/* Blocks of all shapes, slices that begin anywhere in them. */
static void make_scales(struct problem *p, enum scales s)
{
    static const int32_t sizes[] = {128, 128, 128, 1, 3, 8, 20, 64, 200, INT32_MAX};
    struct scale_blocks *b = &p->blocks;
    b->scale_rows = sizes[rnd(ARRAY_LEN(sizes))];
    b->scale_cols = sizes[rnd(ARRAY_LEN(sizes))];
    b->row_in_block = (int32_t)rnd(2) * (int32_t)rnd((uint32_t)b->scale_rows);
    b->col_in_block = (int32_t)rnd(2) * (int32_t)rnd((uint32_t)b->scale_cols);
    int64_t block_rows = p->rows ? ((int64_t)b->row_in_block + p->rows - 1) / b->scale_rows + 1 : 0;
    int64_t block_cols = p->cols ? ((int64_t)b->col_in_block + p->cols - 1) / b->scale_cols + 1 : 0;
    p->scale_stride = 4 * (size_t)block_cols + 1 + rnd(3);
    p->scales = exactly((size_t)block_rows * p->scale_stride);
    for (int64_t i = 0; i < block_rows; i++) {
        for (int64_t j = 0; j < block_cols; j++) {
            enum scales kind = s == SCALES_MIXED ? (enum scales)rnd(3) : s;
            float f = rnd_float() * (kind == SCALES_TINY ? 1e-38f : kind == SCALES_HUGE ? 3e38f : 0.01f);
            memcpy(p->scales + (size_t)i * p->scale_stride + 4 * j, &f, 4);
        }
    }
}

static void problem_make(struct problem *p, enum scales s)
{
    int32_t block = dtype_info(p->src_t)->block, src_cols = ROUND_UP(p->skip + p->cols, block);
    p->src_stride = dtype_bytes(p->src_t, (size_t)src_cols) + rnd(3);
    p->src = exactly((size_t)p->rows * p->src_stride);
    for (int32_t r = 0; r < p->rows; r++)
        fill_row(p->src_t, p->src + (size_t)r * p->src_stride, src_cols, s);
    if (p->t == DT_F8_E4M3)
        make_scales(p, s);
    p->x = exactly((size_t)p->n_tokens * (size_t)p->cols * 4);
    for (int64_t i = 0; i < (int64_t)p->n_tokens * p->cols; i++)
        p->x[i] = rnd(10) ? rnd_float() * (s == SCALES_USUAL ? 1 : 1000) : (float)rnd(2);
}

static void problem_pack(struct problem *p)
{
    wmat_init(&p->w, p->t, p->rows, p->cols, p->skip, &p->cuts);
    if (p->t == DT_F8_E4M3)
        wmat_init_f8(&p->w, p->rows, p->cols, &p->blocks, &p->cuts);
    p->w.data = exactly(wmat_bytes(&p->w));
    memset(p->w.data, 0xa5, wmat_bytes(&p->w));
    int32_t half_way = p->rows / 2 / WMAT_PANEL * WMAT_PANEL; /* two calls, as two threads would */
    for (int32_t row0 = half_way, n = p->rows - half_way; row0 >= 0; row0 -= half_way, n = half_way) {
        const uint8_t *src = p->src + (size_t)row0 * p->src_stride;
        int64_t below = ((int64_t)row0 + p->blocks.row_in_block) / MAX(p->blocks.scale_rows, 1);
        if (p->t == DT_F8_E4M3)
            wmat_pack_f8(&p->w, row0, n, src, p->src_stride, p->scales + (size_t)below * p->scale_stride,
                         p->scale_stride);
        else
            wmat_pack(&p->w, row0, n, p->src_t, src, p->src_stride);
        if (half_way == 0)
            break;
    }
    act_layout_init(&p->a, act_kind_of(p->t), p->cols, &p->cuts);
    p->y = exactly((size_t)p->n_tokens * (size_t)p->rows * 4);
    p->want = exactly((size_t)p->n_tokens * (size_t)p->rows * 4);
}

static void problem_run(struct problem *p, const struct matmul_kernels *k, float *y)
{
    const void *act = p->x;
    size_t stride = (size_t)p->cols * 4;
    if (p->a.kind != ACT_F32) {
        xfree(p->act);
        p->act = exactly((size_t)p->n_tokens * p->a.row_bytes);
        for (int32_t t = 0; t < p->n_tokens; t++)
            k->quantize(&p->a, p->x + (size_t)t * (size_t)p->cols, p->act + (size_t)t * p->a.row_bytes);
        act = p->act;
        stride = p->a.row_bytes;
    }
    k->mul[p->t](&p->w, act, stride, p->n_tokens, 0, p->w.n_panels, y, (size_t)p->rows);
}

static void problem_free(struct problem *p)
{
    xfree(p->src);
    xfree(p->scales);
    xfree(p->w.data);
    xfree(p->x);
    xfree(p->act);
    xfree(p->y);
    xfree(p->want);
}

static void quantize_literally(const float *x, int n, float *scale, int *q)
{
    float amax = 0;
    for (int i = 0; i < n; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    *scale = isinf(127 / amax) ? 0 : amax / 127;
    for (int i = 0; i < n; i++) {
        float scaled = x[i] * (127 / amax);
        q[i] = isinf(127 / amax) || !isfinite(scaled) ? 0 : (int)rint((double)scaled);
    }
}

/* y[t][r] by the contract's formulas. ret_exact: the same in double, of unquantised weights and quantised
 * activations; ret_size: sum of magnitudes. */
static float contract(const struct problem *p, int32_t t, int32_t r, double *ret_exact, double *ret_size)
{
    const uint8_t *row = p->src + (size_t)r * p->src_stride;
    const float *x = p->x + (size_t)t * (size_t)p->cols;
    float leaf[YOKE_CHUNKS];
    *ret_exact = *ret_size = 0;
    for (int c = 0; c < p->cuts.n; c++) {
        int32_t begin = p->cuts.at[c], end = p->cuts.at[c + 1];
        float acc = 0;
        if (p->t == DT_F8_E4M3) {
            for (int32_t k = begin, first = begin; k < end; first = k) {
                float block = 0, scale = scale_of(p, r, k);
                do {
                    float w = element(p->src_t, row, k).scale;
                    block = fmaf(w, x[k], block);
                    *ret_exact += (double)scale * w * x[k];
                    *ret_size += fabs((double)scale * w * x[k]);
                    k++;
                } while (k < end && (k + (int64_t)p->blocks.col_in_block) % p->blocks.scale_cols);
                acc = fmaf(block, scale, acc);
                assert_true(k > first);
            }
        } else if (act_kind_of(p->t) == ACT_F32) {
            for (int32_t k = begin; k < end; k++) {
                float w = element(p->src_t, row, k).scale;
                acc = fmaf(w, x[k], acc);
                *ret_exact += (double)w * x[k];
                *ret_size += fabs((double)w * x[k]);
            }
        } else if (p->t == DT_I8C) {
            int n = end - begin, *q = xcalloc((size_t)n + 1, sizeof(int)),
                *code = xcalloc((size_t)n + 1, sizeof(int));
            float ascale, wscale, *weights = xcalloc((size_t)n + 1, sizeof(float));
            int64_t isum = 0;
            for (int i = 0; i < n; i++)
                weights[i] = element(p->src_t, row, begin + i).scale;
            quantize_literally(x + begin, n, &ascale, q);
            quantize_literally(weights, n, &wscale, code);
            for (int i = 0; i < n; i++)
                isum += code[i] * q[i];
            acc = ((float)isum * ascale) * wscale;
            *ret_exact += (double)isum * ascale * wscale;
            *ret_size += fabs((double)isum * ascale * wscale);
            xfree(weights);
            xfree(code);
            xfree(q);
        } else {
            int per = p->t == DT_Q6_K ? 16 : 32;
            for (int32_t g = begin; g < end; g += 32) {
                int q[32] = {0}, n = MIN(32, end - g), sum = 0;
                float ascale;
                quantize_literally(x + g, n, &ascale, q);
                for (int i = 0; i < 32; i++)
                    sum += q[i];
                for (int h = 0; h < 32; h += per) {
                    struct element e = element(p->src_t, row, p->skip + g + h);
                    int isum = 0;
                    for (int i = h; i < h + per; i++)
                        isum += element(p->src_t, row, p->skip + g + i).code * q[i];
                    acc = fmaf((float)isum, e.scale * ascale, acc);
                    *ret_exact += (double)isum * e.scale * ascale;
                    *ret_size += fabs((double)isum * e.scale * ascale);
                    if (e.has_min) {
                        acc = fmaf(e.min, ascale * (float)sum, acc);
                        *ret_exact += (double)e.min * ascale * sum;
                        *ret_size += fabs((double)e.min * ascale * sum);
                    }
                }
            }
        }
        leaf[c] = acc;
    }
    return tree_of(leaf, p->cuts.n);
}

static int same_bits(float a, float b)
{
    return (isnan(a) && isnan(b)) || !memcmp(&a, &b, 4);
}

static void assert_same(const struct problem *p, const float *y, const float *want, const char *what)
{
    for (int64_t i = 0; i < (int64_t)p->n_tokens * p->rows; i++)
        if (!same_bits(y[i], want[i]))
            fail_msg("%s %s: rows %d cols %d skip %d tokens %d chunks %d: token %d row %d is %a, not %a",
                     what, dtype_name(p->t), p->rows, p->cols, p->skip, p->n_tokens, p->cuts.n,
                     (int)(i / p->rows), (int)(i % p->rows), (double)y[i], (double)want[i]);
}

static int n_levels(enum cpu_level levels[4])
{
    int n = 0;
    static const enum cpu_level all[] = {CPU_C, CPU_AVX2, CPU_AVX512};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i] <= cpu_level_native())
            levels[n++] = all[i];
    return n;
}

static void check_problem(struct problem *p, enum scales s)
{
    enum cpu_level levels[4];
    problem_make(p, s);
    problem_pack(p);
    for (int32_t t = 0; t < p->n_tokens; t++) {
        for (int32_t r = 0; r < p->rows; r++) {
            double exact, size;
            float want = contract(p, t, r, &exact, &size);
            p->want[(size_t)t * (size_t)p->rows + (size_t)r] = want;
            /* Each of the (at most 2 * cols / 16 or cols) steps rounds twice at 2^-24 of at most `size`. */
            if (isfinite(want))
                assert_true(fabs(want - exact) <= size * 0x1p-23 * (p->cols + 16) + 1e-38);
        }
    }
    for (int l = 0, n = n_levels(levels); l < n; l++) {
        struct matmul_kernels k;
        matmul_kernels_init(&k, levels[l]);
        memset(p->y, 0xff, (size_t)p->n_tokens * (size_t)p->rows * 4);
        problem_run(p, &k, p->y);
        assert_same(p, p->y, p->want, cpu_level_name(levels[l]));
    }
    problem_free(p);
}

static void check_type(enum dtype t, enum dtype src_t)
{
    int is_float = act_kind_of(t) == ACT_F32;
    for (int i = 0; i < 40; i++) {
        struct problem p = {.t = t, .src_t = src_t, .rows = (int32_t)rnd(28), .n_tokens = (int32_t)rnd(20)};
        p.cols = i < 4 ? i * 32 : (int32_t)rnd(12) * 32 + (int32_t)(rnd(2) * rnd(32));
        p.skip = is_k(t) ? (int32_t)rnd(8) * 32 : 0;
        p.cuts = rnd_cuts(p.cols, 1 + (int)rnd(YOKE_CHUNKS), is_float ? 1 : 32);
        check_problem(&p, (enum scales)(i % 4));
    }
}

static void test_contract(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(block_types); i++)
        check_type(block_types[i], block_types[i]);
    for (size_t i = 0; i < ARRAY_LEN(float_types); i++) {
        check_type(float_types[i], float_types[i]);
        check_type(DT_I8C, float_types[i]);
    }
    for (size_t i = 0; i < 5 * ARRAY_LEN(scaled_types); i++)
        check_type(scaled_types[i / 5], scaled_types[i / 5]);
}

/* Long chunks: more columns than any kernel keeps in its inner buffers. */
static void test_long_rows(void **state)
{
    static const enum dtype types[] = {DT_Q4_0, DT_Q5_1, DT_Q8_0, DT_Q4_K,
                                       DT_Q6_K, DT_BF16, DT_I8C,  DT_F8_E4M3};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct problem p = {
            .t = types[i], .src_t = types[i] == DT_I8C ? DT_F32 : types[i], .rows = 17, .n_tokens = 5};
        p.cols = 2304 + 40;
        p.skip = is_k(types[i]) ? 96 : 0;
        p.cuts = rnd_cuts(p.cols, 2, 32);
        check_problem(&p, SCALES_USUAL);
    }
}

static void test_rows_are_the_formats(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(block_types) + ARRAY_LEN(float_types); i++) {
        enum dtype t = i < ARRAY_LEN(block_types) ? block_types[i] : float_types[i - ARRAY_LEN(block_types)];
        for (int n = 0; n < 20; n++) {
            struct problem p = {.t = t, .src_t = t, .rows = 1 + (int32_t)rnd(20), .n_tokens = 0};
            p.cols = 1 + (int32_t)rnd(700);
            p.skip = is_k(t) ? (int32_t)rnd(8) * 32 : 0;
            p.cuts = even_cuts(p.cols, 1 + (int)rnd(YOKE_CHUNKS), 32);
            problem_make(&p, (enum scales)(n % 4));
            problem_pack(&p);
            float *row = exactly((size_t)p.cols * 4);
            for (int32_t r = 0; r < p.rows; r++) {
                wmat_row(&p.w, r, row);
                for (int32_t k = 0; k < p.cols; k++) {
                    struct element e = element(t, p.src + (size_t)r * p.src_stride, p.skip + k);
                    float want = e.scale * (float)e.code;
                    if (e.has_min)
                        want = want + e.min;
                    assert_true(same_bits(row[k], want));
                }
            }
            xfree(row);
            problem_free(&p);
        }
    }
}

/* A rank's slice, multiplied alone, is a subtree of the whole: the tensor-parallel promise. */
static void check_slices(enum dtype t, enum dtype src_t, const struct matmul_kernels *k)
{
    struct problem p = {.t = t, .src_t = src_t, .rows = 19, .cols = 1280, .n_tokens = 3};
    p.cuts = rnd(2) ? even_cuts(p.cols, YOKE_CHUNKS, 32) : rnd_cuts(p.cols, YOKE_CHUNKS, 32);
    problem_make(&p, SCALES_USUAL);
    problem_pack(&p);
    problem_run(&p, k, p.want);
    int block = dtype_info(src_t)->block;
    for (int degree = 1; degree <= YOKE_CHUNKS; degree *= 2) {
        float *part[YOKE_CHUNKS];
        for (int rank = 0; rank < degree; rank++) {
            int per = YOKE_CHUNKS / degree, first = rank * per;
            int32_t begin = p.cuts.at[first];
            struct problem s = p;
            s.cols = p.cuts.at[first + per] - begin;
            s.cuts = (struct cuts){.n = per};
            for (int c = 0; c <= per; c++)
                s.cuts.at[c] = p.cuts.at[first + c] - begin;
            s.skip = begin % block;
            if (t == DT_F8_E4M3) {
                int64_t at = (int64_t)begin + p.blocks.col_in_block;
                s.blocks.col_in_block = (int32_t)(at % p.blocks.scale_cols);
                s.scales = p.scales + 4 * (at / p.blocks.scale_cols);
            }
            s.src = p.src + dtype_bytes(src_t, (size_t)(begin - s.skip));
            s.act = NULL;
            s.x = exactly((size_t)s.n_tokens * (size_t)s.cols * 4);
            for (int32_t i = 0; i < s.n_tokens; i++)
                memcpy(s.x + (size_t)i * (size_t)s.cols, p.x + (size_t)i * (size_t)p.cols + begin,
                       (size_t)s.cols * 4);
            problem_pack(&s);
            problem_run(&s, k, s.y);
            part[rank] = s.y;
            s.y = NULL;
            s.src = NULL;
            s.scales = NULL;
            problem_free(&s);
        }
        for (int i = 0; i < p.n_tokens * p.rows; i++) {
            float leaf[YOKE_CHUNKS];
            for (int rank = 0; rank < degree; rank++)
                leaf[rank] = part[rank][i];
            p.y[i] = tree_of(leaf, degree);
        }
        assert_same(&p, p.y, p.want, "slices");
        for (int rank = 0; rank < degree; rank++)
            xfree(part[rank]);
    }
    problem_free(&p);
}
static void test_slices(void **state)
{
    enum cpu_level levels[4];
    for (int l = 0, n = n_levels(levels); l < n; l++) {
        struct matmul_kernels k;
        matmul_kernels_init(&k, levels[l]);
        for (int i = 0; i < 3; i++) {
            for (size_t j = 0; j < ARRAY_LEN(block_types); j++)
                check_slices(block_types[j], block_types[j], &k);
            for (size_t j = 0; j < ARRAY_LEN(float_types); j++) {
                check_slices(float_types[j], float_types[j], &k);
                check_slices(DT_I8C, float_types[j], &k);
                check_slices(DT_I4G, float_types[j], &k);
            }
            for (int j = 0; j < 4; j++)
                check_slices(DT_F8_E4M3, DT_F8_E4M3, &k);
        }
    }
}

/* Tokens and panels do not see each other: any split of the work gives the same bits. Rows beyond the range
 * stay. */
static void test_splits(void **state)
{
    enum cpu_level levels[4];
    for (int l = 0, n = n_levels(levels); l < n; l++) {
        struct matmul_kernels k;
        matmul_kernels_init(&k, levels[l]);
        for (size_t j = 0; j < ARRAY_LEN(block_types) + 6; j++) {
            static const enum dtype more[] = {DT_F32, DT_F16, DT_BF16, DT_I8C, DT_I4G, DT_F8_E4M3};
            enum dtype t = j < ARRAY_LEN(block_types) ? block_types[j] : more[j - ARRAY_LEN(block_types)];
            struct problem p = {.t = t, .src_t = t == DT_I8C || t == DT_I4G ? DT_F32 : t};
            p.rows = 85;
            p.cols = 320;
            p.n_tokens = 37;
            p.cuts = even_cuts(p.cols, YOKE_CHUNKS, 32);
            problem_make(&p, SCALES_USUAL);
            problem_pack(&p);
            problem_run(&p, &k, p.want);
            const uint8_t *act = p.a.kind == ACT_F32 ? (const uint8_t *)p.x : p.act;
            for (int i = 0; i < 40; i++) {
                int32_t t0 = i < p.n_tokens ? 0 : (int32_t)rnd((uint32_t)p.n_tokens);
                int32_t nt = i < p.n_tokens ? i + 1 : 1 + (int32_t)rnd((uint32_t)(p.n_tokens - t0));
                int32_t p0 = (int32_t)rnd((uint32_t)p.w.n_panels),
                        p1 = p0 + (int32_t)rnd((uint32_t)(p.w.n_panels - p0) + 1);
                for (int m = 0; m < p.n_tokens * p.rows; m++)
                    p.y[m] = 12345;
                k.mul[t](&p.w, act + (size_t)t0 * p.a.row_bytes, p.a.row_bytes, nt, p0, p1,
                         p.y + (size_t)t0 * (size_t)p.rows, (size_t)p.rows);
                for (int m = 0; m < p.n_tokens * p.rows; m++) {
                    int32_t token = m / p.rows, row = m % p.rows;
                    int in =
                        token >= t0 && token < t0 + nt && row >= p0 * WMAT_PANEL && row < p1 * WMAT_PANEL;
                    if (!same_bits(p.y[m], in ? p.want[m] : 12345))
                        fail_msg("%s %s: tokens %d+%d, panels %d..%d: token %d row %d",
                                 cpu_level_name(levels[l]), dtype_name(t), t0, nt, p0, p1, token, row);
                }
            }
            problem_free(&p);
        }
    }
}

static void test_nan_and_infinity(void **state)
{
    static const enum dtype types[] = {DT_F32,  DT_F16,  DT_BF16, DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0,
                                       DT_Q5_1, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_I8C,  DT_I4G,  DT_F8_E4M3};
    enum cpu_level levels[4];
    for (int l = 0, n = n_levels(levels); l < n; l++) {
        struct matmul_kernels k;
        matmul_kernels_init(&k, levels[l]);
        for (size_t i = 0; i < ARRAY_LEN(types) * 3; i++) {
            enum dtype t = types[i / 3];
            struct problem p = {.t = t, .src_t = t == DT_I8C || t == DT_I4G ? DT_F32 : t};
            p.rows = 16;
            p.cols = 288;
            p.n_tokens = 9;
            p.cuts = even_cuts(p.cols, 3, 32);
            problem_make(&p, SCALES_USUAL);
            problem_pack(&p);
            for (int32_t j = 0; j < p.cols; j++) /* a token of which no product is 0 */
                p.x[4 * p.cols + j] = 1;
            float bad = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
            p.x[4 * p.cols + 100] = bad;
            problem_run(&p, &k, p.y);
            for (int32_t m = 0; m < p.n_tokens * p.rows; m++) {
                if (m / p.rows != 4)
                    assert_true(isfinite(p.y[m]));
                else
                    assert_true(p.a.kind == ACT_F32 ? !isfinite(p.y[m]) : isnan(p.y[m]));
            }
            problem_free(&p);
        }
    }
}

static void test_quantize(void **state)
{
    enum cpu_level levels[4];
    static const float magnitudes[] = {1, 1e-3f, 3e38f, 1e-37f, 1e-40f, 0, 0x1p-121f, 127.5f};
    int n = n_levels(levels);
    for (int i = 0; i < 400; i++) {
        int32_t cols = (int32_t)rnd(400);
        struct cuts cuts = rnd_cuts(cols, 1 + (int)rnd(YOKE_CHUNKS), 32);
        struct act_layout a;
        act_layout_init(&a, i % 2 ? ACT_Q32 : ACT_QC, cols, &cuts);
        assert_true(a.row_bytes % 64 == 0 && a.code_at % 64 == 0);
        float *x = exactly((size_t)cols * 4);
        uint8_t *first = exactly(a.row_bytes), *other = exactly(a.row_bytes);
        for (int32_t k = 0; k < cols; k++) /* halves meet the rule of even */
            x[k] = magnitudes[i / 2 % 8] * (rnd(4) ? rnd_float() : ((float)rnd(255) - 127) / 127);
        if (i % 10 == 9 && cols)
            x[rnd((uint32_t)cols)] = rnd(2) ? NAN : INFINITY;
        for (int l = 0; l < n; l++) {
            struct matmul_kernels k;
            uint8_t *record = l ? other : first;
            matmul_kernels_init(&k, levels[l]);
            memset(record, 0xa5, a.row_bytes);
            k.quantize(&a, x, record);
            for (int32_t s = 0; s < a.n_scales; s++) {
                int32_t begin = a.kind == ACT_Q32 ? 32 * s : cuts.at[s];
                int32_t end = a.kind == ACT_Q32 ? MIN(begin + 32, cols) : cuts.at[s + 1];
                float scale, got;
                int q[400], sums[2] = {0, 0}, bad = 0;
                for (int32_t m = begin; m < end; m++)
                    bad |= !isfinite(x[m]);
                quantize_literally(x + begin, end - begin, &scale, q);
                memcpy(&got, record + a.scale_at + 4 * s, 4);
                assert_true(bad ? isnan(got) : same_bits(got, scale));
                for (int32_t m = begin; m < end; m++) {
                    int8_t code = (int8_t)record[a.code_at + (uint32_t)m];
                    assert_int_equal(code, bad ? 0 : q[m - begin]);
                    sums[a.kind == ACT_Q32 && m - begin >= 16] += code;
                }
                if (a.kind == ACT_Q32) {
                    int16_t isum[2];
                    memcpy(isum, record + a.isum_at + 4 * s, 4);
                    assert_true(isum[0] == sums[0] && isum[1] == sums[1]);
                    memcpy(&got, record + a.sum_at + 4 * s, 4);
                    assert_true(bad ? isnan(got) : same_bits(got, scale * (float)(sums[0] + sums[1])));
                } else {
                    int32_t isum;
                    memcpy(&isum, record + a.isum_at + 4 * s, 4);
                    assert_int_equal(isum, sums[0]);
                }
            }
            for (uint32_t m = (uint32_t)cols; a.code_at + m < a.row_bytes; m++)
                assert_int_equal(record[a.code_at + m], 0);
        }
        xfree(x);
        xfree(first);
        xfree(other);
    }
}

/* I4G: never worse than Q4_0's rule, exact where exactness is possible, and loud about what it cannot hold.
 * Its products are Q4_0's: the panels are the same. */
static void test_i4g(void **state)
{
    double plain = 0, chosen = 0;
    struct problem p = {.t = DT_I4G, .src_t = DT_F32, .rows = 40, .cols = 325, .n_tokens = 7};
    p.cuts = even_cuts(p.cols, 3, 32);
    problem_make(&p, SCALES_USUAL);
    for (int32_t r = 0; r < p.rows; r++) {
        for (int32_t k = 0; k < p.cols; k++) {
            float sum = 0;
            for (int i = 0; i < 12; i++) /* nearly Gaussian, as weights are */
                sum += rnd_float();
            if (r == 3) /* exactly representable */
                sum = 0.25f * (float)(k % 32 == 4 ? -8 : (int)rnd(16) - 8);
            if (r == 4)
                sum = 0;
            if (r == 5)
                sum *= 1e9f;
            if (r == 6 && k == 40)
                sum = NAN;
            memcpy(p.src + (size_t)r * p.src_stride + 4 * (size_t)k, &sum, 4);
        }
    }
    problem_pack(&p);
    float *row = exactly((size_t)p.cols * 4);
    for (int32_t r = 0; r < p.rows; r++) {
        wmat_row(&p.w, r, row);
        for (int32_t g = 0; g < p.cols; g += 32) {
            double e_plain = 0, e_chosen = 0;
            float m = 0, x[32] = {0};
            int n = MIN(32, p.cols - g);
            memcpy(x, p.src + (size_t)r * p.src_stride + 4 * (size_t)g, 4 * (size_t)n);
            for (int i = 0; i < n; i++)
                m = fabsf(x[i]) > fabsf(m) ? x[i] : m;
            float d = f16_to_f32(f32_to_f16(m / -8));
            for (int i = 0; i < n; i++) {
                double q = fmin(fmax(rint(x[i] / (double)d), -8), 7);
                e_plain += (x[i] - d * q) * (x[i] - d * q);
                e_chosen += ((double)x[i] - row[g + i]) * ((double)x[i] - row[g + i]);
            }
            if (r == 3 || r == 4)
                assert_true(e_chosen == 0);
            else if (r == 5 || (r == 6 && g == 32))
                assert_true(isnan(e_chosen));
            else
                assert_true(e_chosen <= e_plain * 1.00001);
            if (r > 6) {
                plain += e_plain;
                chosen += e_chosen;
            }
        }
    }
    assert_true(chosen < 0.95 * plain);
    print_message("i4g: squared error %.3f of q4_0's\n", chosen / plain);
    struct matmul_kernels k;
    matmul_kernels_init(&k, CPU_C);
    problem_run(&p, &k, p.want);
    enum cpu_level levels[4];
    for (int l = 0, n = n_levels(levels); l < n; l++) {
        matmul_kernels_init(&k, levels[l]);
        problem_run(&p, &k, p.y);
        assert_same(&p, p.y, p.want, cpu_level_name(levels[l]));
        p.w.dtype = p.t = DT_Q4_0;
        problem_run(&p, &k, p.y);
        assert_same(&p, p.y, p.want, cpu_level_name(levels[l]));
        p.w.dtype = p.t = DT_I4G;
    }
    xfree(row);
    problem_free(&p);
}

/* Each code by each level and by each reader, times each other: one column, one row a code. */
static void test_f8_codes(void **state)
{
    enum { N = 256 };
    struct cuts cuts = {.n = 1, .at = {0, 1}};
    struct scale_blocks blocks = scale_blocks_at(1, 128, 0, 0);
    enum cpu_level levels[4];
    struct wmat w;
    uint8_t code[N];
    float scale[N], row, floats[N], x[64], y[64 * N];
    for (int i = 0; i < N; i++) {
        code[i] = (uint8_t)i;
        scale[i] = 0x1.23456p-5f;
    }
    for (int i = 0; i < 64; i++)
        x[i] = i ? rnd_float() : 1;
    wmat_init_f8(&w, N, 1, &blocks, &cuts);
    w.data = exactly(wmat_bytes(&w));
    wmat_pack_f8(&w, 0, N, code, 1, scale, 4);
    f8_rows_to_f32(code, 1, N, 1, &blocks, scale, 4, floats);
    for (int i = 0; i < N; i++) {
        wmat_row(&w, i, &row);
        assert_true(same_bits(row, scale[i] * f8_e4m3_to_f32((uint8_t)i)) && same_bits(row, floats[i]));
        assert_int_equal(isnan(row), i % 128 == 127);
    }
    for (int l = 0, n = n_levels(levels); l < n; l++) {
        for (int tokens = 1; tokens <= 64; tokens = 4 * tokens) {
            struct matmul_kernels k;
            matmul_kernels_init(&k, levels[l]);
            k.mul[DT_F8_E4M3](&w, x, 4, tokens, 0, w.n_panels, y, N);
            for (int i = 0; i < tokens * N; i++) {
                float acc = fmaf(f8_e4m3_to_f32((uint8_t)(i % N)), x[i / N], 0);
                assert_true(same_bits(y[i], fmaf(acc, scale[0], 0)));
            }
        }
    }
    xfree(w.data);
}

/* Rows and columns of a whole matrix, cut out anywhere, as a rank of a split model has them: read back and as
 * floats they are the whole's, their products its rows. NaN is where the codes say. */
static void test_f8_places(void **state)
{
    enum { ROWS = 300, COLS = 333 };
    static uint8_t code[ROWS][COLS];
    static float want[ROWS][COLS];
    enum cpu_level levels[4];
    for (int round = 0; round < 60; round++) {
        int32_t br = round % 3 ? 128 : 1 + (int32_t)rnd(140), bc = round % 4 ? 128 : 1 + (int32_t)rnd(140);
        int32_t scales_per_row = (COLS + bc - 1) / bc;
        float *scale = exactly(4 * (size_t)((ROWS + br - 1) / br * scales_per_row));
        for (int32_t i = 0; i < (ROWS + br - 1) / br * scales_per_row; i++)
            scale[i] = 0.001f + rnd_float();
        for (int r = 0; r < ROWS; r++) {
            fill_row(DT_F8_E4M3, code[r], COLS, SCALES_USUAL);
            if (round % 2 && rnd(40) == 0)
                code[r][rnd(COLS)] = rnd(2) ? 0x7f : 0xff;
            for (int k = 0; k < COLS; k++)
                want[r][k] = scale[r / br * scales_per_row + k / bc] * f8_e4m3_to_f32(code[r][k]);
        }
        int32_t r0 = (int32_t)rnd(ROWS), rows = 1 + (int32_t)rnd((uint32_t)(ROWS - r0));
        int32_t k0 = (int32_t)rnd(COLS), cols = 1 + (int32_t)rnd((uint32_t)(COLS - k0));
        struct scale_blocks blocks = scale_blocks_at(br, bc, r0, k0);
        const float *from = scale + r0 / br * scales_per_row + k0 / bc;
        struct cuts cuts = rnd_cuts(cols, 1 + (int)rnd(YOKE_CHUNKS), 1);
        struct wmat w;
        wmat_init_f8(&w, rows, cols, &blocks, &cuts);
        w.data = exactly(wmat_bytes(&w));
        for (int32_t at = 0, n; at < rows; at += n) { /* as a loader does, by pieces */
            n = 8 * (1 + (int32_t)rnd(6));
            n = MIN(rows - at, n);
            wmat_pack_f8(&w, at, n, &code[r0 + at][k0], COLS,
                         scale + (r0 + at) / br * scales_per_row + k0 / bc, 4 * (size_t)scales_per_row);
        }
        float *floats = exactly(4 * (size_t)rows * (size_t)cols), *row = exactly(4 * (size_t)cols);
        f8_rows_to_f32(&code[r0][k0], COLS, rows, cols, &blocks, from, 4 * (size_t)scales_per_row, floats);
        for (int32_t r = 0; r < rows; r++) {
            wmat_row(&w, r, row);
            for (int32_t k = 0; k < cols; k++) {
                float f = want[r0 + r][k0 + k];
                assert_true(same_bits(floats[r * cols + k], f));
                if (!same_bits(row[k], f)) { /* only a NaN of the same row and block excuses that */
                    int found = 0;
                    for (int32_t j = k0; j < k0 + cols; j++)
                        found |= j / bc == (k0 + k) / bc && isnan(want[r0 + r][j]);
                    assert_true(found && isnan(row[k]));
                }
            }
        }
        float *x = exactly(4 * (size_t)cols), *y = exactly(4 * (size_t)rows);
        for (int32_t k = 0; k < cols; k++)
            x[k] = rnd(10) ? rnd_float() : 0;
        for (int l = 0, n = n_levels(levels); l < n; l++) {
            struct matmul_kernels k;
            matmul_kernels_init(&k, levels[l]);
            k.mul[DT_F8_E4M3](&w, x, 4 * (size_t)cols, 1, 0, w.n_panels, y, (size_t)rows);
            for (int32_t r = 0; r < rows; r++) {
                float leaf[YOKE_CHUNKS];
                for (int c = 0; c < cuts.n; c++) {
                    leaf[c] = 0;
                    for (int32_t i = cuts.at[c]; i < cuts.at[c + 1];) {
                        int32_t b = (k0 + i) / bc;
                        float acc = 0;
                        for (; i < cuts.at[c + 1] && (k0 + i) / bc == b; i++)
                            acc = fmaf(f8_e4m3_to_f32(code[r0 + r][k0 + i]), x[i], acc);
                        leaf[c] = fmaf(acc, scale[(r0 + r) / br * scales_per_row + b], leaf[c]);
                    }
                }
                assert_true(same_bits(y[r], tree_of(leaf, cuts.n)));
            }
        }
        xfree(scale);
        xfree(w.data);
        xfree(floats);
        xfree(row);
        xfree(x);
        xfree(y);
    }
}

/* Without scales (a plain float8 tensor) they are 1; and the bytes are what the header promises. */
static void test_f8_plain(void **state)
{
    struct cuts cuts = even_cuts(70, 3, 1);
    struct wmat w;
    uint8_t code[9][70];
    float row[70];
    for (int r = 0; r < 9; r++)
        fill_row(DT_F8_E4M3, code[r], 70, SCALES_USUAL);
    wmat_init(&w, DT_F8_E4M3, 9, 70, 0, &cuts);
    assert_int_equal(wmat_bytes(&w), 2 * ROUND_UP(32 + 8 * 70, 64));
    w.data = exactly(wmat_bytes(&w));
    wmat_pack(&w, 0, 9, DT_F8_E4M3, code, 70);
    for (int r = 0; r < 9; r++) {
        wmat_row(&w, r, row);
        for (int k = 0; k < 70; k++)
            assert_true(row[k] == f8_e4m3_to_f32(code[r][k]));
    }
    xfree(w.data);
    cuts = even_cuts(7168, YOKE_CHUNKS, 1);
    wmat_init_f8(&w, 2048, 7168, &(struct scale_blocks){128, 128, 0, 0}, &cuts);
    assert_int_equal(wmat_bytes(&w), 2048 / 8 * (56 * (32 + 8 * 128)));
    wmat_init_f8(&w, 2048, 7168, &(struct scale_blocks){128, 128, 5, 1}, &cuts); /* one block more */
    assert_int_equal(wmat_bytes(&w), 2048 / 8 * ROUND_UP(57 * 32 + 8 * 7168, 64));
}

/* Packed bytes stay near the file's (8-row panels, long rows). */
static void test_sizes(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(block_types); i++) {
        struct wmat w;
        struct cuts cuts = even_cuts(4096, YOKE_CHUNKS, 32);
        wmat_init(&w, block_types[i], 4096, 4096, 0, &cuts);
        double file = 4096.0 * (double)dtype_bytes(block_types[i], 4096), packed = (double)wmat_bytes(&w);
        print_message("%s: %.4f bits per weight in the file, %.4f packed\n", dtype_name(block_types[i]),
                      file / 4096 / 4096 * 8, packed / 4096 / 4096 * 8);
        assert_true(packed <= 1.03 * file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_the_formats),
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_contract),
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_nan_and_infinity),
        cmocka_unit_test(test_i4g),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_f8_codes),
        cmocka_unit_test(test_f8_places),
        cmocka_unit_test(test_f8_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
