/* Attention put together from its kernels, as exec/ does it: against double precision, and the promises of
 * attention.h, to the bit: the split into threads, pages and batches of queries does not matter, nor whether
 * a position that a query may not see is masked or absent. All on each CPU level and for each type of record.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "tests/unit/kernels/levels.h"

#define U          0x1p-24
#define MAX_N      400
#define MAX_D      128
#define MAX_Q      20
#define MAX_BLOCKS (MAX_N / ATTN_BLOCK + 1)
#define MAX_RECORD (4 * MAX_D + 4 + 8) /* with the gap that strides get */

struct problem {
    enum kv_dtype t;
    int32_t n, d, n_q;
    int32_t from[MAX_Q], to[MAX_Q]; /* the positions that a query sees */
    float scale;
    size_t stride;
    float q[MAX_Q][MAX_D];
    uint8_t k[MAX_N * MAX_RECORD], v[MAX_N * MAX_RECORD];
};

static struct problem p; /* too large for the stack */
static uint64_t seed;

static int32_t pick(int32_t lo, int32_t hi)
{
    int32_t n = hi - lo + 1, i = (int32_t)((uniform(&seed) + 1) / 2 * (float)n);
    return lo + (i < n ? i : n - 1);
}

static void make_problem(const struct kernels *k, enum kv_dtype t, int32_t n, int32_t d, int32_t n_q)
{
    p.t = t;
    p.n = n;
    p.d = d;
    p.n_q = n_q;
    p.scale = 1 / sqrtf((float)d);
    p.stride = kv_record_bytes(t, d) + 4 * (size_t)pick(0, 2);
    for (int32_t i = 0; i < n_q; i++) {
        for (int32_t x = 0; x < d; x++)
            p.q[i][x] = uniform(&seed) * 3;
        p.to[i] = pick(1, n);
        p.from[i] = pick(0, 2) ? 0 : pick(0, p.to[i] - 1);
    }
    for (int32_t j = 0; j < n; j++) {
        float x[MAX_D];
        for (int32_t i = 0; i < d; i++)
            x[i] = uniform(&seed) * 3;
        k->rows.kv_store[t](x, d, p.k + (size_t)j * p.stride);
        for (int32_t i = 0; i < d; i++)
            x[i] = uniform(&seed);
        k->rows.kv_store[t](x, d, p.v + (size_t)j * p.stride);
    }
}

struct how {
    int32_t max_group; /* queries a call: random numbers up to this; 1: one by one */
    int32_t page;      /* positions a call; 0: random runs; ATTN_BLOCK: whole blocks */
    bool shuffle;      /* blocks in random order, as if threads had taken them */
    bool absent;       /* (one query a call) leave out what it does not see instead of masking it */
};

struct partial {
    float m, l, o[MAX_D];
    bool used;
};
static struct partial partials[MAX_Q][MAX_BLOCKS];

static int32_t run_length(const struct how *how, int32_t left)
{
    int32_t n = how->page ? how->page : pick(1, ATTN_BLOCK);
    return n < left ? n : left;
}

/* Block b for queries [q0, q0 + n_q). */
static void attend_block(const struct kernels *k, const struct how *how, int32_t q0, int32_t n_q, int32_t b)
{
    float s[MAX_Q * ATTN_BLOCK], o[MAX_Q * MAX_D] = {0}, m[MAX_Q], l[MAX_Q];
    int32_t first = b * ATTN_BLOCK, n = MIN(p.n - first, ATTN_BLOCK), skip = 0;
    for (size_t i = 0; i < ARRAY_LEN(s); i++)
        s[i] = NAN; /* whatever is not computed must not matter */
    if (how->absent) {
        n = MIN(p.to[q0] - first, n);
        skip = MAX(p.from[q0] - first, 0);
    }
    for (int32_t j = skip; j < n;) {
        int32_t run = run_length(how, n - j);
        k->attention.scores[p.t](p.q[q0], MAX_D, n_q, p.k + (size_t)(first + j) * p.stride, p.stride, run,
                                 p.d, p.scale, s + j);
        j += run;
    }
    for (int32_t i = 0; i < n_q; i++) {
        int32_t lo = MAX(p.from[q0 + i] - first, 0), hi = MIN(p.to[q0 + i] - first, n);
        struct partial *part = &partials[q0 + i][b];
        part->used = lo < hi;
        if (part->used)
            k->attention.softmax(s + i * ATTN_BLOCK, lo, hi, n, &m[i], &l[i]);
        else
            memset(s + i * ATTN_BLOCK, 0, 4 * ATTN_BLOCK);
    }
    for (int32_t j = skip; j < n;) {
        int32_t run = run_length(how, n - j);
        k->attention.values[p.t](s + j, n_q, p.v + (size_t)(first + j) * p.stride, p.stride, run, p.d, o,
                                 MAX_D);
        j += run;
    }
    for (int32_t i = 0; i < n_q; i++) {
        struct partial *part = &partials[q0 + i][b];
        part->m = m[i];
        part->l = l[i];
        memcpy(part->o, o + i * MAX_D, sizeof(part->o));
    }
}

/* y: [n_q][MAX_D] */
static void attend(const struct kernels *k, struct how how, float y[MAX_Q][MAX_D])
{
    int32_t blocks = (p.n + ATTN_BLOCK - 1) / ATTN_BLOCK;
    memset(partials, 0, sizeof(partials));
    for (int32_t q0 = 0, n_q; q0 < p.n_q; q0 += n_q) {
        n_q = pick(1, how.max_group);
        n_q = MIN(n_q, p.n_q - q0);
        int32_t order[MAX_BLOCKS];
        for (int32_t b = 0; b < blocks; b++)
            order[b] = b;
        for (int32_t b = blocks - 1; b > 0 && how.shuffle; b--) {
            int32_t other = pick(0, b), t = order[b];
            order[b] = order[other];
            order[other] = t;
        }
        for (int32_t b = 0; b < blocks; b++)
            if (!how.absent || (p.from[q0] < (order[b] + 1) * ATTN_BLOCK && p.to[q0] > order[b] * ATTN_BLOCK))
                attend_block(k, &how, q0, n_q, order[b]);
    }
    for (int32_t i = 0; i < p.n_q; i++) {
        float m = -INFINITY, l = NAN, o[MAX_D];
        for (int32_t x = 0; x < MAX_D; x++)
            o[x] = NAN; /* the first join copies */
        for (int32_t b = 0; b < blocks; b++)
            if (partials[i][b].used)
                k->attention.join(&m, &l, o, partials[i][b].m, partials[i][b].l, partials[i][b].o, p.d);
        k->attention.finish(o, l, p.d, y[i]);
    }
}

static const struct how plain = {.max_group = MAX_Q, .page = ATTN_BLOCK};

static void assert_same(float want[MAX_Q][MAX_D], float got[MAX_Q][MAX_D], const char *what)
{
    for (int32_t i = 0; i < p.n_q; i++)
        if (memcmp(want[i], got[i], 4 * (size_t)p.d))
            fail_msg("%s: query %d of %d differs (type %d, n %d, d %d)", what, i, p.n_q, (int)p.t, p.n, p.d);
}

static double element(const uint8_t *record, int32_t x)
{
    float f;
    uint16_t h;
    switch (p.t) {
    case KV_F32:
        memcpy(&f, record + 4 * x, 4);
        return f;
    case KV_F16:
        memcpy(&h, record + 2 * x, 2);
        return f16_to_f32(h);
    case KV_BF16:
        memcpy(&h, record + 2 * x, 2);
        return bf16_to_f32(h);
    default:
        memcpy(&f, record + ROUND_UP((size_t)p.d, 4), 4);
        return (double)(int8_t)record[x] * f;
    }
}

/* The bound: a score is off by (d/8 + 8) U of its terms' magnitudes, which changes a weight by that factor in
 * numerator and denominator; exp 2 U twice a block and its argument's rounding; a chain of fused additions 1
 * U each, per block and joined. */
static void check_error(float y[MAX_Q][MAX_D])
{
    for (int32_t i = 0; i < p.n_q; i++) {
        double s[MAX_N], max = -INFINITY, worst = 0, sum = 0, y_want[MAX_D] = {0}, magnitude[MAX_D] = {0};
        for (int32_t j = p.from[i]; j < p.to[i]; j++) {
            double terms = 0;
            s[j] = 0;
            for (int32_t x = 0; x < p.d; x++) {
                double term = p.q[i][x] * element(p.k + (size_t)j * p.stride, x) * p.scale;
                s[j] += term;
                terms += fabs(term);
            }
            max = fmax(max, s[j]);
            worst = fmax(worst, terms);
        }
        for (int32_t j = p.from[i]; j < p.to[i]; j++) {
            double w = exp(s[j] - max);
            sum += w;
            for (int32_t x = 0; x < p.d; x++) {
                y_want[x] += w * element(p.v + (size_t)j * p.stride, x);
                magnitude[x] += w * fabs(element(p.v + (size_t)j * p.stride, x));
            }
        }
        double blocks = (p.n + ATTN_BLOCK - 1) / ATTN_BLOCK;
        double bound = 2 * (p.d / 8 + 8) * U * worst + (ATTN_BLOCK + 20 + 10 * blocks + 2 * worst) * U;
        for (int32_t x = 0; x < p.d; x++)
            if (!(fabs(y[i][x] - y_want[x] / sum) <= bound * magnitude[x] / sum))
                fail_msg("type %d, query %d, element %d: want %.10g, got %.10g, allowed %.3g", (int)p.t, i, x,
                         y_want[x] / sum, (double)y[i][x], bound * magnitude[x] / sum);
    }
}

static void test_against_double(void **state)
{
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        seed = 11;
        for (int round = 0; round < 12; round++) {
            static const int32_t sizes[] = {64, 128, 80, 33, 7, 100};
            float y[MAX_Q][MAX_D];
            make_problem(&k, (enum kv_dtype)(round % KV_DTYPES), pick(1, MAX_N), sizes[round % 6],
                         pick(1, 9));
            attend(&k, plain, y);
            check_error(y);
        }
    }
}

/* All ways to do it give the bits of the plain way; and all levels give the bits of C. */
static void test_ways(void **state)
{
    static const int32_t sizes[] = {64, 128, 80, 57, 3};
    static float want[10][MAX_Q][MAX_D];
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        seed = 12;
        for (int round = 0; round < 10; round++) {
            float first[MAX_Q][MAX_D], y[MAX_Q][MAX_D];
            make_problem(&k, (enum kv_dtype)(round % KV_DTYPES), pick(1, MAX_N), sizes[round % 5],
                         pick(1, MAX_Q));
            attend(&k, plain, first);
            if (k.level == CPU_C)
                memcpy(want[round], first, sizeof(first));
            assert_same(want[round], first, "another CPU level");
            attend(&k, (struct how){.max_group = MAX_Q, .page = ATTN_BLOCK, .shuffle = true}, y);
            assert_same(first, y, "blocks in another order");
            static const int32_t pages[] = {1, 16, 32, 0};
            for (size_t i = 0; i < ARRAY_LEN(pages); i++) {
                attend(&k, (struct how){.max_group = MAX_Q, .page = pages[i]}, y);
                assert_same(first, y, "other pages");
            }
            attend(&k, (struct how){.max_group = 1, .page = ATTN_BLOCK}, y);
            assert_same(first, y, "one query after the other");
            attend(&k, (struct how){.max_group = 7, .page = 0, .shuffle = true}, y);
            assert_same(first, y, "everything at random");
            attend(&k, (struct how){.max_group = 1, .page = 16, .absent = true}, y);
            assert_same(first, y, "absent instead of masked");
        }
    }
}

/* The corner where masking could show: the last visible term is negative and too small for a float, so the
 * sum ends as -0; a masked position then adds +0. (f16 has no number that small.) */
static void test_masked_after_underflow(void **state)
{
    static const enum kv_dtype types[] = {KV_F32, KV_BF16};
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        for (size_t i = 0; i < ARRAY_LEN(types); i++) {
            float y[MAX_Q][MAX_D], absent[MAX_Q][MAX_D];
            seed = 13;
            make_problem(&k, types[i], 20, 8, 1);
            p.scale = 1;
            p.from[0] = 0;
            p.to[0] = 2;
            p.q[0][0] = 1;
            for (int32_t j = 0; j < 2; j++) { /* weights 1 and 1.6e-38, values 0 and -1e-20 */
                float kx[8] = {j ? -87.0f : 0}, vx[8];
                for (int x = 0; x < 8; x++)
                    vx[x] = j ? -1e-20f : 0;
                k.rows.kv_store[types[i]](kx, 8, p.k + (size_t)j * p.stride);
                k.rows.kv_store[types[i]](vx, 8, p.v + (size_t)j * p.stride);
            }
            attend(&k, plain, y);
            attend(&k, (struct how){.max_group = 1, .page = ATTN_BLOCK, .absent = true}, absent);
            assert_true(absent[0][0] == 0);
            assert_same(y, absent, "absent instead of masked, underflow");
            assert_true(signbit(partials[0][0].o[0])); /* it was this case */
        }
    }
}

/* A NaN that a query sees comes out; one that it does not see (in K: its score is masked) stays away. */
static void test_nan(void **state)
{
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        for (enum kv_dtype t = 0; t < KV_DTYPES; t++) {
            float y[MAX_Q][MAX_D], nans[64];
            for (int x = 0; x < 64; x++)
                nans[x] = x == 5 ? NAN : 1;
            seed = 14;
            make_problem(&k, t, 200, 64, 3);
            for (int i = 0; i < 3; i++) {
                p.from[i] = 0;
                p.to[i] = 200;
            }
            p.q[1][63] = NAN;
            p.to[2] = 64;
            attend(&k, plain, y);
            assert_true(isfinite(y[0][0]) && isnan(y[1][0]) && isnan(y[1][63]) && isfinite(y[2][0]));
            k.rows.kv_store[t](nans, 64, p.k + 100 * p.stride);
            attend(&k, plain, y);
            assert_true(isnan(y[0][0]) && isnan(y[0][63]) && isfinite(y[2][0]));
            /* alone in the first block that is seen: the copying join must not lose it */
            p.from[0] = 100;
            p.to[0] = 101;
            p.to[2] = 100;
            attend(&k, plain, y);
            assert_true(isnan(y[0][0]) && isfinite(y[2][0]));
            p.from[0] = 63;
            p.to[0] = 200;
            k.rows.kv_store[t](nans, 64, p.k + 63 * p.stride);
            attend(&k, plain, y);
            assert_true(isnan(y[0][0]));
        }
    }
}

/* Scores of -inf weigh nothing; a block of nothing else counts for nothing; nothing at all is NaN. */
static void test_minus_infinity(void **state)
{
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        float y[MAX_Q][MAX_D], want[MAX_Q][MAX_D], x[8];
        seed = 15;
        make_problem(&k, KV_F32, 100, 8, 1);
        p.from[0] = 70;
        p.to[0] = 90;
        p.q[0][0] = 1;
        attend(&k, plain, want);
        for (int32_t j = 0; j < 100; j++) {
            memcpy(x, p.k + (size_t)j * p.stride, sizeof(x));
            x[0] = j < 70 || j >= 90 ? -INFINITY : x[0];
            k.rows.kv_store[KV_F32](x, 8, p.k + (size_t)j * p.stride);
        }
        p.from[0] = 0;
        p.to[0] = 100;
        attend(&k, plain, y);
        assert_same(want, y, "-inf instead of masked");
        p.to[0] = 70;
        attend(&k, plain, y);
        assert_true(isnan(y[0][0]) && isnan(y[0][7]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),         cmocka_unit_test(test_ways),
        cmocka_unit_test(test_masked_after_underflow), cmocka_unit_test(test_nan),
        cmocka_unit_test(test_minus_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
