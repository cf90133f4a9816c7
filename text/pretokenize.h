/* pretokenize.h: cutting normalised text into the pieces that are encoded independently.
 *
 * A chain of steps, as tokenizer.json's pre_tokenizer names them; each cuts every piece it is given, some
 * also rewrite text (ByteLevel, Metaspace). Immutable once read.
 */
#ifndef YOKE_TEXT_PRETOKENIZE_H
#define YOKE_TEXT_PRETOKENIZE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "base/err.h"
#include "text/normalize.h"

struct piece {
    uint32_t at, len;
    uint32_t head; /* leading bytes that come from the original text's first character; see normalizer_run */
};

struct pieces {
    struct buf text;
    struct piece *v; /* [n] in order, none empty */
    size_t n, cap;
};
void pieces_init(struct pieces *p);
void pieces_release(struct pieces *p);

struct pretokenizer {
    struct pretokenizer_step *step;
    size_t n_steps, cap_steps;
};

int pretokenizer_add_json(struct pretokenizer *p, const json_t *v, const char *where, struct err *e);
/* For GGUF: Split (isolated) by a pattern, Digits one by one, ByteLevel with or without GPT-2's pattern. */
int pretokenizer_add_split(struct pretokenizer *p, const char *pattern, const char *where, struct err *e);
void pretokenizer_add_digits(struct pretokenizer *p);
int pretokenizer_add_byte_level(struct pretokenizer *p, bool add_prefix_space, bool use_regex, struct err *e);
void pretokenizer_release(struct pretokenizer *p);

/* p holds the text as one piece (or none), on return as many; `spare` is overwritten. */
int pretokenizer_run(const struct pretokenizer *t, struct text_scratch *s, struct pieces *p,
                     struct pieces *spare, struct err *e);

#endif
