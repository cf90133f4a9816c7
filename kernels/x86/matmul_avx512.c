/* The matmul family with AVX-512 F, BW, DQ, VL and VNNI.
 *
 * dpbusd multiplies unsigned by signed bytes and adds groups of four to int32 without a limit in between.
 * Codes go in unsigned, 8-bit ones with their sign bit flipped (128 more); what that adds too much is offset
 * * (sum of q), taken off at the start from the sums in the activation's record. Blocks of tokens take 4
 * panels at a time, 32 rows in two vectors, so that one broadcast of activations feeds two products; few
 * tokens go through single panels.
 */
#include "kernels/matmul.h"

#include <immintrin.h>
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#define PANELS 2
typedef __m512 vf;
typedef __m512i vi;
#define vf_set1     _mm512_set1_ps
#define vf_fmadd    _mm512_fmadd_ps
#define vf_from_int _mm512_cvtepi32_ps
#define vi_set1     _mm512_set1_epi32
#define vi_sub      _mm512_sub_epi32

#define FEW 2
#define EACH_FEW(X, ...)                                                                                     \
    X(__VA_ARGS__, 1)                                                                                        \
    X(__VA_ARGS__, 2)
#define INT_WIDE 2
#define EACH_INT_WIDE(X, ...)                                                                                \
    X(__VA_ARGS__, 1)                                                                                        \
    X(__VA_ARGS__, 2)
#define FLOAT_STRETCH   64
#define HALF_L2         (512 * 1024) /* every machine of this level has 1 MiB or more */
#define DOTS_ADD_OFFSET 128
#include "kernels/x86/matmul_x86.inc"

/* What is added to codes where they are multiplied. */
static ALWAYS_INLINE int code_offset(enum dtype t)
{
    return panel_formats[t].bits == 8 ? 128 : panel_formats[t].offset;
}
/* Unsigned, as the product wants them. */
static ALWAYS_INLINE __m256i tile_code(enum dtype t, __m256i code)
{
    return panel_formats[t].bits == 8 ? _mm256_xor_si256(code, _mm256_set1_epi8(-128)) : code;
}

static ALWAYS_INLINE void dots_group(enum dtype t, const __m256i code[8], const uint8_t *q,
                                     const uint8_t *sums, __m256i isum[2])
{
    const int offset = code_offset(t), halves = t == DT_Q6_K ? 2 : 1;
    UNROLL
    for (int h = 0; h < halves; h++) {
        isum[h] = _mm256_setzero_si256();
        if (offset)
            isum[h] = _mm256_dpwssd_epi32(isum[h], _mm256_set1_epi32(load32(sums)),
                                          _mm256_set1_epi32(two_int16(halves == 2 && h == 1 ? 0 : -offset,
                                                                      halves == 2 && h == 0 ? 0 : -offset)));
        UNROLL
        for (int v = h * 4; v < 8 / halves + h * 4; v++)
            isum[h] =
                _mm256_dpbusd_epi32(isum[h], tile_code(t, code[v]), _mm256_set1_epi32(load32(q + 4 * v)));
    }
}

static ALWAYS_INLINE __m256i dots_add(__m256i isum, const __m256i code[8], const uint8_t *q)
{
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}; /* short chains */
    UNROLL
    for (int v = 0; v < 8; v++)
        sum[v % 2] =
            _mm256_dpbusd_epi32(sum[v % 2], tile_code(DT_I8C, code[v]), _mm256_set1_epi32(load32(q + 4 * v)));
    return _mm256_add_epi32(isum, _mm256_add_epi32(sum[0], sum[1]));
}

/* ---- blocks of tokens ---- */

static ALWAYS_INLINE void tile_q32(enum dtype t, const struct scratch *s, int n_groups,
                                   const struct act_layout *a, const uint8_t *rec, size_t act_stride,
                                   int32_t g0, int n, int wide, vf *acc_at)
{
    const int offset = code_offset(t), halves = t == DT_Q6_K ? 2 : 1, n_v = 8 / halves;
    __m512 acc[TILE][INT_WIDE];
    UNROLL
    for (int i = 0; i < n; i++)
        for (int j = 0; j < wide; j++)
            acc[i][j] = acc_at[i * wide + j];
    const uint8_t *q = rec + a->code_at + 32 * (size_t)g0;
    for (int g = 0; g < n_groups; g++, q += 32) {
        const uint8_t *scales = rec + a->scale_at + 4 * (g0 + g), *asums = rec + a->sum_at + 4 * (g0 + g),
                      *isums = rec + a->isum_at + 4 * (g0 + g);
        UNROLL
        for (int h = 0; h < halves; h++) {
            __m512i isum[TILE][INT_WIDE];
            const __m512i factors = _mm512_set1_epi32(
                two_int16(halves == 2 && h == 1 ? 0 : -offset, halves == 2 && h == 0 ? 0 : -offset));
            UNROLL
            for (int i = 0; i < n; i++) {
                isum[i][0] = _mm512_setzero_si512();
                if (offset)
                    isum[i][0] = _mm512_dpwssd_epi32(
                        isum[i][0], factors, _mm512_set1_epi32(load32(isums + (size_t)i * act_stride)));
                UNROLL
                for (int j = 1; j < wide; j++)
                    isum[i][j] = isum[i][0];
            }
            UNROLL
            for (int v = h * n_v; v < (h + 1) * n_v; v++) {
                UNROLL
                for (int i = 0; i < n; i++) {
                    __m512i qv = _mm512_set1_epi32(load32(q + (size_t)i * act_stride + 4 * v));
                    UNROLL
                    for (int j = 0; j < wide; j++)
                        isum[i][j] = _mm512_dpbusd_epi32(isum[i][j], s->code[g][v][j].i, qv);
                }
            }
            UNROLL
            for (int i = 0; i < n; i++) {
                __m512 ascale = _mm512_set1_ps(load_float(scales + (size_t)i * act_stride));
                __m512 asum = ascale;
                if (panel_formats[t].has_min)
                    asum = _mm512_set1_ps(load_float(asums + (size_t)i * act_stride));
                UNROLL
                for (int j = 0; j < wide; j++) {
                    acc[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum[i][j]),
                                                _mm512_mul_ps(s->scale[g][h][j].f, ascale), acc[i][j]);
                    if (panel_formats[t].has_min)
                        acc[i][j] = _mm512_fmadd_ps(s->min[g][j].f, asum, acc[i][j]);
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        for (int j = 0; j < wide; j++)
            acc_at[i * wide + j] = acc[i][j];
}

static ALWAYS_INLINE void tile_qc(enum dtype t, const struct scratch *s, int n_groups,
                                  const struct act_layout *a, const uint8_t *rec, size_t act_stride,
                                  int32_t g0, int n, int wide, vf *acc_at)
{
    (void)t;
    const uint8_t *q = rec + a->code_at + 32 * (size_t)g0;
    __m512i acc[TILE][INT_WIDE];
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int j = 0; j < wide; j++)
        acc[i][j] = _mm512_castps_si512(acc_at[i * wide + j]);
    for (int g = 0; g < n_groups; g++, q += 32) {
        UNROLL
        for (int v = 0; v < 8; v++) {
            UNROLL
            for (int i = 0; i < n; i++) {
                __m512i qv = _mm512_set1_epi32(load32(q + (size_t)i * act_stride + 4 * v));
                UNROLL
                for (int j = 0; j < wide; j++)
                    acc[i][j] = _mm512_dpbusd_epi32(acc[i][j], s->code[g][v][j].i, qv);
            }
        }
    }
    UNROLL
    for (int i = 0; i < n; i++)
        UNROLL
    for (int j = 0; j < wide; j++)
        acc_at[i * wide + j] = _mm512_castsi512_ps(acc[i][j]);
}

static ALWAYS_INLINE __m512 f8_wide_from_halves(__m256i h)
{
    return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(0x1p8f));
}
static ALWAYS_INLINE void f8_two_columns(const uint8_t *at, size_t step, vf column[2])
{
    __m256i codes =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at)),
                                _mm_loadu_si128((const __m128i *)(const void *)(at + step)), 1);
    __m512i h = _mm512_cvtepi8_epi16(_mm256_permute4x64_epi64(codes, 0xd8));
    h = _mm512_and_si512(_mm512_slli_epi16(h, 7), _mm512_set1_epi16((short)0xbfff));
    column[0] = f8_wide_from_halves(_mm512_castsi512_si256(h));
    column[1] = f8_wide_from_halves(_mm512_extracti64x4_epi64(h, 1));
}

void matmul_init_avx512(struct matmul_kernels *k)
{
    for (int t = 0; t < DT_COUNT; t++)
        if (k->mul[t])
            k->mul[t] = act_kind_of((enum dtype)t) == ACT_F32 ? mul_float : mul_int;
}
