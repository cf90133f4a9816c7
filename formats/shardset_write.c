/* shardset_write.c: writing a shard set, so that it is there whole or not at all. */
#include "formats/shardset.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <openssl/evp.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/shardset_impl.h"

#define RANK_FILES "rank_*_of_*.yoke"

struct written { /* a tensor and where its parts went */
    struct shard_tensor t;
    char *name, *layout;
    struct shard_part *part;
    int32_t n, cap;
};

struct done_rank {
    bool done;
    uint64_t payload;
    uint8_t sum[SHARD_SUM];
};

/* The records being written: of n tensors, with `left` more to come. */
struct records {
    int n;
    int32_t left;
    size_t bytes, at[SHARD_RECORD_PARTS], member[SHARD_RECORD_PARTS];
    EVP_MD_CTX *md[SHARD_RECORD_PARTS];
    int32_t of[SHARD_RECORD_PARTS]; /* tensors */
    struct shard_part part[SHARD_RECORD_PARTS];
};

struct shardset_writer {
    char *dir;
    struct shardset_info info;
    int dir_fd; /* holds the lock */
    bool made_dir;
    char **file; /* names of what lies there under temporary names */
    size_t n_files, cap_files;
    struct written *tensor;
    int32_t n_tensors, cap_tensors;
    struct done_rank *ranks;
    /* the rank being written */
    int rank, fd;
    int32_t n_entries, cap_entries, next;
    struct shard_entry *entry;
    uint64_t at; /* in the payload */
    struct records records;
};

/* --- files --- */

static char *temporary(const struct shardset_writer *w, const char *name)
{
    return xasprintf("%s/.%s.tmp", w->dir, name);
}

static int create_file(struct shardset_writer *w, const char *name, int *ret_fd, struct err *e)
{
    char *path = temporary(w, name);
    XGROW(w->file, w->n_files, w->cap_files);
    w->file[w->n_files++] = xstrdup(name);
    unlink(path); /* of a run that was killed: the lock is ours */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int rc = fd < 0 ? err_errno(e, "cannot create %s", path) : 0;
    if (!rc)
        *ret_fd = fd;
    xfree(path);
    return rc;
}

static int write_at(const struct shardset_writer *w, int fd, const void *data, size_t n, uint64_t offset,
                    struct err *e)
{
    const char *p = data;
    while (n) {
        ssize_t put = pwrite(fd, p, MIN(n, (size_t)1 << 30), (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put == 0)
            errno = ENOSPC;
        if (put <= 0)
            return err_errno(e, "cannot write to %s (%s; nothing of it is kept)", w->dir,
                             errno == ENOSPC || errno == EDQUOT ? "there is not enough room"
                             : errno == EFBIG                   ? "the file gets too large"
                                                                : "the set is incomplete");
        p += put;
        offset += (uint64_t)put;
        n -= (size_t)put;
    }
    return 0;
}

/* What the disk refuses late, it refuses here. */
static int finish_file(const struct shardset_writer *w, int fd, struct err *e)
{
    int rc = fsync(fd) ? err_errno(e, "cannot write to %s (nothing of it is kept)", w->dir) : 0;
    if (close(fd) && !rc)
        rc = err_errno(e, "cannot write to %s (nothing of it is kept)", w->dir);
    return rc;
}

int shardset_add_file(struct shardset_writer *w, const char *name, const void *data, size_t n, struct err *e)
{
    int fd;
    int rc = create_file(w, name, &fd, e);
    if (rc)
        return rc;
    rc = write_at(w, fd, data, n, 0, e);
    int frc = finish_file(w, fd, rc ? NULL : e);
    return rc ? rc : frc;
}

/* --- begin and end --- */

/* Only what is empty, a shard set, or the rest of one may be written to. */
static int check_folder(const char *dir, struct err *e)
{
    char other[256] = "";
    bool rest = shardset_is(dir);
    DIR *d = opendir(dir);
    if (!d)
        return err_errno(e, "cannot open the folder %s", dir);
    const struct dirent *x;
    while ((x = readdir(d))) {
        if (!fnmatch(RANK_FILES, x->d_name, 0))
            rest = true;
        else if (x->d_name[0] != '.')
            snprintf(other, sizeof(other), "%.255s", x->d_name);
    }
    closedir(d);
    if (*other && !rest)
        return err_set(e, ERR_USAGE,
                       "%s is no shard set, and not empty (it holds %s): give a new folder to write to", dir,
                       other);
    return 0;
}

static int lock_folder(struct shardset_writer *w, struct err *e)
{
    w->dir_fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->dir_fd < 0)
        return err_errno(e, "cannot open the folder %s", w->dir);
    if (flock(w->dir_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return err_set(e, ERR_IO, "%s: another yoke shard is writing to it", w->dir);
    return 0; /* a file system without locks is no reason to refuse */
}

/* Temporary files of runs that were killed. */
static void remove_remains(const struct shardset_writer *w)
{
    DIR *d = opendir(w->dir);
    const struct dirent *x;
    while (d && (x = readdir(d)))
        if (!fnmatch("." RANK_FILES ".tmp", x->d_name, 0))
            unlinkat(w->dir_fd, x->d_name, 0);
    if (d)
        closedir(d);
}

static int check_room(const struct shardset_writer *w, uint64_t bytes, struct err *e)
{
    struct statvfs v;
    if (fstatvfs(w->dir_fd, &v))
        return 0;
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    if (room >= bytes)
        return 0;
    return err_set(e, ERR_IO, "%s: the set takes %.2f GiB, but its disk has room for %.2f GiB", w->dir,
                   (double)bytes / 0x1p30, (double)room / 0x1p30);
}

int shardset_create(const char *dir, const struct shardset_info *info, uint64_t payload_bytes,
                    struct shardset_writer **ret, struct err *e)
{
    struct shardset_writer *w;
    assert(info->ranks > 0 && info->ranks <= SHARDSET_MAX_RANKS);
    XNEW(w);
    w->dir = xstrdup(dir);
    w->info = *info;
    w->dir_fd = w->fd = w->rank = -1;
    XNEW_N(w->ranks, (size_t)info->ranks);
    int rc = 0;
    if (!mkdir(dir, 0777))
        w->made_dir = true;
    else if (errno != EEXIST)
        rc = err_errno(e, "cannot make the folder %s", dir);
    if (!rc)
        rc = check_folder(dir, e);
    if (!rc)
        rc = lock_folder(w, e);
    if (!rc) {
        remove_remains(w);
        rc = check_room(w, payload_bytes, e);
    }
    if (rc)
        shardset_abort(w);
    else
        *ret = w;
    return rc;
}

static void writer_free(struct shardset_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    if (w->dir_fd >= 0)
        close(w->dir_fd); /* and so unlocks */
    for (size_t i = 0; i < w->n_files; i++)
        xfree(w->file[i]);
    for (int32_t i = 0; i < w->n_tensors; i++) {
        xfree(w->tensor[i].name);
        xfree(w->tensor[i].layout);
        xfree(w->tensor[i].part);
    }
    for (int i = 0; i < SHARD_RECORD_PARTS; i++)
        EVP_MD_CTX_free(w->records.md[i]);
    xfree(w->file);
    xfree(w->tensor);
    xfree(w->ranks);
    xfree(w->entry);
    xfree(w->dir);
    xfree(w);
}

void shardset_abort(struct shardset_writer *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_files; i++) {
        char *path = temporary(w, w->file[i]);
        unlink(path);
        xfree(path);
    }
    if (w->made_dir)
        rmdir(w->dir);
    writer_free(w);
}

/* --- ranks --- */

int shardset_begin_rank(struct shardset_writer *w, int rank, int32_t n_tensors, struct err *e)
{
    assert(w->fd < 0 && rank >= 0 && rank < w->info.ranks && !w->ranks[rank].done);
    char *name = shard_rank_name(rank, w->info.ranks);
    int rc = create_file(w, name, &w->fd, e);
    xfree(name);
    w->rank = rank;
    w->n_entries = n_tensors;
    w->next = 0;
    w->at = 0;
    xfree(w->entry);
    XNEW_N(w->entry, (size_t)n_tensors);
    return rc;
}

/* Plans list their weights in one order, so that the tensor is near where the last one was. */
static struct written *tensor_of(struct shardset_writer *w, const struct shard_tensor *t)
{
    for (int32_t i = 0; i < w->n_tensors; i++) {
        struct written *x = &w->tensor[(w->next + i) % w->n_tensors];
        if (!strcmp(x->name, t->name) && !strcmp(x->layout, t->layout))
            return x;
    }
    XGROW(w->tensor, w->n_tensors, w->cap_tensors);
    struct written *x = &w->tensor[w->n_tensors++];
    *x = (struct written){.t = *t, .name = xstrdup(t->name), .layout = xstrdup(t->layout)};
    return x;
}

/* A part's place and sum are known: into the header and, for the manifest, to its tensor. */
static void note_part(struct shardset_writer *w, struct written *x, const struct shard_part *p)
{
    struct shard_entry *entry = &w->entry[w->next++];
    XGROW(x->part, x->n, x->cap);
    x->part[x->n++] = *p;
    *entry = (struct shard_entry){p->offset, p->bytes, {0}};
    memcpy(entry->sum, p->sum, SHARD_SUM);
}

static int write_payload(struct shardset_writer *w, const void *data, size_t n, struct err *e)
{
    int rc = write_at(w, w->fd, data, n, shard_header_bytes((uint32_t)w->n_entries) + w->at, e);
    w->at += n;
    return rc;
}

static int pad_payload(struct shardset_writer *w, size_t to, struct err *e)
{
    static const char zeros[SHARD_ALIGN];
    return write_payload(w, zeros, (size_t)(ROUND_UP(w->at, to) - w->at), e);
}

int shardset_add(struct shardset_writer *w, const struct shard_tensor *t, const struct shard_part *p,
                 const void *data, struct err *e)
{
    assert(w->fd >= 0 && w->next < w->n_entries && !w->records.left);
    struct shard_part mine = *p;
    mine.rank = w->rank;
    mine.offset = w->at;
    mine.record = false;
    shard_sum_of(data, (size_t)p->bytes, mine.sum);
    int rc = write_payload(w, data, (size_t)p->bytes, e);
    if (!rc)
        rc = pad_payload(w, 64, e);
    if (!rc)
        note_part(w, tensor_of(w, t), &mine);
    return rc;
}

int shardset_begin_records(struct shardset_writer *w, int n, const struct shard_tensor *t,
                           const struct shard_part *p, const size_t *at, size_t record_bytes, struct err *e)
{
    struct records *x = &w->records;
    assert(w->fd >= 0 && w->next + n <= w->n_entries && !x->left && n <= SHARD_RECORD_PARTS &&
           record_bytes % SHARD_ALIGN == 0);
    x->left = p->stack[1] - p->stack[0];
    x->bytes = record_bytes;
    x->n = n;
    int rc = x->left ? pad_payload(w, SHARD_ALIGN, e) : 0;
    for (int i = 0; i < n && !rc; i++) {
        x->of[i] = (int32_t)(tensor_of(w, &t[i]) - w->tensor);
        x->part[i] = p[i];
        x->part[i].rank = w->rank;
        x->part[i].record = true;
        x->part[i].stride = record_bytes;
        x->part[i].offset = w->at + (x->left ? at[i] : 0);
        x->at[i] = at[i];
        x->member[i] = x->left ? (size_t)p[i].bytes / (size_t)x->left : 0;
        if (!x->md[i])
            x->md[i] = EVP_MD_CTX_new();
        EVP_DigestInit_ex(x->md[i], EVP_sha256(), NULL);
    }
    return rc || x->left ? rc : shardset_add_records(w, 0, NULL, e);
}

int shardset_add_records(struct shardset_writer *w, int32_t n_records, const void *data, struct err *e)
{
    struct records *x = &w->records;
    assert(n_records <= x->left);
    for (int32_t r = 0; r < n_records; r++)
        for (int i = 0; i < x->n; i++)
            EVP_DigestUpdate(x->md[i], (const char *)data + x->bytes * (size_t)r + x->at[i], x->member[i]);
    x->left -= n_records;
    int rc = write_payload(w, data, x->bytes * (size_t)n_records, e);
    for (int i = 0; i < x->n && !x->left && !rc; i++) {
        unsigned char digest[EVP_MAX_MD_SIZE] = {0};
        EVP_DigestFinal_ex(x->md[i], digest, NULL);
        memcpy(x->part[i].sum, digest, SHARD_SUM);
        note_part(w, &w->tensor[x->of[i]], &x->part[i]);
    }
    return rc;
}

int shardset_end_rank(struct shardset_writer *w, struct err *e)
{
    assert(w->fd >= 0 && w->next == w->n_entries && !w->records.left);
    size_t n = shard_header_bytes((uint32_t)w->n_entries);
    uint8_t *head = xcalloc(n, 1);
    struct shard_head h = {.order = SHARD_ORDER,
                           .version = SHARDSET_VERSION,
                           .header_bytes = (uint32_t)n,
                           .packing = WMAT_PACKING_VERSION,
                           .rank = (uint32_t)w->rank,
                           .ranks = (uint32_t)w->info.ranks,
                           .tensors = (uint32_t)w->n_entries,
                           .payload_bytes = w->at};
    memcpy(h.magic, SHARD_MAGIC, sizeof(h.magic));
    memcpy(head, &h, sizeof(h));
    if (w->n_entries)
        memcpy(head + sizeof(h), w->entry, sizeof(*w->entry) * (size_t)w->n_entries);
    shard_sum_of_header(head, n, h.sum);
    memcpy(head, &h, sizeof(h));
    int rc = write_at(w, w->fd, head, n, 0, e);
    xfree(head);
    if (rc)
        return rc;
    struct done_rank *r = &w->ranks[w->rank];
    *r = (struct done_rank){.done = true, .payload = w->at};
    memcpy(r->sum, h.sum, SHARD_SUM);
    int fd = w->fd;
    w->fd = -1;
    return finish_file(w, fd, e);
}

/* --- the manifest --- */

static void add_text(struct buf *b, const char *key, const char *s)
{
    json_t *text = json_string_nocheck(s);
    buf_addf(b, "\"%s\": ", key);
    json_print(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII, b);
    json_decref(text);
}

static void add_sum(struct buf *b, const uint8_t sum[SHARD_SUM])
{
    buf_adds(b, "\"sum\": \"");
    for (int i = 0; i < SHARD_SUM; i++)
        buf_addf(b, "%02x", sum[i]);
    buf_addc(b, '"');
}

static void add_range(struct buf *b, const char *key, const int32_t r[2])
{
    buf_addf(b, "\"%s\": [%d, %d], ", key, r[0], r[1]);
}

static void add_part(struct buf *b, const struct shard_tensor *t, const struct shard_part *p)
{
    buf_addf(b, "  {\"rank\": %d, \"offset\": %" PRIu64 ", \"bytes\": %" PRIu64 ", ", p->rank, p->offset,
             p->bytes);
    if (t->matrix)
        add_range(b, "rows", p->row);
    add_range(b, "columns", p->col);
    if (t->stacked)
        add_range(b, "experts", p->stack);
    if (p->record)
        buf_addf(b, "\"stride\": %" PRIu64 ", ", p->stride);
    if (t->matrix) {
        buf_adds(b, "\"cuts\": [");
        for (int i = 0; i <= p->cuts.n; i++)
            buf_addf(b, "%s%d", i ? ", " : "", p->cuts.at[i]);
        buf_adds(b, "], ");
    }
    add_sum(b, p->sum);
    buf_addc(b, '}');
}

static int by_rank(const void *a, const void *b)
{
    return ((const struct shard_part *)a)->rank - ((const struct shard_part *)b)->rank;
}

static void add_tensor(struct buf *b, struct written *x)
{
    const struct shard_tensor *t = &x->t;
    buf_addc(b, '{');
    add_text(b, "name", x->name);
    buf_addf(b, ", \"src\": \"%s\", \"dtype\": \"%s\", ", dtype_name(t->src), dtype_name(t->dtype));
    add_text(b, "layout", x->layout);
    buf_addf(b, ", \"matrix\": %s, ", t->matrix ? "true" : "false");
    if (t->matrix)
        buf_addf(b, "\"rows\": %" PRId64 ", ", t->rows);
    buf_addf(b, "\"columns\": %" PRId64 ", ", t->cols);
    if (t->stacked)
        buf_addf(b, "\"experts\": %d, ", t->experts);
    if (t->scale_rows)
        buf_addf(b, "\"scale_block\": [%d, %d], ", t->scale_rows, t->scale_cols);
    buf_adds(b, "\"parts\": [\n");
    qsort(x->part, (size_t)x->n, sizeof(*x->part), by_rank);
    for (int32_t i = 0; i < x->n; i++) {
        add_part(b, t, &x->part[i]);
        buf_adds(b, i + 1 < x->n ? ",\n" : "]}");
    }
}

static void make_manifest(struct shardset_writer *w, struct buf *b)
{
    const struct shardset_info *i = &w->info;
    buf_adds(b, "{\"format\": \"" SHARD_FORMAT "\",\n");
    buf_addf(b, "\"version\": %d,\n", SHARDSET_VERSION);
    add_text(b, "yoke", i->yoke);
    buf_addf(b, ",\n\"packing\": %d,\n", WMAT_PACKING_VERSION);
    add_text(b, "quant", i->quant);
    buf_addf(b, ",\n\"split\": {\"tp\": %d, \"ep\": %d, \"pp\": %d},\n", i->tp, i->ep, i->pp);
    add_text(b, "graph", i->graph);
    buf_adds(b, ",\n");
    if (i->source) {
        buf_adds(b, "\"source\": ");
        json_print(i->source, JSON_INDENT(1) | JSON_ENSURE_ASCII, b);
        buf_adds(b, ",\n");
    }
    buf_adds(b, "\"ranks\": [\n");
    for (int r = 0; r < i->ranks; r++) {
        char *name = shard_rank_name(r, i->ranks);
        buf_addf(b, " {\"file\": \"%s\", \"payload\": %" PRIu64 ", ", name, w->ranks[r].payload);
        add_sum(b, w->ranks[r].sum);
        buf_adds(b, r + 1 < i->ranks ? "},\n" : "}],\n");
        xfree(name);
    }
    buf_adds(b, "\"tensors\": [\n");
    for (int32_t k = 0; k < w->n_tensors; k++) {
        add_tensor(b, &w->tensor[k]);
        buf_adds(b, k + 1 < w->n_tensors ? ",\n" : "\n");
    }
    buf_adds(b, "]}\n");
}

/* Rank files of a set that was here before, split another way. */
static void remove_old_ranks(const struct shardset_writer *w)
{
    DIR *d = opendir(w->dir);
    const struct dirent *x;
    while (d && (x = readdir(d))) {
        bool ours = false;
        for (size_t i = 0; i < w->n_files; i++)
            ours |= !strcmp(w->file[i], x->d_name);
        if (!ours && !fnmatch(RANK_FILES, x->d_name, 0))
            unlinkat(w->dir_fd, x->d_name, 0);
    }
    if (d)
        closedir(d);
}

/* The old manifest goes first and the new one comes last: in between the folder is no set. */
static int take_names(struct shardset_writer *w, struct err *e)
{
    unlinkat(w->dir_fd, SHARD_MANIFEST, 0);
    fsync(w->dir_fd);
    for (size_t i = 0; i < w->n_files; i++) {
        char *path = temporary(w, w->file[i]), *to = path_join(w->dir, w->file[i]);
        int rc = 0;
        if (i + 1 == w->n_files) /* the manifest: all else has its name on the disk */
            fsync(w->dir_fd);
        if (rename(path, to))
            rc = err_errno(e, "cannot rename %s", path);
        xfree(path);
        xfree(to);
        if (rc)
            return rc;
    }
    fsync(w->dir_fd);
    return 0;
}

int shardset_commit(struct shardset_writer *w, struct err *e)
{
    struct buf b = BUF_INIT;
    for (int r = 0; r < w->info.ranks; r++)
        assert(w->ranks[r].done);
    make_manifest(w, &b);
    int rc = shardset_add_file(w, SHARD_MANIFEST, b.s, b.len, e);
    buf_release(&b);
    if (!rc)
        rc = take_names(w, e);
    if (rc) {
        shardset_abort(w);
        return rc;
    }
    remove_old_ranks(w);
    writer_free(w);
    return 0;
}
