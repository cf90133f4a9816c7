/* fixture.h: a checkpoint of tests/golden opened as a team, and its logits for any company, chunking and
 * split. */
#ifndef YOKE_TESTS_MODEL_FIXTURE_H
#define YOKE_TESTS_MODEL_FIXTURE_H

#include <jansson.h>
#include "engine/team.h"
#include "models/models.h"

struct fixture {
    struct checkpoint *checkpoint;
    struct graph *graph;
    struct hparams hparams;
    struct team *team;
    int32_t page_tokens, n_pages, vocab;
};

struct fixture_options {
    int tp, threads; /* 0: 1 */
    int pp, dp, ep;  /* 0: 1 */
    enum quant quant;
    enum kv_dtype kv;
    enum cpu_level level;
    int32_t page_tokens; /* 0: 16 */
    int32_t max_tokens;  /* 0: 256 */
    int32_t kv_tokens;   /* positions that the KV pages of a lane hold; 0: 4096 */
    bool reslice;
    uint64_t expert_cache;
    const char *spill_dir;
};

#define FIXTURE_MAX_SPANS 16
#define FIXTURE_MAX_LANES 16

/* Ends the test with the error's sentence on failure. Paths are relative to the repository's root
 * (YOKE_ROOT). */
void fixture_open(struct fixture *f, const char *path, struct fixture_options o);
void fixture_close(struct fixture *f);

/* One sequence among others: its ids, the pages it may use are dealt out by fixture_run. */
struct sequence {
    const int32_t *ids;
    int32_t n;
    float *logits; /* [n, vocab], filled */
};
/* n ids that depend on `seed` alone, and room for their logits. */
void sequence_init(struct sequence *s, int32_t n, int32_t vocab, unsigned seed);
void sequence_release(struct sequence *s);
/* Runs all sequences to their end together; each tick takes up to `chunk` tokens (0: all) of each, in the
 * order given, as long as the tick's budget lasts. */
void fixture_run(struct fixture *f, struct sequence *s, int n, int32_t chunk);
/* Several lanes at once, each with its own sequences (n[lane] may be 0). */
void fixture_run_lanes(struct fixture *f, struct sequence *const *s, const int *n, int32_t chunk);

json_t *golden_json(const char *path);
float *golden_floats(const char *path, size_t n); /* exactly n; xfree() */
int32_t *golden_ids(const json_t *array, int32_t *ret_n);
char *golden_path(const char *path); /* below the root, unless absolute; xfree() */

#endif
