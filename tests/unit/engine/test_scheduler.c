/* engine.h with a mock in place of the ranks. The mock keeps a KV cache of its own, in the pages it is told,
 * and computes logits from what it reads back there: a page that is shared, lost or not filled shows in the
 * tokens. It checks every batch it gets. Where ticks overlap it plays a pipeline of two stages, each with a
 * cache of its own; the second one may lag behind by all ticks in flight.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "engine/internal.h"

enum { VOCAB = 1024, MAX_REQUESTS = VOCAB, MAX_CONTEXT = 96, MAX_SPANS = 16, MAX_LANES = 3, MAX_DEPTH = 4 };

static uint32_t rnd(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

/* --- the mock model: logits are a function of the whole sequence --- */

static void mock_logits(const int32_t *tokens, int32_t n, float *row)
{
    uint32_t h = 2166136261u;
    for (int32_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)tokens[i]) * 16777619u;
    for (int32_t i = 0; i < VOCAB; i++)
        row[i] = -INFINITY;
    for (int i = 0; i < 6; i++)
        row[rnd(&h, VOCAB)] = (float)rnd(&h, 1000) / 250;
}

struct job; /* what the test knows of a request */

/* A sequence's part in a tick, as it was posted. */
struct part {
    int32_t pos0, end, pages[MAX_CONTEXT], tokens[MAX_CONTEXT];
    bool out;
};

struct posted {
    struct part part[MAX_SPANS];
    int32_t n;
    float *logits;
};

struct mock_lane {
    int32_t *kv[2]; /* [n_pages, page_tokens] of each stage */
    struct posted flight[MAX_DEPTH];
    uint64_t n_posted, n_done, n_waited; /* done: by the second stage */
};

struct mock {
    struct backend backend;
    struct engine *en;
    struct engine_options opt;
    struct mock_lane lanes[MAX_LANES];
    int64_t n_ticks, n_waits, n_rows, fail_at; /* fail_at: the tick that loses a rank; -1: none */
    struct job *jobs;
    int32_t n_jobs, n_settled; /* settled: the first ones, which have ended and been looked at */
    int32_t oldest;            /* the job that was so after the last tick */
    uint32_t seed;
    int chaos; /* out of 100: how often a callback stops, drops or adds something */
};

enum fate { FATE_LEFT, FATE_FINISHED, FATE_DROPPED };

struct job {
    struct mock *mock;
    struct request *r; /* NULL once dropped */
    struct request_params params;
    int32_t eos[2];
    int32_t tokens[MAX_CONTEXT + 1]; /* prompt, then what should come */
    int32_t n_prompt, n_want, n_got;
    enum finish want_finish;
    enum fate fate;
    int lane; /* -1: no tick yet */
    int64_t last_tick;
    uint64_t last_posted; /* the same, counted in its lane */
    int32_t last_end;     /* where its part of that tick ended */
    int32_t n_preempted;
};

/* What the request must yield, whatever happens around it. */
static void foresee(struct job *j)
{
    struct mock *m = j->mock;
    struct sampler *s = sampler_new(VOCAB);
    float row[VOCAB];
    int64_t pool = (int64_t)m->backend.n_pages * m->backend.page_tokens + 1;
    j->want_finish = FINISH_LENGTH;
    for (int32_t n = j->n_prompt; n < m->opt.max_context && n < pool && j->n_want < j->params.max_new_tokens;
         n++) {
        bool early = j->n_want < j->params.min_new_tokens && !j->params.ignore_eos;
        mock_logits(j->tokens, n, row);
        const struct sampler_input in = {row,       j->tokens, j->n_prompt,
                                         j->n_want, j->eos,    early ? j->params.n_eos : 0};
        int32_t id = sampler_draw(s, &j->params.sampling, &in);
        if (id < 0) {
            j->want_finish = FINISH_ERROR;
            break;
        }
        j->tokens[n] = id;
        j->n_want++;
        bool is_eos = false;
        for (int32_t i = 0; i < j->params.n_eos; i++)
            is_eos |= j->eos[i] == id;
        if (is_eos && !j->params.ignore_eos) {
            j->want_finish = FINISH_EOS;
            break;
        }
    }
    sampler_free(s);
}

static int32_t *kv_at(const struct mock *m, int32_t *kv, const int32_t *pages, int32_t pos)
{
    int32_t n = m->backend.page_tokens;
    return &kv[pages[pos / n] * n + pos % n];
}

/* The first token of a prompt is the job's number. */
static struct job *job_of(struct mock *m, int lane, const struct span *s)
{
    int32_t i = *kv_at(m, m->lanes[lane].kv[0], s->pages, 0);
    assert_in_range(i, 0, m->n_jobs - 1);
    return &m->jobs[i];
}

/* The first stage writes what is new. */
static void check_span(struct mock *m, int lane, const struct batch *b, const struct span *s,
                       uint8_t *page_used)
{
    const struct backend *k = &m->backend;
    assert_true(s->n > 0);
    assert_int_equal(s->n_pages, (s->pos0 + s->n + k->page_tokens - 1) / k->page_tokens);
    for (int32_t i = 0; i < s->n_pages; i++) {
        assert_in_range(s->pages[i], 0, k->n_pages - 1);
        assert_false(page_used[s->pages[i]]); /* no two sequences share a page */
        page_used[s->pages[i]] = 1;
    }
    for (int32_t i = 0; i < s->n; i++) {
        assert_int_equal(b->pos[s->first + i], s->pos0 + i);
        *kv_at(m, m->lanes[lane].kv[0], s->pages, s->pos0 + i) = b->token[s->first + i];
    }
}

static bool is_prompt_work(const struct job *j, const struct span *s)
{
    return j->n_got == 0 || s->pos0 + s->n < j->n_prompt + j->n_got || s->n > 1;
}

static bool is_in_flight(const struct mock *m, const struct job *j)
{
    return j->last_posted > m->lanes[j->lane].n_waited;
}

/* First come, first served: prompts are worked on only if everyone older has a part in the tick, too, or in
 * one in flight. */
static void check_order(struct mock *m, int lane, const struct batch *b)
{
    int32_t last_decode = -1, last_prompt = -1;
    for (int32_t i = 0; i < b->n_spans; i++) {
        struct job *j = job_of(m, lane, &b->spans[i]);
        int32_t number = (int32_t)(j - m->jobs);
        assert_int_equal(j->fate, FATE_LEFT);
        assert_true(j->lane < 0 || j->lane == lane);
        assert_true(j->last_tick != m->n_ticks);   /* one span a tick */
        if (j->lane == lane && is_in_flight(m, j)) /* nobody makes way in mid-flight */
            assert_int_equal(b->spans[i].pos0, j->last_end);
        j->lane = lane;
        j->last_end = b->spans[i].pos0 + b->spans[i].n;
        j->last_tick = m->n_ticks;
        j->last_posted = m->lanes[lane].n_posted + 1;
        if (!is_prompt_work(j, &b->spans[i])) {
            assert_true(number > last_decode && last_prompt < 0); /* before all prompts */
            last_decode = number;
            continue;
        }
        assert_true(b->spans[i].n <= m->opt.prefill_chunk);
        assert_true(number > last_prompt);
        last_prompt = number;
    }
    for (int32_t i = 0; i < last_prompt; i++) {
        const struct job *j = &m->jobs[i];
        if (j->fate == FATE_LEFT && (j->lane == lane || (j->lane < 0 && m->backend.lanes <= 1)))
            assert_true(j->last_tick == m->n_ticks || is_in_flight(m, j));
    }
}

/* What the second stage needs of a batch, whose memory is the engine's. */
static void keep(struct mock *m, int lane, const struct batch *b)
{
    struct mock_lane *l = &m->lanes[lane];
    struct posted *f = &l->flight[l->n_posted++ % MAX_DEPTH];
    int32_t out = 0;
    f->n = b->n_spans;
    for (int32_t i = 0; i < b->n_spans; i++) {
        const struct span *s = &b->spans[i];
        const struct job *j = job_of(m, lane, s);
        struct part *p = &f->part[i];
        p->pos0 = s->pos0;
        p->end = s->pos0 + s->n;
        memcpy(p->pages, s->pages, sizeof(int32_t) * (size_t)s->n_pages);
        for (int32_t k = 0; k < p->end; k++)
            p->tokens[k] = *kv_at(m, l->kv[0], p->pages, k);
        assert_memory_equal(p->tokens, j->tokens, sizeof(int32_t) * (size_t)p->end);
        p->out = p->end == j->n_prompt + j->n_got; /* else more of it is to come: its logits are not wanted */
        if (p->out)
            assert_int_equal(b->out_row[out++], s->first + s->n - 1);
    }
    assert_int_equal(out, b->n_out);
}

/* The second stage does its oldest tick. */
static void finish_one(struct mock *m, struct mock_lane *l)
{
    struct posted *f = &l->flight[l->n_done++ % MAX_DEPTH];
    int32_t tokens[MAX_CONTEXT], out = 0;
    for (int32_t i = 0; i < f->n; i++) {
        const struct part *p = &f->part[i];
        for (int32_t k = p->pos0; k < p->end; k++)
            *kv_at(m, l->kv[1], p->pages, k) = p->tokens[k];
        for (int32_t k = 0; k < p->end; k++)
            tokens[k] = *kv_at(m, l->kv[1], p->pages, k);
        assert_memory_equal(tokens, p->tokens, sizeof(int32_t) * (size_t)p->end);
        if (p->out)
            mock_logits(tokens, p->end, f->logits + (size_t)out++ * VOCAB);
    }
}

static int mock_post(void *ctx, int lane, const struct batch *b, struct err *e)
{
    struct mock *m = ctx;
    const struct backend *k = &m->backend;
    struct mock_lane *l = &m->lanes[lane];
    int32_t depth = MAX(k->depth, 1), share = (m->opt.max_batch + depth - 1) / depth, rows = 0;
    uint8_t *page_used;
    m->n_ticks++;
    assert_in_range(l->n_posted - l->n_waited, 0, depth - 1);
    assert_in_range(b->n_tokens, k->together ? 0 : 1, k->max_tokens);
    assert_in_range(b->n_spans, k->together ? 0 : 1, MIN(k->max_spans, share));
    assert_in_range(b->n_out, 0, k->max_out);
    XNEW_N(page_used, (size_t)k->n_pages);
    for (int32_t i = 0; i < b->n_spans; i++) {
        assert_int_equal(b->spans[i].first, rows);
        check_span(m, lane, b, &b->spans[i], page_used);
        rows += b->spans[i].n;
    }
    assert_int_equal(rows, b->n_tokens);
    m->n_rows += rows;
    check_order(m, lane, b);
    keep(m, lane, b);
    while (l->n_done < l->n_posted && rnd(&m->seed, 3) == 0)
        finish_one(m, l);
    xfree(page_used);
    return 0;
}

static int mock_wait(void *ctx, int lane, const float **ret_logits, struct err *e)
{
    struct mock *m = ctx;
    struct mock_lane *l = &m->lanes[lane];
    for (int i = 0; m->backend.together && i < m->backend.lanes; i++) /* all, or none */
        assert_int_equal(m->lanes[i].n_posted, m->lanes[0].n_posted);
    m->n_waits++;
    if (m->n_waits == m->fail_at)
        return err_set(e, ERR_RANK_LOST, "rank 1 is gone");
    assert_true(l->n_waited < l->n_posted);
    if (l->n_done == l->n_waited)
        finish_one(m, l);
    *ret_logits = l->flight[l->n_waited++ % MAX_DEPTH].logits;
    return 0;
}

static int mock_tick(void *ctx, const struct batch *b, const float **ret_logits, struct err *e)
{
    int rc = mock_post(ctx, 0, b, e);
    return rc ? rc : mock_wait(ctx, 0, ret_logits, e);
}

/* --- driving it --- */

static void mock_init(struct mock *m, struct backend b, struct engine_options o)
{
    struct err e;
    memset(m, 0, sizeof(*m));
    if (b.lanes) {
        b.post = mock_post;
        b.wait = mock_wait;
    } else {
        b.tick = mock_tick;
    }
    b.ctx = m;
    b.n_vocab = VOCAB;
    m->backend = b;
    m->opt = o;
    m->fail_at = -1;
    m->oldest = -1;
    for (int l = 0; l < MAX(b.lanes, 1); l++) {
        for (int i = 0; i < 2; i++)
            XNEW_N(m->lanes[l].kv[i], (size_t)(b.n_pages * b.page_tokens));
        for (int i = 0; i < MAX_DEPTH; i++)
            XNEW_N(m->lanes[l].flight[i].logits, (size_t)b.max_out * VOCAB);
    }
    XNEW_N(m->jobs, MAX_REQUESTS);
    assert_int_equal(engine_new_on(&b, &o, &m->en, &e), 0);
}

static void mock_release(struct mock *m)
{
    engine_free(m->en);
    for (int l = 0; l < MAX_LANES; l++) {
        for (int i = 0; i < 2; i++)
            xfree(m->lanes[l].kv[i]);
        for (int i = 0; i < MAX_DEPTH; i++)
            xfree(m->lanes[l].flight[i].logits);
    }
    xfree(m->jobs);
}

static void drop(struct mock *m, struct job *j)
{
    engine_drop(m->en, j->r);
    j->r = NULL;
    j->fate = FATE_DROPPED;
}

static void stop(struct mock *m, struct job *j)
{
    engine_stop(m->en, j->r, FINISH_STOP);
    j->fate = FATE_FINISHED;
    struct request_view v;
    request_look(j->r, &v);
    j->want_finish = v.finish;
}

static struct job *add(struct mock *m, int32_t n_prompt, struct request_params p, request_token_fn *on_token);

static request_token_fn on_token;
static struct job *add_random(struct mock *m)
{
    int64_t pool = (int64_t)m->backend.n_pages * m->backend.page_tokens;
    int32_t most = (int32_t)MIN((int64_t)m->opt.max_context - 1, pool);
    struct request_params p = {.sampling = SAMPLING_INIT,
                               .max_new_tokens = (int32_t)rnd(&m->seed, rnd(&m->seed, 2) ? 8 : 200),
                               .min_new_tokens = (int32_t)rnd(&m->seed, 6),
                               .n_eos = (int32_t)rnd(&m->seed, 3),
                               .ignore_eos = rnd(&m->seed, 4) == 0};
    p.sampling.greedy = rnd(&m->seed, 2);
    p.sampling.seed = rnd(&m->seed, 1 << 20);
    p.sampling.repetition_penalty = rnd(&m->seed, 2) ? 1 : 1.5;
    p.sampling.top_k = (int32_t)rnd(&m->seed, 5);
    return add(m, 1 + (int32_t)rnd(&m->seed, (uint32_t)(rnd(&m->seed, 2) ? most : MIN(most, 9))), p,
               on_token);
}

static struct job *add(struct mock *m, int32_t n_prompt, struct request_params p, request_token_fn *fn)
{
    struct err e = {0};
    if (m->n_jobs == MAX_REQUESTS)
        return NULL;
    struct job *j = &m->jobs[m->n_jobs];
    j->mock = m;
    j->lane = -1;
    j->params = p;
    j->n_prompt = n_prompt;
    j->tokens[0] = m->n_jobs++;
    for (int32_t i = 1; i < n_prompt; i++)
        j->tokens[i] = (int32_t)rnd(&m->seed, VOCAB);
    foresee(j);
    if (j->n_want > 3 && p.n_eos && !p.eos) { /* make the eos ids such as come */
        memset(j->tokens + n_prompt, 0, sizeof(int32_t) * (size_t)j->n_want);
        for (int i = 0; i < p.n_eos; i++) {
            float row[VOCAB];
            mock_logits(j->tokens, n_prompt, row);
            do
                j->eos[i] = (int32_t)rnd(&m->seed, VOCAB);
            while (i == 0 && row[j->eos[i]] == -INFINITY);
        }
        j->n_want = 0;
        foresee(j);
    }
    p.eos = j->eos;
    int32_t eos[2] = {j->eos[0], j->eos[1]}; /* the engine keeps its own copy */
    p.eos = eos;
    if (engine_add(m->en, j->tokens, n_prompt, &p, fn, j, &j->r, &e))
        fail_msg("%s", e.msg);
    memset(eos, 0, sizeof(eos));
    struct request_view v;
    request_look(j->r, &v);
    assert_int_equal(v.finish,
                     j->n_want == 0 && j->want_finish == FINISH_LENGTH ? FINISH_LENGTH : FINISH_NONE);
    if (v.finish)
        j->fate = FATE_FINISHED; /* nothing was wanted */
    return j;
}

static void on_token(void *ctx, struct request *r, int32_t token)
{
    struct job *j = ctx;
    struct mock *m = j->mock;
    struct request_view v;
    request_look(r, &v);
    assert_ptr_equal(r, j->r);
    assert_true(j->n_got < j->n_want);
    assert_int_equal(token, j->tokens[j->n_prompt + j->n_got]);
    j->n_got++;
    assert_int_equal(v.n_output, j->n_got);
    assert_int_equal(v.output[j->n_got - 1], token);
    assert_int_equal(v.finish != FINISH_NONE, j->n_got == j->n_want && j->want_finish != FINISH_ERROR);
    if (v.finish)
        j->fate = FATE_FINISHED;
    if ((int)rnd(&m->seed, 100) >= m->chaos)
        return;
    struct job *other = &m->jobs[rnd(&m->seed, (uint32_t)m->n_jobs)];
    switch (rnd(&m->seed, 5)) {
    case 0:
        stop(m, j);
        break;
    case 1:
        drop(m, j);
        break;
    case 2:
        if (other->r && other->fate == FATE_LEFT)
            stop(m, other);
        break;
    case 3:
        if (other->r)
            drop(m, other);
        break;
    default:
        add_random(m);
    }
}

static int32_t count_left(const struct mock *m)
{
    int32_t n = 0;
    for (int32_t i = m->n_settled; i < m->n_jobs; i++)
        n += m->jobs[i].fate == FATE_LEFT;
    return n;
}

/* Between ticks: fates as the engine sees them; the request that was the oldest was not preempted. */
static void look_at_all(struct mock *m)
{
    int32_t oldest = -1;
    bool settled = true;
    for (int32_t i = m->n_settled; i < m->n_jobs; i++) {
        struct job *j = &m->jobs[i];
        struct request_view v;
        settled = settled && j->fate != FATE_LEFT;
        m->n_settled += settled;
        if (!j->r)
            continue;
        request_look(j->r, &v);
        assert_int_equal(v.n_prompt, j->n_prompt);
        assert_int_equal(v.n_output, j->n_got);
        if (v.finish)
            j->fate = FATE_FINISHED;
        assert_int_equal(v.finish, j->fate == FATE_LEFT ? FINISH_NONE : j->want_finish);
        assert_true(v.added_s > 0 && (v.first_token_s > 0) == (v.n_output > 0));
        assert_true(v.n_output == 0 || (v.first_token_s >= v.added_s && v.last_token_s >= v.first_token_s));
        if (i == m->oldest)
            assert_int_equal(v.n_preempted, j->n_preempted);
        if (oldest < 0 && v.finish == FINISH_NONE)
            oldest = i;
        j->n_preempted = v.n_preempted;
    }
    m->oldest = oldest;
}

/* Steps until nothing is left. Each tick computes something, so this many ticks must do. */
static void run_to_end(struct mock *m)
{
    struct err e = {0};
    int32_t left = 1;
    for (int64_t i = 0; left; i++) {
        assert_true(i < 1000000);
        if (engine_step(m->en, &left, &e))
            fail_msg("%s", e.msg);
        look_at_all(m);
        assert_int_equal(left, count_left(m));
        if ((int)rnd(&m->seed, 300) < m->chaos) {
            add_random(m);
            left = 1;
        }
    }
    m->n_settled = 0; /* all once more: what has ended stayed as it was */
    look_at_all(m);
    for (int32_t i = 0; i < m->n_jobs; i++)
        if (m->jobs[i].r && m->jobs[i].want_finish != FINISH_STOP)
            assert_int_equal(m->jobs[i].n_got, m->jobs[i].n_want);
}

/* Ticks whose requests are all gone may still be in flight. */
static void drain(struct mock *m)
{
    struct err e = {0};
    int32_t left;
    while (m->n_waits < m->n_ticks)
        assert_int_equal(engine_step(m->en, &left, &e), 0);
}

/* Where `overlap` is set ticks do, in one lane or several. */
static void episode(uint32_t seed, bool overlap)
{
    struct mock m;
    uint32_t s = seed * 7919;
    int32_t max_batch = 1 + (int32_t)rnd(&s, 12);
    struct backend b = {.page_tokens = 1 + (int32_t)rnd(&s, 8),
                        .max_tokens = max_batch + (int32_t)rnd(&s, 40),
                        .max_out = max_batch + (int32_t)rnd(&s, 3),
                        .max_spans = max_batch + (int32_t)rnd(&s, 3)};
    if (overlap) {
        b.lanes = 1 + (int)rnd(&s, MAX_LANES);
        b.depth = 1 + (int)rnd(&s, MAX_DEPTH);
        b.together = rnd(&s, 2);
        b.fewest_rows = (int32_t)rnd(&s, 30);
    }
    struct engine_options o = {.max_batch = max_batch,
                               .max_context = 2 + (int32_t)rnd(&s, MAX_CONTEXT - 1),
                               .prefill_chunk = 1 + (int32_t)rnd(&s, 30),
                               .recompute = rnd(&s, 5) == 0};
    int32_t whole = (o.max_context + b.page_tokens - 1) / b.page_tokens; /* pages of a full context */
    b.n_pages = rnd(&s, 2) ? 1 + (int32_t)rnd(&s, (uint32_t)(2 * whole)) : whole * max_batch;
    mock_init(&m, b, o);
    m.seed = s;
    m.chaos = rnd(&s, 2) ? 0 : 15;
    for (int32_t n = 1 + (int32_t)rnd(&m.seed, 25); n > 0; n--)
        add_random(&m);
    run_to_end(&m);
    drain(&m);
    /* all pages came back: a prompt that takes the whole pool runs */
    int32_t all = MIN(b.n_pages * b.page_tokens, o.max_context - 1);
    for (int l = 0; l < MAX(b.lanes, 1) && m.n_jobs < MAX_REQUESTS; l++) {
        m.chaos = 0;
        add(&m, all, (struct request_params){.sampling = SAMPLING_INIT, .max_new_tokens = 1}, on_token);
        run_to_end(&m);
    }
    struct engine_stats stats;
    engine_stats(m.en, &stats);
    assert_int_equal(stats.ticks, m.n_ticks);
    assert_in_range(stats.pages_used_max, 1, b.n_pages);
    mock_release(&m);
}

static void test_episodes(void **state)
{
    for (uint32_t seed = 1; seed <= 400; seed++)
        episode(seed, false);
}

static void test_overlapping_episodes(void **state)
{
    for (uint32_t seed = 1; seed <= 200; seed++)
        episode(seed, true);
}

/* --- single matters --- */

static const struct backend roomy = {
    .page_tokens = 4, .n_pages = 64, .max_tokens = 32, .max_out = 8, .max_spans = 8};
static const struct engine_options plain = {.max_batch = 4, .max_context = 64, .prefill_chunk = 8};

static struct request_params wants(int32_t n)
{
    return (struct request_params){.sampling = SAMPLING_INIT, .max_new_tokens = n};
}

static void step(struct mock *m, int32_t want_left)
{
    struct err e = {0};
    int32_t left = -1;
    if (engine_step(m->en, &left, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(left, want_left);
}

static struct request_view look(const struct job *j)
{
    struct request_view v;
    request_look(j->r, &v);
    return v;
}

/* Which tick does what, on a small case worked out by hand. */
static void test_chunks_by_hand(void **state)
{
    struct mock m;
    struct engine_stats s;
    mock_init(&m, roomy, plain);
    struct job *a = add(&m, 20, wants(3), on_token), *b = add(&m, 5, wants(2), on_token);
    step(&m, 2); /* a: 8; b: 5 and its first token */
    assert_int_equal(look(a).n_output, 0);
    assert_int_equal(look(b).n_output, 1);
    engine_stats(m.en, &s);
    assert_int_equal(s.prefill_tokens, 13);
    assert_int_equal(s.pages_used_max, 4);
    step(&m, 1); /* b: its last token; a: 8 more */
    assert_int_equal(look(b).finish, FINISH_LENGTH);
    engine_stats(m.en, &s);
    assert_int_equal(s.decode_tokens, 1);
    assert_true(s.decode_s == 0 && s.prefill_s > 0); /* there were prompt tokens in both */
    step(&m, 1);                                     /* a: 4, first token */
    step(&m, 1);
    step(&m, 0);
    assert_int_equal(look(a).n_output, 3);
    step(&m, 0); /* nothing to do */
    engine_stats(m.en, &s);
    assert_int_equal(s.ticks, 5);
    assert_int_equal(s.prefill_tokens, 25);
    assert_int_equal(s.decode_tokens, 3);
    assert_int_equal(s.preemptions, 0);
    assert_true(s.decode_s > 0);
    mock_release(&m);
}

/* A prompt's chunks follow each other without waiting for the ends of ticks; its token then comes from the
 * last. */
static void test_chunks_overlap(void **state)
{
    struct mock m;
    struct engine_stats s;
    struct backend b = roomy;
    b.lanes = 1;
    b.depth = b.stages = 3;
    b.fewest_rows = 64;
    mock_init(&m, b, plain);
    struct job *a = add(&m, 20, wants(2), on_token);
    step(&m, 1);
    assert_int_equal(m.n_ticks, 3); /* 8, 8, 4 */
    step(&m, 1);
    step(&m, 1);
    assert_int_equal(m.n_ticks, 3);
    assert_int_equal(look(a).n_output, 1);
    step(&m, 0);
    engine_stats(m.en, &s);
    assert_true(s.flying_s >= 0.5 * (s.prefill_s + s.decode_s) &&
                s.flying_s <= 3 * (s.prefill_s + s.decode_s));
    assert_int_equal(s.prefill_tokens, 20);
    assert_int_equal(s.decode_tokens, 1);
    mock_release(&m);
}

/* Where lanes tick together, the time of one's prompt is not counted as another's decoding. */
static void test_time_together(void **state)
{
    struct mock m;
    struct engine_stats s;
    struct backend b = roomy;
    b.lanes = 2;
    b.depth = 1;
    b.together = true;
    mock_init(&m, b, plain);
    add(&m, 20, wants(1), on_token);
    run_to_end(&m);
    drain(&m);
    engine_stats(m.en, &s);
    assert_int_equal(s.prefill_tokens, 20);
    assert_true(s.prefill_s > 0 && s.decode_s == 0);
    mock_release(&m);
}

/* Few requests are shared out over the ticks in flight, and over the replicas. */
static void test_shares(void **state)
{
    struct mock m;
    struct backend b = roomy;
    struct engine_options o = plain;
    o.max_batch = 8;
    b.depth = 2;
    b.fewest_rows = 64;
    for (b.lanes = 1; b.lanes <= 2; b.lanes++) {
        mock_init(&m, b, o);
        for (int i = 0; i < 4; i++)
            add(&m, 2, wants(4), on_token);
        step(&m, 4);
        for (int l = 0; l < b.lanes; l++)
            for (int i = 0; i < 2; i++)
                assert_int_equal(m.lanes[l].flight[i].n, 2 / b.lanes);
        run_to_end(&m);
        mock_release(&m);
    }
}

/* No more than max_batch at once; the next one comes in as soon as one ends. */
static void test_max_batch(void **state)
{
    struct mock m;
    struct engine_options o = plain;
    o.max_batch = 2;
    mock_init(&m, roomy, o);
    struct job *j[3];
    for (int i = 0; i < 3; i++)
        j[i] = add(&m, 4, wants(2 + i), on_token);
    step(&m, 3);
    assert_int_equal(look(j[1]).n_output, 1);
    assert_int_equal(look(j[2]).n_output, 0);
    step(&m, 2); /* j[0] ends */
    step(&m, 1); /* j[1] ends; j[2] has come in */
    assert_int_equal(look(j[2]).n_output, 1);
    engine_drop(m.en, j[2]->r);
    j[2]->r = NULL;
    step(&m, 0);
    mock_release(&m);
}

/* Three pages for two requests that want two each: the newer one makes way, and loses nothing. */
static void test_preemption_by_hand(void **state)
{
    struct mock m;
    struct engine_stats s;
    struct backend b = roomy;
    b.n_pages = 3;
    mock_init(&m, b, plain);
    struct job *a = add(&m, 3, wants(5), on_token), *c = add(&m, 3, wants(5), on_token);
    run_to_end(&m);
    assert_int_equal(look(a).n_preempted, 0);
    assert_int_equal(look(c).n_preempted, 1);
    engine_stats(m.en, &s);
    assert_int_equal(s.preemptions, 1);
    assert_int_equal(s.pages_used_max, 2);
    assert_true(s.prefill_tokens > 6); /* what was computed again counts as prefill */
    mock_release(&m);
}

/* A prompt does not take the last page, which a running request will need: it waits instead of being
 * preempted. */
static void test_page_left_free(void **state)
{
    struct mock m;
    struct engine_stats s;
    struct backend b = roomy;
    b.n_pages = 5;
    mock_init(&m, b, plain);
    struct job *a = add(&m, 4, wants(8), on_token);
    step(&m, 1);
    struct job *c = add(&m, 16, wants(2), on_token);
    step(&m, 2); /* a's second page, and two for c's first chunk */
    assert_int_equal(m.n_rows, 4 + 1 + 8);
    run_to_end(&m); /* a's third page is there when it comes to it */
    engine_stats(m.en, &s);
    assert_int_equal(s.preemptions, 0);
    assert_int_equal(look(a).n_output, 8);
    assert_int_equal(look(c).n_output, 2);
    mock_release(&m);
}

/* use_past: False computes the whole sequence for each token. */
static void test_recompute(void **state)
{
    struct mock m;
    struct engine_stats s;
    struct engine_options o = plain;
    for (int i = 0; i < 2; i++) {
        o.recompute = i == 1;
        mock_init(&m, roomy, o);
        add(&m, 4, wants(3), on_token);
        run_to_end(&m);
        assert_int_equal(m.n_rows, o.recompute ? 4 + 5 + 6 : 4 + 1 + 1);
        engine_stats(m.en, &s);
        assert_int_equal(s.prefill_tokens, 4);
        assert_int_equal(s.decode_tokens, 2);
        assert_true(s.decode_s > 0);
        mock_release(&m);
    }
}

static void test_limits(void **state)
{
    struct mock m;
    struct backend b = roomy;
    b.n_pages = 5; /* 20 tokens */
    mock_init(&m, b, plain);
    struct job *none = add(&m, 7, wants(0), on_token);
    assert_int_equal(look(none).finish, FINISH_LENGTH); /* at once */
    step(&m, 0);
    struct job *pool = add(&m, 18, wants(1000000000), on_token);
    run_to_end(&m);
    assert_int_equal(look(pool).finish, FINISH_LENGTH);
    assert_int_equal(look(pool).n_output, 3); /* the last token needs no page */
    mock_release(&m);

    mock_init(&m, roomy, plain);
    struct job *context = add(&m, 60, wants(INT32_MAX), on_token);
    run_to_end(&m);
    assert_int_equal(look(context).finish, FINISH_LENGTH);
    assert_int_equal(look(context).n_output, 4);
    mock_release(&m);
}

/* More tokens than are reserved at first; the backend says: the next token is the position. */
static int count_tick(void *ctx, const struct batch *b, const float **ret_logits, struct err *e)
{
    float *row = ctx;
    memset(row, 0, sizeof(float) * 16384);
    row[b->pos[b->n_tokens - 1]] = 1;
    *ret_logits = row;
    return 0;
}

static void test_long_output(void **state)
{
    struct backend b = roomy;
    struct engine_options o = plain;
    struct engine *en;
    struct request *r;
    struct request_view v;
    struct request_params p = wants(INT32_MAX);
    int32_t left = 1, prompt = 0;
    b.ctx = xcalloc(16384, sizeof(float));
    b.tick = count_tick;
    b.n_vocab = 16384;
    b.n_pages = 4096;
    o.max_context = 9000;
    assert_int_equal(engine_new_on(&b, &o, &en, NULL), 0);
    assert_int_equal(engine_add(en, &prompt, 1, &p, NULL, NULL, &r, NULL), 0);
    while (left)
        assert_int_equal(engine_step(en, &left, NULL), 0);
    request_look(r, &v);
    assert_int_equal(v.finish, FINISH_LENGTH);
    assert_int_equal(v.n_output, 8999);
    for (int32_t i = 0; i < v.n_output; i++)
        assert_int_equal(v.output[i], i);
    engine_free(en);
    xfree(b.ctx);
}

static void expect_error(struct mock *m, const int32_t *prompt, int32_t n, struct request_params p, int code,
                         const char *const *words)
{
    struct err e = {0};
    struct request *r = NULL;
    assert_int_equal(engine_add(m->en, prompt, n, &p, NULL, NULL, &r, &e), code);
    assert_null(r);
    for (; *words; words++)
        if (!strstr(e.msg, *words))
            fail_msg("'%s' does not say '%s'", e.msg, *words);
}

static void test_errors(void **state)
{
    struct mock m;
    struct backend b = roomy;
    b.n_pages = 8;
    int32_t prompt[100] = {0};
    mock_init(&m, b, plain);
    struct request_params p = wants(1), bad = wants(1);
    expect_error(&m, prompt, 0, p, ERR_USAGE, (const char *const[]){"empty", NULL});
    expect_error(&m, prompt, 65, p, ERR_LIMIT, (const char *const[]){"65", "64", NULL});
    expect_error(&m, prompt, 64, p, ERR_LIMIT, (const char *const[]){"64", NULL});
    expect_error(&m, prompt, 33, p, ERR_LIMIT,
                 (const char *const[]){"33 tokens", "32", "num_blocks 8", "block_size 4", "to 9", NULL});
    bad.max_new_tokens = -1;
    expect_error(&m, prompt, 4, bad, ERR_USAGE, (const char *const[]){"max_new_tokens", "-1", NULL});
    bad = p;
    bad.sampling.top_p = 2;
    expect_error(&m, prompt, 4, bad, ERR_USAGE, (const char *const[]){"top_p", NULL});
    prompt[2] = VOCAB;
    expect_error(&m, prompt, 4, p, ERR_USAGE, (const char *const[]){"token 2", "1024", "0 to 1023", NULL});
    prompt[2] = -1;
    expect_error(&m, prompt, 4, p, ERR_USAGE, (const char *const[]){"-1", NULL});
    step(&m, 0); /* nothing was left behind */
    mock_release(&m);

    struct engine *en = NULL;
    struct err e = {0};
    struct engine_options o = plain;
    o.max_batch = 9;
    assert_int_equal(engine_new_on(&b, &o, &en, &e), ERR_USAGE);
    assert_non_null(strstr(e.msg, "max_batch is 9"));
    o = plain;
    o.prefill_chunk = 0;
    assert_int_equal(engine_new_on(&b, &o, &en, &e), ERR_USAGE);
    assert_null(en);
    engine_free(NULL);
}

/* A lost rank ends everything, and says so each time it is asked. */
static void test_rank_lost(void **state)
{
    struct mock m;
    struct err e = {0};
    int32_t left = 77;
    mock_init(&m, roomy, plain);
    struct job *a = add(&m, 4, wants(9), on_token), *b = add(&m, 30, wants(9), on_token);
    m.fail_at = 3;
    step(&m, 2);
    step(&m, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(engine_step(m.en, &left, &e), ERR_RANK_LOST);
        assert_non_null(strstr(e.msg, "rank 1 is gone"));
        assert_int_equal(left, 77);
    }
    assert_int_equal(look(a).finish, FINISH_ERROR);
    assert_int_equal(look(b).finish, FINISH_ERROR);
    assert_int_equal(look(a).n_output, 2);
    struct request *r;
    struct request_params p = wants(1);
    assert_int_equal(engine_add(m.en, a->tokens, 2, &p, NULL, NULL, &r, &e), ERR_RANK_LOST);
    assert_int_equal(m.n_ticks, 3);
    mock_release(&m);
}

/* Logits without one finite value end that request, and no other. */
static int nan_tick(void *ctx, const struct batch *b, const float **ret_logits, struct err *e)
{
    struct mock *m = ctx;
    int rc = mock_tick(ctx, b, ret_logits, e);
    for (int32_t i = 0; i < VOCAB && m->n_ticks == 2; i++)
        ((float *)*ret_logits)[i] = NAN;
    return rc;
}

static void test_nothing_finite(void **state)
{
    struct mock m;
    mock_init(&m, roomy, plain);
    engine_free(m.en);
    m.backend.tick = nan_tick;
    assert_int_equal(engine_new_on(&m.backend, &m.opt, &m.en, NULL), 0);
    struct job *a = add(&m, 4, wants(5), on_token), *b = add(&m, 4, wants(5), on_token);
    step(&m, 2);
    a->want_finish = FINISH_ERROR;
    a->n_want = 1;
    run_to_end(&m);
    assert_int_equal(look(a).finish, FINISH_ERROR);
    assert_int_equal(look(a).n_output, 1);
    assert_int_equal(look(b).n_output, 5);
    mock_release(&m);
}

static void test_finish_names(void **state)
{
    assert_string_equal(finish_name(FINISH_EOS), "stop");
    assert_string_equal(finish_name(FINISH_STOP), "stop");
    assert_string_equal(finish_name(FINISH_LENGTH), "length");
    assert_string_equal(finish_name(FINISH_ERROR), "error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finish_names),
        cmocka_unit_test(test_chunks_by_hand),
        cmocka_unit_test(test_max_batch),
        cmocka_unit_test(test_preemption_by_hand),
        cmocka_unit_test(test_page_left_free),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_long_output),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_rank_lost),
        cmocka_unit_test(test_nothing_finite),
        cmocka_unit_test(test_episodes),
        cmocka_unit_test(test_overlapping_episodes),
        cmocka_unit_test(test_chunks_overlap),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_time_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
