/* Experts over ranks, against the scalar interpreter: random small models with experts x every way to lay the
 * experts over 2 to 8 ranks (within a replica, and spread over replicas in groups of any size), each replica
 * with tokens of its own, from none to as many as a tick may have.
 *
 * Routers are random, or send every token to the first experts, or to the last ones: then one group has all
 * the work, and its buffers are full. Whatever the layout, a replica's logits are the same bits when the
 * other replicas have nothing to do, and with other numbers of threads. At last a rank is lost in the middle.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "exec/reference.h"
#include "exec/run.h"
#include "graph/maths.h"
#include "tests/unit/exec/random.h"

#define MAX_RANKS  8
#define MAX_TOKENS 9 /* of a tick */
#define SEQUENCE   12

/* --- models --- */

enum routers { RANDOM, ALL_TO_FIRST, ALL_TO_LAST, ROUTERS };

struct model {
    struct graph *g;
    float **weight; /* by value id */
};

static struct graph *random_graph(void)
{
    struct graph *g = graph_new();
    int n_experts = 4 + (int)rnd(9), k = 1 + (int)rnd(4);
    graph_axis(g, AX_VOCAB, 17 + rnd(20));
    graph_axis(g, AX_EMBED, 8 + rnd(17));
    graph_axis(g, AX_KV_HEAD, 2);
    graph_axis(g, AX_HEAD, 8);
    graph_axis(g, AX_HEAD_DIM, 4);
    graph_axis(g, AX_EXPERT, n_experts);
    graph_axis(g, AX_CHOICE, 2 * k);
    graph_axis(g, AX_MOE_FFN, 8 + rnd(17));
    struct maths m = {g, -1, "layers"};
    struct rope r = {.rot = 4, .theta = 100, .attention_factor = 1};
    struct routing routing = {.k = k,
                              .n_group = 1,
                              .topk_group = 1,
                              .sigmoid = rnd(2),
                              .normalise = rnd(2),
                              .scale = 1 + (float)rnd(2)};
    int32_t rope_id = graph_add_rope(g, &r), routing_id = graph_add_routing(g, &routing);
    val x = embed(&m, W(&m, "table", VOCAB, EMBED));
    for (m.layer = 0; m.layer < 2; m.layer++) {
        val q = matmul(&m, x, W(&m, "q", HEAD, HEAD_DIM, EMBED));
        val kk = matmul(&m, x, W(&m, "k", KV_HEAD, HEAD_DIM, EMBED));
        val state = kv_append(&m, rope(&m, kk, rope_id), matmul(&m, x, W(&m, "v", KV_HEAD, HEAD_DIM, EMBED)));
        val a = attend(&m, rope(&m, q, rope_id), state, 0.5f, 0);
        x = add(&m, x, matmul(&m, a, W(&m, "o", EMBED, HEAD, HEAD_DIM)));
        val h = rms_norm(&m, x, W(&m, "norm1", EMBED), 1e-5f);
        val choice =
            route(&m, matmul(&m, h, W(&m, "router", EXPERT, EMBED)), W(&m, "bias", EXPERT), routing_id);
        x = add(&m, x,
                experts(&m, h, choice, (int)rnd(2), W(&m, "gate.*", EXPERT, MOE_FFN, EMBED),
                        W(&m, "up.*", EXPERT, MOE_FFN, EMBED), W(&m, "down.*", EXPERT, EMBED, MOE_FFN)));
    }
    m.layer = -1;
    x = rms_norm(&m, x, W(&m, "norm", EMBED), 1e-5f);
    g->logits = matmul(&m, x, W(&m, "head", VOCAB, EMBED));
    graph_select_rows(g);
    return g;
}

static void model_init(struct model *x, enum routers routers)
{
    struct err e = {0};
    x->g = random_graph();
    assert_int_equal(graph_finish(x->g, &e), 0);
    XNEW_N(x->weight, (size_t)x->g->n_values);
    for (int i = 0; i < x->g->n_values; i++) {
        const struct value *v = &x->g->values[i];
        if (v->kind != VAL_WEIGHT)
            continue;
        size_t n = (size_t)value_width(x->g, v);
        bool bias = strstr(v->name, "bias");
        XNEW_N(x->weight[i], n);
        for (size_t k = 0; k < n; k++)
            x->weight[i][k] = rnd_float() * 0.5f;
        for (size_t k = 0; k < n && bias && routers != RANDOM; k++)
            x->weight[i][k] = 10.0f * (float)(routers == ALL_TO_FIRST ? n - k : k);
    }
}

static void model_release(struct model *x)
{
    for (int i = 0; i < x->g->n_values; i++)
        xfree(x->weight[i]);
    xfree(x->weight);
    graph_free(x->g);
}

static const float *weight_of(void *ctx, const struct graph *g, val w)
{
    return ((const struct model *)ctx)->weight[w.id];
}

static void fill(struct weights *w, const struct model *x)
{
    for (int i = 0; i < w->plan->n_weights; i++) {
        const struct plan_weight *pw = &w->plan->weights[i];
        const float *all = x->weight[w->plan->slots[pw->slot].v.id];
        if (!pw->matrix)
            memcpy(w->vec[i], all + pw->col.begin, sizeof(float) * (size_t)range_n(pw->col));
        for (int32_t k = pw->stack.begin; k < pw->stack.end && pw->matrix; k++) {
            const float *one = all + (size_t)k * (size_t)(pw->all_rows * pw->all_cols);
            wmat_pack(&w->mat[i][k - pw->stack.begin], 0, range_n(pw->row), DT_F32,
                      one + (size_t)pw->row.begin * (size_t)pw->all_cols + pw->col.begin,
                      (size_t)pw->all_cols * sizeof(float));
        }
    }
}

/* --- ranks --- */

struct world {
    const struct model *model;
    int tp, dp, ep, threads;
    int32_t n[MAX_RANKS]; /* of each replica's one sequence: two ticks carry it */
    int32_t token[MAX_RANKS][SEQUENCE];
    float *got[MAX_RANKS]; /* [n, vocab] */
    bool spread, lose_last;
    pthread_barrier_t ticked; /* all have made the first tick */
    struct comm *comms[MAX_RANKS];
};

struct rank {
    struct world *world;
    int rank, rc, second, third; /* of making it and the first tick; of the ticks after that */
    struct err err;
    struct comm *group, *experts;
    struct plan *plan;
    struct weights *weights;
    struct run *run;
};

static int rank_open(struct rank *me)
{
    struct world *x = me->world;
    struct comm *world = x->comms[me->rank];
    int rc = comm_split(world, me->rank / x->tp, me->rank, &me->group, &me->err);
    if (!rc)
        rc = comm_split(world, 0, me->rank, &me->experts, &me->err);
    struct plan_options po = {.tp = x->tp,
                              .rank = me->rank % x->tp,
                              .dp = x->dp,
                              .lane = me->rank / x->tp,
                              .ep = x->ep,
                              .max_tokens = MAX_TOKENS,
                              .max_out = MAX_TOKENS,
                              .page_tokens = 4};
    if (!rc)
        rc = plan_make(x->model->g, &po, &me->plan, &me->err);
    if (!rc)
        rc = weights_new(me->plan, &me->weights, &me->err);
    if (rc)
        return rc;
    fill(me->weights, x->model);
    struct run_options ro = {
        .threads = x->threads, .crowded = true, .level = CPU_C, .n_pages = 3, .experts = me->experts};
    return run_new(me->plan, me->weights, me->group, &ro, &me->run, &me->err);
}

static int rank_tick(struct rank *me, int32_t done, int32_t n)
{
    static const int32_t pages[] = {2, 0, 1};
    struct world *x = me->world;
    int lane = me->rank / x->tp;
    int32_t pos[MAX_TOKENS], row[MAX_TOKENS];
    for (int32_t i = 0; i < n; i++) {
        pos[i] = done + i;
        row[i] = i;
    }
    struct span span = {0, n, done, 3, pages};
    struct batch b = {n, n, n > 0, x->token[lane] + done, pos, row, &span};
    const float *logits;
    if (!n && !x->spread) /* a replica by itself has no empty ticks */
        return 0;
    int rc = run_tick(me->run, &b, &logits, &me->err);
    size_t vocab = (size_t)x->model->g->axis_n[AX_VOCAB];
    if (!rc && me->rank % x->tp == x->tp - 1)
        memcpy(x->got[lane] + (size_t)done * vocab, logits, sizeof(float) * vocab * (size_t)n);
    return rc;
}

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    struct world *x = me->world;
    int32_t n = x->n[me->rank / x->tp], first = MIN(n, MAX_TOKENS);
    me->rc = rank_open(me);
    if (!me->rc)
        me->rc = rank_tick(me, 0, first);
    if (me->rc)
        comm_abort(x->comms[me->rank], me->err.msg);
    pthread_barrier_wait(&x->ticked);
    if (x->lose_last && me->rank == x->tp * x->dp - 1) {
        comm_abort(x->comms[me->rank], "it had enough");
    } else if (!me->rc) {
        me->second = rank_tick(me, first, n - first);
        if (x->lose_last)
            me->third = rank_tick(me, 0, first);
    }
    run_free(me->run);
    weights_free(me->weights);
    plan_free(me->plan);
    comm_close(me->group);
    comm_close(me->experts);
    comm_close(x->comms[me->rank]);
    return NULL;
}

static void run_ranks(struct world *x, struct rank *ranks)
{
    pthread_t threads[MAX_RANKS];
    struct err e = {0};
    int n = x->tp * x->dp;
    x->spread = experts_spread(x->model->g, x->tp, x->dp, x->ep);
    assert_int_equal(comm_threads_new(n, 1 << 16, x->comms, &e), 0);
    pthread_barrier_init(&x->ticked, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        ranks[i] = (struct rank){.world = x, .rank = i};
        pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&x->ticked);
}

static void must_run(struct world *x)
{
    struct rank ranks[MAX_RANKS];
    run_ranks(x, ranks);
    for (int i = 0; i < x->tp * x->dp; i++)
        if (ranks[i].rc || ranks[i].second)
            fail_msg("tp %d dp %d ep %d, rank %d: %s", x->tp, x->dp, x->ep, i, ranks[i].err.msg);
}

/* --- what must hold --- */

static void world_init(struct world *x, const struct model *m, int tp, int dp, int ep)
{
    static const int32_t lengths[] = {SEQUENCE, 1, 0, MAX_TOKENS, 4};
    *x = (struct world){.model = m, .tp = tp, .dp = dp, .ep = ep, .threads = 1 + (int)rnd(2)};
    uint32_t shift = rnd(5);
    for (int l = 0; l < dp; l++) {
        x->n[l] = lengths[((uint32_t)l + shift) % 5];
        for (int32_t t = 0; t < SEQUENCE; t++)
            x->token[l][t] = (int32_t)rnd((uint32_t)m->g->axis_n[AX_VOCAB]);
        XNEW_N(x->got[l], (size_t)(SEQUENCE * m->g->axis_n[AX_VOCAB]));
    }
}

static void world_release(struct world *x)
{
    for (int l = 0; l < x->dp; l++)
        xfree(x->got[l]);
}

static void compare_with_reference(const struct world *x)
{
    size_t vocab = (size_t)x->model->g->axis_n[AX_VOCAB];
    for (int l = 0; l < x->dp; l++) {
        size_t n = (size_t)x->n[l] * vocab;
        double scale = 0, worst = 0;
        float *want;
        if (!n)
            continue;
        XNEW_N(want, n);
        reference_run(x->model->g, weight_of, (void *)x->model, x->token[l], x->n[l], want);
        for (size_t i = 0; i < n; i++) {
            double d = fabs((double)want[i] - (double)x->got[l][i]);
            scale = fmax(scale, fabs((double)want[i]));
            worst = d <= worst ? worst : d;
        }
        if (!(worst <= 2e-5 * scale))
            fail_msg("tp %d dp %d ep %d, replica %d: off by %g of %g", x->tp, x->dp, x->ep, l, worst, scale);
        xfree(want);
    }
}

/* One replica has work, the others only lend their experts: the same bits, with another number of threads. */
static void compare_with_alone(const struct world *x)
{
    size_t vocab = (size_t)x->model->g->axis_n[AX_VOCAB];
    for (int l = 0; l < x->dp; l++) {
        struct world alone = *x;
        if (!x->n[l])
            continue;
        alone.threads = 3 - x->threads;
        for (int i = 0; i < x->dp; i++) {
            alone.n[i] = i == l ? x->n[l] : 0;
            XNEW_N(alone.got[i], (size_t)SEQUENCE * vocab);
        }
        must_run(&alone);
        if (memcmp(alone.got[l], x->got[l], sizeof(float) * vocab * (size_t)x->n[l]))
            fail_msg("tp %d dp %d ep %d, replica %d has other bits when alone", x->tp, x->dp, x->ep, l);
        world_release(&alone);
        return; /* one replica of each layout; which one is random */
    }
}

static bool is_legal(const struct model *m, int tp, int dp, int ep)
{
    struct plan_options po = {.tp = tp, .dp = dp, .ep = ep, .max_tokens = 1, .max_out = 1, .page_tokens = 1};
    struct plan *p = NULL;
    struct err e;
    bool ok = plan_make(m->g, &po, &p, &e) == 0;
    plan_free(p);
    return ok;
}

static void test_layouts_of_experts(void **state)
{
    int within = 0, spread = 0, uneven = 0;
    for (int round = 0; round < 2 * ROUTERS; round++) {
        struct model m;
        seed = (uint64_t)round + 1;
        model_init(&m, (enum routers)(round % ROUTERS));
        for (int tp = 1; tp <= MAX_RANKS; tp++)
            for (int dp = 1; tp * dp <= MAX_RANKS; dp++)
                for (int ep = 1; ep <= tp * dp; ep++) {
                    struct world x;
                    if (tp * dp == 1 || !is_legal(&m, tp, dp, ep))
                        continue;
                    world_init(&x, &m, tp, dp, ep);
                    must_run(&x);
                    compare_with_reference(&x);
                    compare_with_alone(&x);
                    *(x.spread ? &spread : &within) += 1;
                    uneven += m.g->axis_n[AX_EXPERT] % ep != 0;
                    world_release(&x);
                }
        model_release(&m);
    }
    printf("%d layouts within a replica, %d over replicas; %d with uneven numbers of experts\n", within,
           spread, uneven);
    assert_true(within > 50 && spread > 50 && uneven > 20);
}

/* The tick fails with the reason, on every rank and at once; so do ticks after it. */
static void test_lost_rank(void **state)
{
    static const int degrees[][3] = {{1, 4, 2}, {2, 4, 4}, {1, 4, 4}};
    struct model m;
    seed = 7;
    model_init(&m, RANDOM);
    for (size_t i = 0; i < ARRAY_LEN(degrees); i++) {
        struct world x;
        struct rank ranks[MAX_RANKS];
        world_init(&x, &m, degrees[i][0], degrees[i][1], degrees[i][2]);
        x.lose_last = true;
        for (int l = 0; l < x.dp; l++)
            x.n[l] = SEQUENCE;
        run_ranks(&x, ranks);
        for (int r = 0; r < x.tp * x.dp - 1; r++) {
            assert_int_equal(ranks[r].rc, 0);
            assert_int_equal(ranks[r].second, ERR_RANK_LOST);
            assert_int_equal(ranks[r].third, ERR_RANK_LOST);
            assert_non_null(strstr(ranks[r].err.msg, "it had enough"));
        }
        world_release(&x);
    }
    model_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts_of_experts),
                                       cmocka_unit_test(test_lost_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
