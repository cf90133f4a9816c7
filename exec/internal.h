/* internal.h: what the executor's files share. Private to exec/. */
#ifndef YOKE_EXEC_INTERNAL_H
#define YOKE_EXEC_INTERNAL_H

#include "exec/pool.h"
#include "exec/run.h"
#include "kernels/kernels.h"

#define ATTEND_ROWS 64 /* query vectors of one attention task, at least one token's */

/* One thread's attention buffers. */
struct scratch {
    float *q, *o, *part;    /* [rows, head_dim] */
    float *s;               /* [rows, ATTN_BLOCK] */
    float *m, *l, *m1, *l1; /* [rows] */
};

typedef void step_fn(struct run *r, const struct step *s, int ith, int nth);

struct run {
    const struct plan *plan;
    const struct weights *weights;
    struct comm *comm;
    struct run_options opt;
    struct kernels k;
    struct pool *pool;
    uint8_t *work; /* plan->work_bytes */
    uint8_t *kv;   /* see kv_page */
    size_t kv_bytes;
    float **inv_freq;          /* by rope */
    struct scratch *scratch;   /* by thread */
    step_fn **fn;              /* by step */
    const struct batch *batch; /* of the tick in progress */
    /* spread experts: rows to and from each rank of the group, of the layer in progress */
    size_t spread_send[PLAN_MAX_RANKS], spread_recv[PLAN_MAX_RANKS];
    int32_t n_pairs;       /* rows of AX_PAIR: written by the layer's expert_sort, before a barrier */
    uint64_t *expert_load; /* [experts]: pairs computed here; NULL without profile */
    struct err err;        /* written by member 0 only: the tick's first communication error */
    uint64_t ticks, step_ns[STEP_KINDS], tick_ns;
    struct trace *trace; /* NULL: none wanted */
};

static inline int32_t slot_rows(const struct run *r, const struct slot *s)
{
    return s->row_axis == AX_OUT ? r->batch->n_out : s->row_axis == AX_PAIR ? r->n_pairs : r->batch->n_tokens;
}
static inline const struct slot *slot_of(const struct run *r, int32_t i)
{
    return &r->plan->slots[i];
}
static inline void *slot_row(const struct run *r, const struct slot *s, int32_t row)
{
    return r->work + s->offset + s->row_bytes * (size_t)row;
}
static inline const struct wmat *slot_mat(const struct run *r, const struct slot *s)
{
    return r->weights->mat[s->weight];
}
/* Page after page, each with all layers: what is touched first is what is used, though the system zeroes
 * memory in pieces of 2 MiB (with layer after layer, a prompt of 500 tokens in a context of 8192 had it zero
 * ten times what it filled). A layer's part is K then V, [kv heads][page_tokens] records each (plan.h:
 * kv_form). */
static inline uint8_t *kv_page(const struct run *r, const struct slot *kv, int32_t page)
{
    return r->kv + r->plan->kv_page_bytes * (size_t)page + kv->offset;
}

step_fn *step_fn_of(int kind); /* steps.c */
#define ROUTE_MAX_EXPERTS 1024
step_fn step_expert_spread, step_expert_exchange, step_expert_return, step_expert_join;
step_fn step_route, step_gate, step_expert_sort, step_expert_gather, step_expert_up, step_expert_down,
    step_expert_combine; /* experts.c */
step_fn step_attend;     /* attend.c */
step_fn step_send, step_recv, step_allreduce, step_reduce_scatter, step_allgather, step_alltoall,
    step_slice; /* collect.c */

#endif
