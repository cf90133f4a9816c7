#include "cli/input.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

const char *input_name(const char *path)
{
    return strcmp(path, "-") ? path : "standard input";
}

static int read_stream(FILE *f, const char *name, size_t max_bytes, struct buf *b, struct err *e)
{
    char chunk[1 << 16];
    size_t n;
    while ((n = fread(chunk, 1, sizeof(chunk), f)) > 0) {
        if (b->len > max_bytes || n > max_bytes - b->len)
            return err_set(e, ERR_LIMIT, "%s: more than %zu bytes", name, max_bytes);
        buf_add(b, chunk, n);
    }
    return ferror(f) ? err_errno(e, "cannot read %s", name) : 0;
}

int input_read(const char *path, size_t max_bytes, struct buf *b, struct err *e)
{
    if (!strcmp(path, "-"))
        return read_stream(stdin, input_name(path), max_bytes, b, e);
    if (path_is_file(path))
        return file_slurp(path, max_bytes, b, e);
    FILE *f = fopen(path, "re");
    if (!f)
        return err_errno(e, "cannot open %s", path);
    int err = read_stream(f, path, max_bytes, b, e);
    fclose(f);
    return err;
}
