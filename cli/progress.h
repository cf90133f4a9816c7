/* progress.h: how far a long thing is, in one line on standard error, if that is a terminal.
 *
 *     struct progress p;
 *     progress_begin(&p, "loading", total_bytes, PROGRESS_BYTES);
 *     ... progress_update(&p, bytes_so_far);      any number of times; draws at most ten times a second
 *     progress_end(&p);                           takes the line away
 *
 * Where standard error is no terminal (a log, a pipe, a batch job) all of it does nothing; so it does with
 * YOKE_PROGRESS=0. One thread at a time. Before other text goes to the terminal: progress_hide().
 */
#ifndef YOKE_CLI_PROGRESS_H
#define YOKE_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"

enum progress_unit { PROGRESS_BYTES, PROGRESS_COUNT };

struct progress {
    const char *what;
    const char *noun; /* PROGRESS_COUNT: "prompts", "tensors"; may be NULL */
    char note[64];    /* shown at the end of the line, such as "12.3 tokens/s" */
    enum progress_unit unit;
    uint64_t done, total; /* total 0: not known */
    double begin_s, drawn_s;
    int fd; /* -1: draws nothing */
    bool visible;
};

void progress_begin(struct progress *p, const char *what, uint64_t total, enum progress_unit unit);
void progress_update(struct progress *p, uint64_t done);
void progress_note(struct progress *p, const char *note); /* shown from the next drawing on */
void progress_hide(struct progress *p);                   /* until the next update */
void progress_end(struct progress *p);

/* The line itself, at most `width` columns, without escapes; appends. elapsed_s: since the beginning. */
void progress_render(const struct progress *p, int width, double elapsed_s, struct buf *out);

#endif
