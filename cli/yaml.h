/* yaml.h: a YAML document as a small tree that knows where each of its parts stands.
 *
 * libfyaml reads the syntax; this module keeps what a configuration file may hold and refuses the rest, with
 * file:line:column: one document, UTF-8, at most YAML_MAX_BYTES long, YAML_MAX_DEPTH deep and YAML_MAX_NODES
 * large counted with every alias expanded (so an alias bomb costs nothing and ends in an error). A key may
 * stand only once in a mapping. Anchors, aliases and merge keys (`<<`) are resolved here: an alias is the
 * same node again, so the tree is in truth a graph without cycles, and nodes are never changed once parsed;
 * yaml_with() makes a changed copy of the way from the root.
 *
 * All nodes live in the arena they were parsed into.
 */
#ifndef YOKE_CLI_YAML_H
#define YOKE_CLI_YAML_H

#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

enum {
    YAML_MAX_BYTES = 1 << 20,
    YAML_MAX_DEPTH = 10, /* as MindFormers: nesting deeper than this is refused */
    YAML_MAX_NODES = 20000
};

enum yaml_kind { YAML_SCALAR, YAML_SEQ, YAML_MAP };

struct yaml_node {
    enum yaml_kind kind;
    bool aliased;      /* an alias or a merge key stands for it elsewhere */
    bool quoted;       /* scalar: written in quotes or as a block, so it is a string whatever it looks like */
    int line, column;  /* from 1; line 0: it came from a flag */
    const char *where; /* file name, or the flag ("--a.b.c") */
    const char *text;  /* scalar: its value, terminated; holds no 0 byte */
    size_t n;          /* items, or pairs */
    struct yaml_node **key;   /* [n], map only: scalars */
    struct yaml_node **value; /* [n], map and sequence */
    size_t weight;            /* nodes in this subtree, aliases counted as often as they stand */
    int height;               /* levels of nesting below and with this one; a scalar has 0 */
};

/* An empty file is an empty mapping; the root of any other must be a mapping. Errors are ERR_USAGE. */
int yaml_parse(const char *text, size_t n, const char *where, struct arena *a, struct yaml_node **ret,
               struct err *e);
/* path: as input_read() takes it. */
int yaml_parse_file(const char *path, struct arena *a, struct yaml_node **ret, struct err *e);

/* The value of a mapping's key; NULL if it is absent or `map` is no mapping. */
struct yaml_node *yaml_get(const struct yaml_node *map, const char *key);
/* The same along a dotted path, "model.model_config.top_k". */
struct yaml_node *yaml_find(const struct yaml_node *root, const char *path);
/* True for the ways of writing "nothing": an empty plain scalar, ~, null. */
bool yaml_is_null(const struct yaml_node *n);
/* "sequence", "mapping", "the string \"x\"", "3": for messages; appends. */
void yaml_describe(const struct yaml_node *n, struct buf *out);
/* "file.yaml:3:7" or "--the.flag"; appends. */
void yaml_position(const struct yaml_node *n, struct buf *out);

/* A node for a value that was given on the command line: JSON lists and objects, or plain text. */
struct yaml_node *yaml_from_text(struct arena *a, const char *text, const char *where);
struct yaml_node *yaml_from_json(struct arena *a, const json_t *j, const char *where);
/* A copy of `root` in which `path` holds `value`; mappings on the way are made where they are missing. NULL,
 * with *ret_stop naming the part of the path that is in the way, if a scalar or a sequence stands there. */
struct yaml_node *yaml_with(struct arena *a, const struct yaml_node *root, const char *path,
                            struct yaml_node *value, const char **ret_stop);

#endif
