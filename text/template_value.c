/* Python's values, as far as a template can tell: truth, equality, order, hashing, iteration, printing. */
#include "text/template_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* ---- memory and steps ---- */

void charge(struct render *r, size_t work)
{
    if (work > r->max_steps - r->steps)
        tmpl_raise(r, ERR_LIMIT, "the template did more than %zu steps", r->max_steps);
    r->steps += work;
}

void enter_depth(struct render *r)
{
    if (++r->depth > MAX_EVAL_DEPTH)
        tmpl_raise(r, ERR_LIMIT, "the template recurses more than %d levels deep", MAX_EVAL_DEPTH);
}

static void reserve(struct render *r, size_t size)
{
    if (size > r->max_memory - r->memory)
        tmpl_raise(r, ERR_LIMIT, "the template needs more than %zu bytes of memory", r->max_memory);
    r->memory += size;
}

void *ralloc(struct render *r, size_t size)
{
    reserve(r, size + 16); /* the arena rounds up; small blocks must count too */
    return arena_alloc(r->arena, size);
}

void *ralloc_n(struct render *r, size_t n, size_t size)
{
    size_t total;
    if (!size_mul(n, size, &total) || total > SIZE_MAX / 2)
        tmpl_raise(r, ERR_LIMIT, "the template needs more than %zu bytes of memory", r->max_memory);
    return ralloc(r, total);
}

struct scratch *scratch_begin(struct render *r)
{
    struct scratch *s = ralloc(r, sizeof(*s));
    buf_init(&s->b);
    s->below = r->scratch;
    r->scratch = s;
    return s;
}

void scratch_add(struct render *r, struct scratch *s, const char *p, size_t n)
{
    reserve(r, n);
    charge(r, n / 64);
    buf_add(&s->b, p, n);
}

void scratch_adds(struct render *r, struct scratch *s, const char *text)
{
    scratch_add(r, s, text, strlen(text));
}

void scratch_add_cp(struct render *r, struct scratch *s, unsigned cp)
{
    char u[4];
    scratch_add(r, s, u, utf8_encode(u, cp));
}

void scratch_pad(struct render *r, struct scratch *s, char c, size_t n)
{
    reserve(r, n);
    charge(r, n / 64);
    buf_reserve(&s->b, n);
    memset(s->b.s + s->b.len, c, n);
    s->b.len += n;
    s->b.s[s->b.len] = 0;
}

void scratch_drop(struct render *r, struct scratch *s)
{
    r->scratch = s->below;
    r->memory -= s->b.len;
    buf_release(&s->b);
}

struct val scratch_end(struct render *r, struct scratch *s)
{
    struct val v = str_copy(r, s->b.s, s->b.len);
    scratch_drop(r, s);
    return v;
}

/* ---- strings ---- */

static struct val str_new(struct render *r, const char *s, size_t len, struct strbuf *buf)
{
    struct str *ret = ralloc(r, sizeof(*ret));
    *ret = (struct str){.s = s, .len = len, .n_cp = SIZE_MAX, .buf = buf};
    return v_str(ret);
}

struct val str_borrow(struct render *r, const char *s, size_t len)
{
    return str_new(r, s, len, NULL);
}

struct val str_copy(struct render *r, const char *s, size_t len)
{
    char *p = ralloc(r, len);
    if (len)
        memcpy(p, s, len);
    return str_new(r, p, len, NULL);
}

struct val str_lit(struct render *r, const char *s)
{
    return str_borrow(r, s, strlen(s));
}

struct val str_concat(struct render *r, struct str *a, struct str *b)
{
    if (a->markup != b->markup) {
        struct str *escaped = str_escape(r, a->markup ? b : a).s;
        return str_concat(r, a->markup ? a : escaped, a->markup ? escaped : b);
    }
    if (!a->len && !a->markup)
        return v_str(b);
    if (!b->len && !b->markup)
        return v_str(a);
    charge(r, text_work(b->len));
    size_t len = a->len + b->len;
    struct strbuf *buf = a->buf;
    bool behind = buf && a->s + a->len == buf->data + buf->used && b->len <= buf->cap - buf->used;
    if (!behind) {
        charge(r, text_work(a->len));
        buf = ralloc(r, sizeof(*buf));
        buf->cap = len < 64 ? len : len + len / 2;
        buf->data = ralloc(r, buf->cap);
        memcpy(buf->data, a->s, a->len);
        buf->used = a->len;
    }
    memcpy(buf->data + buf->used, b->s, b->len);
    buf->used += b->len;
    struct val ret = str_new(r, buf->data + buf->used - len, len, buf);
    ret.s->markup = a->markup;
    return ret;
}

size_t str_cp(const struct str *s)
{
    if (s->n_cp == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->len; i++)
            n += ((unsigned char)s->s[i] & 0xC0) != 0x80;
        ((struct str *)s)->n_cp = n; /* only a rendering's own strings get here */
    }
    return s->n_cp;
}

size_t str_offset(const struct str *s, size_t i)
{
    if (str_cp(s) == s->len)
        return i;
    size_t at = 0;
    for (; at < s->len; at++) {
        if (((unsigned char)s->s[at] & 0xC0) != 0x80 && i-- == 0)
            break;
    }
    return at;
}

bool str_is(const struct str *s, const char *lit)
{
    return s->len == strlen(lit) && memcmp(s->s, lit, s->len) == 0;
}

/* ---- undefined ---- */

static struct val undef(struct render *r, struct undef u)
{
    struct undef *p = ralloc(r, sizeof(*p));
    *p = u;
    return (struct val){.t = V_UNDEF, .u = p};
}

struct val undef_name(struct render *r, const struct str *name)
{
    return undef(r, (struct undef){.name = v_str((struct str *)name)});
}

struct val undef_attr(struct render *r, struct val obj, struct val name)
{
    return undef(r, (struct undef){.has_obj = true, .obj = obj, .name = name});
}

struct val undef_hint(struct render *r, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return undef(r, (struct undef){.hint = str_copy(r, text, MIN((size_t)MAX(n, 0) + 1, sizeof(text))).s->s});
}

void undef_error(struct render *r, struct val v)
{
    const struct undef *u = v.u;
    if (u->hint)
        tmpl_raise(r, ERR_FAIL, "%s", u->hint);
    struct scratch *s = scratch_begin(r);
    bool by_name = u->name.t == V_STR;
    if (u->has_obj) {
        const char *object = u->obj.t == V_NONE ? "" : u->obj.t == V_NS ? "" : " object";
        char type[64];
        snprintf(type, sizeof(type), by_name ? "'%s%s'" : "%s%s", type_name(u->obj), object);
        scratch_adds(r, s, u->obj.t == V_NONE ? (by_name ? "'None'" : "None") : type);
        scratch_adds(r, s, by_name ? " has no attribute " : " has no element ");
    }
    print_repr(r, s, u->name);
    if (!u->has_obj)
        scratch_adds(r, s, " is undefined");
    char text[1024];
    snprintf(text, sizeof(text), "%s", s->b.s);
    tmpl_raise(r, ERR_FAIL, "%s", text);
}

/* ---- lists ---- */

struct list *list_new(struct render *r, size_t cap)
{
    struct list *l = ralloc(r, sizeof(*l));
    if (cap) {
        l->buf = ralloc(r, sizeof(*l->buf));
        l->buf->cap = cap;
        l->v = ralloc_n(r, cap, sizeof(*l->v));
    }
    return l;
}

/* Appends n values behind l's own; the list that is returned may share l's storage. */
static struct list list_extended(struct render *r, const struct list *l, const struct val *v, size_t n)
{
    struct list ret = *l;
    charge(r, n / 8);
    if (!l->buf || l->n != l->buf->used || n > l->buf->cap - l->buf->used) {
        size_t cap = l->n + n;
        cap = cap < 4 ? 4 : cap + cap / 2;
        charge(r, l->n / 8);
        ret.buf = ralloc(r, sizeof(*ret.buf));
        ret.buf->cap = cap;
        ret.v = ralloc_n(r, cap, sizeof(*ret.v));
        if (l->n)
            memcpy(ret.v, l->v, l->n * sizeof(*ret.v));
        ret.buf->used = l->n;
    }
    if (n)
        memcpy(ret.v + ret.n, v, n * sizeof(*v));
    ret.n += n;
    ret.buf->used += n;
    return ret;
}

void list_push(struct render *r, struct list *l, struct val v)
{
    *l = list_extended(r, l, &v, 1);
}

struct list *list_concat(struct render *r, struct list *a, struct list *b)
{
    struct list *ret = ralloc(r, sizeof(*ret));
    *ret = list_extended(r, a, b->v, b->n);
    return ret;
}

struct val pair(struct render *r, struct val a, struct val b)
{
    struct list *l = list_new(r, 2);
    list_push(r, l, a);
    list_push(r, l, b);
    return v_tuple(l);
}

/* ---- dicts ---- */

bool hashable(struct val v)
{
    if (v.t == V_TUPLE) {
        for (size_t i = 0; i < v.l->n; i++)
            if (!hashable(v.l->v[i]))
                return false;
        return true;
    }
    return v.t != V_LIST && v.t != V_DICT && v.t != V_VIEW;
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    return h ^ (h >> 33);
}

static uint64_t hash_bytes(const char *s, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return mix(h);
}

/* Equal values have equal hashes; 1, 1.0 and True are equal. */
static uint64_t hash(struct render *r, struct val v, int depth)
{
    charge(r, 1);
    if (depth > MAX_VALUE_DEPTH)
        tmpl_raise(r, ERR_LIMIT, "values are nested more than %d deep", MAX_VALUE_DEPTH);
    switch (v.t) {
    case V_NONE:
        return 1;
    case V_UNDEF:
        return 2;
    case V_BOOL:
    case V_INT:
        return mix((uint64_t)as_int(v));
    case V_FLOAT:
        if (v.f >= -9.2e18 && v.f <= 9.2e18 && v.f == floor(v.f))
            return mix((uint64_t)(int64_t)v.f);
        uint64_t bits;
        memcpy(&bits, &v.f, sizeof(bits));
        return mix(bits + 3);
    case V_STR:
        charge(r, v.s->len / 64);
        return hash_bytes(v.s->s, v.s->len);
    case V_TUPLE: {
        uint64_t h = v.l->n;
        for (size_t i = 0; i < v.l->n; i++)
            h = mix(h + hash(r, v.l->v[i], depth + 1));
        return h;
    }
    case V_LIST:
    case V_DICT:
    case V_VIEW:
        type_error(r, "unhashable type: '%s'", type_name(v));
    case V_RANGE:
        return mix((uint64_t)v.range->n);
    default:
        return mix((uint64_t)(uintptr_t)v.d);
    }
}

struct dict *dict_new(struct render *r, size_t cap)
{
    struct dict *d = ralloc(r, sizeof(*d));
    d->cap = cap;
    if (cap)
        d->e = ralloc_n(r, cap, sizeof(*d->e));
    return d;
}

enum { DICT_SMALL = 8 };

static void index_put(struct dict *d, uint64_t h, size_t at)
{
    size_t mask = d->n_index - 1, i = h & mask;
    while (d->index[i])
        i = (i + 1) & mask;
    d->index[i] = (uint32_t)at + 1;
}

/* Walks the entries that may have this hash. *i: 0 at the start. */
static struct entry *probe(const struct dict *d, uint64_t h, size_t *i)
{
    if (!d->index) {
        while (*i < d->n)
            if (d->e[(*i)++].hash == h)
                return &d->e[*i - 1];
        return NULL;
    }
    size_t mask = d->n_index - 1;
    for (; *i <= mask; ++*i) {
        uint32_t at = d->index[(h + *i) & mask];
        if (!at)
            return NULL;
        if (d->e[at - 1].hash == h) {
            ++*i;
            return &d->e[at - 1];
        }
    }
    return NULL;
}

struct val *dict_find(struct render *r, const struct dict *d, struct val key)
{
    if (key.t == V_STR) {
        charge(r, key.s->len / 64);
        return dict_find_s(d, key.s->s, key.s->len);
    }
    uint64_t h = hash(r, key, 0);
    size_t i = 0;
    for (struct entry *e; (e = probe(d, h, &i));)
        if (same(e->key, key) || equal(r, e->key, key))
            return &e->value;
    return NULL;
}

struct val *dict_find_s(const struct dict *d, const char *key, size_t len)
{
    uint64_t h = hash_bytes(key, len);
    size_t i = 0;
    for (struct entry *e; (e = probe(d, h, &i));)
        if (e->key.t == V_STR && e->key.s->len == len && memcmp(e->key.s->s, key, len) == 0)
            return &e->value;
    return NULL;
}

void dict_set(struct render *r, struct dict *d, struct val key, struct val value)
{
    struct val *old = dict_find(r, d, key);
    if (old) {
        *old = value;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        struct entry *e = ralloc_n(r, cap, sizeof(*e));
        if (d->n)
            memcpy(e, d->e, d->n * sizeof(*e));
        d->e = e;
        d->cap = cap;
    }
    if (d->n >= UINT32_MAX / 4)
        tmpl_raise(r, ERR_LIMIT, "a dict of more than %u keys", UINT32_MAX / 4);
    uint64_t h = hash(r, key, 0);
    d->e[d->n] = (struct entry){.key = key, .value = value, .hash = h};
    d->n++;
    if (d->n > DICT_SMALL && 2 * d->n > d->n_index) {
        size_t n_index = 32;
        while (n_index < 4 * d->n)
            n_index *= 2;
        d->index = ralloc_n(r, n_index, sizeof(*d->index));
        d->n_index = n_index;
        for (size_t i = 0; i < d->n; i++)
            index_put(d, d->e[i].hash, i);
    } else if (d->index) {
        index_put(d, h, d->n - 1);
    }
}

/* ---- truth, equality, order ---- */

const char *type_name(struct val v)
{
    static const char *const names[] = {
        [V_UNDEF] = "Undefined", [V_NONE] = "NoneType",  [V_BOOL] = "bool",       [V_INT] = "int",
        [V_FLOAT] = "float",     [V_STR] = "str",        [V_LIST] = "list",       [V_TUPLE] = "tuple",
        [V_DICT] = "dict",       [V_VIEW] = "dict view", [V_RANGE] = "range",     [V_ITER] = "generator",
        [V_NS] = "namespace",    [V_FUNC] = "function",  [V_MACRO] = "Macro",     [V_LOOP] = "LoopContext",
        [V_CYCLER] = "Cycler",   [V_JOINER] = "Joiner",  [V_MISSING] = "missing",
    };
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    return v.t == V_VIEW ? views[v.view->kind] : names[v.t];
}

int64_t must_be_int(struct render *r, struct val v)
{
    if (v.t == V_UNDEF)
        undef_error(r, v);
    if (!is_integral(v))
        type_error(r, "'%s' object cannot be interpreted as an integer", type_name(v));
    return as_int(v);
}

bool truthy(struct val v)
{
    switch (v.t) {
    case V_UNDEF:
    case V_NONE:
    case V_MISSING:
        return false;
    case V_BOOL:
        return v.b;
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0;
    case V_STR:
        return v.s->len != 0;
    case V_LIST:
    case V_TUPLE:
        return v.l->n != 0;
    case V_DICT:
        return v.d->n != 0;
    case V_VIEW:
        return v.view->d->n != 0;
    case V_RANGE:
        return v.range->n != 0;
    default:
        return true;
    }
}

bool same(struct val a, struct val b)
{
    if (a.t != b.t)
        return false;
    switch (a.t) {
    case V_NONE:
        return true;
    case V_BOOL:
        return a.b == b.b;
    case V_INT:
        return a.i == b.i; /* CPython's small integers; the large ones nobody compares this way */
    case V_FLOAT:
        return false;
    case V_STR: /* equal strings are mostly the same one in CPython, for constants are interned */
        return a.s == b.s || (a.s->len == b.s->len && memcmp(a.s->s, b.s->s, a.s->len) == 0);
    case V_FUNC:
        return a.fn->b == b.fn->b && same(a.fn->self, b.fn->self);
    default:
        return a.d == b.d;
    }
}

/* Exact, where a 64-bit integer meets a double. */
static int compare_int_double(int64_t i, double f)
{
    if (f >= 9223372036854775808.0)
        return -1;
    if (f < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)f;
    if (i != whole)
        return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

/* 2: not ordered (NaN). */
static int compare_numbers(struct val a, struct val b)
{
    if (is_integral(a) && is_integral(b))
        return as_int(a) < as_int(b) ? -1 : as_int(a) > as_int(b);
    if ((a.t == V_FLOAT && isnan(a.f)) || (b.t == V_FLOAT && isnan(b.f)))
        return 2;
    if (a.t == V_FLOAT && b.t == V_FLOAT)
        return a.f < b.f ? -1 : a.f > b.f;
    return a.t == V_FLOAT ? -compare_int_double(as_int(b), a.f) : compare_int_double(as_int(a), b.f);
}

static bool equal_at(struct render *r, struct val a, struct val b, int depth);

static bool equal_lists(struct render *r, const struct list *a, const struct list *b, int depth)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!same(a->v[i], b->v[i]) && !equal_at(r, a->v[i], b->v[i], depth + 1))
            return false;
    return true;
}

static bool equal_dicts(struct render *r, const struct dict *a, const struct dict *b, int depth)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        struct val *v = dict_find(r, b, a->e[i].key);
        if (!v || (!same(a->e[i].value, *v) && !equal_at(r, a->e[i].value, *v, depth + 1)))
            return false;
    }
    return true;
}

static bool equal_at(struct render *r, struct val a, struct val b, int depth)
{
    charge(r, 1);
    if (depth > MAX_VALUE_DEPTH)
        tmpl_raise(r, ERR_LIMIT, "values are nested more than %d deep", MAX_VALUE_DEPTH);
    if (is_num(a) && is_num(b))
        return compare_numbers(a, b) == 0;
    if (a.t != b.t)
        return false;
    switch (a.t) {
    case V_NONE:
    case V_UNDEF:
        return true;
    case V_STR:
        charge(r, MIN(a.s->len, b.s->len) / 64);
        return a.s->len == b.s->len && memcmp(a.s->s, b.s->s, a.s->len) == 0;
    case V_LIST:
    case V_TUPLE:
        return equal_lists(r, a.l, b.l, depth);
    case V_DICT:
        return equal_dicts(r, a.d, b.d, depth);
    case V_RANGE:
        return a.range->n == b.range->n &&
               (!a.range->n ||
                (a.range->start == b.range->start && (a.range->n == 1 || a.range->step == b.range->step)));
    case V_VIEW: {
        if (a.view->kind != b.view->kind || a.view->kind == VIEW_VALUES)
            return a.view == b.view;
        if (a.view->kind == VIEW_ITEMS)
            return equal_dicts(r, a.view->d, b.view->d, depth);
        const struct dict *x = a.view->d, *y = b.view->d;
        for (size_t i = 0; i < x->n; i++)
            if (!dict_find(r, y, x->e[i].key))
                return false;
        return x->n == y->n;
    }
    default:
        return same(a, b);
    }
}

bool equal(struct render *r, struct val a, struct val b)
{
    return equal_at(r, a, b, 0);
}

static int compare_at(struct render *r, struct val a, struct val b, const char *op, int depth)
{
    charge(r, 1);
    if (depth > MAX_VALUE_DEPTH)
        tmpl_raise(r, ERR_LIMIT, "values are nested more than %d deep", MAX_VALUE_DEPTH);
    if (a.t == V_UNDEF)
        undef_error(r, a);
    if (b.t == V_UNDEF)
        undef_error(r, b);
    if (is_num(a) && is_num(b))
        return compare_numbers(a, b);
    if (a.t == V_STR && b.t == V_STR) { /* UTF-8 sorts as its code points do */
        charge(r, MIN(a.s->len, b.s->len) / 64);
        int c = memcmp(a.s->s, b.s->s, MIN(a.s->len, b.s->len));
        return c ? (c < 0 ? -1 : 1) : a.s->len < b.s->len ? -1 : a.s->len > b.s->len;
    }
    if (a.t == b.t && (a.t == V_LIST || a.t == V_TUPLE)) {
        for (size_t i = 0; i < a.l->n && i < b.l->n; i++)
            if (!same(a.l->v[i], b.l->v[i]) && !equal_at(r, a.l->v[i], b.l->v[i], depth + 1))
                return compare_at(r, a.l->v[i], b.l->v[i], op, depth + 1);
        return a.l->n < b.l->n ? -1 : a.l->n > b.l->n;
    }
    type_error(r, "'%s' not supported between instances of '%s' and '%s'", op, type_name(a), type_name(b));
}

int compare(struct render *r, struct val a, struct val b, const char *op)
{
    return compare_at(r, a, b, op, 0);
}

bool contains(struct render *r, struct val c, struct val item)
{
    struct iter *it;
    struct val v;
    switch (c.t) {
    case V_STR:
        if (item.t != V_STR)
            type_error(r, "'in <string>' requires string as left operand, not %s", type_name(item));
        charge(r, text_work(c.s->len));
        return find_bytes(c.s->s, c.s->len, item.s->s, item.s->len) != NULL;
    case V_DICT:
        return dict_find(r, c.d, item) != NULL;
    case V_RANGE:
        if (is_integral(item)) {
            int64_t d = as_int(item) - c.range->start;
            return c.range->n && d % c.range->step == 0 && d / c.range->step >= 0 &&
                   (uint64_t)(d / c.range->step) < c.range->n;
        }
        break;
    case V_VIEW:
        if (c.view->kind == VIEW_KEYS)
            return dict_find(r, c.view->d, item) != NULL;
        break;
    default:
        if (!iterable(c))
            type_error(r, "argument of type '%s' is not iterable", type_name(c));
    }
    it = iterate(r, c);
    while (iter_next(r, it, &v))
        if (same(v, item) || equal(r, v, item))
            return true;
    return false;
}

/* ---- iteration ---- */

int64_t length_of(struct val v)
{
    switch (v.t) {
    case V_UNDEF:
        return 0;
    case V_STR:
        return (int64_t)str_cp(v.s);
    case V_LIST:
    case V_TUPLE:
        return (int64_t)v.l->n;
    case V_DICT:
        return (int64_t)v.d->n;
    case V_VIEW:
        return (int64_t)v.view->d->n;
    case V_RANGE:
        return (int64_t)v.range->n;
    default:
        return -1;
    }
}

bool iterable(struct val v)
{
    return length_of(v) >= 0 || v.t == V_ITER || v.t == V_LOOP;
}

struct iter *iter_new(struct render *r, int (*next)(struct render *, struct iter *, struct val *),
                      struct iter *src, void *state)
{
    struct iter *it = ralloc(r, sizeof(*it));
    it->next = next;
    it->src = src;
    it->state = state;
    return it;
}

struct val range_at(const struct range *g, size_t i)
{
    return v_int(g->start + (int64_t)i * g->step);
}

static int next_plain(struct render *r, struct iter *it, struct val *ret)
{
    size_t i = it->pos;
    struct val v = it->over;
    switch (v.t) {
    case V_STR: {
        if (i >= v.s->len)
            return 0;
        size_t n;
        utf8_at(v.s->s + i, v.s->s + v.s->len, &n);
        *ret = str_borrow(r, v.s->s + i, n);
        it->pos += n;
        return 1;
    }
    case V_LIST:
    case V_TUPLE:
        if (i >= v.l->n)
            return 0;
        *ret = v.l->v[i];
        break;
    case V_RANGE:
        if (i >= v.range->n)
            return 0;
        *ret = range_at(v.range, i);
        break;
    case V_DICT:
        if (i >= v.d->n)
            return 0;
        *ret = v.d->e[i].key;
        break;
    case V_VIEW: {
        if (i >= v.view->d->n)
            return 0;
        struct entry *e = &v.view->d->e[i];
        *ret = v.view->kind == VIEW_KEYS     ? e->key
               : v.view->kind == VIEW_VALUES ? e->value
                                             : pair(r, e->key, e->value);
        break;
    }
    default:
        return 0;
    }
    it->pos++;
    return 1;
}

/* A loop object walks on itself: pairs of (item, loop). */
static int next_of_loop(struct render *r, struct iter *it, struct val *ret)
{
    struct loop *l = it->over.loop;
    struct val v;
    if (!loop_peek(r, l, &v))
        return 0;
    l->has_after = false;
    l->index0++;
    l->before = l->current;
    l->current = v;
    *ret = pair(r, v, it->over);
    return 1;
}

struct iter *iterate(struct render *r, struct val v)
{
    if (v.t == V_ITER)
        return v.it;
    if (!iterable(v))
        type_error(r, "'%s' object is not iterable", type_name(v));
    struct iter *it = iter_new(r, v.t == V_LOOP ? next_of_loop : next_plain, NULL, NULL);
    it->over = v;
    return it;
}

int iter_next(struct render *r, struct iter *it, struct val *ret)
{
    charge(r, 1);
    enter_depth(r); /* map of map of map ... */
    int more = it->next(r, it, ret);
    r->depth--;
    return more;
}

struct list *to_list(struct render *r, struct val v)
{
    if (v.t == V_LIST || v.t == V_TUPLE)
        return v.l;
    int64_t n = v.t == V_STR || v.t == V_ITER ? 0 : MAX(length_of(v), 0);
    struct list *l = list_new(r, (size_t)n);
    struct iter *it = iterate(r, v);
    for (struct val x; iter_next(r, it, &x);)
        list_push(r, l, x);
    return l;
}

/* ---- printing ---- */

/* The shortest digits that read back as the same double, placed as Python places them. */
void print_float(struct render *r, struct scratch *s, double f)
{
    char text[40], digits[32];
    if (isnan(f) || isinf(f)) {
        scratch_adds(r, s, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision, f);
        if (strtod(text, NULL) == f)
            break;
    }
    size_t n = 0;
    const char *p = text;
    if (*p == '-') {
        scratch_adds(r, s, "-");
        p++;
    }
    for (; *p != 'e'; p++)
        if (*p != '.')
            digits[n++] = *p;
    int exp = atoi(p + 1);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (exp < -4 || exp >= 16) {
        scratch_add(r, s, digits, 1);
        if (n > 1) {
            scratch_adds(r, s, ".");
            scratch_add(r, s, digits + 1, n - 1);
        }
        snprintf(text, sizeof(text), "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
        scratch_adds(r, s, text);
    } else if (exp < 0) {
        scratch_adds(r, s, "0.");
        scratch_pad(r, s, '0', (size_t)(-exp - 1));
        scratch_add(r, s, digits, n);
    } else {
        size_t whole = (size_t)exp + 1;
        scratch_add(r, s, digits, MIN(n, whole));
        scratch_pad(r, s, '0', whole > n ? whole - n : 0);
        scratch_adds(r, s, ".");
        if (n > whole)
            scratch_add(r, s, digits + whole, n - whole);
        else
            scratch_adds(r, s, "0");
    }
}

static void repr_string(struct render *r, struct scratch *s, const struct str *v)
{
    bool single = memchr(v->s, '\'', v->len), dbl = memchr(v->s, '"', v->len);
    char quote = single && !dbl ? '"' : '\'';
    const char *p = v->s, *end = v->s + v->len, *plain = p;
    if (v->markup)
        scratch_adds(r, s, "Markup(");
    scratch_add(r, s, &quote, 1);
    while (p < end) {
        size_t n;
        unsigned cp = utf8_at(p, end, &n);
        if (cp != (unsigned char)quote && cp != '\\' && cp_is_printable(cp)) {
            p += n;
            continue;
        }
        scratch_add(r, s, plain, (size_t)(p - plain));
        char esc[16];
        if (cp == (unsigned char)quote || cp == '\\')
            snprintf(esc, sizeof(esc), "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(esc, sizeof(esc), "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else
            snprintf(esc, sizeof(esc), cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        scratch_adds(r, s, esc);
        p += n;
        plain = p;
    }
    scratch_add(r, s, plain, (size_t)(end - plain));
    scratch_add(r, s, &quote, 1);
    if (v->markup)
        scratch_adds(r, s, ")");
}

static void repr_at(struct render *r, struct scratch *s, struct val v, int depth);

static void repr_dict(struct render *r, struct scratch *s, const struct dict *d, int depth)
{
    scratch_adds(r, s, "{");
    for (size_t i = 0; i < d->n; i++) {
        scratch_adds(r, s, i ? ", " : "");
        repr_at(r, s, d->e[i].key, depth);
        scratch_adds(r, s, ": ");
        repr_at(r, s, d->e[i].value, depth);
    }
    scratch_adds(r, s, "}");
}

static void repr_row(struct render *r, struct scratch *s, struct val v, int depth)
{
    struct iter *it = iterate(r, v);
    bool first = true;
    for (struct val x; iter_next(r, it, &x); first = false) {
        scratch_adds(r, s, first ? "" : ", ");
        repr_at(r, s, x, depth);
    }
}

static void repr_at(struct render *r, struct scratch *s, struct val v, int depth)
{
    char text[80];
    charge(r, 1);
    if (depth > MAX_VALUE_DEPTH)
        tmpl_raise(r, ERR_LIMIT, "values are nested more than %d deep", MAX_VALUE_DEPTH);
    switch (v.t) {
    case V_UNDEF:
    case V_MISSING:
        scratch_adds(r, s, "Undefined");
        break;
    case V_NONE:
        scratch_adds(r, s, "None");
        break;
    case V_BOOL:
        scratch_adds(r, s, v.b ? "True" : "False");
        break;
    case V_INT:
        snprintf(text, sizeof(text), "%" PRId64, v.i);
        scratch_adds(r, s, text);
        break;
    case V_FLOAT:
        print_float(r, s, v.f);
        break;
    case V_STR:
        repr_string(r, s, v.s);
        break;
    case V_LIST:
        scratch_adds(r, s, "[");
        repr_row(r, s, v, depth + 1);
        scratch_adds(r, s, "]");
        break;
    case V_TUPLE:
        scratch_adds(r, s, "(");
        repr_row(r, s, v, depth + 1);
        scratch_adds(r, s, v.l->n == 1 ? ",)" : ")");
        break;
    case V_DICT:
        repr_dict(r, s, v.d, depth + 1);
        break;
    case V_VIEW:
        scratch_adds(r, s, type_name(v));
        scratch_adds(r, s, "([");
        repr_row(r, s, v, depth + 1);
        scratch_adds(r, s, "])");
        break;
    case V_RANGE:
        snprintf(text, sizeof(text),
                 v.range->step == 1 ? "range(%" PRId64 ", %" PRId64 ")"
                                    : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                 v.range->start, v.range->stop, v.range->step);
        scratch_adds(r, s, text);
        break;
    case V_NS:
        scratch_adds(r, s, "<Namespace ");
        repr_dict(r, s, v.d, depth + 1);
        scratch_adds(r, s, ">");
        break;
    case V_MACRO:
        scratch_adds(r, s, "<Macro ");
        if (v.macro->name)
            repr_string(r, s, v.macro->name);
        else
            scratch_adds(r, s, "anonymous");
        scratch_adds(r, s, ">");
        break;
    case V_LOOP:
        snprintf(text, sizeof(text), "<LoopContext %" PRId64 "/%" PRId64 ">", v.loop->index0 + 1,
                 loop_length(r, v.loop));
        scratch_adds(r, s, text);
        break;
    default: /* Python prints an address here; nobody can depend on it */
        scratch_adds(r, s, "<");
        scratch_adds(r, s, type_name(v));
        scratch_adds(r, s, v.t == V_FUNC ? " " : " object");
        scratch_adds(r, s, v.t == V_FUNC ? v.fn->b->name : "");
        scratch_adds(r, s, ">");
    }
}

void print_repr(struct render *r, struct scratch *s, struct val v)
{
    repr_at(r, s, v, 0);
}

void print_str(struct render *r, struct scratch *s, struct val v)
{
    if (v.t == V_STR)
        scratch_add(r, s, v.s->s, v.s->len);
    else if (v.t != V_UNDEF)
        repr_at(r, s, v, 0);
}

struct val to_str(struct render *r, struct val v)
{
    if (v.t == V_STR)
        return v;
    struct scratch *s = scratch_begin(r);
    print_str(r, s, v);
    return scratch_end(r, s);
}

/* ---- from JSON ---- */

static struct val from_json(struct render *r, const json_t *j, int depth)
{
    charge(r, 1);
    if (depth > MAX_VALUE_DEPTH)
        tmpl_raise(r, ERR_LIMIT, "the template's variables are nested more than %d deep", MAX_VALUE_DEPTH);
    switch (json_typeof(j)) {
    case JSON_OBJECT: {
        struct dict *d = dict_new(r, json_object_size(j));
        const char *key;
        size_t len;
        json_t *value;
        json_object_keylen_foreach((json_t *)j, key, len, value)
            dict_set(r, d, str_borrow(r, key, len), from_json(r, value, depth + 1));
        return v_dict(d);
    }
    case JSON_ARRAY: {
        size_t n = json_array_size(j);
        struct list *l = list_new(r, n);
        for (size_t i = 0; i < n; i++)
            list_push(r, l, from_json(r, json_array_get(j, i), depth + 1));
        return v_list(l);
    }
    case JSON_STRING:
        return str_borrow(r, json_string_value(j), json_string_length(j));
    case JSON_INTEGER:
        return v_int(json_integer_value(j));
    case JSON_REAL:
        return v_float(json_real_value(j));
    case JSON_TRUE:
    case JSON_FALSE:
        return v_bool(json_is_true(j));
    case JSON_NULL:
        break;
    }
    return v_none();
}

struct val val_from_json(struct render *r, const json_t *j)
{
    return from_json(r, j, 0);
}

/* ---- sorting ---- */

struct sorting {
    struct render *r;
    struct val *items, *keys, *items_tmp, *keys_tmp;
    bool reverse;
};

/* Merges halves; stable also in reverse, as Python's sort(reverse=True) is. */
static void merge_sort(struct sorting *s, size_t from, size_t to)
{
    if (to - from < 2)
        return;
    size_t mid = from + (to - from) / 2, a = from, b = mid, n = from;
    merge_sort(s, from, mid);
    merge_sort(s, mid, to);
    while (a < mid || b < to) {
        bool second = a == mid;
        if (a < mid && b < to)
            second = s->reverse ? compare(s->r, s->keys[a], s->keys[b], "<") == -1
                                : compare(s->r, s->keys[b], s->keys[a], "<") == -1;
        size_t from_at = second ? b++ : a++;
        s->items_tmp[n] = s->items[from_at];
        s->keys_tmp[n++] = s->keys[from_at];
    }
    memcpy(s->items + from, s->items_tmp + from, (to - from) * sizeof(*s->items));
    memcpy(s->keys + from, s->keys_tmp + from, (to - from) * sizeof(*s->keys));
}

void sort_by(struct render *r, struct val *items, struct val *keys, size_t n, bool reverse)
{
    struct sorting s = {.r = r, .items = items, .keys = keys, .reverse = reverse};
    s.items_tmp = ralloc_n(r, n, sizeof(*items));
    s.keys_tmp = ralloc_n(r, n, sizeof(*keys));
    merge_sort(&s, 0, n);
}
