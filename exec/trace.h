/* trace.h: a rank's timeline: what each thread of its pool did when, kept in memory until the end.
 *
 * So it does for threads that read experts from disk (cache.h), each read being an event.
 *
 * Every thread has a buffer of its own, allocated whole before the first tick; adding an event reads a clock
 * and writes 24 bytes, and shares nothing with other threads. A full buffer keeps the beginning of the story:
 * further events are dropped and counted. Off means that there is no struct trace; the step loop then pays
 * one branch a step.
 *
 * At the end rank 0 collects all ranks' buffers over the comm, a thread at a time, and writes the Chrome
 * trace event format (JSON; https://ui.perfetto.dev and chrome://tracing open it): a process for each rank, a
 * track for each thread of its pool, complete events ("X") in microseconds from the first event on. Ticks
 * enclose their steps; the gap before a step is waiting at its barrier. Ranks of rank 0's host share its
 * clock; the clocks of other hosts are set by a barrier, so they are right to within the time a barrier takes
 * to reach all.
 */
#ifndef YOKE_EXEC_TRACE_H
#define YOKE_EXEC_TRACE_H

#include <stdio.h>
#include "base/clock.h"
#include "comm/comm.h"
#include "plan/plan.h"

#define TRACE_EVENTS (1 << 18) /* of a thread: 6 MiB; a thousand ticks of a model with 24 layers */
#define TRACE_TICK   (-1)
#define TRACE_READ   (-2) /* of an expert; minus its layer */

struct trace_event {
    int64_t begin_ns, ns;
    int32_t step; /* of the plan, TRACE_TICK, or TRACE_READ - layer */
    int32_t rows; /* that the step made; the tick's tokens; the expert's number */
};

struct trace_thread {
    struct trace_event *event; /* [TRACE_EVENTS] */
    size_t n, dropped;
    char pad[40]; /* a cache line each */
};

struct trace {
    const struct plan *plan;
    int n_threads, n_readers;
    struct trace_thread *thread; /* [n_threads]: the pool's, then n_readers */
};

int trace_new(const struct plan *p, int threads, int readers, struct trace **ret, struct err *e);
void trace_free(struct trace *t); /* NULL is fine */

/* An event of thread ith that began at begin_ns and ends now. */
static inline void trace_add(struct trace *t, int ith, int32_t step, int64_t begin_ns, int32_t rows)
{
    struct trace_thread *x = &t->thread[ith];
    if (x->n == TRACE_EVENTS)
        x->dropped++;
    else
        x->event[x->n++] = (struct trace_event){begin_ns, clock_ns() - begin_ns, step, rows};
}

/* Collective over c: rank 0 calls trace_write, all others trace_send. A file that cannot be written is rank
 * 0's error only, after all have sent. */
int trace_send(const struct trace *t, struct comm *c, struct err *e);
int trace_write(const struct trace *t, struct comm *c, FILE *f, struct err *e);

#endif
