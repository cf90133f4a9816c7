#include "tests/checkasm/checkasm.h"

#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"

static const struct {
    const char *name;
    void (*run)(struct check *c);
} tests[] = {
    {"rows", check_rows},
    {"attention", check_attention},
    {"matmul", check_matmul},
};

static const enum cpu_level levels[] = {
#if defined(__aarch64__)
    CPU_C,
    CPU_NEON,
    CPU_NEON_DOT,
#else
    CPU_C,
    CPU_AVX2,
    CPU_AVX512,
#endif
};

#define CANARY      64
#define MAX_REGIONS 64
#define BENCH_NS    300000 /* one repeat lasts at least this long */
#define BENCH_TIMES 12

struct region {
    uint8_t *map, *begin; /* begin: where the argument starts */
    size_t map_bytes, bytes;
};

struct seen { /* a slot's functions on the levels so far */
    const char *name;
    check_fn fn[ARRAY_LEN(levels)];
    int n;
};

struct check_state {
    const char *want;          /* --test: a family, or family.function, or the beginning of it */
    bool list, bench, matched; /* matched: some slot's name begins with want */
    uint64_t seed, random;

    enum cpu_level level;
    bool run_level; /* false: this level is only walked through so that its functions count as seen */
    const char *slot;
    bool slot_open, slot_failed;
    int passed, failed;

    struct seen *seen;
    int n_seen, cap_seen;
    struct region regions[MAX_REGIONS];
    int n_regions;
    size_t page;
};

/* For the signal handler. */
static struct check_state *current;

static void close_slot(struct check_state *s)
{
    if (!s->slot_open)
        return;
    if (s->level != CPU_C) {
        s->passed += !s->slot_failed;
        s->failed += s->slot_failed;
    }
    s->slot_open = false;
}

static bool wanted(const struct check_state *s, const char *name)
{
    return !s->want || !strncmp(name, s->want, strlen(s->want));
}

/* Whether no level before has had this function in this slot; remembers it. */
static bool is_new(struct check_state *s, const char *name, check_fn fn)
{
    int i = 0;
    while (i < s->n_seen && strcmp(s->seen[i].name, name))
        i++;
    if (i == s->n_seen) {
        XGROW(s->seen, s->n_seen, s->cap_seen);
        s->seen[s->n_seen++] = (struct seen){.name = name};
    }
    struct seen *seen = &s->seen[i];
    for (int j = 0; j < seen->n; j++)
        if (seen->fn[j] == fn)
            return false;
    seen->fn[seen->n++] = fn;
    return true;
}

static uint64_t hash(const char *name)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 1099511628211u;
    return h;
}

bool check_slot(struct check *c, check_fn reference, check_fn fn, const char *name)
{
    struct check_state *s = c->state;
    close_slot(s);
    if (!fn && reference) {
        s->slot = name;
        s->slot_open = true;
        s->slot_failed = false;
        check_fail(c, "this level left the slot empty");
        return false;
    }
    s->matched |= wanted(s, name);
    if (!fn || !is_new(s, name, fn) || !wanted(s, name) || !s->run_level)
        return false;
    if (s->list) {
        printf("%-8s %s\n", cpu_level_name(s->level), name);
        return false;
    }
    if (s->level == CPU_C && !s->bench)
        return false;
    s->slot = name;
    s->slot_open = true;
    s->slot_failed = false;
    s->random = s->seed ^ hash(name);
    return true;
}

bool check_ok(const struct check *c)
{
    return !c->state->slot_failed;
}

static void vfail(struct check *c, const char *what, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
static void vfail(struct check *c, const char *what, const char *fmt, va_list ap)
{
    struct check_state *s = c->state;
    if (!s->slot_failed) {
        printf("FAIL %s %s (--seed %llu): %s", cpu_level_name(s->level), s->slot, (unsigned long long)s->seed,
               what);
        vprintf(fmt, ap);
        printf("\n");
    }
    s->slot_failed = true;
}

void check_fail(struct check *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfail(c, "", fmt, ap);
    va_end(ap);
}

void same_bytes(struct check *c, const void *want, const void *got, size_t n, const char *fmt, ...)
{
    const uint8_t *w = want, *g = got;
    size_t i = 0;
    while (i < n && w[i] == g[i])
        i++;
    if (i == n)
        return;
    char what[128];
    snprintf(what, sizeof(what), "byte %zu of %zu: C has %02x, this %02x; ", i, n, w[i], g[i]);
    va_list ap;
    va_start(ap, fmt);
    vfail(c, what, fmt, ap);
    va_end(ap);
}

void same_floats(struct check *c, const float *want, const float *got, size_t n, const char *fmt, ...)
{
    size_t i = 0;
    while (i < n && (!memcmp(&want[i], &got[i], 4) || (want[i] != want[i] && got[i] != got[i])))
        i++;
    if (i == n)
        return;
    char what[160];
    snprintf(what, sizeof(what), "element %zu of %zu: C has %.9g (%a), this %.9g (%a); ", i, n,
             (double)want[i], (double)want[i], (double)got[i], (double)got[i]);
    va_list ap;
    va_start(ap, fmt);
    vfail(c, what, fmt, ap);
    va_end(ap);
}

/* splitmix64 */
uint64_t random_bits(struct check *c)
{
    uint64_t z = c->state->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int32_t random_int(struct check *c, int32_t lo, int32_t hi)
{
    return lo + (int32_t)(random_bits(c) % (uint64_t)((int64_t)hi - lo + 1));
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static float random_float(struct check *c, enum random_floats kind)
{
    uint64_t r = random_bits(c);
    uint32_t low = (uint32_t)r, high = (uint32_t)(r >> 32);
    if (kind == RANDOM_PLAIN) { /* sum of four uniform numbers in [-1, 1), scaled to variance 1 */
        int32_t sum = (int16_t)r + (int16_t)(r >> 16) + (int16_t)(r >> 32) + (int16_t)(r >> 48);
        return (float)sum * (0.8660254f / 32768.0f);
    }
    if (kind == RANDOM_WIDE) {
        if (high % 16 == 0)
            return high & 16 ? 0.0f : -0.0f;
        return from_bits((low & 0x807fffffu) | ((127u - 40 + high % 81) << 23));
    }
    if (kind == RANDOM_ANY && high % 8 == 0)
        return from_bits((low & 0x80000000u) | 0x7f800000u | (high & 8 ? 0 : low & 0x7fffffu));
    return from_bits((low & 0x7f800000u) == 0x7f800000u ? low & 0xbfffffffu : low);
}

void random_floats(struct check *c, enum random_floats kind, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(c, kind);
}

static uint8_t canary(size_t i)
{
    return (uint8_t)(0xa5 ^ (i * 29));
}

void *guarded(struct check *c, size_t bytes, size_t align)
{
    struct check_state *s = c->state;
    if (s->n_regions == MAX_REGIONS) {
        fprintf(stderr, "checkasm: more than %d guarded regions; is a guarded_end() missing?\n", MAX_REGIONS);
        exit(2);
    }
    size_t slack = random_bits(c) & 1 ? 0 : (size_t)random_int(c, 0, 15) * 4;
    size_t usable = ROUND_UP(bytes + slack + 2 * align + CANARY, s->page);
    struct region *r = &s->regions[s->n_regions++];
    r->map_bytes = usable + s->page;
    r->map = mmap(NULL, r->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->map == MAP_FAILED || mprotect(r->map + usable, s->page, PROT_NONE)) {
        perror("checkasm: mmap");
        exit(2);
    }
    r->bytes = bytes;
    uintptr_t at = ((uintptr_t)r->map + usable - bytes - slack) / align * align;
    if (at % (2 * align) == 0 && slack)
        at -= align; /* aligned no better than promised */
    r->begin = (uint8_t *)at;
    uint8_t *end = r->map + usable;
    for (uint8_t *p = r->begin - CANARY; p < end; p++) {
        size_t i = (size_t)(p - r->begin);
        *p = i < bytes ? (uint8_t)random_bits(c) : canary(i);
    }
    return r->begin;
}

void guarded_end(struct check *c)
{
    struct check_state *s = c->state;
    for (int k = 0; k < s->n_regions; k++) {
        struct region *r = &s->regions[k];
        uint8_t *end = r->map + r->map_bytes - s->page;
        for (uint8_t *p = r->begin - CANARY; p < end; p++) {
            size_t i = (size_t)(p - r->begin);
            if (i >= r->bytes && *p != canary(i))
                check_fail(c, "wrote outside its memory, %td bytes from the start of %zu", p - r->begin,
                           r->bytes);
        }
        munmap(r->map, r->map_bytes);
    }
    s->n_regions = 0;
}

bool bench_wanted(const struct check *c)
{
    return c->state->bench;
}

/* Doubles the number of calls until one repeat is long enough, then takes the least of BENCH_TIMES repeats:
 * interference only ever adds time. */
bool bench_next(struct check *c, struct bench *b, const char *what, double work, const char *unit)
{
    struct check_state *s = c->state;
    int64_t now = clock_ns();
    if (!s->bench || s->slot_failed)
        return false;
    if (!b->calls) {
        b->calls = 1;
    } else {
        double ns = (double)(now - b->start_ns);
        if (b->repeat == 0 && ns < BENCH_NS) {
            b->calls *= 2;
        } else {
            ns /= (double)b->calls;
            b->best_ns = b->repeat == 0 ? ns : fmin(b->best_ns, ns);
            b->repeat++;
        }
    }
    if (b->repeat == BENCH_TIMES) {
        printf("%-8s %-24s %-24s %12.1f ns %9.2f %s\n", cpu_level_name(s->level), s->slot, what, b->best_ns,
               work / b->best_ns, unit);
        fflush(stdout);
        return false;
    }
    b->start_ns = clock_ns();
    return true;
}

/* A kernel that reads past its arguments ends here. There is no way on; say where it was. */
static void on_crash(int sig)
{
    char text[256];
    int n = snprintf(text, sizeof(text), "FAIL %s %s (--seed %llu): %s\n", cpu_level_name(current->level),
                     current->slot ? current->slot : "?", (unsigned long long)current->seed,
                     sig == SIGILL ? "illegal instruction" : "touched memory beyond its arguments");
    if (write(STDOUT_FILENO, text, (size_t)n) < 0)
        _exit(2);
    _exit(1);
}

static const char usage[] =
    "usage: checkasm [options]\n"
    "Compares each CPU level's kernels with the portable C ones, bit by bit.\n"
    "  --list         print the kernels that differ from C, by level, and exit\n"
    "  --test NAME    only kernels whose name begins with NAME (\"rows\", \"attention.scores\", ...)\n"
    "  --level L      only this level (c, avx2, avx512, neon, neon_dot)\n"
    "  --seed N       random data to use; default: from the clock\n"
    "  --bench        time them too, C included\n";

int main(int argc, char **argv)
{
    struct check_state s = {.page = (size_t)sysconf(_SC_PAGESIZE), .seed = (uint64_t)clock_ns() % 1000000000};
    enum cpu_level only = CPU_C, native = cpu_level_native();
    bool only_one = false;
    static const struct option options[] = {
        {"list", no_argument, NULL, 'l'},
        {"test", required_argument, NULL, 't'},
        {"level", required_argument, NULL, 'L'},
        {"seed", required_argument, NULL, 's'},
        {"bench", no_argument, NULL, 'b'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        struct err e = {0};
        char *end;
        switch (o) {
        case 'l':
            s.list = true;
            break;
        case 't':
            s.want = optarg;
            break;
        case 'L':
            if (cpu_level_from_name(optarg, &only, &e)) {
                fprintf(stderr, "checkasm: %s\n", e.msg);
                return 2;
            }
            only_one = true;
            break;
        case 's':
            s.seed = strtoull(optarg, &end, 10);
            if (!*optarg || *end) {
                fprintf(stderr, "checkasm: --seed takes a number, not \"%s\"\n", optarg);
                return 2;
            }
            break;
        case 'b':
            s.bench = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (optind < argc) {
        fputs(usage, stderr);
        return 2;
    }
    current = &s;
    signal(SIGSEGV, on_crash);
    signal(SIGBUS, on_crash);
    signal(SIGILL, on_crash);

    struct check c = {.state = &s};
    kernels_init(&c.c, CPU_C);
    if (!s.list)
        printf("checkasm: %s, seed %llu\n", cpu_model_name(), (unsigned long long)s.seed);
    for (size_t i = 0; i < ARRAY_LEN(levels) && levels[i] <= native; i++) {
        s.level = levels[i];
        s.run_level = !only_one || only == s.level;
        kernels_init(&c.k, s.level);
        for (size_t t = 0; t < ARRAY_LEN(tests); t++) {
            tests[t].run(&c);
            close_slot(&s);
        }
    }
    xfree(s.seen);
    if (!s.matched) {
        fprintf(stderr, "checkasm: no kernel's name begins with \"%s\"; --list prints them\n", s.want);
        return 2;
    }
    if (!s.list)
        printf("%d passed, %d failed\n", s.passed, s.failed);
    return s.failed > 0;
}
