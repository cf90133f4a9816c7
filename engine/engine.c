/* engine.c: the scheduler and the step loop.
 *
 * Each lane (a replica; one without data parallelism) has a pool of pages, a list of requests, and up to
 * `depth` ticks in flight, which go through its pipeline in order. Where there are several lanes, a request
 * waits in the engine's list until a lane has room for it: who finishes early takes more.
 *
 * In a lane, unfinished requests are one list in order of arrival. The first n_running of them run, the
 * others wait: admitting one moves that boundary a place down, preempting the newest that runs moves it a
 * place up. So first come, first served is not a policy that code must keep, but all that the list can
 * express.
 *
 * A tick is made in two passes over the list. First, each running request that lacks just its newest token
 * gets one row; if there is no page for it, the newest running request makes way (perhaps the very one). Then
 * what is left of the tick's rows goes to prompts, in order, a chunk each, until one finds no page: those
 * behind it may not pass. Every request fits the pool alone (engine_add sees to it), so the oldest one always
 * gets on, and all end.
 *
 * With several ticks in flight, a tick takes its share of the requests, one in `depth`, so that no stage
 * of the pipeline idles. A request's token may still be on its way: then it waits. A prompt's next chunk
 * need not: each stage works on ticks in the order they were posted, so the chunk before is in the pages when
 * it gets there. For the same reason pages that a request gives back may be in another's next tick at once,
 * though a tick that still uses them is in flight. Only a request that is in no tick makes way: the token of
 * one that is would be drawn twice.
 */
#include "engine/internal.h"

#include <assert.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "engine/kv.h"

struct lane;

struct request {
    struct lane *lane;           /* NULL: not given to one yet */
    struct request *prev, *next; /* in the engine's list of unfinished or of finished ones */
    struct request_params params;
    int32_t *eos;    /* [params.n_eos], our copy */
    int32_t *tokens; /* [n_prompt + n_output of cap]: prompt, then output */
    int32_t n_prompt, n_output, cap;
    int32_t limit;    /* prompt and output may be this many at most */
    int32_t computed; /* tokens whose keys and values are in its pages once the ticks in flight are over */
    int32_t n_flying; /* ticks in flight, or in the making, that it has a part in */
    uint64_t tick;    /* the newest of them (of its lane, from 1) */
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

/* A tick in the making, or in flight. */
struct flight {
    struct batch batch;
    int32_t *token, *pos;     /* [max_tokens] */
    int32_t *out_row;         /* [max_out] */
    struct span *spans;       /* [max_spans] */
    struct request **span_of; /* [max_spans] whose each span is; NULL: dropped meanwhile */
    int32_t *span_out;        /* [max_spans] row of its logits; -1: none */
    bool *span_decodes;       /* [max_spans] counts as decode, not as prefill */
    bool has_prefill;
};

struct lane {
    struct engine *en;
    int number;
    struct kv_pool *pool;
    struct list left;                 /* the first n_running run, the others wait */
    struct request *newest, *waiting; /* the boundary: the last that runs, the first that waits */
    int32_t n_running, n_left;
    struct flight *flights; /* [depth] ring: n_waited .. n_posted - 1 are in flight */
    uint64_t n_posted, n_waited;
};

struct engine {
    struct backend backend;
    struct engine_options opt; /* max_batch: of one lane */
    struct sampler *sampler;
    struct lane *lanes;
    int32_t n_lanes, depth, n_left;
    struct list unassigned, finished;
    int32_t *order; /* [n_lanes * depth] ring of lanes, as their ticks were posted; the oldest at n_waited */
    uint64_t n_posted, n_waited;
    double stepped_s; /* when the last step ended */
    double noted_s;   /* up to when flying_s is counted */
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
    int32_t depth = b->post ? b->depth : 1, share = (o->max_batch + depth - 1) / depth;
    if (b->max_tokens < share || b->max_out < share || b->max_spans < share)
        return err_set(
            e, ERR_USAGE,
            "a tick takes %d tokens, %d outputs and %d sequences, but max_batch is %d with %d ticks in "
            "flight, and each running request needs one of each; raise them or lower max_batch",
            b->max_tokens, b->max_out, b->max_spans, o->max_batch, depth);
    return 0;
}

static void flight_init(struct flight *f, const struct backend *b)
{
    XNEW_N(f->token, (size_t)b->max_tokens);
    XNEW_N(f->pos, (size_t)b->max_tokens);
    XNEW_N(f->out_row, (size_t)b->max_out);
    XNEW_N(f->spans, (size_t)b->max_spans);
    XNEW_N(f->span_of, (size_t)b->max_spans);
    XNEW_N(f->span_out, (size_t)b->max_spans);
    XNEW_N(f->span_decodes, (size_t)b->max_spans);
    f->batch = (struct batch){.token = f->token, .pos = f->pos, .out_row = f->out_row, .spans = f->spans};
}

static void flight_release(struct flight *f)
{
    xfree(f->token);
    xfree(f->pos);
    xfree(f->out_row);
    xfree(f->spans);
    xfree(f->span_of);
    xfree(f->span_out);
    xfree(f->span_decodes);
}

static void lane_init(struct lane *l, struct engine *en, int number)
{
    l->en = en;
    l->number = number;
    l->pool = kv_pool_new(en->backend.n_pages, en->backend.page_tokens);
    XNEW_N(l->flights, (size_t)en->depth);
    for (int i = 0; i < en->depth; i++)
        flight_init(&l->flights[i], &en->backend);
}

static void lane_release(struct lane *l)
{
    kv_pool_free(l->pool);
    for (int i = 0; i < l->en->depth; i++)
        flight_release(&l->flights[i]);
    xfree(l->flights);
}

int engine_new_on(const struct backend *b, const struct engine_options *o, struct engine **ret, struct err *e)
{
    int lanes = b->post ? b->lanes : 1;
    struct engine_options opt = *o;
    opt.max_batch = (o->max_batch + lanes - 1) / lanes;
    int rc = check_options(b, &opt, e);
    if (rc)
        return rc;
    struct engine *en;
    XNEW(en);
    en->backend = *b;
    en->opt = opt;
    en->sampler = sampler_new(b->n_vocab);
    en->n_lanes = lanes;
    en->depth = b->post ? b->depth : 1;
    XNEW_N(en->lanes, (size_t)lanes);
    XNEW_N(en->order, (size_t)lanes * (size_t)en->depth);
    for (int i = 0; i < lanes; i++)
        lane_init(&en->lanes[i], en, i);
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
                              .stages = to->pp,
                              .fewest_rows = plan_fewest_rows(team_plan(t)->graph),
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
    for (int i = 0; i < en->n_lanes; i++)
        while (en->lanes[i].left.first)
            engine_drop(en, en->lanes[i].left.first);
    while (en->finished.first)
        engine_drop(en, en->finished.first);
    for (int i = 0; i < en->n_lanes; i++)
        lane_release(&en->lanes[i]);
    sampler_free(en->sampler);
    xfree(en->lanes);
    xfree(en->order);
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

/* Requests that no lane has go, oldest first, to the lanes with the fewest, while these have room. */
static void assign(struct engine *en)
{
    while (en->unassigned.first) {
        struct lane *l = &en->lanes[0];
        for (int i = 1; i < en->n_lanes; i++)
            if (en->lanes[i].n_left < l->n_left)
                l = &en->lanes[i];
        if (en->n_lanes > 1 && l->n_left >= en->opt.max_batch)
            return;
        struct request *r = en->unassigned.first;
        list_remove(&en->unassigned, r);
        r->lane = l;
        list_append(&l->left, r);
        l->n_left++;
        if (!l->waiting)
            l->waiting = r;
    }
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
    struct lane *l = r->lane;
    r->finish = why;
    en->n_left--;
    if (l) {
        kv_seq_release(l->pool, &r->kv);
        if (l->newest == r)
            l->newest = r->prev;
        if (l->waiting == r)
            l->waiting = r->next;
        l->n_running -= r->running;
        l->n_left--;
        r->running = false;
    }
    list_remove(l ? &l->left : &en->unassigned, r);
    list_append(&en->finished, r);
}

void engine_drop(struct engine *en, struct request *r)
{
    if (!r)
        return;
    engine_stop(en, r, FINISH_STOP);
    list_remove(&en->finished, r);
    struct lane *l = r->lane;
    for (int k = 0; l && k < en->depth; k++) /* ticks that are not over yet must forget it */
        for (int32_t i = 0; i < l->flights[k].batch.n_spans; i++)
            if (l->flights[k].span_of[i] == r)
                l->flights[k].span_of[i] = NULL;
    kv_seq_close(l ? l->pool : en->lanes[0].pool, &r->kv);
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

static void admit(struct lane *l)
{
    l->newest = l->waiting;
    l->waiting = l->waiting->next;
    l->newest->running = true;
    l->n_running++;
}

/* Takes the newest running request's pages; it waits again, before all others. False: it is in a tick. */
static bool preempt(struct lane *l)
{
    struct request *r = l->newest;
    if (r->n_flying)
        return false;
    kv_seq_release(l->pool, &r->kv);
    r->computed = 0;
    r->running = false;
    r->n_preempted++;
    l->en->stats.preemptions++;
    l->waiting = r;
    l->newest = r->prev;
    l->n_running--;
    return true;
}

/* Without those that ticks in flight compute. 0: its next token is on its way. */
static int32_t lacking(const struct request *r)
{
    return n_tokens(r) - r->computed;
}

static bool is_decode(const struct request *r)
{
    return r->n_output > 0 && lacking(r) == 1;
}

static uint64_t n_flying(const struct lane *l)
{
    return l->n_posted - l->n_waited;
}

/* The tick in the making: its number, and itself. */
static uint64_t next_tick(const struct lane *l)
{
    return l->n_posted + 1;
}

static struct flight *next_flight(const struct lane *l)
{
    return &l->flights[l->n_posted % (uint64_t)l->en->depth];
}

/* Sequences a tick may have: with `depth` ticks in flight, each gets its share of the requests. */
static int32_t most_spans(const struct lane *l)
{
    int32_t active = MIN(l->n_left, l->en->opt.max_batch), depth = l->en->depth;
    return MIN((active + depth - 1) / depth, l->en->backend.max_spans);
}

/* Adds the next n tokens of r to the tick. Its pages are there. */
static void schedule(struct lane *l, struct request *r, int32_t n)
{
    struct flight *f = next_flight(l);
    struct batch *b = &f->batch;
    int32_t first = b->n_tokens, end = r->computed + n, i = b->n_spans;
    bool complete = n == lacking(r), again = l->en->opt.recompute && r->n_output;
    assert(n > 0 && n <= lacking(r) && first + n <= l->en->backend.max_tokens && i < most_spans(l));
    memcpy(f->token + first, r->tokens + r->computed, sizeof(int32_t) * (size_t)n);
    for (int32_t k = 0; k < n; k++)
        f->pos[first + k] = r->computed + k;
    f->spans[i] =
        (struct span){first, n, r->computed, kv_pages(end, l->en->backend.page_tokens), r->kv.pages};
    f->span_of[i] = r;
    f->span_out[i] = complete ? b->n_out : -1;
    f->span_decodes[i] = again || is_decode(r);
    f->has_prefill |= !f->span_decodes[i];
    b->n_spans++;
    b->n_tokens += n;
    if (complete)
        f->out_row[b->n_out++] = b->n_tokens - 1;
    r->computed = end;
    r->tick = next_tick(l);
    r->n_flying++;
}

static void schedule_decodes(struct lane *l)
{
    struct request *next;
    for (struct request *r = l->left.first; r && r->running; r = next) {
        bool fits = false;
        if (is_decode(r) && next_flight(l)->batch.n_spans < most_spans(l))
            while (r->running && !(fits = kv_seq_reserve(l->pool, &r->kv, n_tokens(r))) && preempt(l))
                ;
        next = r->next;
        if (fits)
            schedule(l, r, 1);
    }
}

/* How many of the next n tokens of r there are pages for, after taking these. As long as anybody gets on
 * otherwise, a page stays free for each running request's next token: who took that one would soon be
 * preempted for it. */
static int32_t find_pages(struct lane *l, struct request *r, int32_t n)
{
    bool others = next_flight(l)->batch.n_tokens || n_flying(l);
    int64_t spare = kv_pool_n_free(l->pool) - (others ? l->n_running : 0);
    int64_t room = (spare + r->kv.n) * l->en->backend.page_tokens - r->computed;
    if (!r->running && l->n_running && room < n)
        return 0; /* who comes in gets a whole chunk done */
    n = (int32_t)MIN((int64_t)n, room);
    return n > 0 && kv_seq_reserve(l->pool, &r->kv, r->computed + n) ? n : 0;
}

static int32_t most_prompt_rows(const struct lane *l)
{
    const struct backend *b = &l->en->backend;
    int64_t pending = 0;
    int32_t n = 0;
    for (const struct request *r = l->left.first; r && n < l->en->opt.max_batch; r = r->next, n++)
        pending += lacking(r);
    return plan_prompt_rows(pending, l->en->depth, b->fewest_rows, b->max_tokens);
}

static void schedule_prompts(struct lane *l)
{
    struct batch *b = &next_flight(l)->batch;
    const struct backend *k = &l->en->backend;
    int32_t most_rows = MIN(b->n_tokens + most_prompt_rows(l), k->max_tokens);
    for (struct request *r = l->left.first; r; r = r->next) {
        int32_t rows = most_rows - b->n_tokens;
        if (r->tick == next_tick(l) || !lacking(r))
            continue;
        if (!rows || b->n_spans == most_spans(l) || b->n_out == k->max_out ||
            (!r->running && l->n_running == l->en->opt.max_batch))
            return;
        int32_t n, most = MIN(MIN(l->en->opt.prefill_chunk, rows), lacking(r));
        while (!(n = find_pages(l, r, most)) && !b->n_tokens && !n_flying(l) && r != l->newest && l->newest)
            preempt(l); /* nobody else would get on either */
        if (!n)
            return;
        if (!r->running)
            admit(l);
        schedule(l, r, n);
    }
}

/* False: nothing can be done before a tick in flight is over. */
static bool make_batch(struct lane *l)
{
    struct flight *f = next_flight(l);
    f->batch.n_tokens = f->batch.n_out = f->batch.n_spans = 0;
    f->has_prefill = false;
    uint64_t before = l->en->stats.preemptions;
    schedule_decodes(l);
    /* With pages this short, nobody who waits is let in. */
    if (l->en->stats.preemptions == before || (!f->batch.n_tokens && !n_flying(l)))
        schedule_prompts(l);
    int32_t used = l->en->backend.n_pages - kv_pool_n_free(l->pool);
    l->en->stats.pages_used_max = MAX(l->en->stats.pages_used_max, used);
    /* every request fits alone, so somebody gets on */
    assert(f->batch.n_tokens > 0 || n_flying(l) || !l->n_left);
    return f->batch.n_tokens > 0;
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
static void digest(struct engine *en, struct flight *f, const float *logits)
{
    for (int32_t i = 0; i < f->batch.n_spans; i++) {
        struct request *r = f->span_of[i];
        if (!r)
            continue;
        r->n_flying--;
        if (r->finish)
            continue;
        bool complete = f->span_out[i] >= 0;
        if (!f->span_decodes[i])
            en->stats.prefill_tokens += (uint64_t)f->spans[i].n;
        else
            en->stats.decode_tokens +=
                complete; /* in recompute mode the tokens computed again are not counted */
        r->drawn = complete ? draw(en, r, logits + (size_t)f->span_out[i] * (size_t)en->backend.n_vocab) : -1;
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
static void deliver(struct engine *en, struct flight *f, double now)
{
    for (int32_t i = 0; i < f->batch.n_spans; i++) {
        struct request *r = f->span_of[i];
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
    f->batch.n_spans = 0;
}

static int give_up(struct engine *en, struct err *e)
{
    while (en->unassigned.first)
        engine_stop(en, en->unassigned.first, FINISH_ERROR);
    for (int i = 0; i < en->n_lanes; i++)
        while (en->lanes[i].left.first)
            engine_stop(en, en->lanes[i].left.first, FINISH_ERROR);
    return err_set(e, en->broken.code, "%s", en->broken.msg);
}

/* Before the number of ticks in flight changes. */
static void note_flying(struct engine *en)
{
    double now = clock_s();
    for (int i = 0; i < en->n_lanes; i++)
        en->stats.flying_s +=
            (double)MIN(n_flying(&en->lanes[i]), (uint64_t)MAX(en->backend.stages, 1)) * (now - en->noted_s);
    en->noted_s = now;
}

/* The batch made for the lane's next tick, perhaps an empty one, is on its way. */
static int post(struct engine *en, struct lane *l)
{
    note_flying(en);
    const struct batch *b = &next_flight(l)->batch;
    en->order[en->n_posted++ % ((uint64_t)en->n_lanes * (uint64_t)en->depth)] = l->number;
    l->n_posted++;
    return !en->backend.post ? 0 : en->backend.post(en->backend.ctx, l->number, b, &en->broken);
}

static bool has_room(const struct lane *l)
{
    return n_flying(l) < (uint64_t)l->en->depth;
}

static bool prepare(struct lane *l)
{
    alloc_guard_begin();
    bool work = make_batch(l);
    alloc_guard_end();
    return work;
}

/* Lanes whose ticks go together: all or none. */
static int post_together(struct engine *en)
{
    for (;;) {
        bool work = false, room = true, prefill = false;
        for (int i = 0; i < en->n_lanes; i++)
            room &= has_room(&en->lanes[i]);
        for (int i = 0; i < en->n_lanes && room; i++) {
            work |= prepare(&en->lanes[i]);
            prefill |= next_flight(&en->lanes[i])->has_prefill;
        }
        if (!work)
            return 0;
        for (int i = 0; i < en->n_lanes; i++) /* whose tick it is that takes long cannot be told */
            next_flight(&en->lanes[i])->has_prefill = prefill;
        for (int i = en->n_lanes - 1; i >= 0; i--) /* lane 0, which computes in post, last */
            if (post(en, &en->lanes[i]))
                return en->broken.code;
    }
}

/* Every lane gets as many ticks as it can have; those whose first stage is elsewhere first, since posting to
 * them only sends. */
static int post_all(struct engine *en)
{
    assign(en);
    if (en->backend.together)
        return post_together(en);
    for (int i = en->n_lanes - 1; i >= 0; i--)
        while (has_room(&en->lanes[i]) && prepare(&en->lanes[i]))
            if (post(en, &en->lanes[i]))
                return en->broken.code;
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
    assert(en->n_posted > en->n_waited);
    uint64_t slots = (uint64_t)en->n_lanes * (uint64_t)en->depth;
    struct lane *l = &en->lanes[en->order[en->n_waited++ % slots]];
    struct flight *f = &l->flights[l->n_waited % (uint64_t)en->depth];
    int rc = !en->backend.post ? en->backend.tick(en->backend.ctx, &f->batch, &logits, &en->broken)
                               : en->backend.wait(en->backend.ctx, l->number, &logits, &en->broken);
    note_flying(en);
    l->n_waited++;
    if (rc)
        return give_up(en, e);
    alloc_guard_begin();
    digest(en, f, logits);
    alloc_guard_end();
    double now = en->stepped_s = clock_s();
    en->stats.ticks++;
    *(f->has_prefill ? &en->stats.prefill_s : &en->stats.decode_s) += now - before;
    deliver(en, f, now);
    *ret_left = en->n_left;
    return 0;
}
