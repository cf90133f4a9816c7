/* The tree walker: scopes, statements, operators, calls.
 *
 * Scopes are jinja2's: the bodies of for, macro, call, filter, set, with and generation have one of their
 * own, assignments go into the innermost, `if` has none. Each turn of a loop starts a fresh one, which is why
 * an assignment in a loop does not outlive the turn. A macro keeps the scope in which it was defined.
 */
#include "text/template_impl.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

void tmpl_raise(struct render *r, int code, const char *fmt, ...)
{
    char what[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    if (r->where)
        r->code =
            err_set(r->e, code, "chat template, line %u, column %u: %s", r->where->line, r->where->col, what);
    else
        r->code = err_set(r->e, code, "chat template: %s", what);
    longjmp(r->jump, 1);
}

void tmpl_raise_message(struct render *r, const struct str *message)
{
    if (message->len)
        r->code = err_set(r->e, ERR_FAIL, "%.*s", (int)MIN(message->len, 4000u), message->s);
    else
        r->code = err_set(r->e, ERR_FAIL, "the chat template refused, without saying why");
    longjmp(r->jump, 1);
}

/* ---- depth ---- */

static void enter(struct render *r, const struct node *n)
{
    r->where = n;
    charge(r, 1);
    enter_depth(r);
}

static void leave(struct render *r)
{
    r->depth--;
}

static void enter_call(struct render *r)
{
    if (++r->call_depth > MAX_CALL_DEPTH)
        tmpl_raise(r, ERR_LIMIT, "macros and recursive loops call each other more than %d deep",
                   MAX_CALL_DEPTH);
}

/* ---- scopes ---- */

static struct scope *scope_new(struct render *r, struct scope *parent)
{
    struct scope *s = ralloc(r, sizeof(*s));
    s->parent = parent;
    return s;
}

/* Something that may outlive the turn of a loop sees this scope. */
static void keep_scopes(struct scope *s)
{
    for (; s && !s->kept; s = s->parent)
        s->kept = true;
}

static void assign(struct render *r, struct scope *s, const struct str *name, struct val v)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->b[i].name == name) {
            s->b[i].v = v;
            return;
        }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4;
        struct binding *b = ralloc_n(r, cap, sizeof(*b));
        if (s->n)
            memcpy(b, s->b, s->n * sizeof(*b));
        s->b = b;
        s->cap = cap;
    }
    s->b[s->n++] = (struct binding){.name = name, .v = v};
}

static struct val lookup(struct render *r, const struct scope *s, const struct str *name)
{
    for (; s; s = s->parent)
        for (size_t i = 0; i < s->n; i++)
            if (s->b[i].name == name)
                return s->b[i].v;
    struct val *v = dict_find_s(r->vars, name->s, name->len);
    if (v)
        return *v;
    const struct builtin *b = find_global(name->s, name->len);
    if (!b)
        return undef_name(r, name);
    struct func *fn = ralloc(r, sizeof(*fn));
    *fn = (struct func){.b = b, .self = v_none()};
    return (struct val){.t = V_FUNC, .fn = fn};
}

/* ---- output ---- */

static void emit(struct render *r, const char *s, size_t n)
{
    if (r->capture) {
        scratch_add(r, r->capture, s, n);
        return;
    }
    if (n > r->max_output - (r->out->len - r->out_start))
        tmpl_raise(r, ERR_LIMIT, "the template writes more than %zu bytes", r->max_output);
    buf_add(r->out, s, n);
}

static void emit_value(struct render *r, struct val v)
{
    if (v.t == V_STR) {
        emit(r, v.s->s, v.s->len);
        return;
    }
    struct scratch *s = scratch_begin(r);
    print_str(r, s, v);
    emit(r, s->b.s, s->b.len);
    scratch_drop(r, s);
}

static struct scratch *capture_begin(struct render *r, struct scratch **outer)
{
    *outer = r->capture;
    return r->capture = scratch_begin(r);
}

static struct val capture_end(struct render *r, struct scratch *outer)
{
    struct val v = scratch_end(r, r->capture);
    r->capture = outer;
    return v;
}

/* ---- expressions ---- */

static struct val eval(struct render *r, const struct node *n, struct scope *s);

enum ctl { CTL_NONE, CTL_BREAK, CTL_CONTINUE };
static enum ctl exec_body(struct render *r, struct nodes body, struct scope *s);

static struct val bound(struct render *r, struct val obj, const struct builtin *b)
{
    struct func *fn = ralloc(r, sizeof(*fn));
    *fn = (struct func){.b = b, .self = obj};
    return (struct val){.t = V_FUNC, .fn = fn};
}

static struct val loop_attr(struct render *r, struct loop *l, const struct str *name, bool *found)
{
    struct val v;
    *found = true;
    if (str_is(name, "index0"))
        return v_int(l->index0);
    if (str_is(name, "index"))
        return v_int(l->index0 + 1);
    if (str_is(name, "first"))
        return v_bool(l->index0 == 0);
    if (str_is(name, "last"))
        return v_bool(!loop_peek(r, l, &v));
    if (str_is(name, "length"))
        return v_int(loop_length(r, l));
    if (str_is(name, "revindex"))
        return v_int(loop_length(r, l) - l->index0);
    if (str_is(name, "revindex0"))
        return v_int(loop_length(r, l) - l->index0 - 1);
    if (str_is(name, "previtem"))
        return l->index0 == 0 ? undef_hint(r, "there is no previous item") : l->before;
    if (str_is(name, "nextitem"))
        return loop_peek(r, l, &v) ? v : undef_hint(r, "there is no next item");
    if (str_is(name, "depth"))
        return v_int(l->depth0 + 1);
    if (str_is(name, "depth0"))
        return v_int(l->depth0);
    *found = false;
    return v_none();
}

static struct val macro_attr(struct render *r, const struct macro *m, const struct str *name, bool *found)
{
    *found = true;
    if (str_is(name, "name"))
        return m->name ? v_str((struct str *)m->name) : v_none();
    if (str_is(name, "caller"))
        return v_bool(m->node->macro.uses_caller);
    if (str_is(name, "catch_kwargs"))
        return v_bool(m->node->macro.uses_kwargs);
    if (str_is(name, "catch_varargs"))
        return v_bool(m->node->macro.uses_varargs);
    if (str_is(name, "arguments")) {
        struct list *l = list_new(r, m->node->macro.n_param);
        for (size_t i = 0; i < m->node->macro.n_param; i++)
            list_push(r, l, v_str((struct str *)m->node->macro.param[i]));
        return v_tuple(l);
    }
    *found = false;
    return v_none();
}

/* What Python's getattr() finds: methods and properties, not items. */
static bool attribute(struct render *r, struct val obj, struct str *name, struct val *ret)
{
    bool found = false;
    if (obj.t == V_LOOP) {
        *ret = loop_attr(r, obj.loop, name, &found);
    } else if (obj.t == V_MACRO) {
        *ret = macro_attr(r, obj.macro, name, &found);
    } else if (obj.t == V_NS) {
        struct val *v = dict_find_s(obj.d, name->s, name->len);
        found = v != NULL;
        if (v)
            *ret = *v;
    } else if (obj.t == V_CYCLER && str_is(name, "current")) {
        *ret = obj.cycler->items->v[obj.cycler->pos];
        return true;
    } else if (obj.t == V_TUPLE && obj.l->group && (str_is(name, "grouper") || str_is(name, "list"))) {
        *ret = obj.l->v[str_is(name, "list")];
        return true;
    }
    if (found)
        return true;
    if (method_is_forbidden(obj, name)) {
        *ret = undef_hint(r, "access to attribute '%.*s' of '%s' object is unsafe.", (int)name->len, name->s,
                          type_name(obj));
        return true;
    }
    const struct builtin *b = find_method(obj, name);
    if (b)
        *ret = bound(r, obj, b);
    return b != NULL;
}

static bool subscript(struct render *r, struct val obj, struct val key, struct val *ret)
{
    if (obj.t == V_DICT) {
        struct val *v = hashable(key) ? dict_find(r, obj.d, key) : NULL;
        if (v)
            *ret = *v;
        return v != NULL;
    }
    if (!is_integral(key))
        return false;
    if (obj.t != V_STR && obj.t != V_LIST && obj.t != V_TUPLE && obj.t != V_RANGE)
        return false;
    int64_t n = length_of(obj), i = as_int(key);
    if (obj.t == V_STR && str_cp(obj.s) != obj.s->len)
        charge(r, text_work(obj.s->len));
    i = i < 0 ? i + n : i;
    if (i < 0 || i >= n)
        return false;
    *ret = obj.t == V_STR     ? str_slice(r, obj.s, (size_t)i, (size_t)i + 1)
           : obj.t == V_RANGE ? range_at(obj.range, (size_t)i)
                              : obj.l->v[i];
    return true;
}

struct val get_attr(struct render *r, struct val obj, struct str *name)
{
    struct val v;
    if (obj.t == V_UNDEF)
        undef_error(r, obj);
    if (attribute(r, obj, name, &v) || subscript(r, obj, v_str(name), &v))
        return v;
    return undef_attr(r, obj, v_str(name));
}

struct val get_item(struct render *r, struct val obj, struct val key)
{
    struct val v;
    if (obj.t == V_UNDEF)
        undef_error(r, obj);
    if (subscript(r, obj, key, &v) || (key.t == V_STR && attribute(r, obj, key.s, &v)))
        return v;
    return undef_attr(r, obj, key);
}

static bool slice_index(struct render *r, struct val v, int64_t *ret)
{
    if (v.t == V_NONE || v.t == V_MISSING)
        return false;
    if (v.t == V_UNDEF || !is_integral(v))
        type_error(r, "slice indices must be integers or None, not %s", type_name(v));
    *ret = as_int(v);
    return true;
}

/* Python's slice.indices(): where to start, how many items. */
static size_t slice_span(struct render *r, int64_t n, struct val start, struct val stop, struct val step,
                         int64_t *ret_from, int64_t *ret_by)
{
    int64_t by = 1, from, to;
    slice_index(r, step, &by);
    if (by == 0)
        type_error(r, "slice step cannot be zero");
    int64_t lo = by < 0 ? -1 : 0, hi = by < 0 ? n - 1 : n;
    if (!slice_index(r, start, &from))
        from = by < 0 ? hi : lo;
    else
        from = from < 0 ? MAX(from < -n ? lo : from + n, lo) : MIN(from, hi);
    if (!slice_index(r, stop, &to))
        to = by < 0 ? lo : hi;
    else
        to = to < 0 ? MAX(to < -n ? lo : to + n, lo) : MIN(to, hi);
    *ret_from = from;
    *ret_by = by;
    if (by > 0 ? from >= to : from <= to)
        return 0;
    uint64_t span = by > 0 ? (uint64_t)(to - from) : (uint64_t)(from - to);
    uint64_t unit = by > 0 ? (uint64_t)by : 0 - (uint64_t)by;
    return (size_t)((span - 1) / unit + 1);
}

static struct val slice_str(struct render *r, struct str *s, int64_t from, int64_t by, size_t count)
{
    if (by == 1)
        return str_slice(r, s, (size_t)from, (size_t)from + count);
    struct scratch *out = scratch_begin(r);
    const char *p = s->s, *end = s->s + s->len;
    charge(r, text_work(s->len) + count / 8);
    if (str_cp(s) == s->len) {
        for (size_t i = 0; i < count; i++)
            scratch_add(r, out, p + (from + (int64_t)i * by), 1);
        return scratch_end(r, out);
    }
    p += str_offset(s, count ? (size_t)from : 0); /* walk from item to item, either way */
    for (size_t i = 0; i < count; i++) {
        size_t n;
        utf8_at(p, end, &n);
        scratch_add(r, out, p, n);
        if (i + 1 == count)
            break;
        for (int64_t k = by; k > 0; k--) {
            utf8_at(p, end, &n);
            p += n;
        }
        for (int64_t k = by; k < 0; k++)
            do
                p--;
            while (((unsigned char)*p & 0xC0) == 0x80);
    }
    return scratch_end(r, out);
}

struct val slice_value(struct render *r, struct val obj, struct val start, struct val stop, struct val step)
{
    int64_t from, by;
    if (obj.t == V_UNDEF)
        undef_error(r, obj);
    if (obj.t == V_DICT)
        type_error(r, "unhashable type: 'slice'");
    if (obj.t != V_STR && obj.t != V_LIST && obj.t != V_TUPLE && obj.t != V_RANGE)
        type_error(r, "'%s' object is not subscriptable", type_name(obj));
    size_t count = slice_span(r, length_of(obj), start, stop, step, &from, &by);
    if (obj.t == V_STR)
        return slice_str(r, obj.s, from, by, count);
    if (obj.t == V_RANGE) {
        struct range *g = ralloc(r, sizeof(*g));
        *g = *obj.range;
        g->start = obj.range->start + from * obj.range->step;
        if (__builtin_mul_overflow(obj.range->step, by, &g->step))
            g->step = obj.range->step;
        g->n = count;
        g->stop = g->start + (int64_t)count * g->step;
        return (struct val){.t = V_RANGE, .range = g};
    }
    struct list *l = list_new(r, count);
    charge(r, count / 8);
    for (size_t i = 0; i < count; i++)
        list_push(r, l, obj.l->v[from + (int64_t)i * by]);
    return (struct val){.t = obj.t, .l = l};
}

/* ---- operators ---- */

static const char *const op_sign[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

static void bad_operands(struct render *r, enum op op, struct val a, struct val b) __attribute__((noreturn));
static void bad_operands(struct render *r, enum op op, struct val a, struct val b)
{
    if (a.t == V_UNDEF)
        undef_error(r, a);
    if (b.t == V_UNDEF)
        undef_error(r, b);
    if (op == OP_ADD && (a.t == V_STR || a.t == V_LIST || a.t == V_TUPLE))
        type_error(r, "can only concatenate %s (not \"%s\") to %s", type_name(a), type_name(b), type_name(a));
    type_error(r, "unsupported operand type(s) for %s: '%s' and '%s'", op_sign[op], type_name(a),
               type_name(b));
}

static void too_large(struct render *r) __attribute__((noreturn));
static void too_large(struct render *r)
{
    tmpl_raise(r, ERR_LIMIT, "the result does not fit a 64-bit integer");
}

static struct val repeat(struct render *r, struct val v, int64_t times)
{
    size_t n = times > 0 ? (size_t)times : 0;
    if (v.t == V_STR) {
        size_t total;
        if (!size_mul(v.s->len, n, &total) || total > r->max_memory)
            tmpl_raise(r, ERR_LIMIT, "the template needs more than %zu bytes of memory", r->max_memory);
        charge(r, text_work(total));
        char *p = ralloc(r, total);
        for (size_t at = 0; at < total; at += v.s->len)
            memcpy(p + at, v.s->s, v.s->len);
        struct val ret = str_borrow(r, p, total);
        ret.s->markup = v.s->markup;
        return ret;
    }
    size_t total;
    if (!size_mul(v.l->n, n, &total) || total > r->max_memory)
        tmpl_raise(r, ERR_LIMIT, "the template needs more than %zu bytes of memory", r->max_memory);
    struct list *l = list_new(r, total);
    charge(r, total / 8);
    for (size_t i = 0; i < total; i++)
        list_push(r, l, v.l->v[i % v.l->n]);
    return (struct val){.t = v.t, .l = l};
}

static int64_t floor_div(struct render *r, int64_t a, int64_t b)
{
    if (b == 0)
        type_error(r, "integer division or modulo by zero");
    if (a == INT64_MIN && b == -1)
        too_large(r);
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static struct val power(struct render *r, struct val a, struct val b)
{
    if (is_integral(a) && is_integral(b) && as_int(b) >= 0) {
        int64_t base = as_int(a), result = 1;
        for (uint64_t e = (uint64_t)as_int(b); e; e >>= 1) {
            if ((e & 1) && __builtin_mul_overflow(result, base, &result))
                too_large(r);
            if (e > 1 && __builtin_mul_overflow(base, base, &base))
                too_large(r);
        }
        return v_int(result);
    }
    double x = as_double(a), y = as_double(b);
    if (x == 0 && y < 0)
        type_error(r, "0.0 cannot be raised to a negative power");
    if (x < 0 && isfinite(x) && isfinite(y) && y != floor(y))
        tmpl_raise(r, ERR_UNSUPPORTED, "complex numbers are not supported");
    double f = pow(x, y);
    if (isinf(f) && isfinite(x) && isfinite(y))
        type_error(r, "Numerical result out of range");
    return v_float(f);
}

static struct val float_arith(struct render *r, enum op op, double x, double y)
{
    double mod;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && y == 0)
        type_error(r, op == OP_MOD ? "float modulo" : "float division by zero");
    switch (op) {
    case OP_ADD:
        return v_float(x + y);
    case OP_SUB:
        return v_float(x - y);
    case OP_MUL:
        return v_float(x * y);
    case OP_DIV:
        return v_float(x / y);
    default: /* as CPython: the remainder has the divisor's sign, the quotient is what is left */
        mod = fmod(x, y);
        double div = (x - mod) / y;
        if (mod != 0 && (y < 0) != (mod < 0)) {
            mod += y;
            div -= 1;
        } else if (mod == 0) {
            mod = copysign(0, y);
        }
        if (op == OP_MOD)
            return v_float(mod);
        if (div == 0)
            return v_float(copysign(0, x / y));
        double fl = floor(div);
        return v_float(div - fl > 0.5 ? fl + 1 : fl);
    }
}

static struct val int_arith(struct render *r, enum op op, int64_t x, int64_t y)
{
    int64_t z;
    bool over = false;
    switch (op) {
    case OP_ADD:
        over = __builtin_add_overflow(x, y, &z);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(x, y, &z);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(x, y, &z);
        break;
    case OP_DIV:
        if (y == 0)
            type_error(r, "division by zero");
        return v_float((double)x / (double)y);
    case OP_FLOORDIV:
        z = floor_div(r, x, y);
        break;
    default:
        if (y == -1)
            return v_int(0);
        z = x - floor_div(r, x, y) * y;
        break;
    }
    if (over)
        too_large(r);
    return v_int(z);
}

struct val arith(struct render *r, enum op op, struct val a, struct val b)
{
    if (is_num(a) && is_num(b)) {
        if (op == OP_POW)
            return power(r, a, b);
        if (a.t == V_FLOAT || b.t == V_FLOAT)
            return float_arith(r, op, as_double(a), as_double(b));
        return int_arith(r, op, as_int(a), as_int(b));
    }
    bool row_a = a.t == V_STR || a.t == V_LIST || a.t == V_TUPLE,
         row_b = b.t == V_STR || b.t == V_LIST || b.t == V_TUPLE;
    if (op == OP_ADD && row_a && a.t == b.t) {
        if (a.t == V_STR)
            return str_concat(r, a.s, b.s);
        return (struct val){.t = a.t, .l = list_concat(r, a.l, b.l)};
    }
    if (op == OP_ADD && ((a.t == V_STR && a.s->markup) || (b.t == V_STR && b.s->markup)) && row_a && row_b)
        bad_operands(r, op, a, b);
    if (op == OP_MUL && row_a && is_integral(b))
        return repeat(r, a, as_int(b));
    if (op == OP_MUL && is_integral(a) && row_b)
        return repeat(r, b, as_int(a));
    if (op == OP_MOD && a.t == V_STR)
        return str_percent(r, a.s, b);
    bad_operands(r, op, a, b);
}

static struct val eval_unary(struct render *r, const struct node *n, struct scope *s)
{
    struct val v = eval(r, n->arg, s);
    if (n->kind == N_NOT)
        return v_bool(!truthy(v));
    r->where = n;
    if (v.t == V_UNDEF)
        undef_error(r, v);
    if (!is_num(v))
        type_error(r, "bad operand type for unary %c: '%s'", n->kind == N_NEG ? '-' : '+', type_name(v));
    if (v.t == V_FLOAT)
        return v_float(n->kind == N_NEG ? -v.f : v.f);
    return n->kind == N_NEG ? int_arith(r, OP_SUB, 0, as_int(v)) : v_int(as_int(v));
}

static bool holds(struct render *r, enum op op, struct val a, struct val b)
{
    int c;
    switch (op) {
    case OP_EQ:
        return equal(r, a, b);
    case OP_NE:
        return !equal(r, a, b);
    case OP_IN:
        return contains(r, b, a);
    case OP_NOTIN:
        return !contains(r, b, a);
    case OP_LT:
        return compare(r, a, b, "<") == -1;
    case OP_GT:
        return compare(r, a, b, ">") == 1;
    case OP_LE:
        c = compare(r, a, b, "<=");
        return c == -1 || c == 0;
    default:
        c = compare(r, a, b, ">=");
        return c == 1 || c == 0;
    }
}

static struct val eval_compare(struct render *r, const struct node *n, struct scope *s)
{
    struct val left = eval(r, n->cmp.first, s);
    for (size_t i = 0; i < n->cmp.rest.n; i++) {
        struct val right = eval(r, n->cmp.rest.v[i], s);
        r->where = n;
        if (!holds(r, n->cmp.op[i], left, right))
            return v_bool(false);
        left = right;
    }
    return v_bool(true);
}

static struct val eval_concat(struct render *r, const struct node *n, struct scope *s)
{
    /* The first string may have room behind it (see struct strbuf), so append one by one. */
    struct val all = v_missing();
    for (size_t i = 0; i < n->list.n; i++) {
        struct val v = eval(r, n->list.v[i], s);
        r->where = n;
        v = to_str(r, v);
        if (v.s->markup) /* `~` joins plain strings */
            v = str_borrow(r, v.s->s, v.s->len);
        all = i ? str_concat(r, all.s, v.s) : v;
    }
    return all;
}

static struct list *eval_items(struct render *r, struct nodes items, struct scope *s)
{
    struct list *l = list_new(r, items.n);
    for (size_t i = 0; i < items.n; i++)
        list_push(r, l, eval(r, items.v[i], s));
    return l;
}

static struct val eval_dict(struct render *r, const struct node *n, struct scope *s)
{
    struct dict *d = dict_new(r, n->list.n / 2);
    for (size_t i = 0; i + 1 < n->list.n; i += 2) {
        struct val key = eval(r, n->list.v[i], s), value = eval(r, n->list.v[i + 1], s);
        r->where = n;
        dict_set(r, d, key, value);
    }
    return v_dict(d);
}

/* ---- calls ---- */

static struct args eval_args(struct render *r, const struct node_args *a, struct scope *s, struct val caller)
{
    struct args ret = {0};
    struct list *pos = eval_items(r, a->pos, s);
    struct val dyn = v_missing(), dyn_kw = v_missing();
    if (a->dyn_pos) {
        dyn = eval(r, a->dyn_pos, s);
        pos = list_concat(r, pos, to_list(r, dyn));
    }
    size_t n_kw = a->n_kw + (caller.t != V_MISSING);
    struct kwarg *kw = NULL;
    if (a->n_kw)
        kw = ralloc_n(r, n_kw, sizeof(*kw));
    for (size_t i = 0; i < a->n_kw; i++)
        kw[ret.n_kw++] = (struct kwarg){.name = a->kw[i].name, .v = eval(r, a->kw[i].value, s)};
    if (a->dyn_kw) {
        dyn_kw = eval(r, a->dyn_kw, s);
        if (dyn_kw.t == V_UNDEF)
            undef_error(r, dyn_kw);
        if (dyn_kw.t != V_DICT)
            type_error(r, "argument after ** must be a mapping, not %s", type_name(dyn_kw));
    }
    if (dyn_kw.t == V_DICT || (caller.t != V_MISSING && !kw)) {
        struct kwarg *grown = ralloc_n(r, n_kw + (dyn_kw.t == V_DICT ? dyn_kw.d->n : 0), sizeof(*kw));
        if (ret.n_kw)
            memcpy(grown, kw, ret.n_kw * sizeof(*kw));
        kw = grown;
    }
    for (size_t i = 0; dyn_kw.t == V_DICT && i < dyn_kw.d->n; i++) {
        struct entry *e = &dyn_kw.d->e[i];
        if (e->key.t != V_STR)
            type_error(r, "keywords must be strings");
        for (size_t k = 0; k < ret.n_kw; k++)
            if (equal(r, v_str((struct str *)kw[k].name), e->key))
                type_error(r, "got multiple values for keyword argument '%.*s'", (int)MIN(e->key.s->len, 60u),
                           e->key.s->s);
        kw[ret.n_kw++] = (struct kwarg){.name = e->key.s, .v = e->value};
    }
    if (caller.t != V_MISSING) {
        static const struct str name = {.s = "caller", .len = 6, .n_cp = 6};
        kw[ret.n_kw++] = (struct kwarg){.name = &name, .v = caller};
    }
    ret.v = pos->v;
    ret.n = pos->n;
    ret.kw = kw;
    return ret;
}

/* Removes and returns the keyword argument; V_MISSING: not there. */
static struct val pop_kwarg(struct args *a, const struct str *name)
{
    for (size_t i = 0; i < a->n_kw; i++)
        if (a->kw[i].name->len == name->len && memcmp(a->kw[i].name->s, name->s, name->len) == 0) {
            struct val v = a->kw[i].v;
            memmove(a->kw + i, a->kw + i + 1, (a->n_kw - i - 1) * sizeof(*a->kw));
            a->n_kw--;
            return v;
        }
    return v_missing();
}

static struct val call_macro(struct render *r, struct macro *m, const struct args *given)
{
    const struct node *n = m->node;
    const struct str *name = m->name;
    struct args a = *given;
    struct scope *s = scope_new(r, m->scope);
    bool found_caller = false;
    static const struct str caller_name = {.s = "caller", .len = 6, .n_cp = 6};
    if (a.n_kw) { /* it is taken apart, and may be the caller's */
        a.kw = ralloc_n(r, a.n_kw, sizeof(*a.kw));
        memcpy(a.kw, given->kw, a.n_kw * sizeof(*a.kw));
    }
    struct val *v = ralloc_n(r, n->macro.n_param, sizeof(*v));
    for (size_t i = 0; i < n->macro.n_param; i++) {
        v[i] = i < a.n ? a.v[i] : pop_kwarg(&a, n->macro.param[i]);
        found_caller |= str_is(n->macro.param[i], "caller");
    }
    struct val caller = v_missing(), kwargs = v_missing(), varargs = v_missing();
    if (n->macro.uses_caller && !found_caller) {
        caller = pop_kwarg(&a, &caller_name);
        if (caller.t == V_MISSING || caller.t == V_NONE)
            caller = undef_hint(r, "No caller defined");
    }
    if (n->macro.uses_kwargs) {
        kwargs = v_dict(dict_new(r, a.n_kw));
        for (size_t i = 0; i < a.n_kw; i++)
            dict_set(r, kwargs.d, v_str((struct str *)a.kw[i].name), a.kw[i].v);
    } else if (a.n_kw) {
        type_error(r, "macro '%.*s' takes no keyword argument '%.*s'", name ? (int)MIN(name->len, 60u) : 6,
                   name ? name->s : "caller", (int)MIN(a.kw[0].name->len, 60u), a.kw[0].name->s);
    }
    if (n->macro.uses_varargs) {
        varargs = v_tuple(list_new(r, 0));
        for (size_t i = n->macro.n_param; i < a.n; i++)
            list_push(r, varargs.l, a.v[i]);
    } else if (a.n > n->macro.n_param) {
        type_error(r, "macro '%.*s' takes not more than %zu argument(s)", name ? (int)MIN(name->len, 60u) : 6,
                   name ? name->s : "caller", n->macro.n_param);
    }
    enter_call(r);
    if (n->macro.uses_caller && !found_caller)
        assign(r, s, r->tmpl->names.caller, caller);
    if (n->macro.uses_kwargs)
        assign(r, s, r->tmpl->names.kwargs, kwargs);
    if (n->macro.uses_varargs)
        assign(r, s, r->tmpl->names.varargs, varargs);
    for (size_t i = 0; i < n->macro.n_param; i++) {
        if (v[i].t == V_MISSING && n->macro.fallback[i])
            v[i] = eval(r, n->macro.fallback[i], s);
        else if (v[i].t == V_MISSING)
            v[i] = undef_hint(r, "parameter '%.*s' was not provided", (int)n->macro.param[i]->len,
                              n->macro.param[i]->s);
        assign(r, s, n->macro.param[i], v[i]);
    }
    struct scratch *outer;
    capture_begin(r, &outer);
    exec_body(r, n->macro.body, s);
    r->call_depth--;
    return capture_end(r, outer);
}

static struct val loop_recurse(struct render *r, struct loop *l, struct val iterable);

static struct val call_value(struct render *r, struct val callee, const struct args *a)
{
    switch (callee.t) {
    case V_UNDEF:
        undef_error(r, callee);
    case V_FUNC:
        return call_builtin(r, callee.fn->b, callee.fn->self, a);
    case V_MACRO:
        return call_macro(r, callee.macro, a);
    case V_JOINER: {
        if (a->n || a->n_kw)
            type_error(r, "a joiner takes no arguments");
        bool used = callee.joiner->used;
        callee.joiner->used = true;
        return used ? callee.joiner->sep : str_lit(r, "");
    }
    case V_LOOP:
        if (a->n != 1 || a->n_kw)
            type_error(r, "loop() takes exactly one argument");
        return loop_recurse(r, callee.loop, a->v[0]);
    default:
        type_error(r, "'%s' object is not callable", type_name(callee));
    }
}

static struct val eval_call(struct render *r, const struct node *n, struct scope *s, struct val caller)
{
    struct val callee = eval(r, n->call.obj, s);
    struct args a = eval_args(r, &n->call.args, s, caller);
    r->where = n;
    return call_value(r, callee, &a);
}

/* piece: what a filter block has collected; V_MISSING: the filter has an operand. */
static struct val eval_filter(struct render *r, const struct node *n, struct scope *s, struct val piece)
{
    enter(r, n);
    struct val v = !n->call.obj           ? piece
                   : piece.t == V_MISSING ? eval(r, n->call.obj, s)
                                          : eval_filter(r, n->call.obj, s, piece);
    struct args a = eval_args(r, &n->call.args, s, v_missing());
    r->where = n;
    if (!n->call.b)
        type_error(r, "there is no %s named '%.*s'", n->kind == N_TEST ? "test" : "filter",
                   (int)MIN(n->call.name->len, 60u), n->call.name->s);
    v = call_builtin(r, n->call.b, v, &a);
    leave(r);
    return v;
}

static struct val eval_slice(struct render *r, const struct node *n, struct scope *s)
{
    struct val obj = eval(r, n->slice.obj, s);
    struct val start = n->slice.start ? eval(r, n->slice.start, s) : v_missing();
    struct val stop = n->slice.stop ? eval(r, n->slice.stop, s) : v_missing();
    struct val step = n->slice.step ? eval(r, n->slice.step, s) : v_missing();
    r->where = n;
    return slice_value(r, obj, start, stop, step);
}

static struct val eval_cond(struct render *r, const struct node *n, struct scope *s)
{
    if (truthy(eval(r, n->cond.test, s)))
        return eval(r, n->cond.yes, s);
    if (n->cond.no)
        return eval(r, n->cond.no, s);
    return undef_hint(
        r, "the inline if-expression on line %u evaluated to false and no else section was defined.",
        n->line);
}

static struct val eval_here(struct render *r, const struct node *n, struct scope *s)
{
    struct val v, w;
    switch (n->kind) {
    case N_CONST:
        return n->constant;
    case N_NAME:
        return lookup(r, s, n->name);
    case N_LIST:
        return v_list(eval_items(r, n->list, s));
    case N_TUPLE:
        return v_tuple(eval_items(r, n->list, s));
    case N_DICT:
        return eval_dict(r, n, s);
    case N_GETATTR:
        v = eval(r, n->get.obj, s);
        r->where = n;
        return get_attr(r, v, n->get.attr);
    case N_GETITEM:
        v = eval(r, n->item.obj, s);
        w = eval(r, n->item.index, s);
        r->where = n;
        return get_item(r, v, w);
    case N_SLICE:
        return eval_slice(r, n, s);
    case N_CALL:
        return eval_call(r, n, s, v_missing());
    case N_FILTER:
    case N_TEST:
        return eval_filter(r, n, s, v_missing());
    case N_COND:
        return eval_cond(r, n, s);
    case N_AND:
        v = eval(r, n->cond.test, s);
        return truthy(v) ? eval(r, n->cond.yes, s) : v;
    case N_OR:
        v = eval(r, n->cond.test, s);
        return truthy(v) ? v : eval(r, n->cond.yes, s);
    case N_NOT:
    case N_NEG:
    case N_POS:
        return eval_unary(r, n, s);
    case N_COMPARE:
        return eval_compare(r, n, s);
    case N_BINOP:
        v = eval(r, n->cond.test, s);
        w = eval(r, n->cond.yes, s);
        r->where = n;
        return arith(r, n->cond.op, v, w);
    case N_CONCAT:
        return eval_concat(r, n, s);
    default:
        assert(!"a statement where an expression belongs");
        return v_none();
    }
}

static struct val eval(struct render *r, const struct node *n, struct scope *s)
{
    enter(r, n);
    struct val v = eval_here(r, n, s);
    leave(r);
    return v;
}

/* ---- assignment ---- */

static void assign_target(struct render *r, const struct node *target, struct scope *s, struct val v)
{
    if (target->kind == N_NAME) {
        assign(r, s, target->name, v);
        return;
    }
    r->where = target;
    if (target->kind == N_NSREF) {
        struct val ns = lookup(r, s, target->get.owner);
        if (ns.t != V_NS)
            type_error(r, "cannot assign attribute on non-namespace object");
        check_namespace_name(r, v_str(target->get.attr));
        dict_set(r, ns.d, v_str(target->get.attr), v);
        return;
    }
    size_t want = target->list.n, have = 0;
    struct val *item = ralloc_n(r, want, sizeof(*item));
    if (v.t != V_UNDEF && !iterable(v))
        type_error(r, "cannot unpack non-iterable %s object", type_name(v));
    struct iter *it = iterate(r, v);
    for (struct val x; have <= want && iter_next(r, it, &x); have++)
        if (have < want)
            item[have] = x;
    if (have < want)
        type_error(r, "not enough values to unpack (expected %zu, got %zu)", want, have);
    if (have > want)
        type_error(r, "too many values to unpack (expected %zu)", want);
    for (size_t i = 0; i < want; i++)
        assign_target(r, target->list.v[i], s, item[i]);
}

/* ---- loops ---- */

struct filtered {
    const struct node *node;
    struct scope *outer;
};

/* `for x in y if test`: lazily, for the body may change a namespace that the test reads. */
static int next_filtered(struct render *r, struct iter *it, struct val *ret)
{
    struct filtered *f = it->state;
    while (iter_next(r, it->src, ret)) {
        struct scope *s = scope_new(r, f->outer);
        assign_target(r, f->node->loop.target, s, *ret);
        if (truthy(eval(r, f->node->loop.test, s)))
            return 1;
    }
    return 0;
}

int loop_peek(struct render *r, struct loop *l, struct val *ret)
{
    if (!l->has_after && !iter_next(r, l->it, &l->after))
        return 0;
    l->has_after = true;
    *ret = l->after;
    return 1;
}

int64_t loop_length(struct render *r, struct loop *l)
{
    if (l->length >= 0)
        return l->length;
    if (!l->node->loop.test && length_of(l->iterable) >= 0) {
        l->length = length_of(l->iterable);
        return l->length;
    }
    struct list *rest = list_new(r, 0); /* a generator has to be run to its end to be measured */
    for (struct val v; iter_next(r, l->it, &v);)
        list_push(r, rest, v);
    l->it = iterate(r, v_list(rest));
    l->length = (int64_t)rest->n + l->index0 + 1 + l->has_after;
    return l->length;
}

static void run_loop(struct render *r, const struct node *n, struct scope *outer, struct val iterable,
                     int depth0, enum ctl *ret)
{
    struct loop *l = ralloc(r, sizeof(*l));
    *l = (struct loop){
        .node = n, .outer = outer, .iterable = iterable, .index0 = -1, .length = -1, .depth0 = depth0};
    l->it = iterate(r, iterable);
    if (n->loop.test) {
        struct filtered *f = ralloc(r, sizeof(*f));
        *f = (struct filtered){.node = n, .outer = outer};
        l->it = iter_new(r, next_filtered, l->it, f);
    }
    struct val item, self = {.t = V_LOOP, .loop = l};
    struct scope *s = NULL; /* each turn's; used again unless a macro has kept it */
    bool any = false;
    if (n->loop.recursive)
        keep_scopes(outer);
    while (loop_peek(r, l, &item)) {
        r->where = n;
        l->has_after = false;
        l->index0++;
        l->before = l->current;
        l->current = item;
        if (!s || s->kept)
            s = scope_new(r, outer);
        s->n = 0;
        assign_target(r, n->loop.target, s, item);
        assign(r, s, r->tmpl->names.loop, self);
        enum ctl ctl = exec_body(r, n->loop.body, s);
        any |= ctl == CTL_NONE; /* jinja2's `else` runs unless a turn came to its end, break or no break */
        if (ctl == CTL_BREAK)
            break;
    }
    if (!any)
        *ret = exec_body(r, n->loop.orelse, scope_new(r, outer));
}

static struct val loop_recurse(struct render *r, struct loop *l, struct val iterable)
{
    if (!l->node->loop.recursive)
        type_error(r, "The loop must have the 'recursive' marker to be called recursively.");
    struct scratch *outer;
    enum ctl ctl = CTL_NONE;
    enter_call(r);
    capture_begin(r, &outer);
    run_loop(r, l->node, l->outer, iterable, l->depth0 + 1, &ctl);
    r->call_depth--;
    return capture_end(r, outer);
}

/* ---- statements ---- */

static struct val make_macro(struct render *r, const struct node *n, struct scope *s)
{
    keep_scopes(s);
    struct macro *m = ralloc(r, sizeof(*m));
    *m = (struct macro){.node = n, .scope = s, .name = n->macro.name};
    return (struct val){.t = V_MACRO, .macro = m};
}

static enum ctl exec_captured(struct render *r, struct nodes body, struct scope *s, struct val *ret)
{
    struct scratch *outer;
    capture_begin(r, &outer);
    enum ctl ctl = exec_body(r, body, s);
    *ret = capture_end(r, outer);
    return ctl;
}

static enum ctl exec_here(struct render *r, const struct node *n, struct scope *s)
{
    enum ctl ctl = CTL_NONE;
    struct val v;
    struct scope *inner;
    switch (n->kind) {
    case N_TEXT:
        emit(r, n->constant.s->s, n->constant.s->len);
        return CTL_NONE;
    case N_PRINT:
        for (size_t i = 0; i < n->list.n; i++) {
            v = eval(r, n->list.v[i], s);
            r->where = n;
            emit_value(r, v);
        }
        return CTL_NONE;
    case N_IF:
        while (!truthy(eval(r, n->branch.test, s))) {
            if (n->branch.orelse.n != 1 || n->branch.orelse.v[0]->kind != N_IF)
                return exec_body(r, n->branch.orelse, s);
            n = n->branch.orelse.v[0]; /* an elif */
        }
        return exec_body(r, n->branch.body, s);
    case N_FOR:
        v = eval(r, n->loop.iter, s);
        r->where = n;
        run_loop(r, n, s, v, 0, &ctl);
        return ctl;
    case N_SET:
        v = eval(r, n->set.value, s);
        assign_target(r, n->set.target, s, v);
        return CTL_NONE;
    case N_SETBLOCK:
        inner = scope_new(r, s);
        ctl = exec_captured(r, n->set.body, inner, &v);
        if (ctl != CTL_NONE)
            return ctl;
        if (n->set.value)
            v = eval_filter(r, n->set.value, inner, v);
        assign_target(r, n->set.target, s, v);
        return CTL_NONE;
    case N_MACRO:
        assign(r, s, n->macro.name, make_macro(r, n, s));
        return CTL_NONE;
    case N_CALLBLOCK:
        emit_value(r, eval_call(r, n->macro.call, s, make_macro(r, n, s)));
        return CTL_NONE;
    case N_FILTERBLOCK:
        inner = scope_new(r, s);
        ctl = exec_captured(r, n->set.body, inner, &v);
        if (ctl == CTL_NONE)
            emit_value(r, eval_filter(r, n->set.value, inner, v));
        return ctl;
    case N_WITH:
        inner = scope_new(r, s);
        for (size_t i = 0; i < n->with.targets.n; i++)
            assign_target(r, n->with.targets.v[i], inner, eval(r, n->with.values.v[i], s));
        return exec_body(r, n->with.body, inner);
    case N_SCOPE:
        return exec_body(r, n->scope.body, scope_new(r, n->scope.from_root ? r->root : s));
    case N_BREAK:
        return CTL_BREAK;
    case N_CONTINUE:
        return CTL_CONTINUE;
    default:
        assert(!"an expression where a statement belongs");
        return CTL_NONE;
    }
}

static enum ctl exec_body(struct render *r, struct nodes body, struct scope *s)
{
    enum ctl ctl = CTL_NONE;
    for (size_t i = 0; i < body.n && ctl == CTL_NONE; i++) {
        enter(r, body.v[i]);
        ctl = exec_here(r, body.v[i], s);
        leave(r);
    }
    return ctl;
}

void template_run(struct render *r)
{
    exec_body(r, r->tmpl->body, r->root);
}
