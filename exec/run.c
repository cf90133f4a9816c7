#include "exec/run.h"

#include <assert.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "exec/internal.h"

static void scratch_init(struct scratch *x, int32_t rows, int32_t d)
{
    size_t n = (size_t)rows;
    x->q = xaligned(64, sizeof(float) * n * (size_t)d);
    x->o = xaligned(64, sizeof(float) * n * (size_t)d);
    x->part = xaligned(64, sizeof(float) * n * (size_t)d);
    x->s = xaligned(64, sizeof(float) * n * ATTN_BLOCK);
    x->m = xaligned(64, sizeof(float) * n);
    x->l = xaligned(64, sizeof(float) * n);
    x->m1 = xaligned(64, sizeof(float) * n);
    x->l1 = xaligned(64, sizeof(float) * n);
}

static void scratch_release(struct scratch *x)
{
    float *const all[] = {x->q, x->o, x->part, x->s, x->m, x->l, x->m1, x->l1};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        xfree(all[i]);
}

int run_new(const struct plan *p, const struct weights *w, struct comm *comm, const struct run_options *o,
            struct run **ret, struct err *e)
{
    const struct graph *g = p->graph;
    struct run *r;
    XNEW(r);
    r->plan = p;
    r->weights = w;
    r->comm = comm;
    r->opt = *o;
    assert(comm->size == p->opt.tp && comm->rank == p->opt.rank);
    kernels_init(&r->k, o->level);
    int rc = pool_new(o->threads, o->crowded, o->cores, &r->pool, e);
    if (rc)
        goto fail;
    rc = ERR_MEMORY;
    r->work = big_alloc(p->work_bytes, "the work memory", e);
    if (!r->work)
        goto fail;
    r->kv_bytes = p->kv_page_bytes * (size_t)o->n_pages;
    r->kv = big_alloc(r->kv_bytes, "the KV cache", e);
    if (!r->kv)
        goto fail;
    XNEW_N(r->inv_freq, (size_t)g->n_ropes);
    for (int i = 0; i < g->n_ropes; i++) {
        XNEW_N(r->inv_freq[i], (size_t)g->ropes[i].rot);
        rope_frequencies(&g->ropes[i], r->inv_freq[i]);
    }
    XNEW_N(r->scratch, (size_t)o->threads);
    int32_t rows = g->axis_n[AX_KV_HEAD] ? MAX(ATTEND_ROWS, g->axis_n[AX_HEAD] / g->axis_n[AX_KV_HEAD]) : 0;
    int32_t width = MAX(g->axis_n[AX_HEAD_DIM], g->axis_n[AX_LATENT]);
    for (int i = 0; i < o->threads; i++)
        scratch_init(&r->scratch[i], rows, width);
    if (o->profile && g->axis_n[AX_EXPERT])
        XNEW_N(r->expert_load, (size_t)g->axis_n[AX_EXPERT]);
    if (o->trace) {
        rc = trace_new(p, o->threads, w->cache ? CACHE_READERS : 0, &r->trace, e);
        if (rc)
            goto fail;
        if (w->cache)
            expert_cache_trace(w->cache, r->trace, o->threads);
    }
    XNEW_N(r->fn, (size_t)p->n_steps);
    for (int i = 0; i < p->n_steps; i++)
        r->fn[i] = step_fn_of(p->steps[i].kind);
    *ret = r;
    return 0;
fail:
    run_free(r);
    return rc;
}

void run_free(struct run *r)
{
    if (!r)
        return;
    pool_free(r->pool);
    if (r->work)
        big_free(r->work, r->plan->work_bytes);
    if (r->kv)
        big_free(r->kv, r->kv_bytes);
    for (int i = 0; r->inv_freq && i < r->plan->graph->n_ropes; i++)
        xfree(r->inv_freq[i]);
    for (int i = 0; r->scratch && i < r->opt.threads; i++)
        scratch_release(&r->scratch[i]);
    xfree(r->inv_freq);
    xfree(r->scratch);
    xfree(r->fn);
    xfree(r->expert_load);
    if (r->trace && r->weights->cache)
        expert_cache_trace(r->weights->cache, NULL, 0);
    trace_free(r->trace);
    xfree(r);
}

/* What every member of the pool does in a tick: the whole executor. */
static void walk_steps(void *ctx, int ith, int nth)
{
    struct run *r = ctx;
    const struct plan *p = r->plan;
    bool timed = ith == 0 && r->opt.profile;
    int64_t before = timed ? clock_ns() : 0, tick = r->trace ? clock_ns() : 0, since = 0;
    alloc_guard_begin();
    for (int32_t i = 0; i < p->n_steps; i++) {
        const struct step *s = &p->steps[i];
        if (s->barrier)
            pool_barrier(r->pool);
        if (r->trace)
            since = clock_ns();
        r->fn[i](r, s, ith, nth);
        if (r->trace && !(ith && s->share == SHARE_ONE)) /* the others have no part in it */
            trace_add(r->trace, ith, i, since, s->out < 0 ? 0 : slot_rows(r, slot_of(r, s->out)));
        if (timed) {
            int64_t now = clock_ns();
            r->step_ns[s->kind] += (uint64_t)(now - before);
            before = now;
        }
    }
    if (r->trace)
        trace_add(r->trace, ith, TRACE_TICK, tick, r->batch->n_tokens);
    alloc_guard_end();
}

int run_tick(struct run *r, const struct batch *b, const float **ret_logits, struct err *e)
{
    assert((b->n_tokens > 0 || plan_spreads(r->plan)) && b->n_tokens <= r->plan->opt.max_tokens &&
           b->n_out <= r->plan->opt.max_out);
    r->batch = b;
    r->err.code = 0;
    int64_t before = r->opt.profile ? clock_ns() : 0;
    pool_run(r->pool, walk_steps, r);
    if (r->opt.profile)
        r->tick_ns += (uint64_t)(clock_ns() - before);
    r->ticks++;
    if (r->err.code) {
        if (e)
            *e = r->err;
        return r->err.code;
    }
    *ret_logits = r->plan->logits < 0 ? NULL : slot_row(r, slot_of(r, r->plan->logits), 0);
    return 0;
}

void run_report(const struct run *r, struct run_report *ret)
{
    *ret = (struct run_report){.weight_bytes = weights_net_bytes(r->weights),
                               .kv_bytes = r->kv_bytes,
                               .work_bytes = r->plan->work_bytes,
                               .ticks = r->ticks,
                               .tick_ns = r->tick_ns};
    memcpy(ret->step_ns, r->step_ns, sizeof(ret->step_ns));
    if (r->weights->cache)
        expert_cache_stats(r->weights->cache, &ret->cache);
    for (int32_t i = 0; r->expert_load && i < r->plan->graph->axis_n[AX_EXPERT]; i++)
        ret->pairs += r->expert_load[i];
}

const uint64_t *run_expert_load(const struct run *r)
{
    return r->expert_load;
}

struct trace *run_trace(struct run *r)
{
    return r->trace;
}
