/* slices.h: a rank's weights out of a shard set: mapped as they are where the set was written for this plan,
 * or cut anew out of the ranks' files where it was not.
 *
 * The plan says what is needed, the manifest what is there; they are compared weight by weight, and nothing
 * else (degrees, versions, hashes) decides whether a file may be mapped. Cutting anew moves packed codes and
 * scales (wmat_copy), so the result has the bits of a load from the checkpoint. int8 weights (w8a8) carry a
 * scale for each chunk of the summation tree: only degrees that cut at the same chunks can be made of each
 * other; all that divide 8 do.
 */
#ifndef YOKE_ENGINE_SLICES_H
#define YOKE_ENGINE_SLICES_H

#include "exec/weights.h"
#include "formats/shardset.h"

/* How many ranks a set for this split has, and which of them a plan is the program of: tensor-parallel ranks
 * of the first stage come first, then those of the next. Replicas map the same files, unless experts are
 * spread over them: then the next replica's ranks follow. */
int slices_n_ranks(const struct plan *p);
int slices_rank(const struct plan *p);
/* 0 if the file of the plan's rank is exactly the plan's image; else ERR_SPLIT, saying where they part. */
int slices_fit(const struct shardset *s, const struct plan *p, struct err *e);
/* For a set that fits. */
int slices_map(const struct shardset *s, const struct plan *p, struct weights **ret, struct err *e);

/* All ranks' files, for cutting anew. all: all of the plan's weights will be cut, so that reading ahead is
 * worth it. */
struct slices;
int slices_open(const struct shardset *s, const struct plan *p, bool all, struct slices **ret, struct err *e);
void slices_close(struct slices *x); /* NULL is fine */
/* Rows [row0, row0 + n_rows) of matrix `member` of the stack of weight i, all its local columns; a vector is
 * one row. w is zeroed there. Different panels may be cut by different threads. */
int slices_cut(const struct slices *x, struct weights *w, int32_t i, int32_t member, int32_t row0,
               int32_t n_rows, struct err *e);

#endif
