/* shardset.h: a model packed for a split: one file a rank, and a manifest that says what is in them.
 *
 * A shard set is a folder, and a complete model by itself:
 *
 *     manifest.json              what was split, how, and which part of which tensor lies where
 *     rank_0000_of_0004.yoke     what rank 0 maps: its weights, as they lie in its memory
 *     ...
 *     config.json, tokenizer.json, ...   copies; from a GGUF: its configuration, and tokenizer.gguf
 *
 * A rank's file is a header, padded to 4096 bytes, and the payload: the packed weights in the order of the
 * rank's plan, each at a multiple of 64 (exec/weights.h). The tensors of a layer's experts lie in records: of
 * each expert all that the rank has of it, at a multiple of 4096 (version 1 had the tensors one after the
 * other). Little-endian:
 *
 *     0   "YOKESHRD"
 *     8   u32 0x01020304, u32 version (2), u32 header bytes, u32 packing (WMAT_PACKING_VERSION)
 *     24  u32 rank, u32 ranks, u32 tensors, u32 0
 *     40  u64 payload bytes
 *     48  u8[16] sum of the whole header with these 16 bytes zero
 *     64  tensors x { u64 offset in the payload, u64 bytes, u8[16] sum of them }
 *
 * A sum is the first 16 bytes of SHA-256. The manifest holds the sum of each header, and a header the sums of
 * its tensors: so files of two sets cannot be mixed up, and a set is what its manifest says, or an error.
 *
 * Writing: everything goes to temporary names (.NAME.tmp) in the folder, which is locked meanwhile (flock),
 * is synced to the disk, and only when all of it is there takes its names, the manifest last. A set in the
 * folder from before stays whole until then. Whoever is mapping the old files keeps them: they are replaced,
 * never written to.
 *
 * Opening checks all that the manifest says, so that above this layer its numbers are trusted; a rank's file
 * is checked when it is mapped (header against manifest; the payload's sums on request only). An open set is
 * immutable and may be used from several threads. This layer knows no plan: which parts a rank needs, and
 * whether they fit, is engine/shard.h's.
 */
#ifndef YOKE_FORMATS_SHARDSET_H
#define YOKE_FORMATS_SHARDSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "base/dtype.h"
#include "base/err.h"
#include "base/file.h"
#include "kernels/matmul.h"

#define SHARDSET_VERSION   2
#define SHARDSET_MAX_RANKS 65536
#define SHARD_SUM          16 /* bytes of a sum */
#define SHARD_RECORD_PARTS 3  /* tensors in a record, at most */

/* What is true of the whole set. Strings are borrowed from the set (from the caller, in writing). */
struct shardset_info {
    int ranks;
    int tp, pp, ep;       /* tp * pp ranks, or a multiple where experts are spread over replicas */
    const char *quant;    /* "none", "w8a8", "w4" */
    const char *yoke;     /* version of the writer */
    const char *graph;    /* digest of the graph it was written for: for people */
    const json_t *source; /* formats/source.h; NULL: not said, and not compared */
};

/* One rank's part of a tensor. Ranges are of the whole tensor, [0] to [1]. */
struct shard_part {
    int32_t rank;
    int32_t stack[2]; /* experts; 0 to 1 if not stacked */
    int32_t row[2], col[2];
    struct cuts cuts;       /* of its own columns; matrices only, else n == 0 */
    uint64_t offset, bytes; /* bytes: without what lies between the members of the stack */
    uint64_t stride;        /* from one member to the next */
    bool record;            /* members lie in records, the other tensors' members between them */
    uint8_t sum[SHARD_SUM];
    int32_t tensor; /* index */
};

/* A tensor as the plans name it; one that ranks hold in two layouts is there twice. */
struct shard_tensor {
    const char *name;      /* a * for the expert's number, if stacked */
    const char *layout;    /* "whole", "split(head)": for people, and to tell two of one name apart */
    enum dtype src, dtype; /* in the checkpoint; as packed */
    bool matrix;           /* else a vector of floats, one row */
    bool stacked;
    int32_t experts; /* 1 if not stacked */
    int64_t rows, cols;
    int32_t scale_rows, scale_cols; /* f8_e4m3: of a block that shares a scale; 0: there are no scales */
    const struct shard_part *part;  /* [n_parts], of increasing ranks */
    int32_t n_parts;
};

struct shardset;

/* Whether the folder has a manifest that says it is ours (it may still be a bad one). */
bool shardset_is(const char *dir);
int shardset_open(const char *dir, struct shardset **ret, struct err *e);
/* The manifest from memory (fuzzing, tests): there are no rank files then. */
int shardset_open_bytes(const void *manifest, size_t n, const char *where, struct shardset **ret,
                        struct err *e);
void shardset_close(struct shardset *s); /* NULL is fine */

const char *shardset_path(const struct shardset *s);
const struct shardset_info *shardset_info(const struct shardset *s);
uint64_t shardset_rank_bytes(const struct shardset *s, int rank); /* of the payload */
char *shardset_rank_path(const struct shardset *s, int rank);     /* xfree() it */
int32_t shardset_n_tensors(const struct shardset *s);
const struct shard_tensor *shardset_tensor(const struct shardset *s, int32_t i);
/* Rank r's parts in the order of its plan. */
const struct shard_part *const *shardset_parts(const struct shardset *s, int rank, int32_t *ret_n);

/* A part as a matrix (data NULL: the payload at the part's offset), and the bytes of one member of its stack.
 */
void shard_part_matrix(const struct shard_tensor *t, const struct shard_part *p, struct wmat *ret,
                       size_t *ret_bytes);

/* Maps rank r's file, read-only, shared with all who map it; the payload begins at *ret_payload_at of it. The
 * caller munmap()s, and advises the kernel which of it will be read. */
int shardset_map(const struct shardset *s, int rank, void **ret_map, size_t *ret_bytes,
                 size_t *ret_payload_at, struct err *e);
/* The same file, open for reading. The caller closes it. */
int shardset_open_rank(const struct shardset *s, int rank, struct file *ret, size_t *ret_payload_at,
                       struct err *e);
/* A rank's header against the manifest: head holds the file's first n bytes. Part of both. */
int shardset_check_header(const struct shardset *s, int rank, const void *head, size_t n, uint64_t file_bytes,
                          const char *where, size_t *ret_payload_at, struct err *e);

/* done: bytes read or written so far. */
typedef void shard_progress_fn(void *ctx, uint64_t done, uint64_t total);
/* Compares the payload's sums, of one rank or (-1) of all; the first that differs is an error that names file
 * and tensor. */
int shardset_verify(const struct shardset *s, int rank, shard_progress_fn *progress, void *ctx,
                    struct err *e);

/* --- writing --- */

struct shardset_writer;
/* Makes the folder if need be and locks it. One that holds something else than a shard set is refused.
 * payload_bytes: of all ranks together; less free disk space is an error now rather than later. */
int shardset_create(const char *dir, const struct shardset_info *info, uint64_t payload_bytes,
                    struct shardset_writer **ret, struct err *e);
/* Ranks in any order, each once; a rank's tensors in the order of its plan. */
int shardset_begin_rank(struct shardset_writer *w, int rank, int32_t n_tensors, struct err *e);
/* t: name to cols; p: stack to cuts and bytes. The rest is worked out. */
int shardset_add(struct shardset_writer *w, const struct shard_tensor *t, const struct shard_part *p,
                 const void *data, struct err *e);
/* n tensors in records: after this, records are added until all members of their (common) stack are there.
 * at: [n] where each tensor's member begins in a record of record_bytes. */
int shardset_begin_records(struct shardset_writer *w, int n, const struct shard_tensor *t,
                           const struct shard_part *p, const size_t *at, size_t record_bytes, struct err *e);
int shardset_add_records(struct shardset_writer *w, int32_t n_records, const void *data, struct err *e);
int shardset_end_rank(struct shardset_writer *w, struct err *e);
/* A small file that lies beside. */
int shardset_add_file(struct shardset_writer *w, const char *name, const void *data, size_t n, struct err *e);
/* What makes the folder a whole model: config.json and, where they are, generation_config.json, the
 * tokenizer's files and the chat template. From config_dir, if not NULL, else from beside the checkpoint; a
 * GGUF's are made from its metadata, and tokenizer.gguf is that metadata alone. */
struct checkpoint;
int shardset_add_model(struct shardset_writer *w, const struct checkpoint *c, const char *config_dir,
                       struct err *e);
/* Everything takes its name. Frees the writer, whatever it returns. */
int shardset_commit(struct shardset_writer *w, struct err *e);
/* Removes what was written, and frees the writer. NULL is fine. */
void shardset_abort(struct shardset_writer *w);

#endif
