#include "exec/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/mem.h"

#if defined(__x86_64__)
#define relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define relax() __asm__ volatile("yield")
#else
#define relax() ((void)0)
#endif

struct member {
    struct pool *pool;
    pthread_t thread;
    int ith;
};

/* Ownership: fn and ctx are written by member 0 while no run is in progress and read by members after they
 * see `round` change (release/acquire). `arrived` counts members at the barrier in progress; the last one
 * resets it and bumps `phase`. */
struct pool {
    int n, want, spin;  /* members that run; that were asked for */
    struct cores cores; /* read by members as they start */
    struct member *members;
    pool_fn *fn;
    void *ctx;
    _Atomic unsigned round; /* futex word: bumped once a run, and once to quit */
    _Atomic int sleepers;   /* members asleep on it */
    _Atomic bool quit;
    _Alignas(64) _Atomic int arrived;
    _Alignas(64) _Atomic unsigned phase;
};

static void sleep_while(_Atomic unsigned *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_all(_Atomic unsigned *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void pool_barrier(struct pool *p)
{
    if (p->n == 1)
        return;
    unsigned phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == p->n - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&p->phase, phase + 1, memory_order_release);
        return;
    }
    for (int i = 0; atomic_load_explicit(&p->phase, memory_order_acquire) == phase; i++) {
        if (i < p->spin)
            relax();
        else
            sched_yield();
    }
}

/* Between runs: spin about as long as a token's gap is, yield a little, then sleep. */
static void wait_for_round(struct pool *p, unsigned seen)
{
    for (int i = 0; i < p->spin * 8 + 64; i++) {
        if (atomic_load_explicit(&p->round, memory_order_acquire) != seen)
            return;
        if (i < p->spin * 8)
            relax();
        else
            sched_yield();
    }
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load_explicit(&p->round, memory_order_acquire) == seen)
        sleep_while(&p->round, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct pool *p = m->pool;
    cores_bind(&p->cores, m->ith, p->want);
    for (unsigned seen = 0;; seen++) {
        wait_for_round(p, seen);
        if (atomic_load_explicit(&p->quit, memory_order_acquire))
            return NULL;
        p->fn(p->ctx, m->ith, p->n);
        pool_barrier(p);
    }
}

static void start_round(struct pool *p)
{
    atomic_fetch_add(&p->round, 1); /* seq_cst: ordered against the read of sleepers below */
    if (atomic_load(&p->sleepers))
        wake_all(&p->round);
}

void pool_run(struct pool *p, pool_fn *fn, void *ctx)
{
    p->fn = fn;
    p->ctx = ctx;
    if (p->n > 1)
        start_round(p);
    fn(ctx, 0, p->n);
    pool_barrier(p);
}

int pool_new(int n, bool crowded, const struct cores *cores, struct pool **ret, struct err *e)
{
    struct pool *p = xaligned(64, sizeof(*p));
    p->spin = crowded ? 0 : 4000;
    XNEW_N(p->members, (size_t)n);
    p->n = 1;
    p->want = n;
    if (cores)
        p->cores = *cores;
    /* signals (Ctrl-C) go to the thread that made the pool */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 1; i < n; i++) {
        p->members[i] = (struct member){.pool = p, .ith = i};
        int rc = pthread_create(&p->members[i].thread, NULL, member_main, &p->members[i]);
        if (rc) {
            pthread_sigmask(SIG_SETMASK, &old, NULL);
            pool_free(p);
            return err_set(e, ERR_FAIL, "cannot start thread %d of %d (error %d); fewer threads: --threads",
                           i + 1, n, rc);
        }
        p->n = i + 1;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    *ret = p;
    return 0;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store_explicit(&p->quit, true, memory_order_release);
    start_round(p);
    for (int i = 1; i < p->n; i++)
        pthread_join(p->members[i].thread, NULL);
    xfree(p->members);
    xfree(p);
}

int pool_size(const struct pool *p)
{
    return p->n;
}
