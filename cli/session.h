/* session.h: a model ready to answer: checkpoint, tokenizer, graph, ranks and engine, opened from settings.
 *
 * Everything in it is made by session_open, in order, and ended by session_close. Under an MPI launcher every
 * process opens one; on ranks other than 0 there is no engine, and session_work lives until rank 0 closes.
 * Sizes that the user left open (context, pages, batch) are chosen here, within the memory there is.
 */
#ifndef YOKE_CLI_SESSION_H
#define YOKE_CLI_SESSION_H

#include "cli/progress.h"
#include "cli/settings.h"
#include "engine/engine.h"
#include "formats/checkpoint.h"
#include "models/models.h"
#include "text/tokenizer.h"

struct session {
    struct settings *settings;
    struct checkpoint *checkpoint;
    struct graph *graph;
    struct hparams hparams;
    struct tokenizer *tokenizer; /* NULL unless asked for */
    struct team *team;
    struct engine *engine; /* NULL on MPI workers */
    struct ids eos;        /* all ids that end an answer, unless a request names its own */
    int32_t max_context, max_batch;
    double load_s;
};

enum {
    SESSION_TOKENIZER = 1,
    SESSION_ENGINE = 2 /* a team and an engine; without it only what is needed for a plan */
};

/* batch_hint: how many sequences the command could run at once. max_out: rows of logits wanted in one tick
 * (0: one a sequence). */
int session_open(struct settings *s, unsigned parts, int32_t batch_hint, int32_t max_out,
                 struct warn_sink *warn, struct session *ret, struct err *e);
void session_close(struct session *x); /* fine for a zeroed or half-open one */
bool session_is_worker(const struct session *x);
int session_work(struct session *x, struct err *e);

/* What the settings make of one request's parameters. *ret borrows eos ids from the session or the settings.
 */
int session_params(const struct session *x, const struct sampling_settings *p, int32_t n_prompt,
                   struct request_params *ret, struct arena *mem, struct err *e);
/* The number format of the KV cache: as asked, or f32 for a float32 checkpoint and f16 for all others. */
enum kv_dtype session_kv_dtype(const struct settings *s, const struct checkpoint *c);
/* Is --expert-cache large enough? Every rank's plan is added, then it is said. */
struct session_cache {
    int64_t experts;         /* of all ranks, layer by layer */
    uint64_t least_bytes;    /* the smallest size that would do for all; 0: this one does */
    struct plan_cache least; /* of the rank that needs so much */
};
void session_cache_add(struct session_cache *c, const struct plan *p, uint64_t bytes);
int session_cache_check(const struct session_cache *c, const struct settings *s, struct err *e);

#endif
