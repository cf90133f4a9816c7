/* pool.h: persistent threads that run one function together, and meet at barriers inside it.
 *
 * The thread that made the pool is member 0 and takes part. Waiting is spinning for a bounded time, then
 * yielding, then (between runs only) sleeping in the kernel: a pool between two ticks of an idle server costs
 * nothing. With more threads than cores nobody spins.
 */
#ifndef YOKE_EXEC_POOL_H
#define YOKE_EXEC_POOL_H

#include <stdbool.h>
#include "base/cpu.h"
#include "base/err.h"

struct pool;
typedef void pool_fn(void *ctx, int ith, int nth);

/* n: members, the caller included. crowded: there are more threads than cores on this machine. cores: what
 * members are bound to, each to its own if there are n; NULL: as the caller. The caller itself stays as it
 * is: threads that it makes elsewhere inherit what it is bound to. */
int pool_new(int n, bool crowded, const struct cores *cores, struct pool **ret, struct err *e);
void pool_free(struct pool *p); /* NULL is fine; only by member 0 */
int pool_size(const struct pool *p);

/* Runs fn(ctx, ith, nth) on all members; returns when all are done. Only by member 0, not from inside a run.
 */
void pool_run(struct pool *p, pool_fn *fn, void *ctx);
/* All members meet. Only from inside a run, by every member alike. */
void pool_barrier(struct pool *p);

/* Member ith's part of n items: contiguous, sizes differ by at most one. */
static inline void pool_share(int n, int ith, int nth, int *ret_begin, int *ret_end)
{
    *ret_begin = (int)((long long)n * ith / nth);
    *ret_end = (int)((long long)n * (ith + 1) / nth);
}

#endif
