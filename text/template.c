#include "text/template.h"

#include <string.h>
#include "base/mem.h"
#include "text/template_impl.h"

enum { DEFAULT_STEPS = 20 * 1000 * 1000, DEFAULT_OUTPUT = 16 << 20, LEAST_MEMORY = 1 << 20 };

/* A rendering's memory, as a multiple of the output it may make: variables, strings on their way, lists. */
enum { MEMORY_PER_OUTPUT = 16 };

/* setjmp and what happens around it are in functions of their own, so that no local variable is changed
 * between setjmp and longjmp and read afterwards. */
static int parse_trapped(struct parse_trap *trap, struct template *t, const char *source, size_t n)
{
    if (setjmp(trap->jump))
        return trap->code;
    template_parse_tokens(trap, t, template_lex(trap, t->arena, source, n));
    return 0;
}

int template_parse(const char *source, size_t n, struct template **ret, struct err *e)
{
    size_t bad;
    if (n > MAX_SOURCE)
        return err_set(e, ERR_LIMIT, "a chat template of %zu bytes, but at most %u are read", n, MAX_SOURCE);
    if (!utf8_check(source, n, &bad))
        return err_set(e, ERR_FORMAT, "the chat template is not UTF-8 at byte %zu", bad);
    struct template *t;
    XNEW(t);
    t->arena = arena_new();
    struct parse_trap *trap;
    XNEW(trap);
    trap->e = e;
    int code = parse_trapped(trap, t, source, n);
    xfree(trap);
    if (code) {
        template_free(t);
        return code;
    }
    *ret = t;
    return 0;
}

void template_free(struct template *t)
{
    if (!t)
        return;
    arena_free(t->arena);
    xfree(t);
}

static int render_trapped(struct render *r, const json_t *vars)
{
    if (setjmp(r->jump))
        return r->code;
    if (!json_is_object(vars))
        tmpl_raise(r, ERR_USAGE, "its variables must be a JSON object");
    r->vars = val_from_json(r, vars).d;
    r->root = ralloc(r, sizeof(*r->root));
    template_run(r);
    return 0;
}

int template_render(const struct template *t, const json_t *vars, struct template_limits limits,
                    struct buf *out, struct err *e)
{
    struct render *r;
    XNEW(r);
    r->tmpl = t;
    r->e = e;
    r->arena = arena_new();
    r->max_steps = limits.max_steps ? limits.max_steps : DEFAULT_STEPS;
    r->max_output = limits.max_output ? limits.max_output : DEFAULT_OUTPUT;
    if (!size_mul(r->max_output, MEMORY_PER_OUTPUT, &r->max_memory))
        r->max_memory = SIZE_MAX;
    r->max_memory = MAX(r->max_memory, (size_t)LEAST_MEMORY);
    r->now = limits.now;
    r->out = out;
    r->out_start = out->len;
    int code = render_trapped(r, vars);
    while (r->scratch)
        scratch_drop(r, r->scratch);
    if (code && out->len > r->out_start) {
        out->len = r->out_start;
        out->s[out->len] = 0;
    }
    arena_free(r->arena);
    xfree(r);
    return code;
}
