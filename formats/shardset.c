/* shardset.c: reading a shard set. See shardset.h for the files. */
#include "formats/shardset.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <openssl/evp.h>
#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/common.h"
#include "formats/shardset_impl.h"

#define MANIFEST_MAX ((size_t)512 << 20)
#define READ_BYTES   ((size_t)4 << 20)

struct rank_file {
    uint64_t payload;
    uint8_t sum[SHARD_SUM]; /* of the header */
    const struct shard_part **part;
    int32_t n, cap;
};

struct shardset {
    char *path;
    struct arena *mem;
    json_t *manifest; /* what strings are borrowed from */
    struct shardset_info info;
    struct rank_file *rank; /* [info.ranks] */
    struct shard_tensor *tensor;
    int32_t n_tensors;
};

/* --- what reading and writing share --- */

char *shard_rank_name(int rank, int ranks)
{
    return xasprintf("rank_%04d_of_%04d.yoke", rank, ranks);
}

void shard_sum_of(const void *p, size_t n, uint8_t ret[SHARD_SUM])
{
    unsigned char digest[EVP_MAX_MD_SIZE] = {0};
    EVP_Digest(p, n, digest, NULL, EVP_sha256(), NULL);
    memcpy(ret, digest, SHARD_SUM);
}

void shard_sum_of_header(const void *head, size_t n, uint8_t ret[SHARD_SUM])
{
    const size_t at = offsetof(struct shard_head, sum);
    uint8_t *copy = xmalloc(n);
    memcpy(copy, head, n);
    memset(copy + at, 0, SHARD_SUM);
    shard_sum_of(copy, n, ret);
    xfree(copy);
}

static void describe(const struct shard_tensor *t, const struct shard_part *p, struct wmat *ret)
{
    int32_t rows = p->row[1] - p->row[0], cols = p->col[1] - p->col[0];
    struct scale_blocks b;
    if (t->scale_rows) {
        b = scale_blocks_at(t->scale_rows, t->scale_cols, p->row[0], p->col[0]);
        wmat_init_f8(ret, rows, cols, &b, &p->cuts);
    } else {
        wmat_init(ret, t->dtype, rows, cols, dtype_info(t->dtype)->block == 256 ? p->col[0] % 256 : 0,
                  &p->cuts);
    }
}

void shard_part_matrix(const struct shard_tensor *t, const struct shard_part *p, struct wmat *ret,
                       size_t *ret_bytes)
{
    describe(t, p, ret);
    *ret_bytes = ROUND_UP(wmat_bytes(ret), 64);
}

/* --- the manifest --- */

/* Where we are, for messages. */
struct place {
    struct shardset *s;
    char where[sizeof("\"\" of , part ") + NAME_MAX_BYTES + 512];
    struct err *e;
};

static int bad(const struct place *at, const char *key, const char *expected)
{
    return err_set(at->e, ERR_FORMAT, "%s: \"%s\" should be %s", at->where, key, expected);
}

static int get_text(const struct place *at, const json_t *o, const char *key, const char **ret)
{
    const json_t *v = json_object_get(o, key);
    const char *s = json_string_value(v), *wrong = s ? name_check(s, json_string_length(v)) : NULL;
    if (!s || wrong || strlen(s) != json_string_length(v))
        return bad(at, key, "a text without control characters");
    *ret = s;
    return 0;
}

static int get_int(const struct place *at, const json_t *o, const char *key, int64_t lo, int64_t hi,
                   int64_t *ret)
{
    if (!json_is_integer(json_object_get(o, key)))
        return bad(at, key, "an integer");
    return json_get_int(o, key, lo, hi, 0, at->where, ret, at->e);
}

static int get_bool(const struct place *at, const json_t *o, const char *key, bool *ret)
{
    if (!json_is_boolean(json_object_get(o, key)))
        return bad(at, key, "true or false");
    *ret = json_is_true(json_object_get(o, key));
    return 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int get_sum(const struct place *at, const json_t *o, uint8_t ret[SHARD_SUM])
{
    const char *s = json_string_value(json_object_get(o, "sum"));
    bool ok = s && strlen(s) == 2 * SHARD_SUM;
    for (int i = 0; i < SHARD_SUM && ok; i++) {
        int hi = hex(s[2 * i]), lo = hex(s[2 * i + 1]);
        ok = hi >= 0 && lo >= 0;
        if (ok)
            ret[i] = (uint8_t)(hi << 4 | lo);
    }
    return ok ? 0 : bad(at, "sum", "32 hexadecimal digits");
}

/* [begin, end] within [0, n] */
static int get_range(const struct place *at, const json_t *o, const char *key, int64_t n, int32_t ret[2])
{
    const json_t *v = json_object_get(o, key), *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(e) || json_integer_value(b) < 0 ||
        json_integer_value(b) > json_integer_value(e) || json_integer_value(e) > n)
        return err_set(at->e, ERR_FORMAT, "%s: \"%s\" should be [begin, end] within 0 to %" PRId64, at->where,
                       key, n);
    ret[0] = (int32_t)json_integer_value(b);
    ret[1] = (int32_t)json_integer_value(e);
    return 0;
}

/* Ascending from 0 to the number of columns; where integer formats need it, at groups of 32. */
static int get_cuts(const struct place *at, const json_t *o, const struct shard_tensor *t, int32_t cols,
                    struct cuts *ret)
{
    const json_t *v = json_object_get(o, "cuts");
    size_t n = json_array_size(v);
    bool floats = act_kind_of(t->dtype) == ACT_F32;
    bool ok = n >= 2 && n <= YOKE_CHUNKS + 1;
    int64_t last = 0;
    for (size_t i = 0; i < n && ok; i++) {
        const json_t *x = json_array_get(v, i);
        int64_t k = json_integer_value(x);
        ok = json_is_integer(x) && k >= last && k <= cols && (i || k == 0) && (i + 1 < n || k == cols) &&
             (floats || k % 32 == 0 || k == cols) && (t->dtype != DT_I8C || k - last <= 65536);
        ret->at[i] = (int32_t)k;
        last = k;
    }
    if (!ok)
        return err_set(at->e, ERR_FORMAT, "%s: \"cuts\" should ascend from 0 to the part's %d columns%s",
                       at->where, cols, floats ? "" : " in multiples of 32");
    ret->n = (int)n - 1;
    return 0;
}

/* What the part takes by its shape; 0 if that is more than a file can have. */
static uint64_t part_bytes(const struct shard_tensor *t, const struct shard_part *p)
{
    if (!t->matrix)
        return 4 * (uint64_t)(p->col[1] - p->col[0]);
    struct wmat m;
    size_t one, all;
    describe(t, p, &m);
    if (!size_mul((size_t)m.n_panels, m.panel_bytes, &one) || one > INT64_MAX ||
        !size_mul(ROUND_UP(one, 64), (size_t)(p->stack[1] - p->stack[0]), &all) || all > INT64_MAX)
        return 0;
    return all;
}

/* "stride": members of a stack lie in records. Without it they follow each other. */
static int get_stride(const struct place *at, const json_t *o, const struct shard_tensor *t,
                      struct shard_part *p)
{
    uint64_t n = (uint64_t)(p->stack[1] - p->stack[0]), member = n ? p->bytes / n : 0;
    int64_t stride;
    p->stride = member;
    if (!t->stacked || !json_object_get(o, "stride"))
        return 0;
    int rc = get_int(at, o, "stride", SHARD_ALIGN, INT64_MAX, &stride);
    if (rc)
        return rc;
    p->stride = (uint64_t)stride;
    p->record = true;
    if (p->stride % SHARD_ALIGN || p->stride < member)
        return bad(at, "stride", "a multiple of 4096, and no less than an expert's bytes");
    return 0;
}

static int read_part(struct place *at, const json_t *o, const struct shard_tensor *t, int64_t last_rank,
                     struct shard_part *p)
{
    int64_t rank, offset, bytes;
    int rc = get_int(at, o, "rank", last_rank + 1, at->s->info.ranks - 1, &rank);
    if (!rc)
        rc = get_int(at, o, "offset", 0, INT64_MAX, &offset);
    if (!rc)
        rc = get_int(at, o, "bytes", 0, INT64_MAX, &bytes);
    if (!rc && t->matrix)
        rc = get_range(at, o, "rows", t->rows, p->row);
    if (!rc)
        rc = get_range(at, o, "columns", t->cols, p->col);
    if (!rc && t->stacked)
        rc = get_range(at, o, "experts", t->experts, p->stack);
    if (!rc && t->matrix)
        rc = get_cuts(at, o, t, p->col[1] - p->col[0], &p->cuts);
    if (!rc)
        rc = get_sum(at, o, p->sum);
    if (rc)
        return rc;
    if (!t->matrix)
        p->row[1] = 1;
    if (!t->stacked)
        p->stack[1] = 1;
    bool floats = act_kind_of(t->dtype) == ACT_F32;
    if (!floats && (p->col[0] % 32 || (p->col[1] % 32 && p->col[1] != t->cols)))
        return bad(at, "columns", "whole groups of 32");
    p->rank = (int32_t)rank;
    p->offset = (uint64_t)offset;
    p->bytes = (uint64_t)bytes;
    if (p->bytes != part_bytes(t, p))
        return err_set(at->e, ERR_FORMAT,
                       "%s: \"bytes\" is %" PRIu64 ", but by its shape the part has %" PRIu64, at->where,
                       p->bytes, part_bytes(t, p));
    rc = get_stride(at, o, t, p);
    if (rc)
        return rc;
    struct rank_file *f = &at->s->rank[rank];
    XGROW(f->part, f->n, f->cap);
    f->part[f->n++] = p;
    return 0;
}

static int get_dtype(const struct place *at, const json_t *o, const char *key, enum dtype *ret)
{
    const char *s = json_string_value(json_object_get(o, key));
    *ret = s ? dtype_from_name(s) : DT_NONE;
    return *ret != DT_NONE && dtype_info(*ret)->weight ? 0 : bad(at, key, "the name of a weight format");
}

static int get_scale_block(const struct place *at, const json_t *o, struct shard_tensor *t)
{
    const json_t *v = json_object_get(o, "scale_block");
    int64_t n[2];
    for (size_t i = 0; i < 2; i++) {
        n[i] = json_integer_value(json_array_get(v, i));
        if (json_array_size(v) != 2 || n[i] < 1 || n[i] > INT32_MAX || t->dtype != DT_F8_E4M3)
            return bad(at, "scale_block", "[rows, columns] of a block of f8_e4m3");
    }
    t->scale_rows = (int32_t)n[0];
    t->scale_cols = (int32_t)n[1];
    return 0;
}

static int read_tensor(struct place *at, const json_t *o, int32_t index)
{
    struct shardset *s = at->s;
    struct shard_tensor *t = &s->tensor[index];
    int64_t experts = 1;
    int rc = get_text(at, o, "name", &t->name);
    if (rc)
        return rc;
    snprintf(at->where, sizeof(at->where), "\"%s\" of %.500s", t->name, s->path);
    rc = get_text(at, o, "layout", &t->layout);
    if (!rc)
        rc = get_dtype(at, o, "src", &t->src);
    if (!rc)
        rc = get_dtype(at, o, "dtype", &t->dtype);
    if (!rc)
        rc = get_bool(at, o, "matrix", &t->matrix);
    t->stacked = t->matrix && json_object_get(o, "experts");
    if (!rc && t->stacked)
        rc = get_int(at, o, "experts", 1, INT32_MAX, &experts);
    t->experts = (int32_t)experts;
    t->rows = 1;
    if (!rc && t->matrix)
        rc = get_int(at, o, "rows", 0, INT32_MAX - 255, &t->rows);
    if (!rc)
        rc = get_int(at, o, "columns", 0, INT32_MAX - 255, &t->cols);
    if (!rc && t->matrix && json_object_get(o, "scale_block"))
        rc = get_scale_block(at, o, t);
    if (!rc && !t->matrix && t->dtype != DT_F32)
        rc = bad(at, "dtype", "f32 for a vector");
    if (!rc && t->stacked != (strchr(t->name, '*') != NULL))
        rc = bad(at, "name", "one with a * if, and only if, there are experts");
    const json_t *parts = json_object_get(o, "parts");
    size_t n = json_array_size(parts);
    if (!rc && (!n || n > (size_t)s->info.ranks))
        rc = bad(at, "parts", "a list, of at least one part and at most one for each rank");
    if (rc)
        return rc;
    struct shard_part *p = arena_alloc(s->mem, n * sizeof(*p));
    t->part = p;
    t->n_parts = (int32_t)n;
    for (size_t i = 0; i < n && !rc; i++) {
        snprintf(at->where, sizeof(at->where), "\"%s\" of %.500s, part %zu", t->name, s->path, i);
        p[i].tensor = index;
        rc = read_part(at, json_array_get(parts, i), t, i ? p[i - 1].rank : -1, &p[i]);
    }
    return rc;
}

static int by_offset(const void *a, const void *b)
{
    const struct shard_part *x = *(const struct shard_part *const *)a,
                            *y = *(const struct shard_part *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) /* empty ones first: they take no place */
        return x->bytes < y->bytes ? -1 : 1;
    return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

static int misplaced(const struct place *at, int rank, const struct shard_part *p, uint64_t end)
{
    return err_set(at->e, ERR_FORMAT,
                   "%s: \"%s\" of rank %d is at offset %" PRIu64 "; what lies before it ends at %" PRIu64,
                   at->s->path, at->s->tensor[p->tensor].name, rank, p->offset, end);
}

/* The parts from p[0] on that lie in the same records: in each record one member of each, one after the
 * other, and padding to the record's end. */
static int check_records(const struct place *at, int rank, const struct shard_part *const *p, int32_t n,
                         uint64_t *end, int32_t *ret_n)
{
    const struct shard_part *first = p[0];
    uint64_t members = (uint64_t)(first->stack[1] - first->stack[0]), stride = first->stride,
             begin = ROUND_UP(*end, SHARD_ALIGN), next = begin;
    size_t all;
    int32_t i = 0;
    if (begin < *end || !size_mul(stride, members, &all) || all > INT64_MAX - begin)
        return misplaced(at, rank, first, *end);
    for (; i < n && p[i]->record && p[i]->offset < begin + stride; i++) {
        if (p[i]->offset != next || p[i]->stride != stride || p[i]->stack[0] != first->stack[0] ||
            p[i]->stack[1] != first->stack[1] || p[i]->bytes / members > begin + stride - next)
            return misplaced(at, rank, p[i], next);
        next += p[i]->bytes / members;
    }
    if (!i || ROUND_UP(next, SHARD_ALIGN) != begin + stride)
        return misplaced(at, rank, first, *end);
    *end = begin + all;
    *ret_n = i;
    return 0;
}

/* A rank's parts follow each other without gap or overlap, and fill its payload. */
static int check_rank(struct place *at, int rank)
{
    struct rank_file *f = &at->s->rank[rank];
    uint64_t end = 0;
    if (f->n > 1)
        qsort(f->part, (size_t)f->n, sizeof(*f->part), by_offset);
    for (int32_t i = 0, n; i < f->n; i += n) {
        const struct shard_part *p = f->part[i];
        n = 1;
        if (p->record && p->stack[0] < p->stack[1]) {
            int rc = check_records(at, rank, &f->part[i], f->n - i, &end, &n);
            if (rc)
                return rc;
            continue;
        }
        if (p->offset != end || p->bytes > (uint64_t)INT64_MAX - end - 63)
            return misplaced(at, rank, p, end);
        end = ROUND_UP(end + p->bytes, 64);
    }
    if (end != f->payload)
        return err_set(at->e, ERR_FORMAT,
                       "%s: rank %d should have %" PRIu64
                       " bytes by its tensors, but \"payload\" is %" PRIu64,
                       at->s->path, rank, end, f->payload);
    return 0;
}

static int same_tensor_twice(const struct place *at)
{
    struct names x = {0};
    for (int32_t i = 0; i < at->s->n_tensors; i++)
        names_add(&x, arena_printf(at->s->mem, "%s %s", at->s->tensor[i].name, at->s->tensor[i].layout),
                  (size_t)i);
    const char *twice = names_sort(&x);
    names_release(&x);
    return twice ? err_set(at->e, ERR_FORMAT, "%s: \"%s\" is there twice", at->s->path, twice) : 0;
}

static int read_ranks(struct place *at, const json_t *list)
{
    struct shardset *s = at->s;
    size_t n = json_array_size(list);
    if (!n || n > SHARDSET_MAX_RANKS)
        return bad(at, "ranks", "a list of 1 to 65536 ranks");
    s->info.ranks = (int)n;
    XNEW_N(s->rank, n);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *o = json_array_get(list, i);
        const char *file;
        int64_t payload = 0;
        char *name = shard_rank_name((int)i, (int)n);
        snprintf(at->where, sizeof(at->where), "%.500s: rank %zu", s->path, i);
        rc = get_text(at, o, "file", &file);
        if (!rc && strcmp(file, name))
            rc = err_set(at->e, ERR_FORMAT, "%s: \"file\" should be %s", at->where, name);
        if (!rc)
            rc = get_int(at, o, "payload", 0, INT64_MAX / 2, &payload);
        if (!rc)
            rc = get_sum(at, o, s->rank[i].sum);
        s->rank[i].payload = (uint64_t)payload;
        xfree(name);
    }
    return rc;
}

static int get_degree(const struct place *at, const json_t *o, const char *key, int *ret)
{
    int64_t n;
    int rc = get_int(at, o, key, 1, SHARDSET_MAX_RANKS, &n);
    if (!rc)
        *ret = (int)n;
    return rc;
}

/* Versions first: nothing else is read by rules that may not be its own. */
static int read_versions(const struct place *at, const json_t *m)
{
    const char *format = json_string_value(json_object_get(m, "format"));
    int64_t version, packing;
    if (!format || strcmp(format, SHARD_FORMAT))
        return bad(at, "format", "\"" SHARD_FORMAT "\"");
    int rc = get_text(at, m, "yoke", &at->s->info.yoke);
    if (!rc)
        rc = get_int(at, m, "version", 0, INT32_MAX, &version);
    if (!rc)
        rc = get_int(at, m, "packing", 0, INT32_MAX, &packing);
    if (rc)
        return rc;
    if (version != SHARDSET_VERSION)
        return err_set(at->e, ERR_UNSUPPORTED,
                       "%s: a shard set of version %" PRId64 " (by yoke %.50s); this yoke reads version %d: "
                       "write it again with yoke shard",
                       at->where, version, at->s->info.yoke, SHARDSET_VERSION);
    if (packing != WMAT_PACKING_VERSION)
        return err_set(at->e, ERR_UNSUPPORTED,
                       "%s: weights packed in layout %" PRId64
                       " (by yoke %.50s), but this yoke's kernels read "
                       "layout %d: write the set again with yoke shard",
                       at->where, packing, at->s->info.yoke, WMAT_PACKING_VERSION);
    return 0;
}

static int read_manifest(struct shardset *s, struct err *e)
{
    struct place at = {.s = s, .e = e};
    struct shardset_info *info = &s->info;
    const json_t *m = s->manifest, *split = json_object_get(m, "split"), *tensors;
    snprintf(at.where, sizeof(at.where), "%.500s", s->path);
    int rc = read_versions(&at, m);
    if (!rc)
        rc = get_text(&at, m, "quant", &info->quant);
    if (!rc)
        rc = get_text(&at, m, "graph", &info->graph);
    if (!rc)
        rc = get_degree(&at, split, "tp", &info->tp);
    if (!rc)
        rc = get_degree(&at, split, "ep", &info->ep);
    if (!rc)
        rc = get_degree(&at, split, "pp", &info->pp);
    info->source = json_object_get(m, "source");
    if (!rc && info->source && !json_is_null(info->source) && !json_is_object(info->source))
        rc = bad(&at, "source", "an object");
    if (json_is_null(info->source))
        info->source = NULL;
    if (!rc)
        rc = read_ranks(&at, json_object_get(m, "ranks"));
    if (rc)
        return rc;
    if ((int64_t)info->ranks % ((int64_t)info->tp * info->pp))
        return bad(&at, "ranks", "tp times pp ranks, or a multiple of that");
    tensors = json_object_get(m, "tensors");
    snprintf(at.where, sizeof(at.where), "%.500s", s->path);
    if (!json_is_array(tensors) || json_array_size(tensors) > INT32_MAX / 2)
        return bad(&at, "tensors", "a list");
    s->n_tensors = (int32_t)json_array_size(tensors);
    XNEW_N(s->tensor, (size_t)s->n_tensors);
    for (int32_t i = 0; i < s->n_tensors && !rc; i++) {
        snprintf(at.where, sizeof(at.where), "%.500s: tensor %d", s->path, i);
        rc = read_tensor(&at, json_array_get(tensors, (size_t)i), i);
    }
    for (int i = 0; i < info->ranks && !rc; i++)
        rc = check_rank(&at, i);
    return rc ? rc : same_tensor_twice(&at);
}

/* --- life --- */

int shardset_open_bytes(const void *manifest, size_t n, const char *where, struct shardset **ret,
                        struct err *e)
{
    struct shardset *s;
    XNEW(s);
    s->path = xstrdup(where);
    s->mem = arena_new();
    int rc = json_parse(manifest, n, where, &s->manifest, e);
    if (!rc)
        rc = read_manifest(s, e);
    if (rc)
        shardset_close(s);
    else
        *ret = s;
    return rc;
}

bool shardset_is(const char *dir)
{
    struct file f;
    char start[65] = "";
    char *path = path_join(dir, SHARD_MANIFEST);
    bool found = false;
    if (path_is_file(path) && !file_open(&f, path, NULL)) {
        if (!file_read_at(&f, 0, start, (size_t)MIN(f.size, sizeof(start) - 1), NULL))
            found = strstr(start, "\"" SHARD_FORMAT "\"") != NULL;
        file_close(&f);
    }
    xfree(path);
    return found;
}

int shardset_open(const char *dir, struct shardset **ret, struct err *e)
{
    struct buf b = BUF_INIT;
    char *path = path_join(dir, SHARD_MANIFEST);
    struct shardset *s = NULL;
    int rc = file_slurp(path, MANIFEST_MAX, &b, e);
    if (!rc)
        rc = shardset_open_bytes(b.s, b.len, path, &s, e);
    if (!rc) {
        xfree(s->path);
        s->path = xstrdup(dir);
        *ret = s;
    }
    buf_release(&b);
    xfree(path);
    return rc;
}

void shardset_close(struct shardset *s)
{
    if (!s)
        return;
    for (int i = 0; s->rank && i < s->info.ranks; i++)
        xfree(s->rank[i].part);
    xfree(s->rank);
    xfree(s->tensor);
    json_decref(s->manifest);
    arena_free(s->mem);
    xfree(s->path);
    xfree(s);
}

const char *shardset_path(const struct shardset *s)
{
    return s->path;
}

const struct shardset_info *shardset_info(const struct shardset *s)
{
    return &s->info;
}

uint64_t shardset_rank_bytes(const struct shardset *s, int rank)
{
    return s->rank[rank].payload;
}

char *shardset_rank_path(const struct shardset *s, int rank)
{
    char *name = shard_rank_name(rank, s->info.ranks), *path = path_join(s->path, name);
    xfree(name);
    return path;
}

int32_t shardset_n_tensors(const struct shardset *s)
{
    return s->n_tensors;
}

const struct shard_tensor *shardset_tensor(const struct shardset *s, int32_t i)
{
    return &s->tensor[i];
}

const struct shard_part *const *shardset_parts(const struct shardset *s, int rank, int32_t *ret_n)
{
    *ret_n = s->rank[rank].n;
    return s->rank[rank].part;
}

/* --- a rank's file --- */

int shardset_check_header(const struct shardset *s, int rank, const void *head, size_t n, uint64_t file_bytes,
                          const char *where, size_t *ret_payload_at, struct err *e)
{
    const struct rank_file *f = &s->rank[rank];
    struct shard_head h;
    size_t header = shard_header_bytes((uint32_t)f->n);
    if (n < sizeof(h) || memcmp(head, SHARD_MAGIC, sizeof(h.magic)))
        return err_set(e, ERR_FORMAT, "%s is no rank's file of a shard set", where);
    memcpy(&h, head, sizeof(h));
    if (h.order != SHARD_ORDER)
        return err_set(e, ERR_UNSUPPORTED, "%s was written on a machine of another byte order", where);
    if (h.version != SHARDSET_VERSION || h.packing != WMAT_PACKING_VERSION)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s is of version %u and layout %u; this yoke reads version %d and layout %d", where,
                       h.version, h.packing, SHARDSET_VERSION, WMAT_PACKING_VERSION);
    if (h.rank != (uint32_t)rank || h.ranks != (uint32_t)s->info.ranks)
        return err_set(e, ERR_FORMAT, "%s says that it is rank %u of %u; expected is rank %d of %d", where,
                       h.rank, h.ranks, rank, s->info.ranks);
    if (h.tensors != (uint32_t)f->n || h.payload_bytes != f->payload || h.header_bytes != header)
        return err_set(e, ERR_FORMAT,
                       "%s has %u tensors in %" PRIu64 " bytes, but %s/" SHARD_MANIFEST " says %d in %" PRIu64
                       ": one of them is from another set",
                       where, h.tensors, h.payload_bytes, s->path, f->n, f->payload);
    if (file_bytes != header + f->payload)
        return err_set(e, ERR_FORMAT, "%s has %" PRIu64 " bytes, but should have %" PRIu64 ": it is %s",
                       where, file_bytes, header + f->payload,
                       file_bytes < header + f->payload ? "cut short" : "no longer what was written");
    uint8_t sum[SHARD_SUM];
    if (n < header)
        return err_set(e, ERR_FORMAT, "%s: its header is cut short", where);
    shard_sum_of_header(head, header, sum);
    if (memcmp(sum, h.sum, SHARD_SUM))
        return err_set(e, ERR_FORMAT, "%s: its header is damaged (the sum differs)", where);
    if (memcmp(sum, f->sum, SHARD_SUM))
        return err_set(e, ERR_FORMAT,
                       "%s and %s/" SHARD_MANIFEST " are of two different sets (or the manifest was changed)",
                       where, s->path);
    for (int32_t i = 0; i < f->n; i++) {
        struct shard_entry x;
        const struct shard_part *p = f->part[i];
        memcpy(&x, (const char *)head + sizeof(h) + sizeof(x) * (size_t)i, sizeof(x));
        if (x.offset != p->offset || x.bytes != p->bytes || memcmp(x.sum, p->sum, SHARD_SUM))
            return err_set(e, ERR_FORMAT, "%s and %s/" SHARD_MANIFEST " differ about \"%s\"", where, s->path,
                           s->tensor[p->tensor].name);
    }
    *ret_payload_at = header;
    return 0;
}

int shardset_open_rank(const struct shardset *s, int rank, struct file *ret, size_t *ret_payload_at,
                       struct err *e)
{
    char *path = shardset_rank_path(s, rank);
    struct buf head = BUF_INIT;
    int rc = file_open(ret, path, e);
    if (!rc) {
        size_t n = (size_t)MIN(ret->size, shard_header_bytes((uint32_t)s->rank[rank].n));
        buf_reserve(&head, n);
        rc = file_read_at(ret, 0, head.s, n, e);
        if (!rc)
            rc = shardset_check_header(s, rank, head.s, n, ret->size, path, ret_payload_at, e);
        if (rc)
            file_close(ret);
    }
    buf_release(&head);
    xfree(path);
    return rc;
}

int shardset_map(const struct shardset *s, int rank, void **ret_map, size_t *ret_bytes,
                 size_t *ret_payload_at, struct err *e)
{
    struct file f;
    size_t payload_at;
    int rc = shardset_open_rank(s, rank, &f, &payload_at, e);
    if (rc)
        return rc;
    void *map = mmap(NULL, (size_t)f.size, PROT_READ, MAP_SHARED, f.fd, 0);
    if (map == MAP_FAILED) {
        rc = err_errno(e, "cannot map %s", f.path);
    } else {
        *ret_map = map;
        *ret_bytes = (size_t)f.size;
        *ret_payload_at = payload_at;
    }
    file_close(&f);
    return rc;
}

struct verifier {
    const struct shardset *s;
    EVP_MD_CTX *md;
    uint8_t *bytes; /* [READ_BYTES] */
    uint64_t done, total;
    shard_progress_fn *progress;
    void *ctx;
};

static int verify_run(struct verifier *v, const struct file *f, uint64_t offset, uint64_t bytes,
                      struct err *e)
{
    for (uint64_t at = 0; at < bytes;) {
        size_t n = (size_t)MIN(bytes - at, READ_BYTES);
        int rc = file_read_at(f, offset + at, v->bytes, n, e);
        if (rc)
            return rc;
        EVP_DigestUpdate(v->md, v->bytes, n);
        at += n;
        v->done += n;
        if (v->progress)
            v->progress(v->ctx, v->done, v->total);
    }
    return 0;
}

static int verify_part(struct verifier *v, const struct file *f, size_t payload_at,
                       const struct shard_part *p, struct err *e)
{
    unsigned char digest[EVP_MAX_MD_SIZE] = {0};
    uint64_t runs = p->record ? (uint64_t)(p->stack[1] - p->stack[0]) : 1;
    EVP_DigestInit_ex(v->md, EVP_sha256(), NULL);
    for (uint64_t i = 0; i < runs; i++) {
        int rc = verify_run(v, f, payload_at + p->offset + i * p->stride, p->bytes / runs, e);
        if (rc)
            return rc;
    }
    EVP_DigestFinal_ex(v->md, digest, NULL);
    if (memcmp(digest, p->sum, SHARD_SUM))
        return err_set(e, ERR_FORMAT,
                       "%s: the %" PRIu64 " bytes of \"%s\" at offset %" PRIu64
                       " are not what was written (their sum differs)",
                       f->path, p->bytes, v->s->tensor[p->tensor].name, payload_at + p->offset);
    return 0;
}

int shardset_verify(const struct shardset *s, int rank, shard_progress_fn *progress, void *ctx, struct err *e)
{
    struct verifier v = {.s = s, .progress = progress, .ctx = ctx};
    int begin = rank < 0 ? 0 : rank, end = rank < 0 ? s->info.ranks : rank + 1, rc = 0;
    for (int r = begin; r < end; r++)
        v.total += s->rank[r].payload;
    v.bytes = xmalloc(READ_BYTES);
    v.md = EVP_MD_CTX_new();
    for (int r = begin; r < end && !rc; r++) {
        struct file f;
        size_t payload_at;
        rc = shardset_open_rank(s, r, &f, &payload_at, e);
        if (rc)
            break;
        for (int32_t i = 0; i < s->rank[r].n && !rc; i++)
            rc = verify_part(&v, &f, payload_at, s->rank[r].part[i], e);
        file_close(&f);
    }
    EVP_MD_CTX_free(v.md);
    xfree(v.bytes);
    return rc;
}
