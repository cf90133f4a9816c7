/* yoke template: messages through a model's chat template, for people who want to see what the model sees. */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/input.h"
#include "cli/opening.h"
#include "cli/prompts.h"
#include "text/chat.h"

enum { MAX_TEMPLATE = 1 << 20 };

/* What goes into the template, all from outside. */
struct given {
    json_t *document; /* of --messages: owns messages and perhaps tools */
    json_t *messages, *tools, *vars;
};

static void given_release(struct given *g)
{
    json_decref(g->document);
    json_decref(g->messages);
    json_decref(g->tools);
    json_decref(g->vars);
}

static int read_json(const char *path, json_t **ret, struct err *e)
{
    struct buf b = BUF_INIT;
    int err = input_read(path, INPUT_MAX_BYTES, &b, e);
    if (!err)
        err = json_parse(b.s, b.len, input_name(path), ret, e);
    buf_release(&b);
    return err;
}

static int read_messages(const struct settings *s, struct given *g, struct err *e)
{
    if (!s->messages) {
        if (!s->prompts.n && !s->system)
            return err_set(e, ERR_USAGE, "no messages: give -p TEXT, --system TEXT or --messages FILE.json");
        const char *user = s->prompts.n ? s->prompts.v[0] : NULL;
        return messages_make(s->system, user, user ? strlen(user) : 0, &g->messages, e);
    }
    int err = read_json(s->messages, &g->document, e);
    if (err)
        return err;
    const json_t *list = json_is_object(g->document) ? json_object_get(g->document, "messages") : g->document;
    if (!json_is_array(list))
        return err_set(e, ERR_USAGE, "%s should be a list of messages, or an object with \"messages\"",
                       input_name(s->messages));
    err = prompts_check_messages(list, input_name(s->messages), e);
    if (err)
        return err;
    g->messages = json_copy((json_t *)list);
    if (s->system)
        json_array_insert_new(g->messages, 0,
                              json_pack("{s:s, s:s}", "role", "system", "content", s->system));
    if (json_is_object(g->document))
        g->tools = json_incref(json_object_get(g->document, "tools"));
    return 0;
}

static int read_tools(const struct settings *s, struct given *g, struct err *e)
{
    if (s->tools) {
        json_decref(g->tools);
        g->tools = NULL;
        int err = read_json(s->tools, &g->tools, e);
        if (err)
            return err;
    }
    if (g->tools && !json_is_array(g->tools) && !json_is_null(g->tools))
        return err_set(e, ERR_USAGE, "%s: tools should be a list",
                       s->tools ? input_name(s->tools) : input_name(s->messages));
    return 0;
}

/* --var name=json; what is no JSON is a text: --var date=today. */
static int read_vars(const struct settings *s, struct given *g, struct err *e)
{
    g->vars = json_object();
    for (size_t i = 0; i < s->vars.n; i++) {
        const char *text = s->vars.v[i], *eq = strchr(text, '=');
        if (!eq || eq == text)
            return err_set(e, ERR_USAGE, "--var \"%s\" should be NAME=JSON, such as enable_thinking=false",
                           text);
        char *name = xstrndup(text, (size_t)(eq - text));
        json_t *v = json_loads(eq + 1, JSON_DECODE_ANY, NULL);
        if (!v)
            v = json_string(eq + 1);
        int err = v && !json_object_set_new(g->vars, name, v)
                      ? 0
                      : err_set(e, ERR_USAGE, "--var \"%s\" is not UTF-8 text", text);
        xfree(name);
        if (err)
            return err;
    }
    return 0;
}

static int open_template(const struct settings *s, const struct tokenizer *tok, struct template **ret,
                         struct err *e)
{
    if (!s->template_file)
        return template_open(tok, s->tokenizer, ret, e);
    struct buf b = BUF_INIT;
    int err = file_slurp(s->template_file, MAX_TEMPLATE, &b, e);
    if (!err && (err = template_parse(b.s, b.len, ret, e)))
        err_prefix(e, "%s", s->template_file);
    buf_release(&b);
    return err;
}

/* As transformers calls a template: what is not given is None, not undefined. */
static int render(const struct settings *s, const struct given *g, const struct tokenizer *tok,
                  const struct template *t, struct buf *out, struct err *e)
{
    json_t *vars = tok ? chat_vars(tok, g->messages, g->tools, s->generation_prompt)
                       : json_pack("{s:O, s:b}", "messages", g->messages, "add_generation_prompt",
                                   (int)s->generation_prompt);
    json_object_set_new(vars, "tools", g->tools ? json_incref(g->tools) : json_null());
    json_object_set_new(vars, "documents", json_null());
    json_object_update(vars, g->vars);
    int err = template_verdict(template_render(t, vars, (struct template_limits){0}, out, e), e);
    json_decref(vars);
    return err;
}

int command_template(struct settings *s, struct warn_sink *warn, struct err *e)
{
    (void)warn;
    struct given g = {0};
    struct tokenizer *tok = NULL;
    struct template *t = NULL;
    struct buf out = BUF_INIT;
    int err = read_messages(s, &g, e);
    if (!err)
        err = read_tools(s, &g, e);
    if (!err)
        err = read_vars(s, &g, e);
    if (!err && s->tokenizer)
        err = tokenizer_open_path(s->tokenizer, &tok, e);
    if (!err)
        err = open_template(s, tok, &t, e);
    if (!err)
        err = render(s, &g, tok, t, &out, e);
    if (!err)
        fwrite(out.s, 1, out.len, stdout);
    buf_release(&out);
    template_free(t);
    tokenizer_free(tok);
    given_release(&g);
    return err;
}
