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

/* --- sharing out cores --- */

void cores_allowed(struct cores *ret)
{
    cpu_set_t set;
    ret->n = 0;
    if (sched_getaffinity(0, sizeof(set), &set))
        return;
    for (int i = 0; i < CPU_MAX; i++)
        if (CPU_ISSET(i, &set))
            ret->cpu[ret->n++] = (uint16_t)i;
}

/* The usable cores of a machine, domain after domain; in a domain, physical core after physical core. */
struct machine {
    int n, n_domains;
    struct cores order;
    int physical[CPU_MAX];   /* of order.cpu[i]: which physical core it belongs to */
    int domain[CPU_MAX + 1]; /* where domain d begins in the order; domain[n_domains] is n */
};

static hwloc_topology_t topology_open(const char *synthetic)
{
    hwloc_topology_t t;
    if (hwloc_topology_init(&t))
        return NULL;
    if ((synthetic && hwloc_topology_set_synthetic(t, synthetic)) || hwloc_topology_load(t)) {
        hwloc_topology_destroy(t);
        return NULL;
    }
    return t;
}

/* Those of `left` that lie in a NUMA domain; takes them out of it (domains may overlap: fast and slow memory
 * of the same cores). Logical order is order of locality. */
static void add_domain(struct machine *m, hwloc_topology_t t, hwloc_const_cpuset_t cpus, hwloc_bitmap_t left)
{
    int before = m->n, n_pu = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_PU);
    for (int i = 0; i < n_pu; i++) {
        hwloc_obj_t pu = hwloc_get_obj_by_type(t, HWLOC_OBJ_PU, (unsigned)i);
        if (!hwloc_bitmap_isset(cpus, pu->os_index) || !hwloc_bitmap_isset(left, pu->os_index))
            continue;
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_CORE, pu);
        hwloc_bitmap_clr(left, pu->os_index);
        m->physical[m->n] = core ? (int)core->logical_index : -1 - i;
        m->order.cpu[m->n++] = (uint16_t)pu->os_index;
    }
    if (m->n > before)
        m->domain[m->n_domains++] = before;
}

static void machine_read(struct machine *m, const char *synthetic, const struct cores *allowed)
{
    hwloc_topology_t t = topology_open(synthetic);
    hwloc_bitmap_t left = t ? hwloc_bitmap_alloc() : NULL;
    m->n = m->n_domains = 0;
    if (left) {
        for (int i = 0; i < allowed->n; i++)
            hwloc_bitmap_set(left, allowed->cpu[i]);
        int n_nodes = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_NUMANODE);
        for (int i = 0; i < n_nodes; i++)
            add_domain(m, t, hwloc_get_obj_by_type(t, HWLOC_OBJ_NUMANODE, (unsigned)i)->cpuset, left);
        add_domain(m, t, hwloc_get_root_obj(t)->cpuset, left); /* cores without memory of their own */
        hwloc_bitmap_free(left);
    }
    if (t)
        hwloc_topology_destroy(t);
    m->order.n = m->n;
    m->domain[m->n_domains] = m->n;
}

/* Part j of k of the cores [begin, end): whole physical cores as long as there are enough. */
static void cut(const struct machine *m, int begin, int end, int j, int k, struct cores *ret)
{
    int start[CPU_MAX + 1], n = 0;
    for (int i = begin; i < end; i++)
        if (i == begin || m->physical[i] != m->physical[i - 1])
            start[n++] = i;
    if (n < k)
        for (n = 0; n < end - begin; n++)
            start[n] = begin + n;
    start[n] = end;
    int from = start[(long)n * j / k], to = start[(long)n * (j + 1) / k];
    ret->n = to - from;
    for (int i = 0; i < ret->n; i++)
        ret->cpu[i] = m->order.cpu[from + i];
}

/* How many parts each domain takes: the next one goes where it will be largest, which makes the smallest one
 * as large as it can be. */
static void spread(const struct machine *m, int count, int *parts)
{
    for (int d = 0; d < m->n_domains; d++)
        parts[d] = 0;
    for (int i = 0; i < count; i++) {
        int best = 0;
        for (int d = 1; d < m->n_domains; d++)
            if ((m->domain[d + 1] - m->domain[d]) * (parts[best] + 1) >
                (m->domain[best + 1] - m->domain[best]) * (parts[d] + 1))
                best = d;
        parts[best]++;
    }
}

/* The domain at which part `index` begins: the boundary nearest to an even cut, and at least one for each. */
static int first_domain(const struct machine *m, int index, int count)
{
    int at = 0;
    for (int i = 1; i <= index; i++) {
        int low = at + 1, high = m->n_domains - (count - i);
        long want = (long)m->n * i / count;
        for (at = low; at < high && labs(m->domain[at + 1] - want) < labs(m->domain[at] - want);)
            at++;
    }
    return at;
}

void cores_share(const char *topology, const struct cores *allowed, int index, int count, struct cores *ret)
{
    struct machine *m;
    XNEW(m);
    machine_read(m, topology, allowed);
    ret->n = 0;
    if (count <= m->n && count < m->n_domains) {
        cut(m, m->domain[first_domain(m, index, count)], m->domain[first_domain(m, index + 1, count)], 0, 1,
            ret);
    } else if (count <= m->n) {
        int parts[CPU_MAX], d = 0;
        spread(m, count, parts);
        for (; index >= parts[d]; d++)
            index -= parts[d];
        cut(m, m->domain[d], m->domain[d + 1], index, parts[d], ret);
    }
    xfree(m);
}

void cores_bind(const struct cores *c, int ith, int nth)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < c->n; i++)
        if (nth != c->n || i == ith)
            CPU_SET(c->cpu[i], &set);
    if (c->n)
        sched_setaffinity(0, sizeof(set), &set);
}

static int by_number(const void *a, const void *b)
{
    return *(const uint16_t *)a - *(const uint16_t *)b;
}

void cores_print(const struct cores *c, char *buf, size_t n)
{
    struct cores sorted = *c;
    size_t len = 0;
    qsort(sorted.cpu, (size_t)c->n, sizeof(*c->cpu), by_number);
    snprintf(buf, n, "%s", c->n ? "" : "any");
    for (int i = 0, j; i < c->n && len < n; i = j) {
        for (j = i + 1; j < c->n && sorted.cpu[j] == sorted.cpu[j - 1] + 1;)
            j++;
        len += (size_t)snprintf(buf + len, n - len, j - i > 1 ? "%s%d-%d" : "%s%d", i ? "," : "",
                                sorted.cpu[i], sorted.cpu[j - 1]);
    }
}
