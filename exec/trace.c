#include "exec/trace.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "base/mem.h"

int trace_new(const struct plan *p, int threads, int readers, struct trace **ret, struct err *e)
{
    struct trace *t;
    XNEW(t);
    t->plan = p;
    t->n_readers = readers;
    t->thread = xaligned(64, sizeof(*t->thread) * (size_t)(threads + readers));
    for (; t->n_threads < threads + readers; t->n_threads++) {
        struct trace_thread *x = &t->thread[t->n_threads];
        x->event = big_alloc(TRACE_EVENTS * sizeof(*x->event), "the timeline (--trace)", e);
        if (!x->event) {
            trace_free(t);
            return ERR_MEMORY;
        }
    }
    *ret = t;
    return 0;
}

void trace_free(struct trace *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_threads; i++)
        big_free(t->thread[i].event, TRACE_EVENTS * sizeof(*t->thread[i].event));
    xfree(t->thread);
    xfree(t);
}

/* --- what a rank tells of itself --- */

struct head {
    int64_t clock_ns; /* read as the barrier ends */
    int64_t begin_ns; /* the first event; INT64_MAX: none */
    int32_t pid, n_threads, n_readers, n_steps;
    int32_t tp, rank, pp, stage, lane;
    char host[64];
};

struct thread_head {
    uint64_t n, dropped;
};

struct label { /* of a step: other ranks have other plans */
    char name[60];
    int16_t layer;
    uint16_t collective;
    uint64_t row_bytes; /* that a rank puts into a collective; 0: not known before */
};

static bool is_collective(int kind)
{
    return kind == OP_ALLREDUCE || kind == OP_REDUCE_SCATTER || kind == OP_ALLGATHER || kind == OP_ALLTOALL ||
           kind == OP_SEND || kind == OP_RECV || kind == STEP_EXPERT_SPREAD || kind == STEP_EXPERT_EXCHANGE ||
           kind == STEP_EXPERT_RETURN;
}

/* Of the step's first weight, without what all layers share: "self_attn.q_proj". NULL: it has none. */
static const char *weight_label(const struct plan *p, const struct step *s)
{
    for (int k = 0; k < STEP_MAX_IN; k++) {
        if (s->in[k] < 0 || p->slots[s->in[k]].kind != SLOT_WEIGHT)
            continue;
        const char *name = p->weights[p->slots[s->in[k]].weight].name, *at = strstr(name, ".layers.");
        at = at ? strchr(at + 8, '.') : NULL;
        return at ? at + 1 : name;
    }
    return NULL;
}

static void label_step(const struct plan *p, const struct step *s, struct label *ret)
{
    const char *weight = weight_label(p, s);
    *ret = (struct label){
        .layer = s->layer, .collective = is_collective(s->kind), .row_bytes = plan_step_bytes(p, s, 1)};
    snprintf(ret->name, sizeof(ret->name), "%s%s%s", step_name(s->kind), weight ? " " : "",
             weight ? weight : "");
}

/* In JSON strings nothing then needs escaping. */
static void tame(char *text)
{
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && !strchr(" ._-*/:", *text))
            *text = '_';
}

static int fill_head(const struct trace *t, struct comm *c, struct head *h, struct label **ret_labels,
                     struct err *e)
{
    const struct plan *p = t->plan;
    int rc = comm_barrier(c, e);
    if (rc)
        return rc;
    *h = (struct head){.clock_ns = clock_ns(),
                       .begin_ns = INT64_MAX,
                       .pid = c->peer[c->rank].pid,
                       .n_threads = t->n_threads,
                       .n_readers = t->n_readers,
                       .n_steps = p->n_steps,
                       .tp = p->opt.tp,
                       .rank = p->opt.rank,
                       .pp = MAX(p->opt.pp, 1),
                       .stage = p->opt.stage,
                       .lane = p->opt.lane};
    snprintf(h->host, sizeof(h->host), "%s", c->peer[c->rank].host);
    tame(h->host);
    /* a tick is noted when it ends, after its steps: so the first event need not be the earliest */
    for (int i = 0; i < t->n_threads; i++)
        for (size_t j = 0; j < t->thread[i].n; j++)
            h->begin_ns = MIN(h->begin_ns, t->thread[i].event[j].begin_ns);
    XNEW_N(*ret_labels, (size_t)p->n_steps);
    for (int32_t i = 0; i < p->n_steps; i++) {
        label_step(p, &p->steps[i], &(*ret_labels)[i]);
        tame((*ret_labels)[i].name);
    }
    return 0;
}

/* Nanoseconds to add to a rank's times for rank 0's. */
static int64_t clock_offset(const struct head *zero, const struct head *h)
{
    return strcmp(zero->host, h->host) ? zero->clock_ns - h->clock_ns : 0;
}

static int gather_heads(struct comm *c, const struct head *mine, struct head *all, struct err *e)
{
    size_t *bytes;
    XNEW_N(bytes, (size_t)c->size);
    for (int i = 0; i < c->size; i++)
        bytes[i] = sizeof(*mine);
    int rc = comm_allgather(c, mine, all, bytes, e);
    xfree(bytes);
    return rc;
}

int trace_send(const struct trace *t, struct comm *c, struct err *e)
{
    struct head h, *all;
    struct label *labels = NULL;
    XNEW_N(all, (size_t)c->size);
    int rc = fill_head(t, c, &h, &labels, e);
    if (!rc)
        rc = gather_heads(c, &h, all, e);
    if (!rc)
        rc = comm_send(c, labels, sizeof(*labels) * (size_t)h.n_steps, 0, e);
    for (int i = 0; i < t->n_threads && !rc; i++) {
        const struct trace_thread *x = &t->thread[i];
        const struct thread_head th = {x->n, x->dropped};
        rc = comm_send(c, &th, sizeof(th), 0, e);
        if (!rc && x->n)
            rc = comm_send(c, x->event, sizeof(*x->event) * x->n, 0, e);
    }
    xfree(labels);
    xfree(all);
    return rc;
}

/* --- the file --- */

struct writer {
    FILE *f;
    int64_t zero_ns; /* on rank 0's clock */
    int pid, tid;    /* of the thread being written; from 1 on, since viewers keep 0 for the system's idle */
    uint64_t dropped;
};

static void write_rank(struct writer *w, const struct head *h)
{
    fprintf(w->f,
            "%s{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d: replica %d, "
            "stage %d of %d, tensor %d of %d (%s, pid %d)\"}},\n"
            "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}",
            w->pid > 1 ? ",\n" : "", w->pid, w->pid - 1, h->lane, h->stage, h->pp, h->rank, h->tp, h->host,
            h->pid, w->pid, w->pid);
}

static void write_thread(struct writer *w, int ith, const struct head *h, const struct label *labels,
                         int64_t offset_ns, const struct trace_event *event, const struct thread_head *th)
{
    int pool = h->n_threads - h->n_readers;
    w->tid++;
    w->dropped += th->dropped;
    fprintf(w->f,
            ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s "
            "%d\"}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_"
            "index\":%d}}",
            w->pid, w->tid, ith < pool ? "thread" : "reads", ith < pool ? ith : ith - pool, w->pid, w->tid,
            ith);
    for (uint64_t i = 0; i < th->n; i++) {
        const struct trace_event *x = &event[i];
        int64_t at = x->begin_ns + offset_ns - w->zero_ns;
        fprintf(w->f,
                ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64 ".%03d,\"dur\":%" PRId64 ".%03d,",
                w->pid, w->tid, at / 1000, (int)(at % 1000), x->ns / 1000, (int)(x->ns % 1000));
        if (x->step == TRACE_TICK) {
            fprintf(w->f, "\"cat\":\"tick\",\"name\":\"tick\",\"args\":{\"tokens\":%d}}", x->rows);
            continue;
        }
        if (x->step <= TRACE_READ) {
            fprintf(w->f, "\"cat\":\"read\",\"name\":\"read expert\",\"args\":{\"layer\":%d,\"expert\":%d}}",
                    TRACE_READ - x->step, x->rows);
            continue;
        }
        const struct label *l = &labels[x->step];
        fprintf(w->f, "\"cat\":\"%s\",\"name\":\"%s\",\"args\":{", l->collective ? "collective" : "step",
                l->name);
        if (l->layer >= 0)
            fprintf(w->f, "\"layer\":%d,", l->layer);
        if (l->row_bytes)
            fprintf(w->f, "\"bytes\":%" PRIu64 ",", l->row_bytes * (uint64_t)x->rows);
        fprintf(w->f, "\"rows\":%d,\"step\":%d}}", x->rows, x->step);
    }
}

/* One other rank: its labels, then thread after thread, as trace_send sends them. */
static int receive_rank(struct writer *w, struct comm *c, int rank, const struct head *h, int64_t offset_ns,
                        struct trace_event *room, struct err *e)
{
    struct label *labels;
    XNEW_N(labels, (size_t)h->n_steps);
    int rc = comm_recv(c, labels, sizeof(*labels) * (size_t)h->n_steps, rank, e);
    for (int i = 0; i < h->n_threads && !rc; i++) {
        struct thread_head th;
        rc = comm_recv(c, &th, sizeof(th), rank, e);
        if (!rc && th.n)
            rc = comm_recv(c, room, sizeof(*room) * th.n, rank, e);
        if (!rc)
            write_thread(w, i, h, labels, offset_ns, room, &th);
    }
    xfree(labels);
    return rc;
}

int trace_write(const struct trace *t, struct comm *c, FILE *f, struct err *e)
{
    struct writer w = {.f = f, .pid = 1, .zero_ns = INT64_MAX};
    struct head mine, *all;
    struct label *labels = NULL;
    XNEW_N(all, (size_t)c->size);
    struct trace_event *room = big_alloc(TRACE_EVENTS * sizeof(*room), "writing the timeline (--trace)", e);
    if (!room)
        comm_abort(c, "rank 0 has no memory to write the timeline (--trace)");
    int rc = room ? fill_head(t, c, &mine, &labels, e) : ERR_MEMORY;
    if (!rc)
        rc = gather_heads(c, &mine, all, e);
    if (rc)
        goto done;
    for (int i = 0; i < c->size; i++)
        if (all[i].begin_ns != INT64_MAX)
            w.zero_ns = MIN(w.zero_ns, all[i].begin_ns + clock_offset(&mine, &all[i]));
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", f);
    write_rank(&w, &mine);
    for (int i = 0; i < t->n_threads; i++) {
        const struct thread_head th = {t->thread[i].n, t->thread[i].dropped};
        write_thread(&w, i, &mine, labels, 0, t->thread[i].event, &th);
    }
    for (int r = 1; r < c->size && !rc; r++) {
        w.pid++;
        write_rank(&w, &all[r]);
        rc = receive_rank(&w, c, r, &all[r], clock_offset(&mine, &all[r]), room, e);
    }
    fprintf(f, "\n],\"otherData\":{\"dropped_events\":\"%" PRIu64 "\"}}\n", w.dropped);
    if (!rc && (fflush(f) || ferror(f)))
        rc = err_errno(e, "cannot write the timeline");
done:
    if (room)
        big_free(room, TRACE_EVENTS * sizeof(*room));
    xfree(labels);
    xfree(all);
    return rc;
}
