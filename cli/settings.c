#include "cli/settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/options.h"
#include "cli/yaml.h"

enum {
    DEFAULT_MAX_NEW_TOKENS = 512,
    MAX_WARNINGS = 20,  /* about unknown keys; the rest is counted */
    IGNORED_SHOWN = 800 /* bytes of the line about ignored keys */
};

/* A flag as it stood on the command line, waiting for the YAML to be read before it. */
struct given {
    const struct option *option;
    const char *flag; /* as typed: what messages call it */
    struct yaml_node *value;
};

struct parser {
    struct settings *s;
    struct warn_sink *warn;
    struct err *e;
    int argc;
    const char *const *argv;
    struct given *given;
    size_t n_given, cap_given;
    struct given *override; /* option unused; flag is the dotted path */
    size_t n_overrides, cap_overrides;
    struct yaml_node *root; /* NULL: no YAML and no override */
    struct buf ignored;     /* "context.*, runner_config.*" */
    size_t n_ignored, n_unshown, n_unknown;
};

/* --- the command line ----------------------------------------------------------------------------------- */

static void add_given(struct parser *p, const struct option *o, const char *flag, const char *text)
{
    struct yaml_node *v = arena_alloc(p->s->mem, sizeof(*v));
    *v = (struct yaml_node){.kind = YAML_SCALAR, .where = flag, .text = text, .weight = 1};
    XGROW(p->given, p->n_given, p->cap_given);
    p->given[p->n_given++] = (struct given){o, flag, v};
}

/* `how` is what the user typed, for messages; the path may have been written with a leading "--". */
static void add_override(struct parser *p, const char *path, const char *text, const char *how)
{
    XGROW(p->override, p->n_overrides, p->cap_overrides);
    p->override[p->n_overrides++] = (struct given){NULL, path, yaml_from_text(p->s->mem, text, how)};
}

static bool is_known_flag(const char *word)
{
    struct flag_hit hit;
    if (word[0] != '-' || !word[1])
        return false;
    return !strcmp(word, "-h") || !strcmp(word, "--help") ||
           option_by_flag(word, strcspn(word, "="), CMD_ANY, &hit);
}

/* Whether a word ends a list of values: any "--name" without a space in it, or a known short flag. "- a list
 * item" and "-3" are text. */
static bool looks_like_flag(const char *word)
{
    if (!strncmp(word, "--", 2) && word[2] && !strpbrk(word, " \n\t"))
        return true;
    return is_known_flag(word);
}

static int wrong_command(struct parser *p, const struct option *o, const char *flag)
{
    struct buf where = BUF_INIT;
    for (unsigned c = 1; command_name(c); c <<= 1)
        if (o->commands & c)
            buf_addf(&where, "%s'yoke %s'", where.len ? ", " : "", command_name(c));
    int err = err_set(p->e, ERR_USAGE, "%s is not an option of 'yoke %s'; it belongs to %s", flag,
                      command_name(p->s->command), where.s);
    buf_release(&where);
    return err;
}

/* "--a.b.c value", "--a.b.c=value", and names that are YAML keys without being flags of their own. */
static int parse_override(struct parser *p, int *i, const char *flag, const char *eq)
{
    const char *path = flag + 2, *value = eq;
    if (!value) {
        if (*i + 1 >= p->argc || is_known_flag(p->argv[*i + 1]))
            return err_set(p->e, ERR_USAGE, "%s needs a value", flag);
        value = p->argv[++*i];
    }
    add_override(p, path, value, flag);
    return 0;
}

static int unknown_flag(struct parser *p, const char *flag)
{
    const char *near = nearest_flag(flag, p->s->command, p->s->mem);
    const char *one = "";
    if (flag[1] != '-') { /* -chat */
        struct flag_hit hit;
        char *longer = xasprintf("-%s", flag);
        if (option_by_flag(longer, strlen(longer), p->s->command, &hit))
            near = arena_strdup(p->s->mem, longer);
        xfree(longer);
        one = flag[2] ? " (words have two dashes)" : "";
    }
    if (near)
        return err_set(p->e, ERR_USAGE, "unknown option %s%s; did you mean %s?", flag, one, near);
    return err_set(p->e, ERR_USAGE, "unknown option %s%s; 'yoke %s --help' lists them", flag, one,
                   command_name(p->s->command));
}

static int parse_many(struct parser *p, int *i, const struct option *o, const char *flag, const char *eq)
{
    int n = 0;
    if (eq)
        add_given(p, o, flag, eq), n++;
    else
        while (*i + 1 < p->argc && !looks_like_flag(p->argv[*i + 1]))
            add_given(p, o, flag, p->argv[++*i]), n++;
    return n ? 0 : err_set(p->e, ERR_USAGE, "%s needs at least one value", flag);
}

static int parse_flag(struct parser *p, int *i)
{
    const char *word = p->argv[*i], *equals = strchr(word, '=');
    size_t len = equals ? (size_t)(equals - word) : strlen(word);
    const char *flag = arena_strndup(p->s->mem, word, len), *eq = equals ? equals + 1 : NULL;
    struct flag_hit hit;
    if (!strncmp(flag, "--", 2) && strchr(flag, '.'))
        return parse_override(p, i, flag, eq);
    if (!option_by_flag(flag, len, p->s->command, &hit)) {
        /* MindFormers' top-level keys are flags too: --use_legacy False. */
        if (!strncmp(flag, "--", 2) &&
            (ignored_reason(flag + 2, p->s->mem, NULL) || option_by_path(flag + 2)))
            return parse_override(p, i, flag, eq);
        return unknown_flag(p, flag);
    }
    const struct option *o = hit.option;
    if (!(o->commands & p->s->command))
        return wrong_command(p, o, flag);
    if (hit.fixed) {
        if (eq)
            return err_set(p->e, ERR_USAGE, "%s takes no value", flag);
        add_given(p, o, flag, arena_strndup(p->s->mem, hit.fixed, hit.fixed_len));
        return 0;
    }
    if (o->flag & OF_MANY)
        return parse_many(p, i, o, flag, eq);
    if (!eq && o->type == T_BOOL) {
        const char *next = *i + 1 < p->argc ? p->argv[*i + 1] : "";
        eq = "true";
        if (!strcasecmp(next, "true") || !strcasecmp(next, "false"))
            eq = p->argv[++*i];
    } else if (!eq) {
        if (*i + 1 >= p->argc)
            return err_set(p->e, ERR_USAGE, "%s needs a value", flag);
        eq = p->argv[++*i];
        if (is_known_flag(eq) && strlen(eq) > 2)
            return err_set(p->e, ERR_USAGE, "%s needs a value; if %s is meant as one, write %s=%s", flag, eq,
                           flag, eq);
    }
    add_given(p, o, flag, eq);
    return 0;
}

static int parse_arguments(struct parser *p)
{
    for (int i = 1; i < p->argc; i++) {
        const char *word = p->argv[i];
        if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
            p->s->help = true;
            return 0;
        }
        if (p->s->command == CMD_LAUNCH && (word[0] != '-' || !strcmp(word, "--"))) {
            p->s->rest = p->argv + i + (word[0] == '-');
            p->s->n_rest = p->argc - (int)(p->s->rest - p->argv);
            return 0;
        }
        if (word[0] != '-' || !word[1])
            return err_set(p->e, ERR_USAGE, "unexpected argument \"%s\"; %s", word,
                           p->s->command & option_table[OPT_prompts].commands ? "a prompt is given with -p"
                                                                              : "all arguments are options");
        int err = parse_flag(p, &i);
        if (err)
            return err;
    }
    /* --options k=v ... */
    for (size_t i = 0; i < p->n_given; i++) {
        const struct given *g = &p->given[i];
        if (g->option != &option_table[OPT_overrides])
            continue;
        const char *eq = strchr(g->value->text, '=');
        if (!eq || eq == g->value->text)
            return err_set(p->e, ERR_USAGE,
                           "%s: \"%s\" should be KEY=VALUE, such as parallel_config.model_parallel=4",
                           g->flag, g->value->text);
        const char *path = arena_strndup(p->s->mem, g->value->text, (size_t)(eq - g->value->text));
        add_override(p, path, eq + 1, arena_printf(p->s->mem, "%s %s", g->flag, path));
    }
    return 0;
}

/* --- the YAML tree ---------------------------------------------------------------------------------------
 */

static int unknown_override(struct parser *p, const char *path, const char *how)
{
    const char *near = nearest_path(path, p->s->mem);
    if (near)
        return err_set(p->e, ERR_USAGE, "%s: there is no setting %s; did you mean %s?", how, path, near);
    return err_set(p->e, ERR_USAGE, "%s: there is no setting %s", how, path);
}

static bool is_known_path(const char *path, struct arena *a)
{
    return option_by_path(path) || ignored_reason(path, a, NULL) || shape_by_path(path);
}

static int apply_overrides(struct parser *p)
{
    for (size_t i = 0; i < p->n_overrides; i++) {
        const char *path = p->override[i].flag;
        struct yaml_node *value = p->override[i].value;
        if (!*path || *path == '.' || path[strlen(path) - 1] == '.' || strstr(path, "..") ||
            strlen(path) > YAML_MAX_BYTES)
            return err_set(p->e, ERR_USAGE, "%s: \"%s\" is no dotted name", value->where, path);
        /* As in MindFormers, what is above the last part must be there already: in the file, or known. */
        const char *dot = strrchr(path, '.');
        char *parent = xstrndup(path, dot ? (size_t)(dot - path) : 0);
        const struct yaml_node *above = p->root && dot ? yaml_find(p->root, parent) : NULL;
        bool known = is_known_path(path, p->s->mem) || is_section(path) || (dot && is_section(parent)) ||
                     (above && above->kind == YAML_MAP);
        xfree(parent);
        if (!known)
            return unknown_override(p, path, value->where);
        struct yaml_node empty = {.kind = YAML_MAP};
        const char *stop = NULL;
        size_t depth = 1;
        for (const char *c = path; *c; c++)
            depth += *c == '.';
        struct yaml_node *root = NULL;
        if (depth + (size_t)value->height <= YAML_MAX_DEPTH)
            root = yaml_with(p->s->mem, p->root ? p->root : &empty, path, value, &stop);
        if (!root && stop)
            return err_set(p->e, ERR_USAGE, "%s: the configuration has a single value above %s", value->where,
                           stop);
        if (!root)
            return err_set(p->e, ERR_USAGE, "%s: nested deeper than %d levels", value->where, YAML_MAX_DEPTH);
        p->root = root;
    }
    return 0;
}

static void note_ignored(struct parser *p, const char *shown)
{
    /* A family is named once. */
    const char *at = p->ignored.s;
    size_t n = strlen(shown);
    while ((at = strstr(at, shown))) {
        if ((at == p->ignored.s || at[-1] == ' ') && (at[n] == ',' || !at[n]))
            return;
        at += n;
    }
    p->n_ignored++;
    if (p->ignored.len + n > IGNORED_SHOWN)
        p->n_unshown++;
    else
        buf_addf(&p->ignored, "%s%s", p->ignored.len ? ", " : "", shown);
}

static void note_shape(struct parser *p, const char *path, const struct yaml_node *n)
{
    struct settings *s = p->s;
    if (n->kind != YAML_SCALAR || yaml_is_null(n))
        return;
    /* Grows like the lists of options.c. */
    if (!(s->n_claims & (s->n_claims - 1))) {
        struct shape_claim *c = arena_alloc(s->mem, (s->n_claims ? 2 * s->n_claims : 1) * sizeof(*c));
        if (s->n_claims)
            memcpy(c, s->claim, s->n_claims * sizeof(*c));
        s->claim = c;
    }
    struct buf where = BUF_INIT;
    yaml_position(n, &where);
    s->claim[s->n_claims++] = (struct shape_claim){path, n->text, arena_strdup(s->mem, where.s)};
    buf_release(&where);
}

static void warn_unknown(struct parser *p, const struct yaml_node *key, const char *path)
{
    if (++p->n_unknown > MAX_WARNINGS)
        return;
    struct buf where = BUF_INIT;
    yaml_position(key, &where);
    const char *near = nearest_path(path, p->s->mem);
    if (near)
        warn_to(p->warn, "%s: unknown key %s; did you mean %s?", where.s, path, near);
    else
        warn_to(p->warn, "%s: unknown key %s: it changes nothing", where.s, path);
    buf_release(&where);
}

static int not_a_section(struct parser *p, const struct yaml_node *v, const char *path)
{
    struct buf where = BUF_INIT, found = BUF_INIT;
    yaml_position(v, &where);
    yaml_describe(v, &found);
    int err = err_set(p->e, ERR_USAGE, "%s: %s should be a mapping with keys of its own, but is %s", where.s,
                      path, found.s);
    buf_release(&where);
    buf_release(&found);
    return err;
}

/* Names every key that changes nothing, and collects what the YAML claims about the model. */
static int walk(struct parser *p, const struct yaml_node *map, const char *prefix)
{
    struct arena *a = p->s->mem;
    int err = 0;
    for (size_t i = 0; i < map->n && !err; i++) {
        const struct yaml_node *v = map->value[i];
        const char *path = *prefix ? arena_printf(a, "%s.%s", prefix, map->key[i]->text) : map->key[i]->text;
        const struct option *o = option_by_path(path);
        const char *shown = path;
        bool known_section = is_section(path);
        if (o) {
            if ((o->flag & OF_NO_EFFECT) && !option_is_unset(o, v))
                note_ignored(p, path);
        } else if (shape_by_path(path)) {
            note_shape(p, path, v);
        } else if (known_section && v->kind == YAML_MAP) {
            err = walk(p, v, path);
        } else if (known_section && yaml_is_null(v)) {
            continue; /* a section without anything in it */
        } else if (is_option_section(path)) {
            err = not_a_section(p, v, path);
        } else if (ignored_reason(path, a, &shown)) {
            if (!yaml_is_null(v))
                note_ignored(p, shown);
        } else if (!v->aliased && (*prefix || strncmp(path, "x-", 2))) {
            warn_unknown(p, map->key[i], path); /* aliased and x-...: the user's own, for use elsewhere */
        }
    }
    return err;
}

static const char *source_of(struct parser *p, const struct yaml_node *n, const char *path)
{
    struct buf b = BUF_INIT;
    yaml_position(n, &b);
    if (n->line)
        buf_addf(&b, ": %s", path);
    const char *s = arena_strdup(p->s->mem, b.s);
    buf_release(&b);
    return s;
}

static enum origin origin_of(const struct yaml_node *n)
{
    return n->line ? FROM_YAML : FROM_OVERRIDE;
}

static bool same_scalar(const struct yaml_node *a, const struct yaml_node *b)
{
    return a->kind == YAML_SCALAR && b->kind == YAML_SCALAR && !strcasecmp(a->text, b->text);
}

/* One row from the tree. Of several keys for it, an override wins over the file, then the row's own order. */
static int read_row(struct parser *p, const struct option *o)
{
    const char *at = o->yaml, *w, *path = NULL;
    size_t n;
    const struct yaml_node *value = NULL;
    while ((w = next_word(&at, &n))) {
        const char *name = arena_strndup(p->s->mem, w, n);
        const struct yaml_node *v = yaml_find(p->root, name);
        if (!v || option_is_unset(o, v))
            continue;
        if (!value || (origin_of(v) > origin_of(value))) {
            value = v;
            path = name;
        } else if (origin_of(v) == origin_of(value) && !same_scalar(v, value)) {
            warn_to(p->warn, "%s is not used: %s counts", source_of(p, v, name), source_of(p, value, path));
        }
    }
    if (!value)
        return 0;
    size_t id = (size_t)(o - option_table);
    const char *what = source_of(p, value, path);
    int err = option_set(o, p->s, value, what, p->e);
    if (!err) {
        p->s->origin[id] = (uint8_t)origin_of(value);
        p->s->source[id] = what;
    }
    return err;
}

static int read_tree(struct parser *p)
{
    int walk_err = walk(p, p->root, "");
    if (walk_err)
        return walk_err;
    if (p->n_unknown > MAX_WARNINGS)
        warn_to(p->warn, "%zu more unknown keys", p->n_unknown - MAX_WARNINGS);
    if (p->n_unshown)
        buf_addf(&p->ignored, " and %zu more", p->n_unshown);
    if (p->n_ignored)
        warn_to(p->warn, "these keys change nothing here: %s ('yoke help KEY' says why)", p->ignored.s);
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const struct option *o = &option_table[i];
        int err = o->yaml && (o->commands & p->s->command) ? read_row(p, o) : 0;
        if (err)
            return err;
    }
    return 0;
}

/* --- precedence and conflicts ----------------------------------------------------------------------------
 */

static int apply_flags(struct parser *p)
{
    for (size_t i = 0; i < p->n_given; i++) {
        const struct given *g = &p->given[i];
        size_t id = (size_t)(g->option - option_table);
        if (p->s->origin[id] != FROM_FLAG)
            option_clear_list(g->option, p->s);
        int err = option_set(g->option, p->s, g->value, g->flag, p->e);
        if (err)
            return err;
        p->s->origin[id] = FROM_FLAG;
        p->s->source[id] = g->flag;
    }
    return 0;
}

static void unset(struct settings *s, enum option_id id)
{
    s->origin[id] = FROM_DEFAULT;
    s->source[id] = NULL;
}

/* Of settings that say the same thing in different words, the one with the highest origin stays; two of the
 * same origin contradict each other. */
static int only_one(struct parser *p, const enum option_id *id, size_t n, const char *why)
{
    struct settings *s = p->s;
    const enum option_id *top = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!s->origin[id[i]])
            continue;
        if (top && s->origin[*top] == s->origin[id[i]])
            return err_set(p->e, ERR_USAGE, "%s and %s: %s", s->source[*top], s->source[id[i]], why);
        if (!top || s->origin[id[i]] > s->origin[*top])
            top = &id[i];
    }
    for (size_t i = 0; i < n; i++)
        if (top && &id[i] != top)
            unset(s, id[i]);
    return 0;
}

static int settle_model(struct parser *p)
{
    struct settings *s = p->s;
    enum origin folder = MAX(s->origin[OPT_load_checkpoint], s->origin[OPT_pretrained_model_dir]);
    if (s->origin[OPT_model] && s->origin[OPT_model] == folder) {
        bool load = s->origin[OPT_load_checkpoint] == folder;
        return err_set(p->e, ERR_USAGE, "%s and %s: give the model once", s->source[OPT_model],
                       s->source[load ? OPT_load_checkpoint : OPT_pretrained_model_dir]);
    }
    if (s->origin[OPT_model] > folder) {
        s->weights = s->tokenizer = s->model;
    } else {
        s->weights = s->load_checkpoint ? s->load_checkpoint : s->pretrained_model_dir;
        s->tokenizer = s->pretrained_model_dir ? s->pretrained_model_dir : s->load_checkpoint;
    }
    size_t n = s->weights ? strlen(s->weights) : 0;
    if (n > 5 && !strcmp(s->weights + n - 5, ".ckpt"))
        return err_set(
            p->e, ERR_USAGE,
            "%s: MindSpore's .ckpt files are not read; give a folder of safetensors or a .gguf file",
            s->source[s->model ? OPT_model : OPT_load_checkpoint]);
    bool needed = s->command != CMD_BENCH && (s->command != CMD_TEMPLATE || !s->template_file);
    if (!s->weights && needed)
        return err_set(p->e, ERR_USAGE,
                       "no model: give -m PATH, or load_checkpoint or pretrained_model_dir in the YAML file");
    return 0;
}

/* One value in which "\n" was typed as two characters, as MindFormers reads it. */
static const char *unescape_newlines(struct arena *a, const char *text)
{
    char *out = arena_strdup(a, text), *to = out;
    for (const char *c = text; *c; c++) {
        if (c[0] == '\\' && c[1] == 'n') {
            *to++ = '\n';
            c++;
        } else
            *to++ = *c;
    }
    *to = 0;
    return out;
}

static int settle_predict_data(struct parser *p)
{
    struct settings *s = p->s;
    if (!s->origin[OPT_predict_data])
        return 0;
    s->prompts = s->predict_data;
    s->prompts_file = NULL;
    if (s->predict_data.n != 1)
        return 0;
    const char *only = s->predict_data.v[0];
    if (path_is_dir(only))
        return err_set(p->e, ERR_USAGE, "%s: %s is a folder; images are not supported yet",
                       s->source[OPT_predict_data], only);
    if (path_is_file(only)) {
        s->prompts = (struct strings){0};
        s->prompts_file = only;
        s->prompts_format = PROMPTS_TEXT;
        s->prompts_unescape = true;
        return 0;
    }
    s->prompts.v = arena_alloc(s->mem, sizeof(*s->prompts.v));
    s->prompts.v[0] = unescape_newlines(s->mem, only);
    return 0;
}

static int settle_prompts(struct parser *p)
{
    static const enum option_id source[] = {OPT_prompts, OPT_prompts_file, OPT_predict_data, OPT_interactive};
    static const enum option_id text[] = {OPT_prompts, OPT_file, OPT_ids};
    static const enum option_id chat[] = {OPT_prompts, OPT_messages};
    struct settings *s = p->s;
    int err;
    switch (s->command) {
    case CMD_RUN:
        if (s->origin[OPT_interactive] && !s->interactive)
            unset(s, OPT_interactive);
        err = only_one(p, source, ARRAY_LEN(source), "give the prompts in one way");
        break;
    case CMD_TOKENIZE:
    case CMD_LOGITS:
        err = only_one(p, text, ARRAY_LEN(text), "give the text in one way");
        break;
    case CMD_TEMPLATE:
        err = only_one(p, chat, ARRAY_LEN(chat), "give the messages in one way");
        break;
    default:
        return 0;
    }
    if (err)
        return err;
    if (!s->origin[OPT_prompts])
        s->prompts = (struct strings){0};
    if (!s->origin[OPT_prompts_file])
        s->prompts_file = NULL;
    if (!s->origin[OPT_interactive])
        s->interactive = false;
    if (!s->origin[OPT_file])
        s->file = NULL;
    if (!s->origin[OPT_ids])
        s->ids = (struct ints){0};
    if (!s->origin[OPT_messages])
        s->messages = NULL;
    if (s->command != CMD_RUN && s->prompts.n > 1)
        return err_set(p->e, ERR_USAGE, "%s: 'yoke %s' takes one prompt, not %zu", s->source[OPT_prompts],
                       command_name(s->command), s->prompts.n);
    return settle_predict_data(p);
}

static int not_yet(struct parser *p, enum option_id id, const char *what)
{
    return err_set(p->e, ERR_USAGE, "%s: %s", p->s->source[id], what);
}

static int settle_unsupported(struct parser *p)
{
    struct settings *s = p->s;
    if (s->run_mode != RUN_MODE_PREDICT)
        return not_yet(p, OPT_run_mode, "yoke does inference only; run_mode must be predict");
    if (s->cp > 1)
        return not_yet(
            p, OPT_cp,
            "yoke splits by tensor, pipeline, expert and data; a sequence is not split over ranks, so "
            "context_parallel must be 1");
    if (s->adapter_id.n)
        return not_yet(p, OPT_adapter_id, "LoRA adapters are not supported yet");
    if (s->pet_type)
        return not_yet(p, OPT_pet_type, "LoRA adapters are not supported yet");
    for (size_t i = 0; i < s->modal_type.n; i++)
        if (strcmp(s->modal_type.v[i], "text"))
            return not_yet(p, OPT_modal_type, "only text is supported yet");
    if (s->format == FORMAT_IDS && s->command != CMD_TOKENIZE)
        return not_yet(p, OPT_format, "ids is a format of 'yoke tokenize'; here it is text or json");
    if (s->quant_config.engine)
        return not_yet(p, OPT_quantization,
                       "checkpoints that were quantised for another device are not supported yet");
    return 0;
}

/* The YAML's quantization_config in yoke's words. A setting of --quant itself wins if its origin is not
 * lower. */
static int settle_quant(struct parser *p)
{
    struct settings *s = p->s;
    const char *method = s->quant_config.method;
    if (method && strcasecmp(method, "rtn") && strcasecmp(method, "ptq"))
        return err_set(p->e, ERR_USAGE, "%s should be rtn or ptq, but is \"%s\"", s->source[OPT_quant_method],
                       method);
    enum origin said = MAX(s->origin[OPT_quant_weight_dtype], s->origin[OPT_quant_activation_dtype]);
    if (said && said > s->origin[OPT_quant]) {
        if (s->quant_config.weight == QCFG_NONE && s->quant_config.activation != QCFG_NONE)
            return err_set(
                p->e, ERR_USAGE,
                "%s: activations are quantised only together with weights; give weight_dtype int8 or int4",
                s->source[OPT_quant_activation_dtype]);
        s->quant = s->quant_config.weight == QCFG_INT8   ? WANT_W8A8
                   : s->quant_config.weight == QCFG_INT4 ? WANT_W4
                                                         : WANT_FULL;
        if (s->quant != WANT_FULL && s->quant_config.activation == QCFG_NONE)
            warn_to(p->warn,
                    "%s: quantised weights meet int8 activations here, also where activation_dtype is None",
                    s->source[OPT_quant_weight_dtype]);
        s->origin[OPT_quant] = (uint8_t)said;
        s->source[OPT_quant] = s->source[OPT_quant_weight_dtype];
    }
    if (s->origin[OPT_quant_kvcache_dtype] > s->origin[OPT_kv_dtype] &&
        s->quant_config.kvcache == QCFG_INT8) {
        s->kv_dtype = CACHE_INT8;
        s->origin[OPT_kv_dtype] = s->origin[OPT_quant_kvcache_dtype];
        s->source[OPT_kv_dtype] = s->source[OPT_quant_kvcache_dtype];
    }
    return 0;
}

/* use_parallel False turns off a split that is of no higher origin, as in MindFormers; but said in one breath
 * on the command line the two contradict each other. */
static int settle_split(struct parser *p)
{
    static const enum option_id degree[] = {OPT_tp, OPT_pp, OPT_dp, OPT_ep};
    struct settings *s = p->s;
    if (s->use_parallel)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(degree); i++) {
        int64_t *n = (int64_t *)(void *)((char *)s + option_table[degree[i]].offset);
        if (*n == 1 || s->origin[degree[i]] > s->origin[OPT_use_parallel])
            continue;
        if (s->origin[degree[i]] == FROM_FLAG)
            return err_set(p->e, ERR_USAGE, "%s %lld and %s False contradict each other",
                           s->source[degree[i]], (long long)*n, s->source[OPT_use_parallel]);
        warn_to(p->warn, "%s is not used: use_parallel is False, so there is one rank", s->source[degree[i]]);
        *n = 1;
    }
    return 0;
}

/* Whether a flag asks for randomness, and which. */
static const char *asks_for_sampling(const struct settings *s)
{
    const struct sampling_settings *p = &s->sample;
    if (s->origin[OPT_temperature] == FROM_FLAG && p->temperature > 0)
        return s->source[OPT_temperature];
    if (s->origin[OPT_top_k] == FROM_FLAG && p->top_k != 1)
        return s->source[OPT_top_k];
    if (s->origin[OPT_top_p] == FROM_FLAG && p->top_p < 1)
        return s->source[OPT_top_p];
    if (s->origin[OPT_min_p] == FROM_FLAG && p->min_p > 0)
        return s->source[OPT_min_p];
    return NULL;
}

static int settle_sampling(struct parser *p)
{
    struct settings *s = p->s;
    const char *asks = asks_for_sampling(s);
    if (s->origin[OPT_do_sample] == FROM_FLAG && !s->sample.do_sample && asks)
        return err_set(
            p->e, ERR_USAGE,
            "%s and %s contradict each other: greedy decoding takes the most likely token, there is "
            "nothing to draw from",
            s->source[OPT_do_sample], asks);
    if (s->origin[OPT_do_sample] == FROM_FLAG && s->sample.do_sample &&
        s->origin[OPT_temperature] == FROM_FLAG && s->sample.temperature == 0)
        return err_set(p->e, ERR_USAGE, "%s and %s 0 contradict each other: temperature 0 is greedy",
                       s->source[OPT_do_sample], s->source[OPT_temperature]);
    if (s->num_beams > 1) {
        warn_to(p->warn, "%s: there is no beam search; num_beams is reset to 1", s->source[OPT_num_beams]);
        s->num_beams = 1;
    }
    const char *const *stop = s->sample.stop.v;
    for (size_t i = 0; i < s->sample.stop.n; i++)
        if (!*stop[i])
            return err_set(p->e, ERR_USAGE, "%s: an empty stop text would end every answer at once",
                           s->source[OPT_stop]);
    return 0;
}

static int settle(struct parser *p)
{
    if (p->s->command == CMD_LAUNCH)
        return 0; /* no model: the command that it launches has settings of its own */
    int err = settle_unsupported(p);
    if (!err)
        err = settle_quant(p);
    if (!err)
        err = settle_split(p);
    if (!err)
        err = settle_prompts(p);
    if (!err)
        err = settle_sampling(p);
    if (!err)
        err = settle_model(p);
    return err;
}

static void set_defaults(struct settings *s)
{
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const struct option *o = &option_table[i];
        struct err e;
        if (!o->fallback)
            continue;
        struct yaml_node v = {.kind = YAML_SCALAR, .text = o->fallback};
        if (option_set(o, s, &v, o->name, &e)) {
            fprintf(stderr, "options.def: %s\n", e.msg); /* a bug in the table, not in the input */
            abort();
        }
    }
}

static int parse_all(struct parser *p)
{
    struct settings *s = p->s;
    int err = parse_arguments(p);
    if (err || s->help)
        return err;
    for (size_t i = 0; i < p->n_given; i++)
        if (p->given[i].option == &option_table[OPT_config])
            s->config = p->given[i].value->text;
    if (s->config)
        err = yaml_parse_file(s->config, s->mem, &p->root, p->e);
    if (!err)
        err = apply_overrides(p);
    if (!err && p->root)
        err = read_tree(p);
    if (!err)
        err = apply_flags(p);
    return err ? err : settle(p);
}

int settings_parse(int argc, const char *const *argv, struct settings *ret, struct warn_sink *warn,
                   struct err *e)
{
    struct settings s = {.mem = arena_new()};
    struct parser p = {.s = &s, .warn = warn, .e = e, .argc = argc, .argv = argv, .ignored = BUF_INIT};
    int err = 0;
    for (unsigned c = 1; command_name(c); c <<= 1)
        if (argc && !strcmp(argv[0], command_name(c)))
            s.command = c;
    if (!s.command)
        err = err_set(e, ERR_USAGE, "unknown command \"%s\"", argc ? argv[0] : "");
    if (!err) {
        set_defaults(&s);
        err = parse_all(&p);
    }
    xfree(p.given);
    xfree(p.override);
    buf_release(&p.ignored);
    if (err)
        settings_release(&s);
    else
        *ret = s;
    return err;
}

void settings_release(struct settings *s)
{
    arena_free(s->mem);
    *s = (struct settings){0};
}

/* --- what the checkpoint says ----------------------------------------------------------------------------
 */

void sampling_settle(struct sampling_settings *p, const uint8_t *origin, struct warn_sink *warn)
{
    /* A flag, or a line of a prompts file, that asks for a temperature asks for sampling. */
    enum origin asked = 0;
    if (p->temperature > 0)
        asked = MAX(asked, origin[OPT_temperature]);
    if (p->top_k != 1)
        asked = MAX(asked, origin[OPT_top_k]);
    if (p->top_p < 1)
        asked = MAX(asked, origin[OPT_top_p]);
    if (p->min_p > 0)
        asked = MAX(asked, origin[OPT_min_p]);
    if (asked == FROM_FLAG && origin[OPT_do_sample] < FROM_FLAG)
        p->do_sample = true;
    if (p->temperature == 0)
        p->do_sample = false;
    if (p->top_k < 0)
        p->top_k = 0;
    if (p->max_new_tokens && p->max_length) {
        bool newer = origin[OPT_max_new_tokens] >= origin[OPT_max_length];
        if (origin[OPT_max_new_tokens] == origin[OPT_max_length] && origin[OPT_max_length] > FROM_CHECKPOINT)
            warn_to(warn, "max_length is not used: max_new_tokens counts");
        *(newer ? &p->max_length : &p->max_new_tokens) = 0;
    }
    if (p->min_new_tokens && p->min_length)
        *(origin[OPT_min_new_tokens] >= origin[OPT_min_length] ? &p->min_length : &p->min_new_tokens) = 0;
    if (!p->max_new_tokens && !p->max_length)
        p->max_new_tokens = DEFAULT_MAX_NEW_TOKENS;
}

static void use_recommendation(struct settings *s, const struct option *o, const json_t *v, const char *where,
                               struct warn_sink *warn)
{
    size_t id = (size_t)(o - option_table);
    const char *what = arena_printf(s->mem, "%s: %s", where, o->hf);
    struct yaml_node *n = yaml_from_json(s->mem, v, what);
    struct err e;
    if (s->origin[id] > FROM_CHECKPOINT || option_is_unset(o, n))
        return;
    option_clear_list(o, s);
    if (option_set(o, s, n, what, &e)) {
        option_clear_list(o, s);
        warn_to(warn, "%s; it is not used", e.msg);
        return;
    }
    s->origin[id] = FROM_CHECKPOINT;
    s->source[id] = what;
}

void settings_use_generation_config(struct settings *s, const json_t *o, const char *where,
                                    struct warn_sink *warn)
{
    for (size_t i = 0; json_is_object(o) && i < OPT_COUNT; i++) {
        const char *name = option_table[i].hf;
        const json_t *v = name ? json_object_get(o, name) : NULL;
        if (v && !json_is_null(v))
            use_recommendation(s, &option_table[i], v, where, warn);
    }
    if (s->num_beams > 1) {
        warn_to(warn, "%s: there is no beam search; num_beams is reset to 1", s->source[OPT_num_beams]);
        s->num_beams = 1;
    }
    sampling_settle(&s->sample, s->origin, warn);
}

/* Equal as numbers, or as words ("True" is true). */
static bool says_the_same(const char *text, const json_t *v)
{
    char *end;
    double x = strtod(text, &end);
    if (json_is_number(v))
        return end != text && !*end && fabs(x - json_number_value(v)) <= 1e-6 * fabs(x);
    if (json_is_boolean(v))
        return !strcasecmp(text, json_is_true(v) ? "true" : "false");
    return !json_is_string(v) || !strcasecmp(text, json_string_value(v));
}

void settings_check_model(const struct settings *s, const json_t *config, struct warn_sink *warn)
{
    for (size_t i = 0; i < s->n_claims; i++) {
        const struct shape_claim *c = &s->claim[i];
        const struct shape_key *k = shape_by_path(c->path);
        const char *at = k ? k->names : NULL, *w;
        size_t n;
        while ((w = next_word(&at, &n))) {
            char name[64];
            snprintf(name, sizeof(name), "%.*s", (int)n, w);
            const json_t *v = json_object_get(config, name);
            if (!v || json_is_null(v) || json_is_object(v) || json_is_array(v))
                continue;
            if (!says_the_same(c->text, v)) {
                char found[64] = "another value";
                if (json_is_integer(v))
                    snprintf(found, sizeof(found), "%lld", (long long)json_integer_value(v));
                else if (json_is_real(v))
                    snprintf(found, sizeof(found), "%g", json_real_value(v));
                else if (json_is_boolean(v))
                    snprintf(found, sizeof(found), "%s", json_is_true(v) ? "true" : "false");
                warn_to(warn,
                        "%s: %s is %s, but the checkpoint's config.json says %s: %s; the checkpoint counts",
                        c->where, c->path, c->text, name, found);
            }
            break;
        }
    }
}
