/* answer.h: the text side of one request: tokens become text as soon as it is certain, stop strings end it.
 *
 * Text is certain when its characters are whole and no stop string could begin in it. An answer owns its
 * request in the engine from start to free.
 */
#ifndef YOKE_CLI_ANSWER_H
#define YOKE_CLI_ANSWER_H

#include "cli/session.h"

typedef void answer_emit_fn(void *ctx, const char *text, size_t n);

struct answer {
    struct session *session;
    struct request *request;
    struct detokenizer *detokenizer;
    struct strings stop;
    const int32_t
        *eos; /* ids that end it; their text is not part of the answer if special tokens are skipped */
    int32_t n_eos;
    bool skip_special;
    struct buf text; /* all that is certain, and what a stop string may still take away */
    size_t sent;     /* bytes handed to emit */
    bool stopped, ended;
    answer_emit_fn *emit; /* may be NULL */
    void *ctx;
    enum finish finish; /* once ended */
    struct arena *mem;
};

/* ids: the prompt. sample's strings must live as long as the answer. */
int answer_start(struct answer *a, struct session *x, const struct ids *ids,
                 const struct sampling_settings *sample, answer_emit_fn *emit, void *ctx, struct err *e);
/* After each engine_step: true once the request has finished and all its text is out. */
bool answer_done(struct answer *a);
void answer_cancel(struct answer *a);  /* the user interrupts: what is there is the answer */
void answer_release(struct answer *a); /* fine for a zeroed one */

#endif
