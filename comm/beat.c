#include "comm/beat.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/net.h"
#include "comm/peer.h"

#define TURN_MS  250
#define LOCK_MS  200
#define MS(n)    ((int64_t)(n)*1000000)
#define EVERY_NS MS(BEAT_EVERY_MS)

enum { ALIVE, GOODBYE };

struct partner {
    struct comm_peer who;
    int rank; /* in comm */
    bool left;
    int64_t heard, sent; /* when */
    MPI_Request in, out;
    int got, say;
};

struct beat {
    MPI_Comm comm;
    int tag, n;
    struct comm_peer self;
    struct family *family; /* kept by whoever keeps us */
    bool ends;
    pthread_t thread;
    pthread_mutex_t lock; /* guards quit */
    pthread_cond_t wake;
    bool quit;
    struct partner partner[];
};

/* ---- who watches whom ---- */

static int hosts_in_order(const int *host, int n, int *first)
{
    int hosts = 0;
    for (int r = 0; r < n; r++) {
        int h = 0;
        while (h < hosts && host[first[h]] != host[r])
            h++;
        if (h == hosts)
            first[hosts++] = r;
    }
    return hosts;
}

/* The pairs between rank number `mine` of a host of `here` ranks and the `there` ranks of the host that `r`
 * is on. */
static int pair_up(const int *host, int n, int r, int mine, int here, int there, int *ret)
{
    int found = 0, i = 0;
    for (int s = 0; s < n; s++) {
        if (host[s] != host[r])
            continue;
        if (here >= there ? i == mine % there : i % here == mine)
            ret[found++] = s;
        i++;
    }
    return found;
}

static int count_host(const int *host, int n, int which)
{
    int count = 0;
    for (int r = 0; r < n; r++)
        count += host[r] == which;
    return count;
}

int beat_partners(const int *host, int n, int me, int *ret)
{
    int *first, found = 0, at = 0;
    XNEW_N(first, (size_t)n);
    int hosts = hosts_in_order(host, n, first);
    while (host[first[at]] != host[me])
        at++;
    int mine = count_host(host, me, host[me]), here = count_host(host, n, host[me]);
    for (int h = 0; h < hosts; h++) {
        int ahead = (h - at + hosts) % hosts, behind = (at - h + hosts) % hosts;
        bool near = (ahead & (ahead - 1)) == 0 || (behind & (behind - 1)) == 0;
        if (h != at && near)
            found += pair_up(host, n, first[h], mine, here, count_host(host, n, host[first[h]]), ret + found);
    }
    xfree(first);
    return found;
}

/* ---- beating ---- */

static void exchange(struct beat *b, int64_t now)
{
    for (int i = 0; i < b->n; i++) {
        struct partner *p = &b->partner[i];
        int done = 0;
        while (!p->left) {
            if (p->in == MPI_REQUEST_NULL &&
                MPI_Irecv(&p->got, 1, MPI_INT, p->rank, b->tag, b->comm, &p->in)) {
                p->in = MPI_REQUEST_NULL; /* as silence: whoever is silent long enough is lost */
                break;
            }
            if (MPI_Test(&p->in, &done, MPI_STATUS_IGNORE) || !done)
                break;
            p->heard = now;
            p->left = p->got == GOODBYE;
        }
        /* No more than one beat on its way: they must not pile up before somebody who does not listen. */
        if (p->out != MPI_REQUEST_NULL && (MPI_Test(&p->out, &done, MPI_STATUS_IGNORE) || !done))
            continue;
        if (!p->left && now - p->sent >= EVERY_NS - MS(TURN_MS) / 2) {
            p->say = ALIVE;
            if (MPI_Isend(&p->say, 1, MPI_INT, p->rank, b->tag, b->comm, &p->out))
                p->out = MPI_REQUEST_NULL;
            p->sent = now;
        }
    }
}

/* The sentence distinguishes the one host that is cut off from the others that it no longer hears. */
static void judge(struct beat *b, int64_t now)
{
    char me[128], other[128];
    const struct partner *worst = NULL;
    int silent = 0, present = 0;
    for (int i = 0; i < b->n; i++) {
        const struct partner *p = &b->partner[i];
        if (p->left)
            continue;
        present++;
        silent += now - p->heard > MS(BEAT_SILENCE_MS - 2 * BEAT_EVERY_MS);
        if (!worst || p->heard < worst->heard)
            worst = p;
    }
    if (!worst || now - worst->heard < MS(BEAT_SILENCE_MS))
        return;
    b->family->far = 1;
    double s = (double)(now - worst->heard) * 1e-9;
    peer_describe(&b->self, me, sizeof(me));
    peer_describe(&worst->who, other, sizeof(other));
    if (silent == present && present > 1)
        family_fault(b->family,
                     "%s is cut off: for %.1f s it has heard from none of the %d ranks that it "
                     "watches on other hosts, such as %s",
                     me, s, present, other);
    else
        family_fault(b->family,
                     "%s has not been heard from for %.1f s, says %s: its host is down or stopped, "
                     "or the link between the two is cut",
                     other, s, me);
}

/* All that still works here is a plain write and exit; the launcher then ends whom it can reach. `silent`:
 * main has said it all, but its way out takes too long. */
static void end_process(const struct beat *b, bool silent)
{
    if (silent)
        _exit(-ERR_RANK_LOST);
    struct err e;
    char line[700], me[128];
    family_check(b->family, &e);
    int n = snprintf(line, sizeof(line), "yoke: %.500s (%s ends)\n", e.msg,
                     peer_describe(&b->self, me, sizeof(me)));
    if (n > 0 && write(STDERR_FILENO, line, MIN((size_t)n, sizeof(line) - 1)) < 0)
        _exit(-ERR_RANK_LOST);
    _exit(-ERR_RANK_LOST);
}

/* Sleeps a turn; true: it is time to stop. */
static bool rest(struct beat *b)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += MS(TURN_MS);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&b->lock);
    while (!b->quit && !pthread_cond_timedwait(&b->wake, &b->lock, &until))
        ;
    bool quit = b->quit;
    pthread_mutex_unlock(&b->lock);
    return quit;
}

static void *beat_main(void *arg)
{
    struct beat *b = arg;
    int64_t last = clock_ns(), lost = 0;
    bool quit = false;
    for (;;) {
        int64_t now = clock_ns();
        /* Who was stopped himself (a debugger, a suspended machine) cannot tell how long the others were
         * silent. */
        for (int i = 0; now - last > MS(BEAT_SILENCE_MS) / 2 && i < b->n; i++)
            b->partner[i].heard = now;
        last = now;
        if (!lost && net_lock_ms(LOCK_MS)) {
            exchange(b, now);
            net_unlock();
            b->family->poll(b->family);
        }
        /* Without the lock nobody is heard: a call of MPI that does not return ends as silence, too. */
        if (!lost)
            judge(b, now);
        if (!lost && family_check(b->family, NULL))
            lost = now;
        if (lost && b->ends && now - lost >= MS(quit ? BEAT_GRACE_MS * 3 / 2 : BEAT_GRACE_MS))
            end_process(b, quit);
        if (quit && !(lost && b->ends))
            return NULL;
        if (!quit)
            quit = rest(b);
        else
            usleep(TURN_MS * 1000);
    }
}

/* False if MPI may still write to what is ours. */
static bool say_goodbye(struct beat *b)
{
    MPI_Request *req;
    int n = 0, over = 0;
    if (!net_lock_ms(1000))
        return false;
    XNEW_N(req, 3 * (size_t)b->n);
    for (int i = 0; i < b->n; i++) {
        struct partner *p = &b->partner[i];
        if (p->in != MPI_REQUEST_NULL) {
            MPI_Cancel(&p->in);
            req[n++] = p->in;
        }
        if (p->out != MPI_REQUEST_NULL)
            req[n++] = p->out;
        if (p->left)
            continue;
        static const int goodbye = GOODBYE;
        if (!MPI_Isend(&goodbye, 1, MPI_INT, p->rank, b->tag, b->comm, &p->out))
            req[n++] = p->out;
    }
    net_unlock();
    for (int ms = 0; ms < 1000 && !over; ms++) {
        if (net_lock_ms(LOCK_MS)) {
            if (MPI_Testall(n, req, &over, MPI_STATUSES_IGNORE))
                over = 0;
            net_unlock();
        }
        if (!over)
            usleep(1000);
    }
    xfree(req);
    return over;
}

int beat_start(MPI_Comm comm, int tag, const struct comm_peer *peer, const int *host, struct family *f,
               bool ends, struct beat **ret, struct err *e)
{
    struct beat *b = NULL;
    int n, me, *with;
    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &me);
    XNEW_N(with, (size_t)n);
    int partners = beat_partners(host, n, me, with);
    *ret = NULL;
    if (!partners)
        goto done;
    b = xcalloc(1, sizeof(*b) + (size_t)partners * sizeof(*b->partner));
    *b = (struct beat){.comm = comm, .tag = tag, .n = partners, .self = peer[me], .family = f, .ends = ends};
    for (int i = 0; i < partners; i++)
        b->partner[i] = (struct partner){.who = peer[with[i]],
                                         .rank = with[i],
                                         .heard = clock_ns(),
                                         .in = MPI_REQUEST_NULL,
                                         .out = MPI_REQUEST_NULL};
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&b->lock, NULL);

    sigset_t all, before; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&b->thread, NULL, beat_main, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        xfree(b);
        xfree(with);
        return err_set(e, ERR_FAIL, "cannot start the thread that watches other hosts (error %d)", rc);
    }
    *ret = b;
done:
    xfree(with);
    return 0;
}

void beat_stop(struct beat *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->quit = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
    if (b->ends && family_check(b->family, NULL))
        return; /* nothing is freed: the process ends */
    pthread_join(b->thread, NULL);
    if (!family_check(b->family, NULL) && !say_goodbye(b))
        return;
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
    xfree(b);
}
