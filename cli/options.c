#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "cli/suggest.h"

static const int cpu_codes[] = {CPU_AUTO, CPU_C, CPU_AVX2, CPU_AVX512, CPU_NEON, CPU_NEON_DOT};

/* A row whose type does not fit its member does not compile. */
#define MEMBER(field) ((struct settings *)0)->field
#define TYPE_OF(field)                                                                                       \
    _Generic(MEMBER(field), bool : 1 << T_BOOL, int64_t : 1 << T_INT, uint64_t : 1 << T_SIZE,                \
             double : 1 << T_DOUBLE, const char * : 1 << T_STRING, struct strings : 1 << T_STRINGS,          \
             int : 1 << T_ENUM, struct ints : 1 << T_INTS)
#define OPTION(id, field, type, ...)                                                                         \
    _Static_assert(TYPE_OF(field) == 1 << T_##type, "options.def: the type of " #id " is not its member's");
#include "cli/options.def"
#undef OPTION

const struct option option_table[OPT_COUNT] = {
#define OPTION(id, field, type_, ...)                                                                        \
    [OPT_##id] = {.name = #id, .type = T_##type_, .offset = offsetof(struct settings, field), __VA_ARGS__},
#include "cli/options.def"
#undef OPTION
};

#define SHAPE(...)
#define IGNORED(patterns, reason) {patterns, reason},
const struct ignored_key ignored_table[] = {
#include "cli/ignored.def"
};
#undef SHAPE
#undef IGNORED
const size_t n_ignored = ARRAY_LEN(ignored_table);

#define IGNORED(...)
#define SHAPE(path, names) {path, names},
const struct shape_key shape_table[] = {
#include "cli/ignored.def"
};
#undef SHAPE
#undef IGNORED
const size_t n_shapes = ARRAY_LEN(shape_table);

const char *group_title(enum option_group g)
{
    static const char *const title[G_COUNT] = {
        "Model", "Prompts and answers", "Sampling", "Engine", "Split over ranks", "Launching ranks", "Advice",
        "Tools", "As in MindFormers"};
    return title[g];
}

const char *command_name(enum command c)
{
    switch (c) {
    case CMD_RUN:
        return "run";
    case CMD_PLAN:
        return "plan";
    case CMD_LOGITS:
        return "logits";
    case CMD_TOKENIZE:
        return "tokenize";
    case CMD_TEMPLATE:
        return "template";
    case CMD_LAUNCH:
        return "launch";
    case CMD_SHARD:
        return "shard";
    case CMD_BENCH:
        return "bench";
    }
    return NULL;
}

const char *next_word(const char **at, size_t *len)
{
    if (!*at)
        return NULL;
    const char *s = *at;
    while (*s == ' ')
        s++;
    *len = (size_t)(strchrnul(s, ' ') - s);
    *at = s + *len;
    return *len ? s : NULL;
}

static bool same_flag(const char *a, size_t n_a, const char *b, size_t n_b)
{
    if (n_a != n_b)
        return false;
    for (size_t i = 0; i < n_a; i++)
        if ((a[i] == '_' ? '-' : a[i]) != (b[i] == '_' ? '-' : b[i]))
            return false;
    return true;
}

static bool flag_among(const char *flag, size_t len, unsigned commands, struct flag_hit *ret)
{
    bool negated = len > 5 && same_flag(flag, 5, "--no-", 5);
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const struct option *o = &option_table[i];
        const char *at = o->commands & commands ? o->flags : NULL, *w;
        size_t n;
        while ((w = next_word(&at, &n))) {
            const char *eq = memchr(w, '=', n);
            size_t n_name = eq ? (size_t)(eq - w) : n;
            if (same_flag(flag, len, w, n_name)) {
                *ret = (struct flag_hit){o, eq ? eq + 1 : NULL, eq ? n - n_name - 1 : 0};
                return true;
            }
            if (negated && o->type == T_BOOL && !eq && n > 2 && same_flag(flag + 5, len - 5, w + 2, n - 2)) {
                *ret = (struct flag_hit){o, "false", 5};
                return true;
            }
        }
    }
    return false;
}

bool option_by_flag(const char *flag, size_t len, unsigned commands, struct flag_hit *ret)
{
    return flag_among(flag, len, commands, ret) || flag_among(flag, len, ~commands, ret);
}

const struct option *option_by_path(const char *path)
{
    size_t len = strlen(path), n;
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const char *at = option_table[i].yaml, *w;
        while ((w = next_word(&at, &n)))
            if (n == len && !memcmp(w, path, n))
                return &option_table[i];
    }
    return NULL;
}

const char *option_flag(const struct option *o, char buf[64])
{
    const char *at = o->flags, *w;
    size_t n;
    while ((w = next_word(&at, &n)))
        if (n > 2 && w[1] == '-' && n < 64) {
            memcpy(buf, w, n);
            buf[n] = 0;
            return buf;
        }
    return NULL;
}

/* A pattern's `*` stands for any text; a closing `.*` also for nothing. */
static bool pattern_fits(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    if (n > 2 && !strcmp(pattern + n - 2, ".*") && !strncmp(pattern, path, n - 2) && !path[n - 2])
        return true;
    return !fnmatch(pattern, path, FNM_NOESCAPE);
}

const char *ignored_reason(const char *path, struct arena *a, const char **ret_shown)
{
    const char *reason = NULL;
    char best[128] = "";
    for (size_t i = 0; i < n_ignored; i++) {
        const char *at = ignored_table[i].patterns, *w;
        size_t n;
        while ((w = next_word(&at, &n))) {
            char pattern[128];
            if (n >= sizeof(pattern) || (reason && n <= strlen(best)))
                continue;
            memcpy(pattern, w, n);
            pattern[n] = 0;
            if (pattern_fits(pattern, path)) {
                strcpy(best, pattern);
                reason = ignored_table[i].reason;
            }
        }
    }
    if (reason && ret_shown) {
        size_t n = strlen(best);
        bool family = n > 2 && !strcmp(best + n - 2, ".*") && strchr(best, '*') == best + n - 1;
        *ret_shown = arena_strdup(a, family ? best : path);
    }
    return reason;
}

const struct shape_key *shape_by_path(const char *path)
{
    for (size_t i = 0; i < n_shapes; i++)
        if (!strcmp(shape_table[i].path, path))
            return &shape_table[i];
    return NULL;
}

static bool begins_section(const char *words, const char *path, size_t len)
{
    const char *w;
    size_t n;
    while ((w = next_word(&words, &n)))
        if (n > len && w[len] == '.' && !memcmp(w, path, len))
            return true;
    return false;
}

bool is_option_section(const char *path)
{
    size_t len = strlen(path);
    for (size_t i = 0; i < OPT_COUNT; i++)
        if (begins_section(option_table[i].yaml, path, len))
            return true;
    return false;
}

bool is_section(const char *path)
{
    size_t len = strlen(path);
    if (is_option_section(path))
        return true;
    for (size_t i = 0; i < n_ignored; i++)
        if (begins_section(ignored_table[i].patterns, path, len))
            return true;
    for (size_t i = 0; i < n_shapes; i++)
        if (begins_section(shape_table[i].path, path, len))
            return true;
    return false;
}

const char *nearest_flag(const char *typed, unsigned commands, struct arena *a)
{
    struct suggest s;
    typed += strspn(typed, "-");
    suggest_init(&s, typed, strlen(typed));
    suggest_try(&s, "help", 4);
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const char *at = option_table[i].flags, *w;
        size_t n;
        if (option_table[i].commands & commands)
            while ((w = next_word(&at, &n)))
                if (w[1] == '-')
                    suggest_try(&s, w + 2, strcspn(w + 2, " ="));
    }
    return s.best ? arena_printf(a, "--%.*s", (int)s.best_len, s.best) : NULL;
}

const char *nearest_path(const char *typed, struct arena *a)
{
    struct suggest s;
    suggest_init(&s, typed, strlen(typed));
    const char *at, *w;
    size_t n;
    for (size_t i = 0; i < OPT_COUNT; i++)
        for (at = option_table[i].yaml; (w = next_word(&at, &n));) {
            suggest_try_path(&s, w, n);
            for (size_t dot = n; dot > 0; dot--) /* the sections above it */
                if (w[dot - 1] == '.')
                    suggest_try_path(&s, w, dot - 1);
        }
    for (size_t i = 0; i < n_shapes; i++)
        suggest_try_path(&s, shape_table[i].path, strlen(shape_table[i].path));
    for (size_t i = 0; i < n_ignored; i++)
        for (at = ignored_table[i].patterns; (w = next_word(&at, &n));) {
            if (n > 2 && !memcmp(w + n - 2, ".*", 2))
                n -= 2;
            if (!memchr(w, '*', n))
                suggest_try_path(&s, w, n);
        }
    return s.best ? arena_strndup(a, s.best, s.best_len) : NULL;
}

static void add_number(struct buf *out, double x)
{
    buf_addf(out, fabs(x) < 1e15 ? "%.15g" : "%g", x);
}

static void describe_range(const struct option *o, struct buf *out)
{
    enum { NOT_WORTH_SAYING = 1 << 24 };
    buf_adds(out, o->flag & OF_ABOVE_LO ? "above " : "at least ");
    add_number(out, o->lo);
    if (o->hi < NOT_WORTH_SAYING) {
        buf_adds(out, " and at most ");
        add_number(out, o->hi);
    }
}

void option_describe_values(const struct option *o, struct buf *out)
{
    switch (o->type) {
    case T_BOOL:
        buf_adds(out, "true or false");
        break;
    case T_INT:
        buf_adds(out, "an integer, ");
        describe_range(o, out);
        break;
    case T_DOUBLE:
        buf_adds(out, "a number, ");
        describe_range(o, out);
        break;
    case T_SIZE:
        buf_adds(out, "a size such as 58GB or 512MB");
        break;
    case T_STRING:
        buf_adds(out, "a text");
        break;
    case T_STRINGS:
        buf_adds(out, "a text or a list of texts");
        break;
    case T_INTS:
        buf_adds(out, "an integer or a list of integers, ");
        describe_range(o, out);
        break;
    case T_ENUM:
        buf_adds(out, "one of ");
        for (const char *v = o->values; *v; v++) {
            if (*v == '|')
                buf_adds(out, ", ");
            else
                buf_addc(out, *v);
        }
        break;
    }
    if (o->flag & OF_AUTO)
        buf_adds(out, ", or auto");
}

static int wrong(const struct option *o, const struct yaml_node *value, const char *what, struct err *e)
{
    struct buf legal = BUF_INIT, found = BUF_INIT;
    option_describe_values(o, &legal);
    yaml_describe(value, &found);
    int err = err_set(e, ERR_USAGE, "%s should be %s, but is %s", what, legal.s, found.s);
    buf_release(&legal);
    buf_release(&found);
    return err;
}

static bool in_range(const struct option *o, double x)
{
    return x <= o->hi && (o->flag & OF_ABOVE_LO ? x > o->lo : x >= o->lo);
}

static bool parse_bool(const char *s, bool *ret)
{
    static const char *const yes[] = {"true", "yes", "on"}, *const no[] = {"false", "no", "off"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        bool is_yes = !strcasecmp(s, yes[i]);
        if (is_yes || !strcasecmp(s, no[i])) {
            *ret = is_yes;
            return true;
        }
    }
    return false;
}

static bool parse_int(const char *s, int64_t *ret)
{
    char *end;
    if (isspace((unsigned char)*s))
        return false;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno)
        return false;
    *ret = v;
    return true;
}

static bool parse_double(const char *s, double *ret)
{
    /* Decimal only: strtod would also take hexadecimal, "inf" and "nan". */
    if (!*s || s[strspn(s, "+-.0123456789eE")])
        return false;
    char *end;
    double v = strtod(s, &end);
    if (end == s || *end || !isfinite(v))
        return false;
    *ret = v;
    return true;
}

/* "58GB", "512 MiB", "1.5g", "1000000": powers of 1024, as MindSpore counts. */
static bool parse_size(const char *s, uint64_t *ret)
{
    static const char units[] = "kmgtp";
    size_t n = strspn(s, "0123456789.");
    char digits[32];
    double v;
    if (!n || n >= sizeof(digits))
        return false;
    memcpy(digits, s, n);
    digits[n] = 0;
    if (!parse_double(digits, &v))
        return false;
    s += n + strspn(s + n, " ");
    const char *unit = *s ? strchr(units, tolower((unsigned char)*s)) : NULL;
    if (unit) {
        v = ldexp(v, 10 * (int)(unit - units + 1));
        s++;
        if (tolower((unsigned char)*s) == 'i')
            s++;
    }
    if (tolower((unsigned char)*s) == 'b')
        s++;
    if (*s || v >= 0x1p63)
        return false;
    *ret = (uint64_t)v;
    return true;
}

static bool parse_enum(const struct option *o, const char *s, int *ret)
{
    int i = 0;
    for (const char *v = o->values; v; i++) {
        size_t n = strcspn(v, "|");
        if (strlen(s) == n && !strncasecmp(v, s, n)) {
            *ret = o->codes ? o->codes[i] : i;
            return true;
        }
        v = v[n] ? v + n + 1 : NULL;
    }
    return false;
}

/* Lists grow when their length is a power of two: n alone says when, and no capacity is kept. */
static bool list_is_full(size_t n)
{
    return !(n & (n - 1));
}

static void add_int(struct settings *s, struct ints *to, int64_t x)
{
    if (list_is_full(to->n)) {
        int64_t *v = arena_alloc(s->mem, (to->n ? 2 * to->n : 1) * sizeof(*v));
        if (to->n)
            memcpy(v, to->v, to->n * sizeof(*v));
        to->v = v;
    }
    to->v[to->n++] = x;
}

/* Numbers in one text: "1,2,3", "[1, 2]", "1 2". */
static bool parse_ints(const struct option *o, const char *text, struct settings *s, struct ints *to)
{
    text += strspn(text, "[ ");
    while (*text && *text != ']') {
        size_t len = strcspn(text, ",] ");
        char word[24];
        int64_t x;
        if (!len || len >= sizeof(word))
            return false;
        memcpy(word, text, len);
        word[len] = 0;
        if (!parse_int(word, &x) || !in_range(o, (double)x))
            return false;
        add_int(s, to, x);
        text += len;
        text += strspn(text, ", ");
    }
    return !text[strspn(text, "] ")];
}

static void add_string(struct settings *s, struct strings *to, const char *text)
{
    if (list_is_full(to->n)) {
        const char **v = arena_alloc(s->mem, (to->n ? 2 * to->n : 1) * sizeof(*v));
        if (to->n)
            memcpy(v, to->v, to->n * sizeof(*v));
        to->v = v;
    }
    to->v[to->n++] = arena_strdup(s->mem, text);
}

static int set_list(const struct option *o, struct settings *s, const struct yaml_node *value,
                    const char *what, struct err *e)
{
    void *p = (char *)s + o->offset;
    if (value->kind == YAML_SEQ) {
        for (size_t i = 0; i < value->n; i++) {
            const struct yaml_node *item = value->value[i];
            if (item->kind != YAML_SCALAR)
                return wrong(o, item, what, e);
            int err = set_list(o, s, item, what, e);
            if (err)
                return err;
        }
        return 0;
    }
    if (value->kind == YAML_MAP)
        return wrong(o, value, what, e);
    if (o->type == T_STRINGS)
        add_string(s, p, value->text);
    else if (value->quoted || !parse_ints(o, value->text, s, p))
        return wrong(o, value, what, e);
    return 0;
}

int option_set(const struct option *o, struct settings *s, const struct yaml_node *value, const char *what,
               struct err *e)
{
    void *p = (char *)s + o->offset;
    if (o->type == T_STRINGS || o->type == T_INTS)
        return set_list(o, s, value, what, e);
    if (value->kind != YAML_SCALAR)
        return wrong(o, value, what, e);
    const char *text = value->text;
    bool automatic = (o->flag & OF_AUTO) && !strcasecmp(text, "auto");
    /* In quotes it is a string; sizes and names of enums are strings anyway. */
    if (value->quoted && (o->type == T_BOOL || o->type == T_INT || o->type == T_DOUBLE) && !automatic)
        return wrong(o, value, what, e);
    bool ok = true;
    switch (o->type) {
    case T_BOOL: {
        bool v;
        ok = parse_bool(text, &v);
        if (ok)
            *(bool *)p = v;
        break;
    }
    case T_INT: {
        int64_t v = 0;
        ok = automatic || (parse_int(text, &v) && in_range(o, (double)v));
        if (ok)
            *(int64_t *)p = v;
        break;
    }
    case T_SIZE: {
        uint64_t v = 0;
        ok = automatic || (parse_size(text, &v) && in_range(o, (double)v));
        if (ok)
            *(uint64_t *)p = v;
        break;
    }
    case T_DOUBLE: {
        double v;
        ok = parse_double(text, &v) && in_range(o, v);
        if (ok)
            *(double *)p = v;
        break;
    }
    case T_ENUM: {
        int v;
        ok = parse_enum(o, text, &v);
        if (ok)
            *(int *)p = v;
        break;
    }
    default:
        *(const char **)p = arena_strdup(s->mem, text);
    }
    return ok ? 0 : wrong(o, value, what, e);
}

void option_clear_list(const struct option *o, struct settings *s)
{
    void *p = (char *)s + o->offset;
    if (o->type == T_STRINGS)
        *(struct strings *)p = (struct strings){0};
    else if (o->type == T_INTS)
        *(struct ints *)p = (struct ints){0};
}

bool option_is_unset(const struct option *o, const struct yaml_node *value)
{
    if (value->kind != YAML_SCALAR)
        return false;
    return yaml_is_null(value) || (!value->quoted && !strcmp(value->text, "None") && o->type != T_ENUM) ||
           (!*value->text && (o->type == T_STRING || o->type == T_ENUM));
}
