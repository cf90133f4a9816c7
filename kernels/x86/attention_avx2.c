/* Scores and weighted sums in register tiles: 3 queries by 4 positions, or by 4 vectors of the head. Each K
 * or V vector is widened to float once per tile, in registers. The type of the records and the sizes of the
 * tile are constants in each instance of the inlined functions. */
#include "kernels/attention.h"

#include <math.h>
#include <string.h>
#include "kernels/x86/records.h"
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#define TILE_Q 3
#define TILE_K 4

static ALWAYS_INLINE __m256 load8(const enum kv_dtype t, const uint8_t *p)
{
    switch (t) {
    case KV_F32:
        return _mm256_loadu_ps((const float *)p);
    case KV_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    case KV_BF16:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
    default:
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
    }
}

/* The last n < 8 elements of a record, zeros behind. */
static ALWAYS_INLINE __m256 load8_tail(const enum kv_dtype t, const uint8_t *p, int n)
{
    uint8_t last[32] = {0};
    memcpy(last, p, (size_t)n * kv_elem_bytes(t));
    return load8(t, last);
}

/* lanes_join of four vectors */
static ALWAYS_INLINE __m128 lanes_join8x4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    __m256 even = _mm256_shuffle_ps(ab, cd, 0x44), odd = _mm256_shuffle_ps(ab, cd, 0xee);
    __m256 sum = _mm256_add_ps(even, odd); /* halves of a, c | halves of b, d */
    __m128 ac = _mm256_castps256_ps128(sum), bd = _mm256_extractf128_ps(sum, 1);
    __m128 acbd = _mm_add_ps(_mm_shuffle_ps(ac, bd, 0x88), _mm_shuffle_ps(ac, bd, 0xdd));
    return _mm_permute_ps(acbd, 0xd8);
}

static ALWAYS_INLINE void store_head(float *to, __m128 x, int32_t n)
{
    if (n >= 4) {
        _mm_storeu_ps(to, x);
        return;
    }
    float last[4];
    _mm_storeu_ps(last, x);
    memcpy(to, last, 4 * (size_t)n);
}

/* nq queries by TILE_K positions, of which the first n are stored. kscales: of i8 records. */
static ALWAYS_INLINE void scores_tile(const enum kv_dtype t, const int nq, const float *q, size_t ldq,
                                      const uint8_t *const k[TILE_K], const float *kscales, int32_t n,
                                      int32_t d, float scale, float *s)
{
    __m256 acc[TILE_Q][TILE_K];
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int j = 0; j < TILE_K; j++)
            acc[i][j] = _mm256_setzero_ps();
    }
    int32_t x = 0;
    for (; x + 8 <= d; x += 8) {
        __m256 qx[TILE_Q];
        UNROLL
        for (int i = 0; i < nq; i++)
            qx[i] = _mm256_loadu_ps(q + (size_t)i * ldq + x);
        UNROLL
        for (int j = 0; j < TILE_K; j++) {
            __m256 kx = load8(t, k[j] + (size_t)x * kv_elem_bytes(t));
            UNROLL
            for (int i = 0; i < nq; i++)
                acc[i][j] = _mm256_fmadd_ps(qx[i], kx, acc[i][j]);
        }
    }
    if (x < d) {
        __m256i tail = head_mask8(d - x);
        UNROLL
        for (int j = 0; j < TILE_K; j++) {
            __m256 kx = load8_tail(t, k[j] + (size_t)x * kv_elem_bytes(t), d - x);
            UNROLL
            for (int i = 0; i < nq; i++)
                acc[i][j] = _mm256_fmadd_ps(_mm256_maskload_ps(q + (size_t)i * ldq + x, tail), kx, acc[i][j]);
        }
    }
    __m128 factor = _mm_set1_ps(scale), kscale = factor;
    if (t == KV_I8)
        kscale = _mm_loadu_ps(kscales);
    UNROLL
    for (int i = 0; i < nq; i++) {
        __m128 sum = lanes_join8x4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        if (t == KV_I8)
            sum = _mm_mul_ps(sum, kscale);
        store_head(s + (size_t)i * ATTN_BLOCK, _mm_mul_ps(sum, factor), n);
    }
}

/* nq queries by nv vectors of the head, all positions. p is already multiplied with the records' scales.
 * Records before `ahead` are worth prefetching. */
static ALWAYS_INLINE void values_tile(const enum kv_dtype t, const int nq, const int nv, const float *p,
                                      const uint8_t *v, size_t v_stride, int32_t n, int32_t ahead, float *o,
                                      size_t ldo)
{
    __m256 acc[TILE_Q][8];
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int x = 0; x < nv; x++)
            acc[i][x] = _mm256_loadu_ps(o + (size_t)i * ldo + 8 * x);
    }
    for (int32_t j = 0; j < n; j++, v += v_stride) {
        if (j + PREFETCH_AHEAD < ahead)
            prefetch_records(v, v_stride, PREFETCH_AHEAD, PREFETCH_AHEAD + 1,
                             8 * (size_t)nv * kv_elem_bytes(t));
        __m256 pj[TILE_Q];
        UNROLL
        for (int i = 0; i < nq; i++)
            pj[i] = _mm256_broadcast_ss(p + i * ATTN_BLOCK + j);
        UNROLL
        for (int x = 0; x < nv; x++) {
            __m256 vx = load8(t, v + 8 * (size_t)x * kv_elem_bytes(t));
            UNROLL
            for (int i = 0; i < nq; i++)
                acc[i][x] = _mm256_fmadd_ps(pj[i], vx, acc[i][x]);
        }
    }
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int x = 0; x < nv; x++)
            _mm256_storeu_ps(o + (size_t)i * ldo + 8 * x, acc[i][x]);
    }
}

static ALWAYS_INLINE void values_tail(const enum kv_dtype t, const int nq, int n_tail, const float *p,
                                      const uint8_t *v, size_t v_stride, int32_t n, float *o, size_t ldo)
{
    __m256i tail = head_mask8(n_tail);
    __m256 acc[TILE_Q];
    UNROLL
    for (int i = 0; i < nq; i++)
        acc[i] = _mm256_maskload_ps(o + (size_t)i * ldo, tail);
    for (int32_t j = 0; j < n; j++, v += v_stride) {
        __m256 vx = load8_tail(t, v, n_tail);
        UNROLL
        for (int i = 0; i < nq; i++)
            acc[i] = _mm256_fmadd_ps(_mm256_broadcast_ss(p + i * ATTN_BLOCK + j), vx, acc[i]);
    }
    UNROLL
    for (int i = 0; i < nq; i++)
        _mm256_maskstore_ps(o + (size_t)i * ldo, tail, acc[i]);
}

/* p_j * vscale_j. Whole vectors are written: y has ATTN_BLOCK floats. */
static ALWAYS_INLINE void scale_weights(const float *p, const float *vscales, int32_t n, float *y)
{
    for (int32_t j = 0; j < n; j += 8) {
        __m256 pj = _mm256_maskload_ps(p + j, head_mask8(n - j));
        _mm256_storeu_ps(y + j, _mm256_mul_ps(pj, _mm256_loadu_ps(vscales + j)));
    }
}

/* nq queries, the whole head. */
static ALWAYS_INLINE void values_strip(const enum kv_dtype t, const int nq, const float *p, const uint8_t *v,
                                       size_t v_stride, const float *vscales, int32_t n, int32_t ahead,
                                       int32_t d, float *o, size_t ldo)
{
    const int wide = nq == 1 ? 8 : 4; /* enough chains to hide the latency of the fused multiply-add */
    const size_t size = kv_elem_bytes(t);
    float scaled[TILE_Q * ATTN_BLOCK];
    if (t == KV_I8) {
        for (int i = 0; i < nq; i++)
            scale_weights(p + i * ATTN_BLOCK, vscales, n, scaled + i * ATTN_BLOCK);
        p = scaled;
    }
    int32_t x = 0;
    for (; x + 8 * wide <= d; x += 8 * wide)
        values_tile(t, nq, wide, p, v + (size_t)x * size, v_stride, n, ahead, o + x, ldo);
    if (nq == 1 && x + 32 <= d) {
        values_tile(t, nq, 4, p, v + (size_t)x * size, v_stride, n, ahead, o + x, ldo);
        x += 32;
    }
    if (x + 16 <= d) {
        values_tile(t, nq, 2, p, v + (size_t)x * size, v_stride, n, ahead, o + x, ldo);
        x += 16;
    }
    if (x + 8 <= d) {
        values_tile(t, nq, 1, p, v + (size_t)x * size, v_stride, n, ahead, o + x, ldo);
        x += 8;
    }
    if (x < d)
        values_tail(t, nq, d - x, p, v + (size_t)x * size, v_stride, n, o + x, ldo);
}

#define EACH_HEIGHT(X, ...) X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3)
#include "kernels/x86/attention_x86.inc"

static ALWAYS_INLINE __m256i visible8(int32_t j, int32_t lo, int32_t hi)
{
    __m256i at = _mm256_add_epi32(_mm256_set1_epi32(j), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), at),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), at));
}

static void softmax_avx2(float *s, int32_t lo, int32_t hi, int32_t n, float *ret_m, float *ret_l)
{
    const __m256 minus_inf = _mm256_set1_ps(-INFINITY);
    __m256 max = minus_inf, nan = _mm256_setzero_ps(), lanes = _mm256_setzero_ps();
    for (int32_t j = lo / 8 * 8; j < hi; j += 8) {
        __m256i visible = visible8(j, lo, hi);
        __m256 v = _mm256_maskload_ps(s + j, visible); /* 0 elsewhere, so not NaN */
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        v = _mm256_blendv_ps(minus_inf, v, _mm256_castsi256_ps(visible));
        max = _mm256_max_ps(v, max);
    }
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    m4 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    float m = _mm_cvtss_f32(_mm_max_ss(m4, _mm_movehdup_ps(m4))) + 0.0f;
    if (_mm256_movemask_ps(nan))
        m = NAN;
    if (m == -INFINITY)
        hi = lo; /* nothing that counts */
    __m256 shift = _mm256_set1_ps(m);
    for (int32_t j = 0; j < n; j += 8) {
        __m256i visible = visible8(j, lo, hi);
        __m256 p = exp8(_mm256_sub_ps(_mm256_maskload_ps(s + j, visible), shift));
        p = _mm256_and_ps(p, _mm256_castsi256_ps(visible));
        if (j + 8 <= n)
            _mm256_storeu_ps(s + j, p);
        else
            _mm256_maskstore_ps(s + j, head_mask8(n - j), p);
        lanes = _mm256_add_ps(lanes, p);
    }
    *ret_m = m;
    *ret_l = lanes_join8(lanes);
}

static void join_avx2(float *m, float *l, float *o, float m1, float l1, const float *o1, int32_t d)
{
    if (*m == -INFINITY) {
        *m = m1;
        *l = l1;
        memcpy(o, o1, sizeof(float) * (size_t)d);
        return;
    }
    float max = m1 > *m ? m1 : *m;
    __m256 ab = exp8(_mm256_setr_ps(*m - max, m1 - max, 0, 0, 0, 0, 0, 0));
    __m256 a = _mm256_broadcastss_ps(_mm256_castps256_ps128(ab));
    __m256 b = _mm256_broadcastss_ps(_mm_movehdup_ps(_mm256_castps256_ps128(ab)));
    *m = max;
    *l = fmaf(l1, _mm256_cvtss_f32(b), *l * _mm256_cvtss_f32(a));
    int32_t x = 0;
    for (; x + 8 <= d; x += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(o + x), a);
        _mm256_storeu_ps(o + x, _mm256_fmadd_ps(_mm256_loadu_ps(o1 + x), b, v));
    }
    if (x < d) {
        __m256i tail = head_mask8(d - x);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(o + x, tail), a);
        _mm256_maskstore_ps(o + x, tail, _mm256_fmadd_ps(_mm256_maskload_ps(o1 + x, tail), b, v));
    }
}

static void finish_avx2(const float *o, float l, int32_t d, float *y)
{
    __m256 inv = _mm256_set1_ps(1.0f / l), zero = _mm256_setzero_ps();
    int32_t x = 0;
    for (; x + 8 <= d; x += 8)
        _mm256_storeu_ps(y + x, _mm256_fmadd_ps(_mm256_loadu_ps(o + x), inv, zero));
    if (x < d) {
        __m256i tail = head_mask8(d - x);
        _mm256_maskstore_ps(y + x, tail, _mm256_fmadd_ps(_mm256_maskload_ps(o + x, tail), inv, zero));
    }
}

void attention_init_avx2(struct attention_kernels *k)
{
    strips_init(k);
    k->softmax = softmax_avx2;
    k->join = join_avx2;
    k->finish = finish_avx2;
}
