/* template_impl.h: what the files of the template interpreter share. Nobody else includes it.
 *
 *     template_lex.c       source -> tokens (whitespace control happens here, as in jinja2)
 *     template_parse.c     tokens -> tree
 *     template_value.c     Python's values: printing, equality, order, hashing, iteration
 *     template_str.c       Python's str methods and formatting, on code points
 *     template_builtins.c  filters, tests, functions, methods of lists and dicts, tojson
 *     template_eval.c      the tree walker: scopes, loops, macros, operators
 *
 * Two lifetimes. The tree and its constants live in the template's arena, are never written after
 * template_parse() and so may be read by many threads. Everything a rendering makes lives in that rendering's
 * arena and dies with it; strings of `vars` are borrowed, not copied.
 *
 * Errors inside a rendering (and inside the parser) do not travel through return values: tmpl_raise() fills
 * the err and longjmps to the one setjmp in template_render() (template_parse()). This is safe because no
 * function here owns anything outside the arena, except growing buffers, which are registered in
 * render->scratch before use. It keeps the evaluator's functions of the shape `value f(values)`.
 *
 * Every loop whose length a template can choose calls charge() or allocates through ralloc(), so steps and
 * memory are bounded whatever the template does. Recursion is bounded by render->depth (calls of eval and
 * exec), by MAX_NESTING while parsing, and by MAX_VALUE_DEPTH while walking values.
 */
#ifndef YOKE_TEXT_TEMPLATE_IMPL_H
#define YOKE_TEXT_TEMPLATE_IMPL_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "text/template.h"

#define MAX_NESTING     200 /* of statements and expressions in the source */
#define MAX_CHAIN       250 /* operators, subscripts or filters in a row */
#define MAX_EVAL_DEPTH  2000
#define MAX_CALL_DEPTH  150 /* macros in macros */
#define MAX_VALUE_DEPTH 200 /* lists in lists, when printed or compared */
#define MAX_RANGE       100000
#define MAX_SOURCE      (16u << 20)

struct render;
struct node;
struct scope;

/* ---- values ---- */

enum vtype {
    V_UNDEF,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_VIEW, /* what dict.keys(), .values(), .items() return */
    V_RANGE,
    V_ITER, /* a generator: lazily made, consumed once */
    V_NS,
    V_FUNC, /* a builtin function, or a method bound to its object */
    V_MACRO,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
    V_MISSING /* an argument not given; never seen by a template */
};

/* Immutable. Appending to a string that ends where its strbuf ends writes behind it in place, so text that is
 * built by `a = a ~ b` costs linear, not quadratic, time and memory. */
struct strbuf {
    char *data;
    size_t used, cap;
};
struct str {
    const char *s; /* valid UTF-8, not terminated */
    size_t len;
    size_t n_cp; /* code points; SIZE_MAX: not counted yet (never so in a template's constants) */
    struct strbuf *buf;
    bool markup; /* jinja2's Markup: `+` escapes the other side */
};

struct val {
    enum vtype t;
    union {
        bool b;
        int64_t i;
        double f;
        struct str *s;
        struct list *l; /* V_LIST, V_TUPLE */
        struct dict *d; /* V_DICT, V_NS (its attributes; identity is the pointer) */
        struct view *view;
        struct range *range;
        struct iter *it;
        struct func *fn;
        struct macro *macro;
        struct loop *loop;
        struct cycler *cycler;
        struct joiner *joiner;
        const struct undef *u;
    };
};

struct vecbuf {
    size_t used, cap;
};
struct list {
    struct val *v;
    size_t n;
    struct vecbuf *buf; /* as strbuf: spare room behind v that `list + [x]` may take */
    bool group;         /* a (grouper, list) pair of the groupby filter, which has these two as attributes */
};

struct entry {
    struct val key, value;
    uint64_t hash;
};
struct dict {
    struct entry *e; /* in insertion order */
    size_t n, cap;
    uint32_t *index; /* open addressing over e, 1-based; NULL while small */
    size_t n_index;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    enum view_kind kind;
    struct dict *d;
};

struct range {
    int64_t start, stop, step;
    size_t n;
};

/* next: 1 and *ret, or 0 at the end. */
struct iter {
    int (*next)(struct render *r, struct iter *it, struct val *ret);
    struct val over; /* what it walks, for the plain walks */
    size_t pos;
    struct iter *src; /* the iterator below, for map, select, ... */
    void *state;
};

/* Why a value is undefined: exactly one of hint, (has_obj, obj, name), name. */
struct undef {
    const char *hint;
    struct val obj, name;
    bool has_obj;
};

struct args {
    struct val *v; /* after binding: one per parameter, V_MISSING where not given */
    size_t n;
    struct kwarg *kw;
    size_t n_kw;
};
struct kwarg {
    const struct str *name;
    struct val v;
};

/* params: names separated by blanks; those after `|` may be left out; a leading `/` means by position only; a
 * final `*` takes any further positional and keyword arguments. */
struct builtin {
    const char *name;
    const char *params;
    struct val (*fn)(struct render *r, struct val self, const struct args *a);
};
struct func {
    const struct builtin *b;
    struct val self;
};

struct macro {
    const struct node *node; /* N_MACRO or N_CALLBLOCK */
    struct scope *scope;     /* where it was defined */
    const struct str *name;  /* NULL: a caller */
};

struct loop {
    const struct node *node;
    struct scope *outer;
    struct val iterable;
    struct iter *it;
    int64_t index0;
    int64_t length; /* -1: not known yet */
    int depth0;
    bool has_after;
    struct val after, before, current;
    struct list *changed; /* NULL: loop.changed not called yet */
};

struct cycler {
    struct list *items;
    size_t pos;
};
struct joiner {
    struct val sep;
    bool used;
};

/* ---- tree ---- */

enum node_kind {
    N_CONST,
    N_NAME,
    N_NSREF, /* target only */
    N_LIST,
    N_TUPLE,
    N_DICT,
    N_GETATTR,
    N_GETITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_COND,
    N_AND,
    N_OR,
    N_NOT,
    N_NEG,
    N_POS,
    N_COMPARE,
    N_BINOP,
    N_CONCAT,
    N_TEXT,
    N_PRINT,
    N_IF,
    N_FOR,
    N_SET,
    N_SETBLOCK,
    N_MACRO,
    N_CALLBLOCK,
    N_FILTERBLOCK,
    N_WITH,
    N_SCOPE,
    N_BREAK,
    N_CONTINUE
};

struct nodes {
    struct node **v;
    size_t n;
};

struct node_kw {
    const struct str *name;
    struct node *value;
};
struct node_args {
    struct nodes pos;
    struct node_kw *kw;
    size_t n_kw;
    struct node *dyn_pos, *dyn_kw; /* *x, **x; NULL: none */
};

enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOTIN
};

struct node {
    enum node_kind kind;
    uint32_t line, col;
    union {
        struct val constant;         /* N_CONST, N_TEXT (a string) */
        const struct str *name;      /* N_NAME (interned: compared by address) */
        struct nodes list;           /* N_LIST, N_TUPLE, N_CONCAT, N_PRINT; N_DICT: key, value, key, ... */
        struct node *arg;            /* N_NOT, N_NEG, N_POS */
        struct {                     /* N_NSREF, N_GETATTR */
            struct node *obj;        /* N_NSREF: NULL */
            const struct str *owner; /* N_NSREF */
            struct str *attr;
        } get;
        struct {
            struct node *obj, *index;
        } item;
        struct {
            struct node *obj, *start, *stop, *step; /* NULL: left out */
        } slice;
        struct {                     /* N_CALL, N_FILTER, N_TEST */
            struct node *obj;        /* N_FILTER of a block: NULL */
            const struct builtin *b; /* filter or test; NULL: unknown, an error when it is reached */
            const struct str *name;
            struct node_args args;
        } call;
        struct { /* N_COND, N_AND, N_OR (test, yes), N_BINOP (test op yes) */
            struct node *test, *yes, *no;
            enum op op;
        } cond;
        struct { /* N_COMPARE: first, then (op, rest) */
            struct node *first;
            struct nodes rest;
            enum op *op;
        } cmp;
        struct { /* N_IF */
            struct node *test;
            struct nodes body, orelse;
        } branch;
        struct { /* N_FOR */
            struct node *target, *iter, *test;
            struct nodes body, orelse;
            bool recursive;
        } loop;
        struct { /* N_SET, N_SETBLOCK (value: its filter or NULL), N_FILTERBLOCK (value: the filter) */
            struct node *target, *value;
            struct nodes body;
        } set;
        struct { /* N_MACRO, N_CALLBLOCK */
            const struct str *name;
            const struct str **param;
            size_t n_param;
            struct node **fallback; /* one per parameter, NULL: none */
            struct nodes body;
            struct node *call; /* N_CALLBLOCK */
            bool uses_caller, uses_kwargs, uses_varargs;
        } macro;
        struct { /* N_WITH */
            struct nodes targets, values, body;
        } with;
        struct { /* N_SCOPE: {% generation %}, {% autoescape false %}, {% block %} */
            struct nodes body;
            bool from_root; /* sees the template's own variables only, as jinja2's blocks do */
        } scope;
    };
};

struct template
{
    struct arena *arena;
    struct nodes body;
    struct {
        const struct str *loop, *caller, *kwargs, *varargs; /* interned, as all names are */
    } names;
};

/* ---- lexer ---- */

enum token_kind {
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP, /* the operator's spelling is its text */
    T_EOF
};
struct token {
    enum token_kind kind;
    uint32_t line, col;
    const char *s; /* T_DATA, T_NAME, T_OP, and T_STRING (unescaped) */
    size_t len;
    int64_t i;
    double f;
};

/* A place that an error inside the lexer or the parser leaves through. */
struct parse_trap {
    jmp_buf jump;
    struct err *e;
    int code;
};
void parse_fail(struct parse_trap *t, int code, uint32_t line, uint32_t col, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 5, 6)));

/* Tokens (ended by T_EOF) and their text live in a; source must be valid UTF-8 and outlive nothing. */
struct token *template_lex(struct parse_trap *t, struct arena *a, const char *source, size_t n);

/* Fills tmpl->body; everything lives in tmpl->arena. */
void template_parse_tokens(struct parse_trap *t, struct template *tmpl, const struct token *tokens);

/* ---- a rendering ---- */

struct binding {
    const struct str *name;
    struct val v;
};
struct scope {
    struct scope *parent;
    bool kept; /* by a macro or a recursive loop: not to be used again for a loop's next turn */
    struct binding *b;
    size_t n, cap;
};

/* A buffer that grows while a string is made; on a stack, so that a longjmp frees it. */
struct scratch {
    struct buf b;
    struct scratch *below;
};

struct render {
    const struct template *tmpl;
    struct arena *arena;
    jmp_buf jump;
    struct err *e;
    int code;
    const struct node *where; /* the node being evaluated, for messages */
    size_t steps, max_steps;
    size_t memory, max_memory; /* bytes of the arena and of scratch buffers */
    size_t max_output;
    int depth, call_depth;
    struct scratch *scratch;
    struct scratch *capture; /* where output goes now; NULL: to out */
    struct buf *out;
    size_t out_start;
    struct scope *root;
    struct dict *vars;
    long long now;
};

void tmpl_raise(struct render *r, int code, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
/* raise_exception's: the message alone is the error's sentence. */
void tmpl_raise_message(struct render *r, const struct str *message) __attribute__((noreturn));
/* The error of a template that does what Python would refuse. */
#define type_error(r, ...) tmpl_raise((r), ERR_FAIL, __VA_ARGS__)
void undef_error(struct render *r, struct val undefined) __attribute__((noreturn));

void charge(struct render *r, size_t work); /* counts steps; long strings cost one step for each 64 bytes */
void enter_depth(struct render *r);         /* counts a level of recursion; leave by r->depth-- */
static inline size_t text_work(size_t bytes)
{
    return bytes / 64 + 1;
}
void *ralloc(struct render *r, size_t size);
void *ralloc_n(struct render *r, size_t n, size_t size);

/* The string builder. LIFO: every scratch_begin is closed by scratch_end or scratch_drop. */
struct scratch *scratch_begin(struct render *r);
void scratch_add(struct render *r, struct scratch *s, const char *p, size_t n);
void scratch_adds(struct render *r, struct scratch *s, const char *text);
void scratch_add_cp(struct render *r, struct scratch *s, unsigned cp);
void scratch_pad(struct render *r, struct scratch *s, char c, size_t n);
struct val scratch_end(struct render *r, struct scratch *s); /* a V_STR */
void scratch_drop(struct render *r, struct scratch *s);

/* ---- values: template_value.c ---- */

static inline struct val v_none(void)
{
    return (struct val){.t = V_NONE};
}
static inline struct val v_missing(void)
{
    return (struct val){.t = V_MISSING};
}
static inline struct val v_bool(bool b)
{
    return (struct val){.t = V_BOOL, .b = b};
}
static inline struct val v_int(int64_t i)
{
    return (struct val){.t = V_INT, .i = i};
}
static inline struct val v_float(double f)
{
    return (struct val){.t = V_FLOAT, .f = f};
}
static inline struct val v_str(struct str *s)
{
    return (struct val){.t = V_STR, .s = s};
}
static inline struct val v_list(struct list *l)
{
    return (struct val){.t = V_LIST, .l = l};
}
static inline struct val v_tuple(struct list *l)
{
    return (struct val){.t = V_TUPLE, .l = l};
}
static inline struct val v_dict(struct dict *d)
{
    return (struct val){.t = V_DICT, .d = d};
}
static inline bool is_num(struct val v)
{
    return v.t == V_BOOL || v.t == V_INT || v.t == V_FLOAT;
}
static inline bool is_integral(struct val v)
{
    return v.t == V_BOOL || v.t == V_INT;
}
static inline int64_t as_int(struct val v)
{
    return v.t == V_BOOL ? v.b : v.i;
}
int64_t must_be_int(struct render *r, struct val v); /* or the error that Python raises */
static inline double as_double(struct val v)
{
    return v.t == V_FLOAT ? v.f : (double)as_int(v);
}

const char *type_name(struct val v); /* as Python calls it */

struct val str_borrow(struct render *r, const char *s, size_t len); /* s lives as long as the rendering */
struct val str_copy(struct render *r, const char *s, size_t len);
struct val str_lit(struct render *r, const char *s);
struct val str_concat(struct render *r, struct str *a, struct str *b);
size_t str_cp(const struct str *s); /* code points, counted */
/* The byte offset of code point i (i <= the count). */
size_t str_offset(const struct str *s, size_t i);
bool str_is(const struct str *s, const char *lit);

struct val undef_name(struct render *r, const struct str *name);
struct val undef_attr(struct render *r, struct val obj, struct val name);
struct val undef_hint(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

struct list *list_new(struct render *r, size_t cap);
void list_push(struct render *r, struct list *l, struct val v); /* only while its maker builds it */
struct list *list_concat(struct render *r, struct list *a, struct list *b);
struct val pair(struct render *r, struct val a, struct val b);

struct dict *dict_new(struct render *r, size_t cap);
struct val *dict_find(struct render *r, const struct dict *d, struct val key); /* NULL: not there */
struct val *dict_find_s(const struct dict *d, const char *key, size_t len);
void dict_set(struct render *r, struct dict *d, struct val key, struct val value);
bool hashable(struct val v);

bool truthy(struct val v);
bool equal(struct render *r, struct val a, struct val b);
int compare(struct render *r, struct val a, struct val b, const char *op); /* raises if Python would */
bool contains(struct render *r, struct val container, struct val item);
bool same(struct val a, struct val b); /* Python's `is` */

/* len(): -1 if it has none. */
int64_t length_of(struct val v);
bool iterable(struct val v);
struct iter *iterate(struct render *r, struct val v); /* raises if it cannot be */
int iter_next(struct render *r, struct iter *it, struct val *ret);
struct iter *iter_new(struct render *r, int (*next)(struct render *, struct iter *, struct val *),
                      struct iter *src, void *state);
struct list *to_list(struct render *r, struct val v); /* a fresh list, or v's own when it is one */
struct val range_at(const struct range *g, size_t i);

void print_str(struct render *r, struct scratch *s, struct val v);  /* str(v) */
void print_repr(struct render *r, struct scratch *s, struct val v); /* repr(v) */
struct val to_str(struct render *r, struct val v);                  /* str(v); v itself when a string */
void print_float(struct render *r, struct scratch *s, double f);
struct val val_from_json(struct render *r, const json_t *j);

/* Sorts stably, by keys[i] (n of them); raises if two keys have no order. */
void sort_by(struct render *r, struct val *items, struct val *keys, size_t n, bool reverse);

/* ---- strings: template_str.c ---- */

bool cp_is_space(unsigned cp); /* Python's str.isspace and re's \s */
bool cp_is_word(unsigned cp);  /* re's \w, and what may continue a name */
bool cp_is_alnum(unsigned cp);
bool cp_is_name_start(unsigned cp);
bool cp_is_name(unsigned cp);
bool cp_is_printable(unsigned cp);
/* Decodes one code point of valid UTF-8; *n: its bytes. */
unsigned utf8_at(const char *s, const char *end, size_t *n);
size_t utf8_encode(char *out, unsigned cp); /* at most 4 bytes; cp is a character */
bool utf8_check(const char *s, size_t len, size_t *bad_at);

const struct builtin *str_method(const struct str *name); /* NULL: none */
struct val str_slice(struct render *r, struct str *s, size_t from_cp, size_t to_cp);
struct val str_upper(struct render *r, struct str *s);
struct val str_lower(struct render *r, struct str *s);
struct val str_capitalize(struct render *r, struct str *s);
struct val str_title_words(struct render *r, struct str *s); /* the title filter */
struct val str_strip(struct render *r, struct str *s, const struct str *chars, bool left, bool right);
struct val str_replace(struct render *r, struct str *s, struct str *from, struct str *to, int64_t count);
struct list *str_splitlines(struct render *r, struct str *s, bool keep_ends);
struct val str_percent(struct render *r, struct str *format, struct val args);
struct val str_escape(struct render *r, struct str *s); /* HTML, marked as markup */
bool str_to_int(struct str *s, int base, int64_t *ret, bool *too_big);
bool str_to_float(struct str *s, double *ret);
bool str_is_cased(struct str *s, bool upper);
/* str.find: the code point index at which needle starts within [from, to), or -1. */
const char *find_bytes(const char *s, size_t n, const char *needle, size_t m);

/* ---- builtins: template_builtins.c ---- */

const struct builtin *find_filter(const char *name, size_t len, bool *known_unsupported);
const struct builtin *find_test(const char *name, size_t len);
const struct builtin *find_global(const char *name, size_t len);
const struct builtin *find_method(struct val obj, const struct str *name);
bool method_is_forbidden(struct val obj, const struct str *name); /* would change a list or a dict */
void check_namespace_name(struct render *r, struct val name);
struct val call_builtin(struct render *r, const struct builtin *b, struct val self, const struct args *a);

/* ---- evaluation: template_eval.c ---- */

void template_run(struct render *r);
struct val get_attr(struct render *r, struct val obj, struct str *name);
struct val get_item(struct render *r, struct val obj, struct val key);
struct val slice_value(struct render *r, struct val obj, struct val start, struct val stop, struct val step);
struct val arith(struct render *r, enum op op, struct val a, struct val b);
int loop_peek(struct render *r, struct loop *l, struct val *ret);
int64_t loop_length(struct render *r, struct loop *l);

#endif
