/* Every way to split a model over up to 8 ranks: tensor x pipeline x expert x data degrees, for a dense model
 * and for each kind of expert model, in floats and in int8, with and without an int8 KV cache, one sequence
 * and several.
 *
 * Where the plan promises one rank's bits they are compared as bits; elsewhere (degrees that do not divide
 * the summation tree, experts sliced within) logits agree within 1e-5 of their scale in floats. With int8
 * weights such a degree also cuts what shares a scale differently, so there the bound is that of the
 * quantisation.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "tests/model/fixture.h"

#define N_SEQ     3
#define MAX_RANKS 8

static const struct subject {
    const char *path;
    bool experts;
} subjects[] = {
    {"tests/golden/models/llama-h8d32", false},  {"tests/golden/models/qwen2-h14kv2", false},
    {"tests/golden/moe/qwen3moe-h8", true},      {"tests/golden/moe/qwen2moe", true},
    {"tests/golden/moe/mixtral", true},          {"tests/golden/moe/deepseek-v3-h8", true},
    {"tests/golden/moe/deepseek-v2-lite", true},
};

struct workload {
    struct sequence s[N_SEQ];
    size_t n_floats[N_SEQ];
};

static void workload_init(struct workload *w, int32_t vocab)
{
    const int32_t lengths[N_SEQ] = {9, 70, 1};
    for (int i = 0; i < N_SEQ; i++) {
        w->n_floats[i] = (size_t)lengths[i] * (size_t)vocab;
        sequence_init(&w->s[i], lengths[i], vocab, (unsigned)i);
    }
}

static void workload_release(struct workload *w)
{
    for (int i = 0; i < N_SEQ; i++)
        sequence_release(&w->s[i]);
}

static double scale_of(const struct workload *w)
{
    double sum = 0, n = 0;
    for (int i = 0; i < N_SEQ; i++)
        for (size_t k = 0; k < w->n_floats[i]; k++, n++)
            sum += (double)w->s[i].logits[k] * (double)w->s[i].logits[k];
    return sqrt(sum / n);
}

struct tally {
    int equal, near;
    double worst; /* of those that are near, in units of the scale */
};

static void compare(const struct workload *want, const struct workload *got, bool bits, double bound,
                    struct tally *t, const char *how)
{
    double scale = scale_of(want);
    for (int i = 0; i < N_SEQ; i++)
        for (size_t k = 0; k < want->n_floats[i]; k++) {
            float a = want->s[i].logits[k], b = got->s[i].logits[k];
            if (bits && memcmp(&a, &b, sizeof(a)))
                fail_msg("%s: sequence %d, logit %zu: %a on one rank, %a here", how, i, k, (double)a,
                         (double)b);
            double d = fabs((double)a - (double)b) / scale;
            if (!(d <= bound))
                fail_msg("%s: sequence %d, logit %zu is off by %g of the scale", how, i, k, d);
            t->worst = fmax(t->worst, d);
        }
    *(bits ? &t->equal : &t->near) += 1;
}

/* Can this model be split so? The plan says it without loading. */
static bool legal(const struct subject *x, struct fixture_options o)
{
    static struct fixture f; /* its graph, once a subject */
    static const struct subject *of;
    if (of != x) {
        if (of)
            fixture_close(&f);
        of = x;
        fixture_open(&f, x->path, (struct fixture_options){0});
    }
    struct checkpoint_source source;
    struct plan *p = NULL;
    struct err e;
    checkpoint_source_init(&source, f.checkpoint);
    struct plan_options po = {.tp = o.tp,
                              .pp = o.pp,
                              .dp = o.dp,
                              .ep = o.ep,
                              .source = &source.base,
                              .quant = o.quant,
                              .max_tokens = 256,
                              .max_out = 256,
                              .page_tokens = 16};
    bool ok = plan_make(f.graph, &po, &p, &e) == 0;
    plan_free(p);
    return ok;
}

static void check_split(const struct subject *x, const struct workload *want, struct fixture_options o,
                        struct tally *t)
{
    struct fixture f;
    char how[160];
    snprintf(how, sizeof(how), "%s tp %d pp %d ep %d dp %d, quant %d, kv %d", x->path, o.tp, o.pp, o.ep, o.dp,
             o.quant, o.kv);
    fixture_open(&f, x->path, o);
    bool bits = team_plan(f.team)->bits_equal;
    double bound = bits ? 0 : o.quant ? 0.25 : o.kv == KV_I8 ? 2e-2 : 1e-5;
    struct workload got[MAX_RANKS];
    struct sequence *all[FIXTURE_MAX_LANES] = {0};
    int n[FIXTURE_MAX_LANES] = {0};
    for (int lane = 0; lane < o.dp; lane++) {
        workload_init(&got[lane], f.vocab);
        all[lane] = got[lane].s;
        n[lane] = N_SEQ;
    }
    for (int alone = 0; alone < 2; alone++) {
        if (!alone)
            fixture_run_lanes(&f, all, n, 13);
        else /* each sequence by itself, in one lane; the others idle */
            for (int i = 0; i < N_SEQ; i++) {
                struct sequence *one[FIXTURE_MAX_LANES] = {0};
                int lane = i % o.dp, ns[FIXTURE_MAX_LANES] = {0};
                one[lane] = &got[lane].s[i];
                ns[lane] = 1;
                fixture_run_lanes(&f, one, ns, 0);
            }
        for (int lane = 0; lane < o.dp; lane++)
            compare(want, &got[lane], bits, bound, t, how);
    }
    for (int lane = 0; lane < o.dp; lane++)
        workload_release(&got[lane]);
    fixture_close(&f);
}

static void check_subject(const struct subject *x, enum quant quant, enum kv_dtype kv)
{
    struct fixture_options one = {
        .tp = 1, .pp = 1, .dp = 1, .ep = 1, .quant = quant, .kv = kv, .level = cpu_level_native()};
    struct fixture f;
    struct workload want;
    struct tally t = {0};
    fixture_open(&f, x->path, one);
    workload_init(&want, f.vocab);
    for (int i = 0; i < N_SEQ; i++)
        fixture_run(&f, &want.s[i], 1, 0);
    fixture_close(&f);
    for (int tp = 1; tp <= MAX_RANKS; tp++)
        for (int pp = 1; tp * pp <= MAX_RANKS; pp++)
            for (int dp = 1; tp * pp * dp <= MAX_RANKS; dp++)
                for (int ep = 1; ep <= (x->experts ? tp * dp : 1); ep++) {
                    struct fixture_options o = one;
                    o.tp = tp;
                    o.pp = pp;
                    o.dp = dp;
                    o.ep = ep;
                    if (legal(x, o))
                        check_split(x, &want, o, &t);
                }
    printf("%-36s quant %d kv %d: %d splits with the same bits, %d within %.1e\n", x->path, quant, kv,
           t.equal, t.near, t.worst);
    assert_true(t.equal > 10);
    workload_release(&want);
}

static void test_floats(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++)
        check_subject(&subjects[i], QUANT_NONE, KV_F32);
}

static void test_int8(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++)
        check_subject(&subjects[i], QUANT_W8A8, i % 2 ? KV_F16 : KV_I8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_floats), cmocka_unit_test(test_int8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
