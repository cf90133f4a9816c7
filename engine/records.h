/* records.h: the files that a rank's experts are read from when they are larger than its memory
 * (exec/cache.h).
 *
 * Where the model is a shard set that fits the plan, the rank's own file has them as they are wanted. From
 * anything else they are loaded once, some at a time, and written to a temporary file, which has no name any
 * more and goes with the process.
 *
 * Reads go past the page cache (O_DIRECT), or, where a file system has no such thing, are dropped from it
 * again: or it would fill what memory there is with a second copy of the experts.
 */
#ifndef YOKE_ENGINE_RECORDS_H
#define YOKE_ENGINE_RECORDS_H

#include "engine/load.h"

/* For a set that fits (slices_fit). Plan and set outlive the reader. */
int records_of_set(const struct shardset *s, const struct plan *p, struct record_reader **ret, struct err *e);
/* o: folder, threads, progress, warnings. A folder without room is an error before anything is read. */
int records_spill(const struct checkpoint *c, const struct plan *p, const struct load_options *o,
                  struct record_reader **ret, struct err *e);

#endif
