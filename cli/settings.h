/* settings.h: everything a user can decide, as one plain struct.
 *
 * settings_parse() turns a command line, and the YAML file it names, into a filled `struct settings`. It
 * prints nothing and looks at nothing but the YAML file (and whether the one word of --predict_data is a
 * file). What may be said, under which names, with which bounds and defaults, is the table in options.def;
 * `origin` remembers for each row of it where the value came from, so that precedence is a comparison:
 *
 *     command-line flag > nested override (--a.b value, --options) > YAML > generation_config.json > default
 *
 * Life: settings_parse() fills; settings_use_generation_config() adds what the checkpoint recommends, once it
 * is open; settings_release() frees. All strings live in `mem`. Whoever opens the model calls
 * settings_check_model() with its config.json, which warns where the YAML describes another model.
 */
#ifndef YOKE_CLI_SETTINGS_H
#define YOKE_CLI_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "base/arena.h"
#include "base/cpu.h"
#include "base/err.h"

/* The subcommands, as bits: which of them an option belongs to. */
enum command {
    CMD_RUN = 1 << 0,
    CMD_PLAN = 1 << 1,
    CMD_LOGITS = 1 << 2,
    CMD_TOKENIZE = 1 << 3,
    CMD_TEMPLATE = 1 << 4,
    CMD_LAUNCH = 1 << 5,
    CMD_SHARD = 1 << 6,
    CMD_BENCH = 1 << 7
};

/* In order of precedence. */
enum origin { FROM_DEFAULT = 0, FROM_CHECKPOINT, FROM_YAML, FROM_OVERRIDE, FROM_FLAG };

/* One enumerator per row of the table: OPT_model, OPT_temperature, ... */
enum option_id {
#define OPTION(id, field, type, ...) OPT_##id,
#include "cli/options.def"
#undef OPTION
    OPT_COUNT
};

struct strings {
    const char **v;
    size_t n;
};

struct ints {
    int64_t *v;
    size_t n;
};

enum {
    RUN_MODE_PREDICT,
    RUN_MODE_TRAIN,
    RUN_MODE_FINETUNE,
    RUN_MODE_EVAL,
    RUN_MODE_PREDICT_WITH_TRAIN_MODEL
};
enum { FORMAT_TEXT, FORMAT_JSON, FORMAT_IDS };
enum { PROMPTS_AUTO, PROMPTS_TEXT, PROMPTS_JSONL };
enum { WANT_FULL, WANT_W8A8, WANT_W4 }; /* --quant; the same numbers as enum quant */
enum { CACHE_AUTO, CACHE_F32, CACHE_F16, CACHE_BF16, CACHE_INT8 }; /* --kv-dtype; enum kv_dtype, plus one */
enum { CPU_AUTO = -1 };                                            /* else enum cpu_level */
enum { BIND_NONE, BIND_AUTO, BIND_CORES };                         /* --bind; enum place_bind */
enum { QCFG_NONE, QCFG_INT8, QCFG_INT4 };

/* How tokens are chosen and when a text ends: what one request may set for itself. Lengths count tokens; 0
 * means not set. */
struct sampling_settings {
    bool do_sample; /* false: the most likely token, always */
    double temperature;
    int64_t top_k; /* 0: all */
    double top_p;  /* 1: all */
    double min_p;  /* 0: all */
    double repetition_penalty;
    double presence_penalty, frequency_penalty;
    int64_t seed;
    int64_t max_new_tokens;
    int64_t max_length; /* prompt and answer; only where max_new_tokens is 0 */
    int64_t min_new_tokens;
    int64_t min_length;       /* prompt and answer; only where min_new_tokens is 0 */
    struct ints eos_token_id; /* none: what the checkpoint and the tokenizer say */
    struct strings stop;
    bool ignore_eos;
};

/* A statement of the YAML about the model's shape, to be compared with the checkpoint's own. */
struct shape_claim {
    const char *path;  /* "model.model_config.num_layers" */
    const char *text;  /* "28" */
    const char *where; /* "file.yaml:12:18" */
};

struct settings {
    struct arena *mem;
    enum command command;
    uint8_t origin[OPT_COUNT]; /* enum origin of each row */
    const char
        *source[OPT_COUNT]; /* "--tp", "file.yaml:4:19: parallel_config.model_parallel"; NULL: default */
    bool help;              /* --help was given: nothing else was looked at */

    /* The model. `weights` and `tokenizer` are what to open: filled from --model, load_checkpoint and
     * pretrained_model_dir; NULL if none was given. Where they differ, the tokenizer's folder is also where
     * config.json and generation_config.json are. */
    const char *weights, *tokenizer;
    const char *model, *load_checkpoint, *pretrained_model_dir, *config;
    struct shape_claim *claim;
    size_t n_claims;

    /* MindFormers' way of starting. */
    int run_mode;
    bool use_parallel;
    bool auto_trans_ckpt; /* a shard set written for another split is cut anew */
    const char *src_strategy, *output_dir;
    struct strings predict_data, modal_type, adapter_id, overrides;
    const char *pet_type;

    /* What to answer. */
    struct strings prompts;
    const char *prompts_file; /* "-": standard input */
    int prompts_format;
    bool prompts_unescape; /* "\n" in a line of the prompts file is a newline (--predict_data FILE) */
    bool chat, interactive;
    const char *system;
    const char *output; /* NULL: text on standard output only; shard: the folder to write */
    bool skip_special_tokens, skip_prompt;
    struct sampling_settings sample;
    int64_t num_beams;

    /* The engine. 0 in a count: yoke chooses. */
    bool use_past;
    int64_t block_size, num_blocks, seq_length, max_batch, prefill_chunk, threads;
    int cpu, bind;
    int quant, kv_dtype;
    bool verify; /* shard sets: compare the bytes with their sums */
    const char *compute_dtype, *params_dtype;
    uint64_t memory;       /* bytes; 0: what the machine has */
    uint64_t expert_cache; /* bytes of each rank; 0: all experts are in memory */
    const char *expert_cache_dir;
    bool stats;
    const char *stats_json, *trace;
    struct {
        const char *method, *engine;
        int weight, activation, kvcache;
    } quant_config; /* the YAML's quantization_config; `quant` and `kv_dtype` are what follows from it */

    /* The split. */
    int64_t tp, pp, dp, ep, cp, micro_batches;

    /* yoke launch. */
    int64_t ranks; /* 0: what the command's degrees multiply to */
    const char *hosts, *hostfile, *log_dir, *mpirun_args;
    const char *const *rest; /* the command to launch and its arguments; part of the argv parsed */
    int n_rest;

    /* yoke plan, logits, tokenize, template. */
    struct ints ids;
    int format;
    bool all_positions;
    const char *file;
    bool parse_special, add_special;
    const char *messages, *tools, *template_file;
    bool generation_prompt;
    struct strings vars;

    /* yoke plan --auto, yoke bench. */
    bool advise;
    int64_t cluster_hosts, cores, numa, prompt_tokens, answer_tokens;
    int goal;        /* enum cost_goal */
    const char *net; /* "100Gb", "100Gb,3us" */
    const char *weights_dtype;
    const char *bench_file;
};

/* argv[0] is the subcommand's name, argv[1..] its arguments. On success the settings are the caller's to
 * release; on failure there is nothing to release. Warnings go to `warn`. Errors are ERR_USAGE. */
int settings_parse(int argc, const char *const *argv, struct settings *ret, struct warn_sink *warn,
                   struct err *e);
void settings_release(struct settings *s); /* fine for a zeroed one */

/* Takes what a generation_config.json recommends, where neither flags nor YAML said anything, and settles the
 * sampling settings among themselves. To be called once, before `sample` is used; `o` is NULL where the
 * checkpoint recommends nothing. A recommendation that is out of range is warned about and left. */
void settings_use_generation_config(struct settings *s, const json_t *o, const char *where,
                                    struct warn_sink *warn);

/* Warns where the YAML states a shape (num_layers: 28) that the checkpoint's config.json contradicts. The
 * checkpoint is what runs. */
void settings_check_model(const struct settings *s, const json_t *config, struct warn_sink *warn);

/* The same settling, for settings of which some were overlaid later (a line of a prompts file): temperature 0
 * means greedy, asking for a temperature means sampling, of two lengths that exclude each other the one with
 * the higher origin stays. Sentences about what was dropped go to `warn`. */
void sampling_settle(struct sampling_settings *p, const uint8_t *origin, struct warn_sink *warn);

#endif
