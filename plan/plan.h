/* plan.h: one rank's program, worked out from a graph and a split. Read-only once made.
 *
 * Everything about distribution is decided here and nowhere else. Making a plan:
 *   1. split.c    cuts each axis into ranges, one a rank, that fall on the chunks of the summation tree
 *                 (kernels/sum.h), and the layers into pipeline stages;
 *   2. lower.c    walks the graph once: rules.c says which layouts an op accepts and yields; where an
 *                 input has another one, the conversion (a collective, or a free slice) is inserted
 *                 there, and not sooner; integer weights get their input quantised, once per value;
 *   3. memory.c   finds lifetimes, lets outputs take the place of dying inputs, and gives every work
 *                 buffer an offset;
 *   4. barrier.c  marks the steps before which threads must meet, because data really crosses between
 *                 them.
 * The result lists steps, slots (buffers and weights), and exactly which slice of which tensor this rank
 * needs.
 *
 * Only the number of rows is symbolic: a slot has bytes per row, and rows is the tick's tokens or its wanted
 * outputs, up to the maxima given. A plan is never rebuilt per tick. It borrows the graph, which must outlive
 * it.
 */
#ifndef YOKE_PLAN_PLAN_H
#define YOKE_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/mem.h"
#include "graph/graph.h"
#include "kernels/matmul.h"
#include "kernels/rows.h"

#define PLAN_MAX_RANKS 256

/* A value's layout over the group: the same on all ranks; each rank holds its range of one axis; or the sum
 * over ranks is the value. */
enum layout_kind { LAY_WHOLE, LAY_SPLIT, LAY_PARTIAL };
struct layout {
    uint8_t kind; /* enum layout_kind */
    uint8_t axis; /* enum axis; LAY_SPLIT only, else 0 */
};
static inline bool layout_eq(struct layout a, struct layout b)
{
    return a.kind == b.kind && a.axis == b.axis;
}

struct range {
    int32_t begin, end;
};
static inline int32_t range_n(struct range r)
{
    return r.end - r.begin;
}

/* What the planner must know of a weight in the checkpoint: its number format; DT_NONE: it is not there. */
struct weight_source {
    enum dtype (*dtype_of)(const struct weight_source *s, const char *name);
    /* Rows and columns that share a scale of float8 weights; NULL: no float8 here, or without scales. */
    void (*scale_block)(const struct weight_source *s, int32_t *ret_rows, int32_t *ret_cols);
};

enum quant { QUANT_NONE, QUANT_W8A8, QUANT_W4 };

struct weight_pin { /* overrides the layout that the degrees imply for one weight */
    const char *name;
    struct layout layout;
};

struct plan_options {
    int tp, rank;  /* degree, and which rank's program; 1, 0 for one rank */
    int pp, stage; /* pipeline: stages, and which one's program; 1, 0 for all layers */
    int ep;        /* experts: ep groups of ranks, each with its range of experts (see experts_spread) */
    int dp,
        lane; /* replicas, and whose program; matters only where experts are spread over them. 0, 0: one */
    const struct weight_source *source;
    enum quant quant; /* applies to float weights of matmuls */
    enum kv_dtype kv;
    int32_t max_tokens;  /* rows of one tick */
    int32_t max_out;     /* rows whose logits are wanted, of one tick */
    int32_t page_tokens; /* positions of a KV page */
    const struct weight_pin *pins;
    int n_pins;
};

/* A weight or a slice of one, as this rank holds it. */
struct plan_weight {
    const char *name;
    int32_t slot;
    bool matrix;           /* packed for kernels; otherwise a vector of floats */
    enum dtype src, dtype; /* in the checkpoint; as held */
    struct layout layout;
    int64_t all_rows, all_cols; /* of the whole tensor as a matrix; a vector is one row */
    bool stacked;               /* one matrix an expert; the name has a * for its number */
    struct range stack;         /* this rank's experts; {0, 1} if not stacked */
    int32_t expert_layer;       /* index into plan->expert_layers; -1: it is no expert's */
    struct range row, col;      /* this rank's part */
    struct cuts cuts;           /* of the local columns; matrices only */
    struct scale_blocks blocks; /* float8 with scales; else scale_rows is 0 */
    size_t bytes;               /* as held, all of the stack */
};

/* A layer's experts as this rank holds them. An expert's matrices lie together, in a record: so that an
 * expert can be read alone, in one piece (exec/weights.h, exec/cache.h). */
#define RECORD_PARTS 3    /* gate, up, down */
#define RECORD_ALIGN 4096 /* bytes: what a disk reads without a copy */
struct expert_layer {
    int layer;
    int32_t weight;          /* of its gates; ups and downs follow it in plan->weights */
    struct range stack;      /* this rank's experts */
    size_t at[RECORD_PARTS]; /* in a record */
    size_t bytes;            /* of a record: a multiple of RECORD_ALIGN */
};

/* What a layer caches of a position and head: a K record and a V record, or one record of which the first
 * v_dim elements are V (latents; not with int8, whose scale ends the record). */
struct kv_form {
    int32_t k_dim, v_dim;
    size_t k_record, v_record; /* bytes */
    size_t v_at; /* where V's records begin in a page; 0: V is K's beginning, v_record == k_record */
};

enum slot_kind { SLOT_WORK, SLOT_WEIGHT, SLOT_KV };

struct slot {
    enum slot_kind kind;
    val v; /* what it holds a form of; -1: staging, tables */
    struct layout layout;
    uint8_t row_axis;              /* AX_TOKEN, AX_OUT or AX_PAIR; 0 for weights */
    uint8_t n_dims;                /* without the row axis */
    uint8_t dim[GRAPH_MAX_DIMS];   /* enum axis */
    int32_t dim_n[GRAPH_MAX_DIMS]; /* local sizes */
    int32_t width;                 /* elements of a row: product of dim_n */
    size_t row_bytes;              /* SLOT_KV: of one page, K then V */
    size_t bytes;                  /* at the maximum of rows */
    size_t offset;         /* SLOT_WORK: in the work memory; SLOT_KV: page bytes of the layers before */
    int32_t root;          /* the slot whose storage this one shares (itself if none) */
    int32_t weight;        /* SLOT_WEIGHT: index into plan->weights */
    struct act_layout act; /* quantised activations; act.kind == ACT_F32 means plain floats */
    struct kv_form kv;     /* SLOT_KV */
    int32_t layer;         /* SLOT_KV */
    int32_t def, last;     /* first and last step that touches it */
};

/* How a step's work is shared among threads; two steps with the same share of the same storage need no
 * barrier. */
enum share_kind {
    SHARE_ONE,  /* thread 0: collectives */
    SHARE_ROWS, /* contiguous runs of rows */
    SHARE_COLS, /* contiguous runs of 8-column panels, all rows */
    SHARE_TASKS /* the step's own: attention's heads, experts' panels */
};

enum step_kind {                           /* an op, or one of these */
                 STEP_QUANTIZE = OP_COUNT, /* a row of floats -> a record for integer kernels */
                 STEP_ROPE_TABLE,          /* cos and sin of the tick's positions */
                 STEP_EXPERT_SORT,    /* choices -> pairs grouped by expert: one index for all that follow
                                         (exec/experts.c) */
                 STEP_EXPERT_GATHER,  /* each pair's activation, in that order */
                 STEP_EXPERT_UP,      /* act(gate) * up of every pair */
                 STEP_EXPERT_DOWN,    /* down of every pair */
                 STEP_EXPERT_COMBINE, /* the weighted sum of each token's pairs */
                 STEP_EXPERT_SPREAD, /* spread experts: who computes what of whom; the index of what came here
                                      */
                 STEP_EXPERT_EXCHANGE, /* activations travel to their experts */
                 STEP_EXPERT_RETURN,   /* results travel back */
                 STEP_EXPERT_JOIN, /* the weighted sum of each token that this rank had sent out; others stay
                                      zero */
                 STEP_KINDS
};
const char *step_name(int kind);

#define STEP_MAX_IN 4

struct step {
    uint8_t kind;  /* enum op_kind or enum step_kind */
    uint8_t share; /* enum share_kind */
    bool barrier;  /* threads meet before it */
    int16_t layer;
    int32_t op;              /* graph op; -1 for planner's own */
    int32_t in[STEP_MAX_IN]; /* slots; -1: none. ROPE: in[2] is its table */
    int32_t out;
    int32_t tmp;                /* staging slot of collectives, or -1 */
    uint8_t axis_from, axis_to; /* collectives */
    int32_t rope;               /* STEP_ROPE_TABLE: index into graph->ropes */
};

/* What pipeline stages are balanced by, of all ranks together (stages.c). */
struct stage_cost {
    double time_s, bytes;
};

struct plan {
    const struct graph *graph;
    struct plan_options opt; /* source and pins are not kept */
    struct slot *slots;
    struct step *steps;
    struct plan_weight *weights;
    struct expert_layer *expert_layers;
    int32_t n_slots, n_steps, n_weights, n_expert_layers;
    int32_t cap_slots, cap_steps, cap_weights, cap_expert_layers;
    int32_t *stage_end;            /* [pp]: first layer that is not in the stage */
    struct stage_cost *stage_cost; /* [n_layers + 1]: of each layer, and of what follows them */
    int32_t gran[AX_COUNT];        /* elements that stay together when the axis is cut */
    int32_t logits;                /* slot, whole on every rank of the last stage; -1 on the others */
    struct range layers;     /* this stage's; the first one has the embedding too, the last one the head */
    uint64_t weights_digest; /* names and formats of all weights, this rank's or not */
    size_t work_bytes, weight_bytes;
    size_t kv_page_bytes; /* one page of all layers, K and V, this rank */
    int32_t n_kv_layers;
    bool bits_equal;   /* this degree yields the same bits as one rank */
    char why_not[160]; /* if not */
};

/* The packed matrix (one of the stack) that a plan_weight describes, without data. */
void plan_weight_mat(const struct plan_weight *w, struct wmat *ret);

/* What a cache of so many bytes (--expert-cache) holds of a rank's experts. */
struct plan_cache {
    int32_t records, slots; /* all there are; how many are held at once */
    int32_t least;          /* slots that there must be: the experts of the layer that has most */
    size_t slot_bytes;      /* the largest record */
    size_t bytes;           /* that it takes; all experts, if slots == records */
    size_t weight_bytes;    /* of all weights in memory, the cache in the experts' place */
};
void plan_cache(const struct plan *p, uint64_t bytes, struct plan_cache *ret);

/* ERR_SPLIT says which degrees are legal for this model. */
int plan_make(const struct graph *g, const struct plan_options *o, struct plan **ret, struct err *e);
void plan_free(struct plan *p); /* NULL is fine */

/* Rank r's range of an axis when it is split over n ranks, and the chunk boundaries of the whole axis.
 * KV_HEAD follows HEAD: the KV heads that rank r's query heads use (ranges may overlap). */
struct range plan_part(const struct plan *p, enum axis a, int r, int n);
/* The degrees from 1 to max that leave no rank without heads or without FFN columns, appended as "1, 2, 4".
 */
void plan_legal_degrees(const struct graph *g, const int32_t *gran, int max, struct buf *out);

/* Layers of a stage: contiguous, balanced by the time they are expected to take (the head's counted); uneven
 * numbers are fine. */
struct range plan_stage(const struct plan *p, int stage);

/* Where ticks overlap, prompts are cut into several ticks for each in flight: the stages behind the first one
 * wait for a whole tick at the start, and those before the last at the end. Rows of a tick that prompts may
 * take, of `pending` ones, with `depth` ticks in flight; at most `most`. Not fewer than `fewest`. */
static inline int32_t plan_prompt_rows(int64_t pending, int depth, int32_t fewest, int32_t most)
{
    int64_t part = depth > 1 ? pending / (4 * depth) : most;
    return (int32_t)MIN(MAX(MAX(part, fewest), 1), most);
}
/* With which kernels are nearly as fast as with many. Each expert needs some, or it is read for little. */
static inline int32_t plan_fewest_rows(const struct graph *g)
{
    int32_t chosen = g->axis_n[AX_CHOICE] / 2;
    return MAX(64, chosen ? 16 * g->axis_n[AX_EXPERT] / chosen : 0);
}

/* A 64-bit digest of everything that ranks must agree on (graph, degree, formats, sizes; not the rank). */
uint64_t plan_hash(const struct plan *p);

/* Where the experts of a layer lie. With ep 1 or one replica, each replica has all of them: a group is tp /
 * ep of its ranks, all of which have the tokens, and replicas know nothing of each other. Else they are
 * spread over all replicas: a group is dp x tp / ep ranks of a stage, counted replica by replica, and
 * tokens travel to their experts. Then the replicas' ticks go together, empty ones included. Either way the
 * ranks of a group slice each expert's inner axis. */
static inline bool experts_spread(const struct graph *g, int tp, int dp, int ep)
{
    return g->axis_n[AX_EXPERT] && dp > 1 && ep > 1;
}
static inline bool plan_spreads(const struct plan *p)
{
    return experts_spread(p->graph, p->opt.tp, p->opt.dp, p->opt.ep);
}
/* Ranks among which each expert is sliced; 1: it lies whole on one. */
static inline int plan_expert_slices(const struct plan *p)
{
    return (plan_spreads(p) ? p->opt.dp * p->opt.tp : p->opt.tp) / p->opt.ep;
}

/* Payload bytes of a collective step for `rows` rows: what one rank puts in. */
size_t plan_step_bytes(const struct plan *p, const struct step *s, int64_t rows);
/* Bytes that the rank which sends a token out to spread experts gives away in this step, or gets back; 0 for
 * other steps. */
size_t plan_spread_bytes(const struct plan *p, const struct step *s);
static inline size_t plan_kv_token_bytes(const struct plan *p)
{
    return p->kv_page_bytes / (size_t)p->opt.page_tokens;
}

/* Where the experts lie, in a few words; nothing without experts or on one rank. */
void plan_print_experts(const struct plan *p, struct buf *out);
/* The program as text (tests/golden/plans): equal consecutive layers are folded. */
void plan_print(const struct plan *p, struct buf *out);

#endif
