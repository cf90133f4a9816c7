/* exp.h: the constants of yk_expf, for the C version (rows.c) and the vector ones, which follow it step by
 * step.
 *
 * exp(x) = 2^n * exp(r) with n the integer nearest to x * log2(e) (ties to even) and r = x - n * ln 2, |r| <=
 * 0.3466. ln 2 is split into two floats (Cody and Waite); fmaf makes n * EXP_LN2_HI exact. The polynomial has
 * degree 6; its coefficients minimise the largest relative error over that range (2^-28.2) and were rounded
 * to float one after the other, the rest refitted each time. 2^n is applied by adding n to the exponent
 * field, which is right as long as the result is a normal number: EXP_MIN and EXP_MAX are the first and the
 * last float for which it is.
 */
#ifndef YOKE_KERNELS_EXP_H
#define YOKE_KERNELS_EXP_H

#define EXP_MIN    -0x1.5d589ep+6f /* -87.33654; below: +0 */
#define EXP_MAX    0x1.62e42ep+6f  /* 88.72283; above: +inf */
#define EXP_LOG2E  0x1.715476p+0f
#define EXP_LN2_HI 0x1.62e43p-1f
#define EXP_LN2_LO -0x1.05c61p-29f
#define EXP_ROUND  0x1.8p+23f /* adding this leaves the nearest integer in the low bits of the significand */
#define EXP_C2     0x1.fffffcp-2f
#define EXP_C3     0x1.555492p-3f
#define EXP_C4     0x1.5558b6p-5f
#define EXP_C5     0x1.1239a2p-7f
#define EXP_C6     0x1.6a4748p-10f

/* gelu_tanh(x) = x * sigmoid(2u): GELU_TWO_K = 2 * sqrt(2 / pi) */
#define GELU_CUBE  0.044715f
#define GELU_TWO_K 1.5957691216057308f

/* kv_store to int8: rows whose largest magnitude is below this become zeros (127 / amax must not overflow).
 */
#define KV_I8_TINY 0x1p-100f

#endif
