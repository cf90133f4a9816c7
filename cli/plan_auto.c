#include "cli/plan_auto.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/machine.h"
#include "cli/session.h"

#define SHOWN 10 /* rows of the table */

/* Weights that are not there, of a stated format. */
struct stated_source {
    struct weight_source base; /* first */
    enum dtype matrix;
    int32_t block_rows, block_cols;
};

static bool is_vector(const char *name)
{
    return strstr(name, "norm") || strstr(name, "bias") || strstr(name, "mlp.gate.") ||
           strstr(name, "block_sparse_moe.gate.");
}

/* Norms and routers stay floats, and so does the table that is looked up beside 8-bit floats. */
static enum dtype stated_dtype(const struct weight_source *base, const char *name)
{
    const struct stated_source *s = (const struct stated_source *)base;
    enum dtype t = s->matrix;
    bool is_float = t == DT_F32 || t == DT_F16 || t == DT_BF16;
    if (!is_float && (is_vector(name) || (t == DT_F8_E4M3 && !strstr(name, "layers."))))
        return DT_BF16;
    return t;
}

static void stated_block(const struct weight_source *base, int32_t *ret_rows, int32_t *ret_cols)
{
    const struct stated_source *s = (const struct stated_source *)base;
    *ret_rows = s->block_rows;
    *ret_cols = s->block_cols;
}

struct advice {
    struct settings *settings;
    struct session session; /* where there is a checkpoint */
    json_t *config;         /* where there is config.json only */
    struct graph *graph;
    struct hparams hparams;
    struct checkpoint_source real;
    struct stated_source stated;
    struct plan_options opt;
    struct cost_machine machine;
    char speeds[512]; /* where they come from */
    struct cost_job job;
    struct cost *v;
    size_t n;
};

static enum dtype config_dtype(const json_t *config)
{
    const json_t *q = json_object_get(config, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    const char *t = json_string_value(json_object_get(config, "torch_dtype"));
    if (!t)
        t = json_string_value(json_object_get(config, "dtype"));
    if (method && !strcmp(method, "fp8"))
        return DT_F8_E4M3;
    return t && !strcmp(t, "float32") ? DT_F32 : t && !strcmp(t, "float16") ? DT_F16 : DT_BF16;
}

/* --weights-dtype, or what config.json says; w8a8 and w4 are what --quant makes of bf16. */
static int state_weights(struct advice *a, struct err *e)
{
    static const struct {
        const char *name;
        enum dtype t;
    } more[] = {{"fp8", DT_F8_E4M3}, {"f8", DT_F8_E4M3}, {"q8", DT_Q8_0},
                {"q4", DT_Q4_0},     {"w8a8", DT_BF16},  {"w4", DT_BF16}};
    struct settings *s = a->settings;
    const char *name = s->weights_dtype;
    enum dtype t = name ? dtype_from_name(name) : config_dtype(a->config);
    for (size_t i = 0; i < ARRAY_LEN(more) && name; i++)
        if (!strcmp(name, more[i].name))
            t = more[i].t;
    if (!dtype_info(t)->weight || !dtype_info(t)->block_bytes)
        return err_set(
            e, ERR_USAGE,
            "--weights-dtype should be f32, f16, bf16, fp8, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, "
            "w8a8 or w4, but is \"%s\"",
            name);
    if (name && !strcmp(name, "w8a8"))
        s->quant = WANT_W8A8;
    if (name && !strcmp(name, "w4"))
        s->quant = WANT_W4;
    a->stated = (struct stated_source){{stated_dtype, stated_block}, t, 128, 128};
    const json_t *block =
        json_object_get(json_object_get(a->config, "quantization_config"), "weight_block_size");
    if (json_array_size(block) == 2) {
        int64_t r = json_integer_value(json_array_get(block, 0)),
                c = json_integer_value(json_array_get(block, 1));
        if (r < 1 || c < 1 || r > INT32_MAX || c > INT32_MAX)
            return err_set(e, ERR_FORMAT, "config.json: weight_block_size should be two positive integers");
        a->stated.block_rows = (int32_t)r;
        a->stated.block_cols = (int32_t)c;
    }
    return 0;
}

/* config.json without weights beside it: a shape to think about. */
static bool config_alone(const char *path, char **ret_config)
{
    char *config = path_join(path, "config.json"), *one = path_join(path, "model.safetensors"),
         *index = path_join(path, "model.safetensors.index.json");
    bool alone = path_is_dir(path) && path_is_file(config) && !path_is_file(one) && !path_is_file(index);
    xfree(one);
    xfree(index);
    *ret_config = config;
    return alone;
}

static int open_shape(struct advice *a, struct warn_sink *warn, struct err *e)
{
    struct settings *s = a->settings;
    char *config;
    bool alone = config_alone(s->weights, &config);
    int rc;
    if (alone) {
        rc = json_parse_file(config, 1 << 24, &a->config, e);
        if (!rc)
            rc = model_build(a->config, warn, &a->graph, &a->hparams, e);
        if (rc)
            err_prefix(e, "%s", s->weights);
    } else {
        rc = session_open(s, 0, 1, 0, warn, &a->session, e);
        if (!rc) {
            a->graph = a->session.graph;
            a->hparams = a->session.hparams;
            a->config = json_incref((json_t *)(uintptr_t)checkpoint_config(a->session.checkpoint));
        }
    }
    xfree(config);
    if (rc)
        return rc;
    a->opt.source = &a->real.base;
    if (alone || s->weights_dtype) {
        rc = state_weights(a, e);
        a->opt.source = &a->stated.base;
    } else {
        checkpoint_source_init(&a->real, a->session.checkpoint);
    }
    a->opt.kv = s->kv_dtype != CACHE_AUTO ? (enum kv_dtype)(s->kv_dtype - CACHE_F32)
                : alone                   ? KV_F16
                                          : session_kv_dtype(s, a->session.checkpoint);
    return rc;
}

static void close_shape(struct advice *a)
{
    if (!a->session.checkpoint) {
        graph_free(a->graph);
        hparams_release(&a->hparams);
    }
    json_decref(a->config);
    session_close(&a->session);
    xfree(a->v);
}

static int choose_machine(struct advice *a, struct err *e)
{
    struct settings *s = a->settings;
    struct cost_machine *m = &a->machine;
    struct cost_link net;
    int rc = machine_parse_net(s->net, &net, e);
    if (rc)
        return rc;
    double memory = (double)s->memory;
    if (!s->memory)
        memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    int cores = s->cores ? (int)s->cores : cpu_count();
    cost_machine_default(m, (int)s->cluster_hosts, cores, 0.95 * memory);
    m->net = net;
    if (s->numa)
        m->domains = (int)s->numa;
    char *path = s->bench_file ? xstrdup(s->bench_file) : machine_default_path();
    bool none = !path || !strcmp(path, "none") || (!s->bench_file && !path_is_file(path));
    snprintf(a->speeds, sizeof(a->speeds), "%s", none ? "stated (docs/advice.md)" : path);
    if (!none)
        rc = machine_read(path, m, e);
    xfree(path);
    return rc;
}

static int choose_job(struct advice *a, struct err *e)
{
    struct settings *s = a->settings;
    int64_t all = s->prompt_tokens + s->answer_tokens;
    int64_t context = s->seq_length ? s->seq_length : all;
    if (all > context)
        return err_set(e, ERR_USAGE,
                       "a prompt of %lld tokens and an answer of %lld do not go into --context %lld",
                       (long long)s->prompt_tokens, (long long)s->answer_tokens, (long long)context);
    if (context > a->hparams.max_position)
        return err_set(e, ERR_LIMIT, "a context of %lld tokens, but the model was made for %d",
                       (long long)context, a->hparams.max_position);
    a->job = (struct cost_job){.prompt = (int)s->prompt_tokens,
                               .answer = (int)s->answer_tokens,
                               .context = (int)context,
                               .batch = s->max_batch                 ? (int)s->max_batch
                                        : s->goal == GOAL_THROUGHPUT ? 16 * a->machine.hosts
                                                                     : 1,
                               .chunk = (int)s->prefill_chunk};
    a->opt.quant = (enum quant)s->quant;
    a->opt.max_tokens = MAX((int32_t)s->prefill_chunk, a->job.batch);
    a->opt.max_out = a->job.batch;
    a->opt.page_tokens = (int32_t)s->block_size;
    return 0;
}

static const char *split_text(const struct cost_split *x, char *buf, size_t n)
{
    snprintf(buf, n, "tp %d pp %d ep %d dp %d", x->tp, x->pp, x->ep, x->dp);
    return buf;
}

/* --- text --- */

static void print_row(const struct cost *c, int number, const char *why)
{
    char text[64];
    printf("%3d  %-24s %3d x %-4d %4d  %9.2f %8.1f %8.1f", number, split_text(&c->split, text, sizeof(text)),
           c->split.hosts, c->split.tp * c->split.pp * c->split.dp / c->split.hosts, c->split.threads,
           (c->weight_bytes + c->kv_bytes + c->work_bytes) / 0x1p30, c->host_bytes / 0x1p30,
           c->read_bytes * 1e-6);
    if (c->verdict == COST_GOOD)
        printf(" %9.2f %9.3f %10.2f %9.1f %10.1f", c->macs * 1e-9, c->comm_bytes * 1e-6, c->ttft * 1e3,
               c->tpot * 1e3, c->throughput);
    else
        printf(" %9s %9s %10s %9s %10s", "-", "-", "-", "-", "-");
    printf("  %s\n", why);
}

static void print_parts(const char *title, const double *parts, double wait)
{
    double sum = wait;
    for (int i = 0; i < COST_PARTS; i++)
        sum += parts[i];
    printf("%s", title);
    for (int i = 0; i < COST_PARTS; i++)
        if (parts[i] > 0.005 * sum)
            printf("  %s %.2f ms (%.0f%%)", cost_part_name((enum cost_part)i), parts[i] * 1e3,
                   100 * parts[i] / sum);
    if (wait > 0.005 * sum)
        printf("  waiting for the fullest stage %.2f ms (%.0f%%)", wait * 1e3, 100 * wait / sum);
    printf("\n");
}

/* Rows worth showing: the best, then the best of each other (tp, pp), so that they differ in kind. */
static size_t pick_rows(const struct advice *a, size_t *ret)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n && n < SHOWN; i++) {
        bool seen = false;
        for (size_t k = 0; k < n; k++) {
            const struct cost_split *x = &a->v[i].split, *y = &a->v[ret[k]].split;
            seen |= x->tp == y->tp && x->pp == y->pp;
        }
        if (!seen)
            ret[n++] = i;
    }
    return n;
}

static void print_flags(const struct cost *c)
{
    const struct cost_split *x = &c->split;
    printf("choice: --tp %d --pp %d --dp %d", x->tp, x->pp, x->dp);
    if (x->ep > 1)
        printf(" --ep %d", x->ep);
    printf(" --threads %d, %d rank%s on %d host%s\n", x->threads, x->tp * x->pp * x->dp,
           x->tp * x->pp * x->dp > 1 ? "s" : "", x->hosts, x->hosts > 1 ? "s" : "");
}

static void print_text(const struct advice *a)
{
    const struct cost_machine *m = &a->machine;
    const struct cost *best = &a->v[0];
    printf(
        "%s on %d host%s of %d cores in %d NUMA domain%s, %.0f GiB usable each, network %.2f GB/s and %.0f "
        "us\n",
        a->settings->weights, m->hosts, m->hosts > 1 ? "s" : "", m->cores, m->domains,
        m->domains > 1 ? "s" : "", m->memory / 0x1p30, m->net.bytes_s * 1e-9, m->net.latency_s * 1e6);
    printf("speeds: %s; a host reads %.0f GB/s, a core %.1f GB/s\n", a->speeds, m->host_read * 1e-9,
           m->core_read * 1e-9);
    printf("for %s: %d sequence%s at once, prompts of %d tokens, answers of %d, room for %d\n\n",
           a->settings->goal == GOAL_LATENCY ? "latency" : "throughput", a->job.batch,
           a->job.batch > 1 ? "s" : "", a->job.prompt, a->job.answer, a->job.context);
    if (best->verdict == COST_GOOD) {
        print_flags(best);
        printf("memory: a rank has %.2f GiB of weights, %.2f GiB of KV, %.2f GiB of work; a host %.1f GiB\n",
               best->weight_bytes / 0x1p30, best->kv_bytes / 0x1p30, best->work_bytes / 0x1p30,
               best->host_bytes / 0x1p30);
        printf("TTFT %.1f ms, TPOT %.2f ms, %.1f tokens/s\n", best->ttft * 1e3, best->tpot * 1e3,
               best->throughput);
        print_parts("prompt:", best->prefill, 0);
        print_parts("token: ", best->decode, best->wait_s);
        if (best->tp_crosses)
            printf("tensor groups span hosts: the network takes %.1f ms of each token; with a slower one "
                   "than stated a "
                   "pipeline between hosts is the better choice\n",
                   best->decode[PART_NET] * 1e3);
        if (best->split.hosts < m->hosts)
            printf("%d host%s left over: more of them would not make this faster; give them replicas (--dp) "
                   "for more "
                   "sequences at once\n",
                   m->hosts - best->split.hosts, m->hosts - best->split.hosts > 1 ? "s are" : " is");
    } else {
        printf("choice: none; nothing fits. What comes nearest:\n");
    }
    printf("\n%3s  %-24s %10s %4s  %9s %8s %8s %9s %9s %10s %9s %10s\n", "", "", "hosts x", "thr.", "GiB",
           "GiB", "MB", "GMAC", "MB", "TTFT", "TPOT", "tokens");
    printf("%3s  %-24s %10s %4s  %9s %8s %8s %9s %9s %10s %9s %10s\n", "", "", "ranks", "each", "a rank",
           "a host", "read", "", "sent", "ms", "ms", "a second");
    size_t rows[SHOWN], n = pick_rows(a, rows);
    for (size_t i = 0; i < n; i++) {
        char why[160] = "the choice";
        if (rows[i] || best->verdict != COST_GOOD)
            cost_why_not(&a->v[rows[i]], best, m, (enum cost_goal)a->settings->goal, why, sizeof(why));
        print_row(&a->v[rows[i]], (int)rows[i] + 1, why);
    }
    printf("%zu splits were compared; of those with the same tp and pp the best is shown. Read, GMAC and "
           "sent: of the "
           "fullest rank, a decoding tick.\n",
           a->n);
}

/* --- JSON --- */

static json_t *parts_json(const double *parts)
{
    json_t *o = json_object();
    for (int i = 0; i < COST_PARTS; i++)
        json_object_set_new(o, cost_part_name((enum cost_part)i), json_real(parts[i]));
    return o;
}

static json_t *cost_json(const struct advice *a, size_t i)
{
    const struct cost *c = &a->v[i];
    const struct cost_split *x = &c->split;
    char why[160] = "";
    if (i || c->verdict != COST_GOOD)
        cost_why_not(c, &a->v[0], &a->machine, (enum cost_goal)a->settings->goal, why, sizeof(why));
    json_t *o = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:f, s:f, s:f, s:f}", "tp", x->tp, "pp", x->pp,
                          "ep", x->ep, "dp", x->dp, "hosts", x->hosts, "threads", x->threads, "fits",
                          c->verdict == COST_GOOD, "weight_bytes", c->weight_bytes, "kv_bytes", c->kv_bytes,
                          "work_bytes", c->work_bytes, "host_bytes", c->host_bytes);
    if (c->verdict == COST_GOOD) {
        json_t *more = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "read_bytes", c->read_bytes,
                                 "macs", c->macs, "comm_bytes", c->comm_bytes, "ttft_s", c->ttft, "tpot_s",
                                 c->tpot, "throughput", c->throughput, "wait_s", c->wait_s, "prompt_s",
                                 parts_json(c->prefill), "token_s", parts_json(c->decode));
        json_object_update(o, more);
        json_decref(more);
    }
    if (*why)
        json_object_set_new(o, "why_not", json_string(why));
    return o;
}

static void print_json(const struct advice *a)
{
    size_t rows[SHOWN], n = pick_rows(a, rows);
    bool fits = a->v[0].verdict == COST_GOOD;
    json_t *others = json_array();
    for (size_t i = fits; i < n; i++)
        json_array_append_new(others, cost_json(a, rows[i]));
    const struct cost_machine *m = &a->machine;
    json_t *machine = machine_json(m);
    json_object_set_new(machine, "hosts", json_integer(m->hosts));
    json_object_set_new(machine, "numa_domains", json_integer(m->domains));
    json_object_set_new(machine, "memory", json_real(m->memory));
    json_object_set_new(machine, "net_latency_s", json_real(m->net.latency_s));
    json_object_set_new(machine, "net_bytes_s", json_real(m->net.bytes_s));
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:o, s:{s:i, s:i, s:i, s:i}, s:o, s:o, s:I}", "model",
                  a->settings->weights, "goal", a->settings->goal == GOAL_LATENCY ? "latency" : "throughput",
                  "speeds", a->speeds, "machine", machine, "job", "prompt", a->job.prompt, "answer",
                  a->job.answer, "context", a->job.context, "batch", a->job.batch, "choice",
                  fits ? cost_json(a, 0) : json_null(), "others", others, "compared", (json_int_t)a->n);
    json_dumpf(o, stdout, JSON_INDENT(1));
    fputc('\n', stdout);
    json_decref(o);
}

int plan_advise(struct settings *s, struct warn_sink *warn, struct err *e)
{
    struct advice a = {.settings = s};
    int rc = open_shape(&a, warn, e);
    if (!rc)
        rc = choose_machine(&a, e);
    if (!rc)
        rc = choose_job(&a, e);
    struct cost_split fixed = {.tp = s->origin[OPT_tp] ? (int)s->tp : 0,
                               .pp = s->origin[OPT_pp] ? (int)s->pp : 0,
                               .ep = s->origin[OPT_ep] ? (int)s->ep : 0,
                               .dp = s->origin[OPT_dp] ? (int)s->dp : 0};
    if (!rc && (rc = cost_advise(a.graph, &a.opt, &a.machine, &a.job, (enum cost_goal)s->goal, &fixed, &a.v,
                                 &a.n, e)))
        err_prefix(e, "%s", s->weights);
    if (!rc) {
        if (s->format == FORMAT_JSON)
            print_json(&a);
        else
            print_text(&a);
    }
    close_shape(&a);
    return rc;
}
