#include "cli/session.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/arena.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cli/transport.h"
#include "engine/shard.h"
#include "formats/shardset.h"
#include "formats/source.h"

/* MindFormers configs are also written for dp x tp x pp x ep ranks; what they mean by it is more replicas. */
static void settle_degrees(struct settings *s, struct warn_sink *warn)
{
    int64_t ranks = s->tp * s->pp * s->dp, launched = comm_mpi_launched();
    if (s->ep == 1 || !launched || launched == ranks || launched != ranks * s->ep)
        return;
    warn_to(
        warn,
        "%lld ranks were launched for data %lld x pipeline %lld x tensor %lld: read as data parallelism of "
        "%lld x %lld",
        (long long)launched, (long long)s->dp, (long long)s->pp, (long long)s->tp, (long long)s->dp,
        (long long)s->ep);
    s->dp *= s->ep;
}

enum kv_dtype session_kv_dtype(const struct settings *s, const struct checkpoint *c)
{
    if (s->kv_dtype != CACHE_AUTO)
        return (enum kv_dtype)(s->kv_dtype - CACHE_F32);
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const struct tensor *t = checkpoint_tensor(c, i);
        if (t->n_dims == 2 && t->dtype != DT_F32)
            return KV_F16;
    }
    return s->quant == WANT_FULL ? KV_F32 : KV_F16;
}

/* "--dp 1 --tp 2 --pp 1 --ep 1", and where that was said. */
static void say_split(const struct settings *s, struct buf *out)
{
    static const enum option_id degree[] = {OPT_dp, OPT_tp, OPT_pp, OPT_ep};
    buf_addf(out, "--dp %lld --tp %lld --pp %lld --ep %lld", (long long)s->dp, (long long)s->tp,
             (long long)s->pp, (long long)s->ep);
    for (size_t i = 0; i < ARRAY_LEN(degree); i++)
        if (s->origin[degree[i]] != FROM_DEFAULT && s->origin[degree[i]] != FROM_FLAG)
            buf_addf(out, " (%s)", s->source[degree[i]]);
}

/* The degrees that nobody gave are the set's; those that were given must be the set's, unless it may be cut
 * anew. */
static int adopt_split(struct settings *s, const struct shardset *set, struct err *e)
{
    const struct shardset_info *i = shardset_info(set);
    int replicas =
        i->ranks / (i->tp * i->pp); /* 1 unless experts are spread over them: any number can map it */
    const struct {
        enum option_id id;
        int64_t *said;
        int have;
    } degree[] = {{OPT_tp, &s->tp, i->tp},
                  {OPT_pp, &s->pp, i->pp},
                  {OPT_ep, &s->ep, i->ep},
                  {OPT_dp, &s->dp, replicas}};
    size_t n = replicas > 1 ? 4 : 3;
    bool same = true;
    for (size_t k = 0; k < n; k++)
        if (s->origin[degree[k].id] != FROM_DEFAULT || !s->use_parallel)
            same &= *degree[k].said == degree[k].have;
    for (size_t k = 0; k < n && same; k++)
        *degree[k].said = degree[k].have;
    if (same || s->auto_trans_ckpt)
        return 0;
    struct buf said = BUF_INIT;
    say_split(s, &said);
    int rc = err_set(e, ERR_SPLIT,
                     "%s was written for --dp %d --tp %d --pp %d --ep %d, but asked for is %s; give the "
                     "former (or nothing), "
                     "or --auto-trans-ckpt True to have it cut anew",
                     shardset_path(set), replicas, i->tp, i->pp, i->ep, said.s);
    buf_release(&said);
    return rc;
}

static int adopt_quant(struct settings *s, const struct shardset *set, struct err *e)
{
    const struct shardset_info *i = shardset_info(set);
    for (enum quant q = QUANT_NONE; q <= QUANT_W4; q++) {
        if (strcmp(shard_quant_name(q), i->quant))
            continue;
        if (s->origin[OPT_quant] != FROM_DEFAULT && s->quant != (int)q)
            return err_set(
                e, ERR_USAGE,
                "%s was written with --quant %s, but %s asks for %s; what is packed cannot be converted: "
                "write a set from the model itself",
                shardset_path(set), i->quant, s->source[OPT_quant], shard_quant_name((enum quant)s->quant));
        s->quant = (int)q;
        return 0;
    }
    return err_set(e, ERR_UNSUPPORTED, "%s: \"quant\" is \"%s\", which this yoke does not know",
                   shardset_path(set), i->quant);
}

/* A shard set says what a run has not said, and what it may not say. */
static int adopt_set(struct settings *s, const struct shardset *set, struct err *e)
{
    const struct shardset_info *i = shardset_info(set);
    enum source_state state;
    struct err why;
    int rc = adopt_quant(s, set, e);
    if (!rc && s->command != CMD_SHARD)
        rc = adopt_split(s, set, e);
    if (!rc && i->source && source_compare(i->source, shardset_path(set), false, &state, &why))
        rc = err_set(
            e, why.code,
            "%s: the model that it was made from is another one now: %s; write the set again, or, if it is "
            "right as it is, take \"source\" out of its manifest.json",
            shardset_path(set), why.msg);
    return rc;
}

static int open_model(struct session *x, struct warn_sink *warn, struct err *e)
{
    struct settings *s = x->settings;
    if (!s->weights)
        return err_set(e, ERR_USAGE, "no model given: -m FOLDER or -m FILE.gguf");
    const char *configs = s->tokenizer && strcmp(s->tokenizer, s->weights) ? s->tokenizer : NULL;
    int rc = checkpoint_open_with(s->weights, configs, warn, &x->checkpoint, e);
    if (rc)
        return rc;
    if (checkpoint_shardset(x->checkpoint)) {
        rc = adopt_set(s, checkpoint_shardset(x->checkpoint), e);
        if (rc)
            return rc;
    }
    settings_check_model(s, checkpoint_config(x->checkpoint), warn);
    settings_use_generation_config(s, checkpoint_generation_config(x->checkpoint), "generation_config.json",
                                   warn);
    rc = model_build(checkpoint_config(x->checkpoint), warn, &x->graph, &x->hparams, e);
    if (rc)
        return err_prefix(e, "%s", s->weights);
    return load_check(x->checkpoint, x->graph, warn, e); /* before any size is computed from it */
}

static int open_tokenizer(struct session *x, struct err *e)
{
    const struct gguf *g = checkpoint_gguf(x->checkpoint);
    const char *path = x->settings->tokenizer ? x->settings->tokenizer : x->settings->weights;
    if (g && (!x->settings->tokenizer || !strcmp(x->settings->tokenizer, x->settings->weights)))
        return tokenizer_from_gguf(g, &x->tokenizer, e);
    return tokenizer_open_dir(path, &x->tokenizer, e);
}

static void add_eos(struct session *x, int64_t id)
{
    for (size_t i = 0; i < x->eos.n; i++)
        if (x->eos.id[i] == id)
            return;
    if (id < 0 || id >= x->hparams.vocab)
        return;
    XGROW(x->eos.id, x->eos.n, x->eos.cap);
    x->eos.id[x->eos.n++] = (int32_t)id;
}

static void add_eos_of(struct session *x, const json_t *config)
{
    const json_t *v = json_object_get(config, "eos_token_id");
    if (json_is_integer(v))
        add_eos(x, json_integer_value(v));
    for (size_t i = 0; i < json_array_size(v); i++)
        add_eos(x, json_integer_value(json_array_get(v, i)));
}

/* generation_config.json's ids; where it has none, config.json's; and the tokenizer's own. */
static void find_eos(struct session *x)
{
    add_eos_of(x, checkpoint_generation_config(x->checkpoint));
    if (!x->eos.n)
        add_eos_of(x, checkpoint_config(x->checkpoint));
    if (x->tokenizer)
        add_eos(x, tokenizer_eos(x->tokenizer));
}

/* Free memory of this machine or, if that is less, what its cgroup leaves. */
static uint64_t free_memory(void)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char line[256];
    FILE *f = fopen("/proc/meminfo", "re");
    unsigned long long kb, max, used;
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1)
            bytes = kb * 1024;
    if (f)
        fclose(f);
    FILE *m = fopen("/sys/fs/cgroup/memory.max", "re"), *c = fopen("/sys/fs/cgroup/memory.current", "re");
    if (m && c && fscanf(m, "%llu", &max) == 1 && fscanf(c, "%llu", &used) == 1 && max > used)
        bytes = MIN(bytes, max - used);
    if (m)
        fclose(m);
    if (c)
        fclose(c);
    return bytes;
}

void session_cache_add(struct session_cache *c, const struct plan *p, uint64_t bytes)
{
    struct plan_cache one;
    plan_cache(p, bytes, &one);
    c->experts += one.records;
    if (one.slots < one.least && (uint64_t)one.least * one.slot_bytes > c->least_bytes) {
        c->least_bytes = (uint64_t)one.least * one.slot_bytes;
        c->least = one;
    }
}

int session_cache_check(const struct session_cache *c, const struct settings *s, struct err *e)
{
    if (!s->expert_cache)
        return 0;
    if (!c->experts)
        return err_set(e, ERR_USAGE, "--expert-cache: %s has no experts", s->weights);
    if (!c->least_bytes)
        return 0;
    return err_set(
        e, ERR_MEMORY,
        "%s: --expert-cache of %.3f GiB holds %d experts of a rank, but a layer has %d of them on one "
        "rank, and all may be wanted at once: the smallest size for this split is %llu (%.3f GiB); "
        "with experts spread further (--ep, --tp) less is enough",
        s->weights, (double)s->expert_cache / 0x1p30, c->least.slots, c->least.least,
        (unsigned long long)c->least_bytes, (double)c->least_bytes / 0x1p30);
}

/* What the fullest rank needs. */
struct needs {
    uint64_t weights, work, page;
};

static int measure_rank(struct session *x, const struct team_options *o, int lane, int stage, int rank,
                        struct needs *n, struct session_cache *cache, struct err *e)
{
    struct checkpoint_source source;
    checkpoint_source_init(&source, x->checkpoint);
    struct plan_options po = {.tp = o->tp,
                              .rank = rank,
                              .pp = o->pp,
                              .stage = stage,
                              .ep = o->ep,
                              .dp = o->dp,
                              .lane = lane,
                              .source = &source.base,
                              .quant = o->quant,
                              .kv = o->kv,
                              .max_tokens = o->max_tokens,
                              .max_out = o->max_out,
                              .page_tokens = o->page_tokens};
    struct plan *p;
    struct plan_cache c;
    int rc = plan_make(x->graph, &po, &p, e);
    if (rc)
        return err_prefix(e, "%s", x->settings->weights);
    plan_cache(p, o->expert_cache ? o->expert_cache : UINT64_MAX, &c);
    session_cache_add(cache, p, o->expert_cache);
    if (c.weight_bytes + p->work_bytes > n->weights + n->work) {
        n->weights = c.weight_bytes;
        n->work = p->work_bytes;
    }
    n->page = MAX(n->page, p->kv_page_bytes);
    plan_free(p);
    return 0;
}

/* The fullest stage decides, and its last rank: uneven shares leave the most for it (plan/split.c). A cache
 * for experts must do for every rank. */
static int measure(struct session *x, const struct team_options *o, struct needs *n, struct err *e)
{
    struct session_cache cache = {0};
    bool each = o->expert_cache > 0;
    int rc = 0;
    *n = (struct needs){0};
    for (int lane = each ? 0 : o->dp - 1; lane < o->dp; lane++)
        for (int stage = 0; stage < o->pp; stage++)
            for (int rank = each ? 0 : o->tp - 1; rank < o->tp && !rc; rank++)
                rc = measure_rank(x, o, lane, stage, rank, n, &cache, e);
    return rc ? rc : session_cache_check(&cache, x->settings, e);
}

/* The sizes left open. KV pages are address space until they are touched, so room for the whole context of
 * every sequence is asked for, as long as it could fit. */
static int choose_sizes(struct session *x, int32_t batch_hint, int32_t max_out, struct team_options *o,
                        struct warn_sink *warn, struct err *e)
{
    struct settings *s = x->settings;
    o->tp = (int)s->tp;
    o->pp = (int)s->pp;
    o->dp = (int)s->dp;
    o->ep = (int)s->ep;
    o->depth = (int)(s->micro_batches > 1 ? s->micro_batches : s->pp);
    o->threads = (int)s->threads;
    o->bind = (enum place_bind)s->bind;
    o->level = s->cpu == CPU_AUTO ? cpu_level_native() : (enum cpu_level)s->cpu;
    o->quant = (enum quant)s->quant;
    o->kv = session_kv_dtype(s, x->checkpoint);
    o->page_tokens = (int32_t)s->block_size;
    o->profile = s->stats || s->stats_json;
    o->reslice = s->auto_trans_ckpt;
    o->verify = s->verify;
    o->trace = s->trace != NULL;
    o->expert_cache = s->expert_cache;
    o->spill_dir = s->expert_cache_dir;
    x->max_context = s->seq_length ? (int32_t)s->seq_length : x->hparams.max_position;
    if (x->max_context > x->hparams.max_position) {
        warn_to(warn,
                "the context is %d tokens: the model was made for no more, though %lld were asked for "
                "(seq_length)",
                x->hparams.max_position, (long long)s->seq_length);
        x->max_context = x->hparams.max_position;
    }
    x->max_batch = s->max_batch ? (int32_t)s->max_batch : MIN(batch_hint, 16);
    o->max_spans = x->max_batch;
    o->max_tokens = MAX((int32_t)s->prefill_chunk, x->max_batch);
    o->max_out = MAX(max_out, x->max_batch);

    struct needs n;
    int rc = measure(x, o, &n, e);
    if (rc)
        return rc;
    uint64_t fixed = n.weights + n.work, page = n.page;
    int64_t per_seq = (x->max_context + o->page_tokens - 1) / o->page_tokens;
    int64_t want =
        per_seq * ((x->max_batch + o->dp - 1) / o->dp); /* each replica has its share of the batch */
    int ranks_here = comm_mpi_launched() ? comm_mpi_local_size() : o->tp * o->pp * o->dp;
    uint64_t budget = s->memory ? s->memory : free_memory() / 10 * 9 / (uint64_t)ranks_here;
    int64_t fit = budget > fixed ? (int64_t)((budget - fixed) / page) : 0;
    if (s->num_blocks)
        want = s->num_blocks;
    else if (fit < want)
        want = fit;
    bool could_spread =
        x->graph->axis_n[AX_EXPERT] && o->dp > 1 && !experts_spread(x->graph, o->tp, o->dp, o->ep);
    if (want < 1 || (uint64_t)want * page + fixed > budget)
        return err_set(e, ERR_MEMORY,
                       "%s: a rank needs %.2f GiB for weights, %.2f GiB for work and %.2f GiB for %lld KV "
                       "pages, but %.2f GiB may be "
                       "used; split further (--tp, --pp%s), quantise (--quant w8a8 or w4)%s, or give "
                       "--num-blocks, --seq-length or --memory",
                       s->weights, (double)n.weights / 0x1p30, (double)n.work / 0x1p30,
                       (double)MAX(want, 1) * (double)page / 0x1p30, (long long)MAX(want, 1),
                       (double)budget / 0x1p30, could_spread ? ", --ep: experts over all replicas" : "",
                       x->graph->axis_n[AX_EXPERT] && !s->expert_cache
                           ? ", keep some experts on disk (--expert-cache)"
                           : "");
    o->n_pages = (int32_t)MIN(want, INT32_MAX);
    return 0;
}

static void show_loading(void *ctx, uint64_t done, uint64_t total)
{
    struct progress *p = ctx;
    p->total = total;
    progress_update(p, done);
}

int session_open(struct settings *s, unsigned parts, int32_t batch_hint, int32_t max_out,
                 struct warn_sink *warn, struct session *ret, struct err *e)
{
    struct session *x = ret;
    double before = clock_s();
    memset(x, 0, sizeof(*x));
    x->settings = s;
    int rc = open_model(x, warn, e);
    if (!rc)
        settle_degrees(s, warn);
    if (!rc && (parts & SESSION_TOKENIZER))
        rc = open_tokenizer(x, e);
    if (rc)
        return rc;
    find_eos(x);
    if (!(parts & SESSION_ENGINE))
        return 0;
    struct team_options o = {0};
    struct progress bar;
    rc = choose_sizes(x, batch_hint, max_out, &o, warn, e);
    if (rc)
        return rc;
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error with a name, not a signal */
    progress_begin(&bar, "loading", 0, PROGRESS_BYTES);
    if (comm_mpi_rank() == 0) {
        o.progress = show_loading;
        o.progress_ctx = &bar;
    }
    rc = team_open(x->checkpoint, x->graph, &o, warn, &x->team, e);
    progress_end(&bar);
    x->load_s = clock_s() - before;
    if (rc || team_is_worker(x->team))
        return rc;
    transport_tell(x, warn);
    struct engine_options eo = {.max_batch = x->max_batch,
                                .max_context = x->max_context,
                                .prefill_chunk = (int32_t)s->prefill_chunk,
                                .recompute = !s->use_past};
    return engine_new(x->team, &eo, &x->engine, e);
}

void session_close(struct session *x)
{
    engine_free(x->engine);
    team_close(x->team);
    tokenizer_free(x->tokenizer);
    graph_free(x->graph);
    hparams_release(&x->hparams);
    checkpoint_close(x->checkpoint);
    ids_release(&x->eos);
    memset(x, 0, sizeof(*x));
}

bool session_is_worker(const struct session *x)
{
    return x->team && team_is_worker(x->team);
}

int session_work(struct session *x, struct err *e)
{
    return team_serve(x->team, e);
}

int session_params(const struct session *x, const struct sampling_settings *p, int32_t n_prompt,
                   struct request_params *ret, struct arena *mem, struct err *e)
{
    *ret = (struct request_params){
        .sampling = {.greedy = !p->do_sample,
                     .temperature = p->temperature,
                     .top_k = (int32_t)MAX(p->top_k, 0),
                     .top_p = p->top_p,
                     .min_p = p->min_p,
                     .repetition_penalty = p->repetition_penalty,
                     .presence_penalty = p->presence_penalty,
                     .frequency_penalty = p->frequency_penalty,
                     .seed = (uint64_t)p->seed},
        .eos = x->eos.id,
        .n_eos = (int32_t)x->eos.n,
        .ignore_eos = p->ignore_eos,
        .min_new_tokens = (int32_t)(p->min_new_tokens ? p->min_new_tokens : MAX(p->min_length - n_prompt, 0)),
    };
    int64_t most = p->max_new_tokens;
    if (!most && p->max_length) {
        most = p->max_length - n_prompt;
        if (most < 1)
            return err_set(
                e, ERR_LIMIT,
                "the prompt has %d tokens, but max_length allows %lld for prompt and answer together",
                n_prompt, (long long)p->max_length);
    }
    if (!most)
        most = INT32_MAX; /* the context's end */
    ret->max_new_tokens = (int32_t)MIN(most, INT32_MAX);
    if (p->eos_token_id.n) {
        int32_t *eos = arena_alloc(mem, sizeof(int32_t) * p->eos_token_id.n);
        for (size_t i = 0; i < p->eos_token_id.n; i++) {
            if (p->eos_token_id.v[i] < 0 || p->eos_token_id.v[i] >= x->hparams.vocab)
                return err_set(e, ERR_USAGE, "eos_token_id %lld is outside the vocabulary of %d tokens",
                               (long long)p->eos_token_id.v[i], x->hparams.vocab);
            eos[i] = (int32_t)p->eos_token_id.v[i];
        }
        ret->eos = eos;
        ret->n_eos = (int32_t)p->eos_token_id.n;
    }
    return 0;
}
