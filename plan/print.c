#include "base/mem.h"
#include "graph/print.h"
#include "plan/plan.h"

static void print_layout(struct layout l, struct buf *out)
{
    static const char *const kinds[] = {"whole", "split", "partial"};
    buf_adds(out, kinds[l.kind]);
    if (l.kind == LAY_SPLIT)
        buf_addf(out, "(%s)", axis_name(l.axis));
}

/* Slots count from the first one of their layer, so that equal layers print equally. */
static void print_slot(const struct plan *p, int32_t i, int32_t base, struct buf *out)
{
    const struct slot *s = &p->slots[i];
    if (s->kind == SLOT_WEIGHT) {
        const struct plan_weight *w = &p->weights[s->weight];
        buf_adds(out, print_short_name(w->name));
        if (w->stacked)
            buf_addf(out, "[%d..%d]", w->stack.begin, w->stack.end);
        if (w->matrix)
            buf_addf(out, "[%s %dx%d of %lldx%lld ", dtype_name(w->dtype), range_n(w->row), range_n(w->col),
                     (long long)w->all_rows, (long long)w->all_cols);
        else
            buf_addf(out, "[%d of %lld ", range_n(w->col), (long long)w->all_cols);
        print_layout(s->layout, out);
        buf_addc(out, ']');
        return;
    }
    if (s->kind == SLOT_KV) {
        buf_addf(out, "kv[%d heads ", s->dim_n[0]);
        print_layout(s->layout, out);
        buf_addc(out, ']');
        return;
    }
    buf_addf(out, "%%%d", i - base);
    if (s->act.kind != ACT_F32)
        buf_adds(out, s->act.kind == ACT_Q32 ? "q32" : "qc");
    buf_addf(out, "[%s", axis_name(s->row_axis));
    for (int d = 0; d < s->n_dims; d++)
        buf_addf(out, ",%s=%d", axis_name(s->dim[d]), s->dim_n[d]);
    buf_addc(out, ' ');
    print_layout(s->layout, out);
    buf_addc(out, ']');
}

static int32_t first_slot(const struct plan *p, int32_t from, int32_t to)
{
    int32_t base = INT32_MAX;
    for (int32_t i = from; i < to; i++)
        base = MIN(base, p->steps[i].out);
    return base;
}

static void print_steps(const struct plan *p, int32_t from, int32_t to, struct buf *out)
{
    static const char shares[] = {'1', 'r', 'c', 'h'};
    int32_t base = first_slot(p, from, to);
    for (int32_t i = from; i < to; i++) {
        const struct step *s = &p->steps[i];
        buf_addf(out, "  %c%c %-14s ", s->barrier ? '|' : ' ', shares[s->share], step_name(s->kind));
        print_slot(p, s->out, base, out);
        buf_adds(out, " <-");
        for (int k = 0; k < STEP_MAX_IN; k++)
            if (s->in[k] >= 0 && !(s->kind == OP_ROPE && k == 2)) {
                buf_addc(out, ' ');
                print_slot(p, s->in[k], base, out);
            }
        if (plan_step_bytes(p, s, 1))
            buf_addf(out, "  %zu bytes a row", plan_step_bytes(p, s, 1));
        if (plan_spread_bytes(p, s))
            buf_addf(out, "  %zu bytes a token", plan_spread_bytes(p, s));
        buf_addc(out, '\n');
    }
}

void plan_print_experts(const struct plan *p, struct buf *out)
{
    int slices = plan_expert_slices(p);
    if (!p->graph->axis_n[AX_EXPERT] || p->opt.ep * slices == 1)
        return;
    buf_addf(out, "in %d group%s of %d rank%s, ", p->opt.ep, p->opt.ep > 1 ? "s" : "", slices,
             slices > 1 ? "s" : "");
    if (plan_spreads(p))
        buf_addf(out, "over all %d replicas, whose ticks go together", p->opt.dp);
    else
        buf_adds(out, p->opt.dp > 1 ? "within each replica" : "all in one replica");
}

void plan_print(const struct plan *p, struct buf *out)
{
    struct buf experts = BUF_INIT;
    if (p->opt.pp > 1)
        buf_addf(out, "stage %d of %d, layers %d to %d; ", p->opt.stage, p->opt.pp, p->layers.begin,
                 p->layers.end - 1);
    if (plan_spreads(p))
        buf_addf(out, "replica %d of %d, ", p->opt.lane, p->opt.dp);
    plan_print_experts(p, &experts);
    buf_addf(out, "rank %d of %d; ", p->opt.rank, p->opt.tp);
    if (experts.len)
        buf_addf(out, "experts %s; ", experts.s);
    buf_addf(out, "bits %s\n", p->bits_equal ? "as on one rank" : p->why_not);
    buf_release(&experts);
    struct print_layers layers = PRINT_LAYERS_INIT;
    for (int32_t i = 0, end; i < p->n_steps; i = end) {
        for (end = i + 1; end < p->n_steps && p->steps[end].layer == p->steps[i].layer;)
            end++;
        print_steps(p, i, end, &layers.text);
        print_layer(&layers, p->steps[i].layer, out);
    }
    print_layers_end(&layers, out);
    buf_addf(out, "weights %zu bytes, work %zu bytes, KV %zu bytes a token\n", p->weight_bytes, p->work_bytes,
             plan_kv_token_bytes(p));
}
