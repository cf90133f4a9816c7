#include "base/dtype.h"

#include <assert.h>
#include <strings.h>

static const struct dtype_info infos[DT_COUNT] = {
    [DT_NONE] = {"none", 1, 0, 0},       [DT_F32] = {"f32", 1, 4, 1},       [DT_F16] = {"f16", 1, 2, 1},
    [DT_BF16] = {"bf16", 1, 2, 1},       [DT_Q8_0] = {"q8_0", 32, 34, 1},   [DT_Q4_0] = {"q4_0", 32, 18, 1},
    [DT_Q4_1] = {"q4_1", 32, 20, 1},     [DT_Q5_0] = {"q5_0", 32, 22, 1},   [DT_Q5_1] = {"q5_1", 32, 24, 1},
    [DT_Q4_K] = {"q4_k", 256, 144, 1},   [DT_Q5_K] = {"q5_k", 256, 176, 1}, [DT_Q6_K] = {"q6_k", 256, 210, 1},
    [DT_I8C] = {"i8c", 1, 0, 1},         [DT_I4G] = {"i4g", 32, 0, 1},      [DT_I8] = {"i8", 1, 1, 0},
    [DT_I16] = {"i16", 1, 2, 0},         [DT_I32] = {"i32", 1, 4, 0},       [DT_I64] = {"i64", 1, 8, 0},
    [DT_U8] = {"u8", 1, 1, 0},           [DT_F64] = {"f64", 1, 8, 0},       [DT_BOOL] = {"bool", 1, 1, 0},
    [DT_F8_E4M3] = {"f8_e4m3", 1, 1, 1},
};

const struct dtype_info *dtype_info(enum dtype t)
{
    assert((unsigned)t < DT_COUNT);
    return &infos[t];
}

enum dtype dtype_from_name(const char *name)
{
    for (int t = 1; t < DT_COUNT; t++)
        if (!strcasecmp(infos[t].name, name))
            return (enum dtype)t;
    return DT_NONE;
}

size_t dtype_bytes(enum dtype t, size_t n)
{
    const struct dtype_info *d = dtype_info(t);
    assert(n % (size_t)d->block == 0);
    return n / (size_t)d->block * (size_t)d->block_bytes;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 1023, u;
    if (exp == 31) {
        u = sign | 0x7f800000u | (man << 13);
    } else if (exp) {
        u = sign | ((exp + 112) << 23) | (man << 13);
    } else { /* zero or subnormal: man * 2^-24 is exact */
        float f = (float)man * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

uint16_t f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 16) & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000u) { /* subnormal: let the FPU round at 2^-24 */
        float s;
        memcpy(&s, &a, 4);
        s += 0.5f; /* ulp of [0.5, 1) is 2^-24 */
        memcpy(&a, &s, 4);
        return (uint16_t)(sign | (a - 0x3f000000u));
    }
    a += 0xfffu + ((a >> 13) & 1);
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}
