#include "tests/model/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

static void must(int rc, const struct err *e)
{
    if (rc) {
        fprintf(stderr, "fixture: %s\n", e->msg);
        abort();
    }
}

char *golden_path(const char *path)
{
    const char *root = getenv("YOKE_ROOT");
    if (*path == '/')
        return xstrdup(path);
    return path_join(root ? root : ".", path);
}

void fixture_open(struct fixture *f, const char *path, struct fixture_options o)
{
    struct err e = {0};
    char *full = golden_path(path);
    memset(f, 0, sizeof(*f));
    must(checkpoint_open(full, NULL, &f->checkpoint, &e), &e);
    must(model_build(checkpoint_config(f->checkpoint), NULL, &f->graph, &f->hparams, &e), &e);
    f->page_tokens = o.page_tokens ? o.page_tokens : 16;
    f->n_pages = (o.kv_tokens ? o.kv_tokens : 4096) / f->page_tokens;
    f->vocab = f->hparams.vocab;
    int32_t max_tokens = o.max_tokens ? o.max_tokens : 256;
    struct team_options t = {.tp = o.tp ? o.tp : 1,
                             .pp = o.pp,
                             .dp = o.dp,
                             .ep = o.ep,
                             .threads = o.threads ? o.threads : 1,
                             .level = o.level,
                             .quant = o.quant,
                             .kv = o.kv,
                             .page_tokens = f->page_tokens,
                             .n_pages = f->n_pages,
                             .max_tokens = max_tokens,
                             .max_out = max_tokens,
                             .max_spans = FIXTURE_MAX_SPANS,
                             .reslice = o.reslice,
                             .expert_cache = o.expert_cache,
                             .spill_dir = o.spill_dir};
    must(team_open(f->checkpoint, f->graph, &t, NULL, &f->team, &e), &e);
    xfree(full);
}

void fixture_close(struct fixture *f)
{
    team_close(f->team);
    graph_free(f->graph);
    hparams_release(&f->hparams);
    checkpoint_close(f->checkpoint);
}

/* One lane's side of a run: who is how far, and the tick in the making. */
struct lane {
    struct sequence *s;
    int n;
    int32_t *token, *pos, *row, *pages, done[FIXTURE_MAX_SPANS], per_seq, left;
    struct span spans[FIXTURE_MAX_SPANS];
    struct batch b;
};

static void lane_init(struct lane *l, const struct fixture *f, struct sequence *s, int n)
{
    size_t budget = (size_t)team_plan(f->team)->opt.max_tokens;
    memset(l, 0, sizeof(*l));
    l->s = s;
    l->n = l->left = n;
    XNEW_N(l->token, budget);
    XNEW_N(l->pos, budget);
    XNEW_N(l->row, budget);
    XNEW_N(l->pages, (size_t)f->n_pages);
    /* deal the pages out interleaved and backwards, so that nothing can rely on their being in order */
    l->per_seq = n ? f->n_pages / n : 0;
    for (int i = 0; i < n; i++)
        for (int32_t k = 0; k < l->per_seq; k++)
            l->pages[i * l->per_seq + k] = f->n_pages - 1 - (k * n + i);
}

static void lane_release(struct lane *l)
{
    xfree(l->token);
    xfree(l->pos);
    xfree(l->row);
    xfree(l->pages);
}

static void lane_batch(struct lane *l, const struct fixture *f, int32_t chunk)
{
    int32_t budget = team_plan(f->team)->opt.max_tokens;
    struct batch *b = &l->b;
    *b = (struct batch){.token = l->token, .pos = l->pos, .out_row = l->row, .spans = l->spans};
    for (int i = 0; i < l->n && b->n_tokens < budget; i++) {
        int32_t take = MIN(l->s[i].n - l->done[i], budget - b->n_tokens), end;
        if (chunk)
            take = MIN(take, chunk);
        if (!take)
            continue;
        end = l->done[i] + take;
        l->spans[b->n_spans++] =
            (struct span){b->n_tokens, take, l->done[i], (end + f->page_tokens - 1) / f->page_tokens,
                          l->pages + i * l->per_seq};
        for (int32_t k = 0; k < take; k++, b->n_tokens++) {
            l->token[b->n_tokens] = l->s[i].ids[l->done[i] + k];
            l->pos[b->n_tokens] = l->done[i] + k;
            l->row[b->n_tokens] = b->n_tokens;
        }
    }
    b->n_out = b->n_tokens;
}

static void lane_take(struct lane *l, const struct fixture *f, const float *logits)
{
    size_t vocab = (size_t)f->vocab;
    for (int i = 0, at = 0; i < l->n && at < l->b.n_spans; i++) {
        if (l->spans[at].pages != l->pages + i * l->per_seq)
            continue;
        int32_t take = l->spans[at].n;
        memcpy(l->s[i].logits + (size_t)l->done[i] * vocab, logits + (size_t)l->spans[at].first * vocab,
               sizeof(float) * (size_t)take * vocab);
        l->done[i] += take;
        l->left -= l->done[i] == l->s[i].n;
        at++;
    }
}

void fixture_run_lanes(struct fixture *f, struct sequence *const *s, const int *n, int32_t chunk)
{
    int lanes = team_lanes(f->team), left = 0;
    bool together = team_spreads(f->team);
    struct lane *l;
    struct err e = {0};
    XNEW_N(l, (size_t)lanes);
    for (int i = 0; i < lanes; i++) {
        lane_init(&l[i], f, s[i], n[i]);
        left += n[i];
    }
    while (left) {
        for (int i = lanes - 1; i >= 0; i--) {
            lane_batch(&l[i], f, chunk);
            if (l[i].b.n_tokens || together)
                must(team_post(f->team, i, &l[i].b, &e), &e);
        }
        left = 0;
        for (int i = 0; i < lanes; i++) {
            const float *logits = NULL;
            if (l[i].b.n_tokens || together)
                must(team_wait(f->team, i, &logits, &e), &e);
            lane_take(&l[i], f, logits);
            left += l[i].left;
        }
    }
    for (int i = 0; i < lanes; i++)
        lane_release(&l[i]);
    xfree(l);
}

void fixture_run(struct fixture *f, struct sequence *s, int n, int32_t chunk)
{
    struct sequence *all[FIXTURE_MAX_LANES] = {s};
    int ns[FIXTURE_MAX_LANES] = {n};
    fixture_run_lanes(f, all, ns, chunk);
}

void sequence_init(struct sequence *s, int32_t n, int32_t vocab, unsigned seed)
{
    int32_t *ids;
    XNEW_N(ids, (size_t)n);
    for (int32_t k = 0; k < n; k++)
        ids[k] = (int32_t)(((unsigned)k * 2246822519u + seed * 40503u) >> 7) % vocab;
    *s = (struct sequence){ids, n, NULL};
    XNEW_N(s->logits, (size_t)n * (size_t)vocab);
}

void sequence_release(struct sequence *s)
{
    xfree(s->logits);
    xfree((void *)s->ids);
}

json_t *golden_json(const char *path)
{
    struct err e = {0};
    json_t *j = NULL;
    char *full = golden_path(path);
    must(json_parse_file(full, 64 << 20, &j, &e), &e);
    xfree(full);
    return j;
}

float *golden_floats(const char *path, size_t n)
{
    struct err e = {0};
    struct buf b = BUF_INIT;
    char *full = golden_path(path);
    must(file_slurp(full, 64 << 20, &b, &e), &e);
    if (b.len != n * sizeof(float)) {
        fprintf(stderr, "fixture: %s has %zu bytes, not %zu\n", path, b.len, n * sizeof(float));
        abort();
    }
    xfree(full);
    return (float *)(void *)buf_detach(&b);
}

int32_t *golden_ids(const json_t *array, int32_t *ret_n)
{
    int32_t *ids;
    *ret_n = (int32_t)json_array_size(array);
    XNEW_N(ids, (size_t)*ret_n);
    for (int32_t i = 0; i < *ret_n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return ids;
}
