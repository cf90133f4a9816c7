#include "cli/yaml.h"

#include <libfyaml.h>
#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "cli/input.h"

/* One open mapping or sequence. */
struct frame {
    struct yaml_node *node;
    struct yaml_node *key; /* map: the key whose value comes next */
    size_t cap;
    const char *anchor;
    bool key_is_merge;
    bool merged; /* a merge key has been here */
};

struct anchor {
    const char *name;
    struct yaml_node *node; /* NULL while the anchored node is still open */
};

struct reader {
    struct arena *a;
    const char *where;
    struct err *e;
    struct frame frame[YAML_MAX_DEPTH];
    int depth;
    size_t nodes;
    struct anchor *anchor;
    size_t n_anchors, cap_anchors;
    struct yaml_node *root;
};

static int fail_at(struct reader *r, int line, int column, const char *what)
{
    return err_set(r->e, ERR_USAGE, "%s:%d:%d: %s", r->where, line, column, what);
}

static int count(struct reader *r, size_t nodes, int line, int column)
{
    if (nodes > YAML_MAX_NODES - r->nodes)
        return err_set(r->e, ERR_USAGE, "%s:%d:%d: more than %d values, every alias counted in full",
                       r->where, line, column, YAML_MAX_NODES);
    r->nodes += nodes;
    return 0;
}

static struct yaml_node *new_node(struct arena *a, enum yaml_kind kind, const char *where, int line,
                                  int column)
{
    struct yaml_node *n = arena_alloc(a, sizeof(*n));
    n->kind = kind;
    n->where = where;
    n->line = line;
    n->column = column;
    n->weight = 1;
    n->height = kind == YAML_SCALAR ? 0 : 1;
    return n;
}

/* Arrays grow by doubling inside the arena: what is left behind is at most as large as what stays. */
static void append(struct arena *a, struct yaml_node *to, size_t *cap, struct yaml_node *key,
                   struct yaml_node *value)
{
    if (to->n == *cap) {
        size_t n = *cap ? 2 * *cap : 8;
        struct yaml_node **k = arena_alloc(a, n * sizeof(struct yaml_node *));
        struct yaml_node **v = arena_alloc(a, n * sizeof(struct yaml_node *));
        if (to->n) {
            memcpy(k, to->key, to->n * sizeof(struct yaml_node *));
            memcpy(v, to->value, to->n * sizeof(struct yaml_node *));
        }
        to->key = k;
        to->value = v;
        *cap = n;
    }
    to->key[to->n] = key;
    to->value[to->n] = value;
    to->n++;
    to->weight += value->weight + (key ? 1 : 0);
    to->height = MAX(to->height, value->height + 1);
}

static struct yaml_node *find_key(const struct yaml_node *map, const char *key)
{
    for (size_t i = 0; i < map->n; i++)
        if (!strcmp(map->key[i]->text, key))
            return map->key[i];
    return NULL;
}

/* `<<: *base` or `<<: [*a, *b]`: the keys of the others that this mapping does not have itself. They are put
 * in at the end of the mapping, so that its own keys win wherever the merge key stands. */
static int merge_into(struct reader *r, struct frame *f, struct yaml_node *from)
{
    if (from->kind != YAML_MAP)
        return fail_at(r, from->line, from->column,
                       "the value of a merge key (<<) must be a mapping or a list of mappings");
    for (size_t i = 0; i < from->n; i++)
        if (!find_key(f->node, from->key[i]->text)) {
            int err = count(r, 1 + from->value[i]->weight, f->node->line, f->node->column);
            if (err)
                return err;
            append(r->a, f->node, &f->cap, from->key[i], from->value[i]);
        }
    return 0;
}

static int finish_map(struct reader *r, struct frame *f)
{
    if (!f->merged)
        return 0;
    struct yaml_node *m = f->node, *from = NULL;
    size_t kept = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (!strcmp(m->key[i]->text, "<<") && !m->key[i]->quoted) {
            from = m->value[i];
            continue;
        }
        m->key[kept] = m->key[i];
        m->value[kept++] = m->value[i];
    }
    m->n = kept;
    if (from->kind != YAML_SEQ)
        return merge_into(r, f, from);
    for (size_t i = 0; i < from->n; i++) {
        int err = merge_into(r, f, from->value[i]);
        if (err)
            return err;
    }
    return 0;
}

/* A complete value (or key) goes to where the reader stands. */
static int place(struct reader *r, struct yaml_node *n, int line, int column)
{
    if (!r->depth) {
        r->root = n;
        return 0;
    }
    struct frame *f = &r->frame[r->depth - 1];
    if (n->height + r->depth > YAML_MAX_DEPTH)
        return err_set(r->e, ERR_USAGE, "%s:%d:%d: nested deeper than %d levels", r->where, line, column,
                       YAML_MAX_DEPTH);
    if (f->node->kind == YAML_SEQ) {
        append(r->a, f->node, &f->cap, NULL, n);
        return 0;
    }
    if (!f->key) {
        if (n->kind != YAML_SCALAR)
            return fail_at(r, line, column, "a key must be a name, not a list or a mapping");
        const struct yaml_node *first = find_key(f->node, n->text);
        if (first)
            return err_set(r->e, ERR_USAGE,
                           "%s:%d:%d: the key \"%s\" stands here a second time; the first is at line %d",
                           r->where, line, column, n->text, first->line);
        f->key = n;
        f->merged |= !n->quoted && !strcmp(n->text, "<<");
        return 0;
    }
    append(r->a, f->node, &f->cap, f->key, n);
    f->key = NULL;
    return 0;
}

static const char *token_text(struct reader *r, struct fy_token *t, size_t *ret_n)
{
    size_t n = 0;
    const char *s = t ? fy_token_get_text(t, &n) : NULL;
    *ret_n = s ? n : 0;
    return arena_strndup(r->a, s ? s : "", s ? n : 0);
}

/* Anchors may be defined anew; the last one before the alias counts. */
static struct anchor *anchor_of(struct reader *r, const char *name)
{
    for (size_t i = 0; i < r->n_anchors; i++)
        if (!strcmp(r->anchor[i].name, name))
            return &r->anchor[i];
    XGROW(r->anchor, r->n_anchors, r->cap_anchors);
    r->anchor[r->n_anchors] = (struct anchor){.name = name};
    return &r->anchor[r->n_anchors++];
}

/* Plain tags are what any reader would have guessed; a tag that asks for another type of object is refused.
 */
static int check_tag(struct reader *r, struct fy_token *tag, struct yaml_node *n)
{
    static const char *const known[] = {"tag:yaml.org,2002:str",   "tag:yaml.org,2002:int",
                                        "tag:yaml.org,2002:float", "tag:yaml.org,2002:bool",
                                        "tag:yaml.org,2002:null",  "tag:yaml.org,2002:map",
                                        "tag:yaml.org,2002:seq"};
    if (!tag)
        return 0;
    size_t len;
    const char *s = token_text(r, tag, &len);
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(s, known[i])) {
            n->quoted |= i == 0;
            return 0;
        }
    return err_set(r->e, ERR_USAGE, "%s:%d:%d: the tag %s is not supported", r->where, n->line, n->column, s);
}

static int on_alias(struct reader *r, struct fy_token *t, int line, int column)
{
    size_t len;
    const char *name = token_text(r, t, &len);
    for (size_t i = 0; i < r->n_anchors; i++)
        if (!strcmp(r->anchor[i].name, name)) {
            if (!r->anchor[i].node)
                return err_set(r->e, ERR_USAGE, "%s:%d:%d: *%s stands inside the value that it names",
                               r->where, line, column, name);
            r->anchor[i].node->aliased = true;
            int err = count(r, r->anchor[i].node->weight, line, column);
            return err ? err : place(r, r->anchor[i].node, line, column);
        }
    return err_set(r->e, ERR_USAGE, "%s:%d:%d: *%s names no anchor before it", r->where, line, column, name);
}

static int on_scalar(struct reader *r, struct fy_event *ev, int line, int column)
{
    struct yaml_node *n = new_node(r->a, YAML_SCALAR, r->where, line, column);
    size_t len;
    n->text = token_text(r, ev->scalar.value, &len);
    if (strlen(n->text) != len)
        return fail_at(r, line, column, "a value holds a NUL character");
    n->quoted = ev->scalar.value && fy_token_scalar_style(ev->scalar.value) != FYSS_PLAIN;
    int err = count(r, 1, line, column);
    if (!err)
        err = check_tag(r, ev->scalar.tag, n);
    if (err)
        return err;
    if (ev->scalar.anchor)
        anchor_of(r, token_text(r, ev->scalar.anchor, &len))->node = n;
    return place(r, n, line, column);
}

static int on_open(struct reader *r, enum yaml_kind kind, struct fy_token *anchor, struct fy_token *tag,
                   int line, int column)
{
    if (r->depth == YAML_MAX_DEPTH)
        return err_set(r->e, ERR_USAGE, "%s:%d:%d: nested deeper than %d levels", r->where, line, column,
                       YAML_MAX_DEPTH);
    struct yaml_node *n = new_node(r->a, kind, r->where, line, column);
    int err = count(r, 1, line, column);
    if (!err)
        err = check_tag(r, tag, n);
    if (err)
        return err;
    struct frame *f = &r->frame[r->depth++];
    *f = (struct frame){.node = n};
    if (anchor) {
        size_t len;
        f->anchor = token_text(r, anchor, &len);
        anchor_of(r, f->anchor)->node = NULL;
    }
    return 0;
}

static int on_close(struct reader *r)
{
    struct frame *f = &r->frame[r->depth - 1];
    int err = f->node->kind == YAML_MAP ? finish_map(r, f) : 0;
    if (err)
        return err;
    if (f->anchor)
        anchor_of(r, f->anchor)->node = f->node;
    struct yaml_node *n = f->node;
    r->depth--;
    return place(r, n, n->line, n->column);
}

static int on_event(struct reader *r, struct fy_event *ev, int *documents)
{
    const struct fy_mark *mark = fy_event_start_mark(ev);
    int line = mark ? mark->line + 1 : 1, column = mark ? mark->column + 1 : 1;
    /* libfyaml's marks begin behind a quote or a '*'; a person looks for the character itself. */
    enum fy_scalar_style style = FYSS_PLAIN;
    if (ev->type == FYET_SCALAR && ev->scalar.value)
        style = fy_token_scalar_style(ev->scalar.value);
    if (column > 1 && (ev->type == FYET_ALIAS || style == FYSS_SINGLE_QUOTED || style == FYSS_DOUBLE_QUOTED))
        column--;
    switch (ev->type) {
    case FYET_DOCUMENT_START:
        if (++*documents > 1)
            return fail_at(r, line, column, "a second document begins here; a configuration is one document");
        return 0;
    case FYET_SCALAR:
        return on_scalar(r, ev, line, column);
    case FYET_ALIAS:
        return on_alias(r, ev->alias.anchor, line, column);
    case FYET_MAPPING_START:
        return on_open(r, YAML_MAP, ev->mapping_start.anchor, ev->mapping_start.tag, line, column);
    case FYET_SEQUENCE_START:
        return on_open(r, YAML_SEQ, ev->sequence_start.anchor, ev->sequence_start.tag, line, column);
    case FYET_MAPPING_END:
    case FYET_SEQUENCE_END:
        return on_close(r);
    default:
        return 0;
    }
}

/* libfyaml's own complaint, as a sentence with a position. */
static int syntax_error(struct reader *r, struct fy_diag *diag)
{
    void *it = NULL;
    struct fy_diag_error *d = diag ? fy_diag_errors_iterate(diag, &it) : NULL;
    if (!d || !d->msg)
        return err_set(r->e, ERR_USAGE, "%s: not a YAML document", r->where);
    return err_set(r->e, ERR_USAGE, "%s:%d:%d: %s", r->where, d->line > 0 ? d->line : 1,
                   d->column > 0 ? d->column : 1, d->msg);
}

static void discard(struct fy_diag *diag, void *user, const char *text, size_t n)
{
    (void)diag, (void)user, (void)text, (void)n;
}

static int read_events(struct reader *r, const char *text, size_t n)
{
    /* Errors are collected in the diag, never printed. */
    struct fy_diag_cfg dcfg;
    fy_diag_cfg_default(&dcfg);
    dcfg.fp = NULL;
    dcfg.output_fn = discard;
    dcfg.colorize = false;
    struct fy_diag *diag = fy_diag_create(&dcfg);
    struct fy_parse_cfg cfg = {.flags = FYPCF_QUIET | FYPCF_DISABLE_RECYCLING | FYPCF_DEFAULT_VERSION_1_2,
                               .diag = diag};
    if (diag)
        fy_diag_set_collect_errors(diag, true);
    struct fy_parser *p = diag ? fy_parser_create(&cfg) : NULL;
    int err = 0, documents = 0;
    if (!p || fy_parser_set_string(p, text, n)) {
        err = err_set(r->e, ERR_FAIL, "%s: the YAML reader cannot start", r->where);
    } else {
        struct fy_event *ev;
        while (!err && (ev = fy_parser_parse(p))) {
            err = on_event(r, ev, &documents);
            fy_parser_event_free(p, ev);
        }
        if (!err && (fy_parser_get_stream_error(p) || fy_diag_got_error(diag) || r->depth))
            err = syntax_error(r, diag);
    }
    if (p)
        fy_parser_destroy(p);
    if (diag)
        fy_diag_destroy(diag);
    return err;
}

/* Bytes that libfyaml should never see: not UTF-8, or a NUL. */
static int check_bytes(const char *text, size_t n, const char *where, struct err *e)
{
    int line = 1, column = 1;
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t len =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &c);
        if (len <= 0)
            return err_set(e, ERR_USAGE, "%s:%d:%d: the byte 0x%02x is not UTF-8 text", where, line, column,
                           (unsigned char)text[i]);
        if (!c)
            return err_set(e, ERR_USAGE, "%s:%d:%d: a NUL character is not text", where, line, column);
        column++;
        if (c == '\n')
            line++, column = 1;
        i += (size_t)len;
    }
    return 0;
}

int yaml_parse(const char *text, size_t n, const char *where, struct arena *a, struct yaml_node **ret,
               struct err *e)
{
    if (n > YAML_MAX_BYTES)
        return err_set(e, ERR_USAGE, "%s: %zu bytes, but a configuration has at most %d", where, n,
                       YAML_MAX_BYTES);
    if (n >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3))
        text += 3, n -= 3;
    int err = check_bytes(text, n, where, e);
    if (err)
        return err;
    struct reader r = {.a = a, .where = arena_strdup(a, where), .e = e};
    if (n)
        err = read_events(&r, text, n);
    xfree(r.anchor);
    if (err)
        return err;
    if (!r.root || yaml_is_null(r.root))
        r.root = new_node(a, YAML_MAP, r.where, 1, 1);
    if (r.root->kind != YAML_MAP)
        return fail_at(&r, r.root->line, r.root->column,
                       "the outermost level must be a mapping (key: value)");
    *ret = r.root;
    return 0;
}

int yaml_parse_file(const char *path, struct arena *a, struct yaml_node **ret, struct err *e)
{
    struct buf b = BUF_INIT;
    int err = input_read(path, YAML_MAX_BYTES, &b, e);
    if (!err)
        err = yaml_parse(b.s, b.len, input_name(path), a, ret, e);
    else if (e)
        e->code = err = ERR_USAGE; /* it is the configuration that is wrong, whatever the system calls it */
    buf_release(&b);
    return err;
}

struct yaml_node *yaml_get(const struct yaml_node *map, const char *key)
{
    if (map && map->kind == YAML_MAP)
        for (size_t i = 0; i < map->n; i++)
            if (!strcmp(map->key[i]->text, key))
                return map->value[i];
    return NULL;
}

struct yaml_node *yaml_find(const struct yaml_node *root, const char *path)
{
    const struct yaml_node *n = root;
    while (n && *path) {
        size_t len = strcspn(path, ".");
        const struct yaml_node *next = NULL;
        if (n->kind == YAML_MAP)
            for (size_t i = 0; i < n->n && !next; i++)
                if (!strncmp(n->key[i]->text, path, len) && !n->key[i]->text[len])
                    next = n->value[i];
        n = next;
        path += len + (path[len] == '.');
    }
    return (struct yaml_node *)n;
}

bool yaml_is_null(const struct yaml_node *n)
{
    return n->kind == YAML_SCALAR && !n->quoted &&
           (!*n->text || !strcmp(n->text, "~") || !strcmp(n->text, "null") || !strcmp(n->text, "Null") ||
            !strcmp(n->text, "NULL"));
}

void yaml_describe(const struct yaml_node *n, struct buf *out)
{
    enum { SHOWN = 60 };
    if (n->kind == YAML_MAP)
        buf_adds(out, "a mapping");
    else if (n->kind == YAML_SEQ)
        buf_addf(out, "a list of %zu", n->n);
    else if (yaml_is_null(n))
        buf_adds(out, "nothing");
    else {
        size_t len = strlen(n->text), cut = MIN(len, (size_t)SHOWN);
        while (cut < len && cut && ((unsigned char)n->text[cut] & 0xC0) == 0x80)
            cut--; /* not inside a character */
        if (n->quoted)
            buf_adds(out, "the string ");
        buf_addc(out, '"');
        for (size_t i = 0; i < cut; i++) /* a message is one line */
            buf_addc(out, (unsigned char)n->text[i] < ' ' ? ' ' : n->text[i]);
        buf_adds(out, cut < len ? "...\"" : "\"");
    }
}

void yaml_position(const struct yaml_node *n, struct buf *out)
{
    if (n->line)
        buf_addf(out, "%s:%d:%d", n->where, n->line, n->column);
    else
        buf_adds(out, n->where);
}

struct yaml_node *yaml_from_json(struct arena *a, const json_t *j, const char *where)
{
    struct yaml_node *n;
    size_t cap = 0;
    if (json_is_object(j)) {
        n = new_node(a, YAML_MAP, where, 0, 0);
        const char *k;
        json_t *v;
        json_object_foreach((json_t *)j, k, v)
        {
            struct yaml_node *key = new_node(a, YAML_SCALAR, where, 0, 0);
            key->text = arena_strdup(a, k);
            append(a, n, &cap, key, yaml_from_json(a, v, where));
        }
        return n;
    }
    if (json_is_array(j)) {
        n = new_node(a, YAML_SEQ, where, 0, 0);
        for (size_t i = 0; i < json_array_size(j); i++)
            append(a, n, &cap, NULL, yaml_from_json(a, json_array_get(j, i), where));
        return n;
    }
    n = new_node(a, YAML_SCALAR, where, 0, 0);
    if (json_is_string(j)) {
        n->quoted = true;
        n->text = arena_strdup(a, json_string_value(j));
    } else {
        n->text = json_is_integer(j)   ? arena_printf(a, "%lld", (long long)json_integer_value(j))
                  : json_is_real(j)    ? arena_printf(a, "%.17g", json_real_value(j))
                  : json_is_boolean(j) ? (json_is_true(j) ? "true" : "false")
                                       : "";
    }
    return n;
}

struct yaml_node *yaml_from_text(struct arena *a, const char *text, const char *where)
{
    if (*text == '[' || *text == '{') {
        json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        struct yaml_node *n = j ? yaml_from_json(a, j, where) : NULL;
        json_decref(j);
        if (n && n->height < YAML_MAX_DEPTH && n->weight <= YAML_MAX_NODES)
            return n;
    }
    struct yaml_node *n = new_node(a, YAML_SCALAR, where, 0, 0);
    n->text = arena_strdup(a, text);
    return n;
}

struct yaml_node *yaml_with(struct arena *a, const struct yaml_node *root, const char *path,
                            struct yaml_node *value, const char **ret_stop)
{
    if (root->kind != YAML_MAP) {
        *ret_stop = arena_strdup(a, path);
        return NULL;
    }
    size_t len = strcspn(path, ".");
    const char *name = arena_strndup(a, path, len);
    const struct yaml_node *old = yaml_get(root, name);
    struct yaml_node *child = value;
    if (path[len]) {
        if (!old || yaml_is_null(old))
            old = new_node(a, YAML_MAP, value->where, 0, 0);
        child = yaml_with(a, old, path + len + 1, value, ret_stop);
        if (!child)
            return NULL;
    }
    struct yaml_node *copy = new_node(a, YAML_MAP, root->where, root->line, root->column);
    size_t cap = 0;
    bool placed = false;
    for (size_t i = 0; i < root->n; i++) {
        bool here = !strcmp(root->key[i]->text, name);
        append(a, copy, &cap, root->key[i], here ? child : root->value[i]);
        placed |= here;
    }
    if (!placed) {
        struct yaml_node *key = new_node(a, YAML_SCALAR, value->where, 0, 0);
        key->text = name;
        append(a, copy, &cap, key, child);
    }
    return copy;
}
