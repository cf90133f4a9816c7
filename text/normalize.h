/* normalize.h: what a tokenizer does to text before anything else: Unicode forms, case, replacements.
 *
 * A chain of steps, as tokenizer.json's normalizer names them. Immutable once read; linear in the text's
 * length, also for long runs of combining marks.
 */
#ifndef YOKE_TEXT_NORMALIZE_H
#define YOKE_TEXT_NORMALIZE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "base/err.h"
#include "text/regex.h"

/* Steps that a file puts together may let a text grow without end; the published ones keep within threefold,
 * and compatibility forms within 18. */
#define TEXT_MAX_GROWTH 64

/* A pattern is a literal string or a regular expression. */
struct pattern {
    char *literal; /* NULL: regex */
    size_t n_literal;
    struct regex *regex;
};
/* {"String": "..."} or {"Regex": "..."}. */
int pattern_from_json(const json_t *v, const char *where, struct pattern *ret, struct err *e);
int pattern_from_string(const char *s, bool is_regex, const char *where, struct pattern *ret, struct err *e);
void pattern_release(struct pattern *p);
int pattern_find_all(const struct pattern *p, struct regex_scratch *scratch, const char *text, size_t n,
                     struct regex_matches *m, struct err *e);

struct normalizer {
    struct normalizer_step *step;
    size_t n_steps, cap_steps;
};

/* `v` is tokenizer.json's "normalizer": an object or null. Appends to n. */
int normalizer_add_json(struct normalizer *n, const json_t *v, const char *where, struct err *e);
void normalizer_add_nfc(struct normalizer *n);
void normalizer_add_prepend(struct normalizer *n, const char *s);
int normalizer_add_replace(struct normalizer *n, const char *literal, const char *content, struct err *e);
void normalizer_release(struct normalizer *n);

/* What is used again and again during one encoding. */
struct text_scratch {
    struct regex_scratch *regex;
    struct regex_matches matches;
    struct buf spare;
};
void text_scratch_init(struct text_scratch *s);
void text_scratch_release(struct text_scratch *s);

/* Replaces the text by its normal form. `head` is how many of its leading bytes come from the very first
 * character of the original text (0 for a text from further on): Metaspace's "first" wants to know. */
int normalizer_run(const struct normalizer *n, struct text_scratch *s, struct buf *text, size_t *head,
                   struct err *e);

/* GPT-2's printable stand-ins for bytes: what byte b is written as (a code point below 0x180), and back (-1
 * if the code point stands for no byte). Appends the text's bytes in that form. */
uint32_t byte_level_char(unsigned char b);
int byte_level_byte(uint32_t c);
void byte_level_add(struct buf *out, const char *s, size_t n);

#endif
