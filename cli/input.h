/* input.h: a file that the user named: a regular one, a pipe such as <(command), or "-", standard input. */
#ifndef YOKE_CLI_INPUT_H
#define YOKE_CLI_INPUT_H

#include <stddef.h>
#include "base/buf.h"
#include "base/err.h"

enum { INPUT_MAX_BYTES = 256 << 20 };

/* All of it, at most max_bytes (more is ERR_LIMIT); appends. */
int input_read(const char *path, size_t max_bytes, struct buf *b, struct err *e);
const char *input_name(const char *path); /* for messages */

#endif
