/* random.h: numbers for random graphs: the same seed, the same numbers. */
#ifndef YOKE_TESTS_UNIT_EXEC_RANDOM_H
#define YOKE_TESTS_UNIT_EXEC_RANDOM_H

#include <stdint.h>

static uint64_t seed;
static inline uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}
static inline float rnd_float(void)
{
    return ((float)rnd(20001) - 10000.0f) / 10000.0f;
}

#endif
