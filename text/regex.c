#include "text/regex.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "base/mem.h"
#include "text/unicode.h"
#include "text/utf8.h"

struct regex {
    pcre2_code *code;
    bool jit;
    bool empty;          /* it may match nothing */
    bool trailing_space; /* the pattern is \s+$, which no search engine does in linear time: done by hand */
    unsigned char start[128]; /* may a match start with this ASCII character? */
};

struct regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* ---- translation ---- */

struct translator {
    const char *p, *end, *begin;
    const char *where;
    struct buf *out;
    bool extended[32];     /* (?x) in force, by depth of groups */
    size_t content_at[32]; /* where the open group's content starts in the output */
    int depth;
    struct err *e;
};

static int refuse(struct translator *t, const char *what)
{
    return err_set(t->e, ERR_UNSUPPORTED, "%s: in the pattern \"%.*s\", %s at byte %zu is not supported",
                   t->where, (int)MIN(t->end - t->begin, 300), t->begin, what, (size_t)(t->p - t->begin));
}

static const char space_ranges[] =
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
static const char nonspace_ranges[] =
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}!-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{"
    "2027}"
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}";

/* Oniguruma asks one table when \w stands alone (and at \b), and another in a class: only the first has ² ³ ¹
 * ¼ ½ ¾. */
static void add_word_ranges(struct buf *out, bool alone)
{
    if (alone)
        buf_adds(out, "\\xB2\\xB3\\xB9\\xBC-\\xBE");
    buf_adds(out,
             "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}"
             "\\x{1F170}-\\x{1F189}");
    uni_add_new_ranges(out, "L");
    uni_add_new_ranges(out, "M");
    uni_add_new_ranges(out, "Nd");
    uni_add_new_ranges(out, "Nl");
    uni_add_new_ranges(out, "Pc");
}

static void add_digit_ranges(struct buf *out)
{
    buf_adds(out, "\\p{Nd}");
    uni_add_new_ranges(out, "Nd");
}

/* Names as Oniguruma compares them: without case, spaces, '-' and '_'. */
static const struct {
    const char *name, *category;
} long_names[] = {
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"symbol", "S"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"otherpunctuation", "Po"},
    {"connectorpunctuation", "Pc"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
};
static const char categories[] =
    " l lu ll lt lm lo m mn mc me n nd nl no p pc pd ps pe pi pf po s sm sc sk so z zs zl zp cc cf co ";

/* Appends what stands between [ and ] for \p{name}; scripts go through as sc:Name (PCRE2's bare script names
 * mean script extensions). */
static int add_property(struct translator *t, const char *name, size_t n)
{
    char key[40], padded[8];
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (name[i] != ' ' && name[i] != '-' && name[i] != '_' && k + 1 < sizeof(key))
            key[k++] = (char)tolower((unsigned char)name[i]);
    key[k] = 0;
    for (size_t i = 0; i < ARRAY_LEN(long_names); i++)
        if (!strcmp(key, long_names[i].name)) {
            snprintf(key, sizeof(key), "%s", long_names[i].category);
            key[0] = (char)tolower((unsigned char)key[0]);
            k = strlen(key);
        }
    snprintf(padded, sizeof(padded), " %.3s ", key);
    if (k && k <= 2 && strstr(categories, padded)) {
        key[0] = (char)toupper((unsigned char)key[0]);
        buf_addf(t->out, "\\p{%s}", key);
        uni_add_new_ranges(t->out, key);
        return 0;
    }
    if (!strcmp(key, "any")) {
        buf_adds(t->out, "\\x{0}-\\x{10FFFF}");
    } else if (!strcmp(key, "space") || !strcmp(key, "whitespace")) {
        buf_adds(t->out, space_ranges);
    } else if (!strcmp(key, "word")) {
        add_word_ranges(t->out, false);
    } else if (!strcmp(key, "digit")) {
        add_digit_ranges(t->out);
    } else if (!strcmp(key, "han")) {
        buf_adds(t->out, "\\p{sc:Han}");
        uni_add_new_han(t->out);
    } else if (k > 3 && isalpha((unsigned char)key[0]) && strspn(key, "abcdefghijklmnopqrstuvwxyz") == k) {
        buf_addf(t->out, "\\p{sc:%s}", key); /* unknown scripts are the compiler's to refuse */
    } else {
        return refuse(t, "this \\p{...}");
    }
    return 0;
}

/* At the '{' of \p{...}: the name; *negated is flipped by a leading '^'. */
static int read_property(struct translator *t, bool *negated, const char **ret_name, size_t *ret_n)
{
    const char *close = t->p < t->end && *t->p == '{' ? memchr(t->p, '}', (size_t)(t->end - t->p)) : NULL;
    if (!close)
        return refuse(t, "\\p without {name}");
    const char *name = t->p + 1;
    if (name < close && *name == '^') {
        *negated = !*negated;
        name++;
    }
    t->p = close + 1;
    *ret_name = name;
    *ret_n = (size_t)(close - name);
    return 0;
}

/* After \x or \u: a code point, as PCRE2 writes it. Returns -1 if there is none. */
static long read_hex(struct translator *t, char kind)
{
    bool braces = t->p < t->end && *t->p == '{' && kind == 'x';
    size_t most = braces ? 6 : kind == 'x' ? 2 : 4, n = 0;
    long c = 0;
    if (braces)
        t->p++;
    while (t->p < t->end && n < most && isxdigit((unsigned char)*t->p)) {
        int d = tolower((unsigned char)*t->p++);
        c = c * 16 + (d <= '9' ? d - '0' : d - 'a' + 10);
        n++;
    }
    if (!n || (kind == 'u' && n != 4) || (!braces && kind == 'x' && c > 0x7F))
        return -1; /* \x80 and above would be single bytes */
    if (braces && (t->p == t->end || *t->p++ != '}'))
        return -1;
    return c;
}

/* An escape that means one character, inside or outside a class: its code point, or -1 if it is none. t->p is
 * behind the letter. */
static long escaped_character(struct translator *t, char c)
{
    switch (c) {
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'f':
        return '\f';
    case 'v':
        return '\v';
    case 'a':
        return 7;
    case 'e':
        return 27;
    case 'x':
    case 'u':
        return read_hex(t, c);
    default:
        return c && !isalnum((unsigned char)c) && (unsigned char)c < 0x80 ? c : -1;
    }
}

static void add_character(struct buf *out, long c)
{
    buf_addf(out, "\\x{%lX}", c);
}

/* A set such as \s or \P{L}, in a class or by itself; t->p is behind its letter. A class cannot hold another,
 * so a negated set inside one has to be spelled out, and only \S is. */
static int add_class_escape(struct translator *t, char c, bool in_class)
{
    bool negated = isupper((unsigned char)c) != 0;
    const char *name = NULL;
    size_t n = 0;
    if (c == 'p' || c == 'P') {
        int rc = read_property(t, &negated, &name, &n);
        if (rc)
            return rc;
    }
    if (in_class && negated && c != 'S')
        return refuse(t, "a negated set inside a class");
    if (!in_class)
        buf_adds(t->out, negated ? "[^" : "[");
    int rc = 0;
    switch (tolower((unsigned char)c)) {
    case 's':
        buf_adds(t->out, in_class && negated ? nonspace_ranges : space_ranges);
        break;
    case 'd':
        add_digit_ranges(t->out);
        break;
    case 'w':
        add_word_ranges(t->out, !in_class);
        break;
    case 'h':
        buf_adds(t->out, "0-9a-fA-F");
        break;
    default:
        rc = add_property(t, name, n);
    }
    if (!in_class)
        buf_adds(t->out, "]");
    return rc;
}

static bool is_set_letter(char c)
{
    return c && strchr("sSdDwWhHpP", c) != NULL;
}

static int add_posix(struct translator *t)
{
    static const char *const plain[] = {"alpha", "upper", "lower",  "alnum", "cntrl",
                                        "graph", "print", "xdigit", "ascii", "blank"};
    const char *close = strstr(t->p, ":]");
    if (!close || close > t->end)
        return refuse(t, "an unfinished [:class:]");
    size_t n = (size_t)(close - t->p) - 2;
    const char *name = t->p + 2;
    if (n == 5 && !memcmp(name, "space", 5)) {
        buf_adds(t->out, space_ranges);
    } else if (n == 5 && !memcmp(name, "digit", 5)) {
        add_digit_ranges(t->out);
    } else if (n == 4 && !memcmp(name, "word", 4)) {
        add_word_ranges(t->out, false);
    } else if (n == 5 && !memcmp(name, "punct", 5)) {
        buf_adds(t->out, "\\p{P}\\p{S}");
        uni_add_new_ranges(t->out, "P");
        uni_add_new_ranges(t->out, "S");
    } else {
        bool known = false;
        for (size_t i = 0; i < ARRAY_LEN(plain); i++)
            known = known || (strlen(plain[i]) == n && !memcmp(plain[i], name, n));
        if (!known)
            return refuse(t, "this [:class:]");
        buf_addf(t->out, "[:%.*s:]", (int)n, name);
    }
    t->p = close + 2;
    return 0;
}

/* Is the '-' at t->p a range's? Only between two characters; elsewhere it stands for itself. */
static bool is_range(const struct translator *t)
{
    const char *next = t->p + 1;
    if (next >= t->end || *next == ']' || *next == '[')
        return false;
    if (*next == '&' && t->end - next > 1 && next[1] == '&')
        return false;
    return *next != '\\' || t->end - next < 2 || !is_set_letter(next[1]);
}

/* One operand of a class: the members up to "&&" or the closing bracket, flat. A nested class is a union and
 * must not be negated, unless it is the whole operand. */
static int class_members(struct translator *t, bool *negated, int depth)
{
    enum { NOTHING, CHARACTER, DASH, SET } last = NOTHING; /* DASH: of a range */
    while (t->p < t->end) {
        char c = *t->p;
        int rc = 0;
        if ((c == ']' && last != NOTHING) || (c == '&' && t->end - t->p > 1 && t->p[1] == '&'))
            return 0;
        if (c == '[' && t->end - t->p > 1 && t->p[1] == ':') {
            rc = add_posix(t);
            last = SET;
        } else if (c == '[') {
            bool inner = t->end - t->p > 1 && t->p[1] == '^', unused = false;
            if (depth > 8)
                return refuse(t, "a class nested so deeply");
            t->p += inner ? 2 : 1;
            rc = class_members(t, &unused, depth + 1);
            if (!rc && (t->p == t->end || *t->p != ']'))
                return refuse(t, "&& in a nested class");
            if (rc)
                return rc;
            t->p++;
            if (inner) {
                bool whole = last == NOTHING && (t->p == t->end || *t->p == ']' || *t->p == '&');
                if (!whole || depth)
                    return refuse(t, "a negated class inside a class");
                *negated = !*negated;
            }
            last = SET;
        } else if (c == '\\' && t->end - t->p > 1 && is_set_letter(t->p[1])) {
            t->p += 2;
            rc = add_class_escape(t, t->p[-1], true);
            last = SET;
        } else if (c == '-' && last == CHARACTER && is_range(t)) {
            buf_addc(t->out, '-');
            t->p++;
            last = DASH;
        } else {
            long code;
            if (c == '\\') {
                if (t->end - t->p < 2)
                    return refuse(t, "a trailing backslash");
                t->p += 2;
                c = t->p[-1];
                code = c == 'b' ? 8 : escaped_character(t, c);
                if (code < 0)
                    return refuse(t, "this escape");
            } else {
                size_t len;
                code = (long)utf8_get(t->p, &len);
                t->p += len;
            }
            add_character(t->out, code);
            last = last == DASH ? SET : CHARACTER;
        }
        if (rc)
            return rc;
    }
    return refuse(t, "an unfinished class");
}

/* [A&&B&&C] becomes (?:(?=[B])(?=[C])[A]). */
static int translate_class(struct translator *t)
{
    bool negated = t->end - t->p > 1 && t->p[1] == '^';
    struct buf *out = t->out, first = BUF_INIT, rest = BUF_INIT, one = BUF_INIT;
    t->p += negated ? 2 : 1;
    int rc = 0, n = 0;
    for (;;) {
        bool inner = false;
        buf_clear(&one);
        t->out = &one;
        rc = class_members(t, &inner, 0);
        t->out = out;
        if (rc)
            goto done;
        struct buf *to = n++ ? &rest : &first;
        if (to == &rest)
            buf_adds(to, "(?=");
        buf_addf(to, "[%s%s]", inner != (negated && n == 1 && *t->p == ']') ? "^" : "", one.s);
        if (to == &rest)
            buf_adds(to, ")");
        if (*t->p == ']')
            break;
        t->p += 2;
    }
    t->p++;
    if (n == 1)
        buf_adds(out, first.s);
    else if (negated)
        buf_addf(out, "(?:(?!%s%s)[\\x{0}-\\x{10FFFF}])", rest.s, first.s);
    else
        buf_addf(out, "(?:%s%s)", rest.s, first.s);
done:
    buf_release(&first);
    buf_release(&rest);
    buf_release(&one);
    return rc;
}

/* At "(": copies the opening of a group; Ruby's m is PCRE2's s. */
static int translate_group(struct translator *t, bool *ret_opens)
{
    const char *p = t->p;
    size_t left = (size_t)(t->end - p);
    bool x = t->extended[t->depth];
    *ret_opens = true;
    if (left < 2 || p[1] != '?') {
        buf_addc(t->out, '(');
        t->p++;
        goto open;
    }
    if (left < 3)
        return refuse(t, "\"(?\"");
    if (p[2] == '#') {
        const char *close = memchr(p, ')', left);
        if (!close)
            return refuse(t, "an unfinished comment");
        t->p = close + 1;
        *ret_opens = false;
        return 0;
    }
    if (strchr(":=!>", p[2])) {
        buf_add(t->out, p, 3);
        t->p += 3;
        goto open;
    }
    if (p[2] == '<') {
        if (left > 3 && (p[3] == '=' || p[3] == '!')) {
            buf_add(t->out, p, 4);
            t->p += 4;
            goto open;
        }
        const char *close = memchr(p, '>', left);
        if (!close)
            return refuse(t, "an unfinished group name");
        buf_add(t->out, p, (size_t)(close - p) + 1);
        t->p = close + 1;
        goto open;
    }
    bool off = false;
    size_t option_at = t->out->len;
    buf_adds(t->out, "(?");
    for (t->p += 2; t->p < t->end && *t->p != ':' && *t->p != ')'; t->p++) {
        if (*t->p == '-')
            off = true;
        else if (*t->p == 'x')
            x = !off;
        else if (*t->p != 'i' && *t->p != 'm')
            return refuse(t, "this group");
        buf_addc(t->out, *t->p == 'm' ? 's' : *t->p);
    }
    if (t->p == t->end)
        return refuse(t, "an unfinished group");
    buf_addc(t->out, *t->p);
    if (*t->p++ == ')') {
        /* Ruby's (?i) holds to the end of the group, as PCRE2's does, but with alternatives inside it:
         * a(?i)b|c is a(?i:b|c) in Ruby. */
        if (option_at != t->content_at[t->depth] && memchr(t->p, '|', (size_t)(t->end - t->p)))
            return refuse(t, "an option in force before a later \"|\"");
        t->extended[t->depth] = x;
        *ret_opens = false;
        return 0;
    }
open:
    if (t->depth + 1 >= (int)ARRAY_LEN(t->extended))
        return refuse(t, "a group nested so deeply");
    t->extended[++t->depth] = x;
    t->content_at[t->depth] = t->out->len;
    return 0;
}

static void wrap(struct buf *out, size_t at)
{
    struct buf tail = BUF_INIT;
    buf_add(&tail, out->s + at, out->len - at);
    buf_remove(out, at, out->len - at);
    buf_addf(out, "(?:%s)", tail.s);
    buf_release(&tail);
}

/* At "{": an interval, or a literal brace. `atom` is where the repeated thing starts in the output. */
static int translate_interval(struct translator *t, size_t atom)
{
    const char *p = t->p + 1, *q = p;
    while (q < t->end && (isdigit((unsigned char)*q) || *q == ','))
        q++;
    const char *comma = memchr(p, ',', (size_t)(q - p));
    if (q == t->end || *q != '}' || q == p || (comma && memchr(comma + 1, ',', (size_t)(q - comma - 1))) ||
        (q - p == 1 && comma)) {
        buf_adds(t->out, "\\{");
        t->p++;
        return 0;
    }
    buf_addf(t->out, "{%s%.*s}", comma == p ? "0" : "", (int)(q - p), p);
    t->p = q + 1;
    if (t->p < t->end && (*t->p == '+' || (*t->p == '?' && !comma)))
        wrap(t->out, atom); /* Ruby: the interval repeated, not possessive; {n}? may be absent */
    else if (t->p < t->end && *t->p == '?')
        buf_addc(t->out, *t->p++);
    return 0;
}

int regex_translate(const char *pattern, size_t n, const char *where, struct buf *out, struct err *e)
{
    struct translator t = {
        .p = pattern, .end = pattern + n, .begin = pattern, .where = where, .out = out, .e = e};
    size_t atom = out->len, group_at[ARRAY_LEN(t.extended)] = {0};
    t.content_at[0] = out->len;
    if (!utf8_valid(pattern, n) || memchr(pattern, 0, n))
        return err_set(e, ERR_FORMAT, "%s: the pattern is not UTF-8 text", where);
    while (t.p < t.end) {
        char c = *t.p;
        int rc = 0;
        size_t here = out->len;
        if (c == '[') {
            rc = translate_class(&t);
            atom = here;
        } else if (c == '(') {
            bool opens;
            int depth = t.depth;
            rc = translate_group(&t, &opens);
            if (!rc && opens)
                group_at[depth] = here;
            atom = here;
        } else if (c == ')') {
            if (!t.depth)
                return refuse(&t, "an unmatched \")\"");
            atom = group_at[--t.depth];
            buf_addc(out, *t.p++);
        } else if (c == '{') {
            rc = translate_interval(&t, atom);
        } else if (c == '\\') {
            if (t.end - t.p < 2)
                return refuse(&t, "a trailing backslash");
            c = t.p[1];
            t.p += 2;
            atom = here;
            if (is_set_letter(c)) {
                rc = add_class_escape(&t, c, false);
            } else if (c == 'b' || c == 'B') {
                struct buf w = BUF_INIT;
                add_word_ranges(&w, true);
                buf_addf(out,
                         c == 'b' ? "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))"
                                  : "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))",
                         w.s, w.s, w.s, w.s);
                buf_release(&w);
            } else if (strchr("AzZG", c)) {
                buf_addf(out, "\\%c", c);
            } else if (c >= '1' && c <= '9') {
                buf_addf(out, "\\g{%c}", c);
            } else {
                long code = escaped_character(&t, c);
                if (code < 0)
                    return refuse(&t, "this escape");
                add_character(out, code);
            }
        } else if (t.extended[t.depth] && c == '#') {
            while (t.p < t.end && *t.p != '\n')
                t.p++;
        } else {
            size_t len;
            uint32_t code = utf8_get(t.p, &len);
            if (!strchr("*+?", c))
                atom = here;
            if (code >= 0x80 || c == ']' || c == '}')
                add_character(out, (long)code);
            else
                buf_addc(out, c);
            t.p += len;
        }
        if (rc)
            return rc;
    }
    if (t.depth)
        return refuse(&t, "an unmatched \"(\"");
    return 0;
}

/* ---- matching ---- */

/* Which ASCII characters a match can start with: a one-character subject whose end counts as unknown either
 * fails for good, or may be continued. A pattern that looks behind itself would see too little. */
static void find_starts(struct regex *r)
{
    uint32_t behind = 0;
    pcre2_pattern_info(r->code, PCRE2_INFO_MAXLOOKBEHIND, &behind);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    if (!data)
        behind = 1;
    for (int c = 0; c < 128; c++) {
        unsigned char subject = (unsigned char)c;
        r->start[c] = behind || pcre2_match(r->code, &subject, 1, 0,
                                            PCRE2_PARTIAL_HARD | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                                            NULL) != PCRE2_ERROR_NOMATCH;
    }
    pcre2_match_data_free(data);
}

int regex_new(const char *pattern, size_t n, const char *where, struct regex **ret, struct err *e)
{
    struct buf translated = BUF_INIT;
    struct regex *r;
    XNEW(r);
    int code, rc = regex_translate(pattern, n, where, &translated, e);
    PCRE2_SIZE at;
    if (rc)
        goto done;
    r->trailing_space = n == 4 && !memcmp(pattern, "\\s+$", 4);
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    if (c) {
        pcre2_set_newline(c, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(c, 64);
        r->code = pcre2_compile((PCRE2_SPTR)translated.s, translated.len,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                                    PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK | PCRE2_NO_AUTO_POSSESS,
                                &code, &at, c);
        pcre2_compile_context_free(c);
    } else {
        code = PCRE2_ERROR_NOMEMORY;
    }
    if (!r->code) {
        char message[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof(message));
        rc = err_set(e, ERR_FORMAT, "%s: the pattern \"%.*s\" cannot be compiled: %s", where,
                     (int)MIN(n, (size_t)300), pattern, message);
        goto done;
    }
    /* Where the system forbids writable code pages, the interpreter does the same, slower. */
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    uint32_t empty = 1;
    pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &empty);
    r->empty = empty != 0;
    find_starts(r);
    *ret = r;
    r = NULL;
done:
    buf_release(&translated);
    regex_free(r);
    return rc;
}

void regex_free(struct regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    xfree(r);
}

void regex_disable_jit(struct regex *r)
{
    r->jit = false;
}

struct regex_scratch *regex_scratch_new(void)
{
    struct regex_scratch *s;
    XNEW(s);
    return s;
}

void regex_scratch_free(struct regex_scratch *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    xfree(s);
}

static bool prepare(struct regex_scratch *s)
{
    if (!s->data)
        s->data = pcre2_match_data_create(1, NULL);
    if (!s->context) {
        s->context = pcre2_match_context_create(NULL);
        if (s->context)
            pcre2_set_heap_limit(s->context, 256 * 1024); /* KiB */
    }
    return s->data && s->context;
}

static void push(struct regex_matches *m, size_t start, size_t end)
{
    XGROW(m->v, m->n, m->cap);
    m->v[m->n++] = (struct regex_match){start, end};
}

/* \s+$ in one pass: of each run of white space, all of it at the end of the text; elsewhere what comes before
 * its last line feed. */
static void find_trailing_space(const char *text, size_t n, struct regex_matches *m)
{
    for (size_t at = 0, len; at < n;) {
        if (!uni_is_space(utf8_get(text + at, &len))) {
            at += len;
            continue;
        }
        size_t start = at, line = at;
        while (at < n && uni_is_space(utf8_get(text + at, &len))) {
            if (text[at] == '\n')
                line = at;
            at += len;
        }
        if (at == n)
            push(m, start, n);
        else if (line > start)
            push(m, start, line);
    }
}

/* Compiled patterns run on 32 KiB of the thread's own stack; repeated groups may need more. */
static bool give_stack(struct regex_scratch *s)
{
    if (s->stack)
        return false;
    s->stack = pcre2_jit_stack_create(64 << 10, 32 << 20, NULL);
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s->stack != NULL;
}

#define FIRST_WINDOW 128

/* The anchored match at `at`: 1 and *ret_end, or 0, or an error. *work grows by what had to be looked at
 * beyond the first window. */
static int match_at(const struct regex *r, struct regex_scratch *s, const char *text, size_t n, size_t at,
                    size_t *work, size_t *ret_end, struct err *e)
{
    for (size_t window = FIRST_WINDOW;; window *= 4) {
        size_t end = n - at > window ? at + window : n;
        while (end < n && ((unsigned char)text[end] & 0xC0) == 0x80)
            end--;
        uint32_t options = PCRE2_NO_UTF_CHECK | (end < n ? PCRE2_PARTIAL_HARD : 0);
        /* Steps of backtracking: a pattern meant for text stays far below. */
        size_t limit = 100 * (end - at) + 100000;
        pcre2_set_match_limit(s->context, limit > 0x7FFFFFFF ? 0x7FFFFFFF : (uint32_t)limit);
        int rc = pcre2_match(r->code, (PCRE2_SPTR)text, end, at, options | (r->jit ? 0 : PCRE2_NO_JIT),
                             s->data, s->context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT && give_stack(s))
            rc = pcre2_match(r->code, (PCRE2_SPTR)text, end, at, options, s->data, s->context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(r->code, (PCRE2_SPTR)text, end, at, options | PCRE2_NO_JIT, s->data, s->context);
        if (rc == PCRE2_ERROR_PARTIAL) {
            *work += end - at;
            continue;
        }
        if (rc >= 0) {
            *ret_end = pcre2_get_ovector_pointer(s->data)[1];
            return 1;
        }
        if (rc == PCRE2_ERROR_NOMATCH)
            return 0;
        char message[160];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof(message));
        return err_set(e, ERR_LIMIT, "the tokenizer's pattern gives up at byte %zu of the text: %s", at,
                       message);
    }
}

int regex_find_all(const struct regex *r, struct regex_scratch *s, const char *text, size_t n,
                   struct regex_matches *m, struct err *e)
{
    m->n = 0;
    if (r->trailing_space) {
        find_trailing_space(text, n, m);
        return 0;
    }
    if (!prepare(s))
        return err_set(e, ERR_MEMORY, "no memory for matching a pattern");
    size_t work = 0, budget = n * REGEX_WORK_PER_BYTE + (1 << 20), last = SIZE_MAX, end = 0;
    for (size_t at = 0; at < n || (at == n && r->empty);) {
        if (at < n && (unsigned char)text[at] < 128 && !r->start[(unsigned char)text[at]]) {
            at++;
            continue;
        }
        int rc = match_at(r, s, text, n, at, &work, &end, e);
        m->work++;
        if (rc < 0)
            return rc;
        if (work > budget)
            return err_set(e, ERR_LIMIT,
                           "the tokenizer's pattern needs more than %d looks at each byte of this"
                           " text (of %zu bytes)",
                           REGEX_WORK_PER_BYTE, n);
        if (rc && !(end == at && end == last)) {
            push(m, at, end);
            last = end;
        }
        if (rc && end > at) {
            at = end;
        } else if (at < n) { /* nothing here, or an empty match: one character on */
            size_t len;
            utf8_get(text + at, &len);
            at += len;
        } else {
            break;
        }
    }
    m->work += work;
    return 0;
}
