/* load.h: from a checkpoint on disk to one rank's packed weights.
 *
 * A rank reads exactly the slices that its plan lists, in pieces of a few megabytes, and packs each on the
 * thread that read it. Shapes are checked before the first byte is read; every misfit is named.
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
/* threads: how many read and pack at once. */
int load_weights(const struct checkpoint *c, const struct plan *p, int threads, load_progress_fn *progress,
                 void *ctx, struct weights **ret, struct err *e);

#endif
