/* engine.c: the scheduler and the step loop.
 *
 * Requests run in queues: one for each tick that may be in flight (lanes x depth; one where ticks do not
 * overlap). A queue has pages of its own and at most one tick in flight, so whatever happens to its requests
 * meanwhile, nobody else's tick uses their pages. Where there are several, a request waits in the engine's
 * list until a queue has room for it: who finishes early takes more.
 *
 * In a queue, unfinished requests are one list in order of arrival. The first n_running of them run, the
 * others wait: admitting one moves that boundary a place down, preempting the newest that runs moves it a
 * place up. So first come, first served is not a policy that code must keep, but all that the list can
 * express.
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

struct queue;

struct request {
    struct queue *queue;         /* NULL: not given to one yet */
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

struct queue {
    struct engine *en;
    int lane;
    struct kv_pool *pool;
    struct list left;                 /* the first n_running run, the others wait */
    struct request *newest, *waiting; /* the boundary: the last that runs, the first that waits */
    int32_t n_running, n_left;
    /* the tick in the making, or in flight */
    bool in_flight;
    struct batch batch;
    int32_t *token, *pos;     /* [max_tokens] */
    int32_t *out_row;         /* [max_out] */
    struct span *spans;       /* [max_spans] */
    struct request **span_of; /* [max_spans] whose each span is; NULL: dropped meanwhile */
    int32_t *span_out;        /* [max_spans] row of its logits; -1: none */
    bool has_prefill;
};

struct engine {
    struct backend backend;
    struct engine_options opt; /* max_batch: of one queue */
    struct sampler *sampler;
    struct queue *queues;
    int32_t n_queues, n_left, n_pages; /* n_pages: of one queue */
    struct list unassigned, finished;
    int32_t *flight; /* [n_queues] ring of queues in flight, oldest at n_waited */
    uint64_t n_posted, n_waited;
    double stepped_s; /* when the last step ended */
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

static void queue_init(struct queue *q, struct engine *en, int lane, int32_t first_page)
{
    const struct backend *b = &en->backend;
    q->en = en;
    q->lane = lane;
    q->pool = kv_pool_new_from(first_page, en->n_pages, b->page_tokens);
    XNEW_N(q->token, (size_t)b->max_tokens);
    XNEW_N(q->pos, (size_t)b->max_tokens);
    XNEW_N(q->out_row, (size_t)b->max_out);
    XNEW_N(q->spans, (size_t)b->max_spans);
    XNEW_N(q->span_of, (size_t)b->max_spans);
    XNEW_N(q->span_out, (size_t)b->max_spans);
    q->batch = (struct batch){.token = q->token, .pos = q->pos, .out_row = q->out_row, .spans = q->spans};
}

static void queue_release(struct queue *q)
{
    kv_pool_free(q->pool);
    xfree(q->token);
    xfree(q->pos);
    xfree(q->out_row);
    xfree(q->spans);
    xfree(q->span_of);
    xfree(q->span_out);
}

int engine_new_on(const struct backend *b, const struct engine_options *o, struct engine **ret, struct err *e)
{
    int depth = b->post ? b->depth : 1, lanes = b->post ? b->lanes : 1;
    struct engine_options opt = *o;
    opt.max_batch = (o->max_batch + lanes * depth - 1) / (lanes * depth);
    int rc = check_options(b, &opt, e);
    if (rc)
        return rc;
    struct engine *en;
    XNEW(en);
    en->backend = *b;
    en->opt = opt;
    en->sampler = sampler_new(b->n_vocab);
    en->n_queues = lanes * depth;
    en->n_pages = b->n_pages / depth;
    XNEW_N(en->queues, (size_t)en->n_queues);
    XNEW_N(en->flight, (size_t)en->n_queues);
    for (int i = 0; i < en->n_queues; i++)
        queue_init(&en->queues[i], en, i % lanes, i / lanes * en->n_pages);
    *ret = en;
    return 0;
}

static int post_team(void *ctx, int lane, const struct batch *b, struct err *e)
{
    return team_post(ctx, lane, b, e);
}

static int wait_team(void *ctx, int lane, const float **ret_logits, struct err *e)
{
    return team_wait(ctx, lane, ret_logits, e);
}

int engine_new(struct team *t, const struct engine_options *o, struct engine **ret, struct err *e)
{
    const struct team_options *to = team_options(t);
    const struct backend b = {.post = post_team,
                              .wait = wait_team,
                              .lanes = team_lanes(t),
                              .depth = team_depth(t),
                              .together = team_spreads(t),
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
    while (en->unassigned.first)
        engine_drop(en, en->unassigned.first);
    for (int i = 0; i < en->n_queues; i++) {
        while (en->queues[i].left.first)
            engine_drop(en, en->queues[i].left.first);
    }
    while (en->finished.first)
        engine_drop(en, en->finished.first);
    for (int i = 0; i < en->n_queues; i++)
        queue_release(&en->queues[i]);
    sampler_free(en->sampler);
    xfree(en->queues);
    xfree(en->flight);
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
    if (kv_pages(n, b->page_tokens) > en->n_pages)
        return err_set(e, ERR_LIMIT,
                       "the prompt has %d tokens, but the KV cache holds %lld (num_blocks %d x block_size "
                       "%d); raise num_blocks to %d or more",
                       n, (long long)en->n_pages * b->page_tokens, en->n_pages, b->page_tokens,
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
    int64_t pool = (int64_t)en->n_pages * en->backend.page_tokens + 1;
    int64_t limit = MIN((int64_t)n_prompt + max_new, (int64_t)en->opt.max_context);
    return (int32_t)MIN(limit, pool);
}

static int32_t n_tokens(const struct request *r)
{
    return r->n_prompt + r->n_output;
}

/* The oldest request that no queue has goes to this one. */
static void assign(struct engine *en, struct queue *q)
{
    struct request *r = en->unassigned.first;
    list_remove(&en->unassigned, r);
    r->queue = q;
    list_append(&q->left, r);
    q->n_left++;
    if (!q->waiting)
        q->waiting = r;
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
    list_append(&en->unassigned, r);
    en->n_left++;
    if (en->n_queues == 1)
        assign(en, &en->queues[0]);
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
    struct queue *q = r->queue;
    r->finish = why;
    en->n_left--;
    if (q) {
        kv_seq_release(q->pool, &r->kv);
        if (q->newest == r)
            q->newest = r->prev;
        if (q->waiting == r)
            q->waiting = r->next;
        q->n_running -= r->running;
        q->n_left--;
        r->running = false;
    }
    list_remove(q ? &q->left : &en->unassigned, r);
    list_append(&en->finished, r);
}

void engine_drop(struct engine *en, struct request *r)
{
    if (!r)
        return;
    engine_stop(en, r, FINISH_STOP);
    list_remove(&en->finished, r);
    struct queue *q = r->queue;
    for (int32_t i = 0; q && i < q->batch.n_spans; i++) /* it may be one of a tick's that is not over yet */
        if (q->span_of[i] == r)
            q->span_of[i] = NULL;
    kv_seq_close(q ? q->pool : en->queues[0].pool, &r->kv);
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

static void admit(struct queue *q)
{
    q->newest = q->waiting;
    q->waiting = q->waiting->next;
    q->newest->running = true;
    q->n_running++;
}

/* Takes the newest running request's pages; it waits again, before all others. */
static void preempt(struct queue *q)
{
    struct request *r = q->newest;
    assert(r && !r->want); /* nobody loses pages that this tick uses */
    kv_seq_release(q->pool, &r->kv);
    r->computed = 0;
    r->running = false;
    r->n_preempted++;
    q->en->stats.preemptions++;
    q->waiting = r;
    q->newest = r->prev;
    q->n_running--;
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
static void schedule(struct queue *q, struct request *r, int32_t n)
{
    struct batch *b = &q->batch;
    int32_t first = b->n_tokens, end = r->computed + n;
    assert(n > 0 && n <= lacking(r) && first + n <= q->en->backend.max_tokens &&
           b->n_spans < q->en->backend.max_spans);
    memcpy(q->token + first, r->tokens + r->computed, sizeof(int32_t) * (size_t)n);
    for (int32_t i = 0; i < n; i++)
        q->pos[first + i] = r->computed + i;
    q->spans[b->n_spans] =
        (struct span){first, n, r->computed, kv_pages(end, q->en->backend.page_tokens), r->kv.pages};
    q->span_of[b->n_spans++] = r;
    b->n_tokens += n;
    q->span_out[b->n_spans - 1] = n == lacking(r) ? b->n_out : -1;
    if (n == lacking(r))
        q->out_row[b->n_out++] = b->n_tokens - 1;
    r->want = n;
}

static void schedule_decodes(struct queue *q)
{
    struct request *next;
    for (struct request *r = q->left.first; r && r->running; r = next) {
        while (r->running && is_decode(r) && !kv_seq_reserve(q->pool, &r->kv, n_tokens(r)))
            preempt(q);
        next = r->next;
        if (r->running && is_decode(r))
            schedule(q, r, 1);
    }
}

/* How many of the next n tokens of r there are pages for, after taking these. As long as anybody gets on in
 * this tick, a page stays free for each running request's next token: who took that one would soon be
 * preempted for it. */
static int32_t find_pages(struct queue *q, struct request *r, int32_t n)
{
    int64_t spare = kv_pool_n_free(q->pool) - (q->batch.n_tokens ? q->n_running : 0);
    int64_t room = (spare + r->kv.n) * q->en->backend.page_tokens - r->computed;
    if (!r->running && q->n_running && room < n)
        return 0; /* who comes in gets a whole chunk done */
    n = (int32_t)MIN((int64_t)n, room);
    return n > 0 && kv_seq_reserve(q->pool, &r->kv, r->computed + n) ? n : 0;
}

static void schedule_prompts(struct queue *q)
{
    struct batch *b = &q->batch;
    for (struct request *r = q->left.first; r; r = r->next) {
        int32_t rows = q->en->backend.max_tokens - b->n_tokens;
        if (r->want)
            continue;
        if (!rows || b->n_spans == q->en->backend.max_spans || b->n_out == q->en->backend.max_out ||
            (!r->running && q->n_running == q->en->opt.max_batch))
            return;
        int32_t n, most = MIN(MIN(q->en->opt.prefill_chunk, rows), lacking(r));
        while (!(n = find_pages(q, r, most)) && !b->n_tokens && r != q->newest && q->newest)
            preempt(q); /* nobody else would get on either */
        if (!n)
            return;
        if (!r->running)
            admit(q);
        if (!r->n_output || !q->en->opt.recompute)
            q->has_prefill = true;
        schedule(q, r, n);
    }
}

static void make_batch(struct queue *q)
{
    q->batch.n_tokens = q->batch.n_out = q->batch.n_spans = 0;
    q->has_prefill = false;
    uint64_t before = q->en->stats.preemptions;
    schedule_decodes(q);
    /* With pages this short, nobody who waits is let in. */
    if (q->en->stats.preemptions == before || !q->batch.n_tokens)
        schedule_prompts(q);
    int32_t used = q->en->n_pages - kv_pool_n_free(q->pool);
    q->en->stats.pages_used_max = MAX(q->en->stats.pages_used_max, used);
    assert(q->batch.n_tokens > 0); /* every request fits alone, so somebody gets on */
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

/* Notes what the tick computed and draws the next tokens. Requests that were stopped while it ran are passed
 * over. */
static void digest(struct queue *q, const float *logits)
{
    struct engine *en = q->en;
    for (int32_t i = 0; i < q->batch.n_spans; i++) {
        struct request *r = q->span_of[i];
        if (!r || r->finish)
            continue;
        bool complete = q->span_out[i] >= 0;
        if (!r->n_output || (!en->opt.recompute && !is_decode(r)))
            en->stats.prefill_tokens += (uint64_t)r->want;
        else
            en->stats.decode_tokens +=
                complete; /* in recompute mode the tokens computed again are not counted */
        r->computed += r->want;
        r->want = 0;
        r->drawn = complete ? draw(en, r, logits + (size_t)q->span_out[i] * (size_t)en->backend.n_vocab) : -1;
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
static void deliver(struct queue *q, double now)
{
    struct engine *en = q->en;
    for (int32_t i = 0; i < q->batch.n_spans; i++) {
        struct request *r = q->span_of[i];
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
    q->batch.n_spans = 0;
}

static int give_up(struct engine *en, struct err *e)
{
    while (en->unassigned.first)
        engine_stop(en, en->unassigned.first, FINISH_ERROR);
    for (int i = 0; i < en->n_queues; i++)
        while (en->queues[i].left.first)
            engine_stop(en, en->queues[i].left.first, FINISH_ERROR);
    return err_set(e, en->broken.code, "%s", en->broken.msg);
}

static int post(struct engine *en, struct queue *q)
{
    alloc_guard_begin();
    q->batch.n_tokens = q->batch.n_out = q->batch.n_spans = 0;
    q->has_prefill = false;
    if (q->n_left)
        make_batch(q);
    alloc_guard_end();
    q->in_flight = true;
    en->flight[en->n_posted++ % (uint64_t)en->n_queues] = (int32_t)(q - en->queues);
    return !en->backend.post ? 0 : en->backend.post(en->backend.ctx, q->lane, &q->batch, &en->broken);
}

/* A queue that has no tick in flight takes requests while it has room. True if it has work then. */
static bool fill(struct engine *en, struct queue *q)
{
    while (en->unassigned.first && q->n_left < en->opt.max_batch)
        assign(en, q);
    return q->n_left > 0;
}

/* Lanes whose ticks go together: the queues of one place in the flight, one a lane, all or none. */
static int post_together(struct engine *en)
{
    int lanes = en->backend.lanes;
    for (int first = 0; first < en->n_queues; first += lanes) {
        bool busy = false, work = false;
        for (int i = first; i < first + lanes; i++)
            busy |= en->queues[i].in_flight;
        for (int i = first; i < first + lanes && !busy; i++)
            work |= fill(en, &en->queues[i]);
        for (int i = first + lanes - 1; i >= first && work; i--) /* lane 0, which computes in post, last */
            if (post(en, &en->queues[i]))
                return en->broken.code;
    }
    return 0;
}

/* Every queue that has work and no tick in flight gets one; lanes whose first stage is elsewhere first, since
 * posting to them only sends. */
static int post_all(struct engine *en)
{
    if (en->backend.together)
        return post_together(en);
    for (int here = 0; here < 2; here++)
        for (int i = 0; i < en->n_queues; i++) {
            struct queue *q = &en->queues[i];
            if (!q->in_flight && (q->lane == 0) == here && fill(en, q) && post(en, q))
                return en->broken.code;
        }
    return 0;
}

int engine_step(struct engine *en, int32_t *ret_left, struct err *e)
{
    const float *logits = NULL;
    if (en->broken.code)
        return err_set(e, en->broken.code, "%s", en->broken.msg);
    if (!en->n_left && en->n_posted == en->n_waited) {
        *ret_left = 0;
        return 0;
    }
    /* with ticks in flight, the time since the last step belongs to them as well */
    double before = en->n_posted == en->n_waited ? clock_s() : en->stepped_s;
    if (post_all(en))
        return give_up(en, e);
    en->stats.in_flight += en->n_posted - en->n_waited;
    struct queue *q = &en->queues[en->flight[en->n_waited++ % (uint64_t)en->n_queues]];
    int rc = !en->backend.post ? en->backend.tick(en->backend.ctx, &q->batch, &logits, &en->broken)
                               : en->backend.wait(en->backend.ctx, q->lane, &logits, &en->broken);
    q->in_flight = false;
    if (rc)
        return give_up(en, e);
    alloc_guard_begin();
    digest(q, logits);
    alloc_guard_end();
    double now = en->stepped_s = clock_s();
    en->stats.ticks++;
    *(q->has_prefill ? &en->stats.prefill_s : &en->stats.decode_s) += now - before;
    deliver(q, now);
    *ret_left = en->n_left;
    return 0;
}
