#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"

int file_open(struct file *f, const char *path, struct err *e)
{
    struct stat st;
    *f = (struct file)FILE_INIT;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "cannot open %s", path);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return err_set(e, ERR_IO, "%s is not a regular file", path);
    }
    f->fd = fd;
    f->size = (uint64_t)st.st_size;
    f->path = xstrdup(path);
    return 0;
}

void file_close(struct file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    xfree(f->path);
    *f = (struct file)FILE_INIT;
}

int file_read_at(const struct file *f, uint64_t offset, void *dst, size_t n, struct err *e)
{
    if (offset > f->size || n > f->size - offset)
        return err_set(e, ERR_FORMAT,
                       "%s: %zu bytes at offset %llu are needed, but the file has only %llu bytes", f->path,
                       n, (unsigned long long)offset, (unsigned long long)f->size);
    char *p = dst;
    while (n) {
        ssize_t got = pread(f->fd, p, n < (1u << 30) ? n : (1u << 30), (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, "cannot read %s at offset %llu", f->path, (unsigned long long)offset);
        if (got == 0)
            return err_set(e, ERR_FORMAT, "%s ended at offset %llu while it was being read", f->path,
                           (unsigned long long)offset);
        p += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

int file_slurp(const char *path, size_t max_bytes, struct buf *b, struct err *e)
{
    struct file f;
    int rc = file_open(&f, path, e);
    if (rc)
        return rc;
    if (f.size > max_bytes) {
        rc = err_set(e, ERR_LIMIT, "%s has %llu bytes; at most %zu are read", path,
                     (unsigned long long)f.size, max_bytes);
    } else {
        size_t at = b->len;
        buf_reserve(b, (size_t)f.size);
        rc = file_read_at(&f, 0, b->s + at, (size_t)f.size, e);
        if (!rc)
            b->len = at + (size_t)f.size;
        if (b->cap)
            b->s[b->len] = 0;
    }
    file_close(&f);
    return rc;
}

int path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int path_is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    return xasprintf("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}
