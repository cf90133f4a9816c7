#include "cli/chat.h"

#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/gguf.h"

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcasecmp(s + n - m, end);
}

int chat_open_tokenizer(const char *path, struct tokenizer **ret, struct err *e)
{
    if (path_is_dir(path))
        return tokenizer_open_dir(path, ret, e);
    if (ends_in(path, ".safetensors")) {
        const char *slash = strrchr(path, '/');
        char *dir = slash ? xstrndup(path, (size_t)MAX(slash - path, 1)) : xstrdup(".");
        int err = tokenizer_open_dir(dir, ret, e);
        xfree(dir);
        return err;
    }
    struct gguf *g = NULL;
    int err = gguf_open(path, &g, e);
    if (!err)
        err = tokenizer_from_gguf(g, ret, e);
    gguf_close(g);
    return err;
}

int chat_open_template(const struct tokenizer *t, const char *where, struct template **ret, struct err *e)
{
    const char *source = tokenizer_chat_template(t);
    if (!source)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s has no chat template: it is a model for plain text; leave --chat out, or give a template",
            where);
    if (template_parse(source, strlen(source), ret, e))
        return err_prefix(e, "%s: the chat template", where);
    return 0;
}

static int add_message(json_t *list, const char *role, const char *text, size_t n, struct err *e)
{
    json_t *content = json_stringn(text, n);
    if (!content)
        return err_set(e, ERR_USAGE, "the %s message is not UTF-8 text", role);
    json_array_append_new(list, json_pack("{s:s, s:o}", "role", role, "content", content));
    return 0;
}

int chat_messages(const char *system, const char *user, size_t n_user, json_t **ret, struct err *e)
{
    json_t *list = json_array();
    int err = 0;
    if (system)
        err = add_message(list, "system", system, strlen(system), e);
    if (!err && user)
        err = add_message(list, "user", user, n_user, e);
    if (err)
        json_decref(list);
    else
        *ret = list;
    return err;
}

static void set_token(json_t *vars, const char *name, const struct tokenizer *t, int id)
{
    const char *spelling = id >= 0 ? tokenizer_token(t, id) : NULL;
    if (spelling)
        json_object_set_new(vars, name, json_string(spelling));
}

int chat_render(const struct template *t, const struct tokenizer *tok, const struct chat *c, struct buf *out,
                struct err *e)
{
    /* As transformers calls it: what is not given is None, not undefined. */
    json_t *vars = json_object();
    json_object_set(vars, "messages", (json_t *)c->messages);
    json_object_set_new(vars, "tools", c->tools ? json_incref((json_t *)c->tools) : json_null());
    json_object_set_new(vars, "documents", json_null());
    json_object_set_new(vars, "add_generation_prompt", json_boolean(c->add_generation_prompt));
    if (tok) {
        set_token(vars, "bos_token", tok, tokenizer_bos(tok));
        set_token(vars, "eos_token", tok, tokenizer_eos(tok));
    }
    if (c->vars)
        json_object_update(vars, (json_t *)c->vars);
    struct template_limits limits = {0};
    int err = template_render(t, vars, limits, out, e);
    json_decref(vars);
    return err;
}
