/* engine.c: the scheduler and the step loop.
 *
 * Unfinished requests are one list in order of arrival. The first n_running of them run, the others wait:
 * admitting one moves that boundary a place down, preempting the newest that runs moves it a place up. So
 * first come, first served is not a policy that code must keep, but all that the list can express.
 *
 * A tick is made in two passes over the list. First, each running request that lacks just its newest token
 * gets one row; if there is no page for it, the newest running request makes way (perhaps the very one). Then
 * what is left of the tick's rows goes to prompts, in order, a chunk each, until one finds no page: those
 * behind it may not pass. Every request fits the pool alone (engine_add sees to it), so the oldest one always
 * gets on, and all end.
 */
#include "engine/internal.h"

#include <assert.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "engine/kv.h"

struct request {
    struct request *prev, *next; /* in the engine's list of unfinished or of finished ones */
    struct request_params params;
    int32_t *eos;    /* [params.n_eos], our copy */
    int32_t *tokens; /* [n_prompt + n_output of cap]: prompt, then output */
    int32_t n_prompt, n_output, cap;
    int32_t limit;    /* prompt and output may be this many at most */
    int32_t computed; /* tokens whose keys and values are in its pages */
    int32_t want;     /* tokens that this tick computes */
    int32_t drawn;    /* the next token, between drawing and delivery */
    bool running;
    struct kv_seq kv;
    enum finish finish;
    int32_t n_preempted;
    double added_s, first_token_s, last_token_s;
    request_token_fn *on_token;
    void *ctx;
};

struct list {
    struct request *first, *last;
};

struct engine {
    struct backend backend;
    struct engine_options opt;
    struct kv_pool *pool;
    struct sampler *sampler;
    struct list left, finished;       /* left: the first n_running run, the others wait */
    struct request *newest, *waiting; /* the boundary: the last that runs, the first that waits */
    int32_t n_running, n_left;
    /* the tick in the making */
    struct batch batch;
    int32_t *token, *pos;     /* [max_tokens] */
    int32_t *out_row;         /* [max_out] */
    struct span *spans;       /* [max_spans] */
    struct request **span_of; /* [max_spans] whose each span is; NULL: dropped meanwhile */
    bool has_prefill;
    struct engine_stats stats;
    struct err broken; /* a rank was lost: nothing works any more */
};

const char *finish_name(enum finish f)
{
    static const char *const name[] = {"none", "stop", "length", "stop", "error"};
    return name[f];
}

/* --- lists --- */

static void list_append(struct list *l, struct request *r)
{
    r->prev = l->last;
    r->next = NULL;
    *(l->last ? &l->last->next : &l->first) = r;
    l->last = r;
}

static void list_remove(struct list *l, struct request *r)
{
    *(r->prev ? &r->prev->next : &l->first) = r->next;
    *(r->next ? &r->next->prev : &l->last) = r->prev;
}

/* --- life cycle --- */

static int check_options(const struct backend *b, const struct engine_options *o, struct err *e)
{
    if (o->max_batch < 1 || o->max_context < 1 || o->prefill_chunk < 1)
        return err_set(e, ERR_USAGE,
                       "max_batch is %d, max_context %d and prefill_chunk %d; each must be at least 1",
                       o->max_batch, o->max_context, o->prefill_chunk);
    if (b->max_tokens < o->max_batch || b->max_out < o->max_batch || b->max_spans < o->max_batch)
        return err_set(
            e, ERR_USAGE,
            "a tick takes %d tokens, %d outputs and %d sequences, but max_batch is %d, and each running "
            "request needs one of each; raise them or lower max_batch",
            b->max_tokens, b->max_out, b->max_spans, o->max_batch);
    return 0;
}

int engine_new_on(const struct backend *b, const struct engine_options *o, struct engine **ret, struct err *e)
{
    int rc = check_options(b, o, e);
    if (rc)
        return rc;
    struct engine *en;
    XNEW(en);
    en->backend = *b;
    en->opt = *o;
    en->pool = kv_pool_new(b->n_pages, b->page_tokens);
    en->sampler = sampler_new(b->n_vocab);
    XNEW_N(en->token, (size_t)b->max_tokens);
    XNEW_N(en->pos, (size_t)b->max_tokens);
    XNEW_N(en->out_row, (size_t)b->max_out);
    XNEW_N(en->spans, (size_t)b->max_spans);
    XNEW_N(en->span_of, (size_t)b->max_spans);
    en->batch =
        (struct batch){.token = en->token, .pos = en->pos, .out_row = en->out_row, .spans = en->spans};
    *ret = en;
    return 0;
}

static int tick_team(void *ctx, const struct batch *b, const float **ret_logits, struct err *e)
{
    return team_tick(ctx, b, ret_logits, e);
}

int engine_new(struct team *t, const struct engine_options *o, struct engine **ret, struct err *e)
{
    const struct team_options *to = team_options(t);
    const struct backend b = {.tick = tick_team,
                              .ctx = t,
                              .n_vocab = team_plan(t)->graph->axis_n[AX_VOCAB],
                              .page_tokens = to->page_tokens,
                              .n_pages = to->n_pages,
                              .max_tokens = to->max_tokens,
                              .max_out = to->max_out,
                              .max_spans = to->max_spans};
    return engine_new_on(&b, o, ret, e);
}

void engine_free(struct engine *en)
{
    if (!en)
        return;
    while (en->left.first)
        engine_drop(en, en->left.first);
    while (en->finished.first)
        engine_drop(en, en->finished.first);
    kv_pool_free(en->pool);
    sampler_free(en->sampler);
    xfree(en->token);
    xfree(en->pos);
    xfree(en->out_row);
    xfree(en->spans);
    xfree(en->span_of);
    xfree(en);
}

/* --- requests --- */

static int check_prompt(const struct engine *en, const int32_t *prompt, int32_t n, int32_t max_new,
                        struct err *e)
{
    const struct backend *b = &en->backend;
    if (n < 1)
        return err_set(e, ERR_USAGE, "the prompt is empty; it needs at least one token");
    if (max_new < 0)
        return err_set(e, ERR_USAGE, "max_new_tokens is %d; it must be at least 0", max_new);
    if (n > en->opt.max_context - (max_new > 0))
        return err_set(e, ERR_LIMIT,
                       "the prompt has %d tokens, but the context holds %d%s; shorten it, or raise the "
                       "context length",
                       n, en->opt.max_context, max_new ? ", one new one at least included" : "");
    if (kv_pages(n, b->page_tokens) > b->n_pages)
        return err_set(e, ERR_LIMIT,
                       "the prompt has %d tokens, but the KV cache holds %lld (num_blocks %d x block_size "
                       "%d); raise num_blocks to %d or more",
                       n, (long long)b->n_pages * b->page_tokens, b->n_pages, b->page_tokens,
                       kv_pages(n, b->page_tokens));
    for (int32_t i = 0; i < n; i++)
        if (prompt[i] < 0 || prompt[i] >= b->n_vocab)
            return err_set(e, ERR_USAGE, "token %d of the prompt is %d, but the vocabulary has ids 0 to %d",
                           i, prompt[i], b->n_vocab - 1);
    return 0;
}

/* How long prompt and output may get. The last token's keys and values are never needed: hence + 1. */
static int32_t limit_of(const struct engine *en, int32_t n_prompt, int32_t max_new)
{
    int64_t pool = (int64_t)en->backend.n_pages * en->backend.page_tokens + 1;
    int64_t limit = MIN((int64_t)n_prompt + max_new, (int64_t)en->opt.max_context);
    return (int32_t)MIN(limit, pool);
}

static int32_t n_tokens(const struct request *r)
{
    return r->n_prompt + r->n_output;
}

int engine_add(struct engine *en, const int32_t *prompt, int32_t n_prompt, const struct request_params *p,
               request_token_fn *on_token, void *ctx, struct request **ret, struct err *e)
{
    int rc = en->broken.code ? err_set(e, en->broken.code, "%s", en->broken.msg) : 0;
    if (!rc)
        rc = check_prompt(en, prompt, n_prompt, p->max_new_tokens, e);
    if (!rc)
        rc = sampling_check(&p->sampling, e);
    if (rc)
        return rc;
    struct request *r;
    XNEW(r);
    r->params = *p;
    XNEW_N(r->eos, (size_t)p->n_eos);
    if (p->n_eos)
        memcpy(r->eos, p->eos, sizeof(int32_t) * (size_t)p->n_eos);
    r->params.eos = r->eos;
    r->n_prompt = n_prompt;
    r->limit = limit_of(en, n_prompt, p->max_new_tokens);
    /* All the token loop needs, unless the limit is far off: then tokens grow now and then, by doubling. */
    r->cap = (int32_t)MIN((int64_t)r->limit, (int64_t)n_prompt + 4096);
    XNEW_N(r->tokens, (size_t)r->cap);
    memcpy(r->tokens, prompt, sizeof(int32_t) * (size_t)n_prompt);
    kv_seq_init(&r->kv, kv_pages(r->limit, en->backend.page_tokens));
    r->added_s = clock_s();
    r->on_token = on_token;
    r->ctx = ctx;
    list_append(&en->left, r);
    en->n_left++;
    if (!en->waiting)
        en->waiting = r;
    if (n_prompt >= r->limit)
        engine_stop(en, r, FINISH_LENGTH);
    *ret = r;
    return 0;
}

void engine_stop(struct engine *en, struct request *r, enum finish why)
{
    assert(why != FINISH_NONE);
    if (r->finish)
        return;
    r->finish = why;
    kv_seq_release(en->pool, &r->kv);
    if (en->newest == r)
        en->newest = r->prev;
    if (en->waiting == r)
        en->waiting = r->next;
    en->n_running -= r->running;
    en->n_left--;
    r->running = false;
    list_remove(&en->left, r);
    list_append(&en->finished, r);
}

void engine_drop(struct engine *en, struct request *r)
{
    if (!r)
        return;
    engine_stop(en, r, FINISH_STOP);
    list_remove(&en->finished, r);
    for (int32_t i = 0; i < en->batch.n_spans; i++) /* from inside on_token: it may be one of this tick's */
        if (en->span_of[i] == r)
            en->span_of[i] = NULL;
    kv_seq_close(en->pool, &r->kv);
    xfree(r->eos);
    xfree(r->tokens);
    xfree(r);
}

void request_look(const struct request *r, struct request_view *ret)
{
    *ret = (struct request_view){.finish = r->finish,
                                 .output = r->tokens + r->n_prompt,
                                 .n_prompt = r->n_prompt,
                                 .n_output = r->n_output,
                                 .n_preempted = r->n_preempted,
                                 .added_s = r->added_s,
                                 .first_token_s = r->first_token_s,
                                 .last_token_s = r->last_token_s};
}

void engine_stats(const struct engine *en, struct engine_stats *ret)
{
    *ret = en->stats;
}

/* --- the scheduler --- */

static void admit(struct engine *en)
{
    en->newest = en->waiting;
    en->waiting = en->waiting->next;
    en->newest->running = true;
    en->n_running++;
}

/* Takes the newest running request's pages; it waits again, before all others. */
static void preempt(struct engine *en)
{
    struct request *r = en->newest;
    assert(r && !r->want); /* nobody loses pages that this tick uses */
    kv_seq_release(en->pool, &r->kv);
    r->computed = 0;
    r->running = false;
    r->n_preempted++;
    en->stats.preemptions++;
    en->waiting = r;
    en->newest = r->prev;
    en->n_running--;
}

static int32_t lacking(const struct request *r)
{
    return n_tokens(r) - r->computed;
}

static bool is_decode(const struct request *r)
{
    return r->n_output > 0 && lacking(r) == 1;
}

/* Adds the next n tokens of r to the tick. Its pages are there. */
static void schedule(struct engine *en, struct request *r, int32_t n)
{
    struct batch *b = &en->batch;
    int32_t first = b->n_tokens, end = r->computed + n;
    assert(n > 0 && n <= lacking(r) && first + n <= en->backend.max_tokens &&
           b->n_spans < en->backend.max_spans);
    memcpy(en->token + first, r->tokens + r->computed, sizeof(int32_t) * (size_t)n);
    for (int32_t i = 0; i < n; i++)
        en->pos[first + i] = r->computed + i;
    en->spans[b->n_spans] =
        (struct span){first, n, r->computed, kv_pages(end, en->backend.page_tokens), r->kv.pages};
    en->span_of[b->n_spans++] = r;
    b->n_tokens += n;
    if (n == lacking(r))
        en->out_row[b->n_out++] = b->n_tokens - 1;
    r->want = n;
}

static void schedule_decodes(struct engine *en)
{
    struct request *next;
    for (struct request *r = en->left.first; r && r->running; r = next) {
        while (r->running && is_decode(r) && !kv_seq_reserve(en->pool, &r->kv, n_tokens(r)))
            preempt(en);
        next = r->next;
        if (r->running && is_decode(r))
            schedule(en, r, 1);
    }
}

/* How many of the next n tokens of r there are pages for, after taking these. As long as anybody gets on in
 * this tick, a page stays free for each running request's next token: who took that one would soon be
 * preempted for it. */
static int32_t find_pages(struct engine *en, struct request *r, int32_t n)
{
    int64_t spare = kv_pool_n_free(en->pool) - (en->batch.n_tokens ? en->n_running : 0);
    int64_t room = (spare + r->kv.n) * en->backend.page_tokens - r->computed;
    if (!r->running && en->n_running && room < n)
        return 0; /* who comes in gets a whole chunk done */
    n = (int32_t)MIN((int64_t)n, room);
    return n > 0 && kv_seq_reserve(en->pool, &r->kv, r->computed + n) ? n : 0;
}

static void schedule_prompts(struct engine *en)
{
    struct batch *b = &en->batch;
    for (struct request *r = en->left.first; r; r = r->next) {
        int32_t rows = en->backend.max_tokens - b->n_tokens;
        if (r->want)
            continue;
        if (!rows || b->n_spans == en->backend.max_spans || b->n_out == en->backend.max_out ||
            (!r->running && en->n_running == en->opt.max_batch))
            return;
        int32_t n, most = MIN(MIN(en->opt.prefill_chunk, rows), lacking(r));
        while (!(n = find_pages(en, r, most)) && !b->n_tokens && r != en->newest && en->newest)
            preempt(en); /* nobody else would get on either */
        if (!n)
            return;
        if (!r->running)
            admit(en);
        if (!r->n_output || !en->opt.recompute)
            en->has_prefill = true;
        schedule(en, r, n);
    }
}

static void make_batch(struct engine *en)
{
    en->batch.n_tokens = en->batch.n_out = en->batch.n_spans = 0;
    en->has_prefill = false;
    uint64_t before = en->stats.preemptions;
    schedule_decodes(en);
    /* With pages this short, nobody who waits is let in. */
    if (en->stats.preemptions == before || !en->batch.n_tokens)
        schedule_prompts(en);
    int32_t used = en->backend.n_pages - kv_pool_n_free(en->pool);
    en->stats.pages_used_max = MAX(en->stats.pages_used_max, used);
    assert(en->batch.n_tokens > 0); /* every request fits alone, so somebody gets on */
}

/* --- a tick --- */

static int32_t draw(struct engine *en, const struct request *r, const float *logits)
{
    const struct request_params *p = &r->params;
    bool too_early = !p->ignore_eos && r->n_output < p->min_new_tokens;
    const struct sampler_input in = {.logits = logits,
                                     .tokens = r->tokens,
                                     .n_prompt = r->n_prompt,
                                     .n_output = r->n_output,
                                     .banned = p->eos,
                                     .n_banned = too_early ? p->n_eos : 0};
    return sampler_draw(en->sampler, &p->sampling, &in);
}

/* Notes what the tick computed and draws the next tokens. */
static void digest(struct engine *en, const float *logits)
{
    int32_t out = 0;
    for (int32_t i = 0; i < en->batch.n_spans; i++) {
        struct request *r = en->span_of[i];
        bool complete = r->want == lacking(r);
        if (!r->n_output || (!en->opt.recompute && !is_decode(r)))
            en->stats.prefill_tokens += (uint64_t)r->want;
        else
            en->stats.decode_tokens +=
                complete; /* in recompute mode the tokens computed again are not counted */
        r->computed += r->want;
        r->want = 0;
        r->drawn = complete ? draw(en, r, logits + (size_t)out++ * (size_t)en->backend.n_vocab) : -1;
        if (complete && r->drawn < 0)
            engine_stop(en, r, FINISH_ERROR);
        if (complete && en->opt.recompute)
            r->computed = 0;
    }
}

static bool ends(const struct request *r, int32_t token)
{
    for (int32_t i = 0; i < r->params.n_eos && !r->params.ignore_eos; i++)
        if (r->params.eos[i] == token)
            return true;
    return false;
}

/* Callbacks may stop and drop requests, also those whose turn is still to come. */
static void deliver(struct engine *en, double now)
{
    for (int32_t i = 0; i < en->batch.n_spans; i++) {
        struct request *r = en->span_of[i];
        if (!r || r->finish || r->drawn < 0)
            continue;
        int32_t token = r->drawn;
        XGROW(r->tokens, n_tokens(r), r->cap);
        r->tokens[n_tokens(r)] = token;
        r->n_output++;
        r->last_token_s = now;
        if (r->n_output == 1)
            r->first_token_s = now;
        if (ends(r, token))
            engine_stop(en, r, FINISH_EOS);
        else if (n_tokens(r) >= r->limit)
            engine_stop(en, r, FINISH_LENGTH);
        if (r->on_token)
            r->on_token(r->ctx, r, token);
    }
    en->batch.n_spans = 0;
}

static int give_up(struct engine *en)
{
    while (en->left.first)
        engine_stop(en, en->left.first, FINISH_ERROR);
    return en->broken.code;
}

int engine_step(struct engine *en, int32_t *ret_left, struct err *e)
{
    const float *logits = NULL;
    if (en->broken.code)
        return err_set(e, en->broken.code, "%s", en->broken.msg);
    if (!en->n_left) {
        *ret_left = 0;
        return 0;
    }
    double before = clock_s();
    alloc_guard_begin();
    make_batch(en);
    alloc_guard_end();
    if (en->backend.tick(en->backend.ctx, &en->batch, &logits, &en->broken)) {
        if (e)
            *e = en->broken;
        return give_up(en);
    }
    alloc_guard_begin();
    digest(en, logits);
    alloc_guard_end();
    double now = clock_s();
    en->stats.ticks++;
    *(en->has_prefill ? &en->stats.prefill_s : &en->stats.decode_s) += now - before;
    deliver(en, now);
    *ret_left = en->n_left;
    return 0;
}
