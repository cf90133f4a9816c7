/* As attention_avx2.c with wider tiles: 6 queries by 8 positions, two positions in a register (the 8 lanes of
 * each sum stay what they are); 6 queries by 4 vectors of the head. Joining blocks stays with AVX2: it waits
 * for memory. */
#include "kernels/attention.h"

#include <math.h>
#include <string.h>
#include "kernels/x86/records.h"
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#define TILE_Q     6
#define TILE_PAIRS 4
#define TILE_K     (2 * TILE_PAIRS)

/* 8 elements of a record (those in the mask) in the lower half, 8 of another in the upper. */
static ALWAYS_INLINE __m512 load8_pair(const enum kv_dtype t, __mmask8 m, const uint8_t *a, const uint8_t *b)
{
    switch (t) {
    case KV_F32: {
        __m512 low = _mm512_castps256_ps512(_mm256_maskz_loadu_ps(m, a));
        return _mm512_insertf32x8(low, _mm256_maskz_loadu_ps(m, b), 1);
    }
    case KV_F16:
    case KV_BF16: {
        __m256i both = _mm256_castsi128_si256(_mm_maskz_loadu_epi16(m, a));
        both = _mm256_inserti128_si256(both, _mm_maskz_loadu_epi16(m, b), 1);
        if (t == KV_F16)
            return _mm512_cvtph_ps(both);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
    }
    default: {
        /* a masked load that touches an unreadable page is right but takes hundreds of cycles */
        __m128i low = m == 0xff ? _mm_loadl_epi64((const __m128i *)a) : _mm_maskz_loadu_epi8(m, a);
        __m128i high = m == 0xff ? _mm_loadl_epi64((const __m128i *)b) : _mm_maskz_loadu_epi8(m, b);
        __m128i both = _mm_unpacklo_epi64(low, high);
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(both));
    }
    }
}

/* 16 elements of a record, those in the mask. */
static ALWAYS_INLINE __m512 load16(const enum kv_dtype t, __mmask16 m, const uint8_t *p)
{
    switch (t) {
    case KV_F32:
        return _mm512_maskz_loadu_ps(m, p);
    case KV_F16:
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, p));
    case KV_BF16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p)), 16));
    default:
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(m, p)));
    }
}

/* lanes_join of the 8 sums in four registers of two, but for the last addition: 128-bit part i holds what is
 * left of position i, then of position i + 4. */
static ALWAYS_INLINE __m512 halves_join(const __m512 a[TILE_PAIRS])
{
    __m512 low =
        _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x88), _mm512_shuffle_f32x4(a[0], a[1], 0xdd));
    __m512 high =
        _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x88), _mm512_shuffle_f32x4(a[2], a[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
}

/* Scores of two queries: the 8 of a in the lower half, the 8 of b in the upper. */
static ALWAYS_INLINE __m512 lanes_join8x16(const __m512 a[TILE_PAIRS], const __m512 b[TILE_PAIRS])
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512 x = halves_join(a), y = halves_join(b);
    x = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
    return _mm512_permutexvar_ps(order, x);
}

/* The upper half in a register of its own. Without the barrier gcc 12 folds the extraction into a masked
 * store after it, as VEXTRACTF32X8 to memory, which faults on masked bytes where VMOVUPS does not (Intel SDM,
 * exception class E6NF). */
static ALWAYS_INLINE __m256 upper_half(__m512 x)
{
    __m256 half = _mm512_extractf32x8_ps(x, 1);
    __asm__("" : "+v"(half));
    return half;
}

/* One step of 8 elements (those in the mask) for nq queries by TILE_K positions. */
static ALWAYS_INLINE void scores_step(const enum kv_dtype t, const int nq, __mmask8 m, const float *q,
                                      size_t ldq, const uint8_t *const k[TILE_K], size_t at,
                                      __m512 acc[TILE_Q][TILE_PAIRS])
{
    __m512 kx[TILE_PAIRS];
    UNROLL
    for (int j = 0; j < TILE_PAIRS; j++)
        kx[j] = load8_pair(t, m, k[2 * j] + at * kv_elem_bytes(t), k[2 * j + 1] + at * kv_elem_bytes(t));
    UNROLL
    for (int i = 0; i < nq; i++) {
        __m512 qx = _mm512_broadcast_f32x8(_mm256_maskz_loadu_ps(m, q + (size_t)i * ldq + at));
        UNROLL
        for (int j = 0; j < TILE_PAIRS; j++)
            acc[i][j] = _mm512_fmadd_ps(qx, kx[j], acc[i][j]);
    }
}

/* nq queries by TILE_K positions, of which the first n are stored. kscales: of i8 records. */
static ALWAYS_INLINE void scores_tile(const enum kv_dtype t, const int nq, const float *q, size_t ldq,
                                      const uint8_t *const k[TILE_K], const float *kscales, int32_t n,
                                      int32_t d, float scale, float *s)
{
    __m512 acc[TILE_Q][TILE_PAIRS];
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int j = 0; j < TILE_PAIRS; j++)
            acc[i][j] = _mm512_setzero_ps();
    }
    int32_t x = 0;
    for (; x + 8 <= d; x += 8)
        scores_step(t, nq, 0xff, q, ldq, k, (size_t)x, acc);
    if (x < d)
        scores_step(t, nq, (__mmask8)head_mask16(d - x), q, ldq, k, (size_t)x, acc);
    __m512 factor = _mm512_set1_ps(scale), kscale = factor;
    if (t == KV_I8)
        kscale = _mm512_broadcast_f32x8(_mm256_loadu_ps(kscales));
    __mmask8 stored = (__mmask8)head_mask16(MIN(n, TILE_K));
    UNROLL
    for (int i = 0; i < nq; i += 2) {
        __m512 sum = lanes_join8x16(acc[i], acc[i + 1 < nq ? i + 1 : i]);
        if (t == KV_I8)
            sum = _mm512_mul_ps(sum, kscale);
        sum = _mm512_mul_ps(sum, factor);
        _mm256_mask_storeu_ps(s + i * ATTN_BLOCK, stored, _mm512_castps512_ps256(sum));
        if (i + 1 < nq)
            _mm256_mask_storeu_ps(s + (i + 1) * ATTN_BLOCK, stored, upper_half(sum));
    }
}

/* nq queries by nv vectors of the head, the last of which has the elements in the mask; all positions. p is
 * already multiplied with the records' scales. Records before `ahead` are worth prefetching. */
static ALWAYS_INLINE void values_tile(const enum kv_dtype t, const int nq, const int nv, __mmask16 last,
                                      const float *p, const uint8_t *v, size_t v_stride, int32_t n,
                                      int32_t ahead, float *o, size_t ldo)
{
    __m512 acc[TILE_Q][8];
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int x = 0; x < nv; x++)
            acc[i][x] = _mm512_maskz_loadu_ps(x < nv - 1 ? 0xffff : last, o + (size_t)i * ldo + 16 * x);
    }
    for (int32_t j = 0; j < n; j++, v += v_stride) {
        if (j + PREFETCH_AHEAD < ahead)
            prefetch_records(v, v_stride, PREFETCH_AHEAD, PREFETCH_AHEAD + 1,
                             16 * (size_t)nv * kv_elem_bytes(t));
        __m512 vx[8];
        UNROLL
        for (int x = 0; x < nv; x++)
            vx[x] = load16(t, x < nv - 1 ? 0xffff : last, v + 16 * (size_t)x * kv_elem_bytes(t));
        UNROLL
        for (int i = 0; i < nq; i++) {
            __m512 pj = _mm512_set1_ps(p[i * ATTN_BLOCK + j]);
            UNROLL
            for (int x = 0; x < nv; x++)
                acc[i][x] = _mm512_fmadd_ps(pj, vx[x], acc[i][x]);
        }
    }
    UNROLL
    for (int i = 0; i < nq; i++) {
        UNROLL
        for (int x = 0; x < nv; x++)
            _mm512_mask_storeu_ps(o + (size_t)i * ldo + 16 * x, x < nv - 1 ? 0xffff : last, acc[i][x]);
    }
}

/* p_j * vscale_j. Whole vectors are written: y has ATTN_BLOCK floats. */
static ALWAYS_INLINE void scale_weights(const float *p, const float *vscales, int32_t n, float *y)
{
    for (int32_t j = 0; j < n; j += 16) {
        __mmask16 m = head_mask16(MIN(n - j, 16));
        __m512 pj = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, p + j), _mm512_maskz_loadu_ps(m, vscales + j));
        _mm512_storeu_ps(y + j, pj);
    }
}

/* nq queries, the whole head. */
static ALWAYS_INLINE void values_strip(const enum kv_dtype t, const int nq, const float *p, const uint8_t *v,
                                       size_t v_stride, const float *vscales, int32_t n, int32_t ahead,
                                       int32_t d, float *o, size_t ldo)
{
    const size_t size = kv_elem_bytes(t);
    float scaled[TILE_Q * ATTN_BLOCK];
    if (t == KV_I8) {
        for (int i = 0; i < nq; i++)
            scale_weights(p + i * ATTN_BLOCK, vscales, n, scaled + i * ATTN_BLOCK);
        p = scaled;
    }
    int32_t x = 0;
    if (nq <= 2) /* enough chains to hide the latency of the fused multiply-add */
        for (; x + 128 <= d; x += 128)
            values_tile(t, nq, 8, 0xffff, p, v + (size_t)x * size, v_stride, n, ahead, o + x, ldo);
    for (; x + 64 <= d; x += 64)
        values_tile(t, nq, 4, 0xffff, p, v + (size_t)x * size, v_stride, n, ahead, o + x, ldo);
    if (x + 32 <= d) {
        values_tile(t, nq, 2, 0xffff, p, v + (size_t)x * size, v_stride, n, ahead, o + x, ldo);
        x += 32;
    }
    for (; x < d; x += 16)
        values_tile(t, nq, 1, head_mask16(MIN(d - x, 16)), p, v + (size_t)x * size, v_stride, n, ahead, o + x,
                    ldo);
}

#define EACH_HEIGHT(X, ...)                                                                                  \
    X(__VA_ARGS__, 1)                                                                                        \
    X(__VA_ARGS__, 2)                                                                                        \
    X(__VA_ARGS__, 3)                                                                                        \
    X(__VA_ARGS__, 4)                                                                                        \
    X(__VA_ARGS__, 5)                                                                                        \
    X(__VA_ARGS__, 6)
#include "kernels/x86/attention_x86.inc"

/* Bits [from, to) of 64. */
static inline uint64_t bits_between(int32_t from, int32_t to)
{
    uint64_t below_to = to >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << to) - 1;
    return from >= 64 ? 0 : below_to >> from << from;
}

static void softmax_avx512(float *s, int32_t lo, int32_t hi, int32_t n, float *ret_m, float *ret_l)
{
    uint64_t visible = bits_between(lo, hi), stored = bits_between(0, n);
    __m512 v[4], max = _mm512_set1_ps(-INFINITY);
    __mmask16 nan = 0;
    UNROLL
    for (int j = 0; j < 4; j++) {
        v[j] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(visible >> 16 * j), s + 16 * j);
        nan |= _mm512_cmp_ps_mask(v[j], v[j], _CMP_UNORD_Q);
        max = _mm512_max_ps(v[j], max);
    }
    float m = nan ? NAN : _mm512_reduce_max_ps(max) + 0.0f;
    if (m == -INFINITY)
        visible = 0; /* nothing that counts */
    __m512 shift = _mm512_set1_ps(m);
    __m256 lanes = _mm256_setzero_ps();
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m512 p = exp16(_mm512_sub_ps(v[j], shift));
        p = _mm512_maskz_mov_ps((__mmask16)(visible >> 16 * j), p);
        _mm512_mask_storeu_ps(s + 16 * j, (__mmask16)(stored >> 16 * j), p);
        lanes = _mm256_add_ps(lanes, _mm512_castps512_ps256(p));
        lanes = _mm256_add_ps(lanes, _mm512_extractf32x8_ps(p, 1));
    }
    *ret_m = m;
    *ret_l = lanes_join8(lanes);
}

void attention_init_avx512(struct attention_kernels *k)
{
    strips_init(k);
    k->softmax = softmax_avx512;
}
