/* Experts larger than memory: with the smallest cache that is legal every logit has the bits of a run with
 * all experts in memory, whatever the model, the company, the chunks, the threads, the split, and whether
 * experts come from a shard set or from a temporary file. Then what goes wrong: no room, a cache too small, a
 * file cut short under the run's feet.
 */
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/shard.h"
#include "tests/model/fixture.h"

#define N_SEQ     3
#define MAX_LANES 4

static char scratch[] = "/var/tmp/yoke_experts_XXXXXX"; /* on a disk, if there is one */

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    return remove(path);
}

static void remove_tree(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int setup(void **state)
{
    return mkdtemp(scratch) ? 0 : -1;
}

static int teardown(void **state)
{
    remove_tree(scratch);
    return 0;
}

static void must(int rc, const struct err *e)
{
    if (rc)
        fail_msg("%s", e->msg);
}

/* --- the same bits --- */

struct workload {
    struct sequence s[N_SEQ];
    size_t n_floats[N_SEQ];
};

static void workload_init(struct workload *w, int32_t vocab)
{
    const int32_t lengths[N_SEQ] = {9, 40, 1};
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

/* chunk: of each sequence a tick; -1: each sequence alone, whole. All lanes do the same. */
static void run_all(struct fixture *f, struct workload *w, int lanes, int32_t chunk)
{
    struct sequence *all[FIXTURE_MAX_LANES] = {0};
    int n[FIXTURE_MAX_LANES] = {0};
    for (int i = 0; i < (chunk < 0 ? N_SEQ : 1); i++) {
        for (int l = 0; l < lanes; l++) {
            all[l] = &w[l].s[i];
            n[l] = chunk < 0 ? 1 : N_SEQ;
        }
        fixture_run_lanes(f, all, n, MAX(chunk, 0));
    }
}

static void expect_same(const struct workload *a, const struct workload *b, int lanes, const char *how)
{
    for (int l = 0; l < lanes; l++)
        for (int i = 0; i < N_SEQ; i++)
            for (size_t k = 0; k < a[l].n_floats[i]; k++)
                if (memcmp(&a[l].s[i].logits[k], &b[l].s[i].logits[k], sizeof(float)))
                    fail_msg("%s: lane %d, sequence %d, logit %zu: %a with all experts in memory, %a here",
                             how, l, i, k, (double)a[l].s[i].logits[k], (double)b[l].s[i].logits[k]);
}

/* The smallest legal cache of rank 0, which has no fewer experts than others. */
static uint64_t least_of(const struct fixture *f)
{
    struct plan_cache c;
    plan_cache(team_plan(f->team), 0, &c);
    return (uint64_t)c.least * c.slot_bytes;
}

static uint64_t misses_of(struct fixture *f)
{
    struct rank_report *all;
    struct err e = {0};
    uint64_t n = 0;
    XNEW_N(all, (size_t)team_size(f->team));
    must(team_report(f->team, all, NULL, &e), &e);
    for (int i = 0; i < team_size(f->team); i++) {
        n += all[i].run.cache.misses;
        assert_true(all[i].run.cache.held <= all[i].run.cache.slots);
    }
    xfree(all);
    return n;
}

static void check_way(const char *model, const char *from, struct fixture_options o)
{
    static const int32_t chunks[] = {-1, 1, 7, 0};
    struct fixture plain, cached;
    struct workload want[MAX_LANES], got[MAX_LANES];
    char how[256];
    int lanes = MAX(o.dp, 1);
    o.level = cpu_level_native();
    fixture_open(&plain, model, o);
    o.expert_cache = least_of(&plain);
    o.spill_dir = scratch;
    fixture_open(&cached, from, o);
    for (int l = 0; l < lanes; l++)
        workload_init(&want[l], plain.vocab);
    run_all(&plain, want, lanes, 0);
    for (size_t c = 0; c < ARRAY_LEN(chunks); c++) {
        snprintf(how, sizeof(how), "%s tp %d pp %d dp %d ep %d, %d threads, quant %d, chunks of %d", from,
                 o.tp, o.pp, o.dp, o.ep, o.threads, o.quant, chunks[c]);
        for (int l = 0; l < lanes; l++)
            workload_init(&got[l], plain.vocab);
        run_all(&cached, got, lanes, chunks[c]);
        expect_same(want, got, lanes, how);
        for (int l = 0; l < lanes; l++)
            workload_release(&got[l]);
    }
    assert_true(o.pp > 1 || misses_of(&cached) > 0);
    for (int l = 0; l < lanes; l++)
        workload_release(&want[l]);
    fixture_close(&plain);
    fixture_close(&cached);
}

/* With experts in two layers at least: the smallest cache is one layer's. */
static const struct subject {
    const char *path;
    enum quant quant;
} subjects[] = {
    {"tests/golden/moe/qwen3moe-h8", QUANT_NONE}, {"tests/golden/moe/deepseek-v2-lite", QUANT_NONE},
    {"tests/golden/moe/qwen2moe", QUANT_NONE},    {"tests/golden/moe/qwen3moe-h8", QUANT_W4},
    {"tests/golden/moe/mixtral", QUANT_W8A8},     {"tests/golden/moe_gguf/qwen3moe-f16.gguf", QUANT_NONE},
};

static void test_bits(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++)
        for (int threads = 1; threads <= 3; threads++)
            check_way(subjects[i].path, subjects[i].path,
                      (struct fixture_options){.tp = 1, .threads = threads, .quant = subjects[i].quant});
}

static void test_splits(void **state)
{
    static const struct {
        int tp, pp, dp, ep, threads;
    } ways[] = {{2, 1, 1, 1, 1}, {2, 1, 1, 2, 2}, {4, 1, 1, 2, 1}, {1, 2, 1, 1, 2},
                {2, 1, 2, 4, 1}, {1, 1, 2, 1, 2}, {1, 1, 4, 4, 1}, {1, 1, 4, 2, 2}};
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < ARRAY_LEN(ways); k++)
            check_way(subjects[i].path, subjects[i].path,
                      (struct fixture_options){.tp = ways[k].tp,
                                               .pp = ways[k].pp,
                                               .dp = ways[k].dp,
                                               .ep = ways[k].ep,
                                               .threads = ways[k].threads});
}

static int write_set(const char *model, const char *out, int tp, int ep, enum quant q)
{
    struct checkpoint *c;
    struct graph *g;
    struct hparams h;
    struct err e;
    char *path = golden_path(model);
    must(checkpoint_open(path, NULL, &c, &e), &e);
    must(model_build(checkpoint_config(c), NULL, &g, &h, &e), &e);
    struct shard_options o = {.out = out, .yoke = "test", .tp = tp, .ep = ep, .quant = q, .threads = 2};
    int rc = shard_write(c, g, &o, NULL, &e);
    must(rc, &e);
    graph_free(g);
    hparams_release(&h);
    checkpoint_close(c);
    xfree(path);
    return rc;
}

static void test_sets(void **state)
{
    char *set = path_join(scratch, "set");
    for (size_t i = 0; i < ARRAY_LEN(subjects); i++)
        for (int tp = 1; tp <= (i ? 1 : 4); tp *= 2) {
            write_set(subjects[i].path, set, tp, tp / 2, subjects[i].quant);
            check_way(
                subjects[i].path, set,
                (struct fixture_options){.tp = tp, .ep = tp / 2, .threads = 2, .quant = subjects[i].quant});
            remove_tree(set);
        }
    xfree(set);
}

/* A set for another split: experts are cut anew, into a temporary file. */
static void test_cut_anew(void **state)
{
    char *set = path_join(scratch, "set");
    write_set(subjects[0].path, set, 4, 2, QUANT_NONE);
    check_way(subjects[0].path, set,
              (struct fixture_options){.tp = 2, .ep = 2, .threads = 1, .reslice = true});
    remove_tree(set);
    xfree(set);
}

/* --- what goes wrong --- */

static int tick(struct fixture *f, int32_t pos, int32_t n, struct err *e)
{
    int32_t token[64], at[64], row[64], pages[64];
    struct span span = {0, n, pos, (pos + n + f->page_tokens - 1) / f->page_tokens, pages};
    struct batch b = {n, n, 1, token, at, row, &span};
    const float *logits;
    for (int32_t i = 0; i < 64; i++)
        pages[i] = i;
    for (int32_t i = 0; i < n; i++) {
        token[i] = (pos + i) * 37 % f->vocab;
        at[i] = pos + i;
        row[i] = i;
    }
    return team_tick(f->team, &b, &logits, e);
}

static void open_cached(struct fixture *f, const char *set, struct fixture_options o)
{
    o.level = cpu_level_native();
    fixture_open(f, set, o);
    o.expert_cache = least_of(f);
    fixture_close(f);
    fixture_open(f, set, o);
}

/* The file of one rank is cut while the run is under way: the tick fails, with the name of what could not be
 * read, on this rank and on all others, and everything still ends. */
static void test_file_cut(void **state)
{
    char *set = path_join(scratch, "set");
    static const struct {
        int tp, ep, rank; /* whose file */
    } ways[] = {{1, 1, 0}, {2, 1, 0}, {2, 1, 1}, {2, 2, 1}, {4, 2, 3}};
    alarm(120); /* never a hang */
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        char *file = xasprintf("%s/rank_%04d_of_%04d.yoke", set, ways[i].rank, ways[i].tp),
             *name = strrchr(file, '/') + 1;
        struct fixture f;
        struct err e = {0};
        write_set(subjects[0].path, set, ways[i].tp, ways[i].ep, QUANT_NONE);
        open_cached(&f, set, (struct fixture_options){.tp = ways[i].tp, .ep = ways[i].ep, .threads = 2});
        must(tick(&f, 0, 20, &e), &e);
        assert_int_equal(truncate(file, 5000), 0);
        int rc = tick(&f, 20, 20, &e);
        assert_int_equal(rc, ways[i].rank ? ERR_RANK_LOST : ERR_IO);
        if (!strstr(e.msg, "cannot read expert") || !strstr(e.msg, name) || !strstr(e.msg, "of layer "))
            fail_msg("%s", e.msg);
        assert_true(tick(&f, 40, 1, &e) != 0); /* and so do all that follow */
        fixture_close(&f);
        remove_tree(set);
        xfree(file);
    }
    alarm(0);
    xfree(set);
}

static int open_team(const struct fixture *f, struct team_options o, struct warn_sink *warn, struct err *e)
{
    struct team *t = NULL;
    o.threads = 1;
    o.level = cpu_level_native();
    o.page_tokens = 16;
    o.n_pages = 4;
    o.max_tokens = o.max_out = 8;
    o.max_spans = 1;
    int rc = team_open(f->checkpoint, f->graph, &o, warn, &t, e);
    team_close(rc ? NULL : t);
    return rc;
}

struct one_warning {
    struct warn_sink sink; /* first */
    char text[512];
    int n;
};

static void keep_warning(struct warn_sink *s, const char *sentence)
{
    struct one_warning *x = (struct one_warning *)s;
    snprintf(x->text, sizeof(x->text), "%s", sentence);
    x->n++;
}

static void test_sentences(void **state)
{
    struct fixture f;
    struct err e = {0};
    struct one_warning w = {.sink = {keep_warning}};
    char *nowhere = path_join(scratch, "nowhere"), number[32];
    fixture_open(&f, subjects[0].path, (struct fixture_options){.level = cpu_level_native()});
    uint64_t least = least_of(&f);
    snprintf(number, sizeof(number), "--expert-cache %llu at", (unsigned long long)least);

    assert_int_equal(
        open_team(&f, (struct team_options){.expert_cache = least - 1, .spill_dir = scratch}, NULL, &e),
        ERR_MEMORY);
    assert_non_null(strstr(e.msg, "should hold the 8 of one layer"));
    assert_non_null(strstr(e.msg, number));

    assert_int_equal(
        open_team(&f, (struct team_options){.expert_cache = least, .spill_dir = nowhere}, NULL, &e), ERR_IO);
    assert_non_null(strstr(e.msg, nowhere));
    assert_non_null(strstr(e.msg, "--expert-cache-dir"));
    /* with room for all nothing is written */
    must(open_team(&f, (struct team_options){.expert_cache = UINT64_MAX, .spill_dir = nowhere}, NULL, &e),
         &e);

    must(open_team(&f, (struct team_options){.expert_cache = least, .spill_dir = "/dev/shm"}, &w.sink, &e),
         &e);
    assert_int_equal(w.n, 1);
    assert_non_null(strstr(w.text, "/dev/shm lies in memory"));

    /* a disk that is full, as far as a process can tell */
    struct rlimit was, now;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    now = (struct rlimit){10000, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
    int rc =
        open_team(&f, (struct team_options){.expert_cache = least, .spill_dir = scratch, .tp = 2}, NULL, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_true(rc == ERR_IO || rc == ERR_RANK_LOST);
    assert_non_null(strstr(e.msg, "has no room for"));
    assert_non_null(strstr(e.msg, scratch));
    xfree(nowhere);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),     cmocka_unit_test(test_splits),   cmocka_unit_test(test_sets),
        cmocka_unit_test(test_cut_anew), cmocka_unit_test(test_file_cut), cmocka_unit_test(test_sentences),
    };
    return cmocka_run_group_tests_name("experts", tests, setup, teardown);
}
