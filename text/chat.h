/* chat.h: a conversation to token ids: the template renders it, the tokenizer encodes it, and nobody's words
 * become control.
 *
 * A template writes special tokens (<|im_end|> ...) as plain text between the messages, so the rendered text
 * is encoded with them parsed. Where a message's own text spells a special token, that spelling must stay
 * text: it is marked before rendering, and encoded as ordinary characters afterwards.
 */
#ifndef YOKE_TEXT_CHAT_H
#define YOKE_TEXT_CHAT_H

#include <stdbool.h>
#include <jansson.h>
#include "text/template.h"
#include "text/tokenizer.h"

/* The variables that templates expect: messages, tools (if not NULL), add_generation_prompt, bos_token,
 * eos_token. A new reference. The caller may add more (enable_thinking, ...). */
json_t *chat_vars(const struct tokenizer *t, const json_t *messages, const json_t *tools,
                  bool add_generation_prompt);

/* Appends the rendered conversation's ids to `ids` and, if not NULL, its text to `rendered`. */
int chat_encode(const struct tokenizer *t, const struct template *tmpl, const json_t *vars, struct ids *ids,
                struct buf *rendered, struct err *e);

#endif
