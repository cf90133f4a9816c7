/* From tokens to the tree: jinja2's grammar, with its precedences (which are not quite Python's: `~` binds
 * tighter than `+`, `**` associates to the left, and a unary minus takes its operand's postfixes first).
 */
#include "text/template_impl.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"

/* A macro or call block whose body is being parsed: jinja2 passes `caller`, `kwargs` and `varargs` only to
 * bodies that mention them. */
struct special {
    struct special *outer;
    bool caller, kwargs, varargs;
};

struct intern {
    const struct str **slot; /* open addressing; a power of two */
    size_t n, cap;
};

struct parser {
    struct parse_trap *trap;
    struct arena *arena;
    const struct token *t; /* the current token */
    struct intern names;
    struct special *special;
    int nesting;
    int loops;     /* loops around that break and continue would leave */
    int any_loops; /* loops around at all: there `loop` cannot be assigned */
    bool soft;     /* in an `if`: an unknown filter is an error only when reached, as in jinja2 */
    const struct token *unknown; /* the first unknown filter or test that was noted outside any `if` */
    struct names_seen *blocks;
};

struct names_seen {
    struct names_seen *next;
    const struct str *name;
};

#define fail_at(p, node_or_token, ...)                                                                       \
    parse_fail((p)->trap, ERR_FORMAT, (node_or_token)->line, (node_or_token)->col, __VA_ARGS__)

/* ---- tokens ---- */

static bool at_op(const struct parser *p, const char *op)
{
    return p->t->kind == T_OP && strlen(op) == p->t->len && memcmp(p->t->s, op, p->t->len) == 0;
}

static bool token_is_name(const struct token *t, const char *name)
{
    return t->kind == T_NAME && strlen(name) == t->len && memcmp(t->s, name, t->len) == 0;
}

static bool at_name(const struct parser *p, const char *name)
{
    return token_is_name(p->t, name);
}

static const struct token *take(struct parser *p)
{
    const struct token *t = p->t;
    if (t->kind != T_EOF)
        p->t++;
    return t;
}

static bool skip_op(struct parser *p, const char *op)
{
    if (!at_op(p, op))
        return false;
    take(p);
    return true;
}

static bool skip_name(struct parser *p, const char *name)
{
    if (!at_name(p, name))
        return false;
    take(p);
    return true;
}

static const char *describe(const struct token *t, char *buf, size_t cap)
{
    switch (t->kind) {
    case T_DATA:
        return "text";
    case T_VAR_BEGIN:
        return "'{{'";
    case T_VAR_END:
        return "'}}'";
    case T_BLOCK_BEGIN:
        return "'{%'";
    case T_BLOCK_END:
        return "'%}'";
    case T_STRING:
        return "a string";
    case T_INT:
    case T_FLOAT:
        return "a number";
    case T_EOF:
        return "the end of the template";
    case T_NAME:
    case T_OP:
        break;
    }
    snprintf(buf, cap, "'%.*s'", (int)MIN(t->len, 60u), t->s);
    return buf;
}

#define DESCRIBE(t) describe((t), (char[80]){0}, 80)

static void unexpected(struct parser *p, const char *wanted) __attribute__((noreturn));
static void unexpected(struct parser *p, const char *wanted)
{
    fail_at(p, p->t, "found %s where %s was expected", DESCRIBE(p->t), wanted);
}

static void expect_op(struct parser *p, const char *op)
{
    if (!skip_op(p, op)) {
        char wanted[16];
        snprintf(wanted, sizeof(wanted), "'%s'", op);
        unexpected(p, wanted);
    }
}

static void expect_name(struct parser *p, const char *name)
{
    if (!skip_name(p, name)) {
        char wanted[32];
        snprintf(wanted, sizeof(wanted), "'%s'", name);
        unexpected(p, wanted);
    }
}

/* ---- building ---- */

static void *alloc(struct parser *p, size_t size)
{
    return arena_alloc(p->arena, size);
}

static struct node *node_at(struct parser *p, enum node_kind kind, const struct token *t)
{
    struct node *n = alloc(p, sizeof(*n));
    n->kind = kind;
    n->line = t->line;
    n->col = t->col;
    return n;
}

static struct str *make_str(struct parser *p, const char *s, size_t len)
{
    struct str *ret = alloc(p, sizeof(*ret));
    ret->s = s;
    ret->len = len;
    for (size_t i = 0; i < len; i++)
        ret->n_cp += ((unsigned char)s[i] & 0xC0) != 0x80;
    return ret;
}

static size_t name_hash(const char *s, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return (size_t)(h ^ (h >> 32));
}

static const struct str **intern_slot(const struct intern *in, const char *s, size_t len)
{
    for (size_t i = name_hash(s, len);; i++) {
        const struct str **slot = &in->slot[i & (in->cap - 1)];
        if (!*slot || ((*slot)->len == len && memcmp((*slot)->s, s, len) == 0))
            return slot;
    }
}

/* One string per name, so that variables are found by comparing addresses. */
static const struct str *intern(struct parser *p, const char *s, size_t len)
{
    struct intern *in = &p->names;
    if (2 * in->n >= in->cap) {
        struct intern grown = {.cap = in->cap ? 2 * in->cap : 64, .n = in->n};
        grown.slot = alloc(p, grown.cap * sizeof(*grown.slot));
        for (size_t i = 0; i < in->cap; i++)
            if (in->slot[i])
                *intern_slot(&grown, in->slot[i]->s, in->slot[i]->len) = in->slot[i];
        *in = grown;
    }
    const struct str **slot = intern_slot(in, s, len);
    if (!*slot) {
        *slot = make_str(p, s, len);
        in->n++;
    }
    return *slot;
}

/* A list under construction: doubling in the arena. */
struct growing {
    struct nodes list;
    size_t cap;
};

static void add(struct parser *p, struct growing *g, struct node *n)
{
    if (g->list.n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 4;
        struct node **v = alloc(p, cap * sizeof(*v));
        if (g->list.n)
            memcpy(v, g->list.v, g->list.n * sizeof(*v));
        g->list.v = v;
        g->cap = cap;
    }
    g->list.v[g->list.n++] = n;
}

static void enter(struct parser *p)
{
    if (++p->nesting > MAX_NESTING)
        parse_fail(p->trap, ERR_LIMIT, p->t->line, p->t->col,
                   "statements and expressions are nested more than %d deep", MAX_NESTING);
}

static void leave(struct parser *p)
{
    p->nesting--;
}

/* ---- expressions ---- */

static struct node *parse_expression(struct parser *p);
static struct node *parse_or(struct parser *p);
static struct node *parse_unary(struct parser *p, bool with_filter);

static struct node *constant(struct parser *p, const struct token *t, struct val v)
{
    struct node *n = node_at(p, N_CONST, t);
    n->constant = v;
    return n;
}

static void note_special(struct parser *p, const struct token *t)
{
    for (struct special *s = p->special; s; s = s->outer) {
        s->caller |= token_is_name(t, "caller");
        s->kwargs |= token_is_name(t, "kwargs");
        s->varargs |= token_is_name(t, "varargs");
    }
}

static struct node *parse_string(struct parser *p)
{
    const struct token *first = take(p);
    if (p->t->kind != T_STRING)
        return constant(p, first, v_str(make_str(p, first->s, first->len)));
    size_t len = first->len;
    for (const struct token *t = p->t; t->kind == T_STRING; t++)
        len += t->len;
    char *s = alloc(p, len);
    size_t n = 0;
    for (const struct token *t = first; t->kind == T_STRING; t++) {
        memcpy(s + n, t->s, t->len);
        n += t->len;
    }
    while (p->t->kind == T_STRING)
        take(p);
    return constant(p, first, v_str(make_str(p, s, len)));
}

static bool at_tuple_end(const struct parser *p)
{
    return p->t->kind == T_VAR_END || p->t->kind == T_BLOCK_END || at_op(p, ")");
}

/* One expression, or several with commas between them, which make a tuple. */
static struct node *parse_tuple(struct parser *p, bool with_cond, bool in_parentheses)
{
    const struct token *start = p->t;
    struct growing items = {0};
    bool is_tuple = false;
    while (!at_tuple_end(p)) {
        add(p, &items, with_cond ? parse_expression(p) : parse_or(p));
        if (!at_op(p, ","))
            break;
        take(p);
        is_tuple = true;
    }
    if (!is_tuple && items.list.n)
        return items.list.v[0];
    if (!is_tuple && !in_parentheses)
        unexpected(p, "an expression");
    struct node *n = node_at(p, N_TUPLE, start);
    n->list = items.list;
    return n;
}

static struct node *parse_list(struct parser *p)
{
    struct node *n = node_at(p, N_LIST, p->t);
    struct growing items = {0};
    expect_op(p, "[");
    while (!at_op(p, "]")) {
        if (items.list.n) {
            expect_op(p, ",");
            if (at_op(p, "]"))
                break;
        }
        add(p, &items, parse_expression(p));
    }
    expect_op(p, "]");
    n->list = items.list;
    return n;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *n = node_at(p, N_DICT, p->t);
    struct growing items = {0};
    expect_op(p, "{");
    while (!at_op(p, "}")) {
        if (items.list.n) {
            expect_op(p, ",");
            if (at_op(p, "}"))
                break;
        }
        add(p, &items, parse_expression(p));
        expect_op(p, ":");
        add(p, &items, parse_expression(p));
    }
    expect_op(p, "}");
    n->list = items.list;
    return n;
}

static bool constant_name(const struct token *t, struct val *ret)
{
    if (token_is_name(t, "true") || token_is_name(t, "True"))
        *ret = v_bool(true);
    else if (token_is_name(t, "false") || token_is_name(t, "False"))
        *ret = v_bool(false);
    else if (token_is_name(t, "none") || token_is_name(t, "None"))
        *ret = v_none();
    else
        return false;
    return true;
}

static struct node *parse_primary(struct parser *p)
{
    const struct token *t = p->t;
    struct val v;
    switch (t->kind) {
    case T_NAME:
        take(p);
        if (constant_name(t, &v))
            return constant(p, t, v);
        note_special(p, t);
        struct node *n = node_at(p, N_NAME, t);
        n->name = intern(p, t->s, t->len);
        return n;
    case T_STRING:
        return parse_string(p);
    case T_INT:
        take(p);
        return constant(p, t, v_int(t->i));
    case T_FLOAT:
        take(p);
        return constant(p, t, v_float(t->f));
    default:
        break;
    }
    if (at_op(p, "[") || at_op(p, "{") || at_op(p, "(")) {
        struct node *ret;
        if (skip_op(p, "(")) {
            ret = parse_tuple(p, true, true);
            expect_op(p, ")");
        } else {
            ret = at_op(p, "[") ? parse_list(p) : parse_dict(p);
        }
        return ret;
    }
    unexpected(p, "an expression");
}

static void parse_args(struct parser *p, struct node_args *ret)
{
    struct growing pos = {0};
    size_t cap_kw = 0;
    const struct token *open = p->t;
    expect_op(p, "(");
    for (bool first = true; !at_op(p, ")"); first = false) {
        if (!first) {
            expect_op(p, ",");
            if (at_op(p, ")"))
                break;
        }
        bool bad;
        if (skip_op(p, "*")) {
            bad = ret->dyn_pos || ret->dyn_kw;
            ret->dyn_pos = parse_expression(p);
        } else if (skip_op(p, "**")) {
            bad = ret->dyn_kw;
            ret->dyn_kw = parse_expression(p);
        } else if (p->t->kind == T_NAME && p->t[1].kind == T_OP && p->t[1].len == 1 && p->t[1].s[0] == '=') {
            bad = ret->dyn_kw;
            const struct token *name = take(p);
            take(p);
            if (ret->n_kw == cap_kw) {
                size_t cap = cap_kw ? 2 * cap_kw : 4;
                struct node_kw *kw = alloc(p, cap * sizeof(*kw));
                if (cap_kw)
                    memcpy(kw, ret->kw, cap_kw * sizeof(*kw));
                ret->kw = kw;
                cap_kw = cap;
            }
            const struct str *id = intern(p, name->s, name->len);
            for (size_t i = 0; i < ret->n_kw; i++)
                if (ret->kw[i].name == id)
                    fail_at(p, name, "the argument '%.*s' is given twice", (int)MIN(id->len, 60u), id->s);
            ret->kw[ret->n_kw].name = id;
            ret->kw[ret->n_kw].value = parse_expression(p);
            ret->n_kw++;
        } else {
            bad = ret->dyn_pos || ret->dyn_kw || ret->n_kw;
            add(p, &pos, parse_expression(p));
        }
        if (bad)
            fail_at(p, open, "in a call, arguments by position come first, then by name, then *x, then **x");
    }
    expect_op(p, ")");
    ret->pos = pos.list;
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *n = node_at(p, N_CALL, p->t);
    n->call.obj = callee;
    parse_args(p, &n->call.args);
    return n;
}

static struct node *parse_subscript(struct parser *p, struct node *obj)
{
    const struct token *open = p->t;
    if (skip_op(p, ".")) {
        const struct token *t = take(p);
        if (t->kind == T_INT) {
            struct node *n = node_at(p, N_GETITEM, open);
            n->item.obj = obj;
            n->item.index = constant(p, t, v_int(t->i));
            return n;
        }
        if (t->kind != T_NAME)
            fail_at(p, t, "found %s where a name or a number was expected after '.'", DESCRIBE(t));
        struct node *n = node_at(p, N_GETATTR, open);
        n->get.obj = obj;
        n->get.attr = (struct str *)intern(p, t->s, t->len);
        return n;
    }
    expect_op(p, "[");
    struct node *part[3] = {NULL, NULL, NULL};
    struct growing items = {0};
    bool is_slice = false;
    for (int i = 0; i < 3; i++) {
        if (!at_op(p, ":") && !at_op(p, "]") && !at_op(p, ","))
            part[i] = parse_expression(p);
        if (i == 2 || !at_op(p, ":"))
            break;
        take(p);
        is_slice = true;
    }
    if (!is_slice && part[0]) {
        add(p, &items, part[0]);
        while (skip_op(p, ",")) {
            if (at_op(p, "]"))
                break;
            add(p, &items, parse_expression(p));
        }
    }
    expect_op(p, "]");
    struct node *n = node_at(p, is_slice ? N_SLICE : N_GETITEM, open);
    if (is_slice) {
        n->slice.obj = obj;
        n->slice.start = part[0];
        n->slice.stop = part[1];
        n->slice.step = part[2];
        return n;
    }
    n->item.obj = obj;
    n->item.index = part[0];
    if (items.list.n != 1) {
        n->item.index = node_at(p, N_TUPLE, open);
        n->item.index->list = items.list;
    }
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (int chained = 0;; chained++) {
        if (chained > MAX_CHAIN)
            fail_at(p, p->t, "more than %d subscripts and calls in a row", MAX_CHAIN);
        if (at_op(p, ".") || at_op(p, "["))
            n = parse_subscript(p, n);
        else if (at_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

static const struct str *dotted_name(struct parser *p)
{
    const struct token *t = take(p);
    if (t->kind != T_NAME)
        fail_at(p, t, "found %s where a filter's or a test's name was expected", DESCRIBE(t));
    if (at_op(p, "."))
        fail_at(p, t, "no filter or test has a name with a dot");
    return intern(p, t->s, t->len);
}

static void note_unknown(struct parser *p, const struct node *n, const struct token *t)
{
    if (!n->call.b && !p->soft && !p->unknown)
        p->unknown = t;
}

/* `|name(...)`, once; the bar is consumed already. */
static struct node *parse_one_filter(struct parser *p, struct node *obj)
{
    const struct token *t = p->t;
    struct node *n = node_at(p, N_FILTER, t);
    n->call.obj = obj;
    n->call.name = dotted_name(p);
    bool unsupported = false;
    n->call.b = find_filter(n->call.name->s, n->call.name->len, &unsupported);
    if (unsupported)
        parse_fail(p->trap, ERR_UNSUPPORTED, t->line, t->col, "the filter '%.*s' is not supported",
                   (int)n->call.name->len, n->call.name->s);
    note_unknown(p, n, t);
    if (at_op(p, "("))
        parse_args(p, &n->call.args);
    return n;
}

static struct node *parse_test(struct parser *p, struct node *obj)
{
    const struct token *is = take(p);
    bool negated = skip_name(p, "not");
    const struct token *t = p->t;
    struct node *n = node_at(p, N_TEST, is);
    n->call.obj = obj;
    n->call.name = dotted_name(p);
    n->call.b = find_test(n->call.name->s, n->call.name->len);
    note_unknown(p, n, t);
    const struct token *a = p->t;
    if (at_op(p, "(")) {
        parse_args(p, &n->call.args);
    } else if ((a->kind == T_NAME || a->kind == T_STRING || a->kind == T_INT || a->kind == T_FLOAT ||
                at_op(p, "[") || at_op(p, "{")) &&
               !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and")) {
        if (at_name(p, "is"))
            fail_at(p, a, "tests cannot be chained with 'is'");
        struct growing one = {0};
        add(p, &one, parse_postfix(p, parse_primary(p)));
        n->call.args.pos = one.list;
    }
    if (!negated)
        return n;
    struct node *not = node_at(p, N_NOT, is);
    not ->arg = n;
    return not ;
}

static struct node *parse_filter_expr(struct parser *p, struct node *n)
{
    for (int chained = 0;; chained++) {
        if (chained > MAX_CHAIN)
            fail_at(p, p->t, "more than %d filters and tests in a row", MAX_CHAIN);
        if (skip_op(p, "|"))
            n = parse_one_filter(p, n);
        else if (at_name(p, "is"))
            n = parse_test(p, n);
        else if (at_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    const struct token *t = p->t;
    struct node *n;
    enter(p);
    if (at_op(p, "-") || at_op(p, "+")) {
        n = node_at(p, at_op(p, "-") ? N_NEG : N_POS, t);
        take(p);
        n->arg = parse_unary(p, false);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filter_expr(p, n);
    leave(p);
    return n;
}

struct infix {
    const char *spelling;
    enum op op;
};

static struct node *binary(struct parser *p, struct node *left, const struct token *t, enum op op,
                           struct node *right)
{
    struct node *n = node_at(p, N_BINOP, t);
    n->cond.test = left;
    n->cond.yes = right;
    n->cond.op = op;
    return n;
}

/* A row of operators of one precedence makes a tree that leans left; evaluating it recurses that deep. */
static void count_chain(struct parser *p, int *chained)
{
    if (++*chained > MAX_CHAIN)
        fail_at(p, p->t, "more than %d operators in a row", MAX_CHAIN);
}

static struct node *parse_infix(struct parser *p, struct node *(*operand)(struct parser *),
                                const struct infix *ops, size_t n_ops)
{
    struct node *left = operand(p);
    for (int chained = 0;;) {
        size_t i = 0;
        while (i < n_ops && !at_op(p, ops[i].spelling))
            i++;
        if (i == n_ops)
            return left;
        count_chain(p, &chained);
        const struct token *t = take(p);
        left = binary(p, left, t, ops[i].op, operand(p));
    }
}

static struct node *parse_filtered(struct parser *p)
{
    return parse_unary(p, true);
}

static struct node *parse_pow(struct parser *p)
{
    static const struct infix ops[] = {{"**", OP_POW}};
    return parse_infix(p, parse_filtered, ops, ARRAY_LEN(ops));
}

static struct node *parse_product(struct parser *p)
{
    static const struct infix ops[] = {{"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}};
    return parse_infix(p, parse_pow, ops, ARRAY_LEN(ops));
}

static struct node *parse_concat(struct parser *p)
{
    const struct token *t = p->t;
    struct growing items = {0};
    struct node *first = parse_product(p);
    if (!at_op(p, "~"))
        return first;
    add(p, &items, first);
    while (skip_op(p, "~"))
        add(p, &items, parse_product(p));
    struct node *n = node_at(p, N_CONCAT, t);
    n->list = items.list;
    return n;
}

static struct node *parse_sum(struct parser *p)
{
    static const struct infix ops[] = {{"+", OP_ADD}, {"-", OP_SUB}};
    return parse_infix(p, parse_concat, ops, ARRAY_LEN(ops));
}

static bool take_comparison(struct parser *p, enum op *ret)
{
    static const struct infix ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT},
                                       {"<=", OP_LE}, {">", OP_GT},  {">=", OP_GE}};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++)
        if (skip_op(p, ops[i].spelling)) {
            *ret = ops[i].op;
            return true;
        }
    if (skip_name(p, "in")) {
        *ret = OP_IN;
        return true;
    }
    if (at_name(p, "not") && token_is_name(p->t + 1, "in")) {
        take(p);
        take(p);
        *ret = OP_NOTIN;
        return true;
    }
    return false;
}

static struct node *parse_compare(struct parser *p)
{
    const struct token *t = p->t;
    struct node *first = parse_sum(p);
    struct growing rest = {0};
    enum op *ops = NULL, op;
    size_t cap = 0;
    while (take_comparison(p, &op)) {
        if (rest.list.n == cap) {
            enum op *grown = alloc(p, (cap ? 2 * cap : 2) * sizeof(*grown));
            if (cap)
                memcpy(grown, ops, cap * sizeof(*ops));
            ops = grown;
            cap = cap ? 2 * cap : 2;
        }
        ops[rest.list.n] = op;
        add(p, &rest, parse_sum(p));
    }
    if (!rest.list.n)
        return first;
    struct node *n = node_at(p, N_COMPARE, t);
    n->cmp.first = first;
    n->cmp.rest = rest.list;
    n->cmp.op = ops;
    return n;
}

static struct node *parse_not(struct parser *p)
{
    const struct token *t = p->t;
    if (!skip_name(p, "not"))
        return parse_compare(p);
    enter(p);
    struct node *n = node_at(p, N_NOT, t);
    n->arg = parse_not(p);
    leave(p);
    return n;
}

static struct node *parse_logic(struct parser *p, struct node *(*operand)(struct parser *), const char *word,
                                enum node_kind kind)
{
    struct node *left = operand(p);
    for (int chained = 0; at_name(p, word);) {
        count_chain(p, &chained);
        struct node *n = node_at(p, kind, take(p));
        n->cond.test = left;
        n->cond.yes = operand(p);
        left = n;
    }
    return left;
}

static struct node *parse_and(struct parser *p)
{
    return parse_logic(p, parse_not, "and", N_AND);
}

static struct node *parse_or(struct parser *p)
{
    return parse_logic(p, parse_and, "or", N_OR);
}

/* `a if test else b`; without an else it is undefined when the test fails. Unknown filters inside are errors
 * only when reached; that holds for `a` too, so what it noted is forgotten once the `if` is seen. */
static struct node *parse_expression(struct parser *p)
{
    bool soft = p->soft;
    const struct token *start = p->t, *unknown = p->unknown;
    enter(p);
    struct node *left = parse_or(p);
    for (int chained = 0; at_name(p, "if");) {
        count_chain(p, &chained);
        p->soft = true;
        p->unknown = unknown;
        struct node *n = node_at(p, N_COND, start);
        take(p);
        n->cond.yes = left;
        n->cond.test = parse_or(p);
        if (skip_name(p, "else"))
            n->cond.no = parse_expression(p);
        left = n;
    }
    leave(p);
    p->soft = soft;
    return left;
}

/* ---- statements ---- */

static struct nodes parse_body(struct parser *p, const char *const *ends, const char *tag,
                               const struct token *opened);

static void check_assignable(struct parser *p, const struct token *t)
{
    struct val v;
    if (t->kind != T_NAME)
        fail_at(p, t, "found %s where the name of a variable was expected", DESCRIBE(t));
    if (constant_name(t, &v))
        fail_at(p, t, "'%.*s' is a constant and cannot be assigned to", (int)t->len, t->s);
}

static const struct str *parse_target_name(struct parser *p)
{
    const struct token *t = take(p);
    check_assignable(p, t);
    return intern(p, t->s, t->len);
}

static struct node *parse_target(struct parser *p, bool with_namespace);

static struct node *parse_one_target(struct parser *p, bool with_namespace)
{
    const struct token *t = p->t;
    if (skip_op(p, "(")) {
        enter(p);
        struct node *n = parse_target(p, with_namespace);
        leave(p);
        expect_op(p, ")");
        return n;
    }
    const struct str *name = parse_target_name(p);
    if (with_namespace && skip_op(p, ".")) {
        const struct token *attr = take(p);
        if (attr->kind != T_NAME)
            fail_at(p, attr, "found %s where an attribute's name was expected", DESCRIBE(attr));
        struct node *n = node_at(p, N_NSREF, t);
        n->get.owner = name;
        n->get.attr = (struct str *)intern(p, attr->s, attr->len);
        note_special(p, t);
        return n;
    }
    if (p->any_loops && str_is(name, "loop"))
        fail_at(p, t, "'loop' cannot be assigned to inside a for loop");
    struct node *n = node_at(p, N_NAME, t);
    n->name = name;
    return n;
}

static struct node *parse_target(struct parser *p, bool with_namespace)
{
    const struct token *start = p->t;
    struct growing items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.list.n && at_tuple_end(p))
            break;
        add(p, &items, parse_one_target(p, with_namespace));
        if (!skip_op(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple)
        return items.list.v[0];
    struct node *n = node_at(p, N_TUPLE, start);
    n->list = items.list;
    return n;
}

static void end_tag(struct parser *p)
{
    if (p->t->kind != T_BLOCK_END)
        unexpected(p, "'%}'");
    take(p);
}

/* The body up to `{% end %}`, which is consumed but for its `%}`. */
static struct nodes parse_until(struct parser *p, const char *end, const char *tag,
                                const struct token *opened)
{
    const char *ends[] = {end, NULL};
    struct nodes body = parse_body(p, ends, tag, opened);
    take(p);
    return body;
}

static struct node *parse_set(struct parser *p, const struct token *t)
{
    struct node *n = node_at(p, N_SET, t);
    n->set.target = parse_target(p, true);
    if (skip_op(p, "=")) {
        n->set.value = parse_tuple(p, true, false);
        return n;
    }
    n->kind = N_SETBLOCK;
    while (skip_op(p, "|"))
        n->set.value = parse_one_filter(p, n->set.value);
    n->set.body = parse_until(p, "endset", "set", t);
    return n;
}

static struct node *parse_for(struct parser *p, const struct token *t)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    bool soft = p->soft;
    struct node *n = node_at(p, N_FOR, t);
    p->any_loops++;
    n->loop.target = parse_target(p, false);
    expect_name(p, "in");
    n->loop.iter = parse_tuple(p, false, false);
    p->soft = false;
    if (skip_name(p, "if"))
        n->loop.test = parse_expression(p);
    n->loop.recursive = skip_name(p, "recursive");
    p->loops++;
    n->loop.body = parse_body(p, ends, "for", t);
    p->loops--;
    if (token_is_name(take(p), "else"))
        n->loop.orelse = parse_until(p, "endfor", "for", t);
    p->any_loops--;
    p->soft = soft;
    return n;
}

static struct node *parse_if(struct parser *p, const struct token *t)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    bool soft = p->soft;
    struct node *first = node_at(p, N_IF, t), *n = first;
    p->soft = true;
    for (int chained = 0;;) {
        n->branch.test = parse_tuple(p, false, false);
        n->branch.body = parse_body(p, ends, "if", t);
        const struct token *end = take(p);
        if (token_is_name(end, "elif")) {
            count_chain(p, &chained);
            struct growing one = {0};
            struct node *next = node_at(p, N_IF, end);
            add(p, &one, next);
            n->branch.orelse = one.list;
            n = next;
            continue;
        }
        if (token_is_name(end, "else"))
            n->branch.orelse = parse_until(p, "endif", "if", t);
        break;
    }
    p->soft = soft;
    return first;
}

/* The body of something that runs on its own: break and continue do not reach out of it. */
static struct nodes parse_apart(struct parser *p, const char *end, const char *tag, const struct token *t)
{
    int loops = p->loops;
    p->loops = 0;
    struct nodes body = parse_until(p, end, tag, t);
    p->loops = loops;
    return body;
}

static void parse_signature(struct parser *p, struct node *n)
{
    struct growing fallback = {0}, names = {0};
    expect_op(p, "(");
    bool optional = false;
    while (!at_op(p, ")")) {
        if (names.list.n)
            expect_op(p, ",");
        const struct token *t = p->t;
        struct node *name = node_at(p, N_NAME, t);
        name->name = parse_target_name(p);
        for (size_t i = 0; i < names.list.n; i++)
            if (names.list.v[i]->name == name->name)
                fail_at(p, t, "the parameter '%.*s' appears twice", (int)MIN(t->len, 60u), t->s);
        add(p, &names, name);
        if (skip_op(p, "=")) {
            optional = true;
            add(p, &fallback, parse_expression(p));
        } else if (optional) {
            fail_at(p, t, "a parameter without a default follows one that has a default");
        } else {
            add(p, &fallback, NULL);
        }
    }
    expect_op(p, ")");
    n->macro.n_param = names.list.n;
    n->macro.param = alloc(p, (names.list.n + 1) * sizeof(*n->macro.param));
    for (size_t i = 0; i < names.list.n; i++)
        n->macro.param[i] = names.list.v[i]->name;
    n->macro.fallback = fallback.list.v;
}

static void parse_macro_body(struct parser *p, struct node *n, const char *end, const char *tag,
                             const struct token *t)
{
    struct special special = {.outer = p->special};
    bool soft = p->soft;
    p->soft = false;
    p->special = &special;
    n->macro.body = parse_apart(p, end, tag, t);
    p->special = special.outer;
    p->soft = soft;
    n->macro.uses_caller = special.caller;
    n->macro.uses_kwargs = special.kwargs;
    n->macro.uses_varargs = special.varargs;
    for (size_t i = 0; i < n->macro.n_param; i++) {
        const struct str *name = n->macro.param[i];
        if (str_is(name, "kwargs"))
            n->macro.uses_kwargs = false;
        if (str_is(name, "varargs"))
            n->macro.uses_varargs = false;
        if (str_is(name, "caller") && special.caller && !n->macro.fallback[i])
            fail_at(p, n, "a parameter named 'caller' needs a default");
    }
}

static struct node *parse_macro(struct parser *p, const struct token *t)
{
    struct node *n = node_at(p, N_MACRO, t);
    const struct token *name = p->t;
    n->macro.name = parse_target_name(p);
    if (p->any_loops && str_is(n->macro.name, "loop"))
        fail_at(p, name, "'loop' cannot be assigned to inside a for loop");
    parse_signature(p, n);
    parse_macro_body(p, n, "endmacro", "macro", t);
    return n;
}

static struct node *parse_call_block(struct parser *p, const struct token *t)
{
    struct node *n = node_at(p, N_CALLBLOCK, t);
    if (at_op(p, "("))
        parse_signature(p, n);
    const struct token *callee = p->t;
    n->macro.call = parse_expression(p);
    if (n->macro.call->kind != N_CALL)
        fail_at(p, callee, "a call block needs a call, such as {%% call f() %%}");
    parse_macro_body(p, n, "endcall", "call", t);
    return n;
}

static struct node *parse_filter_block(struct parser *p, const struct token *t)
{
    struct node *n = node_at(p, N_FILTERBLOCK, t);
    bool soft = p->soft;
    p->soft = false;
    do
        n->set.value = parse_one_filter(p, n->set.value);
    while (skip_op(p, "|"));
    n->set.body = parse_until(p, "endfilter", "filter", t);
    p->soft = soft;
    return n;
}

static struct node *parse_with(struct parser *p, const struct token *t)
{
    struct node *n = node_at(p, N_WITH, t);
    struct growing targets = {0}, values = {0};
    while (p->t->kind != T_BLOCK_END) {
        if (targets.list.n)
            expect_op(p, ",");
        add(p, &targets, parse_target(p, false));
        expect_op(p, "=");
        add(p, &values, parse_expression(p));
    }
    n->with.targets = targets.list;
    n->with.values = values.list;
    bool soft = p->soft;
    p->soft = false;
    n->with.body = parse_until(p, "endwith", "with", t);
    p->soft = soft;
    return n;
}

static struct node *parse_print(struct parser *p, const struct token *t)
{
    struct node *n = node_at(p, N_PRINT, t);
    struct growing items = {0};
    while (p->t->kind != T_BLOCK_END) {
        if (items.list.n)
            expect_op(p, ",");
        add(p, &items, parse_expression(p));
    }
    n->list = items.list;
    return n;
}

static struct node *parse_autoescape(struct parser *p, const struct token *t)
{
    struct node *n = node_at(p, N_SCOPE, t), *on = parse_expression(p);
    if (on->kind != N_CONST || truthy(on->constant))
        parse_fail(p->trap, ERR_UNSUPPORTED, t->line, t->col,
                   "autoescape is not supported (except {%% autoescape false %%})");
    n->scope.body = parse_until(p, "endautoescape", "autoescape", t);
    return n;
}

/* Without inheritance a block is printed where it stands. */
static struct node *parse_block(struct parser *p, const struct token *t)
{
    struct node *n = node_at(p, N_SCOPE, t);
    const struct token *name = p->t;
    const struct str *id = parse_target_name(p);
    for (struct names_seen *b = p->blocks; b; b = b->next)
        if (b->name == id)
            fail_at(p, name, "the block '%.*s' is defined twice", (int)MIN(id->len, 60u), id->s);
    struct names_seen *seen = alloc(p, sizeof(*seen));
    seen->name = id;
    seen->next = p->blocks;
    p->blocks = seen;
    n->scope.from_root = !skip_name(p, "scoped");
    if (at_name(p, "required"))
        parse_fail(p->trap, ERR_UNSUPPORTED, p->t->line, p->t->col, "required blocks are not supported");
    n->scope.body = parse_apart(p, "endblock", "block", t);
    if (p->t->kind == T_NAME && intern(p, p->t->s, p->t->len) == id)
        take(p);
    return n;
}

static struct node *parse_jump(struct parser *p, const struct token *t, enum node_kind kind)
{
    if (!p->loops)
        fail_at(p, t, "'%.*s' is not inside a for loop", (int)t->len, t->s);
    return node_at(p, kind, t);
}

static struct node *parse_statement(struct parser *p, const char *const *ends, const char *tag,
                                    const struct token *opened)
{
    static const char *const unsupported[] = {"include", "import", "from", "extends"};
    const struct token *t = take(p);
    if (t->kind != T_NAME)
        fail_at(p, t, "found %s where the name of a statement was expected", DESCRIBE(t));
    if (token_is_name(t, "if"))
        return parse_if(p, t);
    if (token_is_name(t, "for"))
        return parse_for(p, t);
    if (token_is_name(t, "set"))
        return parse_set(p, t);
    if (token_is_name(t, "macro"))
        return parse_macro(p, t);
    if (token_is_name(t, "call"))
        return parse_call_block(p, t);
    if (token_is_name(t, "filter"))
        return parse_filter_block(p, t);
    if (token_is_name(t, "with"))
        return parse_with(p, t);
    if (token_is_name(t, "print"))
        return parse_print(p, t);
    if (token_is_name(t, "break"))
        return parse_jump(p, t, N_BREAK);
    if (token_is_name(t, "continue"))
        return parse_jump(p, t, N_CONTINUE);
    if (token_is_name(t, "autoescape"))
        return parse_autoescape(p, t);
    if (token_is_name(t, "block"))
        return parse_block(p, t);
    if (token_is_name(t, "generation")) {
        struct node *n = node_at(p, N_SCOPE, t);
        n->scope.body = parse_apart(p, "endgeneration", "generation", t);
        return n;
    }
    for (size_t i = 0; i < ARRAY_LEN(unsupported); i++)
        if (token_is_name(t, unsupported[i]))
            parse_fail(p->trap, ERR_UNSUPPORTED, t->line, t->col,
                       "'%s' is not supported: a chat template sees nothing but its variables",
                       unsupported[i]);
    if (!ends)
        fail_at(p, t, "unknown statement %s", DESCRIBE(t));
    fail_at(p, t, "unknown or misplaced statement %s; '%s' of line %u is waiting for '%s'", DESCRIBE(t), tag,
            opened->line, ends[0]);
}

static void check_unknown(struct parser *p)
{
    const struct token *t = p->unknown;
    if (t)
        fail_at(p, t, "there is no filter or test named '%.*s'", (int)MIN(t->len, 60u), t->s);
}

static struct nodes parse_statements(struct parser *p, const char *const *ends, const char *tag,
                                     const struct token *opened)
{
    struct growing body = {0};
    for (;;) {
        const struct token *t = p->t;
        struct node *n;
        check_unknown(p);
        switch (t->kind) {
        case T_EOF:
            if (ends)
                fail_at(p, t, "the template ends, but '%s' of line %u is waiting for '%s'", tag, opened->line,
                        ends[0]);
            return body.list;
        case T_DATA:
            n = node_at(p, N_TEXT, take(p));
            n->constant = v_str(make_str(p, t->s, t->len));
            add(p, &body, n);
            break;
        case T_VAR_BEGIN: {
            struct growing one = {0};
            n = node_at(p, N_PRINT, take(p));
            add(p, &one, parse_tuple(p, true, false));
            n->list = one.list;
            if (p->t->kind != T_VAR_END)
                unexpected(p, "'}}'");
            take(p);
            add(p, &body, n);
            break;
        }
        default: /* T_BLOCK_BEGIN: the lexer makes nothing else outside tags */
            take(p);
            for (size_t i = 0; ends && ends[i]; i++)
                if (at_name(p, ends[i]))
                    return body.list;
            add(p, &body, parse_statement(p, ends, tag, opened));
            end_tag(p);
        }
    }
}

/* A statement's body, up to one of `ends`, which is then the current token. */
static struct nodes parse_body(struct parser *p, const char *const *ends, const char *tag,
                               const struct token *opened)
{
    skip_op(p, ":"); /* as Python would have it */
    end_tag(p);
    enter(p);
    struct nodes body = parse_statements(p, ends, tag, opened);
    leave(p);
    return body;
}

void template_parse_tokens(struct parse_trap *trap, struct template *tmpl, const struct token *tokens)
{
    struct parser p = {.trap = trap, .arena = tmpl->arena, .t = tokens};
    tmpl->names.loop = intern(&p, "loop", 4);
    tmpl->names.caller = intern(&p, "caller", 6);
    tmpl->names.kwargs = intern(&p, "kwargs", 6);
    tmpl->names.varargs = intern(&p, "varargs", 7);
    tmpl->body = parse_statements(&p, NULL, NULL, NULL);
}
