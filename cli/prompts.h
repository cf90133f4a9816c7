/* prompts.h: the prompts of a run, wherever they come from: -p, a text file, a JSON lines file.
 *
 * Each has its own sampling settings: those of the command line, overlaid with what its line says. A whole
 * file is read and checked before the first prompt runs, so that line 9000 cannot end a run of hours. Results
 * name a prompt by `id`, where its line gave one, else by its number.
 *
 * A line of a JSON lines file is one of
 *     {"prompt": "text", ...}
 *     {"messages": [{"role": "user", "content": "text"}, ...], "tools": [...], ...}
 * with, as it likes, "id" (string or number), "max_new_tokens" (or "max_tokens"), "temperature", "top_k",
 * "stop" and all other options that `yoke options` marks so. Other keys are warned about once each and left
 * alone.
 */
#ifndef YOKE_CLI_PROMPTS_H
#define YOKE_CLI_PROMPTS_H

#include <jansson.h>
#include "cli/settings.h"

struct prompt {
    const json_t *id;       /* a string or an integer; NULL: none was given */
    const char *text;       /* NULL if there are messages; 0-terminated, but may hold zeros: */
    size_t n_text;          /* its length */
    const json_t *messages; /* for the chat template; NULL if there is text */
    const json_t *tools;    /* NULL: none */
    struct sampling_settings sample;
    size_t line; /* in its file, from 1; 0 for -p */
};

struct prompts {
    struct prompt *v;
    size_t n;
    struct arena *mem;
    json_t *keep; /* the array that holds all JSON above */
};

/* All prompts of a run that is not interactive. s must have gone through settings_use_generation_config(). */
int prompts_read(const struct settings *s, struct prompts *ret, struct warn_sink *warn, struct err *e);
/* One file's bytes; format is not PROMPTS_AUTO. Errors are ERR_USAGE and name where:line. */
int prompts_parse(const char *text, size_t n, const char *where, int format, const struct settings *s,
                  struct prompts *ret, struct warn_sink *warn, struct err *e);
/* What a list of messages must be before a template sees it: objects with a role that is a plain name and
 * with content that is text, nothing, or text parts. ERR_USAGE. */
int prompts_check_messages(const json_t *messages, const char *where, struct err *e);
void prompts_release(struct prompts *p); /* fine for a zeroed one */

#endif
