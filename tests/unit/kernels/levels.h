/* levels.h: runs a test on each CPU level that this machine has. */
#ifndef YOKE_TESTS_UNIT_KERNELS_LEVELS_H
#define YOKE_TESTS_UNIT_KERNELS_LEVELS_H

#include "base/cpu.h"
#include "base/mem.h"
#include "kernels/kernels.h"

static const enum cpu_level all_levels[] = {CPU_C, CPU_AVX2, CPU_AVX512, CPU_NEON, CPU_NEON_DOT};

/* for (each level) with `k` initialised for it */
#define FOR_EACH_LEVEL(k)                                                                                    \
    for (size_t level_ = 0; level_ < ARRAY_LEN(all_levels) && level_init(&(k), all_levels[level_]); level_++)

/* False when the machine has no such level; the next ones are above it. On Arm the x86 names are plain C. */
static inline int level_init(struct kernels *k, enum cpu_level level)
{
    if (level > cpu_level_native())
        return 0;
    kernels_init(k, level);
    return 1;
}

/* splitmix64, a uniform number in [-1, 1) */
static inline float uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (float)((int32_t)(z >> 40) - (1 << 23)) * 0x1p-23f;
}

#endif
