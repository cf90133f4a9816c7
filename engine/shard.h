/* shard.h: writes a shard set: each rank's packed weights, as its plan lists them, into its own file.
 *
 * One rank after the other, and of a rank a few weights at a time: what is in memory at once is WINDOW_BYTES
 * (256 MiB), the largest single weight, or one expert. The source may be a shard set itself: then it is cut
 * anew.
 */
#ifndef YOKE_ENGINE_SHARD_H
#define YOKE_ENGINE_SHARD_H

#include "engine/load.h"

struct shard_options {
    const char *out;        /* the folder to write */
    const char *config_dir; /* where the configuration and the tokenizer are; NULL: beside the weights */
    const char *yoke;       /* this program's version, for the manifest */
    int tp, pp, dp, ep;     /* 0 counts as 1; dp matters only where experts are spread over replicas */
    enum quant quant;
    int threads;
    bool full;                  /* the source's files' own SHA-256 go into the manifest */
    load_progress_fn *progress; /* bytes written, of all ranks; may be NULL */
    void *progress_ctx;
};
int shard_write(const struct checkpoint *c, const struct graph *g, const struct shard_options *o,
                struct warn_sink *warn, struct err *e);

/* enum quant as manifests say it: "none", "w8a8", "w4" */
const char *shard_quant_name(enum quant q);

#endif
