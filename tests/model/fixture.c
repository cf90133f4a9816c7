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
    f->n_pages = 4096 / f->page_tokens;
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
                             .max_spans = FIXTURE_MAX_SPANS};
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

void fixture_run(struct fixture *f, struct sequence *s, int n, int32_t chunk)
{
    fixture_run_in(f, 0, s, n, chunk);
}

void fixture_run_in(struct fixture *f, int lane, struct sequence *s, int n, int32_t chunk)
{
    int32_t budget = team_plan(f->team)->opt.max_tokens;
    int32_t *token, *pos, *row, *pages, done[FIXTURE_MAX_SPANS] = {0}, left = n;
    XNEW_N(token, (size_t)budget);
    XNEW_N(pos, (size_t)budget);
    XNEW_N(row, (size_t)budget);
    XNEW_N(pages, (size_t)f->n_pages);
    /* deal the pages out interleaved and backwards, so that nothing can rely on their being in order */
    int32_t per_seq = f->n_pages / n;
    for (int i = 0; i < n; i++)
        for (int32_t k = 0; k < per_seq; k++)
            pages[i * per_seq + k] = f->n_pages - 1 - (k * n + i);
    while (left) {
        struct span spans[FIXTURE_MAX_SPANS];
        struct batch b = {.token = token, .pos = pos, .out_row = row, .spans = spans};
        for (int i = 0; i < n && b.n_tokens < budget; i++) {
            int32_t take = MIN(s[i].n - done[i], budget - b.n_tokens);
            if (chunk)
                take = MIN(take, chunk);
            if (!take)
                continue;
            spans[b.n_spans++] =
                (struct span){b.n_tokens, take, done[i],
                              (done[i] + take + f->page_tokens - 1) / f->page_tokens, pages + i * per_seq};
            for (int32_t k = 0; k < take; k++, b.n_tokens++) {
                token[b.n_tokens] = s[i].ids[done[i] + k];
                pos[b.n_tokens] = done[i] + k;
                row[b.n_tokens] = b.n_tokens;
            }
        }
        b.n_out = b.n_tokens;
        struct err e = {0};
        const float *logits = NULL;
        must(team_post(f->team, lane, &b, &e), &e);
        must(team_wait(f->team, lane, &logits, &e), &e);
        for (int i = 0, at = 0; i < n; i++) {
            if (at == b.n_spans || spans[at].pages != pages + i * per_seq)
                continue;
            int32_t take = spans[at].n;
            memcpy(s[i].logits + (size_t)done[i] * (size_t)f->vocab,
                   logits + (size_t)spans[at].first * (size_t)f->vocab,
                   sizeof(float) * (size_t)take * (size_t)f->vocab);
            done[i] += take;
            left -= done[i] == s[i].n;
            at++;
        }
    }
    xfree(token);
    xfree(pos);
    xfree(row);
    xfree(pages);
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
