#include "comm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "comm/peer.h"
#include "comm/tree.h"
#include "comm/wait.h"

/* ---- the region ---- */

#define LINE 64
#define PAGE 4096

/* Sizes. A slot takes a piece of a message that still sits in the second-level cache when it is read; larger
 * pieces were not faster. With many ranks slots and channels shrink, so that a group of up to 64 takes at
 * most 48 MiB. */
#define SLOT_LEAST  (16 << 10)
#define SLOT_MOST   (512 << 10)
#define SLOTS_TOTAL (32 << 20)
#define CHAN_LEAST  4096
#define CHAN_MOST   (256 << 10)
#define CHANS_TOTAL (16 << 20)

/* All-reduce: up to this many bytes to be read per rank, everyone sums everything (one round); beyond,
 * everyone sums its share and then fetches the others' (two rounds, less traffic). */
#define ONE_SHOT_BYTES (256 << 10)

#define WAKE_NS 100000000 /* a sleeper looks around at least this often */
#define WATCH_NS                                                                                             \
    1000000000 /* ... and at every rank of its group, not just the one it waits for, this often */

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "atomics between processes");

struct word { /* a counter that others wait for; compared modulo 2^32 */
    _Atomic uint32_t value, sleepers;
};

struct rank_line {
    alignas(LINE) struct word ready; /* the round this rank has reached: see round_begin */
    _Atomic uint32_t left;           /* it has closed this group */
    uint64_t tag[2];                 /* what it believes the round is, by parity */
};

struct chan { /* a byte stream from one rank to another; counts of bytes ever written and read */
    alignas(LINE) struct word head;
    alignas(LINE) struct word tail;
};

struct card { /* what a rank tells about itself when it joins */
    struct comm_peer peer;
    cpu_set_t cpus;
    int quota; /* cores that this process may use at a time */
};

struct head {
    uint64_t nonce;
    int n;
    size_t slot, chan;
    alignas(LINE) struct fault fault;
};

struct layout {
    size_t slot, chan;                       /* bytes of one */
    size_t lines, cards, chans, areas, area; /* offsets, and the bytes of one area */
    size_t total;
};

struct region {
    uint8_t *base;
    size_t bytes;
    _Atomic int refs; /* threads: of all ranks together; processes: of this one's mappings */
    bool process;
    int fd; /* processes: the maker's, until all have opened it; else -1 */
};

static size_t pow2_floor(size_t x)
{
    size_t p = 1;
    while (2 * p <= x)
        p *= 2;
    return p;
}

static struct layout layout_of(int n, size_t slot, size_t chan)
{
    struct layout l = {.slot = slot, .chan = chan};
    l.lines = ROUND_UP(sizeof(struct head), LINE);
    l.cards = l.lines + (size_t)n * sizeof(struct rank_line);
    l.chans = ROUND_UP(l.cards + (size_t)n * sizeof(struct card), LINE);
    l.areas = ROUND_UP(l.chans + (size_t)n * (size_t)n * sizeof(struct chan), PAGE);
    l.area = 2 * slot + (size_t)n * chan;
    l.total = l.areas + (size_t)n * l.area;
    return l;
}

static struct layout layout_for(int n, size_t max_bytes)
{
    size_t ranks = (size_t)n;
    size_t slot = MIN(MIN(max_bytes, (size_t)SLOT_MOST), SLOTS_TOTAL / (2 * ranks));
    slot = MAX(ROUND_UP(slot, PAGE), (size_t)SLOT_LEAST);
    size_t chan = MIN(MIN(2 * max_bytes, (size_t)CHAN_MOST), CHANS_TOTAL / (ranks * ranks));
    chan = pow2_floor(MAX(chan, (size_t)CHAN_LEAST));
    return layout_of(n, slot, chan);
}

static void region_unref(struct region *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    if (r->fd >= 0)
        close(r->fd);
    if (r->process && r->base)
        munmap(r->base, r->bytes);
    else
        big_free(r->base, r->bytes);
    xfree(r);
}

static struct region *region_ref(struct region *r)
{
    atomic_fetch_add(&r->refs, 1);
    return r;
}

static struct region *region_of(uint8_t *base, size_t bytes, int refs, bool process, int fd)
{
    struct region *r;
    XNEW(r);
    r->base = base;
    r->bytes = bytes;
    atomic_store(&r->refs, refs);
    r->process = process;
    r->fd = fd;
    return r;
}

static void head_init(struct region *r, int n, const struct layout *l, uint64_t nonce)
{
    struct head *h = (struct head *)r->base;
    h->nonce = nonce;
    h->n = n;
    h->slot = l->slot;
    h->chan = l->chan;
}

static struct region *region_threads(int n, int refs, const struct layout *l, struct err *e)
{
    uint8_t *base = big_alloc(l->total, "message buffers between ranks", e);
    if (!base)
        return NULL;
    struct region *r = region_of(base, l->total, refs, false, -1);
    head_init(r, n, l, 0);
    return r;
}

/* Takes the pages now, where running out is an error and not a SIGBUS later; each rank does it for its own
 * area, so that the pages lie on its NUMA domain. */
static int region_populate(int fd, size_t at, size_t bytes, struct err *e)
{
    int rc;
    do {
        rc = fallocate(fd, 0, (off_t)at, (off_t)bytes);
    } while (rc && errno == EINTR);
    if (!rc || errno == EOPNOTSUPP)
        return 0;
    return err_errno(
        e,
        "%.1f MiB of shared memory for messages between ranks (the memory limit of this container "
        "or machine counts it; fewer ranks on this host need less)",
        (double)bytes / (1 << 20));
}

static struct region *region_map(int fd, size_t bytes, struct err *e)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        err_errno(e, "mapping %.1f MiB of shared memory for messages between ranks",
                  (double)bytes / (1 << 20));
        return NULL;
    }
    return region_of(base, bytes, 1, true, fd);
}

static struct region *region_make(int n, const struct layout *l, uint64_t nonce, struct err *e)
{
    int fd = memfd_create("yoke-ranks", MFD_CLOEXEC);
    if (fd < 0) {
        err_errno(e, "shared memory for messages between ranks (YOKE_COMM=net does without)");
        return NULL;
    }
    struct region *r = NULL;
    if (ftruncate(fd, (off_t)l->total))
        err_errno(e, "sizing shared memory for messages between ranks to %zu bytes", l->total);
    else if (!region_populate(fd, 0, l->areas, e))
        r = region_map(fd, l->total, e);
    if (r)
        head_init(r, n, l, nonce);
    else
        close(fd);
    return r;
}

static struct region *region_open(int pid, int fd_there, uint64_t nonce, size_t total, struct err *e)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd_there);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        err_errno(e,
                  "%s, the shared memory of the ranks on this host (they must run as one user in one process "
                  "namespace; YOKE_COMM=net does without shared memory)",
                  path);
        return NULL;
    }
    off_t size = lseek(fd, 0, SEEK_END);
    struct region *r = NULL;
    if (size == (off_t)total)
        r = region_map(fd, total, e);
    if (size != (off_t)total || (r && ((struct head *)r->base)->nonce != nonce)) {
        err_set(e, ERR_IO,
                "%s is not the shared memory that rank 0 of the group made: the ranks on this host see "
                "different process namespaces; YOKE_COMM=net does without shared memory",
                path);
        if (r) {
            r->fd = -1;
            region_unref(r);
        }
        close(fd);
        return NULL;
    }
    if (!r)
        close(fd);
    return r;
}

/* ---- one rank's view of it ---- */

struct shm {
    struct comm c;
    struct family *family;
    struct region *region;
    struct rank_line *line; /* [n] */
    struct card *card;      /* [n] */
    struct chan *chan;      /* [from, to] */
    struct layout l;
    uint32_t round;         /* the one I am in, or have last been in */
    uint32_t met;           /* all ranks were seen to have reached this round */
    int cores;              /* that the ranks of this group may use together */
    size_t max_bytes;       /* as asked for, for groups split from this one */
    const float **part;     /* [n], scratch */
    struct comm_peer *peer; /* [n] */
};

struct root { /* a family whose fault lies in the region of the group that everything was split from */
    struct family f;
    struct region *region;
};

extern const struct comm_ops shm_thread_ops;

static struct head *head_of(const struct shm *g)
{
    return (struct head *)g->region->base;
}

static struct shm *shm_of(struct comm *c)
{
    return (struct shm *)c;
}

struct family *shm_family(struct comm *c)
{
    return shm_of(c)->family;
}

static void root_gone(struct family *f)
{
    struct root *r = (struct root *)f;
    region_unref(r->region);
    xfree(r);
}

static struct family *root_new(struct region *region)
{
    struct root *r;
    XNEW(r);
    atomic_store(&r->f.refs, 1);
    r->f.fault = &((struct head *)region->base)->fault;
    r->f.gone = root_gone;
    r->region = region_ref(region);
    return &r->f;
}

static uint8_t *area(const struct shm *g, int rank)
{
    return g->region->base + g->l.areas + (size_t)rank * g->l.area;
}

/* The slot that `rank` writes in the present round. */
static uint8_t *slot(const struct shm *g, int rank)
{
    return area(g, rank) + (g->round & 1) * g->l.slot;
}

/* Takes over one reference of the region, and one of the family (NULL: makes a new one). */
static struct shm *endpoint_new(struct region *region, struct family *f, int rank, int n, size_t max_bytes)
{
    struct head *h = (struct head *)region->base;
    struct shm *g;
    XNEW(g);
    g->l = layout_of(n, h->slot, h->chan);
    g->region = region;
    g->family = f ? f : root_new(region);
    g->line = (struct rank_line *)(region->base + g->l.lines);
    g->card = (struct card *)(region->base + g->l.cards);
    g->chan = (struct chan *)(region->base + g->l.chans);
    g->max_bytes = max_bytes;
    g->cores = 1;
    XNEW_N(g->part, (size_t)n);
    XNEW_N(g->peer, (size_t)n);
    g->c.ops = region->process ? &shm_process_ops : &shm_thread_ops;
    g->c.rank = rank;
    g->c.size = n;
    g->c.peer = g->peer;
    g->c.threads = 1;
    return g;
}

static void card_write(struct shm *g, int rank, int name)
{
    struct card *card = &g->card[rank];
    peer_self(&card->peer, name);
    if (sched_getaffinity(0, sizeof(card->cpus), &card->cpus))
        CPU_ZERO(&card->cpus);
    card->quota = cpu_count();
}

/* When all cards are written. */
static void cards_read(struct shm *g)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    int quota = INT_MAX;
    for (int r = 0; r < g->c.size; r++) {
        const struct card *card = &g->card[r];
        g->peer[r] = card->peer;
        CPU_OR(&all, &all, &card->cpus);
        if (card->quota < CPU_COUNT(&card->cpus)) /* a cgroup's limit, which its processes share */
            quota = MIN(quota, card->quota);
    }
    g->cores = MAX(1, MIN(CPU_COUNT(&all), quota));
}

/* ---- waiting ---- */

static bool reached(struct word *w, uint32_t want)
{
    return (int32_t)(atomic_load_explicit(&w->value, memory_order_acquire) - want) >= 0;
}

static void futex(const struct shm *g, struct word *w, int op, uint32_t val, const struct timespec *timeout)
{
    syscall(SYS_futex, &w->value, op | (g->region->process ? 0 : FUTEX_PRIVATE_FLAG), val, timeout, NULL, 0);
}

static void word_wake(const struct shm *g, struct word *w)
{
    if (atomic_load(&w->sleepers))
        futex(g, w, FUTEX_WAKE, INT_MAX, NULL);
}

/* The store and the look at the sleepers are sequentially consistent, as are a sleeper's announcement and its
 * look at the value: one of the two sees the other. */
static void word_set(const struct shm *g, struct word *w, uint32_t value)
{
    atomic_store(&w->value, value);
    word_wake(g, w);
}

static void word_sleep(const struct shm *g, struct word *w, uint32_t want)
{
    atomic_fetch_add(&w->sleepers, 1);
    uint32_t seen = atomic_load(&w->value);
    if ((int32_t)(seen - want) < 0)
        futex(g, w, FUTEX_WAIT, seen, &(struct timespec){.tv_nsec = WAKE_NS});
    atomic_fetch_sub(&w->sleepers, 1);
}

static void watch(struct shm *g, int rank)
{
    /* In this order: a rank that has closed the group may end the next moment. */
    if (rank == g->c.rank || !peer_dead(&g->peer[rank]) || atomic_load(&g->line[rank].left))
        return;
    char who[128];
    family_fault(g->family, "%s has died", peer_describe(&g->peer[rank], who, sizeof(who)));
}

/* Where the family's fault lies elsewhere (a group that was split from another), ranks that know of it leave
 * word here too: it must not look to the others as if they had just left. */
static void news_write(struct shm *g)
{
    struct err e;
    struct fault *here = &head_of(g)->fault;
    if (here != g->family->fault && family_check(g->family, &e))
        fault_set(here, e.msg);
}

static void news_read(struct shm *g)
{
    struct fault *here = &head_of(g)->fault;
    if (g->family->poll)
        g->family->poll(g->family);
    if (here != g->family->fault && atomic_load(&here->state) == FAULT_SET)
        family_fault(g->family, "%s", here->why);
}

/* Waits until `rank` has brought *w to `want`. */
static int word_wait(struct shm *g, struct word *w, uint32_t want, int rank, struct err *e)
{
    if (reached(w, want))
        return 0;
    struct wait wait = {.crowded = g->c.size * g->c.threads > g->cores};
    int64_t look = 0, look_around = 0;
    while (!reached(w, want)) {
        if (!wait_turn(&wait))
            continue;
        news_read(g);
        /* Left or dead, it may have done its part before: hence the second look at the word. */
        bool gone = atomic_load(&g->line[rank].left);
        if (gone && !reached(w, want)) {
            char who[128];
            family_fault(g->family, "%s has closed the group while others still wait for it",
                         peer_describe(&g->peer[rank], who, sizeof(who)));
        }
        if (g->region->process && wait.now >= look) {
            if (look)
                watch(g, rank);
            look = wait.now + WAKE_NS;
            if (wait.now >= look_around) {
                for (int r = 0; look_around && r < g->c.size; r++)
                    watch(g, r);
                look_around = wait.now + WATCH_NS;
            }
        }
        if (reached(w, want))
            return 0;
        int rc = family_check(g->family, e);
        if (rc)
            return rc;
        word_sleep(g, w, want);
    }
    return 0;
}

/* ---- rounds ----
 *
 * Collectives are made of rounds, numbered from 1, the same for all. In round k a rank may write its slot
 * k % 2, then posts k, then may read the slots of ranks that have posted k. Having posted k, a rank no longer
 * reads anything of round k-1. So slot k % 2, last used in round k-2, is free for writing once all have
 * posted k-1: round_begin waits for that, and needs to look only if the round before did not see all ranks.
 * No round needs a barrier at its end. */

static uint64_t tag_of(enum comm_kind kind, int root, size_t bytes)
{
    return (uint64_t)kind << 56 | (uint64_t)root << 44 | (bytes & (((uint64_t)1 << 44) - 1));
}

static int round_begin(struct shm *g, uint64_t tag, struct err *e)
{
    uint32_t last = g->round;
    if (g->met != last) {
        for (int i = 1; i < g->c.size; i++) {
            int r = (g->c.rank + i) % g->c.size;
            int rc = word_wait(g, &g->line[r].ready, last, r, e);
            if (rc)
                return rc;
        }
        g->met = last;
    }
    g->round = last + 1;
    g->line[g->c.rank].tag[g->round & 1] = tag;
    return 0;
}

static void round_post(struct shm *g)
{
    word_set(g, &g->line[g->c.rank].ready, g->round);
}

static void tag_describe(uint64_t tag, char *buf, size_t n)
{
    static const char *const name[COMM_KINDS] = {"barrier",        "bcast",     "allreduce",
                                                 "reduce_scatter", "allgather", "alltoall"};
    enum comm_kind kind = (enum comm_kind)(tag >> 56);
    int root = (int)(tag >> 44 & 0xfff);
    unsigned long long bytes = tag & (((uint64_t)1 << 44) - 1);
    if (kind == COMM_BARRIER || kind == COMM_ALLTOALL)
        snprintf(buf, n, "%s", name[kind]);
    else if (kind == COMM_BCAST)
        snprintf(buf, n, "bcast of %llu bytes from rank %d", bytes, root);
    else
        snprintf(buf, n, "%s of %llu bytes", name[kind], bytes);
}

static int disagree(struct shm *g, int rank, struct err *e)
{
    char me[128], other[128], mine[64], theirs[64];
    peer_describe(&g->peer[g->c.rank], me, sizeof(me));
    peer_describe(&g->peer[rank], other, sizeof(other));
    tag_describe(g->line[g->c.rank].tag[g->round & 1], mine, sizeof(mine));
    tag_describe(g->line[rank].tag[g->round & 1], theirs, sizeof(theirs));
    family_fault(g->family, "the ranks disagree: %s calls %s, %s calls %s", me, mine, other, theirs);
    return err_set(e, ERR_SPLIT, "the ranks disagree: %s calls %s, %s calls %s", me, mine, other, theirs);
}

static int round_wait(struct shm *g, int rank, struct err *e)
{
    int rc = word_wait(g, &g->line[rank].ready, g->round, rank, e);
    if (!rc && g->line[rank].tag[g->round & 1] != g->line[g->c.rank].tag[g->round & 1])
        rc = disagree(g, rank, e);
    return rc;
}

static int round_wait_all(struct shm *g, struct err *e)
{
    for (int i = 1; i < g->c.size; i++) {
        int rc = round_wait(g, (g->c.rank + i) % g->c.size, e);
        if (rc)
            return rc;
    }
    g->met = g->round;
    return 0;
}

/* ---- collectives ---- */

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from) /* NULL is fine with 0 bytes, for us if not for memcpy */
        memcpy(to, from, bytes);
}

static int shm_barrier(struct comm *c, struct err *e)
{
    struct shm *g = shm_of(c);
    int rc = family_check(g->family, e);
    if (!rc)
        rc = round_begin(g, tag_of(COMM_BARRIER, 0, 0), e);
    if (rc)
        return rc;
    round_post(g);
    return round_wait_all(g, e);
}

static int shm_bcast(struct comm *c, void *data, size_t bytes, int root, struct err *e)
{
    struct shm *g = shm_of(c);
    int rc = family_check(g->family, e);
    for (size_t at = 0; at < bytes && !rc; at += g->l.slot) {
        uint8_t *piece = (uint8_t *)data + at;
        size_t len = MIN(bytes - at, g->l.slot);
        if ((rc = round_begin(g, tag_of(COMM_BCAST, root, bytes), e)))
            break;
        if (c->rank == root) {
            memcpy(slot(g, root), piece, len);
            round_post(g);
        } else {
            round_post(g);
            if (!(rc = round_wait(g, root, e)))
                memcpy(piece, slot(g, root), len);
        }
    }
    return rc;
}

/* Everyone sums everything. */
static int reduce_one_shot(struct shm *g, float *x, size_t len, uint64_t tag, struct err *e)
{
    int rc = round_begin(g, tag, e);
    if (rc)
        return rc;
    memcpy(slot(g, g->c.rank), x, len * sizeof(float));
    round_post(g);
    if ((rc = round_wait_all(g, e)))
        return rc;
    for (int r = 0; r < g->c.size; r++)
        g->part[r] = r == g->c.rank ? x : (const float *)slot(g, r);
    tree_sum(x, g->part, g->c.size, len);
    return 0;
}

/* Where rank r's share of a piece begins: whole cache lines, so that two ranks never write the same one. */
static size_t share(size_t len, int n, int r)
{
    return MIN(len, ROUND_UP(len * (size_t)r / (size_t)n, LINE / sizeof(float)));
}

/* Everyone sums its share, then collects the others'. */
static int reduce_two_shot(struct shm *g, float *x, size_t len, uint64_t tag, struct err *e)
{
    int n = g->c.size, me = g->c.rank;
    size_t from = share(len, n, me), to = share(len, n, me + 1);
    int rc = round_begin(g, tag, e);
    if (rc)
        return rc;
    float *mine = (float *)slot(g, me);
    memcpy(mine, x, from * sizeof(float));
    memcpy(mine + to, x + to, (len - to) * sizeof(float));
    round_post(g);
    if ((rc = round_wait_all(g, e)))
        return rc;
    for (int r = 0; r < n; r++)
        g->part[r] = (r == me ? x : (const float *)slot(g, r)) + from;
    if ((rc = round_begin(g, tag, e)))
        return rc;
    mine = (float *)slot(g, me) + from;
    tree_sum(mine, g->part, n, to - from);
    round_post(g);
    memcpy(x + from, mine, (to - from) * sizeof(float));
    for (int i = 1; i < n; i++) {
        int r = (me + i) % n;
        if ((rc = round_wait(g, r, e)))
            return rc;
        from = share(len, n, r);
        to = share(len, n, r + 1);
        memcpy(x + from, (const float *)slot(g, r) + from, (to - from) * sizeof(float));
    }
    g->met = g->round;
    return 0;
}

static int shm_allreduce(struct comm *c, float *x, size_t n, struct err *e)
{
    struct shm *g = shm_of(c);
    const uint64_t tag = tag_of(COMM_ALLREDUCE, 0, n * sizeof(float));
    const size_t most = g->l.slot / sizeof(float);
    int rc = family_check(g->family, e);
    for (size_t at = 0, len; at < n && !rc; at += len) {
        len = MIN(n - at, most);
        /* Two ranks read as much either way. */
        if (c->size <= 2 || len * sizeof(float) * (size_t)c->size <= ONE_SHOT_BYTES)
            rc = reduce_one_shot(g, x + at, len, tag, e);
        else
            rc = reduce_two_shot(g, x + at, len, tag, e);
    }
    return rc;
}

static int shm_reduce_scatter(struct comm *c, const float *in, const size_t *count, float *out, struct err *e)
{
    struct shm *g = shm_of(c);
    int n = c->size, me = c->rank;
    size_t total = 0, longest = 0;
    for (int r = 0; r < n; r++) {
        total += count[r];
        longest = MAX(longest, count[r]);
    }
    const uint64_t tag = tag_of(COMM_REDUCE_SCATTER, 0, total * sizeof(float));
    /* A piece takes up to `most` floats of each part; packed, they fit a slot. */
    const size_t room = g->l.slot / sizeof(float), most = total <= room ? longest : room / (size_t)n;
    int rc = family_check(g->family, e);
    for (size_t at = 0; at < longest && !rc; at += most) {
        if ((rc = round_begin(g, tag, e)))
            break;
        float *mine = (float *)slot(g, me);
        size_t packed = 0, packed_me = 0, whole = 0, whole_me = 0, len_me = 0;
        for (int r = 0; r < n; r++) {
            size_t len = count[r] > at ? MIN(count[r] - at, most) : 0;
            if (r == me) {
                packed_me = packed;
                whole_me = whole;
                len_me = len;
            } else if (len) {
                memcpy(mine + packed, in + whole + at, len * sizeof(float));
            }
            packed += len;
            whole += count[r];
        }
        round_post(g);
        if ((rc = round_wait_all(g, e)) || !len_me)
            continue;
        for (int r = 0; r < n; r++)
            g->part[r] = r == me ? in + whole_me + at : (const float *)slot(g, r) + packed_me;
        tree_sum(out + at, g->part, n, len_me);
    }
    return rc;
}

static int shm_allgather(struct comm *c, const void *in, void *out, const size_t *bytes, struct err *e)
{
    struct shm *g = shm_of(c);
    int n = c->size, me = c->rank;
    size_t total = 0, longest = 0, at_me = 0;
    for (int r = 0; r < n; r++) {
        if (r == me)
            at_me = total;
        total += bytes[r];
        longest = MAX(longest, bytes[r]);
    }
    const uint64_t tag = tag_of(COMM_ALLGATHER, 0, total);
    int rc = family_check(g->family, e);
    if (!rc)
        copy((uint8_t *)out + at_me, in, bytes[me]);
    for (size_t at = 0; at < longest && !rc; at += g->l.slot) {
        if ((rc = round_begin(g, tag, e)))
            break;
        if (bytes[me] > at)
            memcpy(slot(g, me), (const uint8_t *)in + at, MIN(bytes[me] - at, g->l.slot));
        round_post(g);
        size_t whole = at_me; /* where part r begins; r goes round from me */
        for (int i = 1; i < n && !rc; i++) {
            int r = (me + i) % n;
            whole = r ? whole + bytes[r - 1] : 0;
            rc = round_wait(g, r, e);
            if (!rc && bytes[r] > at)
                memcpy((uint8_t *)out + whole + at, slot(g, r), MIN(bytes[r] - at, g->l.slot));
        }
        if (!rc)
            g->met = g->round;
    }
    return rc;
}

/* Each piece of a slot begins with where the part for each rank begins and ends in `in`, so that readers find
 * their part of the piece, and everyone knows how many pieces the longest message takes. */
static int shm_alltoall(struct comm *c, const void *in, const size_t *send_bytes, void *out,
                        const size_t *recv_bytes, struct err *e)
{
    struct shm *g = shm_of(c);
    const int n = c->size, me = c->rank;
    const size_t table = ((size_t)n + 1) * sizeof(uint64_t), room = g->l.slot - table;
    size_t longest = 1;
    int rc = family_check(g->family, e);
    for (size_t at = 0; at < longest && !rc; at += room) {
        if ((rc = round_begin(g, tag_of(COMM_ALLTOALL, 0, 0), e)))
            break;
        uint64_t *bounds = (uint64_t *)slot(g, me);
        bounds[0] = 0;
        for (int r = 0; r < n; r++)
            bounds[r + 1] = bounds[r] + send_bytes[r];
        if (bounds[n] > at)
            memcpy((uint8_t *)bounds + table, (const uint8_t *)in + at, MIN(bounds[n] - at, room));
        round_post(g);
        size_t whole = 0;
        for (int r = 0; r < n && !rc; r++) {
            if (r != me && (rc = round_wait(g, r, e)))
                break;
            const uint64_t *b = (const uint64_t *)slot(g, r);
            uint64_t begin = b[me], end = b[me + 1];
            longest = MAX(longest, (size_t)b[n]);
            if (end - begin != recv_bytes[r]) {
                char self[128], other[128];
                peer_describe(&g->peer[me], self, sizeof(self));
                peer_describe(&g->peer[r], other, sizeof(other));
                family_fault(g->family, "the ranks disagree: %s sends %llu bytes, %s expects %zu", other,
                             (unsigned long long)(end - begin), self, recv_bytes[r]);
                rc = err_set(e, ERR_SPLIT, "the ranks disagree: %s sends %llu bytes, %s expects %zu", other,
                             (unsigned long long)(end - begin), self, recv_bytes[r]);
                break;
            }
            uint64_t lo = MAX(begin, (uint64_t)at), hi = MIN(end, (uint64_t)at + room);
            if (lo < hi)
                memcpy((uint8_t *)out + whole + (lo - begin), (const uint8_t *)b + table + (lo - at),
                       hi - lo);
            whole += recv_bytes[r];
        }
        if (!rc)
            g->met = g->round;
    }
    return rc;
}

/* ---- point to point ----
 *
 * Each ordered pair has a ring of bytes in the sender's area. A message is its length, then its bytes. */

struct ring {
    struct chan *chan;
    uint8_t *data;
    size_t room; /* a power of two */
};

static struct ring ring_of(struct shm *g, int from, int to)
{
    return (struct ring){.chan = &g->chan[from * g->c.size + to],
                         .data = area(g, from) + 2 * g->l.slot + (size_t)to * g->l.chan,
                         .room = g->l.chan};
}

static void ring_put(const struct ring *r, uint32_t at, const uint8_t *p, size_t len)
{
    size_t i = at & (r->room - 1), first = MIN(len, r->room - i);
    memcpy(r->data + i, p, first);
    memcpy(r->data, p + first, len - first);
}

static void ring_get(const struct ring *r, uint32_t at, uint8_t *p, size_t len)
{
    size_t i = at & (r->room - 1), first = MIN(len, r->room - i);
    memcpy(p, r->data + i, first);
    memcpy(p + first, r->data, len - first);
}

static int shm_send(struct comm *c, const void *data, size_t bytes, int to, struct err *e)
{
    struct shm *g = shm_of(c);
    struct ring ring = ring_of(g, c->rank, to);
    uint32_t head = atomic_load_explicit(&ring.chan->head.value, memory_order_relaxed);
    const uint64_t length = bytes;
    int rc = family_check(g->family, e);
    if (!rc) /* room for the length */
        rc = word_wait(g, &ring.chan->tail, head + (uint32_t)sizeof(length) - (uint32_t)ring.room, to, e);
    if (rc)
        return rc;
    ring_put(&ring, head, (const uint8_t *)&length, sizeof(length));
    head += sizeof(length);
    for (size_t at = 0;;) {
        uint32_t tail = atomic_load_explicit(&ring.chan->tail.value, memory_order_acquire);
        size_t len = MIN(bytes - at, ring.room - (head - tail));
        /* In quarters, so that the receiver copies the first while we copy the second. */
        len = MIN(len, ring.room / 4);
        if (len)
            ring_put(&ring, head, (const uint8_t *)data + at, len);
        head += (uint32_t)len;
        at += len;
        word_set(g, &ring.chan->head, head);
        if (at == bytes)
            return 0;
        if ((rc = word_wait(g, &ring.chan->tail, head + 1 - (uint32_t)ring.room, to, e)))
            return rc;
    }
}

static int shm_recv(struct comm *c, void *data, size_t bytes, int from, struct err *e)
{
    struct shm *g = shm_of(c);
    struct ring ring = ring_of(g, from, c->rank);
    uint32_t tail = atomic_load_explicit(&ring.chan->tail.value, memory_order_relaxed);
    uint64_t length;
    int rc = family_check(g->family, e);
    if (!rc)
        rc = word_wait(g, &ring.chan->head, tail + (uint32_t)sizeof(length), from, e);
    if (rc)
        return rc;
    ring_get(&ring, tail, (uint8_t *)&length, sizeof(length));
    if (length != bytes) {
        char self[128], other[128];
        peer_describe(&g->peer[c->rank], self, sizeof(self));
        peer_describe(&g->peer[from], other, sizeof(other));
        family_fault(g->family, "the ranks disagree: %s sends %llu bytes, %s expects %zu", other,
                     (unsigned long long)length, self, bytes);
        return err_set(e, ERR_SPLIT, "the ranks disagree: %s sends %llu bytes, %s expects %zu", other,
                       (unsigned long long)length, self, bytes);
    }
    tail += sizeof(length);
    for (size_t at = 0; at < bytes;) {
        if ((rc = word_wait(g, &ring.chan->head, tail + 1, from, e)))
            return rc;
        uint32_t head = atomic_load_explicit(&ring.chan->head.value, memory_order_acquire);
        size_t len = MIN(MIN(bytes - at, (size_t)(head - tail)), ring.room / 4);
        ring_get(&ring, tail, (uint8_t *)data + at, len);
        tail += (uint32_t)len;
        at += len;
        if (at < bytes)
            word_set(g, &ring.chan->tail, tail);
    }
    word_set(g, &ring.chan->tail, tail);
    return 0;
}

/* ---- life and death ---- */

static void shm_abort(struct comm *c, const char *why)
{
    struct shm *g = shm_of(c);
    char who[128];
    family_fault(g->family, "%s gave up: %s", peer_describe(&g->peer[c->rank], who, sizeof(who)), why);
    news_write(g);
    /* Wakes those who sleep in this group; in the others of the family they look within WAKE_NS. */
    for (int r = 0; r < c->size; r++)
        word_wake(g, &g->line[r].ready);
    for (int i = 0; i < c->size * c->size; i++) {
        word_wake(g, &g->chan[i].head);
        word_wake(g, &g->chan[i].tail);
    }
}

static void shm_close(struct comm *c)
{
    struct shm *g = shm_of(c);
    news_write(g);
    atomic_store(&g->line[c->rank].left, 1);
    family_unref(g->family);
    region_unref(g->region);
    xfree(g->part);
    xfree(g->peer);
    xfree(g);
}

int shm_threads_new(int n, size_t max_bytes, struct comm **ret, struct err *e)
{
    if (n < 1 || n > SHM_RANKS_MOST)
        return err_set(e, ERR_LIMIT, "a group of %d threads; 1 to %d are possible", n, SHM_RANKS_MOST);
    struct layout l = layout_for(n, max_bytes);
    struct region *region = region_threads(n, n, &l, e);
    if (!region)
        return e ? e->code : ERR_MEMORY;
    for (int r = 0; r < n; r++) {
        struct shm *g = endpoint_new(region, NULL, r, n, max_bytes);
        card_write(g, r, r);
        ret[r] = &g->c;
    }
    for (int r = 0; r < n; r++)
        cards_read(shm_of(ret[r]));
    return 0;
}

/* ---- splitting ---- */

struct want { /* what each rank asks for */
    int color, key;
};

struct ticket { /* what the first rank of each new group tells the others */
    int rc;     /* 0, or why there is no region */
    int pid, fd;
    size_t total;
    uint64_t nonce;
    struct region *region; /* threads */
    char why[512];
};

static int gather(struct comm *parent, const void *mine, void *all, size_t bytes, struct err *e)
{
    size_t *each;
    XNEW_N(each, (size_t)parent->size);
    for (int r = 0; r < parent->size; r++)
        each[r] = bytes;
    int rc = parent->ops->allgather(parent, mine, all, each, e);
    xfree(each);
    return rc;
}

/* The first failure in rank order, the same for all. */
static int first_failure(struct comm *parent, const struct ticket *t, struct err *e)
{
    for (int r = 0; r < parent->size; r++) {
        char who[128];
        if (t[r].rc)
            return err_set(e, t[r].rc, "%s: %s", comm_describe(parent, r, who, sizeof(who)), t[r].why);
    }
    return 0;
}

static void ticket_refuse(struct ticket *t, const struct err *e)
{
    t->rc = e->code;
    snprintf(t->why, sizeof(t->why), "%.*s", (int)sizeof(t->why) - 1, e->msg);
}

static int split(struct comm *parent, int color, int key, size_t max_bytes, struct family *f, bool process,
                 struct comm **ret, struct err *e)
{
    int n = 0, me = 0, leader = -1, rc;
    bool refused = false;
    struct want mine = {color, key}, *want;
    struct ticket *ticket;
    struct shm *g = NULL;
    struct region *region = NULL;
    XNEW_N(want, (size_t)parent->size);
    XNEW_N(ticket, (size_t)parent->size + 1); /* the last: my own */
    struct ticket *own = &ticket[parent->size];
    struct err why = {0};

    if ((rc = gather(parent, &mine, want, sizeof(mine), e)))
        goto done;
    for (int r = 0; color >= 0 && r < parent->size; r++) {
        if (want[r].color != color)
            continue;
        n++;
        me += want[r].key < key || (want[r].key == key && r < parent->rank);
        if (leader < 0 || want[r].key < want[leader].key)
            leader = r;
    }

    /* The first of each group makes its region. */
    if (leader == parent->rank) {
        if (n > SHM_RANKS_MOST) {
            err_set(&why, ERR_LIMIT, "%d ranks share memory; at most %d can", n, SHM_RANKS_MOST);
        } else {
            struct layout l = layout_for(n, max_bytes);
            own->nonce = (uint64_t)clock_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)getpid() << 40;
            own->total = l.total;
            if (process)
                region = region_make(n, &l, own->nonce, &why);
            else
                region = region_threads(n, n, &l, &why);
        }
        own->pid = getpid();
        own->fd = region ? region->fd : -1;
        own->region = region;
        if (!region)
            ticket_refuse(own, &why);
    }
    if ((rc = gather(parent, own, ticket, sizeof(*own), e)))
        goto done;
    if ((rc = first_failure(parent, ticket, e))) {
        refused = true; /* by all: nobody opens anything */
        goto done;
    }

    /* The others open it; everyone moves into its own area. */
    if (leader >= 0 && leader != parent->rank)
        region = process ? region_open(ticket[leader].pid, ticket[leader].fd, ticket[leader].nonce,
                                       ticket[leader].total, &why)
                         : ticket[leader].region;
    if (region) {
        g = endpoint_new(region, f ? family_ref(f) : NULL, me, n, max_bytes);
        card_write(g, me, parent->peer[parent->rank].rank);
        if (process)
            region_populate(region->fd, g->l.areas + (size_t)me * g->l.area, g->l.area, &why);
        g->c.threads = parent->threads;
    }
    memset(own, 0, sizeof(*own));
    if (why.code)
        ticket_refuse(own, &why);
    if ((rc = gather(parent, own, ticket, sizeof(*own), e)) || (rc = first_failure(parent, ticket, e)))
        goto done;
    if (region && region->fd >= 0) {
        close(region->fd);
        region->fd = -1;
    }
    if (g)
        cards_read(g);
    *ret = g ? &g->c : NULL;

done:
    xfree(want);
    xfree(ticket);
    if (rc && g) {
        shm_close(&g->c);
    } else if (rc && region && (process || refused)) {
        /* Threads whose gather failed: others may hold the region by now, so it is left to them. */
        atomic_store(&region->refs, 1);
        region_unref(region);
    }
    return rc;
}

int shm_processes_split(struct comm *parent, int color, int key, size_t max_bytes, struct family *f,
                        struct comm **ret, struct err *e)
{
    return split(parent, color, key, max_bytes, f, true, ret, e);
}

static int shm_split(struct comm *c, int color, int key, struct comm **ret, struct err *e)
{
    struct shm *g = shm_of(c);
    int rc = family_check(g->family, e);
    return rc ? rc : split(c, color, key, g->max_bytes, g->family, g->region->process, ret, e);
}

const struct comm_ops shm_thread_ops = {"threads",          shm_barrier,   shm_bcast,    shm_allreduce,
                                        shm_reduce_scatter, shm_allgather, shm_alltoall, shm_send,
                                        shm_recv,           shm_split,     shm_abort,    shm_close};
const struct comm_ops shm_process_ops = {"mpi/shm",          shm_barrier,   shm_bcast,    shm_allreduce,
                                         shm_reduce_scatter, shm_allgather, shm_alltoall, shm_send,
                                         shm_recv,           shm_split,     shm_abort,    shm_close};
