#include "exec/cache.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include "base/clock.h"
#include "base/mem.h"
#include "exec/trace.h"

enum slot_state { SLOT_READY, SLOT_READING, SLOT_FAILED };

struct place {
    int32_t layer, member; /* -1: empty */
    int32_t at;            /* in the heap; -1: it may not be given away */
    _Atomic int state;     /* enum slot_state */
};

/* The lock guards the queue, `quit`, `err` and what readers count; all else is the wanting thread's, but for
 * `state`, which a reader changes when the record is there. */
struct expert_cache {
    const struct plan *plan;
    struct record_reader *reader;
    size_t slot_bytes;
    uint8_t *memory;    /* [n_slots] */
    struct place *slot; /* [n_slots] */
    int32_t n_records, n_slots, n_held;
    int32_t *record0; /* [expert layers]: the number of the layer's first record */
    int32_t *slot_of; /* [n_records]; -1: not here */
    double *worth;    /* [n_records]: log2 of it, plus ticks / CACHE_HALF_LIFE */
    int32_t *heap;    /* slots that may be given away, the least worth on top */
    int32_t n_heap;
    uint64_t wants; /* calls: as many a tick as there are layers with experts */
    int32_t layer;  /* the step in progress */
    int32_t *order; /* [least]: its experts */
    int32_t n_here, n_wanted;
    uint64_t hits, misses, wait_ns;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int32_t *queue; /* [n_slots], a ring: slots to be read into */
    int64_t asked, taken;
    bool quit;
    struct err err;
    _Atomic bool failed;
    uint64_t read_bytes;
    struct reader {
        struct expert_cache *cache;
        pthread_t thread;
    } readers[CACHE_READERS];
    int n_readers;
    struct trace *trace; /* NULL: none wanted */
    int trace_first;
};

/* --- the heap --- */

static double worth_of(const struct expert_cache *c, int32_t slot)
{
    const struct place *x = &c->slot[slot];
    return x->layer < 0 ? -INFINITY : c->worth[c->record0[x->layer] + x->member];
}

static void put(struct expert_cache *c, int32_t at, int32_t slot)
{
    c->heap[at] = slot;
    c->slot[slot].at = at;
}

/* Puts a slot at a place that is free, or where those above are worth more, or those below less. */
static void settle(struct expert_cache *c, int32_t at, int32_t slot)
{
    double worth = worth_of(c, slot);
    for (int32_t up; at && worth < worth_of(c, c->heap[up = (at - 1) / 2]); at = up)
        put(c, at, c->heap[up]);
    for (int32_t down; (down = 2 * at + 1) < c->n_heap; at = down) {
        if (down + 1 < c->n_heap && worth_of(c, c->heap[down + 1]) < worth_of(c, c->heap[down]))
            down++;
        if (worth <= worth_of(c, c->heap[down]))
            break;
        put(c, at, c->heap[down]);
    }
    put(c, at, slot);
}

static void add(struct expert_cache *c, int32_t slot)
{
    settle(c, c->n_heap++, slot);
}

static void take_out(struct expert_cache *c, int32_t slot)
{
    int32_t at = c->slot[slot].at, last = c->heap[--c->n_heap];
    c->slot[slot].at = -1;
    if (slot != last)
        settle(c, at, last);
}

/* --- readers --- */

static void read_into(struct expert_cache *c, int32_t slot, int reader, struct err *e)
{
    const struct place *x = &c->slot[slot];
    int64_t since = c->trace ? clock_ns() : 0;
    c->reader->read(c->reader, x->layer, x->member, c->memory + c->slot_bytes * (size_t)slot, e);
    if (c->trace) {
        const struct expert_layer *l = &c->plan->expert_layers[x->layer];
        trace_add(c->trace, c->trace_first + reader, TRACE_READ - l->layer, since,
                  l->stack.begin + x->member);
    }
}

static void *read_records(void *arg)
{
    const struct reader *me = arg;
    struct expert_cache *c = me->cache;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->taken == c->asked && !c->quit)
            pthread_cond_wait(&c->work, &c->lock);
        if (c->quit)
            break;
        int32_t slot = c->queue[c->taken++ % c->n_slots];
        struct place *x = &c->slot[slot];
        struct err err = {0};
        pthread_mutex_unlock(&c->lock);
        read_into(c, slot, (int)(me - c->readers), &err);
        pthread_mutex_lock(&c->lock);
        if (err.code && !c->err.code) {
            c->err = err;
            atomic_store(&c->failed, true);
        }
        c->read_bytes += err.code ? 0 : c->plan->expert_layers[x->layer].bytes;
        atomic_store_explicit(&x->state, err.code ? SLOT_FAILED : SLOT_READY, memory_order_release);
        pthread_cond_broadcast(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* --- life --- */

int expert_cache_new(const struct plan *p, int32_t slots, struct record_reader *reader,
                     struct expert_cache **ret, struct err *e)
{
    struct plan_cache all;
    struct expert_cache *c;
    plan_cache(p, 0, &all);
    assert(slots >= all.least && slots > 0);
    XNEW(c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->done, NULL);
    c->plan = p;
    c->n_records = all.records;
    c->n_slots = slots;
    c->slot_bytes = all.slot_bytes;
    XNEW_N(c->record0, (size_t)p->n_expert_layers);
    for (int32_t i = 1; i < p->n_expert_layers; i++)
        c->record0[i] = c->record0[i - 1] + range_n(p->expert_layers[i - 1].stack);
    XNEW_N(c->slot_of, (size_t)c->n_records);
    XNEW_N(c->worth, (size_t)c->n_records);
    for (int32_t i = 0; i < c->n_records; i++) {
        c->slot_of[i] = -1;
        c->worth[i] = -INFINITY;
    }
    XNEW_N(c->slot, (size_t)slots);
    XNEW_N(c->heap, (size_t)slots);
    XNEW_N(c->queue, (size_t)slots);
    XNEW_N(c->order, (size_t)all.least);
    for (int32_t i = 0; i < slots; i++) {
        c->slot[i].layer = -1;
        add(c, i);
    }
    int rc = ERR_MEMORY;
    c->memory = big_alloc(c->slot_bytes * (size_t)slots, "the experts' cache (--expert-cache)", e);
    if (!c->memory)
        goto fail;
    for (; c->n_readers < CACHE_READERS; c->n_readers++) {
        struct reader *x = &c->readers[c->n_readers];
        x->cache = c;
        rc = pthread_create(&x->thread, NULL, read_records, x);
        if (rc) {
            rc = err_set(e, ERR_FAIL, "cannot start a thread that reads experts (error %d)", rc);
            goto fail;
        }
    }
    c->reader = reader; /* nobody has asked for a record yet */
    *ret = c;
    return 0;
fail:
    expert_cache_free(c);
    return rc;
}

void expert_cache_free(struct expert_cache *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->n_readers; i++)
        pthread_join(c->readers[i].thread, NULL);
    pthread_cond_destroy(&c->done);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->lock);
    if (c->reader)
        c->reader->close(c->reader);
    big_free(c->memory, c->slot_bytes * (size_t)c->n_slots);
    xfree(c->record0);
    xfree(c->slot_of);
    xfree(c->worth);
    xfree(c->slot);
    xfree(c->heap);
    xfree(c->queue);
    xfree(c->order);
    xfree(c);
}

/* --- a layer's step --- */

/* The last step's slots may be given away again; one whose read failed holds nothing. */
static void release_step(struct expert_cache *c)
{
    for (int32_t i = 0; i < c->n_wanted; i++) {
        int32_t *of = &c->slot_of[c->record0[c->layer] + c->order[i]], slot = *of;
        assert(atomic_load(&c->slot[slot].state) != SLOT_READING);
        if (atomic_load(&c->slot[slot].state) == SLOT_FAILED) {
            c->slot[slot].layer = *of = -1;
            c->n_held--;
        }
        add(c, slot);
    }
}

static void use(struct expert_cache *c, int32_t record)
{
    double now = (double)c->wants / c->plan->n_expert_layers / CACHE_HALF_LIFE;
    c->worth[record] = now + log2(1 + exp2(c->worth[record] - now));
}

/* Gives the least worth's slot to an expert of the layer, and its number to the readers. Under the lock. */
static void ask(struct expert_cache *c, int32_t member)
{
    int32_t slot = c->heap[0];
    struct place *x = &c->slot[slot];
    take_out(c, slot);
    if (x->layer >= 0)
        c->slot_of[c->record0[x->layer] + x->member] = -1;
    else
        c->n_held++;
    x->layer = c->layer;
    x->member = member;
    c->slot_of[c->record0[c->layer] + member] = slot;
    atomic_store(&x->state, SLOT_READING);
    c->queue[c->asked++ % c->n_slots] = slot;
}

void expert_cache_want(struct expert_cache *c, int32_t layer, const int32_t *first)
{
    int32_t n = range_n(c->plan->expert_layers[layer].stack);
    release_step(c);
    c->layer = layer;
    c->n_here = c->n_wanted = 0;
    const int32_t *slot_of = c->slot_of + c->record0[layer];
    for (int32_t i = 0; i < n; i++) {
        if (first[i] == first[i + 1])
            continue;
        if (slot_of[i] >= 0) {
            take_out(c, slot_of[i]); /* while its worth is what the heap was made by */
            c->order[c->n_here++] = i;
        }
        use(c, c->record0[layer] + i);
    }
    c->n_wanted = c->n_here;
    pthread_mutex_lock(&c->lock);
    for (int32_t i = 0; i < n; i++)
        if (first[i] != first[i + 1] && slot_of[i] < 0) {
            ask(c, i);
            c->order[c->n_wanted++] = i;
        }
    if (c->n_wanted > c->n_here)
        pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    c->hits += (uint64_t)c->n_here;
    c->misses += (uint64_t)(c->n_wanted - c->n_here);
    c->wants++;
}

const int32_t *expert_cache_order(const struct expert_cache *c, int32_t *ret_here, int32_t *ret_n)
{
    *ret_here = c->n_here;
    *ret_n = c->n_wanted;
    return c->order;
}

uint8_t *expert_cache_wait(struct expert_cache *c, int32_t member, int ith)
{
    int32_t slot = c->slot_of[c->record0[c->layer] + member];
    struct place *x = &c->slot[slot];
    if (atomic_load_explicit(&x->state, memory_order_acquire) == SLOT_READING) {
        int64_t before = clock_ns();
        pthread_mutex_lock(&c->lock);
        while (atomic_load(&x->state) == SLOT_READING)
            pthread_cond_wait(&c->done, &c->lock);
        pthread_mutex_unlock(&c->lock);
        if (ith == 0)
            c->wait_ns += (uint64_t)(clock_ns() - before);
    }
    return c->memory + c->slot_bytes * (size_t)slot;
}

int expert_cache_failed(struct expert_cache *c, struct err *e)
{
    if (!atomic_load(&c->failed))
        return 0;
    pthread_mutex_lock(&c->lock);
    int rc = c->err.code;
    if (e)
        *e = c->err;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void expert_cache_trace(struct expert_cache *c, struct trace *t, int first)
{
    c->trace = t;
    c->trace_first = first;
}

void expert_cache_stats(struct expert_cache *c, struct expert_cache_stats *ret)
{
    *ret = (struct expert_cache_stats){.records = c->n_records,
                                       .slots = c->n_slots,
                                       .held = c->n_held,
                                       .memory_bytes = c->slot_bytes * (size_t)c->n_slots,
                                       .hits = c->hits,
                                       .misses = c->misses,
                                       .wait_ns = c->wait_ns};
    pthread_mutex_lock(&c->lock);
    ret->read_bytes = c->read_bytes;
    pthread_mutex_unlock(&c->lock);
}
