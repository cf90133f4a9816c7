#include "graph/print.h"

#include <string.h>
#include "graph/graph.h"

const char *print_short_name(const char *name)
{
    const char *p = strstr(name, ".layers.");
    if (p && (p = strchr(p + 8, '.')))
        return p + 1;
    return name;
}

/* The line that stands for the layers that were as the one shown. */
static void print_fold(const struct print_layers *p, struct buf *out)
{
    if (p->last > p->first + 1)
        buf_addf(out, "layers %d to %d: as layer %d\n", p->first + 1, p->last, p->first);
    else if (p->last > p->first)
        buf_addf(out, "layer %d: as layer %d\n", p->last, p->first);
}

void print_layer(struct print_layers *p, int layer, struct buf *out)
{
    if (layer >= 0 && p->shown.len == p->text.len && !memcmp(p->shown.s, p->text.s, p->text.len)) {
        p->last = layer;
        buf_clear(&p->text);
        return;
    }
    print_fold(p, out);
    if (layer >= 0)
        buf_addf(out, "layer %d:\n", layer);
    buf_add(out, p->text.s, p->text.len);
    p->first = p->last = layer;
    buf_clear(&p->shown);
    if (layer >= 0)
        buf_add(&p->shown, p->text.s, p->text.len);
    buf_clear(&p->text);
}

void print_layers_end(struct print_layers *p, struct buf *out)
{
    print_fold(p, out);
    buf_release(&p->text);
    buf_release(&p->shown);
}

static void print_value(const struct graph *g, val v, int32_t base, struct buf *out)
{
    const struct value *x = graph_value(g, v);
    if (x->kind == VAL_WEIGHT)
        buf_adds(out, print_short_name(x->name));
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
    struct print_layers layers = PRINT_LAYERS_INIT;
    for (int32_t i = 0, end; i < g->n_ops; i = end) {
        for (end = i + 1; end < g->n_ops && g->ops[end].layer == g->ops[i].layer;)
            end++;
        print_ops(g, i, end, &layers.text);
        print_layer(&layers, g->ops[i].layer, out);
    }
    print_layers_end(&layers, out);
}
