#include "text/decoder.h"

#include <ctype.h>
#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "text/component.h"
#include "text/utf8.h"

static const char replacement_character[] = "\xEF\xBF\xBD";

/* ---- the stream ---- */

/* A fragment of the current token for stage i; then, or at once, its end. */
static void put(struct decoding *d, size_t i, const char *s, size_t n);
static void end_token(struct decoding *d, size_t i);

static void pass_token(struct decoding *d, size_t i, const char *s, size_t n)
{
    put(d, i + 1, s, n);
    end_token(d, i + 1);
}

/* All the characters of a token that stand for bytes, as bytes; or, if one does not, the token as it is. */
static void byte_level(struct decoding *d, size_t i)
{
    struct buf *token = &d->stage[i].token, *run = &d->stage[i].run;
    size_t before = run->len, len;
    int state;
    for (size_t at = 0; at < token->len; at += len) {
        int b = byte_level_byte(utf8_get(token->s + at, &len));
        if (b < 0) {
            run->len = before;
            buf_add(run, token->s, token->len);
            break;
        }
        buf_addc(run, (char)b);
    }
    /* Whole characters go on; of what is ill-formed each maximal part becomes U+FFFD; an unfinished character
     * at the end stays. */
    size_t at = 0, good = 0;
    while (at < run->len) {
        len = utf8_look(run->s + at, run->len - at, &state);
        if (state < 0)
            break;
        if (state == 0) {
            put(d, i + 1, run->s + good, at - good);
            put(d, i + 1, replacement_character, 3);
            good = at + len;
        }
        at += len;
    }
    put(d, i + 1, run->s + good, at - good);
    buf_remove(run, 0, at);
}

static int byte_token(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>')
        return -1;
    int b = 0;
    for (int i = 3; i < 5; i++) {
        int c = tolower((unsigned char)s[i]);
        if (i == 3 && c == '+') /* Rust's integers may have a sign */
            continue;
        if (!isxdigit(c))
            return -1;
        b = b * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return b;
}

/* A run of byte tokens is text if all of it is well-formed, else U+FFFD for each byte: nothing of it is
 * certain before it ends. */
static void end_run(struct decoding *d, size_t i)
{
    struct buf *run = &d->stage[i].run;
    if (!run->len)
        return;
    if (utf8_valid(run->s, run->len))
        pass_token(d, i, run->s, run->len);
    else
        for (size_t k = 0; k < run->len; k++)
            pass_token(d, i, replacement_character, 3);
    buf_clear(run);
}

static void replace(struct decoding *d, size_t i)
{
    const struct decoder_step *p = &d->decoder->step[i];
    const struct buf *token = &d->stage[i].token;
    struct regex_matches *m = &d->scratch.matches;
    size_t at = 0;
    /* A pattern that gives up leaves the token alone: decoding has no errors. */
    if (pattern_find_all(&p->pattern, d->scratch.regex, token->s, token->len, m, NULL))
        m->n = 0;
    for (size_t k = 0; k < m->n; k++) {
        put(d, i + 1, token->s + at, m->v[k].start - at);
        put(d, i + 1, p->content, p->n_content);
        at = m->v[k].end;
    }
    put(d, i + 1, token->s + at, token->len - at);
    end_token(d, i + 1);
}

/* Up to `start` of the character at the token's start vanish, and up to `stop` at its end; these are kept
 * back until something follows. */
static void strip(struct decoding *d, size_t i, const char *s, size_t n)
{
    const struct decoder_step *p = &d->decoder->step[i];
    struct decoding_stage *g = &d->stage[i];
    for (size_t at = 0, len; at < n; at += len) {
        utf8_get(s + at, &len);
        bool is = len == p->n_content && !memcmp(s + at, p->content, len);
        if (!g->begun && is && g->stripped < p->start) {
            g->stripped++;
            continue;
        }
        g->begun = true;
        if (is && p->stop) {
            if (g->held < p->stop)
                g->held++;
            else
                put(d, i + 1, s + at, len);
            continue;
        }
        for (; g->held; g->held--)
            put(d, i + 1, p->content, p->n_content);
        put(d, i + 1, s + at, len);
    }
}

static void metaspace(struct decoding *d, size_t i, const char *s, size_t n)
{
    const struct decoder_step *p = &d->decoder->step[i];
    while (n) {
        const char *mark = memmem(s, n, p->content, p->n_content);
        size_t before = mark ? (size_t)(mark - s) : n;
        put(d, i + 1, s, before);
        if (!mark)
            break;
        if (d->stage[i].n_tokens || !p->drop_first)
            put(d, i + 1, " ", 1);
        s += before + p->n_content;
        n -= before + p->n_content;
    }
}

/* The token that was kept back, now that it is known whether it was the last. */
static void end_word(struct decoding *d, size_t i, bool last)
{
    const struct decoder_step *p = &d->decoder->step[i];
    struct decoding_stage *g = &d->stage[i];
    if (!g->waiting)
        return;
    const char *s = g->run.s;
    size_t n = g->run.len;
    while (n && p->n_content) {
        const char *mark = memmem(s, n, p->content, p->n_content);
        if (!mark)
            break;
        put(d, i + 1, s, (size_t)(mark - s));
        put(d, i + 1, " ", last ? 0 : 1);
        n -= (size_t)(mark - s) + p->n_content;
        s = mark + p->n_content;
    }
    put(d, i + 1, s, n);
    end_token(d, i + 1);
    buf_clear(&g->run);
    g->waiting = false;
}

static void put(struct decoding *d, size_t i, const char *s, size_t n)
{
    if (!n)
        return;
    if (i == d->decoder->n_steps) {
        buf_add(d->out, s, n);
        return;
    }
    switch (d->decoder->step[i].kind) {
    case DECODE_BYTE_LEVEL:
    case DECODE_BYTE_FALLBACK:
    case DECODE_REPLACE:
    case DECODE_BPE:
        buf_add(&d->stage[i].token, s, n);
        break;
    case DECODE_FUSE:
        put(d, i + 1, s, n);
        break;
    case DECODE_STRIP:
        strip(d, i, s, n);
        break;
    case DECODE_METASPACE:
        metaspace(d, i, s, n);
        break;
    case DECODE_JOIN:
        if (!d->stage[i].begun && d->stage[i].n_tokens)
            put(d, i + 1, " ", 1);
        d->stage[i].begun = true;
        put(d, i + 1, s, n);
        break;
    }
}

static void end_token(struct decoding *d, size_t i)
{
    if (i == d->decoder->n_steps)
        return;
    struct decoding_stage *g = &d->stage[i];
    int b;
    switch (d->decoder->step[i].kind) {
    case DECODE_BYTE_LEVEL:
        byte_level(d, i);
        break;
    case DECODE_BYTE_FALLBACK:
        b = byte_token(g->token.s, g->token.len);
        if (b >= 0) {
            buf_addc(&g->run, (char)b);
        } else {
            end_run(d, i);
            pass_token(d, i, g->token.s, g->token.len);
        }
        break;
    case DECODE_FUSE:
        break;
    case DECODE_REPLACE:
        replace(d, i);
        break;
    case DECODE_STRIP:
        g->held = g->stripped = 0;
        g->begun = false;
        end_token(d, i + 1);
        break;
    case DECODE_METASPACE:
        end_token(d, i + 1);
        break;
    case DECODE_BPE: {
        end_word(d, i, false);
        struct buf swap = g->run;
        g->run = g->token;
        g->token = swap;
        g->waiting = true;
        break;
    }
    case DECODE_JOIN:
        if (!g->begun && g->n_tokens) /* an empty token has its space too */
            put(d, i + 1, " ", 1);
        g->begun = false;
        end_token(d, i + 1);
        break;
    }
    g->n_tokens++;
    buf_clear(&g->token);
}

void decoding_begin(struct decoding *d, const struct decoder *decoder)
{
    memset(d, 0, sizeof(*d));
    d->decoder = decoder;
    XNEW_N(d->stage, decoder->n_steps);
    for (size_t i = 0; i < decoder->n_steps; i++) {
        buf_init(&d->stage[i].token);
        buf_init(&d->stage[i].run);
    }
    text_scratch_init(&d->scratch);
}

void decoding_token(struct decoding *d, const char *s, size_t n, struct buf *out)
{
    d->out = out;
    put(d, 0, s, n);
    end_token(d, 0);
}

void decoding_end(struct decoding *d, struct buf *out)
{
    d->out = out;
    for (size_t i = 0; i < d->decoder->n_steps; i++) {
        struct decoding_stage *g = &d->stage[i];
        switch (d->decoder->step[i].kind) {
        case DECODE_BYTE_LEVEL:
            if (g->run.len)
                put(d, i + 1, replacement_character, 3);
            end_token(d, i + 1);
            break;
        case DECODE_BYTE_FALLBACK:
            end_run(d, i);
            break;
        case DECODE_FUSE:
            end_token(d, i + 1);
            break;
        case DECODE_BPE:
            end_word(d, i, true);
            break;
        default:
            break;
        }
    }
}

void decoding_release(struct decoding *d)
{
    for (size_t i = 0; d->stage && i < d->decoder->n_steps; i++) {
        buf_release(&d->stage[i].token);
        buf_release(&d->stage[i].run);
    }
    xfree(d->stage);
    text_scratch_release(&d->scratch);
}

/* ---- reading ---- */

struct decoder_step *decoder_add(struct decoder *d, enum decoder_kind kind, const char *content)
{
    XGROW(d->step, d->n_steps, d->cap_steps);
    struct decoder_step *p = &d->step[d->n_steps++];
    memset(p, 0, sizeof(*p));
    p->kind = kind;
    p->content = xstrdup(content ? content : "");
    p->n_content = strlen(p->content);
    return p;
}

int decoder_add_replace(struct decoder *d, const char *literal, const char *content, struct err *e)
{
    return pattern_from_string(literal, false, "decoder", &decoder_add(d, DECODE_REPLACE, content)->pattern,
                               e);
}

void decoder_release(struct decoder *d)
{
    for (size_t i = 0; i < d->n_steps; i++) {
        pattern_release(&d->step[i].pattern);
        xfree(d->step[i].content);
    }
    xfree(d->step);
    memset(d, 0, sizeof(*d));
}

static int add_strip(struct decoder *d, const json_t *v, const char *where, struct err *e)
{
    const char *content;
    int64_t start, stop;
    int rc = component_character(v, "content", " ", where, &content, e);
    if (!rc)
        rc = json_get_int(v, "start", 0, INT32_MAX, 0, where, &start, e);
    if (!rc)
        rc = json_get_int(v, "stop", 0, INT32_MAX, 0, where, &stop, e);
    if (rc)
        return rc;
    struct decoder_step *p = decoder_add(d, DECODE_STRIP, content);
    p->start = (size_t)start;
    p->stop = (size_t)stop;
    return 0;
}

static int add_metaspace(struct decoder *d, const json_t *v, const char *where, struct err *e)
{
    const char *replacement, *scheme;
    bool prefix;
    int rc = component_character(v, "replacement", "\xE2\x96\x81", where, &replacement, e);
    if (!rc)
        rc = json_get_string(v, "prepend_scheme", "always", where, &scheme, e);
    if (!rc)
        rc = json_get_bool(v, "add_prefix_space", true, where, &prefix, e);
    if (rc)
        return rc;
    decoder_add(d, DECODE_METASPACE, replacement)->drop_first = prefix && strcmp(scheme, "never");
    return 0;
}

static int add_component(void *self, const json_t *v, const char *type, const char *where, struct err *e)
{
    struct decoder *d = self;
    const char *content;
    int rc;
    if (!strcmp(type, "ByteLevel")) {
        decoder_add(d, DECODE_BYTE_LEVEL, NULL);
        return 0;
    }
    if (!strcmp(type, "ByteFallback")) {
        decoder_add(d, DECODE_BYTE_FALLBACK, NULL);
        return 0;
    }
    if (!strcmp(type, "Fuse")) {
        decoder_add(d, DECODE_FUSE, NULL);
        return 0;
    }
    if (!strcmp(type, "Strip"))
        return add_strip(d, v, where, e);
    if (!strcmp(type, "Metaspace"))
        return add_metaspace(d, v, where, e);
    if (!strcmp(type, "BPEDecoder")) {
        rc = json_get_string(v, "suffix", "</w>", where, &content, e);
        if (!rc)
            decoder_add(d, DECODE_BPE, content);
        return rc;
    }
    if (!strcmp(type, "Replace")) {
        rc = json_get_string(v, "content", "", where, &content, e);
        if (rc)
            return rc;
        struct decoder_step *p = decoder_add(d, DECODE_REPLACE, content);
        rc = pattern_from_json(json_object_get(v, "pattern"), where, &p->pattern, e);
        size_t factor = p->pattern.literal ? p->n_content / p->pattern.n_literal : 2 * p->n_content;
        d->growth = MAX(d->growth, 1) * MAX(factor, 1);
        if (!rc && d->growth > DECODER_MAX_GROWTH)
            rc = err_set(e, ERR_LIMIT,
                         "%s: the decoder's replacements can make text more than %d times longer", where,
                         DECODER_MAX_GROWTH);
        return rc;
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: decoder \"%s\" is not supported; supported are ByteLevel, ByteFallback,"
                   " Fuse, Strip, Replace, Metaspace, BPEDecoder and Sequence",
                   where, type);
}

int decoder_add_json(struct decoder *d, const json_t *v, const char *where, struct err *e)
{
    return component_read(v, "decoders", add_component, d, where, e);
}
