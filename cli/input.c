#include "cli/input.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

const char *input_name(const char *path)
{
    return strcmp(path, "-") ? path : "standard input";
}

int input_read(const char *path, struct buf *b, struct err *e)
{
    if (strcmp(path, "-"))
        return file_slurp(path, INPUT_MAX_BYTES, b, e);
    char chunk[1 << 16];
    size_t n;
    while ((n = fread(chunk, 1, sizeof(chunk), stdin)) > 0) {
        if (n > INPUT_MAX_BYTES - b->len)
            return err_set(e, ERR_LIMIT, "standard input: more than %d bytes", INPUT_MAX_BYTES);
        buf_add(b, chunk, n);
    }
    return ferror(stdin) ? err_errno(e, "standard input") : 0;
}
