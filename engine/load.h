/* load.h: from a checkpoint on disk to one rank's packed weights.
 *
 * A rank reads exactly the slices that its plan lists, in pieces of a few megabytes, and packs each on the
 * thread that read it. Shapes are checked before the first byte is read; every misfit is named. From a shard
 * set there is nothing to read: its files are mapped.
 */
#ifndef YOKE_ENGINE_LOAD_H
#define YOKE_ENGINE_LOAD_H

#include "exec/weights.h"
#include "formats/checkpoint.h"

/* A plan's view of a checkpoint's tensors. */
struct checkpoint_source {
    struct weight_source base; /* first */
    const struct checkpoint *checkpoint;
};
void checkpoint_source_init(struct checkpoint_source *s, const struct checkpoint *c);

/* Compares what the graph computes with and what is there: missing and misshapen tensors are one error that
 * names them all; tensors that nothing uses are one warning. */
int load_check(const struct checkpoint *c, const struct graph *g, struct warn_sink *warn, struct err *e);

/* done, total: bytes read so far and in all, by this rank. Called from the loading thread only. */
typedef void load_progress_fn(void *ctx, uint64_t done, uint64_t total);

struct load_options {
    int threads;  /* how many read and pack at once */
    bool reslice; /* a shard set that was written for another split is cut anew; otherwise that is an error */
    bool verify;  /* a shard set's bytes are compared with their sums first */
    uint64_t expert_cache;  /* bytes of memory for experts; 0, or more than they take: all are in memory */
    const char *spill_dir;  /* for the others, unless a set has them (records.h); NULL: as TMPDIR says */
    struct warn_sink *warn; /* may be NULL */
    load_progress_fn *progress; /* may be NULL */
    void *progress_ctx;
};
/* A checkpoint is read and packed, a shard set that fits the plan is mapped (slices.h). With fewer slots in
 * expert_cache than experts in a layer: ERR_MEMORY, saying how much there must be. */
int load_weights(const struct checkpoint *c, const struct plan *p, const struct load_options *o,
                 struct weights **ret, struct err *e);
/* Fills w, as weights_new or weights_new_part made it; a shard set is always cut anew. */
int load_into(const struct checkpoint *c, struct weights *w, const struct load_options *o, struct err *e);

#endif
