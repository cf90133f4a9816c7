#include "cli/opening.h"

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

int tokenizer_open_path(const char *path, struct tokenizer **ret, struct err *e)
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

int template_open(const struct tokenizer *t, const char *where, struct template **ret, struct err *e)
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

int template_verdict(int rc, struct err *e)
{
    if (rc != ERR_FAIL)
        return rc;
    e->code = ERR_USAGE;
    return err_prefix(e, "the chat template does not take this conversation");
}

static int add_message(json_t *list, const char *role, const char *text, size_t n, struct err *e)
{
    json_t *content = json_stringn(text, n);
    if (!content)
        return err_set(e, ERR_USAGE, "the %s message is not UTF-8 text", role);
    json_array_append_new(list, json_pack("{s:s, s:o}", "role", role, "content", content));
    return 0;
}

int messages_make(const char *system, const char *user, size_t n_user, json_t **ret, struct err *e)
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
