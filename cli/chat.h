/* chat.h: from messages to the prompt that a model was trained on; and where its tokenizer is. */
#ifndef YOKE_CLI_CHAT_H
#define YOKE_CLI_CHAT_H

#include <stdbool.h>
#include <jansson.h>
#include "base/buf.h"
#include "base/err.h"
#include "text/template.h"
#include "text/tokenizer.h"

/* path: a model as --model names it: a folder, a .gguf file, or a .safetensors file (then its folder). */
int chat_open_tokenizer(const char *path, struct tokenizer **ret, struct err *e);

/* The template that came with the tokenizer; ERR_UNSUPPORTED, saying so, if none did. `where` is for
 * messages. */
int chat_open_template(const struct tokenizer *t, const char *where, struct template **ret, struct err *e);

/* [{"role": "system", ...}, {"role": "user", ...}]; either may be NULL. The caller json_decref()s. The text
 * must be UTF-8: ERR_USAGE otherwise. */
int chat_messages(const char *system, const char *user, size_t n_user, json_t **ret, struct err *e);

struct chat {
    const json_t *messages;
    const json_t *tools;        /* NULL: none */
    const json_t *vars;         /* an object with further variables; NULL: none */
    bool add_generation_prompt; /* end with the opening of the assistant's answer */
};
/* Appends the prompt, which is to be encoded with add_special off and parse_special on. `tok` names bos_token
 * and eos_token to the template; it may be NULL. */
int chat_render(const struct template *t, const struct tokenizer *tok, const struct chat *c, struct buf *out,
                struct err *e);

#endif
