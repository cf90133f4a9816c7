#include "cli/help.h"

#include <string.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/suggest.h"

struct command_info {
    enum command command; /* 0: it has no options */
    const char *name, *line, *more;
};

static const struct command_info commands[] = {
    {CMD_RUN, "run", "answer prompts: from -p, a file, or the terminal",
     "yoke run -m MODEL -p \"The capital of France is\" --tp 4\n"
     "yoke run -m MODEL --chat --interactive --temperature 0.7\n"
     "yoke run --config predict_qwen3_8b.yaml --prompts-file prompts.jsonl -o answers.jsonl"},
    {CMD_LAUNCH, "launch", "start a command as many processes, on one host or several",
     "yoke launch -n 4 -- run -m MODEL -p \"Hello\" --tp 4\n"
     "yoke launch --hosts n1,n2 -- run --config predict_qwen3_8b.yaml --tp 8"},
    {CMD_PLAN, "plan", "show how a model would be split over ranks, and the memory it takes",
     "yoke plan -m MODEL --tp 4 --pp 2 --memory 64GB\n"
     "yoke plan -m MODEL --auto --hosts 4 --cores 64 --memory 256GB --net 100Gb --goal throughput"},
    {CMD_BENCH, "bench", "measure this machine, for the advice of yoke plan --auto",
     "yoke bench -o machine.json && yoke plan -m MODEL --auto --bench machine.json"},
    {CMD_TOKENIZE, "tokenize", "turn text into token ids, or ids into text",
     "yoke tokenize -m MODEL -p \"Hello\"\nyoke tokenize -m MODEL --ids 9906,11"},
    {CMD_TEMPLATE, "template", "put messages through a model's chat template",
     "yoke template -m MODEL --system \"Be brief.\" -p \"Who are you?\"\n"
     "yoke template -m MODEL --messages chat.json --var enable_thinking=false"},
    {CMD_LOGITS, "logits", "the model's scores for what comes next",
     "yoke logits -m MODEL -p \"The capital of France is\" --json"},
    {CMD_SHARD, "shard", "pack a model for a split, once, so that runs start at once; or check such a set",
     "yoke shard -m MODEL --tp 4 --quant w8a8 -o MODEL-tp4\n"
     "yoke run -m MODEL-tp4 -p \"The capital of France is\"\n"
     "yoke shard -m MODEL-tp4 --verify"},
    {0, "options", "print the reference of all options (docs/options.md)", NULL},
    {0, "version", "print the version", NULL},
    {0, "help", "explain a command, an option or a YAML key: yoke help top_k", NULL},
};

struct exit_info {
    int code;
    const char *meaning;
};

static const struct exit_info exits[] = {
    {0, "success"},
    {1, "another failure"},
    {2, "the command line or the configuration is wrong"},
    {3, "a model or a file cannot be read, is not what it should be, or needs what yoke does not do"},
    {4, "the model cannot be split that way, or the ranks disagree"},
    {5, "it does not fit in memory"},
    {6, "another rank died or stopped answering"},
    {7, "a stated bound was exceeded (context length, sizes)"},
    {127, "a program that is needed (mpirun, ssh) is missing"},
    {130, "interrupted"},
    {137, "a launched rank was killed (128 + the signal's number; 139: it crashed)"},
};

const char *exit_meaning(int exit_code)
{
    for (size_t i = 0; i < ARRAY_LEN(exits); i++)
        if (exits[i].code == exit_code)
            return exits[i].meaning;
    return NULL;
}

int exit_code_of(int code)
{
    if (code > 0)
        return code;
    switch (code) {
    case 0:
        return 0;
    case ERR_USAGE:
        return 2;
    case ERR_IO:
    case ERR_FORMAT:
    case ERR_UNSUPPORTED:
        return 3;
    case ERR_SPLIT:
        return 4;
    case ERR_MEMORY:
        return 5;
    case ERR_RANK_LOST:
        return 6;
    case ERR_LIMIT:
        return 7;
    case ERR_INTERRUPTED:
        return 130;
    default:
        return 1;
    }
}

/* Words of `text` from column `indent` on, broken before HELP_COLUMNS. */
static void add_wrapped(struct buf *out, const char *text, size_t indent, size_t column)
{
    size_t n;
    const char *w;
    bool first = true;
    while ((w = next_word(&text, &n))) {
        if (!first && column + 1 + n > HELP_COLUMNS) {
            buf_addf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!first) {
            buf_addc(out, ' ');
            column++;
        }
        buf_add(out, w, n);
        column += n;
        first = false;
    }
    buf_addc(out, '\n');
}

static const char *group_note(enum option_group g)
{
    switch (g) {
    case G_SAMPLING:
        return "what neither flags nor YAML say is taken from the model's generation_config.json";
    case G_SPLIT:
        return "tp x pp x dp ranks; ep is carved out of tp x dp";
    case G_MINDFORMERS:
        return "so that commands and files written for it work as they are";
    default:
        return NULL;
    }
}

static void add_exit_codes(struct buf *out)
{
    buf_adds(out, "Exit codes:\n");
    for (size_t i = 0; i < ARRAY_LEN(exits); i++)
        buf_addf(out, "  %3d  %s\n", exits[i].code, exits[i].meaning);
}

void help_overview(struct buf *out)
{
    buf_adds(out, "yoke: large language models from many processors that pull together\n\n"
                  "Usage: yoke COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        buf_addf(out, "  %-9s %s\n", commands[i].name, commands[i].line);
    buf_adds(out,
             "\nExamples:\n"
             "  yoke run -m ./Qwen3-8B --chat -p \"Why is the sky blue?\" --tp 4\n"
             "  yoke run --config configs/predict_qwen3_8b.yaml --load_checkpoint ./Qwen3-8B \\\n      "
             "--predict_data \"Hello\"\n\n"
             "'yoke COMMAND --help' lists a command's options; 'yoke help NAME' explains an option or a YAML "
             "key.\n\n");
    add_exit_codes(out);
}

/* "-m, --model PATH"; for bools with default true the form that changes something. */
static void add_flag_column(const struct option *o, struct buf *out)
{
    const char *at = o->flags, *w;
    size_t n;
    bool first = true, is_long = false;
    while ((w = next_word(&at, &n))) {
        if (w[1] == '-' && is_long && !memchr(w, '=', n))
            continue; /* other spellings: yoke help */
        is_long |= w[1] == '-';
        const char *eq = memchr(w, '=', n);
        buf_addf(out, "%s%.*s", first ? "" : ", ", (int)(eq ? eq - w : (long)n), w);
        first = false;
    }
    if (o->type == T_ENUM)
        buf_addf(out, " %s", strlen(o->values) <= 24 ? o->values : "NAME");
    else if (o->arg)
        buf_addf(out, " %s", o->arg);
    else if (o->type == T_BOOL && o->fallback && !strcmp(o->fallback, "true"))
        buf_adds(out, " BOOL");
}

static const char *default_of(const struct option *o)
{
    return o->default_text ? o->default_text : o->fallback;
}

static void add_option_line(const struct option *o, struct buf *out)
{
    enum { INDENT = 30 };
    size_t start = out->len;
    buf_adds(out, "  ");
    add_flag_column(o, out);
    size_t column = out->len - start;
    if (column + 2 > INDENT) {
        buf_addc(out, '\n');
        column = 0;
    }
    buf_addf(out, "%*s", (int)(INDENT - column), "");
    struct buf text = BUF_INIT;
    buf_adds(&text, o->help);
    if (o->type == T_ENUM && strlen(o->values) > 24) {
        buf_adds(&text, ": ");
        option_describe_values(o, &text);
    }
    const char *d = default_of(o);
    if (d && !(o->type == T_BOOL && !strcmp(d, "false")))
        buf_addf(&text, " [%s]", d);
    add_wrapped(out, text.s, INDENT, INDENT);
    buf_release(&text);
}

void help_command(enum command c, struct buf *out)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (commands[i].command == c) {
            buf_addf(out, "yoke %s: %s\n\nUsage:\n", commands[i].name, commands[i].line);
            for (const char *l = commands[i].more; l && *l;) {
                size_t n = strcspn(l, "\n");
                buf_addf(out, "  %.*s\n", (int)n, l);
                l += n + (l[n] == '\n');
            }
        }
    for (int g = 0; g < G_COUNT; g++) {
        bool any = false;
        for (size_t i = 0; i < OPT_COUNT; i++) {
            const struct option *o = &option_table[i];
            if (o->group != (enum option_group)g || !o->flags || !(o->commands & c))
                continue;
            if (!any) {
                const char *note = group_note((enum option_group)g);
                buf_addf(out, "\n%s", group_title((enum option_group)g));
                if (note)
                    buf_addf(out, " (%s)", note);
                buf_adds(out, ":\n");
            }
            any = true;
            add_option_line(o, out);
        }
    }
    buf_adds(out, "\n");
    add_wrapped(
        out,
        "In flags '_' and '-' are the same. A flag without a value turns a setting on, --no-NAME turns it "
        "off, "
        "--NAME True and --NAME False say so. --a.b.c VALUE sets a key of the YAML file. Flags win over "
        "--a.b.c, that over the YAML file, that over the model's generation_config.json, that over the "
        "defaults in [brackets].",
        0, 0);
    buf_adds(out, "\n");
    add_exit_codes(out);
}

/* A list separated by spaces, as "a, b". */
static void add_list(struct buf *out, const char *words, const char *quote)
{
    const char *w;
    size_t n;
    bool first = true;
    while ((w = next_word(&words, &n))) {
        buf_addf(out, "%s%s%.*s%s", first ? "" : ", ", quote, (int)n, w, quote);
        first = false;
    }
}

static void add_flags_list(struct buf *out, const struct option *o, const char *quote)
{
    const char *at = o->flags, *w;
    size_t n;
    bool first = true;
    while ((w = next_word(&at, &n))) {
        const char *eq = memchr(w, '=', n);
        buf_addf(out, "%s%s%.*s%s", first ? "" : ", ", quote, (int)(eq ? eq - w : (long)n), w, quote);
        first = false;
    }
}

/* The commands that take the option, in one line. */
static void add_commands(const struct option *o, struct buf *out)
{
    bool first = true;
    for (unsigned c = 1; command_name(c); c <<= 1)
        if (o->commands & c) {
            buf_addf(out, "%s%s", first ? "" : ", ", command_name(c));
            first = false;
        }
}

static void explain(const struct option *o, struct buf *out)
{
    buf_adds(out, o->name);
    buf_adds(out, "\n  ");
    add_wrapped(out, o->help, 2, 2);
    if (o->flags) {
        buf_adds(out, "  flags:    ");
        add_flags_list(out, o, "");
        buf_adds(out, "\n");
    }
    if (o->yaml) {
        buf_adds(out, "  YAML:     ");
        struct buf keys = BUF_INIT;
        add_list(&keys, o->yaml, "");
        add_wrapped(out, keys.s, 12, 12);
        buf_release(&keys);
    }
    buf_adds(out, "  values:   ");
    option_describe_values(o, out);
    buf_adds(out, "\n");
    if (default_of(o))
        buf_addf(out, "  default:  %s\n", default_of(o));
    if (o->hf)
        buf_addf(out, "  also:     %s in the model's generation_config.json\n", o->hf);
    buf_adds(out, "  commands: ");
    add_commands(o, out);
    buf_adds(out, "\n");
}

static bool leaf_is(const char *path, size_t n, const char *leaf)
{
    size_t m = strlen(leaf);
    return n > m && path[n - m - 1] == '.' && !memcmp(path + n - m, leaf, m);
}

static void explain_ignored(const char *path, const char *reason, struct buf *out)
{
    buf_addf(out, "%s\n  changes nothing: ", path);
    add_wrapped(out, reason, 2, 19);
}

static void explain_shape(const struct shape_key *k, struct buf *out)
{
    buf_addf(out, "%s\n  ", k->path);
    struct buf b = BUF_INIT;
    buf_adds(&b, "describes the model, as ");
    add_list(&b, k->names, "");
    buf_adds(&b,
             " in the checkpoint's config.json, which is what counts; a warning says where the two differ");
    add_wrapped(out, b.s, 2, 2);
    buf_release(&b);
}

/* Every option and key that goes by this name, or has it as its last part. */
static bool explain_all(const char *topic, struct arena *a, struct buf *out)
{
    bool any = false;
    struct flag_hit hit = {0};
    char *flag = xasprintf("%s%s", *topic == '-' ? "" : "--", topic);
    if (option_by_flag(flag, strlen(flag), CMD_ANY, &hit)) {
        explain(hit.option, out);
        any = true;
    }
    xfree(flag);
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const struct option *o = &option_table[i];
        const char *at = o->yaml, *w;
        size_t n;
        bool fits = !strcmp(o->name, topic);
        while (!fits && (w = next_word(&at, &n)))
            fits = leaf_is(w, n, topic) || (n == strlen(topic) && !memcmp(w, topic, n));
        if (fits && o != hit.option) {
            buf_adds(out, any ? "\n" : "");
            explain(o, out);
            any = true;
        }
    }
    for (size_t i = 0; i < n_shapes; i++)
        if (!strcmp(shape_table[i].path, topic) ||
            leaf_is(shape_table[i].path, strlen(shape_table[i].path), topic)) {
            buf_adds(out, any ? "\n" : "");
            explain_shape(&shape_table[i], out);
            any = true;
        }
    const char *reason = any ? NULL : ignored_reason(topic, a, NULL);
    if (reason) {
        explain_ignored(topic, reason, out);
        return true;
    }
    for (size_t i = 0; i < n_ignored && !any; i++) {
        const char *at = ignored_table[i].patterns, *w;
        size_t n;
        while ((w = next_word(&at, &n)))
            if (leaf_is(w, n, topic)) {
                explain_ignored(arena_strndup(a, w, n), ignored_table[i].reason, out);
                any = true;
                break;
            }
    }
    /* The last part of a key of a section: device_target of context, and the like. */
    static const char *const sections[] = {"model.model_config", "parallel_config", "moe_config",
                                           "generation_config",  "context",         "parallel",
                                           "processor",          "trainer",         "runner_config"};
    for (size_t i = 0; i < ARRAY_LEN(sections) && !any && strcspn(topic, ".-") == strlen(topic); i++) {
        const char *path = arena_printf(a, "%s.%s", sections[i], topic);
        const char *shown;
        reason = ignored_reason(path, a, &shown);
        if (reason && !strcmp(shown, path)) {
            explain_ignored(path, reason, out);
            any = true;
        }
    }
    return any;
}

int help_topic(const char *topic, struct buf *out, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (!strcmp(commands[i].name, topic)) {
            if (commands[i].command)
                help_command(commands[i].command, out);
            else
                buf_addf(out, "yoke %s: %s\n", commands[i].name, commands[i].line);
            return 0;
        }
    struct arena *a = arena_new();
    int err = 0;
    if (!explain_all(topic, a, out)) {
        struct suggest s;
        suggest_init(&s, topic, strlen(topic));
        for (size_t i = 0; i < ARRAY_LEN(commands); i++)
            suggest_try(&s, commands[i].name, strlen(commands[i].name));
        for (size_t i = 0; i < OPT_COUNT; i++)
            suggest_try(&s, option_table[i].name, strlen(option_table[i].name));
        const char *near = *topic == '-' ? nearest_flag(topic, CMD_ANY, a) : nearest_path(topic, a);
        if (s.best || near)
            err = err_set(e, ERR_USAGE, "there is no option or key \"%s\"; did you mean %s?", topic,
                          s.best ? s.best : near);
        else
            err = err_set(e, ERR_USAGE, "there is no option or key \"%s\"; 'yoke options' lists them all",
                          topic);
    }
    arena_free(a);
    return err;
}

static void add_type(const struct option *o, struct buf *out)
{
    struct buf b = BUF_INIT;
    option_describe_values(o, &b);
    for (const char *c = b.s; *c; c++)
        buf_addf(out, *c == '|' ? "\\%c" : "%c", *c);
    buf_release(&b);
}

static void add_row(const struct option *o, struct buf *out)
{
    buf_adds(out, "| ");
    add_flags_list(out, o, "`");
    buf_adds(out, " | ");
    add_list(out, o->yaml, "`");
    buf_adds(out, " | ");
    add_type(o, out);
    buf_addf(out, " | %s | ", default_of(o) ? default_of(o) : "");
    for (const char *c = o->help; *c; c++)
        buf_addf(out, *c == '|' ? "\\%c" : "%c", *c);
    if (o->commands != CMD_ALL) {
        buf_adds(out, " (");
        add_commands(o, out);
        buf_adds(out, ")");
    }
    buf_adds(out, o->flag & OF_PER_PROMPT ? " † |\n" : " |\n");
}

static const char precedence[] =
    "## Who wins\n\n"
    "For each setting, the first of these that says something counts:\n\n"
    "1. its flag on the command line (`--top-k 20`; of a flag given twice, the last one; flags for lists add "
    "up),\n"
    "2. an override of a YAML key on the command line (`--model.model_config.top_k 20`, or\n"
    "   `--options model.model_config.top_k=20`), which is put into the YAML tree before that is read,\n"
    "3. the YAML file of `--config`; where a setting has several keys, the first in its row of the table,\n"
    "4. the model's `generation_config.json`, for sampling,\n"
    "5. the default.\n\n"
    "The YAML file wins over the checkpoint. So `do_sample: False` in it means greedy, whatever the "
    "checkpoint\n"
    "recommends. A flag that only makes sense with sampling (`--temperature 0.7`, `--top-p 0.9`) turns "
    "sampling on;\n"
    "a YAML key does not. Contradictions of equal rank (`--greedy --temperature 0.7`, `-p` with "
    "`--prompts-file`)\n"
    "are errors; of unequal rank the higher one wins.\n\n"
    "The weights come from `--model`, else `load_checkpoint`, else `pretrained_model_dir`. Where the last "
    "two are\n"
    "both given, tokenizer and configuration come from `pretrained_model_dir`.\n\n"
    "In flags `_` and `-` are the same: `--predict_batch_size` is `--predict-batch-size`. A flag of type "
    "true/false\n"
    "may stand alone (true), take `True` or `False`, or be turned off with `--no-NAME`. A top-level YAML key "
    "is a\n"
    "flag too.\n\n"
    "An unknown flag is an error, an unknown YAML key a warning with its place; both name what was probably "
    "meant.\n"
    "A YAML file is one document of at most 1 MiB, 10 levels and 20000 values (aliases counted in full); "
    "anchors,\n"
    "aliases and merge keys work, a key that stands twice is an error.\n\n";

void help_markdown(struct buf *out)
{
    buf_adds(
        out,
        "# Options of yoke\n\n"
        "<!-- Printed by `yoke options` from cli/options.def and cli/ignored.def; do not edit. -->\n\n"
        "Each row is one setting: its flags, its keys in a YAML file (dotted: "
        "`parallel_config.model_parallel` is\n"
        "`model_parallel:` below `parallel_config:`), what it may be, its default, what it means, and in\n"
        "parentheses the commands that know it, unless all do. † marks what a line of a prompts file may set "
        "for\n"
        "itself.\n\n");
    for (int g = 0; g < G_COUNT; g++) {
        const char *note = group_note((enum option_group)g);
        buf_addf(out, "## %s\n\n", group_title((enum option_group)g));
        if (note)
            buf_addf(out, "(%s)\n\n", note);
        buf_adds(out, "| flags | YAML keys | values | default | meaning |\n|---|---|---|---|---|\n");
        for (size_t i = 0; i < OPT_COUNT; i++)
            if (option_table[i].group == (enum option_group)g)
                add_row(&option_table[i], out);
        buf_adds(out, "\n");
    }
    buf_adds(out, precedence);
    buf_adds(out, "## Keys that describe the model\n\n"
                  "Read, compared with the checkpoint's `config.json`, and warned about where they differ; "
                  "the checkpoint\n"
                  "counts.\n\n| YAML key | in config.json |\n|---|---|\n");
    for (size_t i = 0; i < n_shapes; i++) {
        buf_addf(out, "| `%s` | ", shape_table[i].path);
        add_list(out, shape_table[i].names, "`");
        buf_adds(out, " |\n");
    }
    buf_adds(out, "\n## Keys that change nothing here\n\n"
                  "Accepted in MindFormers' files and named in one warning. `x.*` is all below `x`; another "
                  "`*` is any\n"
                  "text.\n\n");
    for (size_t i = 0; i < n_ignored; i++) {
        buf_addf(out, "- %s: ", ignored_table[i].reason);
        add_list(out, ignored_table[i].patterns, "`");
        buf_adds(out, "\n");
    }
    buf_adds(out, "\n## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for (size_t i = 0; i < ARRAY_LEN(exits); i++)
        buf_addf(out, "| %d | %s |\n", exits[i].code, exits[i].meaning);
}
