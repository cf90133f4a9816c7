/* Generation by the engine, on every golden checkpoint: the greedy tokens are transformers' (where the
 * arithmetic is exact), and no token, greedy or drawn, depends on company, order, chunks, preemption,
 * recomputing or ranks.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "engine/internal.h"
#include "tests/model/fixture.h"

enum { MAX_CASES = 16, MAX_NEW = 24, MAX_CONTEXT = 400, PAGE_TOKENS = 4 };

/* One request, and what it must yield. */
struct gen {
    int32_t *prompt;
    int32_t n_prompt, n_want;
    int32_t want[MAX_NEW];
    bool known; /* want and finish are; otherwise the first run says */
    enum finish finish;
    struct request_params params;
    struct request *r;
};

struct model {
    struct gen gens[MAX_CASES];
    int n;
    int32_t *eos;
    int32_t n_eos;
};

static void read_model(struct model *m, const char *json_path)
{
    json_t *j = golden_json(json_path), *p;
    bool exact = !json_is_false(json_object_get(j, "exact"));
    memset(m, 0, sizeof(*m));
    m->eos = golden_ids(json_object_get(j, "eos"), &m->n_eos);
    size_t i;
    json_array_foreach(json_object_get(j, "prompts"), i, p)
    {
        assert_true(m->n + 2 <= MAX_CASES);
        struct gen *g = &m->gens[m->n++], *drawn = &m->gens[m->n++];
        int32_t n;
        int32_t *greedy = golden_ids(json_object_get(p, "greedy"), &n);
        assert_in_range(n, exact, MAX_NEW);
        g->prompt = golden_ids(json_object_get(p, "ids"), &g->n_prompt);
        g->params = (struct request_params){
            .sampling = SAMPLING_INIT, .max_new_tokens = MAX_NEW, .eos = m->eos, .n_eos = m->n_eos};
        *drawn = *g; /* shares the prompt */
        drawn->params.sampling = (struct sampling){.temperature = 0.9,
                                                   .top_k = 40,
                                                   .top_p = 0.95,
                                                   .repetition_penalty = 1.1,
                                                   .frequency_penalty = 0.1,
                                                   .seed = 1000 + i};
        drawn->params.min_new_tokens = 10;
        const char *finish = json_string_value(json_object_get(p, "finish"));
        g->known = exact;
        g->n_want = n;
        memcpy(g->want, greedy, sizeof(int32_t) * (size_t)n);
        g->finish = finish && !strcmp(finish, "eos") ? FINISH_EOS : FINISH_LENGTH;
        xfree(greedy);
    }
    json_decref(j);
}

static void release_model(struct model *m)
{
    for (int i = 0; i < m->n; i += 2)
        xfree(m->gens[i].prompt);
    xfree(m->eos);
}

/* --- a way to run them --- */

enum order { FORWARD, BACKWARD, SHUFFLED, LATE /* each joins two ticks after the one before */ };

struct way {
    const char *name;
    bool alone;
    enum order order;
    int32_t chunk, max_batch, n_pages; /* 0 pages: plenty */
    bool recompute;
    bool split; /* with two ranks, too (slow where cores are few) */
};

static void check_gen(struct gen *g, const char *what, const char *way, int i)
{
    struct request_view v;
    request_look(g->r, &v);
    if (!g->known) {
        g->known = true;
        g->finish = v.finish;
        g->n_want = v.n_output;
        memcpy(g->want, v.output, sizeof(int32_t) * (size_t)v.n_output);
    }
    if (v.n_output != g->n_want || memcmp(v.output, g->want, sizeof(int32_t) * (size_t)v.n_output))
        fail_msg("%s, %s: request %d differs", what, way, i);
    assert_int_equal(v.finish, g->finish);
}

static int tick(void *ctx, const struct batch *b, const float **ret_logits, struct err *e)
{
    return team_tick(ctx, b, ret_logits, e);
}

static struct engine *open_engine(struct fixture *f, const struct way *w)
{
    const struct team_options *t = team_options(f->team);
    const struct backend b = {.tick = tick,
                              .ctx = f->team,
                              .n_vocab = f->vocab,
                              .page_tokens = t->page_tokens,
                              .n_pages = w->n_pages ? w->n_pages : t->n_pages,
                              .max_tokens = t->max_tokens,
                              .max_out = t->max_out,
                              .max_spans = t->max_spans};
    const struct engine_options o = {.max_batch = w->max_batch ? w->max_batch : FIXTURE_MAX_SPANS,
                                     .max_context = MAX_CONTEXT,
                                     .prefill_chunk = w->chunk ? w->chunk : MAX_CONTEXT,
                                     .recompute = w->recompute};
    struct engine *en;
    struct err e = {0};
    if (engine_new_on(&b, &o, &en, &e))
        fail_msg("%s", e.msg);
    return en;
}

static void add(struct engine *en, struct gen *g)
{
    struct err e = {0};
    if (engine_add(en, g->prompt, g->n_prompt, &g->params, NULL, NULL, &g->r, &e))
        fail_msg("%s", e.msg);
}

static int32_t step(struct engine *en)
{
    struct err e = {0};
    int32_t left;
    if (engine_step(en, &left, &e))
        fail_msg("%s", e.msg);
    return left;
}

static void run_way(struct fixture *f, struct model *m, const char *what, const struct way *w)
{
    struct engine *en = open_engine(f, w);
    struct engine_stats stats;
    for (int k = 0; k < m->n; k++) {
        int i = w->order == BACKWARD ? m->n - 1 - k : w->order == SHUFFLED ? (k * 7 + 3) % m->n : k;
        add(en, &m->gens[i]);
        for (int t = 0; t < 2 && w->order == LATE; t++)
            step(en);
        while (w->alone && step(en))
            ;
    }
    while (step(en))
        ;
    for (int i = 0; i < m->n; i++)
        check_gen(&m->gens[i], what, w->name, i);
    engine_stats(en, &stats);
    assert_int_equal(stats.preemptions > 0, w->n_pages > 0);
    engine_free(en);
}

/* (k * 7 + 3) % n visits all: no golden file has a multiple of 7 requests. */
static const struct way ways[] = {
    {.name = "alone", .alone = true}, /* the first: it knows what is not known yet */
    {.name = "alone, chunks of 1", .alone = true, .chunk = 1},
    {.name = "alone, chunks of 7", .alone = true, .chunk = 7},
    {.name = "together", .order = FORWARD, .split = true},
    {.name = "together, chunks of 1", .order = BACKWARD, .chunk = 1},
    {.name = "together, chunks of 7", .order = SHUFFLED, .chunk = 7},
    {.name = "joining late", .order = LATE, .chunk = 13, .max_batch = 5},
    {.name = "few pages", .order = FORWARD, .n_pages = 48},
    {.name = "few pages, chunks of 7", .order = SHUFFLED, .chunk = 7, .n_pages = 45, .split = true},
    {.name = "recomputing", .order = FORWARD, .recompute = true},
    {.name = "recomputing, chunks of 7", .order = BACKWARD, .chunk = 7, .recompute = true, .n_pages = 50},
};

/* Whether the nth model goes this way: all do, but for sanitizers, which see each way with a few models. */
static bool goes(int nth, size_t way)
{
    return !FIXTURE_SANITIZED || !way || way % 5 == (size_t)nth % 5;
}

static void run_model(const char *path, const char *json_path, int nth)
{
    struct model m;
    read_model(&m, json_path);
    static const struct fixture_options split[] = {{.tp = 1}, {.tp = 2}};
    for (size_t s = 0; s < ARRAY_LEN(split); s++) {
        struct fixture f;
        struct fixture_options o = split[s];
        o.level = cpu_level_native();
        o.page_tokens = PAGE_TOKENS;
        o.max_tokens = 64;
        fixture_open(&f, path, o);
        char *what = xasprintf("%s, tp %d, %d threads", path, o.tp, team_threads(f.team));
        for (int i = 1; i < m.n && o.tp > 1 && !team_plan(f.team)->bits_equal; i += 2)
            m.gens[i].known = false; /* draws near a boundary may fall on the other side of it */
        for (size_t w = 0; w < ARRAY_LEN(ways); w++)
            if ((o.tp == 1 || ways[w].split) && goes(nth, w))
                run_way(&f, &m, what, &ways[w]);
        fixture_close(&f);
        xfree(what);
    }
    release_model(&m);
}

static const char *only; /* test_generate NAME: just the checkpoints with that in their names */

static int run_dir(const char *dir, const char *ending, const char *json_format)
{
    char *full = golden_path(dir);
    int n = 0;
    DIR *d = opendir(full);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        size_t len = strlen(e->d_name), m = strlen(ending);
        if (e->d_name[0] == '.' || len < m || strcmp(e->d_name + len - m, ending) ||
            (only && !strstr(e->d_name, only)))
            continue;
        char *path = xasprintf("%s/%s", dir, e->d_name);
        char *json_path = xasprintf("%s/%.*s%s", dir, (int)(len - m), e->d_name, json_format);
        run_model(path, json_path, n);
        xfree(path);
        xfree(json_path);
        n++;
    }
    closedir(d);
    xfree(full);
    return n;
}

static void test_folders(void **state)
{
    assert_true(run_dir("tests/golden/models", "", "/vectors.json") >= (only ? 0 : 20));
}

static void test_gguf(void **state)
{
    assert_true(run_dir("tests/golden/gguf", ".gguf", ".json") >= (only ? 0 : 10));
}

int main(int argc, char **argv)
{
    only = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_folders), cmocka_unit_test(test_gguf)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
