#include "kernels/rows.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

static void rms_norm_avx2(const float *x, const float *w, int32_t n, float eps, float *y)
{
    __m256 acc = _mm256_setzero_ps();
    int32_t k = 0;
    for (; k + 8 <= n; k += 8) {
        __m256 v = _mm256_loadu_ps(x + k);
        acc = _mm256_fmadd_ps(v, v, acc);
    }
    __m256i tail = head_mask8(n - k);
    if (k < n) {
        __m256 v = _mm256_maskload_ps(x + k, tail);
        acc = _mm256_fmadd_ps(v, v, acc);
    }
    __m256 inv = _mm256_set1_ps(1.0f / sqrtf(lanes_join8(acc) / (float)n + eps));
    for (k = 0; k + 8 <= n; k += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + k), inv);
        _mm256_storeu_ps(y + k, _mm256_mul_ps(v, _mm256_loadu_ps(w + k)));
    }
    if (k < n) {
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + k, tail), inv);
        _mm256_maskstore_ps(y + k, tail, _mm256_mul_ps(v, _mm256_maskload_ps(w + k, tail)));
    }
}

/* y[k] = core(a[k], b[k]) */
#define BINARY(name, core)                                                                                   \
    static void name(const float *a, const float *b, int32_t n, float *y)                                    \
    {                                                                                                        \
        int32_t k = 0;                                                                                       \
        for (; k + 8 <= n; k += 8)                                                                           \
            _mm256_storeu_ps(y + k, core(_mm256_loadu_ps(a + k), _mm256_loadu_ps(b + k)));                   \
        if (k < n) {                                                                                         \
            __m256i tail = head_mask8(n - k);                                                                \
            __m256 v = core(_mm256_maskload_ps(a + k, tail), _mm256_maskload_ps(b + k, tail));               \
            _mm256_maskstore_ps(y + k, tail, v);                                                             \
        }                                                                                                    \
    }

static ALWAYS_INLINE __m256 sigmoid_gate8(__m256 g, __m256 minus_arg, __m256 up)
{
    __m256 e = _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(minus_arg));
    return _mm256_mul_ps(_mm256_div_ps(g, e), up);
}

static ALWAYS_INLINE __m256 negate8(__m256 x)
{
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}

static ALWAYS_INLINE __m256 glu_silu8(__m256 g, __m256 up)
{
    return sigmoid_gate8(g, negate8(g), up);
}

static ALWAYS_INLINE __m256 glu_gelu_tanh8(__m256 g, __m256 up)
{
    __m256 t = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(GELU_CUBE), g), g);
    t = _mm256_fmadd_ps(t, g, g);
    return sigmoid_gate8(g, negate8(_mm256_mul_ps(_mm256_set1_ps(GELU_TWO_K), t)), up);
}

BINARY(add_avx2, _mm256_add_ps)
BINARY(mul_avx2, _mm256_mul_ps)
BINARY(glu_silu_avx2, glu_silu8)
BINARY(glu_gelu_tanh_avx2, glu_gelu_tanh8)

static void scale_avx2(const float *a, float s, int32_t n, float *y)
{
    __m256 factor = _mm256_set1_ps(s);
    int32_t k = 0;
    for (; k + 8 <= n; k += 8)
        _mm256_storeu_ps(y + k, _mm256_mul_ps(_mm256_loadu_ps(a + k), factor));
    if (k < n) {
        __m256i tail = head_mask8(n - k);
        _mm256_maskstore_ps(y + k, tail, _mm256_mul_ps(_mm256_maskload_ps(a + k, tail), factor));
    }
}

static void exp_avx2(const float *x, int32_t n, float *y)
{
    int32_t k = 0;
    for (; k + 8 <= n; k += 8)
        _mm256_storeu_ps(y + k, exp8(_mm256_loadu_ps(x + k)));
    if (k < n) {
        __m256i tail = head_mask8(n - k);
        _mm256_maskstore_ps(y + k, tail, exp8(_mm256_maskload_ps(x + k, tail)));
    }
}

static void rope_half_avx2(float *x, int32_t n_heads, int32_t head_dim, int32_t rot, const float *cosines,
                           const float *sines)
{
    int32_t half = rot / 2;
    for (int32_t h = 0; h < n_heads; h++, x += head_dim) {
        int32_t i = 0;
        for (; i + 8 <= half; i += 8) {
            __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
            __m256 c = _mm256_loadu_ps(cosines + i), s = _mm256_loadu_ps(sines + i);
            _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
            _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
        }
        for (; i < half; i++) {
            float a = x[i], b = x[half + i];
            x[i] = a * cosines[i] - b * sines[i];
            x[half + i] = b * cosines[i] + a * sines[i];
        }
    }
}

static void rope_pairs_avx2(float *x, int32_t n_heads, int32_t head_dim, int32_t rot, const float *cosines,
                            const float *sines)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    for (int32_t h = 0; h < n_heads; h++, x += head_dim) {
        int32_t i = 0;
        for (; i + 4 <= rot / 2; i += 4) {
            __m256 ab = _mm256_loadu_ps(x + 2 * i), ba = _mm256_permute_ps(ab, 0xb1);
            __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cosines + i)), twice);
            __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sines + i)), twice);
            _mm256_storeu_ps(x + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(ab, c), _mm256_mul_ps(ba, s)));
        }
        for (; i < rot / 2; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cosines[i] - b * sines[i];
            x[2 * i + 1] = b * cosines[i] + a * sines[i];
        }
    }
}

static ALWAYS_INLINE __m128i to_f16(__m256 x)
{
    /* min and max return their second operand when one is NaN */
    x = _mm256_max_ps(_mm256_set1_ps(-65504.0f), _mm256_min_ps(_mm256_set1_ps(65504.0f), x));
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static ALWAYS_INLINE __m128i to_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(64 << 16));
    u = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
}

/* Rows of 16-bit numbers, 8 at a time. */
#define KV_STORE_16(name, convert)                                                                           \
    static void name(const float *x, int32_t n, void *record)                                                \
    {                                                                                                        \
        uint8_t *out = record;                                                                               \
        int32_t k = 0;                                                                                       \
        for (; k + 8 <= n; k += 8)                                                                           \
            _mm_storeu_si128((__m128i *)(out + 2 * (size_t)k), convert(_mm256_loadu_ps(x + k)));             \
        if (k < n) {                                                                                         \
            uint16_t last[8];                                                                                \
            _mm_storeu_si128((__m128i *)last, convert(_mm256_maskload_ps(x + k, head_mask8(n - k))));        \
            memcpy(out + 2 * (size_t)k, last, 2 * (size_t)(n - k));                                          \
        }                                                                                                    \
    }
KV_STORE_16(kv_store_f16_avx2, to_f16)
KV_STORE_16(kv_store_bf16_avx2, to_bf16)

static ALWAYS_INLINE int64_t to_codes8(__m256 x, __m256 to_code)
{
    __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(x, to_code));
    __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    return _mm_cvtsi128_si64(_mm_packs_epi16(w, w));
}

static void kv_store_i8_avx2(const float *x, int32_t n, void *record)
{
    const __m256 inf = _mm256_set1_ps(INFINITY), sign = _mm256_set1_ps(-0.0f);
    uint8_t *code = record;
    size_t padded = ROUND_UP((size_t)n, 4);
    __m256 max = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    __m256i tail = head_mask8(n % 8);
    int32_t k = 0;
    for (; k + 8 <= n; k += 8) {
        __m256 a = _mm256_andnot_ps(sign, _mm256_loadu_ps(x + k));
        max = _mm256_max_ps(max, a);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, inf, _CMP_NLT_UQ));
    }
    if (k < n) {
        __m256 a = _mm256_andnot_ps(sign, _mm256_maskload_ps(x + k, tail));
        max = _mm256_max_ps(max, a);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, inf, _CMP_NLT_UQ));
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    float amax = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m))), scale = 0;
    if (_mm256_movemask_ps(bad) || amax < KV_I8_TINY) {
        scale = _mm256_movemask_ps(bad) ? NAN : 0.0f;
        memset(code, 0, padded);
    } else {
        scale = amax / 127.0f;
        __m256 to_code = _mm256_set1_ps(127.0f / amax);
        for (k = 0; k + 8 <= n; k += 8) {
            int64_t q = to_codes8(_mm256_loadu_ps(x + k), to_code);
            memcpy(code + k, &q, 8);
        }
        if (k < n) { /* masked lanes give code 0, which is the padding */
            int64_t q = to_codes8(_mm256_maskload_ps(x + k, tail), to_code);
            memcpy(code + k, &q, padded - (size_t)k);
        }
    }
    memcpy(code + padded, &scale, 4);
}

void rows_init_avx2(struct rows_kernels *k)
{
    k->rms_norm = rms_norm_avx2;
    k->add = add_avx2;
    k->mul = mul_avx2;
    k->scale = scale_avx2;
    k->glu[GLU_SILU] = glu_silu_avx2;
    k->glu[GLU_GELU_TANH] = glu_gelu_tanh_avx2;
    k->rope_half = rope_half_avx2;
    k->rope_pairs = rope_pairs_avx2;
    k->exp = exp_avx2;
    k->kv_store[KV_F16] = kv_store_f16_avx2;
    k->kv_store[KV_BF16] = kv_store_bf16_avx2;
    k->kv_store[KV_I8] = kv_store_i8_avx2;
}
