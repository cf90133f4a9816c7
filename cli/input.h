/* input.h: a file that the user named, where "-" is standard input. */
#ifndef YOKE_CLI_INPUT_H
#define YOKE_CLI_INPUT_H

#include "base/buf.h"
#include "base/err.h"

enum { INPUT_MAX_BYTES = 256 << 20 };

int input_read(const char *path, struct buf *b, struct err *e); /* all of it; appends */
const char *input_name(const char *path);                       /* for messages */

#endif
