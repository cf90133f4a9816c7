/* Only what is bound by arithmetic: exponentials and divisions. The rest of the family waits for memory, or
 * for the 8 lanes of its sum, and gains nothing from wider registers. */
#include "kernels/rows.h"

#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

static ALWAYS_INLINE __m512 sigmoid_gate16(__m512 g, __m512 minus_arg, __m512 up)
{
    __m512 e = _mm512_add_ps(_mm512_set1_ps(1.0f), exp16(minus_arg));
    return _mm512_mul_ps(_mm512_div_ps(g, e), up);
}

static ALWAYS_INLINE __m512 negate16(__m512 x)
{
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

static ALWAYS_INLINE __m512 glu_silu16(__m512 g, __m512 up)
{
    return sigmoid_gate16(g, negate16(g), up);
}

static ALWAYS_INLINE __m512 glu_gelu_tanh16(__m512 g, __m512 up)
{
    __m512 t = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(GELU_CUBE), g), g);
    t = _mm512_fmadd_ps(t, g, g);
    return sigmoid_gate16(g, negate16(_mm512_mul_ps(_mm512_set1_ps(GELU_TWO_K), t)), up);
}

#define GLU(name, core)                                                                                      \
    static void name(const float *gate, const float *up, int32_t n, float *y)                                \
    {                                                                                                        \
        int32_t k = 0;                                                                                       \
        for (; k + 16 <= n; k += 16)                                                                         \
            _mm512_storeu_ps(y + k, core(_mm512_loadu_ps(gate + k), _mm512_loadu_ps(up + k)));               \
        if (k < n) {                                                                                         \
            __mmask16 tail = head_mask16(n - k);                                                             \
            __m512 v = core(_mm512_maskz_loadu_ps(tail, gate + k), _mm512_maskz_loadu_ps(tail, up + k));     \
            _mm512_mask_storeu_ps(y + k, tail, v);                                                           \
        }                                                                                                    \
    }
GLU(glu_silu_avx512, glu_silu16)
GLU(glu_gelu_tanh_avx512, glu_gelu_tanh16)

static void exp_avx512(const float *x, int32_t n, float *y)
{
    int32_t k = 0;
    for (; k + 16 <= n; k += 16)
        _mm512_storeu_ps(y + k, exp16(_mm512_loadu_ps(x + k)));
    if (k < n) {
        __mmask16 tail = head_mask16(n - k);
        _mm512_mask_storeu_ps(y + k, tail, exp16(_mm512_maskz_loadu_ps(tail, x + k)));
    }
}

void rows_init_avx512(struct rows_kernels *k)
{
    k->glu[GLU_SILU] = glu_silu_avx512;
    k->glu[GLU_GELU_TANH] = glu_gelu_tanh_avx512;
    k->exp = exp_avx512;
}
