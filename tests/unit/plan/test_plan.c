/* Plans: golden dumps, the collectives that must fall out, ranges, barriers, memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "models/models.h"
#include "plan/plan.h"

static enum dtype all_q4_k(const struct weight_source *s, const char *name)
{
    (void)s;
    return strstr(name, "norm") ? DT_F32 : DT_Q4_K;
}
static enum dtype all_bf16(const struct weight_source *s, const char *name)
{
    (void)s;
    (void)name;
    return DT_BF16;
}
static const struct weight_source q4_k = {all_q4_k}, bf16 = {all_bf16};

struct shape {
    const char *type;
    int hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
};
static const struct shape llama8b = {"llama", 4096, 32, 32, 8, 128, 14336, 128256};
static const struct shape qwen7b = {"qwen2", 3584, 28, 28, 4, 128, 18944, 152064};
static const struct shape smol = {"llama", 576, 30, 9, 3, 64, 1536, 49152};
static const struct shape tiny3 = {"qwen3", 48, 2, 4, 2, 16, 96, 100};

static struct graph *graph_of(const struct shape *s)
{
    json_t *c =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "model_type", s->type, "hidden_size", s->hidden,
                  "num_hidden_layers", s->layers, "num_attention_heads", s->heads, "num_key_value_heads",
                  s->kv_heads, "head_dim", s->head_dim, "intermediate_size", s->ffn, "vocab_size", s->vocab);
    struct graph *g = NULL;
    struct err e = {0};
    if (model_build(c, NULL, &g, NULL, &e))
        fail_msg("%s", e.msg);
    json_decref(c);
    return g;
}

static struct graph *graph_of_text(const char *config)
{
    json_error_t je;
    json_t *c = json_loads(config, 0, &je);
    struct graph *g = NULL;
    struct err e = {0};
    if (model_build(c, NULL, &g, NULL, &e))
        fail_msg("%s", e.msg);
    json_decref(c);
    return g;
}

static int make(const struct graph *g, const struct weight_source *w, int tp, int rank, struct plan **ret,
                struct err *e)
{
    struct plan_options o = {.tp = tp,
                             .rank = rank,
                             .source = w,
                             .kv = KV_F16,
                             .max_tokens = 512,
                             .max_out = 8,
                             .page_tokens = 32};
    return plan_make(g, &o, ret, e);
}

static struct plan *must(const struct graph *g, const struct weight_source *w, int tp, int rank)
{
    struct plan *p = NULL;
    struct err e = {0};
    if (make(g, w, tp, rank, &p, &e))
        fail_msg("%s", e.msg);
    return p;
}

/* Megatron's result, which nobody wrote down: two all-reduces a dense block, nothing else; none on one rank.
 */
static void test_two_allreduces(void **state)
{
    (void)state;
    const struct shape *const shapes[] = {&llama8b, &qwen7b, &smol, &tiny3};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct graph *g = graph_of(shapes[i]);
        for (int tp = 1; tp <= 4; tp++) {
            struct plan *p = must(g, &bf16, tp, tp - 1);
            for (int layer = -1; layer < shapes[i]->layers; layer++) {
                int n[STEP_KINDS] = {0};
                for (int k = 0; k < p->n_steps; k++)
                    if (p->steps[k].layer == layer)
                        n[p->steps[k].kind]++;
                /* outside the layers: the split table's all-reduce, the split head's all-gather */
                assert_int_equal(n[OP_ALLREDUCE], tp == 1 ? 0 : layer < 0 ? 1 : 2);
                assert_int_equal(n[OP_ALLGATHER], tp > 1 && layer < 0);
                assert_int_equal(n[OP_REDUCE_SCATTER] + n[OP_ALLTOALL] + n[OP_SLICE], 0);
            }
            plan_free(p);
        }
        graph_free(g);
    }
}

/* Ranks together hold every row and column of every split weight; only KV heads may overlap. */
static void test_slices_cover(void **state)
{
    (void)state;
    const struct shape *const shapes[] = {&llama8b, &qwen7b, &smol};
    const int degrees[] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct graph *g = graph_of(shapes[i]);
        for (size_t d = 0; d < ARRAY_LEN(degrees); d++) {
            int tp = degrees[d];
            struct plan *ranks[8];
            for (int r = 0; r < tp; r++)
                ranks[r] = must(g, &q4_k, tp, r);
            for (int w = 0; w < ranks[0]->n_weights; w++) {
                const struct plan_weight *first = &ranks[0]->weights[w];
                int64_t rows = 0, cols = 0, row_end = 0, col_end = 0;
                for (int r = 0; r < tp; r++) {
                    const struct plan_weight *x = &ranks[r]->weights[w];
                    assert_string_equal(x->name, first->name);
                    assert_true(range_n(x->row) > 0 && range_n(x->col) > 0);
                    assert_true(x->row.begin <= row_end && x->col.begin <= col_end); /* no gap */
                    rows += range_n(x->row);
                    cols += range_n(x->col);
                    row_end = MAX(row_end, x->row.end);
                    col_end = MAX(col_end, x->col.end);
                    assert_int_equal(x->cuts.at[x->cuts.n], x->matrix ? range_n(x->col) : 0);
                }
                if (first->matrix) {
                    assert_int_equal(row_end, first->all_rows);
                    assert_int_equal(col_end, first->all_cols);
                }
                if (first->layout.kind == LAY_SPLIT && first->layout.axis != AX_KV_HEAD && first->matrix)
                    assert_true(rows == first->all_rows || cols == first->all_cols); /* no overlap */
            }
            assert_true(ranks[0]->bits_equal == (tp == 1 || tp == 2 || tp == 4 || tp == 8));
            uint64_t hash = plan_hash(ranks[0]);
            for (int r = 0; r < tp; r++) {
                assert_true(plan_hash(ranks[r]) == hash);
                plan_free(ranks[r]);
            }
        }
        graph_free(g);
    }
}

/* With even sizes a rank's weights are its share, but for what is whole on all (norms). */
static void test_memory_shares(void **state)
{
    (void)state;
    struct graph *g = graph_of(&llama8b);
    struct plan *one = must(g, &q4_k, 1, 0);
    for (int tp = 2; tp <= 8; tp *= 2) {
        struct plan *p = must(g, &q4_k, tp, tp - 1);
        double share = (double)p->weight_bytes * tp / (double)one->weight_bytes;
        assert_true(share > 0.99 && share < 1.02);
        assert_int_equal(plan_kv_token_bytes(p) * (size_t)tp, plan_kv_token_bytes(one));
        plan_free(p);
    }
    assert_int_equal(plan_kv_token_bytes(one), 32 * 8 * 2 * 128 * 2);
    plan_free(one);
    graph_free(g);
}

static void test_impossible(void **state)
{
    (void)state;
    struct graph *g = graph_of(&smol);
    struct plan *p = NULL;
    struct err e = {0};
    assert_int_equal(make(g, &bf16, 10, 0, &p, &e), ERR_SPLIT);
    assert_non_null(strstr(e.msg, "legal degrees for this model: 1, 2, 3, 4, 5, 6, 7, 8, 9"));
    assert_null(p);
    graph_free(g);
}

static enum dtype some_missing(const struct weight_source *s, const char *name)
{
    (void)s;
    return strstr(name, "layers.1.mlp") ? DT_NONE : DT_F16;
}
static enum dtype one_is_i64(const struct weight_source *s, const char *name)
{
    (void)s;
    return strstr(name, "layers.0.mlp.up") ? DT_I64 : DT_F16;
}

static void test_missing_weights(void **state)
{
    (void)state;
    struct graph *g = graph_of(&tiny3);
    struct plan *p = NULL;
    struct err e = {0};
    struct weight_source w = {some_missing};
    assert_int_equal(make(g, &w, 1, 0, &p, &e), ERR_FORMAT);
    assert_string_equal(e.msg,
                        "3 tensors are missing from the checkpoint: model.layers.1.mlp.gate_proj.weight, "
                        "model.layers.1.mlp.up_proj.weight, model.layers.1.mlp.down_proj.weight");
    w.dtype_of = one_is_i64;
    assert_int_equal(make(g, &w, 1, 0, &p, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "model.layers.0.mlp.up_proj.weight is stored as i64"));
    graph_free(g);
}

/* No two buffers that are alive at once share bytes, unless one was made in the other's place. */
static void test_buffers_apart(void **state)
{
    (void)state;
    const struct shape *const shapes[] = {&llama8b, &tiny3};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct graph *g = graph_of(shapes[i]);
        struct plan *p = must(g, &q4_k, i ? 1 : 4, 0);
        size_t sum = 0;
        for (int a = 0; a < p->n_slots; a++) {
            const struct slot *x = &p->slots[a];
            if (x->kind != SLOT_WORK)
                continue;
            assert_true(x->offset % 64 == 0 && x->offset + x->bytes <= p->work_bytes);
            sum += x->bytes;
            for (int b = 0; b < a; b++) {
                const struct slot *y = &p->slots[b];
                bool alive =
                    y->kind == SLOT_WORK && x->def <= y->last && y->def <= x->last && x->root != y->root;
                assert_false(alive && x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes);
            }
        }
        assert_true(p->work_bytes < sum / 4); /* buffers are shared over time */
        plan_free(p);
        graph_free(g);
    }
}

/* --- experts --- */

/* 12 experts, each 48 wide inside: in floats 48 units, of which no 64 ranks can have one. */
static const char moe[] =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 32, \"intermediate_size\": 48, "
    "\"moe_intermediate_size\": 48, \"num_hidden_layers\": 2, \"num_attention_heads\": 8, "
    "\"num_key_value_heads\": 4, \"head_dim\": 16, \"num_experts\": 12, \"num_experts_per_tok\": 3, "
    "\"norm_topk_prob\": true, \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"vocab_size\": 100, "
    "\"rms_norm_eps\": 1e-06, \"hidden_act\": \"silu\"}";

#define MOE_EXPERTS 12
#define MOE_INNER   48

/* What the documentation says of ep, in other words than plan/split.c. */
static int slices_by_hand(int tp, int dp, int ep)
{
    if ((tp * dp) % ep)
        return 0;
    return ep > 1 ? tp * dp / ep : tp;
}

static int make_moe(const struct graph *g, int tp, int dp, int ep, int r, struct plan **ret, struct err *e)
{
    struct plan_options o = {.tp = tp,
                             .rank = r % tp,
                             .dp = dp,
                             .lane = r / tp,
                             .ep = ep,
                             .source = &bf16,
                             .kv = KV_F16,
                             .max_tokens = 64,
                             .max_out = 8,
                             .page_tokens = 32};
    return plan_make(g, &o, ret, e);
}

/* Every degree is legal or refused as it should be, and a refusal lists the legal ones. */
static void test_expert_degrees(void **state)
{
    (void)state;
    struct graph *g = graph_of_text(moe);
    for (int tp = 1; tp <= 8; tp++)
        for (int dp = 1; dp <= 64; dp *= 2) {
            struct buf legal = BUF_INIT;
            for (int ep = 1; ep <= MOE_EXPERTS; ep++) {
                int slices = slices_by_hand(tp, dp, ep);
                if (slices && slices <= MOE_INNER)
                    buf_addf(&legal, "%s%d", legal.len ? ", " : "", ep);
            }
            for (int ep = 1; ep <= tp * dp + 1; ep++) {
                int slices = slices_by_hand(tp, dp, ep);
                bool fine = slices && slices <= MOE_INNER && ep <= MOE_EXPERTS;
                bool too_many = dp > 1 && ep > 1 && tp * dp > PLAN_MAX_RANKS;
                struct plan *p = NULL;
                struct err e = {0};
                int rc = make_moe(g, tp, dp, ep, 0, &p, &e);
                if (rc != (fine && !too_many ? 0 : ERR_SPLIT))
                    fail_msg("tp %d dp %d ep %d: %s", tp, dp, ep, rc ? e.msg : "is taken");
                if (rc && tp * dp <= PLAN_MAX_RANKS) {
                    char *want = xasprintf("expert parallelism of %d over %d ranks (data %d x tensor %d), 12 "
                                           "experts of 48: legal degrees for them: %s",
                                           ep, tp * dp, dp, tp, legal.s);
                    assert_string_equal(e.msg, want);
                    xfree(want);
                }
                if (!rc) {
                    assert_int_equal(plan_expert_slices(p), slices);
                    assert_true(plan_spreads(p) == (dp > 1 && ep > 1));
                    bool whole = slices == 1, even = 8 % slices == 0 && plan_spreads(p);
                    assert_true(p->bits_equal == (8 % tp == 0 && (whole || even)));
                }
                plan_free(p);
            }
            buf_release(&legal);
        }
    graph_free(g);
    struct plan *p = NULL;
    struct err e = {0};
    g = graph_of(&tiny3);
    assert_int_equal(make_moe(g, 2, 2, 2, 0, &p, &e), ERR_SPLIT);
    assert_string_equal(e.msg, "expert parallelism of 2: this model has no experts; only 1 is legal");
    graph_free(g);
}

/* The ranks of a replica, or of all of them where experts are spread, hold each element of each expert once.
 */
static void check_experts_cover(const struct graph *g, int tp, int dp, int ep)
{
    static uint8_t seen[2][MOE_EXPERTS][MOE_INNER]; /* gate's rows, down's columns */
    struct err e = {0};
    struct plan *p;
    uint64_t hash = 0;
    int n = experts_spread(g, tp, dp, ep) ? tp * dp : tp;
    memset(seen, 0, sizeof(seen));
    for (int r = 0; r < n; r++) {
        if (make_moe(g, tp, dp, ep, r, &p, &e))
            fail_msg("%s", e.msg);
        for (int i = 0; i < p->n_weights; i++) {
            const struct plan_weight *w = &p->weights[i];
            bool gate = strstr(w->name, "layers.0.mlp.experts.*.gate");
            if (!gate && !strstr(w->name, "layers.0.mlp.experts.*.down"))
                continue;
            struct range inner = gate ? w->row : w->col, outer = gate ? w->col : w->row;
            assert_true(outer.begin == 0 && outer.end == 32 && range_n(inner) > 0 && range_n(w->stack) > 0);
            assert_int_equal(w->cuts.at[w->cuts.n], range_n(w->col));
            for (int32_t x = w->stack.begin; x < w->stack.end; x++)
                for (int32_t k = inner.begin; k < inner.end; k++)
                    seen[!gate][x][k]++;
        }
        assert_true(r == 0 || plan_hash(p) == hash);
        hash = plan_hash(p);
        plan_free(p);
    }
    for (size_t i = 0; i < sizeof(seen); i++)
        if (((uint8_t *)seen)[i] != 1)
            fail_msg("tp %d dp %d ep %d: element %zu is held by %d ranks", tp, dp, ep, i,
                     ((uint8_t *)seen)[i]);
}

static void test_experts_cover(void **state)
{
    (void)state;
    struct graph *g = graph_of_text(moe);
    for (int tp = 1; tp <= 6; tp++)
        for (int dp = 1; tp * dp <= 12; dp++)
            for (int ep = 1; ep <= MIN(tp * dp, MOE_EXPERTS); ep++)
                if (slices_by_hand(tp, dp, ep))
                    check_experts_cover(g, tp, dp, ep);
    graph_free(g);
}

/* The largest slots of pairs and of rows that travel, at 64 tokens a tick: counted by hand. */
static void test_spread_memory(void **state)
{
    (void)state;
    static const struct {
        int tp, dp, ep;
        size_t pairs, sent; /* rows */
    } cases[] = {
        {1, 4, 2, 4 * 64 * 3, 64 * 3 * 2}, /* 6 experts a group: all 3 choices of all tokens may lie there */
        {1, 4, 4, 4 * 64 * 3, 64 * 3},     /* 3 experts */
        {2, 2, 4, 2 * 64 * 3, 32 * 3},     /* a rank sends half of its replica's tokens */
        {1, 12, 12, 12 * 64 * 1, 64 * 3},  /* 1 expert: a token cannot choose it twice */
        {1, 6, 2, 6 * 64 * 3, 64 * 3 * 3}, {3, 2, 2, 2 * 64 * 3, 22 * 3 * 3},
    };
    struct graph *g = graph_of_text(moe);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct plan *p = NULL;
        struct err e = {0};
        if (make_moe(g, cases[i].tp, cases[i].dp, cases[i].ep, 0, &p, &e))
            fail_msg("%s", e.msg);
        for (int k = 0; k < p->n_steps; k++) {
            const struct step *s = &p->steps[k];
            const struct slot *out = &p->slots[s->out], *tmp = s->tmp < 0 ? NULL : &p->slots[s->tmp];
            if (s->kind == STEP_EXPERT_EXCHANGE) {
                assert_int_equal(out->bytes, cases[i].pairs * 32 * sizeof(float));
                assert_int_equal(tmp->bytes, cases[i].sent * 32 * sizeof(float));
                assert_int_equal(plan_spread_bytes(p, s), 3 * plan_expert_slices(p) * 32 * sizeof(float));
            } else if (s->kind == STEP_EXPERT_RETURN) {
                assert_int_equal(out->bytes, cases[i].sent * 32 * sizeof(float));
                assert_int_equal(tmp->bytes, cases[i].pairs * 32 * sizeof(float));
            } else if (s->kind == STEP_EXPERT_SPREAD) {
                assert_int_equal(tmp->bytes, (cases[i].pairs + cases[i].sent) * sizeof(int32_t));
            }
        }
        plan_free(p);
    }
    graph_free(g);
}

/* --- golden dumps --- */

/* Against tests/golden/plans/. With YOKE_UPDATE=1 the files are written instead. */
static void expect_golden(const char *name, const struct graph *g, const struct plan *p)
{
    const char *root = getenv("YOKE_ROOT");
    struct buf text = BUF_INIT, want = BUF_INIT;
    struct err e = {0};
    char *path = xasprintf("%s/tests/golden/plans/%s.txt", root ? root : ".", name);
    graph_print(g, &text);
    buf_addc(&text, '\n');
    plan_print(p, &text);
    if (getenv("YOKE_UPDATE")) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fwrite(text.s, 1, text.len, f);
        fclose(f);
    } else if (file_slurp(path, 1 << 20, &want, &e)) {
        fail_msg("%s", e.msg);
    } else if (strcmp(text.s, want.s)) {
        fail_msg("%s differs from the plan made now (YOKE_UPDATE=1 rewrites it; review the diff):\n%s", path,
                 text.s);
    }
    buf_release(&text);
    buf_release(&want);
    xfree(path);
}

static void test_golden(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const struct shape *shape;
        const struct weight_source *source;
        int tp, rank;
    } cases[] = {
        {"llama8b-q4_k-tp1", &llama8b, &q4_k, 1, 0}, {"llama8b-q4_k-tp4", &llama8b, &q4_k, 4, 1},
        {"qwen7b-bf16-tp2", &qwen7b, &bf16, 2, 0},   {"smol-q4_k-tp2", &smol, &q4_k, 2, 1},
        {"qwen3-bf16-tp3", &tiny3, &bf16, 3, 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct graph *g = graph_of(cases[i].shape);
        struct plan *p = must(g, cases[i].source, cases[i].tp, cases[i].rank);
        expect_golden(cases[i].name, g, p);
        plan_free(p);
        graph_free(g);
    }
}

static void test_golden_experts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int tp, dp, ep, rank;
    } cases[] = {{"moe-bf16-tp4-ep2", 4, 1, 2, 3}, {"moe-bf16-dp4-tp2-ep4", 2, 4, 4, 5}};
    struct graph *g = graph_of_text(moe);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct plan *p = NULL;
        struct err e = {0};
        if (make_moe(g, cases[i].tp, cases[i].dp, cases[i].ep, cases[i].rank, &p, &e))
            fail_msg("%s", e.msg);
        expect_golden(cases[i].name, g, p);
        plan_free(p);
    }
    graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_allreduces),  cmocka_unit_test(test_slices_cover),
        cmocka_unit_test(test_memory_shares),   cmocka_unit_test(test_impossible),
        cmocka_unit_test(test_missing_weights), cmocka_unit_test(test_buffers_apart),
        cmocka_unit_test(test_expert_degrees),  cmocka_unit_test(test_experts_cover),
        cmocka_unit_test(test_spread_memory),   cmocka_unit_test(test_golden),
        cmocka_unit_test(test_golden_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
