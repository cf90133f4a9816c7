/* decoder.h: from tokens' spellings to text, piece by piece.
 *
 * A chain of stages, as tokenizer.json's decoder names them. Text flows through as a stream of tokens, each
 * in one or more fragments and then its end; a stage keeps back only what later input could still change, so
 * a whole decode and an incremental one are the same walk.
 */
#ifndef YOKE_TEXT_DECODER_H
#define YOKE_TEXT_DECODER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "base/err.h"
#include "text/normalize.h"

enum decoder_kind {
    DECODE_BYTE_LEVEL,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_REPLACE,
    DECODE_METASPACE,
    DECODE_BPE,  /* suffix becomes a space, or nothing in the last token */
    DECODE_JOIN, /* no decoder at all: tokens with spaces between */
};

struct decoder_step {
    enum decoder_kind kind;
    struct pattern pattern; /* REPLACE */
    char *content;          /* REPLACE's content, STRIP's and METASPACE's character, BPE's suffix */
    size_t n_content;
    size_t start, stop; /* STRIP */
    bool drop_first;    /* METASPACE: the first token's marks vanish */
};

struct decoder {
    struct decoder_step *step;
    size_t n_steps, cap_steps;
    size_t growth; /* how many times longer replacements can make a token: decoding knows no errors, so this
                      is bounded when the file is read */
};
#define DECODER_MAX_GROWTH 4096

int decoder_add_json(struct decoder *d, const json_t *v, const char *where, struct err *e);
struct decoder_step *decoder_add(struct decoder *d, enum decoder_kind kind, const char *content);
int decoder_add_replace(struct decoder *d, const char *literal, const char *content, struct err *e);
void decoder_release(struct decoder *d);

/* One walk through a decoder. */
struct decoding {
    const struct decoder *decoder;
    struct decoding_stage {
        struct buf token;      /* fragments of the token at hand, or bytes not yet certain */
        struct buf run;        /* BYTE_FALLBACK: bytes in a row */
        size_t n_tokens;       /* ended so far */
        size_t stripped, held; /* STRIP: characters taken at the start, and kept back at the end */
        bool begun;            /* STRIP: past the start */
        bool waiting;          /* BPE: a token is kept back */
    } * stage;                 /* [decoder->n_steps] */
    struct buf *out;
    struct text_scratch scratch;
};
void decoding_begin(struct decoding *d, const struct decoder *decoder);
void decoding_token(struct decoding *d, const char *s, size_t n, struct buf *out);
void decoding_end(struct decoding *d, struct buf *out); /* all that was kept back; the walk may not go on */
void decoding_release(struct decoding *d);

#endif
