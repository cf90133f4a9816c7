/* dequant.c: see dequant.h. Blocks, little-endian, without padding (d, m: f16):
 *
 *     q8_0  d, i8 q[32]                       d * q
 *     q4_0  d, u4 q[32]                       d * (q - 8)
 *     q4_1  d, m, u4 q[32]                    d * q + m
 *     q5_0  d, u32 high bits, u4 q[32]        d * (q - 16)
 *     q5_1  d, m, u32 high bits, u4 q[32]     d * q + m
 *     q4_k  d, m, 8 x (scale, min), u4 q[256]             (d * scale) * q - (m * min)
 *     q5_k  d, m, 8 x (scale, min), high bits, u4 q[256]  (d * scale) * q - (m * min)
 *     q6_k  u4 q[256], u2 high[256], i8 scale[16], d      (d * scale) * (q - 32)
 *
 * In a byte of nibbles of the 32-blocks, the low one is element i, the high one element i + 16. The k-blocks
 * go 64 elements at a time: 32 bytes, low nibbles first; q6_k 128 at a time.
 */
#include "formats/dequant.h"

#include <assert.h>
#include <string.h>

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return f16_to_f32(h);
}

static void dequant_q8_0(const uint8_t *b, float *y)
{
    float d = load_f16(b);
    for (int i = 0; i < 32; i++)
        y[i] = (float)(int8_t)b[2 + i] * d;
}

static void dequant_q4_0(const uint8_t *b, float *y)
{
    float d = load_f16(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

static void dequant_q4_1(const uint8_t *b, float *y)
{
    float d = load_f16(b), m = load_f16(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(b[4 + i] & 15) + m;
        y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

static void dequant_q5_0(const uint8_t *b, float *y)
{
    float d = load_f16(b);
    uint32_t high;
    memcpy(&high, b + 2, 4);
    for (int i = 0; i < 16; i++) {
        int lo = (b[6 + i] & 15) | (int)(high >> i & 1) << 4, hi = b[6 + i] >> 4 | (int)(high >> (i + 16) & 1)
                                                                                       << 4;
        y[i] = d * (float)(lo - 16);
        y[i + 16] = d * (float)(hi - 16);
    }
}

static void dequant_q5_1(const uint8_t *b, float *y)
{
    float d = load_f16(b), m = load_f16(b + 2);
    uint32_t high;
    memcpy(&high, b + 4, 4);
    for (int i = 0; i < 16; i++) {
        int lo = (b[8 + i] & 15) | (int)(high >> i & 1) << 4, hi = b[8 + i] >> 4 | (int)(high >> (i + 16) & 1)
                                                                                       << 4;
        y[i] = d * (float)lo + m;
        y[i + 16] = d * (float)hi + m;
    }
}

/* The j-th of 8 pairs of 6-bit scale and min, packed in 12 bytes: those of the first four are whole in bytes
 * 0..3 and 4..7, whose two top bits continue those of the last four, begun in nibbles of bytes 8..11. */
static void k_scale_min(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

static void dequant_q4_k(const uint8_t *b, float *y)
{
    float d = load_f16(b), dmin = load_f16(b + 2);
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = b + 16 + 32 * (j / 2);
        int scale, min;
        k_scale_min(b + 4, j, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        for (int i = 0; i < 32; i++)
            y[32 * j + i] = ds * (float)(q[i] >> 4 * (j & 1) & 15) - dm;
    }
}

static void dequant_q5_k(const uint8_t *b, float *y)
{
    float d = load_f16(b), dmin = load_f16(b + 2);
    const uint8_t *high = b + 16;
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = b + 48 + 32 * (j / 2);
        int scale, min;
        k_scale_min(b + 4, j, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            int v = (q[i] >> 4 * (j & 1) & 15) | (high[i] >> j & 1) << 4;
            y[32 * j + i] = ds * (float)v - dm;
        }
    }
}

static void dequant_q6_k(const uint8_t *b, float *y)
{
    const uint8_t *low = b, *high = b + 128;
    const uint8_t *scale = b + 192;
    float d = load_f16(b + 208);
    for (int i = 0; i < 256; i++) {
        /* half (0, 1) of 128, quarter of 32 within it */
        int half = i / 128, quarter = i / 32 % 4, k = i % 32;
        int v = (low[64 * half + 32 * (quarter & 1) + k] >> 4 * (quarter >> 1) & 15) |
                (high[32 * half + k] >> 2 * quarter & 3) << 4;
        y[i] = d * (float)(int8_t)scale[i / 16] * (float)(v - 32);
    }
}

void dequant_row(enum dtype dtype, const void *src, int64_t n, float *dst)
{
    static void (*const block_fn[DT_COUNT])(const uint8_t *, float *) = {
        [DT_Q8_0] = dequant_q8_0, [DT_Q4_0] = dequant_q4_0, [DT_Q4_1] = dequant_q4_1,
        [DT_Q5_0] = dequant_q5_0, [DT_Q5_1] = dequant_q5_1, [DT_Q4_K] = dequant_q4_k,
        [DT_Q5_K] = dequant_q5_k, [DT_Q6_K] = dequant_q6_k,
    };
    const struct dtype_info *d = dtype_info(dtype);
    const uint8_t *p = src;
    assert(n >= 0 && n % d->block == 0);
    if (dtype == DT_F32) {
        if (n)
            memcpy(dst, src, (size_t)n * 4);
        return;
    }
    if (dtype == DT_F16 || dtype == DT_BF16) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * i, 2);
            dst[i] = dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
        }
        return;
    }
    if (dtype == DT_F8_E4M3) {
        for (int64_t i = 0; i < n; i++)
            dst[i] = f8_e4m3_to_f32(p[i]);
        return;
    }
    assert(block_fn[dtype]);
    for (int64_t i = 0; i < n; i += d->block, p += d->block_bytes)
        block_fn[dtype](p, dst + i);
}
