/* source.h: which checkpoint something was made from, and whether it is still that one.
 *
 * A record, kept as JSON in what was made:
 *
 *     {"path": "/models/q", "hash": "sha256:...", "files": [{"name": "config.json", "bytes": 663,
 *      "mtime_ns": 1700000000000000000}, {"name": "model.safetensors", ..., "sha256": "..."}]}
 *
 * path is the folder of the files, absolute. hash is SHA-256 over, for each weight file in the order of
 * names: its name and a 0; its size (u64, little-endian); its bytes up to the first tensor's, which are its
 * directory of tensors and a GGUF's whole metadata; and of each tensor, in the order of their bytes, the 256
 * bytes in its middle (all, if it has fewer); then, for a folder, the configuration as sorted, compact JSON.
 * Training or quantising again changes it; copying, downloading again or touching the files does not.
 *
 * Comparing is cheap where nothing happened: sizes and modification times are those of the record, and that
 * is all that is looked at, as git does. Where they differ, the hash decides. sha256 is there if the record
 * was made in full: then comparing in full reads every byte.
 */
#ifndef YOKE_FORMATS_SOURCE_H
#define YOKE_FORMATS_SOURCE_H

#include <stdbool.h>
#include <jansson.h>
#include "base/err.h"
#include "formats/checkpoint.h"

/* full: the files' own SHA-256 too. The caller json_decref()s. */
int source_describe(const struct checkpoint *c, bool full, json_t **ret, struct err *e);

enum source_state { SOURCE_SAME, SOURCE_AWAY /* not there, or not readable */ };
/* A source that changed is ERR_FORMAT, saying what and where. config_dir: where the configuration is if it is
 * not beside the weights. */
int source_compare(const json_t *record, const char *config_dir, bool full, enum source_state *ret,
                   struct err *e);

#endif
