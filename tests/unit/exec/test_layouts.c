/* The layout algebra against the scalar interpreter: random small graphs x random layouts x 1..8 ranks.
 *
 * Each round builds a random graph of the vocabulary of models, pins each matrix to a random legal layout
 * (whole, split on its outermost row axis, split on its outermost column axis), runs it on n ranks as
 * threads, and compares all logits with exec/reference.c on the unsplit graph. Whatever conversion the rules
 * insert (all-reduce, reduce-scatter, all-gather, slice) must leave the mathematics alone. The all-to-all,
 * which no rule of today's ops asks for, is tested by itself.
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

#include "base/arena.h"
#include "base/mem.h"
#include "exec/internal.h"
#include "exec/reference.h"
#include "graph/maths.h"
#include "tests/unit/exec/random.h"

#define N_TOKENS 11

struct world {
    struct graph *g;
    float **weight; /* by value id */
    struct weight_pin *pins;
    int n_pins, n_ranks, threads;
    struct comm *comms[8];
    int32_t token[N_TOKENS];
    float *want, *got;   /* [N_TOKENS, vocab] */
    int kinds[OP_COUNT]; /* conversions seen */
};

/* A random decoder-like graph: any mixture of attention, gated MLPs, plain two-matrix bottlenecks, biases and
 * norms. */
static struct graph *random_graph(void)
{
    struct graph *g = graph_new();
    int kv = 1 + (int)rnd(4), layers = 1 + (int)rnd(3);
    graph_axis(g, AX_VOCAB, 17 + rnd(20));
    graph_axis(g, AX_EMBED, 8 + rnd(17));
    graph_axis(g, AX_KV_HEAD, kv);
    graph_axis(g, AX_HEAD, kv * (8 / kv + (int)rnd(2)) >= 8 ? kv * (8 / kv + (int)rnd(2)) : kv * 8);
    graph_axis(g, AX_HEAD_DIM, 2 * (1 + rnd(5)));
    graph_axis(g, AX_FFN, 8 + rnd(30));
    struct maths m = {g, -1, "layers"};
    struct rope r = {
        .rot = g->axis_n[AX_HEAD_DIM], .theta = 100, .attention_factor = 1, .interleaved = rnd(2)};
    int32_t rope_id = graph_add_rope(g, &r);
    val table = W(&m, "table", VOCAB, EMBED), x = embed(&m, table);
    for (m.layer = 0; m.layer < layers; m.layer++) {
        val h = rnd(4) ? rms_norm(&m, x, W(&m, "norm1", EMBED), 1e-5f) : x;
        if (rnd(3)) {
            val q = matmul(&m, h, W(&m, "q", HEAD, HEAD_DIM, EMBED)),
                k = matmul(&m, h, W(&m, "k", KV_HEAD, HEAD_DIM, EMBED));
            val v = matmul(&m, h, W(&m, "v", KV_HEAD, HEAD_DIM, EMBED));
            if (rnd(2))
                q = add(&m, q, W(&m, "qb", HEAD, HEAD_DIM));
            if (rnd(2))
                v = add(&m, v, W(&m, "vb", KV_HEAD, HEAD_DIM));
            if (rnd(2))
                q = rms_norm(&m, q, W(&m, "qn", HEAD_DIM), 1e-5f);
            val state = kv_append(&m, rope(&m, k, rope_id), v);
            val a = attend(&m, rope(&m, q, rope_id), state, 0.5f, rnd(2) ? 1 + (int)rnd(8) : 0);
            val o = matmul(&m, a, W(&m, "o", EMBED, HEAD, HEAD_DIM));
            if (rnd(2))
                o = add(&m, o, W(&m, "ob", EMBED));
            x = add(&m, x, o);
        }
        if (rnd(3)) {
            val gate = matmul(&m, x, W(&m, "gate", FFN, EMBED)), up = matmul(&m, x, W(&m, "up", FFN, EMBED));
            if (rnd(2))
                up = add(&m, up, W(&m, "ub", FFN));
            val down = matmul(&m, glu(&m, (int)rnd(2), gate, up), W(&m, "down", EMBED, FFN));
            x = rnd(2) ? add(&m, x, down) : add(&m, down, x);
        }
        if (rnd(3) == 0)
            x = matmul(&m, matmul(&m, x, W(&m, "in", FFN, EMBED)), W(&m, "out", EMBED, FFN));
    }
    m.layer = -1;
    x = rms_norm(&m, x, W(&m, "norm", EMBED), 1e-5f);
    g->logits = matmul(&m, x, rnd(2) ? table : W(&m, "head", VOCAB, EMBED));
    graph_select_rows(g);
    return g;
}

static const float *weight_of(void *ctx, const struct graph *g, val w)
{
    return ((struct world *)ctx)->weight[w.id];
}

/* Which of a weight's axes are inputs: 0 for vectors. */
static int inputs_of(const struct graph *g, int w)
{
    for (int i = 0; i < g->n_ops; i++) {
        if (g->ops[i].kind == OP_MATMUL && g->ops[i].in[1].id == w)
            return graph_value(g, g->ops[i].in[0])->n_dims - 1;
        if (g->ops[i].kind == OP_EMBED && g->ops[i].in[0].id == w)
            return 1;
    }
    return 0;
}

static void world_init(struct world *x, int n_ranks)
{
    memset(x, 0, sizeof(*x));
    x->n_ranks = n_ranks;
    x->threads = 1 + (int)rnd(2);
    x->g = random_graph();
    struct err e = {0};
    assert_int_equal(graph_finish(x->g, &e), 0);
    const struct graph *g = x->g;
    XNEW_N(x->weight, (size_t)g->n_values);
    XNEW_N(x->pins, (size_t)g->n_values);
    for (int i = 0; i < g->n_values; i++) {
        const struct value *v = &g->values[i];
        if (v->kind != VAL_WEIGHT)
            continue;
        size_t n = (size_t)value_width(g, v);
        XNEW_N(x->weight[i], n);
        for (size_t k = 0; k < n; k++)
            x->weight[i][k] = rnd_float() * 0.5f;
        int n_in = inputs_of(g, i);
        if (!n_in || rnd(4) == 0) /* a quarter keeps what the degree implies */
            continue;
        struct weight_pin pin = {.name = v->name};
        switch (rnd(3)) {
        case 0:
            pin.layout = (struct layout){LAY_SPLIT, v->dim[0]};
            break;
        case 1:
            pin.layout = (struct layout){LAY_SPLIT, v->dim[v->n_dims - n_in]};
            break;
        default:
            break; /* whole */
        }
        x->pins[x->n_pins++] = pin;
    }
    for (int t = 0; t < N_TOKENS; t++)
        x->token[t] = (int32_t)rnd((uint32_t)g->axis_n[AX_VOCAB]);
    XNEW_N(x->want, (size_t)(N_TOKENS * g->axis_n[AX_VOCAB]));
    XNEW_N(x->got, (size_t)(N_TOKENS * g->axis_n[AX_VOCAB]));
    reference_run(g, weight_of, x, x->token, N_TOKENS, x->want);
    assert_int_equal(comm_threads_new(n_ranks, 1 << 16, x->comms, &e), 0);
}

static void world_release(struct world *x)
{
    for (int i = 0; i < x->g->n_values; i++)
        xfree(x->weight[i]);
    xfree(x->weight);
    xfree(x->pins);
    xfree(x->want);
    xfree(x->got);
    graph_free(x->g);
}

static void fill(struct weights *w, const struct world *x)
{
    for (int i = 0; i < w->plan->n_weights; i++) {
        const struct plan_weight *pw = &w->plan->weights[i];
        const float *all = x->weight[w->plan->slots[pw->slot].v.id] +
                           (size_t)pw->row.begin * (size_t)pw->all_cols + pw->col.begin;
        if (pw->matrix)
            wmat_pack(w->mat[i], 0, range_n(pw->row), DT_F32, all, (size_t)pw->all_cols * sizeof(float));
        else
            memcpy(w->vec[i], all, sizeof(float) * (size_t)range_n(pw->col));
    }
}

struct rank {
    struct world *world;
    int rank;
    int rc;
    struct err err;
};

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    struct world *x = me->world;
    struct plan *p = NULL;
    struct weights *w = NULL;
    struct run *r = NULL;
    const int32_t pages[] = {2, 0, 1};
    struct plan_options po = {.tp = x->n_ranks,
                              .rank = me->rank,
                              .max_tokens = N_TOKENS,
                              .max_out = N_TOKENS,
                              .page_tokens = 4,
                              .pins = x->pins,
                              .n_pins = x->n_pins};
    struct run_options ro = {.threads = x->threads, .crowded = true, .level = CPU_C, .n_pages = 3};
    me->rc = plan_make(x->g, &po, &p, &me->err);
    if (!me->rc)
        me->rc = weights_new(p, &w, &me->err);
    if (!me->rc) {
        fill(w, x);
        me->rc = run_new(p, w, x->comms[me->rank], &ro, &r, &me->err);
    }
    /* two ticks: the second reads what the first left in the pages */
    for (int32_t done = 0, n = 7; !me->rc && done < N_TOKENS; done += n, n = N_TOKENS - done) {
        int32_t pos[N_TOKENS], row[N_TOKENS];
        for (int32_t i = 0; i < n; i++) {
            pos[i] = done + i;
            row[i] = i;
        }
        struct span span = {0, n, done, 3, pages};
        struct batch b = {n, n, 1, x->token + done, pos, row, &span};
        const float *logits;
        size_t vocab = (size_t)x->g->axis_n[AX_VOCAB];
        me->rc = run_tick(r, &b, &logits, &me->err);
        if (!me->rc && me->rank == x->n_ranks - 1) /* any rank has the whole logits */
            memcpy(x->got + (size_t)done * vocab, logits, sizeof(float) * vocab * (size_t)n);
    }
    for (int i = 0; me->rank == 0 && p && i < p->n_steps; i++)
        if (p->steps[i].kind < OP_COUNT)
            x->kinds[p->steps[i].kind]++;
    if (me->rc)
        comm_abort(x->comms[me->rank], me->err.msg);
    run_free(r);
    weights_free(w);
    plan_free(p);
    comm_close(x->comms[me->rank]);
    return NULL;
}

static void test_random_layouts(void **state)
{
    (void)state;
    int seen[OP_COUNT] = {0}, refused = 0;
    for (int round = 0; round < 240; round++) {
        struct world x;
        struct rank ranks[8];
        pthread_t threads[8];
        seed = (uint64_t)round + 1;
        world_init(&x, 1 + round % 8);
        for (int i = 0; i < x.n_ranks; i++) {
            ranks[i] = (struct rank){.world = &x, .rank = i};
            pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
        }
        for (int i = 0; i < x.n_ranks; i++)
            pthread_join(threads[i], NULL);
        if (ranks[0].rc == ERR_SPLIT) { /* too few heads for so many ranks */
            refused++;
            world_release(&x);
            continue;
        }
        for (int i = 0; i < x.n_ranks; i++)
            if (ranks[i].rc)
                fail_msg("round %d, rank %d: %s", round, i, ranks[i].err.msg);
        double scale = 0, worst = 0;
        for (size_t i = 0; i < (size_t)(N_TOKENS * x.g->axis_n[AX_VOCAB]); i++) {
            scale = fmax(scale, fabs((double)x.want[i]));
            double d = fabs((double)x.want[i] - (double)x.got[i]);
            worst = d <= worst ? worst : d;
        }
        if (!(worst <= 2e-5 * scale)) {
            struct buf b = BUF_INIT;
            graph_print(x.g, &b);
            fail_msg("round %d on %d ranks: off by %g of %g\n%s", round, x.n_ranks, worst, scale, b.s);
        }
        for (int k = 0; k < OP_COUNT; k++)
            seen[k] += x.kinds[k];
        world_release(&x);
    }
    printf("allreduce %d, reduce_scatter %d, allgather %d, slice %d; %d rounds refused\n", seen[OP_ALLREDUCE],
           seen[OP_REDUCE_SCATTER], seen[OP_ALLGATHER], seen[OP_SLICE], refused);
    assert_true(seen[OP_ALLREDUCE] > 50 && seen[OP_REDUCE_SCATTER] > 20 && seen[OP_ALLGATHER] > 50 &&
                seen[OP_SLICE] > 20);
    assert_true(refused < 40);
}

/* --- all-to-all: [rows, HEAD, FFN] from split(HEAD) to split(FFN), by hand --- */

struct exchange {
    struct comm *comm;
    int n, rank;
    bool ok;
};

static void *exchange_main(void *arg)
{
    struct exchange *x = arg;
    enum { H = 5, F = 7, ROWS = 3 };
    struct graph g = {0};
    g.axis_n[AX_HEAD] = H;
    g.axis_n[AX_FFN] = F;
    struct slot slots[3] = {0};
    struct plan p = {.graph = &g, .slots = slots};
    p.opt.tp = x->n;
    p.opt.rank = x->rank;
    for (int a = 0; a < AX_COUNT; a++)
        p.gran[a] = 1;
    struct range h = plan_part(&p, AX_HEAD, x->rank, x->n), f = plan_part(&p, AX_FFN, x->rank, x->n);
    int32_t in_n[2] = {range_n(h), F}, out_n[2] = {H, range_n(f)};
    for (int i = 0; i < 3; i++) {
        slots[i] = (struct slot){.row_axis = AX_TOKEN, .n_dims = 2, .dim = {AX_HEAD, AX_FFN}, .root = i};
        memcpy(slots[i].dim_n, i ? out_n : in_n, sizeof(in_n));
        slots[i].width = slots[i].dim_n[0] * slots[i].dim_n[1];
        slots[i].row_bytes = sizeof(float) * (size_t)(i == 2 ? 2 * H * F : slots[i].width);
        slots[i].offset = (size_t)i * 4096;
    }
    _Alignas(64) uint8_t work[3 * 4096];
    struct batch b = {.n_tokens = ROWS};
    struct run r = {.plan = &p, .comm = x->comm, .work = work, .batch = &b};
    struct step s = {
        .kind = OP_ALLTOALL, .in = {0, -1, -1}, .out = 1, .tmp = 2, .axis_from = AX_HEAD, .axis_to = AX_FFN};
    for (int t = 0; t < ROWS; t++)
        for (int i = 0; i < in_n[0]; i++)
            for (int k = 0; k < F; k++)
                ((float *)slot_row(&r, &slots[0], t))[i * F + k] = (float)(t * 1000 + (h.begin + i) * 10 + k);
    step_alltoall(&r, &s, 0, 1);
    x->ok = r.err.code == 0;
    for (int t = 0; t < ROWS; t++)
        for (int i = 0; i < H; i++)
            for (int k = 0; k < out_n[1]; k++)
                x->ok &= ((float *)slot_row(&r, &slots[1], t))[i * out_n[1] + k] ==
                         (float)(t * 1000 + i * 10 + f.begin + k);
    comm_close(x->comm);
    return NULL;
}

static void test_alltoall(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) {
        struct comm *comms[8];
        struct exchange x[8];
        pthread_t threads[8];
        struct err e = {0};
        assert_int_equal(comm_threads_new(n, 1 << 14, comms, &e), 0);
        for (int i = 0; i < n; i++) {
            x[i] = (struct exchange){comms[i], n, i, false};
            pthread_create(&threads[i], NULL, exchange_main, &x[i]);
        }
        for (int i = 0; i < n; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < n; i++)
            assert_true(x[i].ok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_layouts),
                                       cmocka_unit_test(test_alltoall)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
