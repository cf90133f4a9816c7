/* attend.c: attention of this rank's heads over the pages of the batch's sequences.
 *
 * Work is cut into tasks of (sequence, KV head, run of query tokens); the query heads that share a KV head
 * are taken together, so that each K and V row is read and widened once for all of them. Threads get
 * contiguous runs of tasks of about equal cost. A task's result depends on nothing outside it
 * (kernels/attention.h), so how tasks fall to threads cannot change a bit.
 */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "exec/internal.h"

struct task {
    const struct span *span;
    int32_t kv_head;         /* local */
    int32_t head, n_heads;   /* local query heads that use it */
    int32_t token, n_tokens; /* within the span */
};

struct layer {
    struct run *r;
    const struct slot *q, *kv, *out;
    int32_t window;
    float scale;
};

/* Calls fn's body for each run of positions [pos, end) that is contiguous in memory. */
static int32_t run_in_page(const struct run *r, int32_t pos, int32_t end)
{
    int32_t page_tokens = r->plan->opt.page_tokens;
    return MIN(end - pos, page_tokens - pos % page_tokens);
}

static const uint8_t *record(const struct layer *a, const struct task *t, int32_t pos, bool value)
{
    const struct plan *p = a->r->plan;
    const struct kv_form *f = &a->kv->kv;
    int32_t page = t->span->pages[pos / p->opt.page_tokens];
    size_t index = (size_t)t->kv_head * (size_t)p->opt.page_tokens + (size_t)(pos % p->opt.page_tokens);
    return kv_page(a->r, a->kv, page) + (value ? f->v_at + index * f->v_record : index * f->k_record);
}

static void one_block(const struct layer *a, const struct task *t, struct scratch *x, int32_t base, int32_t n)
{
    const struct attention_kernels *k = &a->r->k.attention;
    enum kv_dtype type = a->r->plan->opt.kv;
    const struct kv_form *f = &a->kv->kv;
    int32_t rows = t->n_tokens * t->n_heads, d = f->k_dim, v = f->v_dim;
    for (int32_t pos = base, len; pos < base + n; pos += len) {
        len = run_in_page(a->r, pos, base + n);
        k->scores[type](x->q, (size_t)d, rows, record(a, t, pos, false), f->k_record, len, d, a->scale,
                        x->s + (pos - base));
    }
    for (int32_t i = 0; i < rows; i++) {
        int32_t at = t->span->pos0 + t->token + i / t->n_heads;
        int32_t hi = MIN(n, at + 1 - base), lo = a->window ? MAX(0, at + 1 - a->window - base) : 0;
        float *s = x->s + (size_t)i * ATTN_BLOCK;
        if (lo < hi) {
            k->softmax(s, lo, hi, n, &x->m1[i], &x->l1[i]);
        } else {
            memset(s, 0, sizeof(float) * (size_t)n);
            x->l1[i] = 0; /* sees nothing of this block */
        }
    }
    memset(x->part, 0, sizeof(float) * (size_t)rows * (size_t)v);
    for (int32_t pos = base, len; pos < base + n; pos += len) {
        len = run_in_page(a->r, pos, base + n);
        k->values[type](x->s + (pos - base), rows, record(a, t, pos, true), f->v_record, len, v, x->part,
                        (size_t)v);
    }
    for (int32_t i = 0; i < rows; i++)
        if (x->l1[i] != 0)
            k->join(&x->m[i], &x->l[i], x->o + (size_t)i * (size_t)v, x->m1[i], x->l1[i],
                    x->part + (size_t)i * (size_t)v, v);
}

static void do_task(const struct layer *a, const struct task *t, struct scratch *x)
{
    const struct attention_kernels *k = &a->r->k.attention;
    int32_t d = a->kv->kv.k_dim, v = a->kv->kv.v_dim, rows = t->n_tokens * t->n_heads;
    int32_t first = t->span->pos0 + t->token, last = first + t->n_tokens - 1;
    for (int32_t i = 0; i < rows; i++) {
        const float *row = slot_row(a->r, a->q, t->span->first + t->token + i / t->n_heads);
        memcpy(x->q + (size_t)i * (size_t)d, row + (size_t)(t->head + i % t->n_heads) * (size_t)d,
               sizeof(float) * (size_t)d);
        x->m[i] = -INFINITY;
        x->l[i] = 0;
    }
    int32_t from = a->window ? MAX(0, first + 1 - a->window) : 0;
    for (int32_t base = from / ATTN_BLOCK * ATTN_BLOCK; base <= last; base += ATTN_BLOCK)
        one_block(a, t, x, base, MIN(ATTN_BLOCK, last + 1 - base));
    for (int32_t i = 0; i < rows; i++) {
        float *row = slot_row(a->r, a->out, t->span->first + t->token + i / t->n_heads);
        k->finish(x->o + (size_t)i * (size_t)v, x->l[i], v,
                  row + (size_t)(t->head + i % t->n_heads) * (size_t)v);
    }
}

/* The local query heads of local KV head kv: ranges of a split may begin or end inside a group. */
static void heads_of(const struct layer *a, int32_t kv, int32_t *ret_head, int32_t *ret_n)
{
    const struct plan *p = a->r->plan;
    int32_t share = p->graph->axis_n[AX_HEAD] / p->graph->axis_n[AX_KV_HEAD];
    struct range q = {0, p->graph->axis_n[AX_HEAD]}, k = {0, p->graph->axis_n[AX_KV_HEAD]};
    if (a->q->layout.kind == LAY_SPLIT)
        q = plan_part(p, AX_HEAD, p->opt.rank, p->opt.tp);
    if (a->kv->layout.kind == LAY_SPLIT)
        k = plan_part(p, AX_KV_HEAD, p->opt.rank, p->opt.tp);
    int32_t begin = MAX((k.begin + kv) * share, q.begin), end = MIN((k.begin + kv + 1) * share, q.end);
    *ret_head = begin - q.begin;
    *ret_n = MAX(end - begin, 0);
}

/* Scores and sums cost about tokens x context. */
static int64_t cost_of(const struct layer *a, const struct task *t)
{
    int64_t seen = t->span->pos0 + t->token + t->n_tokens;
    if (a->window)
        seen = MIN(seen, a->window + t->n_tokens);
    return (int64_t)t->n_tokens * t->n_heads * (seen + 32);
}

/* Walks all tasks in one fixed order; does those whose cost falls in [begin, end). Returns the total cost. */
static int64_t walk(const struct layer *a, struct scratch *x, int64_t begin, int64_t end)
{
    int64_t cost = 0;
    for (int32_t i = 0; i < a->r->batch->n_spans; i++)
        for (int32_t kv = 0; kv < a->kv->dim_n[0]; kv++) {
            struct task t = {.span = &a->r->batch->spans[i], .kv_head = kv};
            heads_of(a, kv, &t.head, &t.n_heads);
            if (!t.n_heads)
                continue;
            int32_t step = MAX(1, ATTEND_ROWS / t.n_heads);
            for (t.token = 0; t.token < t.span->n; t.token += step) {
                t.n_tokens = MIN(step, t.span->n - t.token);
                if (x && cost >= begin && cost < end)
                    do_task(a, &t, x);
                cost += cost_of(a, &t);
            }
        }
    return cost;
}

void step_attend(struct run *r, const struct step *s, int ith, int nth)
{
    const struct op *o = &r->plan->graph->ops[s->op];
    struct layer a = {.r = r,
                      .q = slot_of(r, s->in[0]),
                      .kv = slot_of(r, s->in[1]),
                      .out = slot_of(r, s->out),
                      .window = o->attend.window,
                      .scale = o->attend.scale};
    int64_t total = walk(&a, NULL, 0, 0);
    walk(&a, &r->scratch[ith], total * ith / nth, total * (ith + 1) / nth);
}
