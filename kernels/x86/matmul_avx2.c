/* The matmul family with AVX2, FMA and F16C.
 *
 * Integer products: maddubs multiplies unsigned by signed bytes and adds pairs in int16, saturating. Codes of
 * 4, 5 and 6 bits are stored unsigned, so they go in as they are, and as many results are added in int16 as
 * provably fit:
 *
 *     4 bits   8 * 2 * 15 * 127 = 30480
 *     5 bits   4 * 2 * 31 * 127 = 31496
 *     6 bits   2 * 2 * 63 * 127 = 32004
 *
 * Signed bytes go in as |code| (at most 128) with the sign moved to the activation (at least -127):
 * 2 * 128 * 127 = 32512.
 */
#include "kernels/matmul.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#define PANELS 1
typedef __m256 vf;
typedef __m256i vi;
#define vf_set1     _mm256_set1_ps
#define vf_fmadd    _mm256_fmadd_ps
#define vf_from_int _mm256_cvtepi32_ps
#define vi_set1     _mm256_set1_epi32
#define vi_sub      _mm256_sub_epi32

#define FEW 4
#define EACH_FEW(X, ...)                                                                                     \
    X(__VA_ARGS__, 1)                                                                                        \
    X(__VA_ARGS__, 2)                                                                                        \
    X(__VA_ARGS__, 3)                                                                                        \
    X(__VA_ARGS__, 4)
#define INT_WIDE              1
#define EACH_INT_WIDE(X, ...) X(__VA_ARGS__, 1)
#define FLOAT_STRETCH         128
#define HALF_L2               (192 * 1024) /* Zen 3 has 512 KiB, Haswell to Skylake clients 256 */
#define DOTS_ADD_OFFSET       0
#include "kernels/x86/matmul_x86.inc"

/* unsigned codes times the q that belongs to vector v */
static ALWAYS_INLINE __m256i pairs(__m256i code, const uint8_t *q, int v)
{
    return _mm256_maddubs_epi16(code, _mm256_set1_epi32(load32(q + 4 * v)));
}
static ALWAYS_INLINE __m256i signed_pairs(__m256i magnitude, __m256i code, const uint8_t *q, int v)
{
    return _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(_mm256_set1_epi32(load32(q + 4 * v)), code));
}
static ALWAYS_INLINE __m256i widen(__m256i sums16)
{
    return _mm256_madd_epi16(sums16, _mm256_set1_epi16(1));
}
/* -offset * (the sum of the group's q, or of one half): what codes stored with an offset add too much. */
static ALWAYS_INLINE __m256i correction(const uint8_t *sums, int low, int high)
{
    return _mm256_madd_epi16(_mm256_set1_epi32(load32(sums)), _mm256_set1_epi32(two_int16(low, high)));
}

static ALWAYS_INLINE void dots_group(enum dtype t, const __m256i code[8], const uint8_t *q,
                                     const uint8_t *sums, __m256i isum[2])
{
    const int offset = panel_formats[t].offset, bits = panel_formats[t].bits;
    if (bits == 8) {
        isum[0] = dots_add(_mm256_setzero_si256(), code, q);
        return;
    }
    const int fit = bits == 4 ? 8 : bits == 5 ? 4 : 2; /* results that fit in int16 */
    __m256i sum[4];
    UNROLL
    for (int v = 0; v < 8; v++) {
        __m256i add = pairs(code[v], q, v);
        sum[v / fit] = v % fit ? _mm256_add_epi16(sum[v / fit], add) : add;
        IN_REGISTER(sum[v / fit]);
    }
    if (bits == 4)
        isum[0] = widen(sum[0]);
    else
        isum[0] = _mm256_add_epi32(widen(sum[0]), widen(sum[1]));
    if (bits == 6) {
        isum[0] = _mm256_add_epi32(isum[0], correction(sums, -offset, 0));
        isum[1] =
            _mm256_add_epi32(_mm256_add_epi32(widen(sum[2]), widen(sum[3])), correction(sums, 0, -offset));
    } else if (offset) {
        isum[0] = _mm256_add_epi32(isum[0], correction(sums, -offset, -offset));
    }
}

static ALWAYS_INLINE __m256i dots_add(__m256i isum, const __m256i code[8], const uint8_t *q)
{
    UNROLL
    for (int v = 0; v < 8; v++) {
        isum = _mm256_add_epi32(isum, widen(signed_pairs(_mm256_abs_epi8(code[v]), code[v], q, v)));
        IN_REGISTER(isum);
    }
    return isum;
}

/* ---- blocks of tokens ---- */

static ALWAYS_INLINE __m256i tile_code(enum dtype t, __m256i code)
{
    (void)t;
    return code;
}

/* The order of the loops keeps a vector of codes in a register while it meets the tokens. */
static ALWAYS_INLINE void tile_q32(enum dtype t, const struct scratch *s, int n_groups,
                                   const struct act_layout *a, const uint8_t *rec, size_t act_stride,
                                   int32_t g0, int n, int wide, vf *acc_at)
{
    (void)wide; /* 1 */
    const int bits = panel_formats[t].bits, offset = panel_formats[t].offset;
    const int fit = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; /* results that fit in int16 */
    const int halves = t == DT_Q6_K ? 2 : 1, n_v = 8 / halves;
    __m256 acc[TILE];
    UNROLL
    for (int i = 0; i < n; i++)
        acc[i] = acc_at[i];
    const uint8_t *q = rec + a->code_at + 32 * (size_t)g0;
    for (int g = 0; g < n_groups; g++, q += 32) {
        const uint8_t *scales = rec + a->scale_at + 4 * (g0 + g), *asums = rec + a->sum_at + 4 * (g0 + g),
                      *isums = rec + a->isum_at + 4 * (g0 + g);
        UNROLL
        for (int h = 0; h < halves; h++) {
            __m256i isum[TILE];
            UNROLL
            for (int v0 = h * n_v; v0 < (h + 1) * n_v; v0 += fit) {
                __m256i sum[TILE];
                UNROLL
                for (int v = v0; v < v0 + fit; v++) {
                    __m256i code = s->code[g][v][0].i, magnitude = bits == 8 ? _mm256_abs_epi8(code) : code;
                    UNROLL
                    for (int i = 0; i < n; i++) {
                        const uint8_t *qi = q + (size_t)i * act_stride;
                        __m256i add = bits == 8 ? signed_pairs(magnitude, code, qi, v) : pairs(code, qi, v);
                        sum[i] = v > v0 ? _mm256_add_epi16(sum[i], add) : add;
                        IN_REGISTER(sum[i]);
                    }
                }
                UNROLL
                for (int i = 0; i < n; i++) {
                    isum[i] = v0 > h * n_v ? _mm256_add_epi32(isum[i], widen(sum[i])) : widen(sum[i]);
                    IN_REGISTER(isum[i]);
                }
            }
            UNROLL
            for (int i = 0; i < n; i++) {
                size_t at = (size_t)i * act_stride;
                if (offset)
                    isum[i] =
                        _mm256_add_epi32(isum[i], correction(isums + at, halves == 2 && h == 1 ? 0 : -offset,
                                                             halves == 2 && h == 0 ? 0 : -offset));
                acc[i] = _mm256_fmadd_ps(
                    _mm256_cvtepi32_ps(isum[i]),
                    _mm256_mul_ps(s->scale[g][h][0].f, _mm256_set1_ps(load_float(scales + at))), acc[i]);
                if (panel_formats[t].has_min)
                    acc[i] = _mm256_fmadd_ps(s->min[g][0].f, _mm256_set1_ps(load_float(asums + at)), acc[i]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        acc_at[i] = acc[i];
}

static ALWAYS_INLINE void tile_qc(enum dtype t, const struct scratch *s, int n_groups,
                                  const struct act_layout *a, const uint8_t *rec, size_t act_stride,
                                  int32_t g0, int n, int wide, vf *acc_at)
{
    (void)t;
    (void)wide;
    const uint8_t *q = rec + a->code_at + 32 * (size_t)g0;
    __m256i acc[TILE];
    UNROLL
    for (int i = 0; i < n; i++)
        acc[i] = _mm256_castps_si256(acc_at[i]);
    for (int g = 0; g < n_groups; g++, q += 32) {
        UNROLL
        for (int v = 0; v < 8; v++) {
            __m256i code = s->code[g][v][0].i, magnitude = _mm256_abs_epi8(code);
            UNROLL
            for (int i = 0; i < n; i++) {
                acc[i] = _mm256_add_epi32(
                    acc[i], widen(signed_pairs(magnitude, code, q + (size_t)i * act_stride, v)));
                IN_REGISTER(acc[i]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        acc_at[i] = _mm256_castsi256_ps(acc[i]);
}

static ALWAYS_INLINE void f8_two_columns(const uint8_t *at, size_t step, vf column[2])
{
    (void)step;
    __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at));
    h = _mm256_and_si256(_mm256_slli_epi16(h, 7), _mm256_set1_epi16((short)0xbfff));
    column[0] = f8_from_halves(_mm256_castsi256_si128(h));
    column[1] = f8_from_halves(_mm256_extracti128_si256(h, 1));
}

/* ---- activations ---- */

/* As quantize_amax, but of 32 floats, by lanes; lanes that met something not finite are set in *bad. */
static ALWAYS_INLINE __m256 amax_32(__m256 amax, const float *x, __m256 *bad)
{
    UNROLL
    for (int i = 0; i < 32; i += 8) {
        __m256 a = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(x + i));
        *bad = _mm256_or_ps(*bad, _mm256_cmp_ps(a, _mm256_set1_ps(FLT_MAX), _CMP_NLE_UQ));
        amax = _mm256_max_ps(amax, a);
    }
    return amax;
}
static ALWAYS_INLINE float amax_join(__m256 amax, __m256 bad)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(amax), _mm256_extractf128_ps(amax, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm256_movemask_ps(bad) ? NAN : _mm_cvtss_f32(m);
}
/* Codes of 32 floats. Returns the sums of the first and the last 16, as int16[2]. */
static ALWAYS_INLINE uint32_t codes_32(const float *x, float inverse, uint8_t *code)
{
    if (inverse == 0) {
        memset(code, 0, 32);
        return 0;
    }
    __m256 f = _mm256_set1_ps(inverse);
    __m256i q[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), f));
    __m256i low = _mm256_packs_epi32(q[0], q[1]),
            high = _mm256_packs_epi32(q[2], q[3]); /* int16: columns 0..15, 16..31 */
    __m256i bytes = _mm256_packs_epi16(low, high); /* dwords: columns 0, 8, 16, 24, 4, 12, 20, 28 and on */
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)code, bytes);
    __m256i sums =
        _mm256_hadd_epi32(widen(low), widen(high)); /* dwords: low, low, high, high in both halves */
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    s = _mm_hadd_epi32(s, s);
    return (uint32_t)_mm_cvtsi128_si32(_mm_packs_epi32(s, s));
}
/* The floats of group g: x itself, or the last ones with zeros behind them. */
static ALWAYS_INLINE const float *group_floats(const struct act_layout *a, const float *x, int32_t g,
                                               float tmp[32])
{
    int32_t n = a->cols - 32 * g;
    if (n >= 32)
        return x + 32 * g;
    memset(tmp, 0, 32 * sizeof(float));
    memcpy(tmp, x + 32 * g, sizeof(float) * (size_t)n);
    return tmp;
}

static void quantize(const struct act_layout *a, const float *x, void *record_at)
{
    uint8_t *record = record_at;
    float tmp[32], scale, inverse;
    if (a->kind == ACT_F32) {
        memcpy(record, x, sizeof(float) * (size_t)a->cols);
        return;
    }
    int32_t groups = cuts_group(&a->cuts, a->cuts.n);
    size_t isum_end = a->isum_at + 4 * (size_t)a->n_scales, code_end = a->code_at + 32 * (size_t)groups;
    memset(record + isum_end, 0, a->code_at - isum_end);
    memset(record + code_end, 0, a->row_bytes - code_end);
    for (int32_t g = 0; g < groups && a->kind == ACT_Q32; g++) {
        const float *from = group_floats(a, x, g, tmp);
        __m256 bad = _mm256_setzero_ps(), amax = amax_32(bad, from, &bad);
        quantize_scale(amax_join(amax, bad), &scale, &inverse);
        uint32_t isum = codes_32(from, inverse, record + a->code_at + 32 * g);
        float asum = scale * (float)((int16_t)isum + (int16_t)(isum >> 16));
        memcpy(record + a->scale_at + 4 * g, &scale, 4);
        memcpy(record + a->sum_at + 4 * g, &asum, 4);
        memcpy(record + a->isum_at + 4 * g, &isum, 4);
    }
    for (int c = 0; c < a->cuts.n && a->kind == ACT_QC; c++) {
        int32_t begin = cuts_group(&a->cuts, c), end = cuts_group(&a->cuts, c + 1), sum = 0;
        __m256 bad = _mm256_setzero_ps(), amax = bad;
        for (int32_t g = begin; g < end; g++)
            amax = amax_32(amax, group_floats(a, x, g, tmp), &bad);
        quantize_scale(amax_join(amax, bad), &scale, &inverse);
        for (int32_t g = begin; g < end; g++) {
            uint32_t isum = codes_32(group_floats(a, x, g, tmp), inverse, record + a->code_at + 32 * g);
            sum += (int16_t)isum + (int16_t)(isum >> 16);
        }
        memcpy(record + a->scale_at + 4 * c, &scale, 4);
        memcpy(record + a->isum_at + 4 * c, &sum, 4);
    }
}

void matmul_init_avx2(struct matmul_kernels *k)
{
    k->quantize = quantize;
    for (int t = 0; t < DT_COUNT; t++)
        if (k->mul[t])
            k->mul[t] = act_kind_of((enum dtype)t) == ACT_F32 ? mul_float : mul_int;
}
