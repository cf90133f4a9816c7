/* Invariant 1: the bits do not depend on the company, the chunking, the threads, the page size or the degree.
 *
 * A set of sequences is run alone at tp 1 with one thread; then together in several orders, in chunks of 1, 7
 * and all, with 2 threads, with other pages, and at tensor-parallel degree 2, 4 and 8. All logits must be
 * equal bit by bit, in each weight format. Under an MPI launcher (`--mpi`) the degree is the number of ranks
 * (of replicas, where a subject's experts are spread), and rank 0 compares with logits of one rank that an
 * earlier run without a launcher left in a file.
 */
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

#define N_SEQ 4

static const struct subject {
    const char *path;
    enum quant quant;
    enum kv_dtype kv;
    int max_tp;
    int ep; /* under a launcher: as many replicas as ranks, experts spread over them; 0: tp */
} subjects[] = {
    {"tests/golden/models/llama-h8kv8", QUANT_NONE, KV_F32, 8}, /* bf16 */
    {"tests/golden/models/llama-bias-f32", QUANT_NONE, KV_F16, 4},
    {"tests/golden/gguf/llama-f32.gguf", QUANT_NONE, KV_F32, 4},
    {"tests/golden/models/llama-h8d32", QUANT_W8A8, KV_F32, 8},
    {"tests/golden/models/llama-h8d32", QUANT_W4, KV_I8, 8},
    {"tests/golden/models/llama-h8kv8", QUANT_W8A8, KV_F32, 4},   /* heads in pairs: 8 groups of 32 */
    {"tests/golden/models/qwen2-h14kv2", QUANT_NONE, KV_BF16, 8}, /* uneven heads, KV heads shared by ranks */
    {"tests/golden/models/llama-h9kv3", QUANT_NONE, KV_F16, 8},
    {"tests/golden/models/qwen2-window", QUANT_NONE, KV_F32, 4},
    {"tests/golden/models/qwen2-window", QUANT_W8A8, KV_I8,
     1}, /* heads of 12: no group of 32 falls on a head */
    {"tests/golden/models/qwen3-tied", QUANT_NONE, KV_F32, 4},
    {"tests/golden/models/qwen3-bias", QUANT_W4, KV_F32, 2},
    {"tests/golden/gguf/llama-q4_1.gguf", QUANT_NONE, KV_F16, 2},   /* ffn has 4 groups, heads 3 pairs */
    {"tests/golden/gguf/llama-q4_k_m.gguf", QUANT_NONE, KV_F16, 8}, /* slices begin inside blocks of 256 */
    {"tests/golden/gguf/llama-q6_k.gguf", QUANT_NONE, KV_I8, 8},
    {"tests/golden/gguf/qwen3-mixed-yarn.gguf", QUANT_NONE, KV_F16, 4},
    {"tests/golden/moe/qwen3moe-h8", QUANT_NONE, KV_F32, 1, 2}, /* 2 ranks: whole experts; 4: halves */
    {"tests/golden/moe/qwen3moe-h8", QUANT_W8A8, KV_F16, 1, 2},
};

struct workload {
    struct sequence s[N_SEQ];
    size_t vocab;
};

static void workload_init(struct workload *w, int32_t vocab)
{
    const int32_t lengths[N_SEQ] = {1, 23, 131, 64};
    w->vocab = (size_t)vocab;
    for (int i = 0; i < N_SEQ; i++) {
        sequence_init(&w->s[i], lengths[i], vocab, (unsigned)i);
    }
}

static void workload_release(struct workload *w)
{
    for (int i = 0; i < N_SEQ; i++)
        sequence_release(&w->s[i]);
}

/* The reference: each sequence alone, one thread, one rank. */
static void run_alone(const struct subject *x, struct workload *w)
{
    struct fixture f;
    fixture_open(&f, x->path,
                 (struct fixture_options){.quant = x->quant, .kv = x->kv, .level = cpu_level_native()});
    workload_init(w, f.vocab);
    for (int i = 0; i < N_SEQ; i++)
        fixture_run(&f, &w->s[i], 1, 0);
    fixture_close(&f);
}

static void expect_equal(const struct subject *x, const struct workload *want, const struct workload *got,
                         const int *order, const char *how)
{
    for (int i = 0; i < N_SEQ; i++) {
        const struct sequence *a = &want->s[order[i]], *b = &got->s[i];
        size_t n = (size_t)a->n * want->vocab;
        for (size_t k = 0; k < n; k++)
            if (memcmp(&a->logits[k], &b->logits[k], sizeof(float)))
                fail_msg("%s quant %d, %s: sequence %d, position %zu, id %zu: %a alone, %a in company",
                         x->path, x->quant, how, order[i], k / want->vocab, k % want->vocab,
                         (double)a->logits[k], (double)b->logits[k]);
    }
}

static void run_in_company(const struct subject *x, struct fixture *f, const struct workload *want,
                           const char *how)
{
    static const int orders[][N_SEQ] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
    static const int32_t chunks[] = {0, 7, 1};
    for (size_t o = 0; o < ARRAY_LEN(orders); o++) {
        struct workload got;
        workload_init(&got, f->vocab);
        struct sequence shuffled[N_SEQ];
        for (int i = 0; i < N_SEQ; i++)
            shuffled[i] = got.s[orders[o][i]];
        memcpy(got.s, shuffled, sizeof(shuffled));
        fixture_run(f, got.s, N_SEQ, chunks[o]);
        expect_equal(x, want, &got, orders[o], how);
        workload_release(&got);
    }
}

static void test_company(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++) {
        const struct subject *x = &subjects[i];
        struct workload want;
        run_alone(x, &want);
        const struct {
            int tp, threads;
            int32_t page, max_tokens;
        } ways[] = {{1, 1, 32, 64},  {1, 2, 16, 256}, {1, 3, 128, 256}, {2, 1, 16, 256},
                    {2, 2, 64, 100}, {4, 1, 16, 256}, {8, 1, 32, 256}};
        for (size_t k = 0; k < ARRAY_LEN(ways); k++) {
            if (ways[k].tp > x->max_tp)
                continue;
            struct fixture f;
            char how[96];
            snprintf(how, sizeof(how), "tp %d, %d threads, pages of %d, ticks of %d", ways[k].tp,
                     ways[k].threads, ways[k].page, ways[k].max_tokens);
            fixture_open(&f, x->path,
                         (struct fixture_options){.tp = ways[k].tp,
                                                  .threads = ways[k].threads,
                                                  .quant = x->quant,
                                                  .kv = x->kv,
                                                  .level = cpu_level_native(),
                                                  .page_tokens = ways[k].page,
                                                  .max_tokens = ways[k].max_tokens});
            assert_true(team_plan(f.team)->bits_equal);
            run_in_company(x, &f, &want, how);
            fixture_close(&f);
        }
        workload_release(&want);
    }
}

/* Integer and float kernels of every CPU level define one arithmetic: the bits are the same across levels
 * too. */
static void test_levels(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++) {
        struct workload want;
        const int order[N_SEQ] = {0, 1, 2, 3};
        run_alone(&subjects[i], &want);
        for (enum cpu_level l = CPU_C; l < cpu_level_native(); l++) {
            struct fixture f;
            struct workload got;
            fixture_open(
                &f, subjects[i].path,
                (struct fixture_options){.quant = subjects[i].quant, .kv = subjects[i].kv, .level = l});
            workload_init(&got, f.vocab);
            fixture_run(&f, got.s, N_SEQ, 0);
            expect_equal(&subjects[i], &want, &got, order, cpu_level_name(l));
            workload_release(&got);
            fixture_close(&f);
        }
        workload_release(&want);
    }
}

/* Degrees that the tree cannot carry still compute the model: near, not equal, and the plan says so. */
static void test_other_degrees(void **state)
{
    (void)state;
    const int degrees[] = {3, 5, 6, 7};
    struct workload want;
    run_alone(&subjects[0], &want);
    for (size_t i = 0; i < ARRAY_LEN(degrees); i++) {
        struct fixture f;
        struct workload got;
        fixture_open(&f, subjects[0].path,
                     (struct fixture_options){.tp = degrees[i], .level = cpu_level_native()});
        assert_false(team_plan(f.team)->bits_equal);
        workload_init(&got, f.vocab);
        fixture_run(&f, got.s, N_SEQ, 0);
        for (int k = 0; k < N_SEQ; k++)
            for (size_t n = 0; n < (size_t)got.s[k].n * got.vocab; n++)
                assert_true(got.s[k].logits[n] - want.s[k].logits[n] < 1e-3f &&
                            want.s[k].logits[n] - got.s[k].logits[n] < 1e-3f);
        workload_release(&got);
        fixture_close(&f);
    }
    workload_release(&want);
}

/* --- under a launcher --- */

static void answers_file(char *path, size_t n, size_t subject)
{
    const char *dir = getenv("YOKE_ANSWERS");
    snprintf(path, n, "%s/bits-%zu.f32", dir ? dir : ".", subject);
}

/* One rank, no launcher: leaves the logits of every subject in files. */
static int write_answers(void)
{
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++) {
        char path[512];
        struct workload w;
        run_alone(&subjects[i], &w);
        answers_file(path, sizeof(path), i);
        FILE *out = fopen(path, "wb");
        if (!out)
            return 1;
        for (int k = 0; k < N_SEQ; k++)
            fwrite(w.s[k].logits, sizeof(float), (size_t)w.s[k].n * w.vocab, out);
        if (fclose(out))
            return 1;
        workload_release(&w);
    }
    return 0;
}

static bool takes(size_t subject, int ranks)
{
    const struct subject *x = &subjects[subject];
    return x->ep || ranks <= x->max_tp;
}

/* All ranks, one subject a launch (a process joins one world in its life); rank 0 compares. */
static int compare_with_answers(size_t subject, int ranks)
{
    const struct subject *x = &subjects[subject];
    int tp = x->ep ? 1 : ranks, dp = x->ep ? ranks : 1;
    struct fixture f;
    struct workload want, got;
    char path[512];
    int bad = 0;
    fixture_open(
        &f, x->path,
        (struct fixture_options){
            .tp = tp, .dp = dp, .ep = x->ep, .quant = x->quant, .kv = x->kv, .level = cpu_level_native()});
    if (team_is_worker(f.team)) {
        struct err e = {0};
        bad = team_serve(f.team, &e) != 0;
        fixture_close(&f);
        return bad;
    }
    workload_init(&want, f.vocab);
    workload_init(&got, f.vocab);
    struct sequence *all[FIXTURE_MAX_LANES] = {0};
    int n[FIXTURE_MAX_LANES] = {0}, busy = MAX(dp - 1, 1); /* the last of several replicas is idle */
    for (int lane = 0; lane < busy; lane++) {
        int first = lane * N_SEQ / busy;
        all[lane] = &got.s[first];
        n[lane] = (lane + 1) * N_SEQ / busy - first;
    }
    fixture_run_lanes(&f, all, n, 7);
    answers_file(path, sizeof(path), subject);
    FILE *in = fopen(path, "rb");
    for (int k = 0; k < N_SEQ && in; k++) {
        size_t floats = (size_t)want.s[k].n * want.vocab;
        if (fread(want.s[k].logits, sizeof(float), floats, in) != floats ||
            memcmp(want.s[k].logits, got.s[k].logits, floats * sizeof(float)))
            bad = 1;
    }
    printf("%s over %d %s ranks: %s\n", x->path, ranks, team_transport(f.team),
           bad || !in ? "DIFFERS" : "same bits");
    if (in)
        fclose(in);
    else
        bad = 1;
    workload_release(&want);
    workload_release(&got);
    fixture_close(&f);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--write"))
        return write_answers();
    if (argc == 2 && !strcmp(argv[1], "--count")) {
        printf("%zu\n", ARRAY_LEN(subjects));
        return 0;
    }
    if (argc == 4 && !strcmp(argv[1], "--takes")) /* a launch that has nothing to do takes as long as any */
        return !takes((size_t)atoi(argv[2]), atoi(argv[3]));
    if (argc == 4 && !strcmp(argv[1], "--mpi"))
        return compare_with_answers((size_t)atoi(argv[2]), atoi(argv[3]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_other_degrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
