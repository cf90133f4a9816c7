/* template.h: chat templates, by an interpreter of the Jinja subset that real models' templates use.
 *
 * As transformers runs them: jinja2's ImmutableSandboxedEnvironment with trim_blocks and lstrip_blocks on,
 * loop controls, `{% generation %}` blocks (rendered through), tojson without HTML escapes (ensure_ascii
 * false), raise_exception, strftime_now. Undefined values print as nothing; attribute access on them is an
 * error, as in jinja2. A template sees its variables and nothing else, and changes none of them; it is
 * stopped with an error after `max_steps` steps or `max_output` bytes. A template is immutable once parsed
 * and may be rendered by many threads at once.
 */
#ifndef YOKE_TEXT_TEMPLATE_H
#define YOKE_TEXT_TEMPLATE_H

#include <stddef.h>
#include <jansson.h>
#include "base/buf.h"
#include "base/err.h"

struct template;

/* Parse errors carry line and column in the template and say what was expected. */
int template_parse(const char *source, size_t n, struct template **ret, struct err *e);
void template_free(struct template *t); /* NULL is fine */

struct template_limits {
    size_t max_steps;  /* evaluated nodes; 0: a default of millions */
    size_t max_output; /* bytes; 0: a default of 16 MiB */
    long long now;     /* seconds since the epoch for strftime_now; 0: the current time */
};

/* vars: an object with messages, tools, documents, add_generation_prompt, bos_token, eos_token, ... Key order
 * is kept. Appends the rendered text to out. raise_exception's message becomes the error's sentence. */
int template_render(const struct template *t, const json_t *vars, struct template_limits limits,
                    struct buf *out, struct err *e);

#endif
