/* unicode.h: the questions about characters that tokenizers ask, answered as the libraries behind Hugging
 * Face's tokenizers answer them (see make_unidata.py). */
#ifndef YOKE_TEXT_UNICODE_H
#define YOKE_TEXT_UNICODE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"

bool uni_is_space(uint32_t c);       /* White_Space */
bool uni_is_numeric(uint32_t c);     /* general category N */
bool uni_is_punctuation(uint32_t c); /* the Punctuation pre-tokenizer's: P of an old Unicode, and ASCII's */
bool uni_is_combining(uint32_t c);   /* StripAccents' */
bool uni_is_word(uint32_t c);        /* \w: Alphabetic, M, Nd, Pc, Join_Control */
/* Lower case without context; 1 or 2 code points, returns how many. */
int uni_lower(uint32_t c, uint32_t ret[2]);
/* True for characters that the normalisation forms below treat as unknown: no decomposition, class 0. */
bool uni_is_young(uint32_t c);

/* Appends to a pattern (PCRE2, inside a class) the characters of a general category ("L", "Lu", "Nd", ...)
 * that are younger than the pattern library; nothing if there are none. */
void uni_add_new_ranges(struct buf *class, const char *category);
/* The same for the characters of script Han. */
void uni_add_new_han(struct buf *class);

#endif
