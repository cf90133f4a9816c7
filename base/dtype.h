/* dtype.h: the number formats in which tensors are stored, and how many bytes a run of elements takes.
 *
 * Block formats are GGUF's, to the byte: `block` elements of one row in `block_bytes` bytes. A row is a whole
 * number of blocks. I8C and I4G are yoke's own, made by --quant from float weights; they exist only packed,
 * in no file but ours.
 */
#ifndef YOKE_BASE_DTYPE_H
#define YOKE_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DT_NONE = 0,
    DT_F32,
    DT_F16,
    DT_BF16,
    DT_Q8_0,
    DT_Q4_0,
    DT_Q4_1,
    DT_Q5_0,
    DT_Q5_1,
    DT_Q4_K,
    DT_Q5_K,
    DT_Q6_K,
    DT_I8C, /* --quant w8a8: int8, one f32 scale per row (output channel), symmetric */
    DT_I4G, /* --quant w4: Q4_0's codes and arithmetic (groups of 32, one f16 scale), scales chosen by yoke */
    DT_I8,  /* plain integers, as found in checkpoints; not a weight format */
    DT_I16,
    DT_I32,
    DT_I64,
    DT_U8,
    DT_F64,
    DT_BOOL,
    DT_F8_E4M3, /* float8 e4m3fn: no infinities, NaN is 0x7f and 0xff; matrices may have scales of blocks */
    DT_COUNT
};

struct dtype_info {
    const char *name; /* "f32", "q4_k", ... */
    int block;        /* elements per block */
    int block_bytes;  /* 0: exists only packed */
    int weight;       /* 1: kernels can multiply with it */
};

const struct dtype_info *dtype_info(enum dtype t);
static inline const char *dtype_name(enum dtype t)
{
    return dtype_info(t)->name;
}
enum dtype dtype_from_name(const char *name); /* DT_NONE if unknown; case does not matter */
/* Bytes of n elements of one row; n must be a multiple of the block. */
size_t dtype_bytes(enum dtype t, size_t n);

/* Scalar conversions, exact; kernels have their own vector forms. f32_to_* round to nearest even. */
static inline float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 64); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
/* e4m3fn: 4 bits of exponent with bias 7, 3 of mantissa, subnormals; all ones is NaN, the rest finite. */
static inline float f8_e4m3_to_f32(uint8_t h)
{
    uint32_t sign = (uint32_t)(h & 0x80) << 24, m = h & 0x7f, u;
    float f = (float)m * 0x1p-9f; /* right for zero and subnormals */
    memcpy(&u, &f, 4);
    if (m == 0x7f)
        u = 0x7fc00000u;
    else if (m >= 8)
        u = (m << 20) + (120u << 23);
    u |= sign;
    memcpy(&f, &u, 4);
    return f;
}
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);

#endif
