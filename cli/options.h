/* options.h: the table of options, and looking things up in it.
 *
 * A row says all there is to say about one setting: its flags, YAML keys, type, bounds, default, the member
 * of struct settings it fills, the subcommands it belongs to, and what it means. The reader of flags, the
 * reader of YAML, --help, `yoke help` and docs/options.md all walk this table; nobody keeps a second list.
 *
 * To add an option: a member in settings.h, a row in options.def, `yoke options > docs/options.md`.
 */
#ifndef YOKE_CLI_OPTIONS_H
#define YOKE_CLI_OPTIONS_H

#include "base/buf.h"
#include "cli/settings.h"
#include "cli/yaml.h"

enum option_type { T_BOOL, T_INT, T_SIZE, T_DOUBLE, T_STRING, T_STRINGS, T_ENUM, T_INTS };

enum option_group {
    G_MODEL,
    G_PROMPT,
    G_SAMPLING,
    G_ENGINE,
    G_SPLIT,
    G_LAUNCH,
    G_ADVICE,
    G_TOOLS,
    G_MINDFORMERS,
    G_COUNT
};

enum {
    OF_AUTO = 1 << 0,       /* "auto" is a value too, and means 0 */
    OF_ABOVE_LO = 1 << 1,   /* the bound `lo` itself is not legal */
    OF_MANY = 1 << 2,       /* the flag takes all words up to the next flag */
    OF_PER_PROMPT = 1 << 3, /* a line of a prompts file may set it too; it lies in settings.sample */
    OF_NO_EFFECT = 1 << 4   /* accepted from MindFormers' files, changes nothing */
};

/* All that open a model; those that need ranks. */
#define CMD_ALL    (CMD_RUN | CMD_PLAN | CMD_LOGITS | CMD_TOKENIZE | CMD_TEMPLATE | CMD_SHARD)
#define CMD_ANY    (CMD_ALL | CMD_LAUNCH | CMD_BENCH)
#define CMD_ENGINE (CMD_RUN | CMD_PLAN | CMD_LOGITS)

struct option {
    const char *name; /* "max_new_tokens" */
    enum option_type type;
    size_t offset; /* in struct settings: bool, int64_t, uint64_t, double, const char *, struct strings, int,
                      struct ints, by type */
    enum option_group group;
    unsigned commands; /* enum command bits */
    /* Separated by spaces; the first long one is the official one. '_' and '-' are the same in them. "--x=v"
     * is a flag without a value that stands for setting v. Bool flags also have a --no-x. NULL: YAML only. */
    const char *flags;
    const char *arg;          /* what the value is called in --help; bool and enum need none */
    const char *yaml;         /* dotted paths, the most important first; NULL: no YAML key */
    const char *hf;           /* its name in generation_config.json; NULL: not there */
    double lo, hi;            /* int, size, double, ints: bounds, both legal unless OF_ABOVE_LO */
    unsigned flag;            /* OF_ bits */
    const char *values;       /* enum: "a|b|c" */
    const int *codes;         /* enum: their values; NULL: 0, 1, 2, ... */
    const char *fallback;     /* default, as one would write it; NULL: not set (0, NULL, empty) */
    const char *default_text; /* what to say about the default where `fallback` cannot */
    const char *help;
};

extern const struct option option_table[OPT_COUNT];

struct ignored_key {
    const char *patterns; /* "context.* device_id" */
    const char *reason;
};
extern const struct ignored_key ignored_table[];
extern const size_t n_ignored;

struct shape_key {
    const char *path;
    const char *names; /* in config.json */
};
extern const struct shape_key shape_table[];
extern const size_t n_shapes;

const char *group_title(enum option_group g);
/* "run", ...; NULL if `c` is none */
const char *command_name(enum command c);

/* One word of a list that is separated by spaces: returns its start and sets *len; NULL at the end. Begin
 * with *at = the list. */
const char *next_word(const char **at, size_t *len);

/* A flag as typed ("--top_k", "-p", "--no-stats", without "=value"). */
struct flag_hit {
    const struct option *option;
    const char *fixed; /* the value that the flag stands for; NULL: it takes one */
    size_t fixed_len;
};
/* One that `commands` know, if there is any. */
bool option_by_flag(const char *flag, size_t len, unsigned commands, struct flag_hit *ret);
const struct option *option_by_path(const char *path);
/* The official long flag, "--top-k"; NULL if it has none. Written to buf. */
const char *option_flag(const struct option *o, char buf[64]);

/* The reason why a YAML key changes nothing, or NULL. *ret_shown, of arena: the key, or "context.*" for one
 * of a family. */
const char *ignored_reason(const char *path, struct arena *a, const char **ret_shown);
const struct shape_key *shape_by_path(const char *path);
/* True if known keys stand below this path (it is a section). */
bool is_section(const char *path);
bool is_option_section(const char *path); /* options among them, so that it must be a mapping */

/* The known flag, or YAML path, nearest to what was typed; NULL if nothing is near. */
const char *nearest_flag(const char *typed, unsigned commands, struct arena *a);
const char *nearest_path(const char *typed, struct arena *a);

/* What values are legal: "an integer, at least 1, or auto"; appends. */
void option_describe_values(const struct option *o, struct buf *out);

/* Fills the row's member from a node (of YAML, JSON, or a flag's text). Lists are appended to; lists and
 * strings are copied into s->mem. `what` begins the error sentence: "--top-k" or "file.yaml:3:9: top_k". */
int option_set(const struct option *o, struct settings *s, const struct yaml_node *value, const char *what,
               struct err *e);
void option_clear_list(const struct option *o, struct settings *s);
/* "nothing said": YAML null, None, or an empty string where a path or name is meant. */
bool option_is_unset(const struct option *o, const struct yaml_node *value);

#endif
