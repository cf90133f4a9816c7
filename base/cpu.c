#include "base/cpu.h"

#include <hwloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

static const struct {
    enum cpu_level level;
    const char *name;
} levels[] = {
    {CPU_C, "c"}, {CPU_AVX2, "avx2"}, {CPU_AVX512, "avx512"}, {CPU_NEON, "neon"}, {CPU_NEON_DOT, "neon_dot"},
};

enum cpu_level cpu_level_native(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")))
        return CPU_C;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
        return CPU_AVX512;
    return CPU_AVX2;
#elif defined(__aarch64__)
    return CPU_NEON;
#else
    return CPU_C;
#endif
}

const char *cpu_level_name(enum cpu_level l)
{
    for (size_t i = 0; i < ARRAY_LEN(levels); i++)
        if (levels[i].level == l)
            return levels[i].name;
    return "?";
}

int cpu_level_from_name(const char *name, enum cpu_level *ret, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        if (strcmp(levels[i].name, name))
            continue;
        if (levels[i].level > cpu_level_native())
            return err_set(e, ERR_UNSUPPORTED, "this machine's best CPU level is %s; %s needs more",
                           cpu_level_name(cpu_level_native()), name);
        *ret = levels[i].level;
        return 0;
    }
    return err_set(e, ERR_USAGE, "unknown CPU level \"%s\"; the levels are c, avx2, avx512, neon, neon_dot",
                   name);
}

const char *cpu_model_name(void)
{
    static char name[128];
    if (name[0])
        return name;
    snprintf(name, sizeof(name), "unknown CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512];
    while (f && fgets(line, sizeof(line), f)) {
        char *colon = strchr(line, ':');
        if (colon && !strncmp(line, "model name", 10)) {
            snprintf(name, sizeof(name), "%.100s", colon + 2);
            name[strcspn(name, "\n")] = 0;
            break;
        }
    }
    if (f)
        fclose(f);
    return name;
}

/* cgroup v2 "max 100000" or "150000 100000"; v1 quota and period in two files. 0: no limit. */
static double cgroup_quota(void)
{
    double quota = 0, period = 0;
    char text[64];
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f) {
        if (fscanf(f, "%63s %lf", text, &period) == 2 && strcmp(text, "max"))
            quota = atof(text);
        fclose(f);
    } else if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re"))) {
        if (fscanf(f, "%lf", &quota) != 1)
            quota = 0;
        fclose(f);
        f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re");
        if (f) {
            if (fscanf(f, "%lf", &period) != 1)
                period = 0;
            fclose(f);
        }
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

int cpu_count(void)
{
    cpu_set_t set;
    int n = 1;
    if (!sched_getaffinity(0, sizeof(set), &set))
        n = CPU_COUNT(&set);
    double quota = cgroup_quota();
    if (quota > 0 && quota < n)
        n = (int)quota + ((int)quota < quota);
    return n < 1 ? 1 : n;
}

void cpu_bind_self(int index)
{
    /* hwloc orders cores by locality (package, NUMA domain, core, hyperthread last), which is what "the next
     * core" should mean; the affinity mask says which of them are ours. */
    hwloc_topology_t topo;
    if (hwloc_topology_init(&topo))
        return;
    if (!hwloc_topology_load(topo)) {
        int n = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
        if (n > 0) {
            hwloc_obj_t core = hwloc_get_obj_by_type(topo, HWLOC_OBJ_CORE, (unsigned)(index % n));
            hwloc_set_cpubind(topo, core->cpuset, HWLOC_CPUBIND_THREAD);
        }
    }
    hwloc_topology_destroy(topo);
}
