/* The cost model: it agrees with the plan it is read from, moves the right way with each constant, and
 * chooses what the field would. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "models/models.h"
#include "plan/cost.h"

static enum dtype all_bf16(const struct weight_source *s, const char *name)
{
    (void)s;
    (void)name;
    return DT_BF16;
}
static const struct weight_source bf16 = {.dtype_of = all_bf16};

struct model {
    json_t *config;
    struct graph *g;
    struct plan_options o;
};

static void open_model(struct model *m, const char *name)
{
    char path[512];
    struct err e = {0};
    snprintf(path, sizeof(path), "%s/tests/golden/shapes/%s/config.json", getenv("YOKE_ROOT"), name);
    if (json_parse_file(path, 1 << 20, &m->config, &e) || model_build(m->config, NULL, &m->g, NULL, &e))
        fail_msg("%s", e.msg);
    m->o = (struct plan_options){
        .tp = 1, .source = &bf16, .kv = KV_F16, .max_tokens = 512, .max_out = 8, .page_tokens = 32};
}

static void close_model(struct model *m)
{
    graph_free(m->g);
    json_decref(m->config);
}

static struct cost_shape shape_at(const struct model *m, int tp, int ep, struct plan **ret)
{
    struct plan_options o = m->o;
    struct cost_shape s;
    struct err e = {0};
    o.tp = tp;
    o.ep = ep;
    o.rank = tp - 1;
    if (plan_make(m->g, &o, ret, &e))
        fail_msg("%s", e.msg);
    cost_shape_of(*ret, &s);
    return s;
}

static const struct cost_job one = {.prompt = 1024, .answer = 256, .context = 1280, .batch = 1, .chunk = 512};
static const struct cost_job many = {
    .prompt = 1024, .answer = 256, .context = 1280, .batch = 64, .chunk = 512};

static struct cost_machine machine(int hosts)
{
    struct cost_machine m;
    cost_machine_default(&m, hosts, 64, 256e9);
    return m;
}

/* What is read off a plan adds up to the plan. */
static void test_shape_is_the_plan(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2-72b", "deepseek-r1"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct model m;
        open_model(&m, names[i]);
        for (int tp = 1; tp <= 8; tp *= 4) {
            struct plan *p;
            struct cost_shape s = shape_at(&m, tp, i ? tp : 1, &p);
            double held = 0, kv = 0;
            for (int l = 0; l < s.n_layers + 2; l++) {
                held += s.layer[l].held_bytes;
                kv += s.layer[l].kv_bytes;
            }
            assert_true(held == (double)p->weight_bytes);
            assert_true(kv == (double)plan_kv_token_bytes(p));
            int reduces = s.layer[40].reduces;
            assert_int_equal(reduces, tp == 1 ? 0 : i ? 3 : 2); /* with shared experts three */
            if (!i && tp == 1) { /* 72.7e9 weights, the table aside: a multiply-add each */
                double macs = 0;
                for (int l = 0; l < s.n_layers + 2; l++)
                    macs += s.layer[l].macs[DT_BF16];
                assert_true(macs > 71.4e9 && macs < 71.6e9);
            }
            cost_shape_release(&s);
            plan_free(p);
        }
        close_model(&m);
    }
}

static struct cost estimate(const struct cost_machine *m, const struct cost_shape *s, int pp, int hosts,
                            const struct cost_job *job)
{
    struct cost c;
    struct cost_split x = {s->tp, pp, s->ep, 1, hosts, m->cores / MAX(s->tp * pp / hosts, 1)};
    cost_estimate(m, s, &x, job, &c);
    return c;
}

static void test_monotonic(void **state)
{
    (void)state;
    struct model model;
    struct plan *p;
    open_model(&model, "qwen2-72b");
    struct cost_shape s = shape_at(&model, 4, 1, &p);
    struct cost_machine m = machine(2);
    struct cost base = estimate(&m, &s, 2, 2, &one), c;

    m = machine(2);
    m.host_read *= 2;
    c = estimate(&m, &s, 2, 2, &one);
    assert_true(c.tpot < 0.7 * base.tpot && c.ttft < base.ttft); /* decoding is reading */
    m = machine(2);
    for (int t = 0; t < DT_COUNT; t++)
        m.many[t] *= 2;
    c = estimate(&m, &s, 2, 2, &one);
    assert_true(c.ttft < 0.7 * base.ttft && c.tpot == base.tpot); /* a prompt is arithmetic */
    m = machine(2);
    m.net.latency_s *= 10;
    c = estimate(&m, &s, 2, 2, &one);
    assert_true(c.tpot > base.tpot && c.tpot < base.tpot + 1e-3); /* one message a token */
    m = machine(2);
    m.local.latency_s *= 10;
    c = estimate(&m, &s, 2, 2, &one);
    assert_true(c.decode[PART_LOCAL] > 5 * base.decode[PART_LOCAL]);
    m = machine(2);
    m.local.bytes_s /= 10;
    c = estimate(&m, &s, 2, 2, &one);
    assert_true(c.ttft > base.ttft && c.tpot > base.tpot);

    /* longer contexts cost more; more sequences give more tokens, each of them later */
    m = machine(2);
    struct cost_job job = one;
    job.prompt = 8192;
    job.context = 16384;
    c = estimate(&m, &s, 2, 2, &job);
    assert_true(c.ttft > 5 * base.ttft && c.tpot > base.tpot && c.kv_bytes > 12 * base.kv_bytes);
    c = estimate(&m, &s, 2, 2, &many);
    assert_true(c.throughput > 4 * base.throughput && c.tpot > base.tpot);
    /* two sequences fill two stages: nearly twice the tokens at nearly the same pace */
    job = one;
    job.batch = 2;
    c = estimate(&m, &s, 2, 2, &job);
    assert_true(c.tpot < 1.2 * base.tpot && c.throughput > 1.6 * base.throughput);
    cost_shape_release(&s);
    plan_free(p);
    close_model(&model);
}

static void test_pieces(void **state)
{
    (void)state;
    struct cost_machine m = machine(4);
    double net;
    assert_true(cost_allreduce(&m, 1, 1, 1e6, &net) == 0 && net == 0);
    assert_true(cost_allreduce(&m, 8, 1, 1e6, &net) > cost_allreduce(&m, 2, 1, 1e6, &net) && net == 0);
    assert_true(cost_allreduce(&m, 4, 4, 1e6, &net) == 0 && net > 2 * m.net.latency_s);

    /* one token reads what it chose, however many groups; enough tokens read all */
    assert_true(cost_experts_read(256, 8, 1, 1) > 7.99 && cost_experts_read(256, 8, 1, 1) < 8.01);
    double read = cost_experts_read(256, 8, 8, 1);
    assert_true(read > 1 && read < 5); /* not one each: they do not spread evenly */
    assert_true(cost_experts_read(256, 8, 8, 1000) > 31.9 && cost_experts_read(256, 8, 8, 1e6) <= 32);
    assert_true(cost_experts_pairs(256, 8, 1, 512) == 4096);
    double pairs = cost_experts_pairs(256, 8, 8, 512);
    assert_true(pairs > 512 && pairs < 600);
    assert_true(cost_experts_pairs(8, 2, 8, 1) <= 1);
}

static struct cost *advise(const struct model *model, const struct cost_machine *m,
                           const struct cost_job *job, enum cost_goal goal, size_t *n)
{
    static const struct cost_split all_free;
    struct cost *v = NULL;
    struct err e = {0};
    if (cost_advise(model->g, &model->o, m, job, goal, &all_free, &v, n, &e))
        fail_msg("%s", e.msg);
    return v;
}

static void test_choices(void **state)
{
    (void)state;
    struct model model;
    struct cost *v;
    size_t n;
    open_model(&model, "qwen2-72b");
    struct cost_machine m = machine(4);

    /* a slow network carries hidden rows between stages, not all-reduces */
    m.net = (struct cost_link){500e-6, 0.011e9};
    v = advise(&model, &m, &one, GOAL_LATENCY, &n);
    assert_true(n > 20 && v[0].verdict == COST_GOOD && !v[0].tp_crosses && v[0].split.tp > 1);
    for (size_t i = 0; i < n; i++) {
        const struct cost_split *x = &v[i].split;
        assert_true(v[i].verdict != COST_GOOD || v[i].host_bytes <= m.memory);
        assert_int_equal(x->tp * x->pp * x->dp % x->hosts, 0);
        assert_true(x->threads * x->tp * x->pp * x->dp / x->hosts <= m.cores && x->threads >= 1);
        assert_true(x->dp == 1); /* one sequence has no use for two replicas */
    }
    for (size_t i = 2; i < n && v[i].verdict == COST_GOOD; i++)
        assert_true(v[i].answer_s >= v[i - 1].answer_s);
    xfree(v);
    v = advise(&model, &m, &many, GOAL_THROUGHPUT, &n);
    assert_true(v[0].verdict == COST_GOOD && !v[0].tp_crosses && v[0].split.pp * v[0].split.dp >= 4);
    assert_int_equal(v[0].split.hosts, 4);
    xfree(v);

    /* hosts that hold half of it must share it; smaller ones still, and nothing is left */
    m.memory = 90e9;
    v = advise(&model, &m, &one, GOAL_LATENCY, &n);
    assert_true(v[0].verdict == COST_GOOD && v[0].split.hosts >= 2 && v[0].split.pp >= 2 &&
                v[0].host_bytes <= 90e9);
    xfree(v);
    m.memory = 30e9;
    v = advise(&model, &m, &one, GOAL_LATENCY, &n);
    assert_int_equal(v[0].verdict, COST_TOO_BIG);
    char why[160];
    assert_non_null(strstr(cost_why_not(&v[0], &v[0], &m, GOAL_LATENCY, why, sizeof(why)), "GiB a host"));
    xfree(v);

    /* a network without cost makes one big tensor group the fastest for one sequence */
    m = machine(4);
    m.net = (struct cost_link){1e-7, 1e12};
    v = advise(&model, &m, &one, GOAL_LATENCY, &n);
    assert_true(v[0].tp_crosses && v[0].split.pp == 1 && v[0].split.hosts == 4);
    xfree(v);
    close_model(&model);
}

static void test_experts_are_spread(void **state)
{
    (void)state;
    struct model model;
    struct plan *p;
    size_t n;
    open_model(&model, "deepseek-r1");
    model.o.quant = QUANT_W4;
    struct cost_machine m = machine(4);
    struct cost_shape all = shape_at(&model, 1, 1, &p);
    double whole = (double)p->weight_bytes;
    cost_shape_release(&all);
    plan_free(p);
    struct cost *v = advise(&model, &m, &many, GOAL_THROUGHPUT, &n);
    assert_true(v[0].verdict == COST_GOOD);
    for (size_t i = 0; i < n; i++) { /* each rank has its share of them, whatever the split */
        double share = v[i].weight_bytes * v[i].split.tp * v[i].split.pp / whole;
        if (v[i].split.pp <= 8 && v[i].split.tp <= 16)
            assert_true(share > 0.95 && share < 1.35);
    }
    xfree(v);
    /* one rank's token reads 37 of 671 thousand million weights */
    all = shape_at(&model, 8, 8, &p);
    struct cost c = estimate(&m, &all, 1, 1, &one);
    assert_true(c.read_bytes < 0.2 * c.weight_bytes);
    cost_shape_release(&all);
    plan_free(p);
    close_model(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape_is_the_plan),
        cmocka_unit_test(test_monotonic),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_experts_are_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
