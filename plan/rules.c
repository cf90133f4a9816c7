/* rules.c: the layout algebra, one rule per kind of op (ARCHITECTURE.md, section 6). No rule names a rank or
 * a byte. */
#include "plan/internal.h"

static bool is_weight(const struct graph *g, val v)
{
    return graph_value(g, v)->kind == VAL_WEIGHT;
}

/* table[VOCAB, EMBED]: rows split: a rank yields zeros for tokens that are not its own. */
static void split_embed(const struct graph *g, const struct op *o, const struct layout *have,
                        struct layout *want, struct layout *out)
{
    want[0] = have[0];
    if (have[0].kind == LAY_SPLIT)
        *out = have[0].axis == AX_VOCAB ? PARTIAL : have[0];
    else
        *out = WHOLE;
}

/* Split on an output axis: the input whole, the output split. Split on a shared axis: both split, the output
 * partial. */
static void split_matmul(const struct graph *g, const struct op *o, const struct layout *have,
                         struct layout *want, struct layout *out)
{
    want[1] = have[1];
    if (have[1].kind != LAY_SPLIT) {
        want[0] = *out = WHOLE;
    } else if (value_has(graph_value(g, o->in[0]), have[1].axis)) {
        want[0] = have[1];
        *out = PARTIAL;
    } else {
        want[0] = WHOLE;
        *out = have[1];
    }
}

/* Elementwise: equal layouts pass, a whole term is sliced for nothing. PARTIAL is refused even by ADD, where
 * it would be linear: (a0 + b0) + (a1 + b1) has not the bits of (a0 + a1) + (b0 + b1), and invariant 1 is
 * worth an all-reduce. */
static void split_same(const struct graph *g, const struct op *o, const struct layout *have,
                       struct layout *want, struct layout *out)
{
    const struct value *b = graph_value(g, o->in[1]);
    *out = have[0].kind == LAY_SPLIT ? have[0] : WHOLE;
    if (have[0].kind != LAY_SPLIT && have[1].kind == LAY_SPLIT && !is_weight(g, o->in[1]))
        *out = have[1];
    want[0] = *out;
    want[1] = out->kind == LAY_SPLIT && !value_has(b, out->axis) ? WHOLE : *out;
}

static void split_norm(const struct graph *g, const struct op *o, const struct layout *have,
                       struct layout *want, struct layout *out)
{
    const struct value *w = graph_value(g, o->in[1]);
    bool passes = have[0].kind == LAY_SPLIT && !value_has(w, have[0].axis);
    want[0] = *out = passes ? have[0] : WHOLE;
    want[1] = WHOLE;
}

static void split_rope(const struct graph *g, const struct op *o, const struct layout *have,
                       struct layout *want, struct layout *out)
{
    want[0] = *out = have[0].kind == LAY_SPLIT && (have[0].axis == AX_HEAD || have[0].axis == AX_KV_HEAD)
                         ? have[0]
                         : WHOLE;
}

static void split_kv(const struct graph *g, const struct op *o, const struct layout *have,
                     struct layout *want, struct layout *out)
{
    const struct layout heads = split_on(AX_KV_HEAD);
    bool two = op_inputs(o) == 2; /* a latent has no heads */
    *out = two && (layout_eq(have[0], heads) || layout_eq(have[1], heads)) ? heads : WHOLE;
    want[0] = want[1] = *out;
}

/* The KV state lives in pages and cannot move: q follows it. Where every rank has the whole state, q's heads
 * may be split all the same (latent attention: one cached row serves all heads). */
static void split_attend(const struct graph *g, const struct op *o, const struct layout *have,
                         struct layout *want, struct layout *out)
{
    const struct layout heads = split_on(AX_HEAD);
    want[1] = have[1];
    want[0] = *out = have[1].kind == LAY_SPLIT || layout_eq(have[0], heads) ? heads : WHOLE;
}

/* One matrix a head: the heads of x where the matrices are. */
static void split_heads(const struct graph *g, const struct op *o, const struct layout *have,
                        struct layout *want, struct layout *out)
{
    want[1] = have[1];
    want[0] = *out = have[1].kind == LAY_SPLIT ? have[1] : WHOLE;
}

static void split_select(const struct graph *g, const struct op *o, const struct layout *have,
                         struct layout *want, struct layout *out)
{
    want[0] = *out = have[0];
}

static void split_route(const struct graph *g, const struct op *o, const struct layout *have,
                        struct layout *want, struct layout *out)
{
    want[0] = want[1] = *out = WHOLE;
}

/* Every rank has the tokens; it computes what falls to its experts, or its slice of each. */
static void split_experts(const struct graph *g, const struct op *o, const struct layout *have,
                          struct layout *want, struct layout *out)
{
    want[0] = want[1] = WHOLE;
    for (int i = 2; i < 5; i++)
        want[i] = have[i];
    *out = have[2].kind == LAY_SPLIT
               ? PARTIAL
               : WHOLE; /* also where tokens travel: each is summed on one rank of its replica */
}

/* sigmoid(g) * (a + b) has not the bits of sigmoid(g) * a + sigmoid(g) * b: PARTIAL is refused, as by ADD. */
static void split_gate(const struct graph *g, const struct op *o, const struct layout *have,
                       struct layout *want, struct layout *out)
{
    want[0] = *out = have[0].kind == LAY_SPLIT ? have[0] : WHOLE;
    want[1] = WHOLE;
}

static void split_none(const struct graph *g, const struct op *o, const struct layout *have,
                       struct layout *want, struct layout *out)
{
    want[0] = *out = have[0];
}

static split_rule *const rules[OP_COUNT] = {
#define OP(kind, name, n_in, shape, split, maths) [OP_##kind] = split,
#include "graph/ops.def"
#undef OP
};

split_rule *split_rule_of(enum op_kind k)
{
    return rules[k];
}
