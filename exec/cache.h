/* cache.h: a rank's experts in less memory than they take: some are held, the others are read as the router
 * chooses them.
 *
 * Memory is a number of slots for one record each (exec/weights.h), allocated once. A layer's step goes so:
 * member 0 of the pool, which has sorted the tick's choices, says which experts the layer wants
 * (expert_cache_want). For each one that is not here it gives away the slot whose record is worth least, and
 * leaves the reading to the cache's own threads. All members compute with the experts that are here, then
 * with the others, in the order in which they are read, each as it comes (expert_cache_wait). Slots of the
 * step in progress are not given away; the next want is the end of that, and comes after all members have
 * left the step (the plan has barriers between). There are at least as many slots as a layer has experts, so
 * a step never has to be done in parts. Products do not know where a matrix lies: the bits are those of a run
 * with all experts in memory.
 *
 * What is kept: what is chosen often, of late. A token passes all layers and the next one begins again, a
 * loop over far more records than there are slots: the least recently used record is then the one that comes
 * next, so that rule would keep the wrong ones, and each prompt would flush it, for it touches almost
 * everything once. Here every layer step that wants a record makes it worth 1 more, and what it was worth
 * before halves every CACHE_HALF_LIFE ticks (LRFU: Lee et al., IEEE Transactions on Computers 50(12), 2001).
 * A record keeps its worth while it is not held. All worths shrink at one rate, so their order does not
 * change by waiting: kept is log2(worth) + ticks / CACHE_HALF_LIFE, which only use changes, and a heap has
 * the least at its top.
 *
 * Not done: reading ahead of the router. What the last token chose in a layer is what was used last, and
 * mostly here anyway; and any guess costs a slot, and time of a disk that has to read what is certain.
 *
 * A read that fails leaves its slot as it is. Waiting for it ends like for any other, the error is kept for
 * expert_cache_failed: the tick has failed, and nobody will look at its numbers.
 *
 * Owner: the weights (weights.h). want, order and failed belong to one thread; wait is for all. Nothing is
 * allocated after expert_cache_new.
 */
#ifndef YOKE_EXEC_CACHE_H
#define YOKE_EXEC_CACHE_H

#include "plan/plan.h"

#define CACHE_HALF_LIFE 128 /* ticks; docs/speed.md has others' hit rates */
#define CACHE_READERS   4   /* threads: a disk wants several reads at once, of a megabyte or so each */

/* Where records come from; made by who knows files. */
struct record_reader {
    /* Record `member` of plan->expert_layers[layer], all its bytes; `to` is at a multiple of RECORD_ALIGN.
     * From several threads at once. */
    int (*read)(const struct record_reader *x, int32_t layer, int32_t member, void *to, struct err *e);
    void (*close)(struct record_reader *x);
};

struct expert_cache;
/* slots: as plan_cache says, at least `least` of it. The reader is the cache's from then on, on success only;
 * the plan is borrowed. */
int expert_cache_new(const struct plan *p, int32_t slots, struct record_reader *reader,
                     struct expert_cache **ret, struct err *e);
void expert_cache_free(struct expert_cache *c); /* waits for reads that have begun; NULL is fine */

/* The experts of plan->expert_layers[layer] that have pairs: expert i of this rank's has those from first[i]
 * to first[i + 1]. Starts the reads. */
void expert_cache_want(struct expert_cache *c, int32_t layer, const int32_t *first);
/* What was wanted, in the order in which to compute: those that were here, *ret_here of them, then the
 * others. Valid until the next want. */
const int32_t *expert_cache_order(const struct expert_cache *c, int32_t *ret_here, int32_t *ret_n);
/* The record of an expert that was wanted; waits until it is here. ith: the pool's member; time is taken of
 * the first one. */
uint8_t *expert_cache_wait(struct expert_cache *c, int32_t member, int ith);
/* The first read that failed, ever; 0: none. */
int expert_cache_failed(struct expert_cache *c, struct err *e);

/* Reads become events of the threads [first, first + CACHE_READERS) of the timeline, which is borrowed until
 * another one is given, or NULL. Not while something is being read. */
struct trace;
void expert_cache_trace(struct expert_cache *c, struct trace *t, int first);

struct expert_cache_stats {
    int32_t records, slots, held; /* all there are; how many there is room for; that are here now */
    size_t memory_bytes;
    uint64_t hits, misses; /* records that a layer's step wanted, and found here or not */
    uint64_t read_bytes;
    uint64_t wait_ns; /* of the pool's first member */
};
void expert_cache_stats(struct expert_cache *c, struct expert_cache_stats *ret);

#endif
