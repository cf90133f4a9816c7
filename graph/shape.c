#include "graph/shape.h"

#include <stdio.h>
#include <string.h>

static const struct value *input(const struct graph *g, const struct op *o, int i)
{
    return &g->values[o->in[i].id];
}

static void copy_dims(struct value *out, const struct value *v)
{
    out->n_dims = v->n_dims;
    memcpy(out->dim, v->dim, sizeof(out->dim));
}

static int is_rows(const struct value *v)
{
    return v->n_dims >= 2 && (v->dim[0] == AX_TOKEN || v->dim[0] == AX_OUT);
}

/* "[token, head, head_dim]" for messages */
static const char *show(const struct value *v, char *buf, size_t n)
{
    size_t at = (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < v->n_dims && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%s", i ? ", " : "", axis_name(v->dim[i]));
    if (at < n)
        snprintf(buf + at, n - at, "]");
    return buf;
}

static int misfit(const char *what, const struct value *a, const struct value *b, struct err *e)
{
    char s[96], t[96];
    return err_set(e, ERR_FAIL, "%s: %s with %s", what, show(a, s, sizeof(s)), show(b, t, sizeof(t)));
}

int shape_embed(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *w = input(g, o, 0);
    if (w->n_dims != 2 || w->dim[0] != AX_VOCAB)
        return err_set(e, ERR_FAIL, "the table should be [vocab, ...]");
    out->n_dims = 2;
    out->dim[0] = AX_TOKEN;
    out->dim[1] = w->dim[1];
    return 0;
}

/* x [rows, (kept axes,) shared axes] . w [new axes, shared axes]: the shared axes are a common suffix, in one
 * order, so that both are plain matrices in memory. */
int shape_matmul(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0), *w = input(g, o, 1);
    int n = 0;
    while (n < w->n_dims && n < x->n_dims && w->dim[w->n_dims - 1 - n] == x->dim[x->n_dims - 1 - n])
        n++;
    if (!is_rows(x) || w->kind != VAL_WEIGHT || n == 0 || n == w->n_dims || n != x->n_dims - 1)
        return misfit("a matmul shares all axes of x but the rows", x, w, e);
    out->n_dims = (uint8_t)(1 + w->n_dims - n);
    out->dim[0] = x->dim[0];
    memcpy(out->dim + 1, w->dim, (size_t)(w->n_dims - n));
    return 0;
}

int shape_add(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *a = input(g, o, 0), *b = input(g, o, 1);
    if (b->n_dims > a->n_dims || memcmp(a->dim + (a->n_dims - b->n_dims), b->dim, b->n_dims))
        return misfit("the second term's axes should be the last axes of the first", a, b, e);
    copy_dims(out, a);
    return 0;
}

int shape_norm(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0), *w = input(g, o, 1);
    if (!is_rows(x) || w->kind != VAL_WEIGHT || w->n_dims != 1 || w->dim[0] != x->dim[x->n_dims - 1])
        return misfit("a norm's weight has the last axis of x", x, w, e);
    copy_dims(out, x);
    return 0;
}

int shape_first(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0);
    if (op_inputs(o) == 2) {
        const struct value *y = input(g, o, 1);
        if (x->n_dims != y->n_dims || memcmp(x->dim, y->dim, x->n_dims))
            return misfit("both inputs should have one shape", x, y, e);
    }
    if (o->kind == OP_ROPE &&
        (x->n_dims < 2 || o->rope.offset + g->ropes[o->rope.id].rot > g->axis_n[x->dim[x->n_dims - 1]]))
        return err_set(e, ERR_FAIL, "rope does not fit into the last axis");
    copy_dims(out, x);
    return 0;
}

int shape_kv(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *k = input(g, o, 0);
    const uint8_t want[3] = {AX_TOKEN, AX_KV_HEAD, AX_HEAD_DIM}, latent[2] = {AX_TOKEN, AX_LATENT};
    if (op_inputs(o) == 1) {
        if (k->n_dims != 2 || memcmp(k->dim, latent, 2))
            return err_set(e, ERR_FAIL, "without v, what is cached should be [token, latent]");
    } else {
        const struct value *v = input(g, o, 1);
        if (k->n_dims != 3 || v->n_dims != 3 || memcmp(k->dim, want, 3) || memcmp(v->dim, want, 3))
            return misfit("k and v should be [token, kv_head, head_dim]", k, v, e);
    }
    if (o->layer < 0)
        return err_set(e, ERR_FAIL, "KV state belongs to a layer");
    copy_dims(out, k);
    return 0;
}

int shape_attend(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *q = input(g, o, 0), *kv = input(g, o, 1);
    if (kv->kind != VAL_KV || q->n_dims != 3 || q->dim[0] != AX_TOKEN || q->dim[1] != AX_HEAD ||
        q->dim[2] != kv->dim[kv->n_dims - 1])
        return misfit("attend takes q [token, head, as wide as what is cached] and a KV state", q, kv, e);
    if (!g->axis_n[AX_KV_HEAD] || g->axis_n[AX_HEAD] % g->axis_n[AX_KV_HEAD])
        return err_set(e, ERR_FAIL, "%d query heads cannot share %d KV heads evenly", g->axis_n[AX_HEAD],
                       g->axis_n[AX_KV_HEAD]);
    copy_dims(out, q);
    if (q->dim[2] == AX_LATENT)
        out->dim[2] = AX_KV_LORA;
    return 0;
}

int shape_select(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0);
    if (x->n_dims < 2 || x->dim[0] != AX_TOKEN)
        return err_set(e, ERR_FAIL, "select keeps rows of [token, ...]");
    copy_dims(out, x);
    out->dim[0] = AX_OUT;
    return 0;
}

int shape_route(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0);
    if (!is_rows(x) || x->n_dims != 2 || x->dim[1] != AX_EXPERT)
        return err_set(e, ERR_FAIL, "a router's logits should be [token, expert]");
    if (op_inputs(o) == 2) {
        const struct value *b = input(g, o, 1);
        if (b->kind != VAL_WEIGHT || b->n_dims != 1 || b->dim[0] != AX_EXPERT)
            return err_set(e, ERR_FAIL, "a router's correction bias should be a weight [expert]");
    }
    out->n_dims = 2;
    out->dim[0] = x->dim[0];
    out->dim[1] = AX_CHOICE;
    return 0;
}

int shape_experts(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0), *c = input(g, o, 1);
    const uint8_t inner[3] = {AX_EXPERT, AX_MOE_FFN, AX_EMBED}, outer[3] = {AX_EXPERT, AX_EMBED, AX_MOE_FFN};
    if (!is_rows(x) || x->n_dims != 2 || x->dim[1] != AX_EMBED || c->n_dims != 2 || c->dim[1] != AX_CHOICE)
        return misfit("experts take [token, embed] and a choice", x, c, e);
    for (int i = 2; i < 5; i++) {
        const struct value *w = input(g, o, i);
        if (w->kind != VAL_WEIGHT || w->n_dims != 3 || memcmp(w->dim, i < 4 ? inner : outer, 3))
            return misfit("an expert weight has the wrong axes", x, w, e);
    }
    copy_dims(out, x);
    return 0;
}

int shape_gate(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0), *s = input(g, o, 1);
    if (!is_rows(x) || s->n_dims != 2 || s->dim[0] != x->dim[0] || s->dim[1] != AX_ONE)
        return misfit("a gate is one number a row", x, s, e);
    copy_dims(out, x);
    return 0;
}

int shape_norm_part(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0), *w = input(g, o, 1);
    if (!is_rows(x) || x->n_dims != 2 || w->kind != VAL_WEIGHT || w->n_dims != 1 ||
        g->axis_n[w->dim[0]] > g->axis_n[x->dim[1]])
        return misfit("a partial norm's weight is no wider than a row", x, w, e);
    copy_dims(out, x);
    return 0;
}

int shape_absorb(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0), *w = input(g, o, 1);
    const uint8_t from[3] = {AX_TOKEN, AX_HEAD, AX_QK_DIM}, by[3] = {AX_HEAD, AX_KV_LORA, AX_NOPE_DIM};
    if (x->n_dims != 3 || memcmp(x->dim, from, 3) || w->kind != VAL_WEIGHT || w->n_dims != 3 ||
        memcmp(w->dim, by, 3) ||
        g->axis_n[AX_QK_DIM] - g->axis_n[AX_NOPE_DIM] != g->axis_n[AX_LATENT] - g->axis_n[AX_KV_LORA])
        return misfit("absorb turns [token, head, qk_dim] into latents", x, w, e);
    copy_dims(out, x);
    out->dim[2] = AX_LATENT;
    return 0;
}

int shape_expand(const struct graph *g, const struct op *o, struct value *out, struct err *e)
{
    const struct value *x = input(g, o, 0), *w = input(g, o, 1);
    if (x->n_dims != 3 || x->dim[1] != AX_HEAD || w->kind != VAL_WEIGHT || w->n_dims != 3 ||
        w->dim[0] != AX_HEAD || w->dim[2] != x->dim[2])
        return misfit("expand takes [token, head, a] and [head, b, a]", x, w, e);
    copy_dims(out, x);
    out->dim[2] = w->dim[1];
    return 0;
}
