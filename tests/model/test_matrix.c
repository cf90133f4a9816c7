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

/* Runs all sequences in company and each alone, and compares. */
static void check_team(struct fixture *f, const struct subject *x, const struct workload *want,
                       struct fixture_options o, struct tally *t)
{
    char how[160];
    snprintf(how, sizeof(how), "%s tp %d pp %d ep %d dp %d, quant %d, kv %d", x->path, o.tp, o.pp, o.ep, o.dp,
             o.quant, o.kv);
    bool bits = team_plan(f->team)->bits_equal;
    double bound = bits ? 0 : 1e-5;
    struct workload got[MAX_RANKS];
    struct sequence *all[FIXTURE_MAX_LANES] = {0};
    int n[FIXTURE_MAX_LANES] = {0};
    for (int lane = 0; lane < o.dp; lane++) {
        workload_init(&got[lane], f->vocab);
        all[lane] = got[lane].s;
        n[lane] = N_SEQ;
    }
    for (int alone = 0; alone < 2; alone++) {
        if (!alone)
            fixture_run_lanes(f, all, n, 13);
        else /* each sequence by itself, in one lane; the others idle */
            for (int i = 0; i < N_SEQ; i++) {
                struct sequence *one[FIXTURE_MAX_LANES] = {0};
                int lane = i % o.dp, ns[FIXTURE_MAX_LANES] = {0};
                one[lane] = &got[lane].s[i];
                ns[lane] = 1;
                fixture_run_lanes(f, one, ns, 0);
            }
        for (int lane = 0; lane < o.dp; lane++)
            compare(want, &got[lane], bits, bound, t, how);
    }
    for (int lane = 0; lane < o.dp; lane++)
        workload_release(&got[lane]);
}

static void check_split(const struct subject *x, const struct workload *want, struct fixture_options o,
                        struct tally *t)
{
    struct fixture f;
    fixture_open(&f, x->path, o);
    check_team(&f, x, want, o, t);
    fixture_close(&f);
}

static struct fixture_options one_rank(enum quant quant, enum kv_dtype kv)
{
    return (struct fixture_options){
        .tp = 1, .pp = 1, .dp = 1, .ep = 1, .quant = quant, .kv = kv, .level = cpu_level_native()};
}

static void run_one_rank(const struct subject *x, enum quant quant, enum kv_dtype kv, struct workload *want)
{
    struct fixture f;
    fixture_open(&f, x->path, one_rank(quant, kv));
    workload_init(want, f.vocab);
    for (int i = 0; i < N_SEQ; i++)
        fixture_run(&f, &want->s[i], 1, 0);
    fixture_close(&f);
}

typedef void split_fn(const struct subject *x, struct fixture_options o, void *ctx);

static void each_split(const struct subject *x, enum quant quant, enum kv_dtype kv, split_fn *fn, void *ctx)
{
    struct fixture_options o = one_rank(quant, kv);
    for (o.tp = 1; o.tp <= MAX_RANKS; o.tp++)
        for (o.pp = 1; o.tp * o.pp <= MAX_RANKS; o.pp++)
            for (o.dp = 1; o.tp * o.pp * o.dp <= MAX_RANKS; o.dp++)
                for (o.ep = 1; o.ep <= (x->experts ? o.tp * o.dp : 1); o.ep++)
                    if (legal(x, o))
                        fn(x, o, ctx);
}

struct check {
    struct workload want;
    struct tally t;
};

static void check_one(const struct subject *x, struct fixture_options o, void *ctx)
{
    struct check *c = ctx;
    check_split(x, &c->want, o, &c->t);
}

static void check_subject(const struct subject *x, enum quant quant, enum kv_dtype kv)
{
    struct check c = {0};
    run_one_rank(x, quant, kv, &c.want);
    each_split(x, quant, kv, check_one, &c);
    printf("%-36s quant %d kv %d: %d splits with the same bits, %d within %.1e\n", x->path, quant, kv,
           c.t.equal, c.t.near, c.t.worst);
    assert_true(c.t.equal > 10);
    workload_release(&c.want);
}

static void test_floats(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++) {
        check_subject(&subjects[i], QUANT_NONE, KV_F32);
        if (!FIXTURE_SANITIZED)
            check_subject(&subjects[i], QUANT_NONE, KV_I8);
    }
}

static void test_int8(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++) {
        check_subject(&subjects[i], QUANT_W8A8, i % 2 ? KV_F16 : KV_I8);
        if (!FIXTURE_SANITIZED)
            check_subject(&subjects[i], QUANT_W8A8, i % 2 ? KV_I8 : KV_F16);
    }
}

/* --- over MPI: one split a launch (mpi_matrix.sh) --- */

static void print_split(const struct subject *x, struct fixture_options o, void *ctx)
{
    if (o.tp * o.pp * o.dp == *(int *)ctx)
        printf("%d %d %d %d %d %d %d\n", (int)(x - subjects), o.quant, o.kv, o.tp, o.pp, o.dp, o.ep);
}

static FILE *answers(const struct subject *x, enum quant quant, enum kv_dtype kv, const char *mode)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%d-%d-%d", getenv("YOKE_ANSWERS"), (int)(x - subjects), quant, kv);
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    return f;
}

static const struct {
    enum quant quant;
    enum kv_dtype kv;
} formats[] = {{QUANT_NONE, KV_F32}, {QUANT_NONE, KV_I8}, {QUANT_W8A8, KV_F16}, {QUANT_W8A8, KV_I8}};

static int list_splits(int ranks)
{
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++)
        for (size_t k = 0; k < ARRAY_LEN(formats); k++)
            each_split(&subjects[i], formats[k].quant, formats[k].kv, print_split, &ranks);
    return 0;
}

static int write_answers(void)
{
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++)
        for (size_t k = 0; k < ARRAY_LEN(formats); k++) {
            struct workload w;
            run_one_rank(&subjects[i], formats[k].quant, formats[k].kv, &w);
            FILE *f = answers(&subjects[i], formats[k].quant, formats[k].kv, "wb");
            for (int s = 0; s < N_SEQ; s++)
                fwrite(w.s[s].logits, sizeof(float), w.n_floats[s], f);
            fclose(f);
            workload_release(&w);
        }
    return 0;
}

static int run_over_mpi(char **v)
{
    const struct subject *x = &subjects[atoi(v[0])];
    struct fixture_options o = one_rank((enum quant)atoi(v[1]), (enum kv_dtype)atoi(v[2]));
    o.tp = atoi(v[3]);
    o.pp = atoi(v[4]);
    o.dp = atoi(v[5]);
    o.ep = atoi(v[6]);
    struct fixture f;
    struct err e = {0};
    fixture_open(&f, x->path, o);
    if (team_is_worker(f.team)) {
        int rc = team_serve(f.team, &e);
        fixture_close(&f);
        return rc != 0;
    }
    struct check c = {0};
    workload_init(&c.want, f.vocab);
    FILE *in = answers(x, o.quant, o.kv, "rb");
    for (int s = 0; s < N_SEQ; s++)
        assert_int_equal(fread(c.want.s[s].logits, sizeof(float), c.want.n_floats[s], in),
                         c.want.n_floats[s]);
    fclose(in);
    check_team(&f, x, &c.want, o, &c.t);
    printf("%s tp %d pp %d dp %d ep %d quant %d kv %d: %s %.1e\n", x->path, o.tp, o.pp, o.dp, o.ep, o.quant,
           o.kv, c.t.equal ? "same bits" : "within", c.t.worst);
    workload_release(&c.want);
    fixture_close(&f);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--write"))
        return write_answers();
    if (argc == 3 && !strcmp(argv[1], "--list"))
        return list_splits(atoi(argv[2]));
    if (argc == 9 && !strcmp(argv[1], "--mpi"))
        return run_over_mpi(argv + 2);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_floats), cmocka_unit_test(test_int8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
