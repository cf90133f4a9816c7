#include "text/normalize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/json.h"
#include "base/mem.h"
#include "text/component.h"
#include "text/unicode.h"
#include "text/utf8.h"

enum step_kind { NFC, NFD, NFKC, NFKD, LOWERCASE, STRIP, STRIP_ACCENTS, PREPEND, REPLACE, BYTE_LEVEL };

struct normalizer_step {
    enum step_kind kind;
    bool left, right; /* STRIP */
    char *content;    /* PREPEND, REPLACE */
    size_t n_content;
    struct pattern pattern; /* REPLACE */
};

/* ---- patterns ---- */

int pattern_from_string(const char *s, bool is_regex, const char *where, struct pattern *ret, struct err *e)
{
    struct pattern p = {0};
    if (!*s)
        return err_set(e, ERR_UNSUPPORTED, "%s: the pattern is empty", where);
    if (is_regex) {
        int rc = regex_new(s, strlen(s), where, &p.regex, e);
        if (rc)
            return rc;
    } else {
        p.literal = xstrdup(s);
        p.n_literal = strlen(s);
    }
    *ret = p;
    return 0;
}

int pattern_from_json(const json_t *v, const char *where, struct pattern *ret, struct err *e)
{
    const json_t *literal = json_object_get(v, "String"), *regex = json_object_get(v, "Regex");
    if (!json_is_string(literal) == !json_is_string(regex))
        return err_set(e, ERR_FORMAT,
                       "%s: \"pattern\" should be {\"String\": \"...\"} or {\"Regex\": \"...\"}", where);
    return pattern_from_string(json_string_value(literal ? literal : regex), !literal, where, ret, e);
}

void pattern_release(struct pattern *p)
{
    xfree(p->literal);
    regex_free(p->regex);
    memset(p, 0, sizeof(*p));
}

int pattern_find_all(const struct pattern *p, struct regex_scratch *scratch, const char *text, size_t n,
                     struct regex_matches *m, struct err *e)
{
    if (p->regex)
        return regex_find_all(p->regex, scratch, text, n, m, e);
    m->n = 0;
    for (size_t at = 0; at < n;) {
        const char *hit = memmem(text + at, n - at, p->literal, p->n_literal);
        if (!hit)
            break;
        at = (size_t)(hit - text);
        XGROW(m->v, m->n, m->cap);
        m->v[m->n++] = (struct regex_match){at, at + p->n_literal};
        at += p->n_literal;
    }
    return 0;
}

void text_scratch_init(struct text_scratch *s)
{
    memset(s, 0, sizeof(*s));
    s->regex = regex_scratch_new();
    buf_init(&s->spare);
}

void text_scratch_release(struct text_scratch *s)
{
    regex_scratch_free(s->regex);
    xfree(s->matches.v);
    buf_release(&s->spare);
}

/* ---- GPT-2's bytes ---- */

static bool stands_for_itself(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* The bytes that are no printable character, in order, become U+0100 and on: 0..0x20, 0x7F..0xA0, 0xAD. */
uint32_t byte_level_char(unsigned char b)
{
    if (stands_for_itself(b))
        return b;
    return 0x100u + (b <= 0x20 ? b : b <= 0xA0 ? b - 0x7Fu + 0x21u : 0x43u);
}

int byte_level_byte(uint32_t c)
{
    if (c < 0x100)
        return stands_for_itself(c) ? (int)c : -1;
    c -= 0x100;
    return c <= 0x20 ? (int)c : c <= 0x42 ? (int)(c - 0x21 + 0x7F) : c == 0x43 ? 0xAD : -1;
}

void byte_level_add(struct buf *out, const char *s, size_t n)
{
    buf_reserve(out, 2 * n);
    char *d = out->s + out->len;
    for (size_t i = 0; i < n; i++)
        d += utf8_put(byte_level_char((unsigned char)s[i]), d);
    out->len = (size_t)(d - out->s);
    out->s[out->len] = 0;
}

/* ---- Unicode forms ---- */

struct decomposed {
    utf8proc_int32_t c;
    int class; /* canonical combining class */
};

/* Sorts a run of marks by class, keeping the order of equals. */
static void sort_run(struct decomposed *v, size_t n, struct decomposed *spare)
{
    if (n < 8) {
        for (size_t i = 1; i < n; i++)
            for (size_t k = i; k && v[k - 1].class > v[k].class; k--) {
                struct decomposed t = v[k];
                v[k] = v[k - 1];
                v[k - 1] = t;
            }
        return;
    }
    size_t at[256] = {0}, sum = 0;
    for (size_t i = 0; i < n; i++)
        at[v[i].class]++;
    for (int i = 0; i < 256; i++) {
        size_t count = at[i];
        at[i] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++)
        spare[at[v[i].class]++] = v[i];
    memcpy(v, spare, n * sizeof(*v));
}

/* Nothing reorders or composes across such a character, and it stays as it is: one younger than the library's
 * Unicode; U+11A7, which utf8proc takes for a final consonant of Hangul and composes away. */
static bool cuts_text(uint32_t c)
{
    return uni_is_young(c) || c == 0x11A7;
}

/* utf8proc's tables with an ordering of our own: its own is quadratic in the length of a run of marks, and a
 * text may be one such run. */
static void unicode_form(enum step_kind form, const char *s, size_t n, struct buf *out)
{
    int options = form == NFKC || form == NFKD ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE;
    bool compose = form == NFC || form == NFKC;
    struct decomposed *v = NULL, *spare = NULL;
    utf8proc_int32_t *code = NULL;
    size_t n_v = 0, cap_v = 0, cap_code = 0, cap_spare = 0;
    for (size_t at = 0; at < n;) {
        n_v = 0;
        size_t len, start = at;
        /* Chunks end before a character that is a boundary in every form: ASCII, once the chunk is long. */
        while (at < n && !(at - start > 4096 && (unsigned char)s[at] < 0x80)) {
            uint32_t c = utf8_get(s + at, &len);
            if (cuts_text(c))
                break;
            at += len;
            utf8proc_int32_t parts[32];
            int last_class = 0;
            utf8proc_ssize_t n_parts =
                c < 0x80 ? (parts[0] = (utf8proc_int32_t)c, 1)
                         : utf8proc_decompose_char((utf8proc_int32_t)c, parts, ARRAY_LEN(parts),
                                                   (utf8proc_option_t)options, &last_class);
            for (utf8proc_ssize_t i = 0; i < n_parts; i++) {
                XGROW(v, n_v, cap_v);
                v[n_v++] = (struct decomposed){
                    parts[i], parts[i] < 0x300 ? 0 : utf8proc_get_property(parts[i])->combining_class};
            }
        }
        if (cap_spare < n_v)
            spare = xreallocarray(spare, cap_spare = cap_v, sizeof(*spare));
        for (size_t i = 0; i < n_v;) {
            size_t run = i;
            while (run < n_v && v[run].class)
                run++;
            sort_run(v + i, run - i, spare);
            i = run + 1;
        }
        if (cap_code < n_v + 1)
            code = xreallocarray(code, cap_code = cap_v + 1, sizeof(*code));
        for (size_t i = 0; i < n_v; i++)
            code[i] = v[i].c;
        if (compose && n_v)
            n_v = (size_t)utf8proc_normalize_utf32(code, (utf8proc_ssize_t)n_v,
                                                   UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        for (size_t i = 0; i < n_v; i++)
            buf_add_utf8(out, (unsigned)code[i]);
        if (at < n && cuts_text(utf8_get(s + at, &len))) {
            buf_add(out, s + at, len);
            at += len;
        }
    }
    xfree(v);
    xfree(spare);
    xfree(code);
}

/* Already in every form: ASCII. */
static bool is_ascii(const char *s, size_t n)
{
    unsigned char any = 0;
    for (size_t i = 0; i < n; i++)
        any |= (unsigned char)s[i];
    return any < 0x80;
}

/* ---- the other steps ---- */

static void lowercase(const char *s, size_t n, struct buf *out)
{
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t low[2];
        int k = uni_lower(utf8_get(s + at, &len), low);
        for (int i = 0; i < k; i++)
            buf_add_utf8(out, low[i]);
    }
}

static void strip_accents(const char *s, size_t n, struct buf *out)
{
    for (size_t at = 0, len; at < n; at += len)
        if (!uni_is_combining(utf8_get(s + at, &len)))
            buf_add(out, s + at, len);
}

static void strip(const struct normalizer_step *p, struct buf *text, size_t *head)
{
    size_t from = 0, to = text->len, len;
    while (p->left && from < to && uni_is_space(utf8_get(text->s + from, &len)))
        from += len;
    while (p->right && to > from) {
        size_t before = utf8_before(text->s, to);
        if (!uni_is_space(utf8_get(text->s + before, &len)))
            break;
        to = before;
    }
    buf_remove(text, to, text->len - to);
    buf_remove(text, 0, from);
    *head = *head > from ? *head - from : 0;
}

static int grows(struct err *e)
{
    return err_set(e, ERR_LIMIT, "the text grows more than %d-fold when it is normalised", TEXT_MAX_GROWTH);
}

static int replace(const struct normalizer_step *p, struct text_scratch *s, const struct buf *text,
                   struct buf *out, size_t *head, size_t limit, struct err *e)
{
    int rc = pattern_find_all(&p->pattern, s->regex, text->s, text->len, &s->matches, e);
    if (rc)
        return rc;
    size_t from = 0, new_head = 0;
    for (size_t i = 0; i <= s->matches.n; i++) {
        bool last = i == s->matches.n;
        size_t start = last ? text->len : s->matches.v[i].start, end = last ? text->len : s->matches.v[i].end;
        buf_add(out, text->s + from, start - from);
        if (*head > from)
            new_head += MIN(start, *head) - from;
        if (!last) {
            if (out->len > limit)
                return grows(e);
            buf_add(out, p->content, p->n_content);
            if (*head >= end && *head) /* what is put in counts as its match's last byte */
                new_head += p->n_content;
        }
        from = end;
    }
    *head = new_head;
    return 0;
}

static bool same_head(const struct buf *a, const struct buf *b, size_t n)
{
    return a->len >= n && b->len >= n && !memcmp(a->s, b->s, n);
}

int normalizer_run(const struct normalizer *n, struct text_scratch *s, struct buf *text, size_t *head,
                   struct err *e)
{
    size_t limit = text->len * TEXT_MAX_GROWTH + 65536;
    for (size_t i = 0; i < n->n_steps; i++) {
        const struct normalizer_step *p = &n->step[i];
        struct buf *out = &s->spare;
        if (!text->len)
            return 0;
        if (text->len > limit)
            return grows(e);
        buf_clear(out);
        switch (p->kind) {
        case NFC:
        case NFD:
        case NFKC:
        case NFKD:
            if (is_ascii(text->s, text->len))
                continue;
            unicode_form(p->kind, text->s, text->len, out);
            break;
        case LOWERCASE:
            lowercase(text->s, text->len, out);
            break;
        case STRIP_ACCENTS:
            strip_accents(text->s, text->len, out);
            break;
        case STRIP:
            strip(p, text, head);
            continue;
        case PREPEND:
            buf_add(out, p->content, p->n_content);
            buf_add(out, text->s, text->len);
            *head += *head ? p->n_content : 0;
            break;
        case BYTE_LEVEL: {
            size_t n_head = *head;
            byte_level_add(out, text->s, n_head);
            *head = out->len;
            byte_level_add(out, text->s + n_head, text->len - n_head);
            break;
        }
        case REPLACE: {
            int rc = replace(p, s, text, out, head, limit, e);
            if (rc)
                return rc;
            break;
        }
        }
        if (p->kind < PREPEND && *head && !same_head(text, out, *head)) {
            size_t len = 0, gone = 0;
            if (p->kind == STRIP_ACCENTS && uni_is_combining(utf8_get(text->s, &gone)))
                *head = 0;
            else if (out->len)
                utf8_get(out->s, &len);
            *head = *head ? len : 0;
        }
        struct buf swap = *text;
        *text = *out;
        *out = swap;
    }
    return 0;
}

/* ---- reading ---- */

static struct normalizer_step *add_step(struct normalizer *n, enum step_kind kind)
{
    XGROW(n->step, n->n_steps, n->cap_steps);
    struct normalizer_step *p = &n->step[n->n_steps++];
    memset(p, 0, sizeof(*p));
    p->kind = kind;
    return p;
}

void normalizer_add_nfc(struct normalizer *n)
{
    add_step(n, NFC);
}

void normalizer_add_prepend(struct normalizer *n, const char *s)
{
    struct normalizer_step *p = add_step(n, PREPEND);
    p->content = xstrdup(s);
    p->n_content = strlen(s);
}

int normalizer_add_replace(struct normalizer *n, const char *literal, const char *content, struct err *e)
{
    struct normalizer_step *p = add_step(n, REPLACE);
    p->content = xstrdup(content);
    p->n_content = strlen(content);
    return pattern_from_string(literal, false, "normalizer", &p->pattern, e);
}

void normalizer_release(struct normalizer *n)
{
    for (size_t i = 0; i < n->n_steps; i++) {
        xfree(n->step[i].content);
        pattern_release(&n->step[i].pattern);
    }
    xfree(n->step);
    memset(n, 0, sizeof(*n));
}

static int add_component(void *self, const json_t *v, const char *type, const char *where, struct err *e)
{
    struct normalizer *n = self;
    static const char *const plain[] = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"};
    const char *content;
    int rc;
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        if (!strcmp(type, plain[i])) {
            add_step(n, (enum step_kind)i);
            return 0;
        }
    if (!strcmp(type, "StripAccents")) {
        add_step(n, STRIP_ACCENTS);
        return 0;
    }
    if (!strcmp(type, "ByteLevel")) {
        add_step(n, BYTE_LEVEL);
        return 0;
    }
    if (!strcmp(type, "Strip")) {
        struct normalizer_step *p = add_step(n, STRIP);
        rc = json_get_bool(v, "strip_left", true, where, &p->left, e);
        return rc ? rc : json_get_bool(v, "strip_right", true, where, &p->right, e);
    }
    if (!strcmp(type, "Prepend")) {
        rc = json_get_string(v, "prepend", "", where, &content, e);
        if (!rc)
            normalizer_add_prepend(n, content);
        return rc;
    }
    if (!strcmp(type, "Replace")) {
        rc = json_get_string(v, "content", "", where, &content, e);
        if (rc)
            return rc;
        struct normalizer_step *p = add_step(n, REPLACE);
        p->content = xstrdup(content);
        p->n_content = strlen(content);
        return pattern_from_json(json_object_get(v, "pattern"), where, &p->pattern, e);
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: normalizer \"%s\" is not supported; supported are NFC, NFD, NFKC, NFKD,"
                   " Lowercase, Strip, StripAccents, Prepend, Replace, ByteLevel and Sequence",
                   where, type);
}

int normalizer_add_json(struct normalizer *n, const json_t *v, const char *where, struct err *e)
{
    return component_read(v, "normalizers", add_component, n, where, e);
}
