/* checkpoint.h: a model on disk, whatever its format, seen in one way: the Hugging Face way.
 *
 * A checkpoint is a folder with config.json and safetensors (one file, or many with an index), or a GGUF
 * file. It offers a configuration in the form of config.json, tensors under their Hugging Face names with
 * PyTorch's shapes, and reads of rectangular slices, so that a rank reads only its own bytes.
 *
 * For a GGUF, the configuration is made from its metadata ("architectures", "model_type", "hidden_size", ...)
 * and tensor names are mapped (blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight). Two things
 * differ from the Hugging Face checkpoint of the same model and are said in the configuration:
 * "rope_interleaved": true, where the converter has permuted q and k rows for adjacent-pair rotation (llama),
 * and "rope_freq_factors": [...], where the file holds the frequencies' divisors as a tensor
 * (rope_freqs.weight) instead of a rope_scaling rule.
 *
 * A shard set (shardset.h) is a checkpoint, too: it has the tensors, as they were before packing, but only
 * packed bytes, which checkpoint_read does not give.
 *
 * Opening checks everything that can be checked without reading weights: sizes, offsets, overlaps, duplicate
 * names, the index against the files. A checkpoint is immutable and may be read from several threads.
 */
#ifndef YOKE_FORMATS_CHECKPOINT_H
#define YOKE_FORMATS_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "base/dtype.h"
#include "base/err.h"

struct checkpoint;
struct gguf;
struct shardset;

struct tensor {
    const char *name; /* Hugging Face name */
    enum dtype dtype; /* DT_NONE: one that base/dtype.h has no name for; its bytes cannot be read */
    int n_dims;       /* 0: a scalar */
    int64_t dim[4];   /* outermost first; dim[n_dims - 1] is contiguous */
    uint64_t n_bytes;
    int file;        /* which of the checkpoint's files */
    uint64_t offset; /* of the first byte in that file */
};

/* path: a folder, or a .gguf file, or a .safetensors file in a folder with config.json. */
int checkpoint_open(const char *path, struct warn_sink *warn, struct checkpoint **ret, struct err *e);
/* As checkpoint_open, with config.json and generation_config.json from another folder (NULL: beside the
 * weights; a GGUF has its own). */
int checkpoint_open_with(const char *path, const char *config_dir, struct warn_sink *warn,
                         struct checkpoint **ret, struct err *e);
void checkpoint_close(struct checkpoint *c); /* NULL is fine */

const char *checkpoint_path(const struct checkpoint *c);
const struct gguf *checkpoint_gguf(const struct checkpoint *c);         /* NULL if it is a folder */
const struct shardset *checkpoint_shardset(const struct checkpoint *c); /* NULL if it is none */
/* Borrowed, live as long as the checkpoint. The second one is NULL where there is no generation_config.json
 * (for a GGUF it is made from the metadata: eos ids and sampling defaults, if any). */
const json_t *checkpoint_config(const struct checkpoint *c);
const json_t *checkpoint_generation_config(const struct checkpoint *c);

size_t checkpoint_n_tensors(const struct checkpoint *c);
const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i);
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name);
int checkpoint_n_files(const struct checkpoint *c);
const char *checkpoint_file_name(const struct checkpoint *c, int file);
uint64_t checkpoint_n_bytes(const struct checkpoint *c); /* all tensors */

/* Reads rows [row0, row1) x columns [col0, col1) of a tensor seen as a matrix [rows, cols]: cols is the last
 * dimension, rows the product of the others (a vector is one row). Columns must be whole blocks of the dtype.
 * The bytes are the file's own, rows packed without gaps: dst holds (row1-row0) * dtype_bytes(dtype,
 * col1-col0). One contiguous read where the slice is contiguous, large row-wise reads elsewhere. */
int checkpoint_read(const struct checkpoint *c, const struct tensor *t, int64_t row0, int64_t row1,
                    int64_t col0, int64_t col1, void *dst, struct err *e);

#endif
