/* engine.h: the token side: requests in, tokens out. Owns the scheduler, the KV pages, the sampler and the
 * step loop.
 *
 * Used by one thread. A request is prompt ids and parameters; engine_step runs one tick over as many requests
 * as fit: each running request's next token, then prompt tokens of those waiting (first come, first served),
 * in chunks, within the tick's budget of tokens. When pages run out, the newest request gives its pages back
 * and is computed again later (its tokens are kept: the client never notices, and invariant 1 makes its
 * continuation the same bits). The engine knows ids only: text, templates and stop strings belong to the
 * caller, who may end a request at any time.
 */
#ifndef YOKE_ENGINE_ENGINE_H
#define YOKE_ENGINE_ENGINE_H

#include "engine/sampler.h"
#include "engine/team.h"

enum finish { FINISH_NONE, FINISH_EOS, FINISH_LENGTH, FINISH_STOP /* the caller ended it */, FINISH_ERROR };
const char *finish_name(enum finish f); /* "stop" for EOS and STOP, "length", "error": OpenAI's words */

struct request_params {
    struct sampling sampling;
    int32_t max_new_tokens; /* at least 0; bounded by the context */
    int32_t min_new_tokens; /* before that many, no eos id may come */
    const int32_t *eos;     /* copied; ids outside the vocabulary are allowed */
    int32_t n_eos;
    bool ignore_eos; /* eos ids are tokens like any other */
};

struct request; /* owned by the engine from add to drop */
/* Called from engine_step for each new token, in order; request_look shows it already, and the finish if it
 * is the last. eos itself is reported too (the caller decides on its text). It may add, stop and drop any
 * request, its own included. */
typedef void request_token_fn(void *ctx, struct request *r, int32_t token);

struct engine_options {
    int32_t max_batch;     /* requests that run at once */
    int32_t max_context;   /* positions of one request */
    int32_t prefill_chunk; /* prompt tokens of one request in one tick */
    bool recompute;        /* use_past: False: every token recomputes the whole sequence */
};

struct engine;
/* The team is borrowed; its options must allow: max_tokens, max_spans and max_out >= max_batch. */
int engine_new(struct team *t, const struct engine_options *o, struct engine **ret, struct err *e);
void engine_free(struct engine *en); /* NULL is fine; drops what is left */

/* A prompt that is empty, has ids outside the vocabulary, or does not fit the context (with a new token, if
 * one is wanted) or the KV cache is ERR_LIMIT / ERR_USAGE with the numbers. Then every request that was added
 * ends: by an eos, or with FINISH_LENGTH at max_new_tokens, at the context's end, or at the end of the whole
 * KV cache. */
int engine_add(struct engine *en, const int32_t *prompt, int32_t n_prompt, const struct request_params *p,
               request_token_fn *on_token, void *ctx, struct request **ret, struct err *e);
void engine_stop(struct engine *en, struct request *r, enum finish why); /* also from inside on_token */
void engine_drop(struct engine *en, struct request *r); /* frees it; stops it first if need be */

/* Posts what ticks there is work and room for (one, unless there are pipeline stages or replicas), and
 * finishes the oldest. *ret_left: requests that are not finished. Fails only if a rank is lost: all requests
 * are then FINISH_ERROR, and further calls fail the same way. A request whose logits hold nothing finite is
 * FINISH_ERROR alone. */
int engine_step(struct engine *en, int32_t *ret_left, struct err *e);

struct request_view {
    enum finish finish;
    const int32_t *output; /* valid until the next engine_step */
    int32_t n_prompt, n_output;
    int32_t n_preempted;                         /* how often it was computed again */
    double added_s, first_token_s, last_token_s; /* clock_s() times; 0: not yet */
};
void request_look(const struct request *r, struct request_view *ret);

/* Tokens computed for a request's first new token, or again after a preemption, are prefill; each further new
 * token is one of decode (use_past: False computes more for it; that is not counted). */
struct engine_stats {
    uint64_t ticks, prefill_tokens, decode_tokens, preemptions;
    double prefill_s, decode_s; /* of ticks, sampling included; any prefill in it makes a tick prefill */
    int32_t pages_used_max;
    double flying_s; /* sum over replicas: time x ticks in flight, these counted up to the stages there are */
};
void engine_stats(const struct engine *en, struct engine_stats *ret);

#endif
