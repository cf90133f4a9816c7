/* file.h: whole files and exact reads, with errors that name the file. */
#ifndef YOKE_BASE_FILE_H
#define YOKE_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"

/* Reads a whole file, at most max_bytes (more is an error), and appends it to b. */
int file_slurp(const char *path, size_t max_bytes, struct buf *b, struct err *e);

/* A file open for exact reads at offsets; reads are thread-safe. */
struct file {
    int fd; /* -1: closed */
    uint64_t size;
    char *path;
};
#define FILE_INIT                                                                                            \
    {                                                                                                        \
        -1, 0, NULL                                                                                          \
    }
int file_open(struct file *f, const char *path, struct err *e);
void file_close(struct file *f);
/* Exactly n bytes at offset; a short file is ERR_FORMAT naming both sizes. */
int file_read_at(const struct file *f, uint64_t offset, void *dst, size_t n, struct err *e);

/* 1 if the path exists (as a folder / as a regular file), else 0. */
int path_is_dir(const char *path);
int path_is_file(const char *path);
char *path_join(const char *dir, const char *name); /* xfree() the result */

#endif
