#include "cli/prompts.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/suggest.h"

#define ROLE_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

struct reader {
    const struct settings *s;
    struct prompts *out;
    size_t cap;
    struct warn_sink *warn;
    struct err *e;
    char unknown[16][64]; /* keys warned about already */
    size_t n_unknown;
};

static struct prompt *add(struct reader *r, size_t line)
{
    XGROW(r->out->v, r->out->n, r->cap);
    struct prompt *p = &r->out->v[r->out->n++];
    *p = (struct prompt){.sample = r->s->sample, .line = line};
    return p;
}

static void add_text(struct reader *r, const char *text, size_t n, size_t line, bool unescape)
{
    struct prompt *p = add(r, line);
    char *copy = arena_strndup(r->out->mem, text, n);
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        copy[to] = text[i];
        if (unescape && text[i] == '\\' && i + 1 < n && text[i + 1] == 'n') {
            copy[to] = '\n';
            i++;
        }
        to++;
    }
    copy[to] = 0;
    p->text = copy;
    p->n_text = to;
}

static const struct option *per_prompt_option(const char *key)
{
    if (!strcmp(key, "max_tokens"))
        return &option_table[OPT_max_new_tokens];
    for (size_t i = 0; i < OPT_COUNT; i++)
        if ((option_table[i].flag & OF_PER_PROMPT) && !strcmp(option_table[i].name, key))
            return &option_table[i];
    return NULL;
}

static void warn_unknown(struct reader *r, const char *key, const char *where)
{
    static const char *const own[] = {"prompt", "messages", "tools", "id", "max_tokens"};
    if (r->n_unknown == ARRAY_LEN(r->unknown))
        return;
    for (size_t i = 0; i < r->n_unknown; i++)
        if (!strncmp(r->unknown[i], key, sizeof(r->unknown[i]) - 1))
            return;
    snprintf(r->unknown[r->n_unknown++], sizeof(r->unknown[0]), "%s", key);
    struct suggest s;
    suggest_init(&s, key, strlen(key));
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        suggest_try(&s, own[i], strlen(own[i]));
    for (size_t i = 0; i < OPT_COUNT; i++)
        if (option_table[i].flag & OF_PER_PROMPT)
            suggest_try(&s, option_table[i].name, strlen(option_table[i].name));
    if (s.best)
        warn_to(r->warn, "%s: unknown key \"%.60s\"; did you mean \"%.*s\"?", where, key, (int)s.best_len,
                s.best);
    else
        warn_to(r->warn, "%s: the key \"%.60s\" is not used", where, key);
}

static int check_content(const json_t *content, const char *where, struct err *e)
{
    if (!content || json_is_string(content) || json_is_null(content))
        return 0;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") || !json_is_string(json_object_get(part, "text")))
            return err_set(e, ERR_USAGE, "%s: only parts {\"type\": \"text\", \"text\": ...} are supported",
                           where);
    }
    return json_is_array(content) ? 0 : err_set(e, ERR_USAGE, "%s: \"content\" should be a text", where);
}

int prompts_check_messages(const json_t *messages, const char *where, struct err *e)
{
    if (!json_array_size(messages))
        return err_set(e, ERR_USAGE, "%s: \"messages\" should be a list of at least one message", where);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        /* A role is a name: templates put it next to control tokens, so it may not spell one itself. */
        if (!role || !*role || role[strspn(role, ROLE_CHARACTERS)])
            return err_set(e, ERR_USAGE, "%s: message %zu should be an object with a \"role\" such as user",
                           where, i + 1);
        int err = check_content(json_object_get(m, "content"), where, e);
        if (err)
            return err;
    }
    return 0;
}

/* Stop texts and the like go through 0-terminated strings. */
static bool holds_nul(const json_t *v)
{
    if (json_is_string(v))
        return strlen(json_string_value(v)) != json_string_length(v);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (holds_nul(json_array_get(v, i)))
            return true;
    return false;
}

/* What is no sampling setting. 1: it was one of these; 0: it was not; else an error. */
static int take_own_key(struct prompt *p, const char *key, const json_t *v, const char *where, struct err *e)
{
    if (!strcmp(key, "prompt")) {
        if (!json_is_string(v))
            return err_set(e, ERR_USAGE, "%s: \"prompt\" should be a text", where);
        p->text = json_string_value(v);
        p->n_text = json_string_length(v);
    } else if (!strcmp(key, "messages")) {
        int err = prompts_check_messages(v, where, e);
        if (err)
            return err;
        p->messages = v;
    } else if (!strcmp(key, "tools")) {
        if (!json_is_array(v) && !json_is_null(v))
            return err_set(e, ERR_USAGE, "%s: \"tools\" should be a list", where);
        p->tools = json_array_size(v) ? v : NULL;
    } else if (!strcmp(key, "id")) {
        if (!json_is_string(v) && !json_is_integer(v))
            return err_set(e, ERR_USAGE, "%s: \"id\" should be a text or an integer", where);
        p->id = v;
    } else {
        return 0;
    }
    return 1;
}

static int add_object(struct reader *r, const json_t *o, const char *where, size_t line)
{
    struct prompt *p = add(r, line);
    /* The line's settings are written into a copy of all settings, where the table's rows point. */
    struct settings over = {.mem = r->out->mem, .sample = p->sample};
    uint8_t origin[OPT_COUNT] = {0};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        int own = take_own_key(p, key, v, where, r->e);
        if (own < 0)
            return own;
        if (own)
            continue;
        const struct option *opt = per_prompt_option(key);
        if (!opt) {
            warn_unknown(r, key, where);
            continue;
        }
        if (json_is_null(v))
            continue;
        char *what = xasprintf("%s: \"%s\"", where, key);
        option_clear_list(opt, &over);
        int err = holds_nul(v) ? err_set(r->e, ERR_USAGE, "%s holds a NUL character", what)
                               : option_set(opt, &over, yaml_from_json(r->out->mem, v, ""), what, r->e);
        xfree(what);
        if (err)
            return err;
        origin[opt - option_table] = FROM_FLAG;
    }
    if (!p->text == !p->messages)
        return err_set(r->e, ERR_USAGE, "%s: a line has either \"prompt\" or \"messages\"", where);
    if (p->tools && !p->messages)
        return err_set(r->e, ERR_USAGE, "%s: \"tools\" go with \"messages\"", where);
    for (size_t i = 0; i < over.sample.stop.n; i++)
        if (!*over.sample.stop.v[i])
            return err_set(r->e, ERR_USAGE, "%s: an empty \"stop\" would end the answer at once", where);
    sampling_settle(&over.sample, origin, r->warn);
    p->sample = over.sample;
    return 0;
}

static int add_json_line(struct reader *r, const char *text, size_t n, const char *file, size_t line)
{
    json_error_t je;
    json_t *o = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (!o)
        return err_set(r->e, ERR_USAGE, "%s:%zu:%d: %s", file, line, je.column, je.text);
    char *where = xasprintf("%s:%zu", file, line);
    json_array_append_new(r->out->keep, o);
    int err = json_is_object(o)
                  ? add_object(r, o, where, line)
                  : err_set(r->e, ERR_USAGE, "%s: a line should be an object, {\"prompt\": \"...\"}", where);
    xfree(where);
    return err;
}

int prompts_parse(const char *text, size_t n, const char *where, int format, const struct settings *s,
                  struct prompts *ret, struct warn_sink *warn, struct err *e)
{
    struct prompts out = {.mem = arena_new(), .keep = json_array()};
    struct reader r = {.s = s, .out = &out, .warn = warn, .e = e};
    int err = 0;
    if (n >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3))
        text += 3, n -= 3;
    for (size_t at = 0, line = 1; at < n && !err; line++) {
        const char *s0 = text + at, *nl = memchr(s0, '\n', n - at);
        size_t len = nl ? (size_t)(nl - s0) : n - at;
        at += len + 1;
        if (len && s0[len - 1] == '\r')
            len--;
        size_t blank = 0;
        while (blank < len && (s0[blank] == ' ' || s0[blank] == '\t'))
            blank++;
        if (blank == len)
            continue;
        if (format == PROMPTS_JSONL)
            err = add_json_line(&r, s0, len, where, line);
        else
            add_text(&r, s0, len, line, s->prompts_unescape);
    }
    if (!err && !out.n)
        err = err_set(e, ERR_USAGE, "%s: there is no prompt in it", where);
    if (err)
        prompts_release(&out);
    else
        *ret = out;
    return err;
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcasecmp(s + n - m, end);
}

int prompts_read(const struct settings *s, struct prompts *ret, struct warn_sink *warn, struct err *e)
{
    if (!s->prompts_file) {
        struct prompts out = {.mem = arena_new(), .keep = json_array()};
        struct reader r = {.s = s, .out = &out};
        for (size_t i = 0; i < s->prompts.n; i++)
            add_text(&r, s->prompts.v[i], strlen(s->prompts.v[i]), 0, false);
        *ret = out;
        return 0;
    }
    int format = s->prompts_format;
    if (format == PROMPTS_AUTO)
        format = ends_in(s->prompts_file, ".jsonl") || ends_in(s->prompts_file, ".ndjson") ? PROMPTS_JSONL
                                                                                           : PROMPTS_TEXT;
    struct buf b = BUF_INIT;
    int err = input_read(s->prompts_file, INPUT_MAX_BYTES, &b, e);
    if (!err)
        err = prompts_parse(b.s, b.len, input_name(s->prompts_file), format, s, ret, warn, e);
    buf_release(&b);
    return err;
}

void prompts_release(struct prompts *p)
{
    xfree(p->v);
    arena_free(p->mem);
    json_decref(p->keep);
    *p = (struct prompts){0};
}
