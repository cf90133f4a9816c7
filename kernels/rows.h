/* rows.h: kernels over one row of floats: norms, gates, rotary embedding, conversions. Arithmetic is defined
 * here: each operation is rounded to float; only what says fmaf is fused.
 *
 *   exp        yk_expf below: a polynomial of our own, the same bits on each level (libm's versions differ)
 *
 *   rms_norm   ss = lanes sum of x[k]^2 (kernels/sum.h)
 *              inv = 1 / sqrtf(ss / n + eps);  y[k] = (x[k] * inv) * w[k]
 *
 *   glu        y[k] = act(gate[k]) * up[k]
 *              silu:       act(g) = g / (1 + exp(-g))
 *              gelu_tanh:  t = fmaf((0.044715 * g) * g, g, g)
 *                          act(g) = g / (1 + exp(-(2 sqrt(2/pi) * t)))
 *              The latter is 0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) without its cancellation. Both
 *              are g itself for large g, and NaN for g = -inf, as PyTorch's are.
 *
 *   rope       half:   (a, b) = (x[i], x[i + rot/2])
 *              pairs:  (a, b) = (x[2i], x[2i + 1]);  i in [0, rot/2)
 *              a' = a * cos - b * sin;  b' = b * cos + a * sin
 *              Each product is rounded, then the sum, as PyTorch does. rot is even and at most head_dim;
 *              elements from rot on are left alone.
 *
 *   kv_store   f16:    clamped to +-65504, then rounded to nearest even; NaN stays NaN
 *              bf16:   rounded to nearest even; NaN stays NaN
 *              i8:     amax = max |x|;  scale = amax / 127;  code = rint(x * (127 / amax))
 *                      all zero if amax < 2^-100, where 127 / amax could overflow
 *                      codes 0 and scale NaN if any x is infinite or NaN, so that it shows
 *
 * Which NaN comes out of a NaN is not defined; that one comes out is.
 */
#ifndef YOKE_KERNELS_ROWS_H
#define YOKE_KERNELS_ROWS_H

#include <stddef.h>
#include <stdint.h>

enum glu_kind { GLU_SILU, GLU_GELU_TANH };
enum kv_dtype { KV_F32, KV_F16, KV_BF16, KV_I8, KV_DTYPES };

struct rows_kernels {
    void (*rms_norm)(const float *x, const float *w /* [n] */, int32_t n, float eps,
                     float *y);                                       /* y may be x */
    void (*add)(const float *a, const float *b, int32_t n, float *y); /* y = a + b; y may be a */
    void (*mul)(const float *a, const float *b, int32_t n, float *y);
    void (*scale)(const float *a, float s, int32_t n, float *y);
    void (*glu[2])(const float *gate, const float *up, int32_t n,
                   float *y); /* by enum glu_kind; y may be gate */
    /* n_heads vectors of head_dim floats, contiguous; cos, sin: [rot / 2]. In place. */
    void (*rope_half)(float *x, int32_t n_heads, int32_t head_dim, int32_t rot, const float *cos,
                      const float *sin);
    void (*rope_pairs)(float *x, int32_t n_heads, int32_t head_dim, int32_t rot, const float *cos,
                       const float *sin);
    void (*exp)(const float *x, int32_t n, float *y); /* yk_expf of each */
    /* One vector into the KV cache (kernels/attention.h says what a record is). */
    void (*kv_store[KV_DTYPES])(const float *x, int32_t n, void *record);
};
void rows_kernels_init(struct rows_kernels *k, int cpu_level);

/* exp(x), at most 0.9 ulp off (kernels/exp.h has the method). +0 for x < -87.33654 (results are never
 * subnormal), +inf for x > 88.72283; NaN stays NaN. */
float yk_expf(float x);

#endif
