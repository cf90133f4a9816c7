/* cpu.h: what this process may use: instruction sets and cores.
 *
 * ISA levels are named bundles, each containing the one before, so that a run is described by one word. The
 * level in use is the best one the machine has, unless --cpu asks for a lower one; tests run them all. Cores
 * are counted within affinity and cgroup CPU quota, as a container user expects.
 */
#ifndef YOKE_BASE_CPU_H
#define YOKE_BASE_CPU_H

#include "base/err.h"

enum cpu_level {
    CPU_C = 0,        /* portable C only */
    CPU_AVX2 = 1,     /* AVX2, FMA, F16C */
    CPU_AVX512 = 2,   /* + AVX-512 F, BW, DQ, VL and VNNI */
    CPU_NEON = 16,    /* Armv8-A baseline */
    CPU_NEON_DOT = 17 /* + sdot */
};

enum cpu_level cpu_level_native(void); /* the best this machine has */
const char *cpu_level_name(enum cpu_level l);
int cpu_level_from_name(const char *name, enum cpu_level *ret, struct err *e); /* unknown: lists the names */
const char *cpu_model_name(void); /* for reports, e.g. "AMD EPYC" */

int cpu_count(void); /* cores this process may use: min(affinity, cgroup quota rounded up), at least 1 */
/* Binds the calling thread to the index-th core of those allowed (modulo their number). Quiet on failure:
 * binding is an optimisation. */
void cpu_bind_self(int index);

#endif
