#include "engine/team.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "engine/place.h"

/* Rank 0's end of a lane whose logits come from another rank: a thread receives them into a ring of buffers.
 * Lock rule: `lock` guards the counters and `err`; buffers between `taken` and `received` belong to rank 0's
 * main thread, the others to the receiving thread. */
struct results {
    struct comm *comm; /* of two: rank 0, and the leader of the lane's last stage */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int posted, received, taken; /* ticks, ever */
    bool quit;
    int depth;
    int32_t *n_out; /* [depth] */
    float **logits; /* [depth][max_out * vocab] */
    size_t vocab;
    struct err err;
};

struct team {
    const struct checkpoint *c;
    const struct graph *g;
    struct team_options opt;
    struct comm *world, *comm; /* all ranks; this stage's */
    int lane, stage, tp_rank;  /* this rank's place */
    struct comm *experts; /* this stage's ranks of all lanes, where experts are spread over them; else NULL */
    struct comm *to_zero; /* leaders of last stages: for logits; NULL where rank 0 is that leader */
    struct plan *plan;
    struct weights *weights;
    struct run *run;
    double load_s;
    struct place place;
    struct cores before; /* what the calling thread was bound to */
    /* the tick's batch on its way between ranks */
    int32_t *message;
    size_t cap;
    /* rank 0 */
    struct results *results; /* [lanes]; comm NULL for lane 0 without a pipeline */
    const float *direct;     /* that lane's logits */
    struct team **others;    /* an in-process team's other ranks */
    pthread_t *threads;
    int n_others;
    struct err err; /* an in-process rank's last words */
};

static int team_ranks(const struct team_options *o)
{
    return o->tp * o->pp * o->dp;
}

static int leader_of(const struct team *t, int lane, int stage)
{
    return (lane * t->opt.pp + stage) * t->opt.tp;
}

static bool is_leader(const struct team *t)
{
    return t->tp_rank == 0;
}

bool team_spreads(const struct team *t)
{
    return experts_spread(t->g, t->opt.tp, t->opt.dp, t->opt.ep);
}

static bool is_last_stage(const struct team *t)
{
    return t->stage == t->opt.pp - 1;
}

/* --- batches on the wire: sizes --- */

enum { MSG_QUIT, MSG_TICK, MSG_REPORT, MSG_TRACE };
#define MSG_HEAD  5    /* kind, n_tokens, n_out, n_spans, words in all */
#define MSG_FIRST 1000 /* words of the first part: most ticks fit, and need no second one */

/* The longest message: no two spans share a page. */
static size_t most_words(const struct team_options *o)
{
    return MSG_HEAD + 2 * (size_t)o->max_tokens + (size_t)o->max_out + 4 * (size_t)o->max_spans +
           (size_t)o->n_pages;
}

static void reserve(struct team *t, size_t words)
{
    words = MAX(words, (size_t)MSG_FIRST);
    if (t->cap < words) {
        t->message = xreallocarray(t->message, words, sizeof(int32_t));
        t->cap = words;
    }
}

/* --- making a rank --- */

/* What each rank tells the others once it has loaded, or failed to. */
struct verdict {
    int32_t code;
    uint64_t hash;
    char msg[1024];
};

static int agree(struct team *t, int rc, struct err *e)
{
    int n = t->world->size;
    struct verdict mine = {.code = rc, .hash = rc ? 0 : plan_hash(t->plan) + (uint64_t)t->opt.max_spans},
                   *all;
    size_t *bytes;
    if (rc && e)
        snprintf(mine.msg, sizeof(mine.msg), "%.*s", (int)sizeof(mine.msg) - 1, e->msg);
    XNEW_N(all, (size_t)n);
    XNEW_N(bytes, (size_t)n);
    for (int i = 0; i < n; i++)
        bytes[i] = sizeof(mine);
    struct err lost = {0};
    int arc = comm_allgather(t->world, &mine, all, bytes, &lost);
    if (arc && !rc) {
        rc = arc;
        if (e)
            *e = lost;
    }
    for (int i = 0; i < n && !rc; i++)
        if (all[i].code)
            rc = err_set(e, all[i].code, "rank %d: %s", i, all[i].msg);
        else if (all[i].hash != all[0].hash)
            rc = err_set(e, ERR_SPLIT,
                         "ranks 0 and %d made different plans: they see different checkpoints, options or "
                         "versions of yoke; "
                         "give all ranks the same ones",
                         i);
    xfree(all);
    xfree(bytes);
    return rc;
}

static int make_plan(struct team *t, struct warn_sink *warn, struct err *e)
{
    struct checkpoint_source source;
    checkpoint_source_init(&source, t->c);
    struct plan_options po = {.tp = t->opt.tp,
                              .pp = t->opt.pp,
                              .stage = t->stage,
                              .ep = t->opt.ep,
                              .dp = t->opt.dp,
                              .lane = t->lane,
                              .rank = t->comm->rank,
                              .source = &source.base,
                              .quant = t->opt.quant,
                              .kv = t->opt.kv,
                              .max_tokens = t->opt.max_tokens,
                              .max_out = t->opt.max_out,
                              .page_tokens = t->opt.page_tokens};
    int rc = load_check(t->c, t->g, t->world->rank == 0 ? warn : NULL, e);
    return rc ? rc : plan_make(t->g, &po, &t->plan, e);
}

/* Ranks on different hosts may have room for different numbers of pages; page numbers are shared, so the
 * least counts. */
static int agree_on_pages(struct team *t, struct err *e)
{
    int32_t *all;
    size_t *bytes;
    XNEW_N(all, (size_t)t->comm->size);
    XNEW_N(bytes, (size_t)t->comm->size);
    for (int i = 0; i < t->comm->size; i++)
        bytes[i] = sizeof(*all);
    int rc = comm_allgather(t->comm, &t->opt.n_pages, all, bytes, e);
    for (int i = 0; i < t->comm->size && !rc; i++)
        t->opt.n_pages = MIN(t->opt.n_pages, all[i]);
    xfree(all);
    xfree(bytes);
    return rc;
}

/* Plans, loads, agrees, makes the run. Every rank goes through it at the same time. */
static int start_rank(struct team *t, struct warn_sink *warn, struct err *e)
{
    double before = clock_s();
    int rc = agree_on_pages(t, e);
    if (rc)
        return rc;
    rc = make_plan(t, warn, e);
    struct load_options lo = {.threads = t->opt.threads,
                              .reslice = t->opt.reslice,
                              .verify = t->opt.verify,
                              .expert_cache = t->opt.expert_cache,
                              .spill_dir = t->opt.spill_dir,
                              .warn = t->world->rank == 0 ? warn : NULL,
                              .progress = t->world->rank == 0 ? t->opt.progress : NULL,
                              .progress_ctx = t->opt.progress_ctx};
    if (!rc)
        rc = load_weights(t->c, t->plan, &lo, &t->weights, e);
    if (!rc) {
        struct run_options ro = {.threads = t->opt.threads,
                                 .crowded = t->place.crowded,
                                 .cores = &t->place.cores,
                                 .level = t->opt.level,
                                 .n_pages = t->opt.n_pages,
                                 .profile = t->opt.profile,
                                 .trace = t->opt.trace,
                                 .pipe = t->world,
                                 .experts = t->experts,
                                 .from = t->world->rank - t->opt.tp,
                                 .to = t->world->rank + t->opt.tp};
        rc = run_new(t->plan, t->weights, t->comm, &ro, &t->run, e);
    }
    reserve(t, most_words(&t->opt)); /* so that ticks need not */
    t->load_s = clock_s() - before;
    return agree(t, rc, e);
}

static void stop_results(struct results *x)
{
    if (!x->comm)
        return;
    if (x->running) {
        pthread_mutex_lock(&x->lock);
        x->quit = true;
        pthread_cond_broadcast(&x->changed);
        pthread_mutex_unlock(&x->lock);
        pthread_join(x->thread, NULL);
        pthread_mutex_destroy(&x->lock);
        pthread_cond_destroy(&x->changed);
    }
    for (int i = 0; x->logits && i < x->depth; i++)
        xfree(x->logits[i]);
    xfree(x->logits);
    xfree(x->n_out);
    comm_close(x->comm);
}

static void release_rank(struct team *t)
{
    if (!t)
        return;
    for (int l = 0; t->results && l < t->opt.dp; l++)
        stop_results(&t->results[l]);
    xfree(t->results);
    run_free(t->run);
    weights_free(t->weights);
    plan_free(t->plan);
    comm_close(t->to_zero);
    comm_close(t->experts);
    if (t->comm != t->world)
        comm_close(t->comm);
    comm_close(t->world);
    xfree(t->message);
    xfree(t);
}

/* --- batches on the wire --- */

static int32_t *put(int32_t *at, const int32_t *from, int32_t n)
{
    if (n)
        memcpy(at, from, sizeof(int32_t) * (size_t)n);
    return at + n;
}

static void write_message(struct team *t, int kind, const struct batch *b)
{
    size_t words = MSG_HEAD;
    if (b) {
        words += 2 * (size_t)b->n_tokens + (size_t)b->n_out;
        for (int i = 0; i < b->n_spans; i++)
            words += 4 + (size_t)b->spans[i].n_pages;
    }
    reserve(t, words);
    const int32_t head[MSG_HEAD] = {kind, b ? b->n_tokens : 0, b ? b->n_out : 0, b ? b->n_spans : 0,
                                    (int32_t)words};
    int32_t *at = put(t->message, head, MSG_HEAD);
    if (!b)
        return;
    at = put(at, b->token, b->n_tokens);
    at = put(at, b->pos, b->n_tokens);
    at = put(at, b->out_row, b->n_out);
    for (int i = 0; i < b->n_spans; i++) {
        const struct span *s = &b->spans[i];
        const int32_t fields[4] = {s->first, s->n, s->pos0, s->n_pages};
        at = put(at, fields, 4);
        at = put(at, s->pages, s->n_pages);
    }
}

/* Fills b from the message; spans go to `spans` (room for max_spans). */
static void read_message(const struct team *t, int *ret_kind, struct batch *b, struct span *spans)
{
    const int32_t *m = t->message, *at = m + MSG_HEAD;
    *ret_kind = m[0];
    *b = (struct batch){.n_tokens = m[1], .n_out = m[2], .n_spans = m[3], .spans = spans};
    b->token = at;
    b->pos = at + b->n_tokens;
    b->out_row = b->pos + b->n_tokens;
    at = b->out_row + b->n_out;
    for (int i = 0; i < b->n_spans; i++) {
        spans[i] = (struct span){at[0], at[1], at[2], at[3], at + 4};
        at += 4 + at[3];
    }
}

static size_t rest_words(const struct team *t)
{
    return t->message[4] > MSG_FIRST ? (size_t)t->message[4] - MSG_FIRST : 0;
}

/* The message in two parts, the second one only where it is long: the receiver learns the length from the
 * first. */
static int send_to(struct team *t, int rank, struct err *e)
{
    int rc = comm_send(t->world, t->message, MSG_FIRST * sizeof(int32_t), rank, e);
    if (!rc && rest_words(t))
        rc = comm_send(t->world, t->message + MSG_FIRST, rest_words(t) * sizeof(int32_t), rank, e);
    return rc;
}

static int receive_from(struct team *t, int rank, struct err *e)
{
    reserve(t, MSG_FIRST);
    int rc = comm_recv(t->world, t->message, MSG_FIRST * sizeof(int32_t), rank, e);
    if (rc || !rest_words(t))
        return rc;
    reserve(t, (size_t)t->message[4]);
    return comm_recv(t->world, t->message + MSG_FIRST, rest_words(t) * sizeof(int32_t), rank, e);
}

static int share_in_stage(struct team *t, struct err *e)
{
    if (t->comm->size == 1)
        return 0;
    reserve(t, MSG_FIRST);
    int rc = comm_bcast(t->comm, t->message, MSG_FIRST * sizeof(int32_t), 0, e);
    if (rc || !rest_words(t))
        return rc;
    reserve(t, (size_t)t->message[4]);
    return comm_bcast(t->comm, t->message + MSG_FIRST, rest_words(t) * sizeof(int32_t), 0, e);
}

/* The message that lies in t->message goes to this stage's other ranks and, ahead of the hidden rows, to the
 * next stage. */
static int pass_on(struct team *t, struct err *e)
{
    int rc = share_in_stage(t, e);
    if (!rc && is_leader(t) && !is_last_stage(t))
        rc = send_to(t, leader_of(t, t->lane, t->stage + 1), e);
    return rc;
}

/* --- working ranks --- */

/* Every rank's counts of pairs by expert. `all` NULL: only to take part. */
static int gather_experts(struct team *t, uint64_t *all, struct err *e)
{
    const uint64_t *mine = run_expert_load(t->run);
    if (!mine)
        return 0;
    size_t n = (size_t)t->world->size, experts = (size_t)t->g->axis_n[AX_EXPERT], *bytes;
    uint64_t *room;
    XNEW_N(room, n * experts);
    XNEW_N(bytes, n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = experts * sizeof(*mine);
    int rc = comm_allgather(t->world, mine, room, bytes, e);
    if (!rc && all)
        memcpy(all, room, n * experts * sizeof(*all));
    xfree(room);
    xfree(bytes);
    return rc;
}

static void add_stats(struct comm_stats *sum, const struct comm *c)
{
    for (int k = 0; k < COMM_KINDS; k++) {
        sum->calls[k] += c->stats.calls[k];
        sum->bytes[k] += c->stats.bytes[k];
        sum->ns[k] += c->stats.ns[k];
    }
}

static int answer_report(struct team *t, struct rank_report *all, uint64_t *experts, struct err *e)
{
    struct rank_report mine = {.load_s = t->load_s, .comm = t->comm->stats};
    char host[40] = "?";
    gethostname(host, sizeof(host) - 1);
    snprintf(mine.where, sizeof(mine.where), "%.32s pid %ld", host, (long)getpid());
    run_report(t->run, &mine.run);
    if (t->world != t->comm) /* the pipeline's sends and receives */
        add_stats(&mine.comm, t->world);
    if (t->experts)
        add_stats(&mine.comm, t->experts);
    size_t *bytes;
    XNEW_N(bytes, (size_t)t->world->size);
    for (int i = 0; i < t->world->size; i++)
        bytes[i] = sizeof(mine);
    int rc = comm_allgather(t->world, &mine, all, bytes, e);
    xfree(bytes);
    return rc ? rc : gather_experts(t, experts, e);
}

/* At least one float, so that rank 0 hears of every tick's end. */
static int return_logits(struct team *t, const struct batch *b, const float *logits, struct err *e)
{
    const float none = 0;
    size_t n = (size_t)b->n_out * (size_t)t->g->axis_n[AX_VOCAB];
    return comm_send(t->to_zero, n ? logits : &none, MAX(n, (size_t)1) * sizeof(float), 0, e);
}

int team_serve(struct team *t, struct err *e)
{
    struct span *spans;
    struct rank_report *reports;
    XNEW_N(spans, (size_t)t->opt.max_spans);
    XNEW_N(reports, (size_t)t->world->size);
    int rc = 0, kind = MSG_TICK, from = t->stage ? leader_of(t, t->lane, t->stage - 1) : 0;
    bool alone_first = t->lane == 0 && t->stage == 0; /* rank 0 itself leads this stage */
    while (!rc && kind != MSG_QUIT) {
        struct batch b;
        const float *logits;
        if (is_leader(t) && !alone_first)
            rc = receive_from(t, from, e);
        if (!rc)
            rc = pass_on(t, e);
        if (rc)
            break;
        read_message(t, &kind, &b, spans);
        if (kind == MSG_TICK) {
            rc = run_tick(t->run, &b, &logits, e);
            if (!rc && is_leader(t) && is_last_stage(t))
                rc = return_logits(t, &b, logits, e);
        } else if (kind == MSG_REPORT) {
            rc = answer_report(t, reports, NULL, e);
        } else if (kind == MSG_TRACE) {
            rc = trace_send(run_trace(t->run), t->world, e);
        }
    }
    xfree(spans);
    xfree(reports);
    return rc;
}

/* Before anything is allocated, so that memory lies near the cores that use it. Collective. */
static int settle_in(struct team *t, struct err *e)
{
    int rc = place_rank(t->world, t->opt.threads, t->opt.bind, &t->place, e);
    if (rc)
        return rc;
    t->opt.threads = t->world->threads = t->place.threads;
    cores_allowed(&t->before);
    cores_bind(&t->place.cores, 0, 0);
    return 0;
}

/* Finds this rank's place and makes the comms of its groups. Collective over the world. */
static int take_place(struct team *t, struct err *e)
{
    int me = t->world->rank;
    t->tp_rank = me % t->opt.tp;
    t->stage = me / t->opt.tp % t->opt.pp;
    t->lane = me / (t->opt.tp * t->opt.pp);
    t->comm = t->world;
    int rc = settle_in(t, e);
    if (!rc && t->world->size > t->opt.tp)
        rc = comm_split(t->world, me / t->opt.tp, t->tp_rank, &t->comm, e);
    if (!rc && team_spreads(t))
        rc = comm_split(t->world, t->stage, t->lane * t->opt.tp + t->tp_rank, &t->experts, e);
    if (!rc && me == 0)
        XNEW_N(t->results, (size_t)t->opt.dp);
    for (int l = 0; l < t->opt.dp && !rc; l++) {
        int last = leader_of(t, l, t->opt.pp - 1);
        if (last == 0)
            continue; /* rank 0 has that lane's logits itself */
        struct comm *pair = NULL;
        rc = comm_split(t->world, me == 0 || me == last ? 0 : -1, me, &pair, e);
        if (me == 0)
            t->results[l].comm = pair;
        else if (pair)
            t->to_zero = pair;
    }
    return rc;
}

static void *rank_main(void *arg)
{
    struct team *t = arg;
    int rc = take_place(t, &t->err);
    if (!rc)
        rc = start_rank(t, NULL, &t->err);
    if (!rc)
        rc = team_serve(t, &t->err);
    if (rc)
        comm_abort(t->world, t->err.msg);
    return NULL;
}

/* --- rank 0 --- */

static void *receive_results(void *arg)
{
    struct results *x = arg;
    for (;;) {
        pthread_mutex_lock(&x->lock);
        while (x->received == x->posted && !x->quit)
            pthread_cond_wait(&x->changed, &x->lock);
        int i = x->received % x->depth;
        bool quit = x->quit;
        pthread_mutex_unlock(&x->lock);
        if (quit)
            return NULL;
        struct err err = {0};
        size_t n = MAX((size_t)x->n_out[i] * x->vocab, (size_t)1);
        comm_recv(x->comm, x->logits[i], n * sizeof(float), 1, &err);
        pthread_mutex_lock(&x->lock);
        if (err.code)
            x->err = err;
        x->received++;
        pthread_cond_broadcast(&x->changed);
        pthread_mutex_unlock(&x->lock);
        if (err.code)
            return NULL;
    }
}

static int start_results(struct team *t, struct err *e)
{
    for (int l = 0; l < t->opt.dp; l++) {
        struct results *x = &t->results[l];
        if (!x->comm)
            continue;
        x->depth = t->opt.depth;
        x->vocab = (size_t)t->g->axis_n[AX_VOCAB];
        XNEW_N(x->n_out, (size_t)x->depth);
        XNEW_N(x->logits, (size_t)x->depth);
        for (int i = 0; i < x->depth; i++)
            x->logits[i] = xaligned(64, MAX((size_t)t->opt.max_out * x->vocab, (size_t)1) * sizeof(float));
        pthread_mutex_init(&x->lock, NULL);
        pthread_cond_init(&x->changed, NULL);
        int rc = pthread_create(&x->thread, NULL, receive_results, x);
        if (rc)
            return err_set(e, ERR_FAIL, "cannot start the thread that receives logits (error %d)", rc);
        x->running = true;
    }
    return 0;
}

static struct team *new_rank(const struct checkpoint *c, const struct graph *g, const struct team_options *o,
                             struct comm *world)
{
    struct team *t;
    XNEW(t);
    t->c = c;
    t->g = g;
    t->opt = *o;
    t->opt.tp = MAX(o->tp, 1);
    t->opt.pp = MAX(o->pp, 1);
    t->opt.dp = MAX(o->dp, 1);
    t->opt.ep = MAX(o->ep, 1);
    t->opt.depth = o->depth ? o->depth : t->opt.pp;
    t->world = world;
    return t;
}

static int start_threads(struct team *t, struct comm **comms, struct err *e)
{
    int n = team_ranks(&t->opt);
    XNEW_N(t->others, (size_t)n);
    XNEW_N(t->threads, (size_t)n);
    for (int i = 1; i < n; i++) {
        struct team *o = new_rank(t->c, t->g, &t->opt, comms[i]);
        t->others[t->n_others] = o;
        int rc = pthread_create(&t->threads[t->n_others], NULL, rank_main, o);
        if (rc) {
            release_rank(o);
            comm_abort(t->world, "a rank's thread could not be started");
            return err_set(e, ERR_FAIL, "cannot start the thread of rank %d (error %d)", i, rc);
        }
        t->n_others++;
    }
    return 0;
}

/* What the largest collective of this model carries: a tick's hidden rows, or the logits wanted. */
static size_t largest_message(const struct graph *g, const struct team_options *o)
{
    size_t rows = (size_t)o->max_tokens * (size_t)g->axis_n[AX_EMBED] * sizeof(float);
    size_t logits = (size_t)o->max_out * (size_t)g->axis_n[AX_VOCAB] * sizeof(float);
    return MAX(MAX(rows, logits), most_words(o) * sizeof(int32_t));
}

static int open_world(struct team *t, struct comm **comms, struct err *e)
{
    int n = team_ranks(&t->opt);
    if (comm_mpi_launched()) {
        int rc = comm_mpi_open(largest_message(t->g, &t->opt), &t->world, e);
        if (!rc && t->world->size != n) {
            rc = err_set(e, ERR_SPLIT,
                         "%d ranks were launched, but the degrees make %d (data %d x pipeline %d x tensor "
                         "%d); start %d ranks, or "
                         "give degrees that multiply to %d",
                         t->world->size, n, t->opt.dp, t->opt.pp, t->opt.tp, n, t->world->size);
            comm_abort(t->world, e ? e->msg : "wrong number of ranks");
        }
        return rc;
    }
    if (n == 1) {
        t->world = comm_self_new();
        return 0;
    }
    int rc = comm_threads_new(n, largest_message(t->g, &t->opt), comms, e);
    if (!rc)
        t->world = comms[0];
    return rc;
}

int team_open(const struct checkpoint *c, const struct graph *g, const struct team_options *o,
              struct warn_sink *warn, struct team **ret, struct err *e)
{
    struct team *t = new_rank(c, g, o, NULL);
    struct comm **comms;
    int n = team_ranks(&t->opt);
    XNEW_N(comms, (size_t)n);
    int rc = open_world(t, comms, e);
    if (!rc && n > 1 && !comm_mpi_launched())
        rc = start_threads(t, comms, e);
    if (!rc)
        rc = take_place(t, e);
    if (!rc)
        rc = start_rank(t, warn, e);
    if (!rc && t->results)
        rc = start_results(t, e);
    xfree(comms);
    if (rc) {
        if (t->world && t->world->size > 1)
            comm_abort(t->world, e ? e->msg : "rank 0 could not start");
        team_close(t);
        return rc;
    }
    *ret = t;
    return 0;
}

/* To the first stage of a lane; rank 0's own stage is run by the caller. */
static int send_to_lane(struct team *t, int lane, struct err *e)
{
    return lane == 0 ? pass_on(t, e) : send_to(t, leader_of(t, lane, 0), e);
}

static int send_to_all(struct team *t, int kind, struct err *e)
{
    int rc = 0;
    write_message(t, kind, NULL);
    for (int l = 0; l < t->opt.dp && !rc; l++)
        rc = send_to_lane(t, l, e);
    return rc;
}

void team_close(struct team *t)
{
    if (!t)
        return;
    if (t->run && t->results && t->world->size > 1)
        send_to_all(t, MSG_QUIT, NULL);
    for (int i = 0; i < t->n_others; i++) {
        pthread_join(t->threads[i], NULL);
        release_rank(t->others[i]);
    }
    xfree(t->others);
    xfree(t->threads);
    cores_bind(&t->before, 0, 0);
    release_rank(t);
}

bool team_is_worker(const struct team *t)
{
    return t->world->rank != 0;
}

int team_post(struct team *t, int lane, const struct batch *b, struct err *e)
{
    struct results *x = &t->results[lane];
    if (x->comm) { /* before the message: the logits may be back while rank 0 still computes its own stage */
        pthread_mutex_lock(&x->lock);
        x->n_out[x->posted++ % x->depth] = b->n_out;
        pthread_cond_broadcast(&x->changed);
        pthread_mutex_unlock(&x->lock);
    }
    int rc = 0;
    if (t->world->size > 1) {
        write_message(t, MSG_TICK, b);
        rc = send_to_lane(t, lane, e);
    }
    if (!rc && lane == 0)
        rc = run_tick(t->run, b, &t->direct, e);
    return rc;
}

int team_wait(struct team *t, int lane, const float **ret_logits, struct err *e)
{
    struct results *x = &t->results[lane];
    if (!x->comm) {
        *ret_logits = t->direct;
        return 0;
    }
    pthread_mutex_lock(&x->lock);
    while (x->received == x->taken && !x->err.code)
        pthread_cond_wait(&x->changed, &x->lock);
    int rc = x->err.code;
    if (rc && e)
        *e = x->err;
    *ret_logits = x->logits[x->taken++ % x->depth];
    pthread_mutex_unlock(&x->lock);
    return rc;
}

int team_tick(struct team *t, const struct batch *b, const float **ret_logits, struct err *e)
{
    const struct batch idle = {0};
    const float *nothing;
    int others = team_spreads(t) ? t->opt.dp - 1 : 0, rc = 0;
    for (int l = others; l > 0 && !rc; l--) /* their experts are needed too */
        rc = team_post(t, l, &idle, e);
    if (!rc)
        rc = team_post(t, 0, b, e);
    for (int l = others; l > 0 && !rc; l--)
        rc = team_wait(t, l, &nothing, e);
    return rc ? rc : team_wait(t, 0, ret_logits, e);
}

int team_report(struct team *t, struct rank_report *ret, uint64_t *ret_experts, struct err *e)
{
    int rc = t->world->size > 1 ? send_to_all(t, MSG_REPORT, e) : 0;
    return rc ? rc : answer_report(t, ret, ret_experts, e);
}

int team_trace(struct team *t, FILE *f, struct err *e)
{
    int rc = t->world->size > 1 ? send_to_all(t, MSG_TRACE, e) : 0;
    return rc ? rc : trace_write(run_trace(t->run), t->world, f, e);
}

int team_lanes(const struct team *t)
{
    return t->opt.dp;
}

int team_depth(const struct team *t)
{
    return t->opt.depth;
}

int team_size(const struct team *t)
{
    return t->world->size;
}

const struct plan *team_plan(const struct team *t)
{
    return t->plan;
}

const struct team_options *team_options(const struct team *t)
{
    return &t->opt;
}

int team_threads(const struct team *t)
{
    return t->opt.threads;
}

const char *team_transport(const struct team *t)
{
    return t->world->ops->name;
}

const struct comm *team_world(const struct team *t)
{
    return t->world;
}

const struct cores *team_cores(const struct team *t)
{
    return &t->place.cores;
}
