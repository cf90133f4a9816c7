#include "engine/team.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"

struct team {
    const struct checkpoint *c;
    const struct graph *g;
    struct team_options opt;
    struct comm *comm;
    struct plan *plan;
    struct weights *weights;
    struct run *run;
    double load_s;
    /* the tick's batch on its way between ranks */
    int32_t *message;
    size_t cap;
    /* rank 0 of an in-process team: the other ranks */
    struct team **others;
    pthread_t *threads;
    int n_others;
    struct err err; /* an in-process rank's last words */
};

/* --- batches on the wire: sizes --- */

enum { MSG_QUIT, MSG_TICK, MSG_REPORT };
#define MSG_HEAD  5    /* kind, n_tokens, n_out, n_spans, words in all */
#define MSG_FIRST 1024 /* words of the first broadcast: most ticks fit, and need no second one */

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
    int n = t->comm->size;
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
    int arc = comm_allgather(t->comm, &mine, all, bytes, &lost);
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
    struct plan_options po = {.tp = t->comm->size,
                              .rank = t->comm->rank,
                              .source = &source.base,
                              .quant = t->opt.quant,
                              .kv = t->opt.kv,
                              .max_tokens = t->opt.max_tokens,
                              .max_out = t->opt.max_out,
                              .page_tokens = t->opt.page_tokens};
    int rc = plan_make(t->g, &po, &t->plan, e);
    return rc ? rc : load_check(t->c, t->plan, t->comm->rank == 0 ? warn : NULL, e);
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
static int start_rank(struct team *t, struct warn_sink *warn, bool crowded, struct err *e)
{
    double before = clock_s();
    int rc = agree_on_pages(t, e);
    if (rc)
        return rc;
    rc = make_plan(t, warn, e);
    struct load_options lo = {.threads = t->opt.threads,
                              .reslice = t->opt.reslice,
                              .verify = t->opt.verify,
                              .progress = t->comm->rank == 0 ? t->opt.progress : NULL,
                              .progress_ctx = t->opt.progress_ctx};
    if (!rc)
        rc = load_weights(t->c, t->plan, &lo, &t->weights, e);
    if (!rc) {
        struct run_options ro = {.threads = t->opt.threads,
                                 .crowded = crowded,
                                 .level = t->opt.level,
                                 .n_pages = t->opt.n_pages,
                                 .profile = t->opt.profile};
        rc = run_new(t->plan, t->weights, t->comm, &ro, &t->run, e);
    }
    reserve(t, most_words(&t->opt)); /* so that ticks need not */
    t->load_s = clock_s() - before;
    return agree(t, rc, e);
}

static void release_rank(struct team *t)
{
    if (!t)
        return;
    run_free(t->run);
    weights_free(t->weights);
    plan_free(t->plan);
    comm_close(t->comm);
    xfree(t->message);
    xfree(t);
}

/* --- batches on the wire: sending and receiving --- */

static int32_t *put(int32_t *at, const int32_t *from, int32_t n)
{
    if (n)
        memcpy(at, from, sizeof(int32_t) * (size_t)n);
    return at + n;
}

static int send_message(struct team *t, int kind, const struct batch *b, struct err *e)
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
    if (b) {
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
    int rc = comm_bcast(t->comm, t->message, MSG_FIRST * sizeof(int32_t), 0, e);
    if (!rc && words > MSG_FIRST)
        rc = comm_bcast(t->comm, t->message + MSG_FIRST, (words - MSG_FIRST) * sizeof(int32_t), 0, e);
    return rc;
}

/* Fills b from the message; spans go to `spans` (room for max_spans). */
static int receive_message(struct team *t, int *ret_kind, struct batch *b, struct span *spans, struct err *e)
{
    reserve(t, MSG_FIRST);
    int rc = comm_bcast(t->comm, t->message, MSG_FIRST * sizeof(int32_t), 0, e);
    if (rc)
        return rc;
    size_t words = (size_t)t->message[4];
    if (words > MSG_FIRST) {
        reserve(t, words);
        rc = comm_bcast(t->comm, t->message + MSG_FIRST, (words - MSG_FIRST) * sizeof(int32_t), 0, e);
        if (rc)
            return rc;
    }
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
    return 0;
}

/* --- working ranks --- */

static int answer_report(struct team *t, struct rank_report *all, struct err *e)
{
    struct rank_report mine = {.load_s = t->load_s, .comm = t->comm->stats};
    char host[40] = "?";
    gethostname(host, sizeof(host) - 1);
    snprintf(mine.where, sizeof(mine.where), "%.32s pid %ld", host, (long)getpid());
    run_report(t->run, &mine.run);
    size_t *bytes;
    XNEW_N(bytes, (size_t)t->comm->size);
    for (int i = 0; i < t->comm->size; i++)
        bytes[i] = sizeof(mine);
    int rc = comm_allgather(t->comm, &mine, all, bytes, e);
    xfree(bytes);
    return rc;
}

int team_serve(struct team *t, struct err *e)
{
    struct span *spans;
    struct rank_report *reports;
    XNEW_N(spans, (size_t)t->opt.max_spans);
    XNEW_N(reports, (size_t)t->comm->size);
    int rc = 0, kind = MSG_TICK;
    while (!rc && kind != MSG_QUIT) {
        struct batch b;
        const float *logits;
        rc = receive_message(t, &kind, &b, spans, e);
        if (!rc && kind == MSG_TICK)
            rc = run_tick(t->run, &b, &logits, e);
        else if (!rc && kind == MSG_REPORT)
            rc = answer_report(t, reports, e);
    }
    xfree(spans);
    xfree(reports);
    return rc;
}

static bool is_crowded(const struct team *t)
{
    return t->opt.threads * t->opt.tp > cpu_count();
}

static void *rank_main(void *arg)
{
    struct team *t = arg;
    int rc = start_rank(t, NULL, is_crowded(t), &t->err);
    if (!rc)
        rc = team_serve(t, &t->err);
    if (rc)
        comm_abort(t->comm, t->err.msg);
    return NULL;
}

/* --- rank 0 --- */

static struct team *new_rank(const struct checkpoint *c, const struct graph *g, const struct team_options *o,
                             struct comm *comm)
{
    struct team *t;
    XNEW(t);
    t->c = c;
    t->g = g;
    t->opt = *o;
    t->comm = comm;
    return t;
}

static int start_threads(struct team *t, struct comm **comms, struct err *e)
{
    XNEW_N(t->others, (size_t)t->opt.tp);
    XNEW_N(t->threads, (size_t)t->opt.tp);
    for (int i = 1; i < t->opt.tp; i++) {
        struct team *o = new_rank(t->c, t->g, &t->opt, comms[i]);
        t->others[t->n_others] = o;
        int rc = pthread_create(&t->threads[t->n_others], NULL, rank_main, o);
        if (rc) {
            release_rank(o);
            comm_abort(t->comm, "a rank's thread could not be started");
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

static int open_comm(struct team *t, struct comm **comms, struct err *e)
{
    if (comm_mpi_launched()) {
        int rc = comm_mpi_open(largest_message(t->g, &t->opt), &t->comm, e);
        if (!rc && t->comm->size != t->opt.tp) {
            rc = err_set(e, ERR_SPLIT,
                         "%d ranks were launched, but tensor parallelism is %d; start as many ranks as the "
                         "degrees multiply to, "
                         "or give --tp %d",
                         t->comm->size, t->opt.tp, t->comm->size);
            comm_abort(t->comm, e ? e->msg : "wrong number of ranks");
        }
        return rc;
    }
    if (t->opt.tp == 1) {
        t->comm = comm_self_new();
        return 0;
    }
    int rc = comm_threads_new(t->opt.tp, largest_message(t->g, &t->opt), comms, e);
    if (!rc)
        t->comm = comms[0];
    return rc;
}

int team_open(const struct checkpoint *c, const struct graph *g, const struct team_options *o,
              struct warn_sink *warn, struct team **ret, struct err *e)
{
    struct team *t = new_rank(c, g, o, NULL);
    struct comm **comms;
    int local = comm_mpi_launched()
                    ? 1
                    : o->tp; /* ranks that share this process's cores; the launcher binds the others' */
    if (!t->opt.threads)
        t->opt.threads = MAX(1, cpu_count() / local);
    XNEW_N(comms, (size_t)o->tp);
    int rc = open_comm(t, comms, e);
    if (!rc && o->tp > 1 && !comm_mpi_launched())
        rc = start_threads(t, comms, e);
    if (!rc)
        rc = start_rank(t, warn, is_crowded(t), e);
    xfree(comms);
    if (rc) {
        if (t->comm && t->comm->size > 1)
            comm_abort(t->comm, e ? e->msg : "rank 0 could not start");
        team_close(t);
        return rc;
    }
    *ret = t;
    return 0;
}

void team_close(struct team *t)
{
    if (!t)
        return;
    if (t->run && t->comm->rank == 0 && t->comm->size > 1)
        send_message(t, MSG_QUIT, NULL, NULL);
    for (int i = 0; i < t->n_others; i++) {
        pthread_join(t->threads[i], NULL);
        release_rank(t->others[i]);
    }
    xfree(t->others);
    xfree(t->threads);
    release_rank(t);
}

bool team_is_worker(const struct team *t)
{
    return t->comm->rank != 0;
}

int team_tick(struct team *t, const struct batch *b, const float **ret_logits, struct err *e)
{
    int rc = t->comm->size > 1 ? send_message(t, MSG_TICK, b, e) : 0;
    return rc ? rc : run_tick(t->run, b, ret_logits, e);
}

int team_report(struct team *t, struct rank_report *ret, struct err *e)
{
    int rc = t->comm->size > 1 ? send_message(t, MSG_REPORT, NULL, e) : 0;
    return rc ? rc : answer_report(t, ret, e);
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
    return t->comm->ops->name;
}
