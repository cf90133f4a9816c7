/* What templates find ready-made: filters, tests, functions, and the methods of lists and dicts. */
#include "text/template_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"

#define FN(name) static struct val name(struct render *r, struct val self, const struct args *a)

/* ---- arguments ---- */

enum { MAX_PARAMS = 8 };

struct val call_builtin(struct render *r, const struct builtin *b, struct val self, const struct args *a)
{
    struct val slot[MAX_PARAMS];
    const char *name[MAX_PARAMS], *p = b->params;
    size_t len[MAX_PARAMS], n = 0, required = SIZE_MAX;
    bool by_position = *p == '/';
    charge(r, 1);
    if (*p == '*')
        return b->fn(r, self, a);
    for (p += by_position; *p;) {
        size_t word = strcspn(p, " ");
        if (*p == '|') {
            required = n;
        } else if (word) {
            assert(n < MAX_PARAMS);
            name[n] = p;
            len[n] = word;
            slot[n] = n < a->n ? a->v[n] : v_missing();
            n++;
        }
        p += word;
        p += *p == ' ';
    }
    if (a->n > n)
        type_error(r, "%s() takes at most %zu argument%s (%zu given)", b->name, n, n == 1 ? "" : "s", a->n);
    for (size_t k = 0; k < a->n_kw; k++) {
        const struct kwarg *kw = &a->kw[k];
        size_t i = 0;
        while (i < n && (len[i] != kw->name->len || memcmp(name[i], kw->name->s, len[i]) != 0))
            i++;
        if (by_position || i == n)
            type_error(r, "%s() got an unexpected keyword argument '%.*s'", b->name,
                       (int)MIN(kw->name->len, 60u), kw->name->s);
        if (slot[i].t != V_MISSING)
            type_error(r, "%s() got multiple values for argument '%.*s'", b->name, (int)len[i], name[i]);
        slot[i] = kw->v;
    }
    for (size_t i = 0; i < n && i < required; i++)
        if (slot[i].t == V_MISSING)
            type_error(r, "%s() missing the argument '%.*s'", b->name, (int)len[i], name[i]);
    struct args bound = {.v = slot, .n = n};
    return b->fn(r, self, &bound);
}

static bool given(struct val v)
{
    return v.t != V_MISSING;
}

static bool given_not_none(struct val v)
{
    return v.t != V_MISSING && v.t != V_NONE;
}

static int64_t int_or(struct render *r, struct val v, int64_t fallback)
{
    return given(v) ? must_be_int(r, v) : fallback;
}

static bool flag(struct val v)
{
    return given(v) && truthy(v);
}

static struct str *text_of(struct render *r, struct val v)
{
    return to_str(r, v).s;
}

static struct str *must_be_str(struct render *r, struct val v)
{
    if (v.t == V_UNDEF)
        undef_error(r, v);
    if (v.t != V_STR)
        type_error(r, "a string is needed here, not '%s'", type_name(v));
    return v.s;
}

/* ---- attributes by path: "a.b.0" ---- */

struct path {
    struct val *part;
    size_t n;
    struct val fallback; /* V_MISSING: none */
    bool lower;          /* strings are compared without case */
};

static struct path path_new(struct render *r, struct val attribute, bool lower)
{
    struct path p = {.fallback = v_missing(), .lower = lower};
    if (!given_not_none(attribute))
        return p;
    if (attribute.t != V_STR) {
        p.part = ralloc(r, sizeof(*p.part));
        p.part[p.n++] = attribute;
        return p;
    }
    const char *s = attribute.s->s, *end = s + attribute.s->len;
    size_t parts = 1;
    for (const char *q = s; q < end; q++)
        parts += *q == '.';
    p.part = ralloc_n(r, parts, sizeof(*p.part));
    for (;;) {
        const char *dot = memchr(s, '.', (size_t)(end - s));
        struct val name = str_borrow(r, s, (size_t)((dot ? dot : end) - s));
        int64_t i;
        bool too_big, digits = name.s->len > 0;
        for (size_t k = 0; k < name.s->len; k++)
            digits &= name.s->s[k] >= '0' && name.s->s[k] <= '9';
        p.part[p.n++] = digits && str_to_int(name.s, 10, &i, &too_big) && !too_big ? v_int(i) : name;
        if (!dot)
            return p;
        s = dot + 1;
    }
}

static struct val path_get(struct render *r, const struct path *p, struct val v)
{
    for (size_t i = 0; i < p->n; i++) {
        v = get_item(r, v, p->part[i]);
        if (v.t == V_UNDEF && given_not_none(p->fallback))
            v = p->fallback;
    }
    return p->lower && v.t == V_STR ? str_lower(r, v.s) : v;
}

/* ---- filters on text ---- */

FN(f_upper)
{
    return str_upper(r, text_of(r, self));
}

FN(f_lower)
{
    return str_lower(r, text_of(r, self));
}

FN(f_capitalize)
{
    return str_capitalize(r, text_of(r, self));
}

FN(f_title)
{
    return str_title_words(r, text_of(r, self));
}

FN(f_trim)
{
    struct str *chars = given_not_none(a->v[0]) ? must_be_str(r, a->v[0]) : NULL;
    return str_strip(r, text_of(r, self), chars, true, true);
}

FN(f_string)
{
    return to_str(r, self);
}

FN(f_safe)
{
    struct str *s = text_of(r, self);
    struct val v = str_borrow(r, s->s, s->len);
    v.s->markup = true;
    return v;
}

FN(f_escape)
{
    return self.t == V_STR && self.s->markup ? self : str_escape(r, text_of(r, self));
}

FN(f_forceescape)
{
    return str_escape(r, text_of(r, self));
}

FN(f_replace)
{
    int64_t count = given_not_none(a->v[2]) ? int_or(r, a->v[2], -1) : -1;
    return str_replace(r, text_of(r, self), text_of(r, a->v[0]), text_of(r, a->v[1]), count);
}

FN(f_format)
{
    if (a->n && a->n_kw)
        type_error(r, "can't handle positional and keyword arguments at the same time");
    struct val values;
    if (a->n_kw) {
        values = v_dict(dict_new(r, a->n_kw));
        for (size_t i = 0; i < a->n_kw; i++)
            dict_set(r, values.d, v_str((struct str *)a->kw[i].name), a->kw[i].v);
    } else {
        values = v_tuple(list_new(r, a->n));
        for (size_t i = 0; i < a->n; i++)
            list_push(r, values.l, a->v[i]);
    }
    return str_percent(r, text_of(r, self), values);
}

FN(f_center)
{
    struct val width = v_int(int_or(r, a->v[0], 80));
    struct val s = to_str(r, self);
    struct str name = {.s = "center", .len = 6};
    return call_builtin(r, str_method(&name), s, &(struct args){.v = &width, .n = 1});
}

FN(f_indent)
{
    struct str *s = must_be_str(r, self);
    struct scratch *pad = scratch_begin(r);
    if (a->v[0].t == V_STR) {
        scratch_add(r, pad, a->v[0].s->s, a->v[0].s->len);
    } else {
        int64_t width = int_or(r, a->v[0], 4);
        if (width > 0)
            scratch_pad(r, pad, ' ', (size_t)width);
    }
    struct str *by = scratch_end(r, pad).s;
    bool first = flag(a->v[1]), blank = flag(a->v[2]);
    struct list *lines = str_splitlines(r, str_concat(r, s, str_lit(r, "\n").s).s, false);
    struct scratch *out = scratch_begin(r);
    for (size_t i = 0; i < lines->n; i++) {
        struct str *line = lines->v[i].s;
        if (i)
            scratch_adds(r, out, "\n");
        if (i ? blank || line->len : first)
            scratch_add(r, out, by->s, by->len);
        scratch_add(r, out, line->s, line->len);
    }
    return scratch_end(r, out);
}

FN(f_truncate)
{
    int64_t length = int_or(r, a->v[0], 255), leeway = given_not_none(a->v[3]) ? int_or(r, a->v[3], 5) : 5;
    struct str *end = given(a->v[2]) ? must_be_str(r, a->v[2]) : str_lit(r, "...").s;
    int64_t n_end = (int64_t)str_cp(end), n = length_of(self);
    if (n < 0)
        type_error(r, "object of type '%s' has no len()", type_name(self));
    if (length < n_end)
        type_error(r, "truncate: a length of at least %" PRId64 " is needed, not %" PRId64, n_end, length);
    if (leeway < 0)
        type_error(r, "truncate: the leeway cannot be negative");
    if (leeway > INT64_MAX - length || n <= length + leeway)
        return self;
    struct str *s = must_be_str(r, self), *head = str_slice(r, s, 0, (size_t)(length - n_end)).s;
    if (!flag(a->v[1])) {
        const char *space = memrchr(head->s, ' ', head->len);
        if (space)
            head = str_borrow(r, head->s, (size_t)(space - head->s)).s;
    }
    return str_concat(r, head, end);
}

FN(f_wordcount)
{
    struct str *s = text_of(r, self);
    int64_t words = 0;
    bool in_word = false;
    size_t n;
    charge(r, text_work(s->len));
    for (const char *p = s->s, *end = p + s->len; p < end; p += n) {
        unsigned cp = utf8_at(p, end, &n);
        bool word = cp < 0x80 ? cp_is_word(cp) : cp_is_alnum(cp);
        words += word && !in_word;
        in_word = word;
    }
    return v_int(words);
}

static void quote_url(struct render *r, struct scratch *out, struct val v, bool query)
{
    struct str *s = text_of(r, v);
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->s[i];
        char hex[4];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr(query ? "_.-~" : "_.-~/", c));
        if (plain || (query && c == ' ')) {
            scratch_add(r, out, plain ? (const char *)&c : "+", 1);
        } else {
            snprintf(hex, sizeof(hex), "%%%02X", c);
            scratch_add(r, out, hex, 3);
        }
    }
}

FN(f_urlencode)
{
    struct scratch *out = scratch_begin(r);
    if (self.t == V_STR || !iterable(self)) {
        quote_url(r, out, self, false);
        return scratch_end(r, out);
    }
    struct view items = {.kind = VIEW_ITEMS, .d = self.d};
    struct iter *it = iterate(r, self.t == V_DICT ? (struct val){.t = V_VIEW, .view = &items} : self);
    bool first = true;
    for (struct val v; iter_next(r, it, &v); first = false) {
        struct list *kv = to_list(r, v);
        if (kv->n != 2)
            type_error(r, "urlencode wants pairs, not rows of %zu", kv->n);
        scratch_adds(r, out, first ? "" : "&");
        quote_url(r, out, kv->v[0], true);
        scratch_adds(r, out, "=");
        quote_url(r, out, kv->v[1], true);
    }
    return scratch_end(r, out);
}

/* ---- filters on numbers ---- */

FN(f_abs)
{
    if (self.t == V_FLOAT)
        return v_float(fabs(self.f));
    if (!is_integral(self))
        type_error(r, "bad operand type for abs(): '%s'", type_name(self));
    return as_int(self) < 0 ? arith(r, OP_SUB, v_int(0), self) : v_int(as_int(self));
}

static int64_t whole(struct render *r, double f)
{
    if (!(f > -9223372036854775809.0 && f < 9223372036854775808.0))
        tmpl_raise(r, ERR_LIMIT, "the number %g does not fit a 64-bit integer", f);
    return (int64_t)f;
}

FN(f_int)
{
    int64_t i, base = int_or(r, a->v[1], 10);
    bool too_big = false;
    double f;
    struct val fallback = given(a->v[0]) ? a->v[0] : v_int(0);
    if (self.t == V_UNDEF)
        undef_error(r, self);
    if (is_integral(self))
        return v_int(as_int(self));
    if (self.t == V_FLOAT) {
        if (isinf(self.f))
            type_error(r, "cannot convert float infinity to integer");
        return isnan(self.f) ? fallback : v_int(whole(r, self.f));
    }
    if (self.t != V_STR)
        return fallback;
    if (base >= 0 && base <= 36 && str_to_int(self.s, (int)base, &i, &too_big)) {
        if (too_big)
            tmpl_raise(r, ERR_LIMIT, "the number %.*s does not fit a 64-bit integer",
                       (int)MIN(self.s->len, 40u), self.s->s);
        return v_int(i);
    }
    return str_to_float(self.s, &f) && isfinite(f) ? v_int(whole(r, f)) : fallback;
}

FN(f_float)
{
    double f;
    if (self.t == V_UNDEF)
        undef_error(r, self);
    if (is_num(self))
        return v_float(as_double(self));
    if (self.t == V_STR && str_to_float(self.s, &f))
        return v_float(f);
    return given(a->v[0]) ? a->v[0] : v_float(0);
}

/* round(x, n) as Python does: by the decimal digits of the exact value, ties to even. */
static double round_decimal(double v, int64_t digits)
{
    char text[800];
    if (!isfinite(v) || digits > 308)
        return v;
    if (digits < -308)
        return 0 * v;
    if (digits >= 0) {
        snprintf(text, sizeof(text), "%.*f", (int)digits, v);
        return strtod(text, NULL);
    }
    double unit = pow(10, (double)-digits), q = v / unit, n = nearbyint(q);
    return n * unit;
}

FN(f_round)
{
    int64_t digits = int_or(r, a->v[0], 0);
    struct val method = given(a->v[1]) ? a->v[1] : str_lit(r, "common");
    bool ceiling = method.t == V_STR && str_is(method.s, "ceil");
    bool flooring = method.t == V_STR && str_is(method.s, "floor");
    if (!ceiling && !flooring && !(method.t == V_STR && str_is(method.s, "common")))
        type_error(r, "method must be common, ceil or floor");
    if (self.t == V_UNDEF)
        undef_error(r, self);
    if (!is_num(self))
        type_error(r, "type %s doesn't define __round__ method", type_name(self));
    if (ceiling || flooring) {
        double unit = pow(10, (double)digits), v = as_double(self) * unit;
        if (!isfinite(v))
            type_error(r, "cannot convert float to integer");
        return v_float((ceiling ? ceil(v) : floor(v)) / unit);
    }
    if (self.t == V_FLOAT)
        return v_float(round_decimal(self.f, digits));
    if (digits >= 0)
        return v_int(as_int(self));
    if (digits < -18)
        return v_int(0);
    int64_t unit = 1, v = as_int(self);
    for (; digits < 0; digits++)
        unit *= 10;
    int64_t rest = v % unit, down = v - rest; /* towards zero; then to the nearer, a tie to the even one */
    int64_t twice = llabs(rest) - (unit - llabs(rest));
    if (twice > 0 || (twice == 0 && (down / unit) % 2 != 0))
        return arith(r, OP_ADD, v_int(down), v_int(v < 0 ? -unit : unit));
    return v_int(down);
}

/* ---- filters on collections ---- */

FN(f_length)
{
    int64_t n = self.t == V_LOOP ? loop_length(r, self.loop) : length_of(self);
    if (n < 0)
        type_error(r, "object of type '%s' has no len()", type_name(self));
    if (self.t == V_STR)
        charge(r, text_work(self.s->len));
    return v_int(n);
}

FN(f_list)
{
    struct list *l = ralloc(r, sizeof(*l)), *from = to_list(r, self);
    *l = *from;
    l->group = false;
    return v_list(l);
}

FN(f_first)
{
    struct val v;
    if (iter_next(r, iterate(r, self), &v))
        return v;
    return undef_hint(r, "No first item, sequence was empty.");
}

FN(f_last)
{
    if (self.t == V_ITER || length_of(self) < 0)
        type_error(r, "'%s' object is not reversible", type_name(self));
    if (self.t == V_STR && self.s->len) {
        size_t n = str_cp(self.s);
        return str_slice(r, self.s, n - 1, n);
    }
    struct list *l = to_list(r, self);
    return l->n ? l->v[l->n - 1] : undef_hint(r, "No last item, sequence was empty.");
}

FN(f_reverse)
{
    if (self.t == V_STR)
        return slice_value(r, self, v_missing(), v_missing(), v_int(-1));
    if (!iterable(self))
        type_error(r, "argument must be iterable");
    struct list *from = to_list(r, self), *l = list_new(r, from->n);
    for (size_t i = from->n; i--;)
        list_push(r, l, from->v[i]);
    charge(r, l->n / 8);
    if (self.t == V_ITER)
        return v_list(l);
    return (struct val){.t = V_ITER, .it = iterate(r, v_list(l))};
}

FN(f_join)
{
    struct str *sep = given(a->v[0]) ? text_of(r, a->v[0]) : str_lit(r, "").s;
    struct path path = path_new(r, a->v[1], false);
    struct iter *it = iterate(r, self);
    struct scratch *out = scratch_begin(r);
    bool first = true;
    for (struct val v; iter_next(r, it, &v); first = false) {
        if (!first)
            scratch_add(r, out, sep->s, sep->len);
        print_str(r, out, path_get(r, &path, v));
    }
    return scratch_end(r, out);
}

FN(f_default)
{
    struct val v = given(a->v[0]) ? a->v[0] : str_lit(r, "");
    return self.t == V_UNDEF || (flag(a->v[1]) && !truthy(self)) ? v : self;
}

FN(f_attr)
{
    struct str *name = must_be_str(r, a->v[0]);
    bool own = self.t == V_NS || self.t == V_LOOP || self.t == V_CYCLER ||
               (self.t == V_TUPLE && self.l->group) || find_method(self, name) ||
               method_is_forbidden(self, name);
    return own || self.t == V_UNDEF ? get_attr(r, self, name) : undef_attr(r, self, a->v[0]);
}

static struct val dict_view(struct render *r, struct dict *d, enum view_kind kind)
{
    struct view *view = ralloc(r, sizeof(*view));
    *view = (struct view){.kind = kind, .d = d};
    return (struct val){.t = V_VIEW, .view = view};
}

FN(f_sum)
{
    struct path path = path_new(r, a->v[0], false);
    struct val sum = given(a->v[1]) ? a->v[1] : v_int(0);
    if (sum.t == V_STR)
        type_error(r, "sum() can't sum strings [use ''.join(seq) instead]");
    struct iter *it = iterate(r, self);
    for (struct val v; iter_next(r, it, &v);)
        sum = arith(r, OP_ADD, sum, path_get(r, &path, v));
    return sum;
}

/* A key for each item; with `rows` a list of keys, one for each attribute of "a,b" (and of one even where
 * there is but one, for lists compare what they hold with == first, so that two None are no error). */
static struct val *sort_keys(struct render *r, const struct list *l, struct val attribute, bool lower,
                             bool rows)
{
    struct val *keys = ralloc_n(r, l->n, sizeof(*keys));
    if (!rows || attribute.t != V_STR) {
        struct path path = path_new(r, attribute, lower);
        for (size_t i = 0; i < l->n; i++) {
            struct list *row = list_new(r, rows);
            keys[i] = path_get(r, &path, l->v[i]);
            if (rows) {
                list_push(r, row, keys[i]);
                keys[i] = v_list(row);
            }
        }
        return keys;
    }
    for (size_t i = 0; i < l->n; i++)
        keys[i] = v_list(list_new(r, 1));
    const char *s = attribute.s->s, *end = s + attribute.s->len;
    for (;;) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        struct path path = path_new(r, str_borrow(r, s, (size_t)((comma ? comma : end) - s)), lower);
        for (size_t i = 0; i < l->n; i++)
            list_push(r, keys[i].l, path_get(r, &path, l->v[i]));
        if (!comma)
            return keys;
        s = comma + 1;
    }
}

static struct list *copy_list(struct render *r, const struct list *l)
{
    struct list *ret = list_new(r, l->n);
    charge(r, l->n / 8);
    for (size_t i = 0; i < l->n; i++)
        list_push(r, ret, l->v[i]);
    return ret;
}

FN(f_sort)
{
    struct list *l = copy_list(r, to_list(r, self));
    sort_by(r, l->v, sort_keys(r, l, a->v[2], !flag(a->v[1]), true), l->n, flag(a->v[0]));
    return v_list(l);
}

FN(f_dictsort)
{
    if (self.t == V_UNDEF)
        undef_error(r, self);
    if (self.t != V_DICT)
        type_error(r, "'%s' object has no attribute 'items'", type_name(self));
    int64_t by = 0;
    if (given(a->v[1])) {
        struct str *name = must_be_str(r, a->v[1]);
        by = str_is(name, "value");
        if (!by && !str_is(name, "key"))
            type_error(r, "You can only sort by either \"key\" or \"value\"");
    }
    struct list *l = copy_list(r, to_list(r, dict_view(r, self.d, VIEW_ITEMS)));
    sort_by(r, l->v, sort_keys(r, l, v_int(by), !flag(a->v[0]), false), l->n, flag(a->v[2]));
    return v_list(l);
}

FN(f_groupby)
{
    struct list *l = copy_list(r, to_list(r, self)), *ret = list_new(r, 0);
    bool lower = !flag(a->v[2]);
    struct path path = path_new(r, a->v[0], lower);
    if (given(a->v[1]))
        path.fallback = a->v[1];
    struct val *keys = ralloc_n(r, l->n, sizeof(*keys));
    for (size_t i = 0; i < l->n; i++)
        keys[i] = path_get(r, &path, l->v[i]);
    sort_by(r, l->v, keys, l->n, false);
    path.lower = false;
    for (size_t i = 0, end; i < l->n; i = end) {
        struct list *members = list_new(r, 0);
        for (end = i; end < l->n && (end == i || equal(r, keys[i], keys[end])); end++)
            list_push(r, members, l->v[end]);
        struct val group = pair(r, lower ? path_get(r, &path, l->v[i]) : keys[i], v_list(members));
        group.l->group = true;
        list_push(r, ret, group);
    }
    return v_list(ret);
}

static struct val extreme(struct render *r, struct val self, const struct args *a, bool max)
{
    struct path path = path_new(r, a->v[1], !flag(a->v[0]));
    struct iter *it = iterate(r, self);
    struct val best, best_key, v;
    if (!iter_next(r, it, &best))
        return undef_hint(r, "No aggregated item, sequence was empty.");
    best_key = path_get(r, &path, best);
    while (iter_next(r, it, &v)) {
        struct val key = path_get(r, &path, v);
        if (max ? compare(r, key, best_key, ">") == 1 : compare(r, key, best_key, "<") == -1) {
            best = v;
            best_key = key;
        }
    }
    return best;
}

FN(f_min)
{
    return extreme(r, self, a, false);
}

FN(f_max)
{
    return extreme(r, self, a, true);
}

/* ---- filters that make generators ---- */

struct unique {
    struct path path;
    struct dict *seen;
};

static int next_unique(struct render *r, struct iter *it, struct val *ret)
{
    struct unique *u = it->state;
    while (iter_next(r, it->src, ret)) {
        struct val key = path_get(r, &u->path, *ret);
        if (!dict_find(r, u->seen, key)) {
            dict_set(r, u->seen, key, v_none());
            return 1;
        }
    }
    return 0;
}

/* A generator over what cannot be walked fails when it is first asked, not when it is made. */
static int next_impossible(struct render *r, struct iter *it, struct val *ret)
{
    iterate(r, it->over);
    return 0;
}

static struct val generator(struct render *r, int (*next)(struct render *, struct iter *, struct val *),
                            struct val over, void *state)
{
    if (!iterable(over)) {
        struct iter *it = iter_new(r, next_impossible, NULL, NULL);
        it->over = over;
        return (struct val){.t = V_ITER, .it = it};
    }
    return (struct val){.t = V_ITER, .it = iter_new(r, next, iterate(r, over), state)};
}

static int next_not_mapping(struct render *r, struct iter *it, struct val *ret)
{
    type_error(r, "Can only get item pairs from a mapping.");
}

FN(f_items)
{
    if (self.t == V_DICT)
        self = dict_view(r, self.d, VIEW_ITEMS);
    else if (self.t != V_UNDEF)
        return (struct val){.t = V_ITER, .it = iter_new(r, next_not_mapping, NULL, NULL)};
    return (struct val){.t = V_ITER, .it = iterate(r, self)};
}

FN(f_unique)
{
    struct unique *u = ralloc(r, sizeof(*u));
    u->path = path_new(r, a->v[1], !flag(a->v[0]));
    u->seen = dict_new(r, 0);
    return generator(r, next_unique, self, u);
}

struct batches {
    int64_t size;
    struct val fill;
    struct list *rows; /* f_slice's, which are all known at the first */
};

static int next_batch(struct render *r, struct iter *it, struct val *ret)
{
    struct batches *b = it->state;
    struct list *row = list_new(r, 0);
    struct val v;
    while ((int64_t)row->n < b->size && iter_next(r, it->src, &v))
        list_push(r, row, v);
    if (!row->n)
        return 0;
    if (given_not_none(b->fill))
        while ((int64_t)row->n < b->size) {
            charge(r, 1);
            list_push(r, row, b->fill);
        }
    *ret = v_list(row);
    return 1;
}

FN(f_batch)
{
    struct batches *b = ralloc(r, sizeof(*b));
    b->size = int_or(r, a->v[0], 0);
    b->fill = a->v[1];
    if (b->size < 1)
        type_error(r, "batch: rows of %" PRId64 " items", b->size);
    return generator(r, next_batch, self, b);
}

FN(f_slice)
{
    if (!iterable(self))
        return generator(r, next_impossible, self, NULL);
    struct list *l = to_list(r, self), *rows = list_new(r, 0);
    int64_t slices = int_or(r, a->v[0], 0);
    if (slices == 0)
        type_error(r, "integer division or modulo by zero");
    size_t at = 0;
    for (int64_t i = 0; i < slices; i++) {
        size_t n = l->n / (size_t)slices, extra = (size_t)i < l->n % (size_t)slices;
        struct list *row = list_new(r, n + 1);
        charge(r, n + 1);
        for (size_t k = 0; k < n + extra; k++)
            list_push(r, row, l->v[at++]);
        if (!extra && given_not_none(a->v[1]))
            list_push(r, row, a->v[1]);
        list_push(r, rows, v_list(row));
    }
    return (struct val){.t = V_ITER, .it = iterate(r, v_list(rows))};
}

struct mapping {
    const struct builtin *b; /* NULL: the path itself; its truth, for select */
    struct args args;
    struct path path;
    bool keep; /* select: keep what passes; reject: what fails */
};

static int next_mapped(struct render *r, struct iter *it, struct val *ret)
{
    struct mapping *m = it->state;
    struct val v;
    if (!iter_next(r, it->src, &v))
        return 0;
    *ret = m->b ? call_builtin(r, m->b, v, &m->args) : path_get(r, &m->path, v);
    return 1;
}

static int next_selected(struct render *r, struct iter *it, struct val *ret)
{
    struct mapping *m = it->state;
    while (iter_next(r, it->src, ret)) {
        struct val v = path_get(r, &m->path, *ret);
        if (truthy(m->b ? call_builtin(r, m->b, v, &m->args) : v) == m->keep)
            return 1;
    }
    return 0;
}

/* The filter or test that argument i names, and the arguments behind it. */
static void named(struct render *r, struct mapping *m, const struct args *a, size_t i, bool test)
{
    struct val name = a->v[i];
    bool unsupported = false;
    if (name.t == V_STR)
        m->b = test ? find_test(name.s->s, name.s->len) : find_filter(name.s->s, name.s->len, &unsupported);
    if (!m->b)
        type_error(r, "there is no %s named '%.*s'", test ? "test" : "filter",
                   name.t == V_STR ? (int)MIN(name.s->len, 60u) : 0, name.t == V_STR ? name.s->s : "");
    m->args = (struct args){.v = a->v + i + 1, .n = a->n - i - 1, .kw = a->kw, .n_kw = a->n_kw};
}

/* The arguments of a call live on its caller's stack; a generator outlives it. */
static struct args *keep_args(struct render *r, const struct args *a)
{
    struct args *ret = ralloc(r, sizeof(*ret));
    *ret = *a;
    ret->v = ralloc_n(r, a->n, sizeof(*a->v));
    ret->kw = ralloc_n(r, a->n_kw, sizeof(*a->kw));
    if (a->n)
        memcpy(ret->v, a->v, a->n * sizeof(*a->v));
    if (a->n_kw)
        memcpy(ret->kw, a->kw, a->n_kw * sizeof(*a->kw));
    return ret;
}

static struct val empty_generator(struct render *r)
{
    return (struct val){.t = V_ITER, .it = iterate(r, v_list(list_new(r, 0)))};
}

FN(f_map)
{
    if (!truthy(self))
        return empty_generator(r);
    struct mapping *m = ralloc(r, sizeof(*m));
    a = keep_args(r, a);
    if (a->n) {
        named(r, m, a, 0, false);
        return generator(r, next_mapped, self, m);
    }
    struct val attribute = v_missing(), fallback = v_missing();
    for (size_t i = 0; i < a->n_kw; i++) {
        if (str_is(a->kw[i].name, "attribute"))
            attribute = a->kw[i].v;
        else if (str_is(a->kw[i].name, "default"))
            fallback = a->kw[i].v;
        else
            type_error(r, "Unexpected keyword argument '%.*s'", (int)MIN(a->kw[i].name->len, 60u),
                       a->kw[i].name->s);
    }
    if (!given(attribute))
        type_error(r, "map requires a filter argument");
    m->path = path_new(r, attribute, false);
    m->path.fallback = fallback;
    return generator(r, next_mapped, self, m);
}

static struct val selected(struct render *r, struct val self, const struct args *a, bool keep,
                           bool by_attribute)
{
    if (!truthy(self))
        return empty_generator(r);
    struct mapping *m = ralloc(r, sizeof(*m));
    a = keep_args(r, a);
    if (by_attribute && !a->n)
        type_error(r, "Missing parameter for attribute name");
    m->keep = keep;
    m->path = path_new(r, by_attribute ? a->v[0] : v_missing(), false);
    if (a->n > (size_t)by_attribute)
        named(r, m, a, by_attribute, true);
    return generator(r, next_selected, self, m);
}

FN(f_select)
{
    return selected(r, self, a, true, false);
}

FN(f_reject)
{
    return selected(r, self, a, false, false);
}

FN(f_selectattr)
{
    return selected(r, self, a, true, true);
}

FN(f_rejectattr)
{
    return selected(r, self, a, false, true);
}

/* ---- tojson: Python's json.dumps ---- */

struct dumping {
    struct scratch *out;
    struct str *indent; /* NULL: all on one line */
    struct str *between, *after_key;
    bool ascii, sort;
};

static void dump_string(struct render *r, struct dumping *d, const struct str *s)
{
    const char *p = s->s, *end = p + s->len, *plain = p;
    char esc[16];
    size_t n;
    scratch_adds(r, d->out, "\"");
    while (p < end) {
        unsigned cp = utf8_at(p, end, &n);
        if (cp >= 0x20 && cp != '"' && cp != '\\' && (cp < 0x7F || !d->ascii)) {
            p += n;
            continue;
        }
        scratch_add(r, d->out, plain, (size_t)(p - plain));
        const char *short_form = cp == '"'    ? "\\\""
                                 : cp == '\\' ? "\\\\"
                                 : cp == '\n' ? "\\n"
                                 : cp == '\r' ? "\\r"
                                 : cp == '\t' ? "\\t"
                                 : cp == '\f' ? "\\f"
                                 : cp == '\b' ? "\\b"
                                              : NULL;
        if (short_form)
            snprintf(esc, sizeof(esc), "%s", short_form);
        else if (cp < 0x10000)
            snprintf(esc, sizeof(esc), "\\u%04x", cp);
        else
            snprintf(esc, sizeof(esc), "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                     0xDC00 + ((cp - 0x10000) & 0x3FF));
        scratch_adds(r, d->out, esc);
        p += n;
        plain = p;
    }
    scratch_add(r, d->out, plain, (size_t)(end - plain));
    scratch_adds(r, d->out, "\"");
}

static void dump_line(struct render *r, struct dumping *d, int depth)
{
    if (!d->indent)
        return;
    scratch_adds(r, d->out, "\n");
    for (int i = 0; i < depth; i++)
        scratch_add(r, d->out, d->indent->s, d->indent->len);
}

static void dump(struct render *r, struct dumping *d, struct val v, int depth);

static void dump_float(struct render *r, struct dumping *d, double f)
{
    if (isfinite(f))
        print_float(r, d->out, f);
    else
        scratch_adds(r, d->out, isnan(f) ? "NaN" : f > 0 ? "Infinity" : "-Infinity");
}

static void dump_key(struct render *r, struct dumping *d, struct val key)
{
    if (key.t == V_STR) {
        dump_string(r, d, key.s);
        return;
    }
    if (!is_num(key) && key.t != V_NONE)
        type_error(r, "keys must be str, int, float, bool or None, not %s", type_name(key));
    scratch_adds(r, d->out, "\"");
    dump(r, d, key, 0);
    scratch_adds(r, d->out, "\"");
}

static void dump_dict(struct render *r, struct dumping *d, const struct dict *dict, int depth)
{
    struct val *keys = ralloc_n(r, dict->n, sizeof(*keys)), *values = ralloc_n(r, dict->n, sizeof(*values));
    for (size_t i = 0; i < dict->n; i++) {
        keys[i] = dict->e[i].key;
        values[i] = dict->e[i].value;
    }
    if (d->sort)
        sort_by(r, values, keys, dict->n, false);
    scratch_adds(r, d->out, "{");
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            scratch_add(r, d->out, d->between->s, d->between->len);
        dump_line(r, d, depth + 1);
        dump_key(r, d, keys[i]);
        scratch_add(r, d->out, d->after_key->s, d->after_key->len);
        dump(r, d, values[i], depth + 1);
    }
    if (dict->n)
        dump_line(r, d, depth);
    scratch_adds(r, d->out, "}");
}

static void dump(struct render *r, struct dumping *d, struct val v, int depth)
{
    char text[32];
    charge(r, 1);
    if (depth > MAX_VALUE_DEPTH)
        tmpl_raise(r, ERR_LIMIT, "values are nested more than %d deep", MAX_VALUE_DEPTH);
    switch (v.t) {
    case V_NONE:
        scratch_adds(r, d->out, "null");
        break;
    case V_BOOL:
        scratch_adds(r, d->out, v.b ? "true" : "false");
        break;
    case V_INT:
        snprintf(text, sizeof(text), "%" PRId64, v.i);
        scratch_adds(r, d->out, text);
        break;
    case V_FLOAT:
        dump_float(r, d, v.f);
        break;
    case V_STR:
        dump_string(r, d, v.s);
        break;
    case V_LIST:
    case V_TUPLE:
        scratch_adds(r, d->out, "[");
        for (size_t i = 0; i < v.l->n; i++) {
            if (i)
                scratch_add(r, d->out, d->between->s, d->between->len);
            dump_line(r, d, depth + 1);
            dump(r, d, v.l->v[i], depth + 1);
        }
        if (v.l->n)
            dump_line(r, d, depth);
        scratch_adds(r, d->out, "]");
        break;
    case V_DICT:
        dump_dict(r, d, v.d, depth);
        break;
    default:
        type_error(r, "Object of type %s is not JSON serializable", type_name(v));
    }
}

FN(f_tojson)
{
    struct dumping d = {.ascii = flag(a->v[0]), .sort = flag(a->v[3])};
    if (given_not_none(a->v[1])) {
        if (a->v[1].t == V_STR) {
            d.indent = a->v[1].s;
        } else {
            struct scratch *pad = scratch_begin(r);
            scratch_pad(r, pad, ' ', (size_t)MAX(int_or(r, a->v[1], 0), 0));
            d.indent = scratch_end(r, pad).s;
        }
    }
    d.between = str_lit(r, d.indent ? "," : ", ").s;
    d.after_key = str_lit(r, ": ").s;
    if (given_not_none(a->v[2])) {
        struct list *two = to_list(r, a->v[2]);
        if (two->n != 2)
            type_error(r, "separators must be two strings, between items and after keys");
        d.between = must_be_str(r, two->v[0]);
        d.after_key = must_be_str(r, two->v[1]);
    }
    d.out = scratch_begin(r);
    dump(r, &d, self, 0);
    return scratch_end(r, d.out);
}

static const struct builtin filters[] = {
    {"abs", "", f_abs},
    {"attr", "name", f_attr},
    {"batch", "linecount | fill_with", f_batch},
    {"capitalize", "", f_capitalize},
    {"center", "| width", f_center},
    {"count", "", f_length},
    {"d", "| default_value boolean", f_default},
    {"default", "| default_value boolean", f_default},
    {"dictsort", "| case_sensitive by reverse", f_dictsort},
    {"e", "", f_escape},
    {"escape", "", f_escape},
    {"first", "", f_first},
    {"float", "| default", f_float},
    {"forceescape", "", f_forceescape},
    {"format", "*", f_format},
    {"groupby", "attribute | default case_sensitive", f_groupby},
    {"indent", "| width first blank", f_indent},
    {"int", "| default base", f_int},
    {"items", "", f_items},
    {"join", "| d attribute", f_join},
    {"last", "", f_last},
    {"length", "", f_length},
    {"list", "", f_list},
    {"lower", "", f_lower},
    {"map", "*", f_map},
    {"max", "| case_sensitive attribute", f_max},
    {"min", "| case_sensitive attribute", f_min},
    {"reject", "*", f_reject},
    {"rejectattr", "*", f_rejectattr},
    {"replace", "old new | count", f_replace},
    {"reverse", "", f_reverse},
    {"round", "| precision method", f_round},
    {"safe", "", f_safe},
    {"select", "*", f_select},
    {"selectattr", "*", f_selectattr},
    {"slice", "slices | fill_with", f_slice},
    {"sort", "| reverse case_sensitive attribute", f_sort},
    {"string", "", f_string},
    {"sum", "| attribute start", f_sum},
    {"title", "", f_title},
    {"tojson", "| ensure_ascii indent separators sort_keys", f_tojson},
    {"trim", "| chars", f_trim},
    {"truncate", "| length killwords end leeway", f_truncate},
    {"unique", "| case_sensitive attribute", f_unique},
    {"upper", "", f_upper},
    {"urlencode", "", f_urlencode},
    {"wordcount", "", f_wordcount},
};

static const char *const unsupported_filters[] = {"filesizeformat", "pprint",   "random", "striptags",
                                                  "urlize",         "wordwrap", "xmlattr"};

static const struct builtin *find(const struct builtin *b, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(b[i].name) == len && memcmp(b[i].name, name, len) == 0)
            return &b[i];
    return NULL;
}

const struct builtin *find_filter(const char *name, size_t len, bool *known_unsupported)
{
    for (size_t i = 0; i < ARRAY_LEN(unsupported_filters); i++)
        if (strlen(unsupported_filters[i]) == len && memcmp(unsupported_filters[i], name, len) == 0)
            *known_unsupported = true;
    return find(filters, ARRAY_LEN(filters), name, len);
}

/* ---- tests ---- */

#define TEST(name, condition)                                                                                \
    FN(name)                                                                                                 \
    {                                                                                                        \
        return v_bool(condition);                                                                            \
    }
TEST(t_defined, self.t != V_UNDEF)
TEST(t_undefined, self.t == V_UNDEF)
TEST(t_none, self.t == V_NONE)
TEST(t_boolean, self.t == V_BOOL)
TEST(t_true, self.t == V_BOOL && self.b)
TEST(t_false, self.t == V_BOOL && !self.b)
TEST(t_integer, self.t == V_INT)
TEST(t_float, self.t == V_FLOAT)
TEST(t_number, is_num(self))
TEST(t_string, self.t == V_STR)
TEST(t_mapping, self.t == V_DICT)
TEST(t_sequence, length_of(self) >= 0 && self.t != V_VIEW)
TEST(t_iterable, iterable(self))
TEST(t_callable,
     self.t == V_FUNC || self.t == V_MACRO || self.t == V_JOINER || self.t == V_LOOP || self.t == V_UNDEF)
TEST(t_escaped, self.t == V_STR && self.s->markup)
TEST(t_sameas, same(self, a->v[0]))
TEST(t_in, contains(r, a->v[0], self))
TEST(t_eq, equal(r, self, a->v[0]))
TEST(t_ne, !equal(r, self, a->v[0]))
TEST(t_lower, str_is_cased(text_of(r, self), false))
TEST(t_upper, str_is_cased(text_of(r, self), true))
TEST(t_odd, equal(r, arith(r, OP_MOD, self, v_int(2)), v_int(1)))
TEST(t_even, equal(r, arith(r, OP_MOD, self, v_int(2)), v_int(0)))
TEST(t_divisibleby, equal(r, arith(r, OP_MOD, self, a->v[0]), v_int(0)))
TEST(t_lt, compare(r, self, a->v[0], "<") == -1)
TEST(t_gt, compare(r, self, a->v[0], ">") == 1)

FN(t_le)
{
    int c = compare(r, self, a->v[0], "<=");
    return v_bool(c == -1 || c == 0);
}

FN(t_ge)
{
    int c = compare(r, self, a->v[0], ">=");
    return v_bool(c == 1 || c == 0);
}

FN(t_filter)
{
    bool unsupported;
    if (!hashable(self))
        type_error(r, "unhashable type: '%s'", type_name(self));
    return v_bool(self.t == V_STR && find_filter(self.s->s, self.s->len, &unsupported));
}

FN(t_test)
{
    if (!hashable(self))
        type_error(r, "unhashable type: '%s'", type_name(self));
    return v_bool(self.t == V_STR && find_test(self.s->s, self.s->len));
}

static const struct builtin tests[] = {
    {"!=", "other", t_ne},
    {"<", "other", t_lt},
    {"<=", "other", t_le},
    {"==", "other", t_eq},
    {">", "other", t_gt},
    {">=", "other", t_ge},
    {"boolean", "", t_boolean},
    {"callable", "", t_callable},
    {"defined", "", t_defined},
    {"divisibleby", "num", t_divisibleby},
    {"eq", "other", t_eq},
    {"equalto", "other", t_eq},
    {"escaped", "", t_escaped},
    {"even", "", t_even},
    {"false", "", t_false},
    {"filter", "", t_filter},
    {"float", "", t_float},
    {"ge", "other", t_ge},
    {"greaterthan", "other", t_gt},
    {"gt", "other", t_gt},
    {"in", "seq", t_in},
    {"integer", "", t_integer},
    {"iterable", "", t_iterable},
    {"le", "other", t_le},
    {"lessthan", "other", t_lt},
    {"lower", "", t_lower},
    {"lt", "other", t_lt},
    {"mapping", "", t_mapping},
    {"ne", "other", t_ne},
    {"none", "", t_none},
    {"number", "", t_number},
    {"odd", "", t_odd},
    {"sameas", "other", t_sameas},
    {"sequence", "", t_sequence},
    {"string", "", t_string},
    {"test", "", t_test},
    {"true", "", t_true},
    {"undefined", "", t_undefined},
    {"upper", "", t_upper},
};

const struct builtin *find_test(const char *name, size_t len)
{
    return find(tests, ARRAY_LEN(tests), name, len);
}

/* ---- functions ---- */

FN(g_range)
{
    int64_t start = 0, stop, step = 1;
    stop = int_or(r, a->v[0], 0);
    if (given(a->v[1])) {
        start = stop;
        stop = int_or(r, a->v[1], 0);
        step = int_or(r, a->v[2], 1);
    }
    if (step == 0)
        type_error(r, "range() arg 3 must not be zero");
    uint64_t span = 0, unit = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 ? stop > start : stop < start)
        span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t n = span ? (span - 1) / unit + 1 : 0;
    if (n > MAX_RANGE)
        tmpl_raise(r, ERR_LIMIT, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                   MAX_RANGE);
    struct range *g = ralloc(r, sizeof(*g));
    *g = (struct range){.start = start, .stop = stop, .step = step, .n = (size_t)n};
    return (struct val){.t = V_RANGE, .range = g};
}

/* dict(mapping or pairs, name=value, ...) */
static struct dict *make_dict(struct render *r, const struct args *a, const char *who)
{
    if (a->n > 1)
        type_error(r, "%s expected at most 1 argument, got %zu", who, a->n);
    struct dict *d = dict_new(r, a->n_kw);
    if (a->n && a->v[0].t == V_DICT) {
        charge(r, a->v[0].d->n);
        for (size_t i = 0; i < a->v[0].d->n; i++)
            dict_set(r, d, a->v[0].d->e[i].key, a->v[0].d->e[i].value);
    } else if (a->n) {
        struct iter *it = iterate(r, a->v[0]);
        size_t n = 0;
        for (struct val v; iter_next(r, it, &v); n++) {
            struct list *kv = to_list(r, v);
            if (kv->n != 2)
                type_error(r, "dictionary update sequence element #%zu has length %zu; 2 is required", n,
                           kv->n);
            dict_set(r, d, kv->v[0], kv->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_kw; i++)
        dict_set(r, d, v_str((struct str *)a->kw[i].name), a->kw[i].v);
    return d;
}

FN(g_dict)
{
    return v_dict(make_dict(r, a, "dict"));
}

void check_namespace_name(struct render *r, struct val name)
{
    if (name.t == V_STR && name.s->len && name.s->s[0] == '_')
        type_error(r, "an attribute of a namespace cannot begin with an underscore, as '%.*s' does",
                   (int)MIN(name.s->len, 60u), name.s->s);
}

FN(g_namespace)
{
    struct dict *d = make_dict(r, a, "namespace");
    for (size_t i = 0; i < d->n; i++)
        check_namespace_name(r, d->e[i].key);
    return (struct val){.t = V_NS, .d = d};
}

FN(g_cycler)
{
    if (!a->n || a->n_kw)
        type_error(r, "at least one item has to be provided");
    struct cycler *c = ralloc(r, sizeof(*c));
    c->items = list_new(r, a->n);
    for (size_t i = 0; i < a->n; i++)
        list_push(r, c->items, a->v[i]);
    return (struct val){.t = V_CYCLER, .cycler = c};
}

FN(g_joiner)
{
    struct joiner *j = ralloc(r, sizeof(*j));
    j->sep = given(a->v[0]) ? a->v[0] : str_lit(r, ", ");
    return (struct val){.t = V_JOINER, .joiner = j};
}

FN(g_lipsum)
{
    tmpl_raise(r, ERR_UNSUPPORTED, "lipsum() is not supported");
}

FN(g_raise_exception)
{
    tmpl_raise_message(r, text_of(r, a->v[0]));
}

/* Python's directives that C's strftime does not know, or has otherwise for a time without a zone. */
static struct str *python_directives(struct render *r, struct str *format)
{
    struct scratch *out = scratch_begin(r);
    for (size_t i = 0; i < format->len; i++) {
        const char *p = format->s + i;
        if (*p == 0)
            type_error(r, "embedded null character");
        if (*p != '%' || i + 1 == format->len) {
            scratch_add(r, out, p, 1);
            continue;
        }
        i++;
        if (p[1] == 'f')
            scratch_adds(r, out, "000000"); /* microseconds: the clock here counts seconds */
        else if (p[1] != 'z' && p[1] != 'Z')
            scratch_add(r, out, p, 2);
    }
    return scratch_end(r, out).s;
}

FN(g_strftime_now)
{
    struct str *format = python_directives(r, must_be_str(r, a->v[0]));
    time_t now = (time_t)(r->now ? r->now : time(NULL));
    struct tm tm;
    if (!localtime_r(&now, &tm))
        type_error(r, "the time %lld has no date", (long long)now);
    if (!format->len)
        return str_lit(r, "");
    /* A directive is two or three bytes and prints at most a few dozen (but for %10000d, which is refused).
     */
    size_t cap = 64 * format->len + 64;
    char *text = ralloc(r, cap), *fmt = ralloc(r, format->len + 2);
    memcpy(fmt, format->s, format->len);
    fmt[format->len] = ' '; /* so that an empty result is no failure */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = c ? strftime_l(text, cap, fmt, &tm, c) : 0;
#pragma GCC diagnostic pop
    if (c)
        freelocale(c);
    if (!n)
        type_error(r, "strftime_now: the format cannot be used");
    size_t bad;
    if (!utf8_check(text, n - 1, &bad))
        type_error(r, "strftime_now: the format breaks a character");
    return str_borrow(r, text, n - 1);
}

const struct builtin *find_global(const char *name, size_t len)
{
    static const struct builtin globals[] = {
        {"cycler", "*", g_cycler},
        {"dict", "*", g_dict},
        {"joiner", "| sep", g_joiner},
        {"lipsum", "*", g_lipsum},
        {"namespace", "*", g_namespace},
        {"raise_exception", "message", g_raise_exception},
        {"range", "/start | stop step", g_range},
        {"strftime_now", "format", g_strftime_now},
    };
    return find(globals, ARRAY_LEN(globals), name, len);
}

/* ---- methods ---- */

FN(m_dict_get)
{
    struct val *v = dict_find(r, self.d, a->v[0]);
    return v ? *v : given(a->v[1]) ? a->v[1] : v_none();
}

FN(m_dict_items)
{
    return dict_view(r, self.d, VIEW_ITEMS);
}

FN(m_dict_keys)
{
    return dict_view(r, self.d, VIEW_KEYS);
}

FN(m_dict_values)
{
    return dict_view(r, self.d, VIEW_VALUES);
}

FN(m_dict_copy)
{
    return v_dict(make_dict(r, &(struct args){.v = &self, .n = 1}, "copy"));
}

FN(m_list_copy)
{
    return v_list(copy_list(r, self.l));
}

FN(m_list_count)
{
    int64_t n = 0;
    for (size_t i = 0; i < self.l->n; i++)
        n += same(self.l->v[i], a->v[0]) || equal(r, self.l->v[i], a->v[0]);
    return v_int(n);
}

FN(m_list_index)
{
    int64_t n = (int64_t)self.l->n, start = int_or(r, a->v[1], 0), stop = int_or(r, a->v[2], n);
    start = start < 0 ? MAX(start + n, 0) : start;
    stop = stop < 0 ? stop + n : MIN(stop, n);
    for (int64_t i = start; i < stop; i++)
        if (same(self.l->v[i], a->v[0]) || equal(r, self.l->v[i], a->v[0]))
            return v_int(i);
    type_error(r, "the value is not in the %s", type_name(self));
}

FN(m_range_count)
{
    return v_int(contains(r, self, a->v[0]));
}

FN(m_range_index)
{
    for (size_t i = 0; i < self.range->n; i++)
        if (equal(r, range_at(self.range, i), a->v[0]))
            return v_int((int64_t)i);
    type_error(r, "the value is not in the range");
}

FN(m_float_is_integer)
{
    return v_bool(isfinite(self.f) && self.f == floor(self.f));
}

FN(m_int_bit_length)
{
    uint64_t u = as_int(self) < 0 ? 0 - (uint64_t)as_int(self) : (uint64_t)as_int(self);
    return v_int(u ? 64 - __builtin_clzll(u) : 0);
}

FN(m_loop_cycle)
{
    if (!a->n)
        type_error(r, "no items for cycling given");
    return a->v[(uint64_t)MAX(self.loop->index0, 0) % a->n];
}

FN(m_loop_changed)
{
    struct list *now = list_new(r, a->n);
    for (size_t i = 0; i < a->n; i++)
        list_push(r, now, a->v[i]);
    struct list *before = self.loop->changed;
    bool changed = !before || !equal(r, v_tuple(before), v_tuple(now));
    if (changed)
        self.loop->changed = now;
    return v_bool(changed);
}

FN(m_cycler_next)
{
    struct cycler *c = self.cycler;
    struct val v = c->items->v[c->pos];
    c->pos = (c->pos + 1) % c->items->n;
    return v;
}

FN(m_cycler_reset)
{
    self.cycler->pos = 0;
    return v_none();
}

const struct builtin *find_method(struct val obj, const struct str *name)
{
    static const struct builtin of_dict[] = {
        {"copy", "/", m_dict_copy}, {"get", "/key | default", m_dict_get}, {"items", "/", m_dict_items},
        {"keys", "/", m_dict_keys}, {"values", "/", m_dict_values},
    };
    static const struct builtin of_list[] = {
        {"copy", "/", m_list_copy},
        {"count", "/value", m_list_count},
        {"index", "/value | start stop", m_list_index},
    };
    static const struct builtin of_range[] = {{"count", "/value", m_range_count},
                                              {"index", "/value", m_range_index}};
    static const struct builtin of_loop[] = {{"cycle", "*", m_loop_cycle}, {"changed", "*", m_loop_changed}};
    static const struct builtin of_cycler[] = {{"next", "/", m_cycler_next}, {"reset", "/", m_cycler_reset}};
    static const struct builtin of_float[] = {{"is_integer", "/", m_float_is_integer}};
    static const struct builtin of_int[] = {{"bit_length", "/", m_int_bit_length}};
    switch (obj.t) {
    case V_STR:
        return str_method(name);
    case V_DICT:
        return find(of_dict, ARRAY_LEN(of_dict), name->s, name->len);
    case V_LIST:
        return find(of_list, ARRAY_LEN(of_list), name->s, name->len);
    case V_TUPLE:
        return find(of_list + 1, ARRAY_LEN(of_list) - 1, name->s, name->len);
    case V_RANGE:
        return find(of_range, ARRAY_LEN(of_range), name->s, name->len);
    case V_LOOP:
        return find(of_loop, ARRAY_LEN(of_loop), name->s, name->len);
    case V_CYCLER:
        return find(of_cycler, ARRAY_LEN(of_cycler), name->s, name->len);
    case V_FLOAT:
        return find(of_float, ARRAY_LEN(of_float), name->s, name->len);
    case V_BOOL:
    case V_INT:
        return find(of_int, ARRAY_LEN(of_int), name->s, name->len);
    default:
        return NULL;
    }
}

bool method_is_forbidden(struct val obj, const struct str *name)
{
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    static const char *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
    const char *const *names = obj.t == V_DICT ? of_dict : obj.t == V_LIST ? of_list : NULL;
    for (; names && *names; names++)
        if (str_is(name, *names))
            return true;
    return false;
}
