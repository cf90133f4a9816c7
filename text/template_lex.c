/* From source to tokens, as jinja2's lexer does it with trim_blocks and lstrip_blocks on.
 *
 * Text between tags loses: the newline right after a block or comment tag (trim_blocks); blanks between the
 * start of a line and a block or comment tag (lstrip_blocks); all white space on the side of a tag that has a
 * `-`; nothing on the side that has a `+`. One newline at the very end of the source is dropped.
 */
#include "text/template_impl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

void parse_fail(struct parse_trap *t, int code, uint32_t line, uint32_t col, const char *fmt, ...)
{
    char what[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    t->code = err_set(t->e, code, "chat template, line %u, column %u: %s", line, col, what);
    longjmp(t->jump, 1);
}

struct lexer {
    struct parse_trap *trap;
    struct arena *arena;
    const char *src, *end, *p;
    /* Lines and columns are known up to `counted`, which only moves forward, so counting is linear. */
    const char *counted;
    uint32_t line, col;
    bool line_starting; /* the last match ended in a newline, or nothing came before */
    struct token *tok;
    size_t n, cap;
    char balance[2 * MAX_NESTING]; /* closing brackets that are awaited */
    size_t n_balance;
};

static void place(struct lexer *x, const char *at, uint32_t *line, uint32_t *col)
{
    if (at < x->counted) { /* only for a message about a place further back */
        x->counted = x->src;
        x->line = x->col = 1;
    }
    for (; x->counted < at; x->counted++) {
        if (*x->counted == '\n') {
            x->line++;
            x->col = 1;
        } else {
            x->col += ((unsigned char)*x->counted & 0xC0) != 0x80;
        }
    }
    *line = x->line;
    *col = x->col;
}

#define lex_fail(x, at, ...) lex_refuse(x, ERR_FORMAT, at, __VA_ARGS__)
#define lex_refuse(x, code, at, ...)                                                                         \
    do {                                                                                                     \
        uint32_t line_, col_;                                                                                \
        place((x), (at), &line_, &col_);                                                                     \
        parse_fail((x)->trap, (code), line_, col_, __VA_ARGS__);                                             \
    } while (0)

static struct token *push(struct lexer *x, enum token_kind kind, const char *at, const char *s, size_t len)
{
    if (x->n == x->cap) { /* an arena does not grow in place; doubling keeps the waste below the size */
        size_t cap = x->cap ? 2 * x->cap : 256;
        struct token *t = arena_alloc(x->arena, cap * sizeof(*t));
        if (x->n)
            memcpy(t, x->tok, x->n * sizeof(*t));
        x->tok = t;
        x->cap = cap;
    }
    struct token *t = &x->tok[x->n++];
    t->kind = kind;
    t->s = s;
    t->len = len;
    place(x, at, &t->line, &t->col);
    return t;
}

static bool starts(const struct lexer *x, const char *p, const char *lit)
{
    size_t n = strlen(lit);
    return (size_t)(x->end - p) >= n && memcmp(p, lit, n) == 0;
}

static const char *skip_space(const struct lexer *x, const char *p)
{
    while (p < x->end) {
        size_t n;
        if (!cp_is_space(utf8_at(p, x->end, &n)))
            break;
        p += n;
    }
    return p;
}

static const char *rstrip(const char *s, const char *end)
{
    while (end > s) {
        const char *q = end - 1;
        while (q > s && ((unsigned char)*q & 0xC0) == 0x80)
            q--;
        size_t n;
        if (!cp_is_space(utf8_at(q, end, &n)))
            break;
        end = q;
    }
    return end;
}

/* The text from s to the tag at `end`, cut as the tag's sign and lstrip_blocks say. */
static void push_text(struct lexer *x, const char *s, const char *end, char sign, bool lstrip)
{
    if (sign == '-') {
        end = rstrip(s, end);
    } else if (sign != '+' && lstrip) {
        const char *l = end;
        while (l > s && l[-1] != '\n')
            l--;
        if ((l > s || x->line_starting) && rstrip(l, end) == l)
            end = l;
    }
    if (end > s)
        push(x, T_DATA, s, s, (size_t)(end - s));
}

/* After `%}` or `#}`: `+` keeps everything, `-` eats all white space, otherwise one newline goes. NULL: p is
 * not such an end. */
static const char *block_end(const struct lexer *x, const char *p, const char *close)
{
    if (p < x->end && *p == '+' && starts(x, p + 1, close))
        return p + 3;
    if (p < x->end && *p == '-' && starts(x, p + 1, close))
        return skip_space(x, p + 3);
    if (!starts(x, p, close))
        return NULL;
    p += 2;
    return p < x->end && *p == '\n' ? p + 1 : p;
}

static const char *variable_end(const struct lexer *x, const char *p)
{
    if (p < x->end && *p == '-' && starts(x, p + 1, "}}"))
        return skip_space(x, p + 3);
    return starts(x, p, "}}") ? p + 2 : NULL;
}

static void moved(struct lexer *x, const char *to)
{
    x->line_starting = to > x->src && to[-1] == '\n';
    x->p = to;
}

/* ---- inside tags ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* (\d+_)*\d+ : digits with single underscores between them. */
static const char *digits(const struct lexer *x, const char *p)
{
    if (p >= x->end || !is_digit(*p))
        return NULL;
    for (;;) {
        while (p < x->end && is_digit(*p))
            p++;
        if (p + 1 < x->end && *p == '_' && is_digit(p[1]))
            p++;
        else
            return p;
    }
}

static const char *exponent(const struct lexer *x, const char *p)
{
    if (p >= x->end || (*p != 'e' && *p != 'E'))
        return NULL;
    p++;
    if (p < x->end && (*p == '+' || *p == '-'))
        p++;
    return digits(x, p);
}

static const char *float_end(const struct lexer *x, const char *p)
{
    if (p > x->src && p[-1] == '.') /* `a.0.1` is two subscripts */
        return NULL;
    const char *whole = digits(x, p);
    if (!whole)
        return NULL;
    const char *fraction = whole < x->end && *whole == '.' ? digits(x, whole + 1) : NULL;
    const char *e = exponent(x, fraction ? fraction : whole);
    return e ? e : fraction;
}

static size_t without_underscores(const char *s, const char *end, char *ret, size_t cap)
{
    size_t n = 0;
    for (; s < end && n + 1 < cap; s++)
        if (*s != '_')
            ret[n++] = *s;
    ret[n] = 0;
    return n;
}

static bool lex_number(struct lexer *x)
{
    char text[512];
    const char *p = x->p, *end = float_end(x, p);
    if (end) {
        if (end - p >= (ptrdiff_t)sizeof(text))
            lex_fail(x, p, "a number of more than %zu digits", sizeof(text) - 1);
        without_underscores(p, end, text, sizeof(text));
        push(x, T_FLOAT, p, p, (size_t)(end - p))->f = strtod(text, NULL);
        moved(x, end);
        return true;
    }
    if (!is_digit(*p))
        return false;
    int base = 10;
    const char *q = p;
    if (*p == '0') {
        char c = p + 1 < x->end ? (char)(p[1] | 0x20) : 0;
        int with = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        const char *d = p + 2;
        while (with && d < x->end) {
            const char *u = *d == '_' ? d + 1 : d;
            if (u >= x->end)
                break;
            int v = is_digit(*u)                               ? *u - '0'
                    : (*u | 0x20) >= 'a' && (*u | 0x20) <= 'f' ? (*u | 0x20) - 'a' + 10
                                                               : 99;
            if (v >= with)
                break;
            d = u + 1;
            base = with;
            q = d;
        }
        if (base == 10) /* 0, 00, 0_0 */
            for (q = p + 1; q < x->end && (*q == '0' || (*q == '_' && q + 1 < x->end && q[1] == '0'));)
                q += *q == '_' ? 2 : 1;
    } else {
        q = digits(x, p);
    }
    const char *from = base == 10 ? p : p + 2;
    size_t n = without_underscores(from, q, text, sizeof(text));
    errno = 0;
    char *stop;
    long long v = strtoll(text, &stop, base);
    if (errno || n + 1 >= sizeof(text))
        lex_refuse(x, ERR_LIMIT, p, "%.*s does not fit a 64-bit integer", (int)MIN(q - p, 64), p);
    push(x, T_INT, p, p, (size_t)(q - p))->i = v;
    moved(x, q);
    return true;
}

static unsigned hex_escape(struct lexer *x, const char *p, const char *end, int n)
{
    unsigned cp = 0;
    for (int i = 0; i < n; i++, p++) {
        char c = p < end ? *p : 0;
        int v = is_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
        if (v < 0)
            lex_fail(x, p, "an escape in this string is cut short, it needs %d hexadecimal digits", n);
        cp = cp * 16 + (unsigned)v;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        lex_fail(x, p - n, "an escape in this string names U+%X, which is no character", cp);
    return cp;
}

/* Python's escapes; one it does not know stays as it is, backslash included. */
static void lex_string(struct lexer *x)
{
    const char *p = x->p, *q = p + 1;
    char quote = *p;
    bool plain = true;
    for (; q < x->end && *q != quote; q++)
        if (*q == '\\') {
            plain = false;
            q++;
        }
    if (q >= x->end)
        lex_fail(x, p, "this string is not closed");
    if (plain) {
        push(x, T_STRING, p, p + 1, (size_t)(q - p - 1));
        moved(x, q + 1);
        return;
    }
    char *out = arena_alloc(x->arena, (size_t)(q - p)); /* no escape is shorter than what it stands for */
    size_t n = 0;
    for (const char *s = p + 1; s < q; s++) {
        if (*s != '\\') {
            out[n++] = *s;
            continue;
        }
        s++;
        unsigned cp;
        switch (*s) {
        case '\n':
            continue;
        case 'a':
            cp = '\a';
            break;
        case 'b':
            cp = '\b';
            break;
        case 'f':
            cp = '\f';
            break;
        case 'n':
            cp = '\n';
            break;
        case 'r':
            cp = '\r';
            break;
        case 't':
            cp = '\t';
            break;
        case 'v':
            cp = '\v';
            break;
        case '\\':
        case '\'':
        case '"':
            cp = (unsigned char)*s;
            break;
        case 'x':
            cp = hex_escape(x, s + 1, q, 2);
            s += 2;
            break;
        case 'u':
            cp = hex_escape(x, s + 1, q, 4);
            s += 4;
            break;
        case 'U':
            cp = hex_escape(x, s + 1, q, 8);
            s += 8;
            break;
        case 'N':
            lex_refuse(x, ERR_UNSUPPORTED, s, "\\N{...} escapes are not supported, write \\u");
        default:
            if (*s >= '0' && *s <= '7') {
                cp = 0;
                int i = 0;
                for (; i < 3 && s + i < q && s[i] >= '0' && s[i] <= '7'; i++)
                    cp = cp * 8 + (unsigned)(s[i] - '0');
                s += i - 1;
                break;
            }
            out[n++] = '\\';
            out[n++] = *s;
            continue;
        }
        n += utf8_encode(out + n, cp);
    }
    push(x, T_STRING, p, out, n);
    moved(x, q + 1);
}

static bool lex_name(struct lexer *x)
{
    const char *p = x->p, *q = p;
    size_t n;
    while (q < x->end && cp_is_word(utf8_at(q, x->end, &n)))
        q += n;
    if (q == p)
        return false;
    for (const char *s = p; s < q; s += n) {
        unsigned cp = utf8_at(s, q, &n);
        if (s == p ? !cp_is_name_start(cp) : !cp_is_name(cp))
            lex_fail(x, s, "U+%04X cannot be part of a name", cp);
    }
    push(x, T_NAME, p, p, (size_t)(q - p));
    moved(x, q);
    return true;
}

static void lex_operator(struct lexer *x)
{
    static const char two[][3] = {"//", "**", "==", "!=", ">=", "<="};
    const char *p = x->p;
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(two); i++)
        if (starts(x, p, two[i]))
            n = 2;
    if (!n && strchr("+-/*%~[](){}><=.:|,;", *p) && *p)
        n = 1;
    if (!n) {
        size_t w;
        unsigned cp = utf8_at(p, x->end, &w);
        lex_fail(x, p, "unexpected character U+%04X '%.*s' inside a tag", cp, (int)w, p);
    }
    if (n == 1 && strchr("{[(", *p)) {
        if (x->n_balance == sizeof(x->balance))
            lex_fail(x, p, "more than %zu open brackets", sizeof(x->balance));
        x->balance[x->n_balance++] = *p == '{' ? '}' : *p == '[' ? ']' : ')';
    } else if (n == 1 && strchr("}])", *p)) {
        if (!x->n_balance)
            lex_fail(x, p, "'%c' closes nothing", *p);
        char want = x->balance[--x->n_balance];
        if (want != *p)
            lex_fail(x, p, "found '%c' where '%c' was expected", *p, want);
    }
    push(x, T_OP, p, p, n);
    moved(x, p + n);
}

/* What lies between a tag's opening and its end. */
static void lex_tag(struct lexer *x, bool block, const char *opened)
{
    x->n_balance = 0;
    for (;;) {
        if (x->p >= x->end)
            lex_fail(x, opened, "this '%s' is not closed", block ? "{%" : "{{");
        if (!x->n_balance) {
            const char *q = block ? block_end(x, x->p, "%}") : variable_end(x, x->p);
            if (q) {
                push(x, block ? T_BLOCK_END : T_VAR_END, x->p, x->p, 2);
                moved(x, q);
                return;
            }
        }
        const char *q = skip_space(x, x->p);
        if (q > x->p)
            moved(x, q);
        else if (*x->p == '"' || *x->p == '\'')
            lex_string(x);
        else if (!lex_number(x) && !lex_name(x))
            lex_operator(x);
    }
}

static char sign_at(const struct lexer *x, const char *p)
{
    return p < x->end && (*p == '-' || *p == '+') ? *p : 0;
}

/* Is this `{%` the start of `{% raw %}`? Then where its text starts, else NULL. */
static const char *raw_begin(const struct lexer *x, const char *p)
{
    p += 2;
    if (sign_at(x, p))
        p++;
    p = skip_space(x, p);
    if (!starts(x, p, "raw"))
        return NULL;
    p = skip_space(x, p + 3);
    if (starts(x, p, "-%}"))
        return skip_space(x, p + 3);
    return starts(x, p, "%}") ? p + 2 : NULL;
}

static void lex_raw(struct lexer *x, const char *opened)
{
    const char *text = x->p;
    for (const char *p = text; p < x->end; p++) {
        if (!starts(x, p, "{%"))
            continue;
        char sign = sign_at(x, p + 2);
        const char *q = skip_space(x, p + 2 + (sign != 0));
        if (!starts(x, q, "endraw"))
            continue;
        q = block_end(x, skip_space(x, q + 6), "%}");
        if (!q)
            continue;
        push_text(x, text, p, sign, true);
        moved(x, q);
        return;
    }
    if (text == x->end) /* as jinja2 does */
        return;
    lex_fail(x, opened, "this {%% raw %%} has no {%% endraw %%}");
}

static void lex_comment(struct lexer *x, const char *opened)
{
    for (const char *p = x->p; p < x->end; p++) {
        const char *q = block_end(x, p, "#}");
        if (q) {
            moved(x, q);
            return;
        }
    }
    if (x->p == x->end)
        return;
    lex_fail(x, opened, "this comment is not closed with '#}'");
}

static void lex_root(struct lexer *x)
{
    while (x->p < x->end) {
        const char *text = x->p, *p = text;
        while (p < x->end && !(*p == '{' && p + 1 < x->end && strchr("{%#", p[1]) && p[1]))
            p++;
        if (p >= x->end) {
            push(x, T_DATA, text, text, (size_t)(p - text));
            moved(x, p);
            return;
        }
        char kind = p[1], sign = sign_at(x, p + 2);
        push_text(x, text, p, sign, kind != '{');
        const char *raw = kind == '%' ? raw_begin(x, p) : NULL;
        if (raw) {
            moved(x, raw);
            lex_raw(x, p);
            continue;
        }
        moved(x, p + 2 + (sign != 0));
        if (kind == '#') {
            lex_comment(x, p);
        } else {
            push(x, kind == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN, p, p, 2);
            lex_tag(x, kind == '%', p);
        }
    }
}

/* \r\n and \r become \n; one trailing newline goes. */
static char *normalise(struct arena *a, const char *s, size_t n, size_t *ret_n)
{
    char *out = arena_alloc(a, n + 1);
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\r') {
            out[m++] = '\n';
            if (i + 1 < n && s[i + 1] == '\n')
                i++;
        } else {
            out[m++] = s[i];
        }
    }
    if (m && out[m - 1] == '\n')
        m--;
    out[m] = 0;
    *ret_n = m;
    return out;
}

struct token *template_lex(struct parse_trap *t, struct arena *a, const char *source, size_t n)
{
    struct lexer x = {.trap = t, .arena = a, .line = 1, .col = 1, .line_starting = true};
    size_t m;
    x.src = normalise(a, source, n, &m);
    x.end = x.src + m;
    x.p = x.counted = x.src;
    lex_root(&x);
    push(&x, T_EOF, x.end, "", 0);
    return x.tok;
}
