#include "text/chat.h"

#include <string.h>
#include "base/mem.h"

/* Unicode noncharacters: never in text that is meant to be read, and no template looks for them. */
#define MARK_BEGIN "\xEF\xB7\x90" /* U+FDD0 */
#define MARK_END   "\xEF\xB7\x91" /* U+FDD1 */
#define MARK_LEN   3

json_t *chat_vars(const struct tokenizer *t, const json_t *messages, const json_t *tools,
                  bool add_generation_prompt)
{
    json_t *vars = json_object();
    json_object_set(vars, "messages", (json_t *)messages);
    /* as transformers calls a template: what is not given is None, not undefined */
    json_object_set_new(vars, "tools", tools ? json_incref((json_t *)tools) : json_null());
    json_object_set_new(vars, "documents", json_null());
    json_object_set_new(vars, "add_generation_prompt", json_boolean(add_generation_prompt));
    const char *bos = tokenizer_bos(t) >= 0 ? tokenizer_token(t, tokenizer_bos(t)) : NULL;
    const char *eos = tokenizer_eos(t) >= 0 ? tokenizer_token(t, tokenizer_eos(t)) : NULL;
    if (bos)
        json_object_set_new(vars, "bos_token", json_string(bos));
    if (eos)
        json_object_set_new(vars, "eos_token", json_string(eos));
    return vars;
}

/* The special tokens' spellings: few (tens to some hundreds), so a list does. */
struct specials {
    const char **token;
    size_t *len;
    int32_t *id;
    size_t n, cap;
    bool first[256]; /* bytes that one begins with */
};

static void specials_init(struct specials *s, const struct tokenizer *t)
{
    memset(s, 0, sizeof(*s));
    for (int32_t id = 0; id < tokenizer_n_vocab(t); id++) {
        const char *token = tokenizer_is_special(t, id) ? tokenizer_token(t, id) : NULL;
        if (!token || !*token)
            continue;
        if (s->n == s->cap) {
            s->cap = s->cap ? 2 * s->cap : 32;
            s->token = xreallocarray(s->token, s->cap, sizeof(*s->token));
            s->len = xreallocarray(s->len, s->cap, sizeof(*s->len));
            s->id = xreallocarray(s->id, s->cap, sizeof(*s->id));
        }
        s->token[s->n] = token;
        s->len[s->n] = strlen(token);
        s->id[s->n++] = id;
        s->first[(unsigned char)*token] = true;
    }
}

static void specials_release(struct specials *s)
{
    xfree(s->token);
    xfree(s->len);
    xfree(s->id);
}

/* The longest special token that text begins with: its index, or -1. */
static int match(const struct specials *s, const char *text, size_t n)
{
    int best = -1;
    if (!n || !s->first[(unsigned char)*text])
        return -1;
    for (size_t i = 0; i < s->n; i++)
        if (s->len[i] <= n && (best < 0 || s->len[i] > s->len[best]) && !memcmp(text, s->token[i], s->len[i]))
            best = (int)i;
    return best;
}

/* A copy of a JSON value in which every string's special spellings stand between marks. Sets *marked if there
 * are any; marks that the text itself contains are dropped, so that nobody can forge them. Keys and roles are
 * left alone. */
static json_t *mark(const struct specials *s, const json_t *v, const char *key, bool *marked)
{
    if (json_is_object(v)) {
        json_t *o = json_object(), *x;
        const char *k;
        json_object_foreach((json_t *)v, k, x) json_object_set_new(o, k, mark(s, x, k, marked));
        return o;
    }
    if (json_is_array(v)) {
        json_t *a = json_array();
        for (size_t i = 0; i < json_array_size(v); i++)
            json_array_append_new(a, mark(s, json_array_get(v, i), key, marked));
        return a;
    }
    if (!json_is_string(v) || (key && (!strcmp(key, "role") || !strcmp(key, "type"))))
        return json_incref((json_t *)v);
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < n;) {
        int hit = match(s, text + i, n - i);
        if (hit >= 0) {
            buf_adds(&b, MARK_BEGIN);
            buf_add(&b, s->token[hit], s->len[hit]);
            buf_adds(&b, MARK_END);
            i += s->len[hit];
            *marked = true;
        } else if (n - i >= MARK_LEN &&
                   (!memcmp(text + i, MARK_BEGIN, MARK_LEN) || !memcmp(text + i, MARK_END, MARK_LEN))) {
            i += MARK_LEN;
            *marked = true;
        } else {
            buf_addc(&b, text[i++]);
        }
    }
    json_t *copy = json_stringn_nocheck(b.s, b.len);
    buf_release(&b);
    return copy;
}

/* Marked text: special tokens outside marks become ids, everything between them is encoded as ordinary text.
 */
static int encode_marked(const struct tokenizer *t, const struct specials *s, const char *text, size_t n,
                         struct ids *ids, struct buf *rendered, struct err *e)
{
    struct buf plain = BUF_INIT;
    bool inside = false;
    int rc = 0;
    for (size_t i = 0; i <= n && !rc;) {
        int hit = i < n && !inside ? match(s, text + i, n - i) : -1;
        if (hit >= 0 || i == n) {
            rc = tokenizer_encode(t, plain.s, plain.len, (struct encode_options){0}, ids, e);
            if (rendered)
                buf_add(rendered, plain.s, plain.len);
            buf_clear(&plain);
            if (i == n)
                break;
            XGROW(ids->id, ids->n, ids->cap);
            ids->id[ids->n++] = s->id[hit];
            if (rendered)
                buf_add(rendered, s->token[hit], s->len[hit]);
            i += s->len[hit];
        } else if (n - i >= MARK_LEN && !memcmp(text + i, inside ? MARK_END : MARK_BEGIN, MARK_LEN)) {
            inside = !inside;
            i += MARK_LEN;
        } else {
            buf_addc(&plain, text[i++]);
        }
    }
    buf_release(&plain);
    return rc;
}

int chat_encode(const struct tokenizer *t, const struct template *tmpl, const json_t *vars, struct ids *ids,
                struct buf *rendered, struct err *e)
{
    struct specials s;
    struct buf text = BUF_INIT;
    bool marked = false;
    specials_init(&s, t);
    json_t *safe = json_copy((json_t *)vars),
           *messages = mark(&s, json_object_get(vars, "messages"), NULL, &marked);
    json_t *tools = json_object_get(vars, "tools");
    json_object_set_new(safe, "messages", messages);
    if (tools)
        json_object_set_new(safe, "tools", mark(&s, tools, NULL, &marked));
    int rc = template_render(tmpl, safe, (struct template_limits){0}, &text, e);
    if (!rc && marked) {
        rc = encode_marked(t, &s, text.s, text.len, ids, rendered, e);
    } else if (!rc) {
        rc = tokenizer_encode(t, text.s, text.len, (struct encode_options){.parse_special = true}, ids, e);
        if (rendered)
            buf_add(rendered, text.s, text.len);
    }
    json_decref(safe);
    specials_release(&s);
    buf_release(&text);
    return rc;
}
