/* graph.h: a model's mathematics, as two flat arrays of values and ops over named axes.
 *
 * A graph says what is computed and nothing about where: no rank, thread, dtype or buffer. Each dimension of
 * each value is an axis (HEAD, EMBED, ...); an axis has one size per graph, TOKEN and OUT excepted, which are
 * known only at run time. Values and ops refer to each other by index, so dumps are stable. Weights are
 * values too, named as in a Hugging Face checkpoint; asking twice for the same name yields the same value
 * (tied embeddings).
 *
 * Life: a builder fills it (graph/maths.h is the vocabulary models use), graph_finish checks it, and from
 * then on it is immutable; passes make a new graph or run before finish. Building mistakes are collected: the
 * first one is reported by graph_finish, so that model files read as mathematics.
 */
#ifndef YOKE_GRAPH_GRAPH_H
#define YOKE_GRAPH_GRAPH_H

#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"

enum axis {
    AX_NONE,
    AX_TOKEN, /* rows of the tick's batch */
    AX_OUT,   /* rows whose logits are wanted */
    AX_VOCAB,
    AX_EMBED,
    AX_HEAD, /* query heads */
    AX_KV_HEAD,
    AX_HEAD_DIM,
    AX_FFN,
    AX_EXPERT,
    AX_MOE_FFN,    /* inner width of one expert */
    AX_SHARED_FFN, /* of the experts that every token passes */
    AX_CHOICE,     /* 2k: k expert numbers, then their k weights */
    AX_ONE,
    /* latent attention (DeepSeek): what is cached is LATENT wide, its first KV_LORA elements serve as values
       too */
    AX_Q_LORA,
    AX_KV_LORA,
    AX_LATENT, /* KV_LORA, then the rotated key that heads share */
    AX_QK_DIM, /* a query head: NOPE_DIM, then the rotated part */
    AX_NOPE_DIM,
    AX_V_DIM,
    AX_PAIR, /* plans only: (token, chosen expert) pairs of a tick, grouped by expert */
    AX_COUNT
};
const char *axis_name(enum axis a);

enum op_kind {
#define OP(kind, name, n_in, shape, split, maths) OP_##kind,
#include "graph/ops.def"
#undef OP
    OP_COUNT
};
const char *op_name(enum op_kind k);
const char *op_maths(enum op_kind k);
int op_n_in(enum op_kind k); /* at most; ROUTE's bias and KV_APPEND's v may be absent */

#define GRAPH_MAX_DIMS 4
#define GRAPH_MAX_IN   5
#define VAL_NONE       ((val){-1})

typedef struct {
    int32_t id;
} val; /* index into graph->values; a struct, so that it cannot be mixed up with other numbers */

enum val_kind {
    VAL_ACT,    /* computed */
    VAL_WEIGHT, /* from the checkpoint */
    VAL_KV      /* a layer's KV state after an append */
};

struct value {
    const char *name; /* weights: the checkpoint's name; others: may be NULL */
    enum val_kind kind;
    uint8_t n_dims;
    uint8_t dim[GRAPH_MAX_DIMS]; /* enum axis, outermost first */
    int32_t op;                  /* producer; -1 for weights */
};

enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

/* How positions turn into angles: what config.json's rope settings say (models/hparams.c reads them; exec
 * computes inv_freq as transformers' modeling_rope_utils does). */
struct rope {
    bool interleaved; /* pairs (2i, 2i+1) instead of (i, i + rot/2) */
    int32_t rot;      /* rotated elements of each head, <= HEAD_DIM */
    double theta;
    enum rope_scaling scaling;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    int32_t original_max;                     /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn: cos and sin are multiplied by it; 1 elsewhere */
    double score_scale; /* yarn with mscale_all_dim: DeepSeek multiplies attention scores by its square */
    bool truncate;      /* yarn: round the correction range */
    const float *freq_factors; /* [rot / 2] divisors of the plain frequencies, or NULL; owned by the graph */
};

/* How a router's logits become choices. Scores are softmax or sigmoid of the logits; what decides is the
 * score plus the correction bias, if there is one. With groups, only experts of the topk_group best groups
 * may be chosen; a group's worth is its best decision value, or the sum of its two best. A choice's weight is
 * its score, perhaps normalised, times scale. */
struct routing {
    int32_t k, n_group, topk_group; /* n_group 1: no groups */
    bool sigmoid, group_top2, normalise;
    float scale;
};

struct op {
    enum op_kind kind;
    int16_t layer; /* -1: outside the layers */
    val in[GRAPH_MAX_IN], out;
    union {
        float eps;       /* RMS_NORM */
        int32_t routing; /* ROUTE: index into graph->routings */
        struct {
            int32_t id;     /* index into graph->ropes */
            int32_t offset; /* elements of a head before the rotated ones */
        } rope;             /* ROPE */
        int32_t glu;        /* GLU, EXPERTS: enum glu_kind */
        struct {
            float scale;
            int32_t window; /* a query sees the last `window` positions, itself included; 0: all */
        } attend;
        struct {
            uint8_t from, to; /* inserted ops: enum axis; 0 where it does not apply */
        } move;
    };
};

struct arena;
struct graph {
    struct arena *arena;
    int32_t axis_n[AX_COUNT]; /* size of each axis; 0: not used, or known only at run time */
    struct value *values;
    struct op *ops;
    struct rope *ropes;
    struct routing *routings;
    int32_t n_values, n_ops, n_ropes, n_routings, n_layers;
    int32_t cap_values, cap_ops, cap_ropes, cap_routings;
    val logits;       /* [OUT, VOCAB] */
    struct err first; /* the first building mistake */
};

struct graph *graph_new(void);
void graph_free(struct graph *g); /* NULL is fine */
void graph_axis(struct graph *g, enum axis a,
                int64_t n); /* states an axis's size; stating another one is a mistake */

/* The general builders; graph/maths.h gives them short names. layer may be -1. */
val graph_weight(struct graph *g, const char *name, int n_dims, const enum axis *dims);
/* attr.in holds the inputs; an absent optional one is VAL_NONE. */
val graph_op(struct graph *g, enum op_kind kind, int layer, struct op attr);
int32_t graph_add_routing(struct graph *g, const struct routing *r);
int32_t graph_add_rope(struct graph *g, const struct rope *r); /* equal ropes share an index */

/* The pass that keeps only wanted rows: inserts SELECT in front of the final norm, so that logits are [OUT,
 * VOCAB]. */
void graph_select_rows(struct graph *g);

/* Checks everything (ids in range, one producer each, shapes, the KV order, logits present). ERR_FAIL with
 * the first mistake. */
int graph_finish(struct graph *g, struct err *e);

/* Elements of one position of the value (product of its axes without TOKEN/OUT). */
int64_t value_width(const struct graph *g, const struct value *v);
/* How many of a weight's axes are inputs of the matmuls that use it; 0: it is a vector (norm, bias). An
 * embedding table counts as [rows, cols] too. */
int weight_inputs(const struct graph *g, val w);
bool value_has(const struct value *v, enum axis a);
int op_inputs(const struct op *o);                    /* how many it has */
int value_dim_of(const struct value *v, enum axis a); /* its index in dim, or -1 */
static inline const struct value *graph_value(const struct graph *g, val v)
{
    return &g->values[v.id];
}

/* A readable dump, one op a line; equal consecutive layers are folded. */
void graph_print(const struct graph *g, struct buf *out);

#endif
