#include <string.h>
#include "graph/graph.h"

/* A weight's name without its layer: "model.layers.3.mlp.up_proj.weight" -> "mlp.up_proj.weight". */
static const char *short_name(const char *name)
{
    const char *p = strstr(name, ".layers.");
    if (p && (p = strchr(p + 8, '.')))
        return p + 1;
    return name;
}

static void print_value(const struct graph *g, val v, int32_t base, struct buf *out)
{
    const struct value *x = graph_value(g, v);
    if (x->kind == VAL_WEIGHT)
        buf_adds(out, short_name(x->name));
    else if (x->op >= base)
        buf_addf(out, "%%%d", x->op - base);
    else
        buf_addf(out, "%%-%d", base - x->op);
    buf_addc(out, '[');
    for (int i = 0; i < x->n_dims; i++)
        buf_addf(out, "%s%s", i ? "," : "", axis_name(x->dim[i]));
    buf_addc(out, ']');
}

/* Ops count from the start of their layer, so that equal layers print equally. */
static void print_ops(const struct graph *g, int32_t from, int32_t to, struct buf *out)
{
    for (int32_t i = from; i < to; i++) {
        const struct op *o = &g->ops[i];
        buf_addf(out, "  %%%d = %s", i - from, op_name(o->kind));
        for (int k = 0; k < op_inputs(o); k++) {
            buf_addc(out, ' ');
            print_value(g, o->in[k], from, out);
        }
        if (o->kind == OP_ATTEND && o->attend.window)
            buf_addf(out, " window=%d", o->attend.window);
        buf_addc(out, '\n');
    }
}

void graph_print(const struct graph *g, struct buf *out)
{
    buf_adds(out, "axes:");
    for (int a = 1; a < AX_COUNT; a++)
        if (g->axis_n[a])
            buf_addf(out, " %s=%d", axis_name(a), g->axis_n[a]);
    buf_addc(out, '\n');
    struct buf last = BUF_INIT, now = BUF_INIT, head = BUF_INIT;
    int first_layer = -1;
    for (int32_t i = 0; i < g->n_ops;) {
        int32_t end = i + 1;
        while (end < g->n_ops && g->ops[end].layer == g->ops[i].layer)
            end++;
        buf_clear(&now);
        print_ops(g, i, end, &now);
        int layer = g->ops[i].layer;
        if (layer >= 0 && last.len == now.len && !memcmp(last.s, now.s, now.len)) {
            buf_clear(&head);
            buf_addf(&head, "%s %d", layer > first_layer + 1 ? "layers" : "layer", first_layer + 1);
            if (layer > first_layer + 1)
                buf_addf(&head, " to %d", layer);
            buf_addf(&head, ": as layer %d\n", first_layer);
        } else {
            buf_add(out, head.s, head.len);
            buf_clear(&head);
            if (layer >= 0)
                buf_addf(out, "layer %d:\n", layer);
            buf_add(out, now.s, now.len);
            first_layer = layer;
            buf_clear(&last);
            if (layer >= 0)
                buf_add(&last, now.s, now.len);
        }
        i = end;
    }
    buf_add(out, head.s, head.len);
    buf_release(&last);
    buf_release(&now);
    buf_release(&head);
}
