/* cpu.h: what this process may use: instruction sets and cores.
 *
 * ISA levels are named bundles, each containing the one before, so that a run is described by one word. The
 * level in use is the best one the machine has, unless --cpu asks for a lower one; tests run them all. Cores
 * are counted within affinity and cgroup CPU quota, as a container user expects.
 */
#ifndef YOKE_BASE_CPU_H
#define YOKE_BASE_CPU_H

#include <stddef.h>
#include <stdint.h>
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

/* --- which cores: shared out among ranks, and bound to ---
 *
 * "Core" is what the kernel schedules on: a hardware thread. Ranks of one host that may use the same cores
 * each take a part of them. Binding is an optimisation: nothing here fails. */

#define CPU_MAX 1024 /* as glibc's cpu_set_t; of machines with more, the first ones are used */

struct cores {
    int n;                 /* 0: no statement, run anywhere */
    uint16_t cpu[CPU_MAX]; /* the kernel's numbers */
};

/* What the calling thread may run on. */
void cores_allowed(struct cores *ret);

/* Part `index` of `count` parts of `allowed`, in an order that keeps neighbours near. NUMA domains first: a
 * part lies in one domain, or is whole domains where there are more of them than parts; the smallest part is
 * as large as can be; then physical cores: hardware threads of one stay together. More parts than cores:
 * ret->n is 0, they share. topology: NULL for this machine, or a description that
 * hwloc_topology_set_synthetic() takes (tests). */
void cores_share(const char *topology, const struct cores *allowed, int index, int count, struct cores *ret);

/* Binds the calling thread, member ith of nth: to a core of its own where there is one for each, else to all
 * of them. nth 0: to all of them. */
void cores_bind(const struct cores *c, int ith, int nth);
void cores_print(const struct cores *c, char *buf, size_t n); /* "0-3,8": for reports; "any" for none */

#endif
