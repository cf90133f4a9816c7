#include "engine/records.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/statfs.h>
#include <unistd.h>
#include "base/mem.h"
#include "engine/slices.h"
#include "formats/shardset.h"

#define TMPFS       0x01021994 /* f_type of a file system in memory */
#define SPILL_BYTES ((size_t)64 << 20)

struct records {
    struct record_reader base; /* first */
    const struct plan *p;
    int fd;
    bool direct;  /* past the page cache */
    char *path;   /* for messages */
    uint64_t *at; /* [expert layers]: the layer's first record in the file */
};

/* --- reading --- */

static int read_record(const struct record_reader *base, int32_t layer, int32_t member, void *to,
                       struct err *e)
{
    const struct records *x = (const struct records *)base;
    const struct expert_layer *l = &x->p->expert_layers[layer];
    uint64_t begin = x->at[layer] + l->bytes * (uint64_t)member, at = begin, end = begin + l->bytes;
    while (at < end) {
        ssize_t got =
            pread(x->fd, (char *)to + (at - begin), (size_t)MIN(end - at, (uint64_t)1 << 30), (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, "cannot read expert %d of layer %d, at offset %llu of %s",
                             l->stack.begin + member, l->layer, (unsigned long long)at, x->path);
        at += (uint64_t)got;
        if (got == 0 || (at < end && got % RECORD_ALIGN)) /* the file ends here; it was whole at the start */
            return err_set(
                e, ERR_IO, "cannot read expert %d of layer %d: %s ends at offset %llu, the expert at %llu",
                l->stack.begin + member, l->layer, x->path, (unsigned long long)at, (unsigned long long)end);
    }
    if (!x->direct)
        posix_fadvise(x->fd, (off_t)begin, (off_t)l->bytes, POSIX_FADV_DONTNEED);
    return 0;
}

static void close_records(struct record_reader *base)
{
    struct records *x = (struct records *)base;
    if (x->fd >= 0)
        close(x->fd);
    xfree(x->path);
    xfree(x->at);
    xfree(x);
}

static struct records *new_records(const struct plan *p)
{
    struct records *x;
    XNEW(x);
    x->base.read = read_record;
    x->base.close = close_records;
    x->p = p;
    x->fd = -1;
    XNEW_N(x->at, (size_t)p->n_expert_layers);
    return x;
}

/* Some file systems refuse O_DIRECT when it is asked for, some when it is used. */
static void go_direct(struct records *x)
{
    int flags = fcntl(x->fd, F_GETFL);
    if (flags < 0 || fcntl(x->fd, F_SETFL, flags | O_DIRECT))
        return;
    void *page = xaligned(RECORD_ALIGN, RECORD_ALIGN);
    x->direct = pread(x->fd, page, RECORD_ALIGN, (off_t)(x->p->n_expert_layers ? x->at[0] : 0)) >= 0;
    xfree(page);
    if (!x->direct)
        fcntl(x->fd, F_SETFL, flags);
}

int records_of_set(const struct shardset *s, const struct plan *p, struct record_reader **ret, struct err *e)
{
    struct records *x = new_records(p);
    struct file f;
    size_t payload_at;
    int rc = shardset_open_rank(s, slices_rank(p), &f, &payload_at, e);
    if (rc) {
        close_records(&x->base);
        return rc;
    }
    x->fd = f.fd;
    x->path = f.path;
    for (int32_t i = 0; i < p->n_expert_layers; i++)
        x->at[i] = payload_at + weights_offset(p, p->expert_layers[i].weight);
    go_direct(x);
    *ret = &x->base;
    return 0;
}

/* --- a temporary file --- */

static int open_temporary(struct records *x, const char *dir, struct err *e)
{
    x->path = xasprintf("a temporary file in %s", dir);
    x->fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (x->fd >= 0)
        return 0;
    char *name = path_join(dir, ".yoke_experts_XXXXXX"); /* not every file system has files without a name */
    x->fd = mkostemp(name, O_CLOEXEC);
    int rc =
        x->fd < 0
            ? err_errno(e, "cannot make a temporary file for experts in %s (--expert-cache-dir says where)",
                        dir)
            : 0;
    if (!rc)
        unlink(name);
    xfree(name);
    return rc;
}

static int no_room(const char *dir, uint64_t bytes, struct err *e)
{
    return err_set(
        e, ERR_IO,
        "%s has no room for %.2f GiB, the experts that a rank with --expert-cache keeps in a temporary "
        "file there; name another folder (--expert-cache-dir), or run yoke shard once and give what it "
        "writes as the model",
        dir, (double)bytes / 0x1p30);
}

static int take_room(struct records *x, const char *dir, uint64_t bytes, struct warn_sink *warn,
                     struct err *e)
{
    struct statfs fs;
    bool known = !fstatfs(x->fd, &fs);
    if (bytes && fallocate(x->fd, 0, 0, (off_t)bytes) &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG ||
         (known && (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize < bytes)))
        return no_room(dir, bytes, e);
    if (known && fs.f_type == TMPFS)
        warn_to(warn,
                "%s lies in memory (tmpfs), and so do the experts that --expert-cache is to keep out of it: "
                "name a "
                "folder on a disk (--expert-cache-dir)",
                dir);
    return 0;
}

static int write_all(const struct records *x, const char *dir, const void *data, size_t n, uint64_t at,
                     uint64_t total, struct err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t put =
            pwrite(x->fd, (const char *)data + done, MIN(n - done, (size_t)1 << 30), (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put == 0 || (put < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)))
            return no_room(dir, total, e);
        if (put < 0)
            return err_errno(e, "cannot write to %s", x->path);
        done += (size_t)put;
    }
    if (!x->direct && !fdatasync(x->fd)) /* or the page cache keeps what was to be kept out of memory */
        posix_fadvise(x->fd, (off_t)at, (off_t)n, POSIX_FADV_DONTNEED);
    return 0;
}

/* Bytes of some experts, as a part of all. */
struct spilling {
    const struct load_options *o;
    uint64_t before, bytes, total;
};

static void spill_progress(void *ctx, uint64_t done, uint64_t total)
{
    const struct spilling *x = ctx;
    double part = total ? (double)done / (double)total : 1;
    if (x->o->progress)
        x->o->progress(x->o->progress_ctx, x->before + (uint64_t)(part * (double)x->bytes), x->total);
}

static int spill_layer(const struct checkpoint *c, const struct records *x, int32_t layer, const char *dir,
                       struct spilling *s, struct err *e)
{
    const struct expert_layer *l = &x->p->expert_layers[layer];
    struct load_options lo = {.threads = s->o->threads, .progress = spill_progress, .progress_ctx = s};
    int32_t n = range_n(l->stack), step = (int32_t)MAX(SPILL_BYTES / l->bytes, (size_t)1);
    int rc = 0;
    for (int32_t k = 0; k < n && !rc; k += step) {
        const struct weights_part some = {l->weight, RECORD_PARTS, {k, MIN(k + step, n)}};
        struct weights *w;
        rc = weights_new_part(x->p, &some, &w, e);
        if (rc)
            break;
        s->bytes = w->bytes;
        rc = load_into(c, w, &lo, e);
        if (!rc)
            rc = write_all(x, dir, w->memory, w->bytes, x->at[layer] + l->bytes * (uint64_t)k, s->total, e);
        s->before += w->bytes;
        weights_free(w);
    }
    return rc;
}

int records_spill(const struct checkpoint *c, const struct plan *p, const struct load_options *o,
                  struct record_reader **ret, struct err *e)
{
    const char *dir = o->spill_dir ? o->spill_dir : getenv("TMPDIR");
    struct spilling s = {.o = o};
    struct records *x = new_records(p);
    if (!dir || !*dir)
        dir = "/var/tmp"; /* /tmp lies in memory on many systems */
    for (int32_t i = 0; i < p->n_expert_layers; i++) {
        x->at[i] = s.total;
        s.total += p->expert_layers[i].bytes * (uint64_t)range_n(p->expert_layers[i].stack);
    }
    int rc = open_temporary(x, dir, e);
    if (!rc)
        rc = take_room(x, dir, s.total, o->warn, e);
    if (!rc)
        go_direct(x);
    for (int32_t i = 0; i < p->n_expert_layers && !rc; i++)
        rc = spill_layer(c, x, i, dir, &s, e);
    if (rc)
        close_records(&x->base);
    else
        *ret = &x->base;
    return rc;
}
