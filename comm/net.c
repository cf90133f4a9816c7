#include "comm/net.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "comm/beat.h"
#include "comm/peer.h"
#include "comm/shm.h"
#include "comm/tree.h"
#include "comm/wait.h"

/* One MPI message carries at most this much: MPI counts in int. */
#define MESSAGE_MOST ((size_t)256 << 20)

/* Float sums go in pieces of at most this many bytes, for which each rank keeps room. */
#define PIECE_LEAST (16 << 10)
#define PIECE_MOST  (1 << 20)

/* All-reduce: pieces up to this size are exchanged whole, larger ones summed in shares. */
#define WHOLE_BYTES (32 << 10)

/* Sent messages of up to OUT_BYTES are copied, so that the sender goes on at once; OUT_SLOTS of them may be
 * on their way. Over TCP, MPI sends that much without asking the receiver first. */
#define OUT_BYTES (64 << 10)
#define OUT_SLOTS 8

#define WATCH_NS 100000000

enum { TAG_COLLECTIVE = 1, TAG_MESSAGE, TAG_FAULT, TAG_BEAT };

/* How long the news of a fault may take to leave, and to wait for the lock for it: a thread stuck in a call
 * of MPI holds it for good. */
#define TELL_MS 300

static pthread_mutex_t mpi_lock = PTHREAD_MUTEX_INITIALIZER;

bool net_lock_ms(int ms)
{
    /* By turns and naps: pthread_mutex_timedlock goes by the wall clock, which may jump. */
    for (; pthread_mutex_trylock(&mpi_lock); ms--) {
        if (ms <= 0)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return true;
}

void net_unlock(void)
{
    pthread_mutex_unlock(&mpi_lock);
}

/* ---- the family of a world of several hosts: its fault travels by messages ---- */

struct news {
    int far;
    char why[sizeof(((struct fault *)0)->why)];
};

struct world {
    struct family f;
    struct fault fault;
    MPI_Comm control;
    MPI_Request news; /* into `in`: always pending until a fault comes */
    struct news in, out;
    int rank, size;
    struct beat *beat; /* watches other hosts, if there are any */
    bool ends;         /* a fault ends the process, so nothing needs to be freed after it */
};

int net_error(struct err *e, const char *call, int rc)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int len = 0;
    MPI_Error_string(rc, text, &len);
    text[len] = 0;
    return err_set(e, ERR_RANK_LOST, "%s: %s", call, text);
}

static void world_poll(struct family *f)
{
    struct world *w = (struct world *)f;
    int done = 0;
    if (!net_lock_ms(1))
        return;
    if (w->news != MPI_REQUEST_NULL && MPI_Test(&w->news, &done, MPI_STATUS_IGNORE))
        done = 0;
    net_unlock();
    if (done) { /* who found it has told everyone: no need to spread it further */
        w->f.far = w->in.far;
        fault_set(&w->fault, w->in.why);
    }
}

static void world_tell(struct family *f, const char *why)
{
    struct world *w = (struct world *)f;
    w->out.far = f->far;
    snprintf(w->out.why, sizeof(w->out.why), "%s", why);
    MPI_Request *req;
    if (!net_lock_ms(TELL_MS))
        return;
    XNEW_N(req, (size_t)w->size);
    for (int r = 0; r < w->size; r++) {
        req[r] = MPI_REQUEST_NULL;
        if (r != w->rank)
            MPI_Isend(&w->out, (int)sizeof(w->out), MPI_BYTE, r, TAG_FAULT, w->control, &req[r]);
    }
    pthread_mutex_unlock(&mpi_lock);
    /* Messages to the dead never complete. */
    for (int ms = 0, done = 0; ms < TELL_MS && !done; ms++) {
        if (net_lock_ms(TELL_MS - ms)) {
            if (MPI_Testall(w->size, req, &done, MPI_STATUSES_IGNORE))
                done = 0;
            net_unlock();
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    xfree(req);
}

static void world_gone(struct family *f)
{
    struct world *w = (struct world *)f;
    beat_stop(w->beat);
    if (w->ends && atomic_load(&w->fault.state) != FAULT_NONE)
        return;                                       /* the thread that watches goes on */
    if (atomic_load(&w->fault.state) == FAULT_NONE) { /* else MPI is not to be trusted any more */
        pthread_mutex_lock(&mpi_lock);
        if (w->news != MPI_REQUEST_NULL) {
            MPI_Cancel(&w->news);
            MPI_Wait(&w->news, MPI_STATUS_IGNORE);
        }
        MPI_Comm_free(&w->control);
        pthread_mutex_unlock(&mpi_lock);
    }
    xfree(w);
}

static struct family *world_new(MPI_Comm comm, struct err *e)
{
    struct world *w;
    XNEW(w);
    atomic_store(&w->f.refs, 1);
    w->f.fault = &w->fault;
    w->f.poll = world_poll;
    w->f.tell = world_tell;
    w->f.gone = world_gone;
    MPI_Comm_rank(comm, &w->rank);
    MPI_Comm_size(comm, &w->size);
    int rc = MPI_Comm_dup(comm, &w->control);
    if (!rc)
        rc = MPI_Irecv(&w->in, (int)sizeof(w->in), MPI_BYTE, MPI_ANY_SOURCE, TAG_FAULT, w->control, &w->news);
    if (!rc)
        return &w->f;
    net_error(e, "MPI_Comm_dup", rc);
    xfree(w);
    return NULL;
}

/* ---- one rank's endpoint ---- */

struct out { /* a sent message on its way */
    MPI_Request req;
    uint8_t *data;
};

struct net {
    struct comm c;
    MPI_Comm comm;
    struct family *family;
    struct comm_peer *peer; /* [n] */
    int *host;              /* [n] */
    bool *watched;          /* [n]: of this host and seen alive, so that its death will be seen too */
    int cores;
    bool share_memory;
    size_t max_bytes;
    /* scratch for one exchange */
    MPI_Request *req;   /* [2 * n] */
    MPI_Status *status; /* [2 * n] */
    int *expect, *with; /* [2 * n]: bytes a receive must bring, or -1 for a send; and the other rank */
    int reqs;
    size_t piece;       /* floats */
    float *room;        /* [n, piece] */
    const float **part; /* [n] */
    struct out out[OUT_SLOTS];
    uint8_t *out_data;
};

static struct net *net_of(struct comm *c)
{
    return (struct net *)c;
}

struct family *net_family(struct comm *c)
{
    return net_of(c)->family;
}

static int fault(struct net *g, struct err *e, int code, int rank, const char *what)
{
    char other[128], me[128];
    peer_describe(&g->peer[rank], other, sizeof(other));
    peer_describe(&g->peer[g->c.rank], me, sizeof(me));
    family_fault(g->family, "between %s and %s: %s", me, other, what);
    return err_set(e, code, "between %s and %s: %s", me, other, what);
}

static void watch(struct net *g)
{
    char who[128];
    for (int r = 0; r < g->c.size; r++)
        if (g->watched[r] && peer_dead(&g->peer[r]))
            family_fault(g->family, "%s has died", peer_describe(&g->peer[r], who, sizeof(who)));
}

/* Lets MPI work on n requests until all are done. status may be MPI_STATUSES_IGNORE. */
static int complete(struct net *g, MPI_Request *req, int n, MPI_Status *status, int *with, struct err *e)
{
    struct wait wait = {.crowded = g->c.size * g->c.threads > g->cores};
    int64_t look = 0, nap_ns = 20000;
    for (;;) {
        int done = 0;
        pthread_mutex_lock(&mpi_lock);
        int rc = MPI_Testall(n, req, &done, status);
        pthread_mutex_unlock(&mpi_lock);
        if (rc) {
            char text[MPI_MAX_ERROR_STRING + 1] = "";
            int len = 0, at = 0;
            for (int i = 0; rc == MPI_ERR_IN_STATUS && status != MPI_STATUSES_IGNORE && i < n; i++)
                if (status[i].MPI_ERROR && status[i].MPI_ERROR != MPI_ERR_PENDING) {
                    rc = status[i].MPI_ERROR;
                    at = i;
                }
            int class = rc;
            MPI_Error_class(rc, &class);
            if (class == MPI_ERR_TRUNCATE)
                return fault(g, e, ERR_SPLIT, with[at], "the ranks disagree: more arrives than is expected");
            MPI_Error_string(rc, text, &len);
            text[len] = 0;
            return fault(g, e, ERR_RANK_LOST, with[at], text);
        }
        if (done)
            return 0;
        if (!wait_turn(&wait))
            continue;
        if (wait.now >= look) {
            if (look)
                watch(g);
            look = wait.now + WATCH_NS;
        }
        g->family->poll(g->family);
        if ((rc = family_check(g->family, e)))
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
        nap_ns = MIN(nap_ns + nap_ns / 4, 1000000);
    }
}

/* ---- an exchange: receives and sends with several ranks at once, at most one of each per rank ---- */

static int enter(struct net *g, struct err *e)
{
    g->reqs = 0;
    return family_check(g->family, e);
}

static int post(struct net *g, const void *send, void *recv, size_t bytes, int rank, struct err *e)
{
    pthread_mutex_lock(&mpi_lock);
    int rc = recv ? MPI_Irecv(recv, (int)bytes, MPI_BYTE, rank, TAG_COLLECTIVE, g->comm, &g->req[g->reqs])
                  : MPI_Isend(send, (int)bytes, MPI_BYTE, rank, TAG_COLLECTIVE, g->comm, &g->req[g->reqs]);
    pthread_mutex_unlock(&mpi_lock);
    if (rc)
        return fault(g, e, ERR_RANK_LOST, rank, recv ? "MPI_Irecv fails" : "MPI_Isend fails");
    g->expect[g->reqs] = recv ? (int)bytes : -1;
    g->with[g->reqs++] = rank;
    return 0;
}

static int post_send(struct net *g, const void *p, size_t bytes, int to, struct err *e)
{
    return post(g, p, NULL, bytes, to, e);
}

static int post_recv(struct net *g, void *p, size_t bytes, int from, struct err *e)
{
    static char none; /* for messages without bytes, whose buffer may be NULL */
    return post(g, NULL, p ? p : &none, bytes, from, e);
}

static int finish(struct net *g, struct err *e)
{
    int n = g->reqs;
    g->reqs = 0;
    for (int i = 0; i < n; i++)
        g->status[i].MPI_ERROR = MPI_SUCCESS;
    int rc = complete(g, g->req, n, g->status, g->with, e);
    for (int i = 0; i < n && !rc; i++) {
        int got = 0;
        if (g->expect[i] < 0)
            continue;
        MPI_Get_count(&g->status[i], MPI_BYTE, &got);
        if (got != g->expect[i])
            rc = fault(g, e, ERR_SPLIT, g->with[i], "the ranks disagree: less arrives than is expected");
    }
    return rc;
}

/* ---- collectives ---- */

static int net_barrier(struct comm *c, struct err *e)
{
    struct net *g = net_of(c);
    int n = c->size, rc = enter(g, e);
    for (int hop = 1; hop < n && !rc; hop *= 2) {
        if ((rc = post_recv(g, NULL, 0, (c->rank + n - hop) % n, e)) ||
            (rc = post_send(g, NULL, 0, (c->rank + hop) % n, e)))
            break;
        rc = finish(g, e);
    }
    return rc;
}

/* Binomial: rank d (counted from the root) hears from d without its lowest bit, then tells those that differ
 * from it in one lower bit. */
static int net_bcast(struct comm *c, void *data, size_t bytes, int root, struct err *e)
{
    struct net *g = net_of(c);
    int n = c->size, d = (c->rank + n - root) % n, rc = enter(g, e);
    for (size_t at = 0, len; at < bytes && !rc; at += len) {
        uint8_t *piece = (uint8_t *)data + at;
        int bit = 1;
        len = MIN(bytes - at, MESSAGE_MOST);
        while (bit < n && !(d & bit))
            bit *= 2;
        if (d && ((rc = post_recv(g, piece, len, (d - bit + root) % n, e)) || (rc = finish(g, e))))
            break;
        for (bit /= 2; bit && !rc; bit /= 2)
            if (d + bit < n)
                rc = post_send(g, piece, len, (d + bit + root) % n, e);
        if (!rc)
            rc = finish(g, e);
    }
    return rc;
}

/* Recursive doubling: after each step, groups twice as large hold their subtree's sum. n is a power of two.
 */
static int reduce_doubling(struct net *g, float *x, size_t len, struct err *e)
{
    for (int bit = 1; bit < g->c.size; bit *= 2) {
        int other = g->c.rank ^ bit, rc;
        if ((rc = post_recv(g, g->room, len * sizeof(float), other, e)) ||
            (rc = post_send(g, x, len * sizeof(float), other, e)) || (rc = finish(g, e)))
            return rc;
        bool left = !(g->c.rank & bit);
        g->part[0] = left ? x : g->room;
        g->part[1] = left ? g->room : x;
        tree_sum(x, g->part, 2, len);
    }
    return 0;
}

static int reduce_whole(struct net *g, float *x, size_t len, struct err *e)
{
    int rc = 0;
    for (int r = 0; r < g->c.size && !rc; r++) {
        float *there = g->room + (size_t)r * g->piece;
        g->part[r] = r == g->c.rank ? x : there;
        if (r != g->c.rank && !(rc = post_recv(g, there, len * sizeof(float), r, e)))
            rc = post_send(g, x, len * sizeof(float), r, e);
    }
    if (rc || (rc = finish(g, e)))
        return rc;
    tree_sum(x, g->part, g->c.size, len);
    return 0;
}

static size_t share(size_t len, int n, int r)
{
    return len * (size_t)r / (size_t)n;
}

static int reduce_shares(struct net *g, float *x, size_t len, struct err *e)
{
    int n = g->c.size, me = g->c.rank, rc = 0;
    float *mine = x + share(len, n, me);
    size_t mine_len = share(len, n, me + 1) - share(len, n, me);
    for (int r = 0; r < n && !rc; r++) {
        float *there = g->room + (size_t)r * g->piece;
        size_t from = share(len, n, r), to = share(len, n, r + 1);
        g->part[r] = r == me ? mine : there;
        if (r != me && !(rc = post_recv(g, there, mine_len * sizeof(float), r, e)))
            rc = post_send(g, x + from, (to - from) * sizeof(float), r, e);
    }
    if (rc || (rc = finish(g, e)))
        return rc;
    tree_sum(mine, g->part, n, mine_len);
    for (int r = 0; r < n && !rc; r++) {
        size_t from = share(len, n, r), to = share(len, n, r + 1);
        if (r != me && !(rc = post_recv(g, x + from, (to - from) * sizeof(float), r, e)))
            rc = post_send(g, mine, mine_len * sizeof(float), r, e);
    }
    return rc ? rc : finish(g, e);
}

static int net_allreduce(struct comm *c, float *x, size_t n, struct err *e)
{
    struct net *g = net_of(c);
    int rc = enter(g, e);
    if (c->size == 1)
        return rc;
    for (size_t at = 0, len; at < n && !rc; at += len) {
        len = MIN(n - at, g->piece);
        if (len * sizeof(float) > WHOLE_BYTES && c->size > 2)
            rc = reduce_shares(g, x + at, len, e);
        else if (c->size & (c->size - 1))
            rc = reduce_whole(g, x + at, len, e);
        else
            rc = reduce_doubling(g, x + at, len, e);
    }
    return rc;
}

static int net_reduce_scatter(struct comm *c, const float *in, const size_t *count, float *out, struct err *e)
{
    struct net *g = net_of(c);
    int n = c->size, me = c->rank, rc = enter(g, e);
    size_t longest = 0;
    for (int r = 0; r < n; r++)
        longest = MAX(longest, count[r]);
    for (size_t at = 0; at < longest && !rc; at += g->piece) {
        size_t mine = count[me] > at ? MIN(count[me] - at, g->piece) : 0, whole = 0;
        for (int r = 0; r < n && !rc; whole += count[r++]) {
            float *there = g->room + (size_t)r * g->piece;
            size_t theirs = count[r] > at ? MIN(count[r] - at, g->piece) : 0;
            g->part[r] = r == me ? in + whole + at : there;
            if (r != me && mine)
                rc = post_recv(g, there, mine * sizeof(float), r, e);
            if (r != me && theirs && !rc)
                rc = post_send(g, in + whole + at, theirs * sizeof(float), r, e);
        }
        if (rc || (rc = finish(g, e)))
            break;
        if (mine)
            tree_sum(out + at, g->part, n, mine);
    }
    return rc;
}

static int net_allgather(struct comm *c, const void *in, void *out, const size_t *bytes, struct err *e)
{
    struct net *g = net_of(c);
    int n = c->size, me = c->rank, rc = enter(g, e);
    size_t longest = 0, whole = 0;
    for (int r = 0; r < n; r++) {
        uint8_t *mine = (uint8_t *)out + whole;
        if (r == me && bytes[me] && mine != (const uint8_t *)in)
            memcpy(mine, in, bytes[me]);
        whole += bytes[r];
        longest = MAX(longest, bytes[r]);
    }
    for (size_t at = 0; at < longest && !rc; at += MESSAGE_MOST) {
        size_t mine = bytes[me] > at ? MIN(bytes[me] - at, MESSAGE_MOST) : 0;
        whole = 0;
        for (int r = 0; r < n && !rc; whole += bytes[r++]) {
            size_t theirs = bytes[r] > at ? MIN(bytes[r] - at, MESSAGE_MOST) : 0;
            if (r != me && theirs)
                rc = post_recv(g, (uint8_t *)out + whole + at, theirs, r, e);
            if (r != me && mine && !rc)
                rc = post_send(g, (const uint8_t *)in + at, mine, r, e);
        }
        if (!rc)
            rc = finish(g, e);
    }
    return rc;
}

/* The first message of each pair, even if empty, is always sent: it is how a disagreement shows. */
static int net_alltoall(struct comm *c, const void *in, const size_t *send_bytes, void *out,
                        const size_t *recv_bytes, struct err *e)
{
    struct net *g = net_of(c);
    int n = c->size, me = c->rank, rc = enter(g, e);
    size_t longest = 1;
    for (int r = 0; r < n; r++)
        longest = MAX(longest, MAX(send_bytes[r], recv_bytes[r]));
    for (size_t at = 0; at < longest && !rc; at += MESSAGE_MOST) {
        size_t from = 0, to = 0;
        for (int r = 0; r < n && !rc; from += send_bytes[r], to += recv_bytes[r++]) {
            size_t gives = send_bytes[r] > at ? MIN(send_bytes[r] - at, MESSAGE_MOST) : 0;
            size_t gets = recv_bytes[r] > at ? MIN(recv_bytes[r] - at, MESSAGE_MOST) : 0;
            if (r == me) {
                if (gives != gets)
                    rc = fault(g, e, ERR_SPLIT, me, "a rank sends itself other than it expects");
                else if (gives)
                    memcpy((uint8_t *)out + to + at, (const uint8_t *)in + from + at, gives);
                continue;
            }
            if (gets || !at)
                rc = post_recv(g, gets ? (uint8_t *)out + to + at : NULL, gets, r, e);
            if ((gives || !at) && !rc)
                rc = post_send(g, gives ? (const uint8_t *)in + from + at : NULL, gives, r, e);
        }
        if (!rc)
            rc = finish(g, e);
    }
    return rc;
}

/* ---- point to point ---- */

static int net_send(struct comm *c, const void *data, size_t bytes, int to, struct err *e)
{
    struct net *g = net_of(c);
    int rc = enter(g, e);
    for (size_t at = 0; !rc;) {
        size_t len = MIN(bytes - at, MESSAGE_MOST);
        const void *p = len ? (const uint8_t *)data + at : NULL;
        struct out *out = NULL;
        MPI_Request big = MPI_REQUEST_NULL;
        if (len <= OUT_BYTES) {
            for (int i = 0; i < OUT_SLOTS && !out; i++) {
                int done = 0;
                pthread_mutex_lock(&mpi_lock);
                if (MPI_Test(&g->out[i].req, &done, MPI_STATUS_IGNORE))
                    done = 0;
                pthread_mutex_unlock(&mpi_lock);
                if (done)
                    out = &g->out[i];
            }
            if (out && len)
                p = memcpy(out->data, p, len);
        }
        MPI_Request *req = out ? &out->req : &big;
        pthread_mutex_lock(&mpi_lock);
        int mpi = MPI_Isend(p, (int)len, MPI_BYTE, to, TAG_MESSAGE, g->comm, req);
        pthread_mutex_unlock(&mpi_lock);
        if (mpi)
            return fault(g, e, ERR_RANK_LOST, to, "MPI_Isend fails");
        if (!out)
            rc = complete(g, req, 1, MPI_STATUSES_IGNORE, &to, e);
        at += len;
        if (at == bytes)
            break;
    }
    return rc;
}

static int net_recv(struct comm *c, void *data, size_t bytes, int from, struct err *e)
{
    struct net *g = net_of(c);
    int rc = enter(g, e);
    for (size_t at = 0; !rc;) {
        size_t len = MIN(bytes - at, MESSAGE_MOST);
        MPI_Request req;
        MPI_Status status = {.MPI_ERROR = MPI_SUCCESS};
        pthread_mutex_lock(&mpi_lock);
        int mpi = MPI_Irecv(len ? (uint8_t *)data + at : NULL, (int)len, MPI_BYTE, from, TAG_MESSAGE, g->comm,
                            &req);
        pthread_mutex_unlock(&mpi_lock);
        if (mpi)
            return fault(g, e, ERR_RANK_LOST, from, "MPI_Irecv fails");
        if ((rc = complete(g, &req, 1, &status, &from, e)))
            break;
        int got = 0;
        MPI_Get_count(&status, MPI_BYTE, &got);
        if ((size_t)got != len)
            return fault(g, e, ERR_SPLIT, from, "the ranks disagree: less arrives than is expected");
        at += len;
        if (at == bytes)
            break;
    }
    return rc;
}

/* ---- life and death ---- */

static void net_abort(struct comm *c, const char *why)
{
    struct net *g = net_of(c);
    char who[128];
    family_fault(g->family, "%s gave up: %s", peer_describe(&g->peer[c->rank], who, sizeof(who)), why);
}

static void net_close(struct comm *c)
{
    struct net *g = net_of(c);
    if (atomic_load(&g->family->fault->state) == FAULT_NONE) {
        int with[OUT_SLOTS] = {0};
        MPI_Request req[OUT_SLOTS];
        for (int i = 0; i < OUT_SLOTS; i++)
            req[i] = g->out[i].req;
        if (!complete(g, req, OUT_SLOTS, MPI_STATUSES_IGNORE, with, NULL)) {
            pthread_mutex_lock(&mpi_lock);
            MPI_Comm_free(&g->comm);
            pthread_mutex_unlock(&mpi_lock);
        }
    }
    /* After a fault MPI may still own these buffers; the process is about to end. */
    if (atomic_load(&g->family->fault->state) == FAULT_NONE) {
        xfree(g->room);
        xfree(g->out_data);
    }
    family_unref(g->family);
    xfree(g->peer);
    xfree(g->host);
    xfree(g->watched);
    xfree(g->req);
    xfree(g->status);
    xfree(g->expect);
    xfree(g->with);
    xfree(g->part);
    xfree(g);
}

struct card { /* what a rank tells about itself when it joins */
    struct comm_peer peer;
    int host;
    cpu_set_t cpus;
    int quota;
};

/* Takes over comm and one reference of f. name: this rank's number in the whole. */
static int endpoint_new(MPI_Comm comm, struct family *f, int name, int host, bool share_memory,
                        size_t max_bytes, struct comm **ret, struct err *e)
{
    struct net *g;
    struct card mine = {.host = host, .quota = cpu_count()}, *all;
    int n, rank;
    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &rank);
    peer_self(&mine.peer, name);
    if (sched_getaffinity(0, sizeof(mine.cpus), &mine.cpus))
        CPU_ZERO(&mine.cpus);
    XNEW_N(all, (size_t)n);
    pthread_mutex_lock(&mpi_lock);
    int rc = MPI_Allgather(&mine, (int)sizeof(mine), MPI_BYTE, all, (int)sizeof(mine), MPI_BYTE, comm);
    pthread_mutex_unlock(&mpi_lock);
    if (rc) {
        xfree(all);
        family_unref(f);
        return net_error(e, "MPI_Allgather", rc);
    }
    XNEW(g);
    g->comm = comm;
    g->family = f;
    g->share_memory = share_memory;
    g->max_bytes = max_bytes;
    g->piece = MIN(MAX(ROUND_UP(max_bytes, 64), (size_t)PIECE_LEAST), (size_t)PIECE_MOST) / sizeof(float);
    XNEW_N(g->peer, (size_t)n);
    XNEW_N(g->host, (size_t)n);
    XNEW_N(g->watched, (size_t)n);
    XNEW_N(g->req, 2 * (size_t)n);
    XNEW_N(g->status, 2 * (size_t)n);
    XNEW_N(g->expect, 2 * (size_t)n);
    XNEW_N(g->with, 2 * (size_t)n);
    XNEW_N(g->part, (size_t)n);
    g->room = xaligned(64, (size_t)n * g->piece * sizeof(float));
    g->out_data = xaligned(64, (size_t)OUT_SLOTS * OUT_BYTES);
    for (int i = 0; i < OUT_SLOTS; i++)
        g->out[i] = (struct out){MPI_REQUEST_NULL, g->out_data + (size_t)i * OUT_BYTES};
    cpu_set_t cpus = mine.cpus;
    int local = 0;
    for (int r = 0; r < n; r++) {
        g->peer[r] = all[r].peer;
        g->host[r] = all[r].host;
        if (all[r].host != host)
            continue;
        local++;
        CPU_OR(&cpus, &cpus, &all[r].cpus);
        g->watched[r] = r != rank && !peer_dead(&g->peer[r]);
    }
    /* Waiting compares size * threads with the cores: scale those of this host to the whole group. */
    int here = mine.quota < CPU_COUNT(&mine.cpus) ? mine.quota : CPU_COUNT(&cpus);
    g->cores = MAX(1, here * n / local);
    g->c.ops = &net_ops;
    g->c.rank = rank;
    g->c.size = n;
    g->c.peer = g->peer;
    g->c.threads = 1;
    xfree(all);
    *ret = &g->c;
    return 0;
}

int net_new(MPI_Comm world, int host, int share_memory, size_t max_bytes, struct comm **ret, struct err *e)
{
    int rank;
    MPI_Comm_rank(world, &rank);
    struct family *f = world_new(world, e);
    return f ? endpoint_new(world, f, rank, host, share_memory, max_bytes, ret, e) : ERR_RANK_LOST;
}

int net_watch(struct comm *c, bool ends, struct err *e)
{
    struct net *g = net_of(c);
    struct world *w = (struct world *)g->family;
    int rc = net_barrier(c, e); /* the others may have come late: silence counts from now */
    w->ends = ends;
    return rc ? rc : beat_start(w->control, TAG_BEAT, g->peer, g->host, &w->f, ends, &w->beat, e);
}

struct want {
    int color, key;
};

static int net_split(struct comm *c, int color, int key, struct comm **ret, struct err *e)
{
    struct net *g = net_of(c);
    int n = c->size;
    struct want mine = {color, key}, *want;
    size_t *each;
    *ret = NULL;
    XNEW_N(want, (size_t)n);
    XNEW_N(each, (size_t)n);
    for (int r = 0; r < n; r++)
        each[r] = sizeof(mine);
    int rc = net_allgather(c, &mine, want, each, e);
    xfree(each);

    /* Which groups are on one host? All ranks work that out alike, because both kinds of split are collective
     * over all of them. */
    bool near = g->share_memory && color >= 0, any_near = false, any_far = false;
    for (int r = 0; r < n && !rc; r++) {
        bool one_host = g->share_memory && want[r].color >= 0;
        for (int s = 0; s < n; s++)
            if (want[s].color == want[r].color && g->host[s] != g->host[r])
                one_host = false;
        if (want[r].color == color)
            near = near && one_host;
        any_near |= one_host;
        any_far |= want[r].color >= 0 && !one_host;
    }
    xfree(want);
    if (!rc && any_near)
        rc = shm_processes_split(c, near ? color : -1, key, g->max_bytes, g->family, ret, e);
    if (!rc && any_far) {
        MPI_Comm comm;
        pthread_mutex_lock(&mpi_lock);
        int mpi = MPI_Comm_split(g->comm, color >= 0 && !near ? color : MPI_UNDEFINED, key, &comm);
        pthread_mutex_unlock(&mpi_lock);
        if (mpi)
            rc = net_error(e, "MPI_Comm_split", mpi);
        else if (comm != MPI_COMM_NULL)
            rc = endpoint_new(comm, family_ref(g->family), g->peer[c->rank].rank, g->host[c->rank],
                              g->share_memory, g->max_bytes, ret, e);
    }
    if (!rc && *ret)
        (*ret)->threads = c->threads;
    return rc;
}

const struct comm_ops net_ops = {"mpi/net",          net_barrier,   net_bcast,    net_allreduce,
                                 net_reduce_scatter, net_allgather, net_alltoall, net_send,
                                 net_recv,           net_split,     net_abort,    net_close};
