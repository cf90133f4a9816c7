/* steps.c: one function a kind of step: which rows or columns are this thread's, and the kernel that does
 * them. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "exec/internal.h"

static void my_rows(const struct run *r, const struct slot *s, int ith, int nth, int *ret_begin, int *ret_end)
{
    pool_share(slot_rows(r, s), ith, nth, ret_begin, ret_end);
}

/* This thread's rows and columns of a row under the step's manner of sharing. */
struct part {
    int row0, row1, col0, col1;
};

static struct part my_part(const struct run *r, const struct step *s, const struct slot *out, int ith,
                           int nth)
{
    struct part x = {0, slot_rows(r, out), 0, out->width};
    if (s->share == SHARE_COLS) {
        int p0, p1;
        pool_share((out->width + WMAT_PANEL - 1) / WMAT_PANEL, ith, nth, &p0, &p1);
        x.col0 = MIN(p0 * WMAT_PANEL, out->width);
        x.col1 = MIN(p1 * WMAT_PANEL, out->width);
    } else {
        pool_share(x.row1, ith, nth, &x.row0, &x.row1);
    }
    return x;
}

/* A rank that holds some rows of the table yields zeros for tokens of the others: the sum over ranks is the
 * row. The + 0 makes -0 into +0, as that sum does on any number of ranks. */
static void step_embed(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *out = slot_of(r, s->out), *table = slot_of(r, s->in[0]);
    const struct plan_weight *w = &r->plan->weights[table->weight];
    int begin, end;
    my_rows(r, out, ith, nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        float *y = slot_row(r, out, i);
        int32_t id = r->batch->token[i];
        if (id < w->row.begin || id >= w->row.end) {
            memset(y, 0, out->row_bytes);
            continue;
        }
        wmat_row(slot_mat(r, table), id - w->row.begin, y);
        for (int32_t k = 0; k < out->width; k++)
            y[k] += 0.0f;
    }
}

static void step_quantize(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out);
    int begin, end;
    my_rows(r, out, ith, nth, &begin, &end);
    for (int i = begin; i < end; i++)
        r->k.matmul.quantize(&out->act, slot_row(r, in, i), slot_row(r, out, i));
}

static void step_matmul(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *w = slot_of(r, s->in[1]), *out = slot_of(r, s->out);
    const struct wmat *m = slot_mat(r, w);
    int p0, p1;
    pool_share(m->n_panels, ith, nth, &p0, &p1);
    if (p0 < p1 && slot_rows(r, out))
        r->k.matmul.mul[m->dtype](m, slot_row(r, in, 0), in->row_bytes, slot_rows(r, out), p0, p1,
                                  slot_row(r, out, 0), (size_t)out->width);
}

/* The second term is a value of the same shape, or a weight over the last axes that repeats along the row. */
static void step_add(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *a = slot_of(r, s->in[0]), *b = slot_of(r, s->in[1]), *out = slot_of(r, s->out);
    struct part x = my_part(r, s, out, ith, nth);
    for (int i = x.row0; i < x.row1; i++) {
        const float *p = slot_row(r, a, i);
        float *y = slot_row(r, out, i);
        if (b->kind == SLOT_WORK) {
            const float *q = slot_row(r, b, i);
            r->k.rows.add(p + x.col0, q + x.col0, x.col1 - x.col0, y + x.col0);
            continue;
        }
        const float *q = r->weights->vec[b->weight];
        for (int at = x.col0, n; at < x.col1; at += n) {
            int phase = at % b->width;
            n = MIN(x.col1 - at, b->width - phase);
            r->k.rows.add(p + at, q + phase, n, y + at);
        }
    }
}

static void step_glu(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *a = slot_of(r, s->in[0]), *b = slot_of(r, s->in[1]), *out = slot_of(r, s->out);
    struct part x = my_part(r, s, out, ith, nth);
    int kind = r->plan->graph->ops[s->op].glu;
    for (int i = x.row0; i < x.row1; i++)
        r->k.rows.glu[kind]((const float *)slot_row(r, a, i) + x.col0,
                            (const float *)slot_row(r, b, i) + x.col0, x.col1 - x.col0,
                            (float *)slot_row(r, out, i) + x.col0);
}

static void step_rms_norm(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *w = slot_of(r, s->in[1]), *out = slot_of(r, s->out);
    float eps = r->plan->graph->ops[s->op].eps;
    int begin, end;
    my_rows(r, out, ith, nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        const float *x = slot_row(r, in, i);
        float *y = slot_row(r, out, i);
        for (int32_t at = 0; at < out->width; at += w->width)
            r->k.rows.rms_norm(x + at, r->weights->vec[w->weight], w->width, eps, y + at);
    }
}

/* Angles as transformers has them: the float product of position and inverse frequency, its cosine, times the
 * scaling's attention factor. */
static void step_rope_table(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *out = slot_of(r, s->out);
    const struct rope *rope = &r->plan->graph->ropes[s->rope];
    int half = rope->rot / 2, begin, end;
    float factor = (float)rope->attention_factor;
    my_rows(r, out, ith, nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        float *cos_at = slot_row(r, out, i), *sin_at = cos_at + half, pos = (float)r->batch->pos[i];
        for (int k = 0; k < half; k++) {
            double angle = (double)(pos * r->inv_freq[s->rope][k]);
            cos_at[k] = (float)cos(angle) * factor;
            sin_at[k] = (float)sin(angle) * factor;
        }
    }
}

/* Heads are contiguous; with an offset each is rotated on its own. */
static void rotate(const struct run *r, const struct rope *rope, float *y, int32_t n_heads, int32_t head,
                   int32_t offset, const float *cs)
{
    void (*f)(float *, int32_t, int32_t, int32_t, const float *, const float *) =
        rope->interleaved ? r->k.rows.rope_pairs : r->k.rows.rope_half;
    if (!offset) {
        f(y, n_heads, head, rope->rot, cs, cs + rope->rot / 2);
        return;
    }
    for (int32_t h = 0; h < n_heads; h++)
        f(y + (size_t)h * (size_t)head + offset, 1, rope->rot, rope->rot, cs, cs + rope->rot / 2);
}

static void step_rope(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *table = slot_of(r, s->in[2]), *out = slot_of(r, s->out);
    const struct op *o = &r->plan->graph->ops[s->op];
    const struct rope *rope = &r->plan->graph->ropes[o->rope.id];
    int32_t head = out->dim_n[out->n_dims - 1];
    int begin, end;
    my_rows(r, out, ith, nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        float *y = slot_row(r, out, i);
        const float *cs = slot_row(r, table, i);
        if (in->root != out->root)
            memcpy(y, slot_row(r, in, i), out->row_bytes);
        rotate(r, rope, y, out->width / head, head, o->rope.offset, cs);
    }
}

static void step_kv_append(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *k = slot_of(r, s->in[0]), *v = s->in[1] >= 0 ? slot_of(r, s->in[1]) : k,
                      *kv = slot_of(r, s->out);
    const struct kv_form *f = &kv->kv;
    int32_t page_tokens = r->plan->opt.page_tokens;
    void (*store)(const float *, int32_t, void *) = r->k.rows.kv_store[r->plan->opt.kv];
    int begin, end;
    my_rows(r, k, ith, nth, &begin, &end);
    const struct span *span = r->batch->spans;
    for (int i = begin; i < end; i++) {
        while (i >= span->first + span->n)
            span++;
        int32_t pos = r->batch->pos[i];
        uint8_t *page = kv_page(r, kv, span->pages[pos / page_tokens]);
        const float *kx = slot_row(r, k, i), *vx = slot_row(r, v, i);
        for (int32_t h = 0; h < kv->dim_n[0]; h++) {
            size_t at = (size_t)h * (size_t)page_tokens + (size_t)(pos % page_tokens);
            store(kx + (size_t)h * (size_t)f->k_dim, f->k_dim, page + at * f->k_record);
            if (f->v_at)
                store(vx + (size_t)h * (size_t)f->v_dim, f->v_dim, page + f->v_at + at * f->v_record);
        }
    }
}

static void step_norm_part(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *w = slot_of(r, s->in[1]), *out = slot_of(r, s->out);
    float eps = r->plan->graph->ops[s->op].eps;
    int begin, end;
    my_rows(r, out, ith, nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        float *y = slot_row(r, out, i);
        if (in->root != out->root)
            memcpy(y, slot_row(r, in, i), out->row_bytes);
        r->k.rows.rms_norm(y, r->weights->vec[w->weight], w->width, eps, y);
    }
}

/* One matrix a head, all rows of the tick: threads share out the heads' panels, as matmul does. What x has
 * beyond the matrix's columns is copied behind the product (absorb). */
static void step_heads(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *w = slot_of(r, s->in[1]), *out = slot_of(r, s->out);
    const struct wmat *m = slot_mat(r, w);
    int32_t n_in = in->dim_n[1], n_out = out->dim_n[1], rows = slot_rows(r, in), rest = n_out - m->rows;
    int begin, end;
    pool_share(in->dim_n[0] * m->n_panels, ith, nth, &begin, &end);
    for (int at = begin, h, p0, p1; at < end; at += p1 - p0) {
        h = at / m->n_panels;
        p0 = at % m->n_panels;
        p1 = MIN(m->n_panels, p0 + end - at);
        const float *x = (const float *)slot_row(r, in, 0) + (size_t)h * (size_t)n_in;
        float *y = (float *)slot_row(r, out, 0) + (size_t)h * (size_t)n_out;
        r->k.matmul.mul[m->dtype](m + h, x, in->row_bytes, rows, p0, p1, y, (size_t)out->width);
        for (int32_t i = 0; i < rows && p0 == 0 && rest > 0; i++)
            memcpy(y + (size_t)i * (size_t)out->width + m->rows,
                   x + (size_t)i * (size_t)in->width + (n_in - rest), sizeof(float) * (size_t)rest);
    }
}

static void step_select(struct run *r, const struct step *s, int ith, int nth)
{
    const struct slot *in = slot_of(r, s->in[0]), *out = slot_of(r, s->out);
    int begin, end;
    my_rows(r, out, ith, nth, &begin, &end);
    for (int i = begin; i < end; i++)
        memcpy(slot_row(r, out, i), slot_row(r, in, r->batch->out_row[i]), out->row_bytes);
}

step_fn *step_fn_of(int kind)
{
    static step_fn *const fns[STEP_KINDS] = {
        [OP_EMBED] = step_embed,
        [OP_MATMUL] = step_matmul,
        [OP_ADD] = step_add,
        [OP_RMS_NORM] = step_rms_norm,
        [OP_ROPE] = step_rope,
        [OP_KV_APPEND] = step_kv_append,
        [OP_ATTEND] = step_attend,
        [OP_GLU] = step_glu,
        [OP_SELECT] = step_select,
        [OP_ROUTE] = step_route,
        [OP_GATE] = step_gate,
        [OP_NORM_PART] = step_norm_part,
        [OP_ABSORB] = step_heads,
        [OP_EXPAND] = step_heads,
        [STEP_EXPERT_SORT] = step_expert_sort,
        [STEP_EXPERT_GATHER] = step_expert_gather,
        [STEP_EXPERT_UP] = step_expert_up,
        [STEP_EXPERT_DOWN] = step_expert_down,
        [STEP_EXPERT_COMBINE] = step_expert_combine,
        [STEP_EXPERT_SPREAD] = step_expert_spread,
        [STEP_EXPERT_EXCHANGE] = step_expert_exchange,
        [STEP_EXPERT_RETURN] = step_expert_return,
        [STEP_EXPERT_JOIN] = step_expert_join,
        [OP_SEND] = step_send,
        [OP_RECV] = step_recv,
        [OP_ALLREDUCE] = step_allreduce,
        [OP_REDUCE_SCATTER] = step_reduce_scatter,
        [OP_ALLGATHER] = step_allgather,
        [OP_ALLTOALL] = step_alltoall,
        [OP_SLICE] = step_slice,
        [STEP_QUANTIZE] = step_quantize,
        [STEP_ROPE_TABLE] = step_rope_table,
    };
    return fns[kind];
}
