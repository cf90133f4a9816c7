/* run.h: a plan at work: buffers, KV pages, threads, counters. The mutable one of the three objects
 * (ARCHITECTURE.md, section 3).
 *
 * A run belongs to one thread (its pool's member 0), which feeds it ticks: each runs the whole plan over one
 * batch, a ragged set of sequences' next tokens. Threads walk the plan's steps in order and meet where the
 * plan says so. Nothing is allocated in a tick (guarded in debug builds). The plan, the weights and the comm
 * are borrowed and must outlive the run.
 */
#ifndef YOKE_EXEC_RUN_H
#define YOKE_EXEC_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include "base/cpu.h"
#include "comm/comm.h"
#include "exec/trace.h"
#include "exec/weights.h"
#include "plan/plan.h"

/* One sequence's part of a batch: n new tokens at positions pos0.. in rows first.. of the batch. pages covers
 * positions 0 to pos0 + n - 1: page i holds positions [i * page_tokens, (i + 1) * page_tokens). */
struct span {
    int32_t first, n, pos0, n_pages;
    const int32_t *pages;
};

/* What one tick computes. All ids and positions have been checked by the engine. */
struct batch {
    int32_t n_tokens, n_out, n_spans;
    const int32_t *token;     /* [n_tokens] */
    const int32_t *pos;       /* [n_tokens] */
    const int32_t *out_row;   /* [n_out]: rows whose logits are wanted, increasing */
    const struct span *spans; /* rows in order, covering [0, n_tokens) */
};

struct run_options {
    int threads;
    bool crowded;              /* more threads on this machine than cores */
    const struct cores *cores; /* what threads are bound to; NULL: nothing. Not kept */
    enum cpu_level level;
    int32_t n_pages;      /* of KV, per layer */
    bool profile;         /* time each kind of step */
    bool trace;           /* keep a timeline of every step: run_trace */
    struct comm *pipe;    /* over all ranks, for what goes between pipeline stages; NULL without */
    struct comm *experts; /* over the ranks that experts are spread over; NULL if they are not */
    int from, to;         /* ranks in it: the same place in the previous and in the next stage */
};

struct run;
int run_new(const struct plan *p, const struct weights *w, struct comm *comm, const struct run_options *o,
            struct run **ret, struct err *e);
void run_free(struct run *r); /* NULL is fine */

/* One pass over the plan. *ret_logits: [n_out, vocab], valid until the next tick; NULL but in the last stage.
 * Fails only if another rank is lost. */
int run_tick(struct run *r, const struct batch *b, const float **ret_logits, struct err *e);

struct run_report {
    size_t weight_bytes, kv_bytes, work_bytes;
    uint64_t ticks, step_ns[STEP_KINDS]; /* as member 0 saw it; zeros without profile */
    uint64_t tick_ns;                    /* in ticks, all in all; zero without profile */
    uint64_t pairs;                      /* (token, expert) computed here; zero without profile */
    struct expert_cache_stats cache;     /* zeros without one */
};
void run_report(const struct run *r, struct run_report *ret);
/* [experts]: pairs computed here of each expert, all layers; NULL without experts or profile. */
const uint64_t *run_expert_load(const struct run *r);
struct trace *run_trace(struct run *r); /* NULL unless asked for */

/* inv_freq[i] of rope r, i < rot / 2, as transformers' modeling_rope_utils computes them (in float, as it
 * does). */
void rope_frequencies(const struct rope *r, float *inv_freq);

#endif
