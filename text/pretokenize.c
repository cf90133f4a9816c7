#include "text/pretokenize.h"

#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "text/component.h"
#include "text/unicode.h"
#include "text/utf8.h"

/* What becomes of what a splitter matches. */
enum behavior { ISOLATED, REMOVED, WITH_PREVIOUS, WITH_NEXT, CONTIGUOUS };

static const char *const behaviors[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};

enum step_kind { SPLIT, DIGITS, PUNCTUATION, WHITESPACE, WHITESPACE_SPLIT, METASPACE, BYTE_LEVEL };

struct pretokenizer_step {
    enum step_kind kind;
    struct pattern pattern; /* SPLIT; GPT-2's for BYTE_LEVEL with use_regex */
    enum behavior behavior; /* SPLIT, DIGITS, PUNCTUATION */
    bool invert;            /* SPLIT: what is between the matches is what counts */
    bool prefix_space;      /* BYTE_LEVEL */
    bool split;             /* METASPACE, BYTE_LEVEL: cut, beside rewriting */
    char replacement[5];    /* METASPACE */
    enum { ALWAYS, FIRST, NEVER } prepend;
};

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void pieces_init(struct pieces *p)
{
    memset(p, 0, sizeof(*p));
    buf_init(&p->text);
}

void pieces_release(struct pieces *p)
{
    buf_release(&p->text);
    xfree(p->v);
    pieces_init(p);
}

static void add_piece(struct pieces *p, size_t at, size_t len, size_t head)
{
    if (!len)
        return;
    XGROW(p->v, p->n, p->cap);
    p->v[p->n++] = (struct piece){(uint32_t)at, (uint32_t)len, (uint32_t)head};
}

/* ---- cutting one piece ---- */

/* Segments of a piece arrive from left to right, matches and the gaps between them, none left out; the cutter
 * puts them together as the behaviour says. */
struct cutter {
    struct pieces *out;
    size_t base, head; /* of the piece, in the text */
    enum behavior behavior;
    bool pending, pending_match; /* a segment or several that may yet grow */
    size_t start, end;
    bool previous_match; /* the segment before was a match */
};

static void emit(struct cutter *c, size_t start, size_t end)
{
    add_piece(c->out, c->base + start, end - start, c->head > start ? MIN(c->head, end) - start : 0);
}

static void flush(struct cutter *c)
{
    if (c->pending)
        emit(c, c->start, c->end);
    c->pending = false;
}

static void segment(struct cutter *c, size_t start, size_t end, bool match)
{
    bool grow = false;
    switch (c->behavior) {
    case ISOLATED:
        break;
    case REMOVED:
        if (match) {
            flush(c);
            return;
        }
        break;
    case CONTIGUOUS:
        grow = c->pending && match == c->previous_match;
        break;
    case WITH_PREVIOUS: /* a match joins what is before it, unless that is a match */
        grow = c->pending && match && !c->previous_match;
        break;
    case WITH_NEXT: /* a match waits for what comes after it; of several, the last joins */
        grow = c->pending && !match && c->pending_match;
        break;
    }
    if (!grow) {
        flush(c);
        c->pending = true;
        c->start = start;
    }
    c->end = end;
    c->pending_match = match;
    c->previous_match = match;
}

static void cut_at_matches(const struct pretokenizer_step *p, const struct regex_matches *m, size_t n,
                           struct cutter *c)
{
    size_t at = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (m->v[i].start > at)
            segment(c, at, m->v[i].start, p->invert);
        segment(c, m->v[i].start, m->v[i].end, !p->invert);
        at = m->v[i].end;
    }
    if (at < n)
        segment(c, at, n, p->invert);
    flush(c);
}

/* Each character by itself matches or not. */
static void cut_at_characters(bool (*is)(uint32_t c), const char *s, size_t n, struct cutter *c)
{
    size_t gap = 0, len;
    for (size_t at = 0; at < n; at += len) {
        if (!is(utf8_get(s + at, &len)))
            continue;
        if (gap < at)
            segment(c, gap, at, false);
        segment(c, at, at + len, true);
        gap = at + len;
    }
    if (gap < n)
        segment(c, gap, n, false);
    flush(c);
}

/* \w+|[^\w\s]+, what is between is dropped. */
static void cut_words(const char *s, size_t n, struct cutter *c)
{
    size_t start = 0, len;
    int kind = 0; /* of the run at hand: 0 white space, 1 word, 2 neither */
    for (size_t at = 0; at < n; at += len) {
        uint32_t u = utf8_get(s + at, &len);
        int k = uni_is_word(u) ? 1 : uni_is_space(u) ? 0 : 2;
        if (k == kind)
            continue;
        if (kind)
            emit(c, start, at);
        start = at;
        kind = k;
    }
    if (kind)
        emit(c, start, n);
}

static int cut(const struct pretokenizer_step *p, struct text_scratch *s, const char *text, size_t n,
               struct cutter *c, struct err *e)
{
    c->behavior = p->behavior;
    switch (p->kind) {
    case SPLIT:
    case BYTE_LEVEL: {
        int rc = pattern_find_all(&p->pattern, s->regex, text, n, &s->matches, e);
        if (rc)
            return rc;
        cut_at_matches(p, &s->matches, n, c);
        return 0;
    }
    case DIGITS:
        cut_at_characters(uni_is_numeric, text, n, c);
        return 0;
    case PUNCTUATION:
        cut_at_characters(uni_is_punctuation, text, n, c);
        return 0;
    case WHITESPACE_SPLIT:
        c->behavior = REMOVED;
        cut_at_characters(uni_is_space, text, n, c);
        return 0;
    case WHITESPACE:
        cut_words(text, n, c);
        return 0;
    case METASPACE:
        break;
    }
    return 0;
}

/* ---- steps that rewrite ---- */

static bool starts_with(const char *s, size_t n, const char *prefix, size_t n_prefix)
{
    return n >= n_prefix && !memcmp(s, prefix, n_prefix);
}

/* Spaces become the replacement, and one goes in front; then pieces start at each replacement. */
static void metaspace(const struct pretokenizer_step *p, const struct pieces *in, struct pieces *out)
{
    size_t n_mark = strlen(p->replacement);
    for (size_t i = 0; i < in->n; i++) {
        const char *s = in->text.s + in->v[i].at;
        size_t n = in->v[i].len, base = out->text.len, head = 0, in_head = in->v[i].head;
        bool marked = *s == ' ' || starts_with(s, n, p->replacement, n_mark);
        if (!marked && (p->prepend == ALWAYS || (p->prepend == FIRST && in_head))) {
            buf_add(&out->text, p->replacement, n_mark);
            head = in_head ? n_mark : 0;
        }
        for (size_t k = 0; k < n;) {
            const char *space = memchr(s + k, ' ', n - k);
            size_t to = space ? (size_t)(space - s) : n;
            buf_add(&out->text, s + k, to - k);
            head += in_head > k ? MIN(in_head, to) - k : 0;
            if (space) {
                buf_add(&out->text, p->replacement, n_mark);
                head += in_head > to ? n_mark : 0;
                to++;
            }
            k = to;
        }
        struct cutter c = {out, base, head, ISOLATED};
        const char *made = out->text.s + base;
        size_t n_made = out->text.len - base, start = 0;
        for (size_t k = 1; p->split && k < n_made;) {
            const char *mark = memmem(made + k, n_made - k, p->replacement, n_mark);
            if (!mark)
                break;
            k = (size_t)(mark - made);
            if (k > start) { /* the mark belongs to what comes after it; marks in a row stand alone but the
                                last */
                emit(&c, start, k);
                start = k;
            }
            k += n_mark;
        }
        emit(&c, start, n_made);
    }
}

static int byte_level(const struct pretokenizer_step *p, struct text_scratch *s, struct pieces *in,
                      struct pieces *out, struct err *e)
{
    struct pieces cuts;
    struct buf spaced = BUF_INIT;
    int rc = 0;
    pieces_init(&cuts);
    for (size_t i = 0; i < in->n && !rc; i++) {
        const char *text = in->text.s + in->v[i].at;
        size_t n = in->v[i].len, head = in->v[i].head;
        if (p->prefix_space && *text != ' ') {
            buf_clear(&spaced);
            buf_addc(&spaced, ' ');
            buf_add(&spaced, text, n);
            text = spaced.s;
            n = spaced.len;
            head += head ? 1 : 0;
        }
        cuts.n = 0;
        struct cutter c = {&cuts, 0, head};
        if (p->split)
            rc = cut(p, s, text, n, &c, e);
        else
            add_piece(&cuts, 0, n, head);
        for (size_t k = 0; k < cuts.n; k++) {
            size_t at = out->text.len, from = cuts.v[k].at, n_head = cuts.v[k].head;
            byte_level_add(&out->text, text + from, n_head);
            size_t head_end = out->text.len;
            byte_level_add(&out->text, text + from + n_head, cuts.v[k].len - n_head);
            add_piece(out, at, out->text.len - at, head_end - at);
        }
    }
    pieces_release(&cuts);
    buf_release(&spaced);
    return rc;
}

int pretokenizer_run(const struct pretokenizer *t, struct text_scratch *s, struct pieces *p,
                     struct pieces *spare, struct err *e)
{
    size_t limit = p->text.len * TEXT_MAX_GROWTH + 65536;
    for (size_t i = 0; i < t->n_steps; i++) {
        const struct pretokenizer_step *step = &t->step[i];
        int rc = 0;
        if (p->text.len > limit)
            return err_set(e, ERR_LIMIT, "the text grows more than %d-fold when it is cut", TEXT_MAX_GROWTH);
        spare->n = 0;
        buf_clear(&spare->text);
        if (step->kind == METASPACE)
            metaspace(step, p, spare);
        else if (step->kind == BYTE_LEVEL)
            rc = byte_level(step, s, p, spare, e);
        else
            for (size_t k = 0; k < p->n && !rc; k++) {
                struct cutter c = {spare, p->v[k].at, p->v[k].head};
                rc = cut(step, s, p->text.s + p->v[k].at, p->v[k].len, &c, e);
            }
        if (rc)
            return rc;
        struct pieces swap = *p;
        *p = *spare;
        *spare = swap;
        if (step->kind != METASPACE && step->kind != BYTE_LEVEL) { /* the text is as it was */
            struct buf text = p->text;
            p->text = spare->text;
            spare->text = text;
        }
    }
    return 0;
}

/* ---- reading ---- */

static struct pretokenizer_step *add_step(struct pretokenizer *p, enum step_kind kind)
{
    XGROW(p->step, p->n_steps, p->cap_steps);
    struct pretokenizer_step *step = &p->step[p->n_steps++];
    memset(step, 0, sizeof(*step));
    step->kind = kind;
    return step;
}

int pretokenizer_add_split(struct pretokenizer *p, const char *pattern, const char *where, struct err *e)
{
    return pattern_from_string(pattern, true, where, &add_step(p, SPLIT)->pattern, e);
}

void pretokenizer_add_digits(struct pretokenizer *p)
{
    add_step(p, DIGITS);
}

int pretokenizer_add_byte_level(struct pretokenizer *p, bool add_prefix_space, bool use_regex, struct err *e)
{
    struct pretokenizer_step *step = add_step(p, BYTE_LEVEL);
    step->prefix_space = add_prefix_space;
    step->split = use_regex;
    return use_regex ? pattern_from_string(gpt2_pattern, true, "ByteLevel", &step->pattern, e) : 0;
}

void pretokenizer_release(struct pretokenizer *p)
{
    for (size_t i = 0; i < p->n_steps; i++)
        pattern_release(&p->step[i].pattern);
    xfree(p->step);
    memset(p, 0, sizeof(*p));
}

static int get_behavior(const json_t *v, const char *fallback, const char *where, enum behavior *ret,
                        struct err *e)
{
    const char *name;
    int rc = json_get_string(v, "behavior", fallback, where, &name, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < ARRAY_LEN(behaviors); i++)
        if (!strcmp(name, behaviors[i])) {
            *ret = (enum behavior)i;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: behavior \"%s\" is unknown; known are Isolated, Removed,"
                   " MergedWithPrevious, MergedWithNext and Contiguous",
                   where, name);
}

static int add_metaspace(struct pretokenizer *p, const json_t *v, const char *where, struct err *e)
{
    const char *replacement, *scheme;
    bool prefix;
    struct pretokenizer_step *step = add_step(p, METASPACE);
    int rc = component_character(v, "replacement", "\xE2\x96\x81", where, &replacement, e);
    if (!rc)
        rc = json_get_bool(v, "split", true, where, &step->split, e);
    if (!rc)
        rc = json_get_string(v, "prepend_scheme", "always", where, &scheme, e);
    if (!rc)
        rc = json_get_bool(v, "add_prefix_space", true, where, &prefix, e);
    if (rc)
        return rc;
    memcpy(step->replacement, replacement, strlen(replacement) + 1); /* one character */
    if (strcmp(scheme, "always") && strcmp(scheme, "first") && strcmp(scheme, "never"))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: prepend_scheme \"%s\" is unknown; known are always, first and"
                       " never",
                       where, scheme);
    if (!prefix && strcmp(scheme, "never") && json_object_get(v, "prepend_scheme"))
        return err_set(e, ERR_FORMAT, "%s: add_prefix_space is false, but prepend_scheme is \"%s\"", where,
                       scheme);
    step->prepend = !prefix || *scheme == 'n' ? NEVER : *scheme == 'f' ? FIRST : ALWAYS;
    return 0;
}

static int add_component(void *self, const json_t *v, const char *type, const char *where, struct err *e)
{
    struct pretokenizer *p = self;
    bool flag, regex;
    int rc;
    if (!strcmp(type, "ByteLevel")) {
        rc = json_get_bool(v, "add_prefix_space", true, where, &flag, e);
        if (!rc)
            rc = json_get_bool(v, "use_regex", true, where, &regex, e);
        return rc ? rc : pretokenizer_add_byte_level(p, flag, regex, e);
    }
    if (!strcmp(type, "Split")) {
        struct pretokenizer_step *step = add_step(p, SPLIT);
        rc = get_behavior(v, "", where, &step->behavior, e);
        if (!rc)
            rc = json_get_bool(v, "invert", false, where, &step->invert, e);
        return rc ? rc : pattern_from_json(json_object_get(v, "pattern"), where, &step->pattern, e);
    }
    if (!strcmp(type, "Digits")) {
        struct pretokenizer_step *step = add_step(p, DIGITS);
        rc = json_get_bool(v, "individual_digits", false, where, &flag, e);
        step->behavior = flag ? ISOLATED : CONTIGUOUS;
        return rc;
    }
    if (!strcmp(type, "Punctuation"))
        return get_behavior(v, "Isolated", where, &add_step(p, PUNCTUATION)->behavior, e);
    if (!strcmp(type, "Metaspace"))
        return add_metaspace(p, v, where, e);
    if (!strcmp(type, "Whitespace") || !strcmp(type, "WhitespaceSplit")) {
        add_step(p, type[10] ? WHITESPACE_SPLIT : WHITESPACE);
        return 0;
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: pre_tokenizer \"%s\" is not supported; supported are ByteLevel, Split,"
                   " Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit and Sequence",
                   where, type);
}

int pretokenizer_add_json(struct pretokenizer *p, const json_t *v, const char *where, struct err *e)
{
    return component_read(v, "pretokenizers", add_component, p, where, e);
}
