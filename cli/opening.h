/* opening.h: from what the user named to a tokenizer, a chat template, a list of messages. */
#ifndef YOKE_CLI_OPENING_H
#define YOKE_CLI_OPENING_H

#include <stddef.h>
#include <jansson.h>
#include "base/err.h"
#include "text/template.h"
#include "text/tokenizer.h"

/* path: a model as --model names it: a folder, a .gguf file, or a .safetensors file (then its folder). */
int tokenizer_open_path(const char *path, struct tokenizer **ret, struct err *e);

/* The template that came with the tokenizer; ERR_UNSUPPORTED, saying so, if none did. `where` is for
 * messages.
 */
int template_open(const struct tokenizer *t, const char *where, struct template **ret, struct err *e);

/* chat_encode's and template_render's result: what a template says to a conversation it does not take
 * (raise_exception, a name it misses) is an error of usage, and says who speaks. */
int template_verdict(int rc, struct err *e);

/* [{"role": "system", ...}, {"role": "user", ...}]; either may be NULL. The caller json_decref()s. ERR_USAGE
 * if a text is not UTF-8. */
int messages_make(const char *system, const char *user, size_t n_user, json_t **ret, struct err *e);

#endif
