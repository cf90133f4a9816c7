#include "models/hparams.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "kernels/rows.h"

static const char *const where = "config.json";

/* More experts than any model has; exec/ keeps tables of this size on its stack. */
#define ROUTE_MAX 1024

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        int rc_ = (call);                                                                                    \
        if (rc_)                                                                                             \
            return rc_;                                                                                      \
    } while (0)

static int get_i32(const json_t *o, const char *key, int32_t hi, int32_t fallback, int32_t *ret,
                   struct err *e)
{
    int64_t n;
    TRY(json_get_int(o, key, 1, hi, fallback, where, &n, e));
    if (n < 1)
        return err_set(e, ERR_FORMAT, "%s: \"%s\" is missing; it should be a positive integer", where, key);
    *ret = (int32_t)n;
    return 0;
}

/* The value of yarn's mscale formula: 0.1 * mscale * ln(scale) + 1. */
static double yarn_mscale(double scale, double mscale)
{
    return scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0;
}

static int read_yarn(const json_t *o, struct hparams *p, struct rope *r, struct err *e)
{
    double mscale, mscale_all, attention;
    TRY(json_get_double(o, "beta_fast", 32, where, &r->beta_fast, e));
    TRY(json_get_double(o, "beta_slow", 1, where, &r->beta_slow, e));
    TRY(json_get_double(o, "mscale", 0, where, &mscale, e));
    TRY(json_get_double(o, "mscale_all_dim", 0, where, &mscale_all, e));
    TRY(json_get_double(o, "attention_factor", -1, where, &attention, e));
    TRY(json_get_bool(o, "truncate", true, where, &r->truncate, e));
    if (attention < 0)
        attention = mscale != 0 && mscale_all != 0
                        ? yarn_mscale(r->factor, mscale) / yarn_mscale(r->factor, mscale_all)
                        : yarn_mscale(r->factor, 1);
    r->attention_factor = attention;
    r->score_scale = mscale_all != 0 ? yarn_mscale(r->factor, mscale_all) : 1;
    p->max_position = (int32_t)fmax(p->max_position, fmin(r->factor * r->original_max, 1 << 30));
    return 0;
}

/* rope_parameters (transformers 5) or rope_scaling + rope_theta (before). */
static int read_rope(const json_t *config, struct hparams *p, struct warn_sink *warn, struct err *e)
{
    struct rope *r = &p->rope;
    const json_t *o = json_object_get(config, "rope_parameters");
    if (!json_is_object(o))
        o = json_object_get(config, "rope_scaling");
    if (o && !json_is_null(o) && !json_is_object(o))
        return err_set(e, ERR_FORMAT, "%s: \"rope_scaling\" should be an object", where);
    double partial;
    TRY(json_get_double(config, "partial_rotary_factor", 1.0, where, &partial, e));
    TRY(json_get_double(config, "rope_theta", 10000.0, where, &r->theta, e));
    TRY(json_get_bool(config, "rope_interleave", p->kv_lora > 0, where, &r->interleaved, e));
    TRY(json_get_bool(config, "rope_interleaved", r->interleaved, where, &r->interleaved, e));
    const char *type = "default";
    if (json_is_object(o)) {
        TRY(json_get_double(o, "partial_rotary_factor", partial, where, &partial, e));
        TRY(json_get_double(o, "rope_theta", r->theta, where, &r->theta, e));
        TRY(json_get_string(o, "type", type, where, &type, e));
        TRY(json_get_string(o, "rope_type", type, where, &type, e));
        TRY(json_get_double(o, "factor", 1.0, where, &r->factor, e));
        TRY(get_i32(o, "original_max_position_embeddings", INT32_MAX, p->max_position, &r->original_max, e));
    }
    r->attention_factor = 1.0;
    r->rot = (int32_t)(p->head_dim * partial);
    if (!(r->theta > 0) || !(partial > 0 && partial <= 1) || r->rot < 2 || r->rot % 2)
        return err_set(
            e, ERR_FORMAT,
            "%s: rotary embedding with theta %g over %d of %d elements of a head; theta should be positive "
            "and the number even",
            where, r->theta, r->rot, p->head_dim);
    if (!strcmp(type, "default") || !strcmp(type, "none")) {
        r->scaling = ROPE_PLAIN;
    } else if (!strcmp(type, "dynamic")) {
        /* transformers changes the base only beyond max_position_embeddings, where our context ends */
        r->scaling = ROPE_PLAIN;
        warn_to(warn, "rope scaling \"dynamic\" is applied up to the original context of %d tokens only",
                p->max_position);
    } else if (!strcmp(type, "linear")) {
        r->scaling = ROPE_LINEAR;
    } else if (!strcmp(type, "llama3")) {
        r->scaling = ROPE_LLAMA3;
        TRY(json_get_double(o, "low_freq_factor", 1, where, &r->low_freq_factor, e));
        TRY(json_get_double(o, "high_freq_factor", 4, where, &r->high_freq_factor, e));
        if (!(r->high_freq_factor > r->low_freq_factor))
            return err_set(e, ERR_FORMAT,
                           "%s: rope scaling llama3: high_freq_factor %g should exceed low_freq_factor %g",
                           where, r->high_freq_factor, r->low_freq_factor);
    } else if (!strcmp(type, "yarn")) {
        r->scaling = ROPE_YARN;
        TRY(read_yarn(o, p, r, e));
    } else {
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: rope scaling \"%s\" is not supported; supported are default, linear, dynamic, "
                       "llama3 and yarn",
                       where, type);
    }
    if (r->scaling != ROPE_PLAIN && !(r->factor > 0))
        return err_set(e, ERR_FORMAT, "%s: rope scaling %s needs a positive \"factor\"", where, type);
    const json_t *f = json_object_get(config, "rope_freq_factors");
    if (f) {
        if (json_array_size(f) != (size_t)(r->rot / 2))
            return err_set(e, ERR_FORMAT, "%s: %zu rope frequency factors, but %d pairs are rotated", where,
                           json_array_size(f), r->rot / 2);
        XNEW_N(p->freq_factors, (size_t)r->rot / 2);
        for (int i = 0; i < r->rot / 2; i++) {
            p->freq_factors[i] = (float)json_number_value(json_array_get(f, (size_t)i));
            if (!(p->freq_factors[i] > 0))
                return err_set(e, ERR_FORMAT, "%s: rope frequency factor %d should be positive", where, i);
        }
        r->freq_factors = p->freq_factors;
    }
    return 0;
}

static bool is_type(const struct hparams *p, const char *type)
{
    return !strcmp(p->type, type);
}

/* Which layers see only a window: layer_types where present, else the flags of the architecture. */
static int read_windows(const json_t *config, struct hparams *p, struct err *e)
{
    int64_t window, first;
    TRY(json_get_int(config, "sliding_window", 0, INT32_MAX, 0, where, &window, e));
    TRY(json_get_int(config, "max_window_layers", 0, INT32_MAX, 0, where, &first, e));
    bool qwen = !strncmp(p->type, "qwen", 4), use;
    TRY(json_get_bool(config, "use_sliding_window", !qwen, where, &use, e));
    if (!use || is_type(p, "llama")) /* transformers' llama has no window, whatever its config says */
        window = 0;
    if (!window)
        return 0;
    p->window = (int32_t)window;
    const json_t *types = json_object_get(config, "layer_types");
    if (json_is_array(types) && json_array_size(types) != (size_t)p->layers)
        return err_set(e, ERR_FORMAT, "%s: layer_types names %zu layers, num_hidden_layers is %d", where,
                       json_array_size(types), p->layers);
    for (int l = 0; l < p->layers; l++) {
        if (!json_is_array(types)) {
            p->windowed[l] = is_type(p, "qwen2_moe") ? l < first && l % 2 == 0 : qwen ? l >= first : true;
            continue;
        }
        const char *t = json_string_value(json_array_get(types, (size_t)l));
        if (!t || (strcmp(t, "full_attention") && strcmp(t, "sliding_attention")))
            return err_set(
                e, ERR_UNSUPPORTED,
                "%s: layer_types[%d] is \"%s\"; supported are full_attention and sliding_attention", where, l,
                t ? t : "not a string");
        p->windowed[l] = !strcmp(t, "sliding_attention");
    }
    return 0;
}

/* An integer that may go under one of several names; the first that is there counts. */
static int get_any(const json_t *o, const char *const *keys, int64_t lo, int64_t hi, int64_t fallback,
                   int32_t *ret, struct err *e)
{
    int64_t n = fallback;
    for (; *keys; keys++) {
        const json_t *v = json_object_get(o, *keys);
        if (!v || json_is_null(v))
            continue;
        TRY(json_get_int(o, *keys, lo, hi, fallback, where, &n, e));
        break;
    }
    *ret = (int32_t)n;
    return 0;
}
#define KEYS(...)                                                                                            \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        __VA_ARGS__, NULL                                                                                    \
    }

/* Which layers have experts: every decoder_sparse_step-th but for those named (Qwen), all from
 * first_k_dense_replace on (DeepSeek), all (Mixtral). */
static int read_moe_layers(const json_t *config, struct hparams *p, struct err *e)
{
    int64_t step, dense;
    TRY(json_get_int(config, "decoder_sparse_step", 1, INT32_MAX, 1, where, &step, e));
    TRY(json_get_int(config, "first_k_dense_replace", 0, INT32_MAX, 0, where, &dense, e));
    const json_t *only = json_object_get(config, "mlp_only_layers");
    for (int l = 0; l < p->layers; l++) {
        p->moe[l] = l >= dense && (l + 1) % step == 0;
        for (size_t i = 0; i < json_array_size(only); i++)
            if (json_integer_value(json_array_get(only, i)) == l)
                p->moe[l] = false;
    }
    return 0;
}

/* Routers as transformers' modeling files have them: softmax scores, top k, perhaps normalised (Qwen:
 * norm_topk_prob; Mixtral: always); DeepSeek V2 and V3 add groups and a scale, V3 sigmoid scores with a
 * correction bias. */
static int read_experts(const json_t *config, struct hparams *p, struct err *e)
{
    struct routing *r = &p->routing;
    int32_t shared;
    double scale;
    const char *method;
    TRY(get_any(config, KEYS("n_routed_experts", "num_experts", "num_local_experts"), 0, ROUTE_MAX, 0,
                &p->experts, e));
    if (!p->experts)
        return 0;
    TRY(get_any(config, KEYS("num_experts_per_tok"), 1, p->experts, 1, &r->k, e));
    TRY(get_any(config, KEYS("moe_intermediate_size", "intermediate_size"), 1, 1 << 24, 0, &p->moe_ffn, e));
    TRY(get_any(config, KEYS("n_group"), 1, p->experts, 1, &r->n_group, e));
    TRY(get_any(config, KEYS("topk_group"), 1, r->n_group, r->n_group, &r->topk_group, e));
    TRY(json_get_bool(config, "norm_topk_prob", is_type(p, "mixtral") || is_type(p, "deepseek_v3"), where,
                      &r->normalise, e));
    TRY(json_get_double(config, "routed_scaling_factor", 1, where, &scale, e));
    TRY(json_get_string(config, "topk_method", "", where, &method, e));
    r->scale = (float)scale;
    if (is_type(p, "mixtral"))
        r->normalise = true;
    if (is_type(p, "deepseek_v3")) {
        r->sigmoid = r->group_top2 = p->router_bias = true;
    } else if (is_type(p, "deepseek_v2")) {
        r->normalise = false; /* as transformers; no published V2 checkpoint asks for it */
        if (strcmp(method, "group_limited_greedy"))
            r->n_group = r->topk_group = 1;
    } else {
        r->n_group = r->topk_group = 1;
        r->scale = 1;
    }
    TRY(get_any(config, KEYS("n_shared_experts"), 0, 1 << 16, 0, &shared, e));
    TRY(get_any(config, KEYS("shared_expert_intermediate_size"), 0, 1 << 24, (int64_t)shared * p->moe_ffn,
                &p->shared_ffn, e));
    p->shared_gate = is_type(p, "qwen2_moe");
    return read_moe_layers(config, p, e);
}

/* DeepSeek's latent attention. The rotated part of a head is qk_rope_head_dim wide; heads are nope + rope
 * wide. */
static int read_latent(const json_t *config, struct hparams *p, struct err *e)
{
    TRY(get_any(config, KEYS("kv_lora_rank"), 1, 1 << 20, 512, &p->kv_lora, e));
    TRY(get_any(config, KEYS("q_lora_rank"), 1, 1 << 20, 0, &p->q_lora, e));
    TRY(get_i32(config, "qk_nope_head_dim", 1 << 12, 128, &p->nope_dim, e));
    TRY(get_i32(config, "qk_rope_head_dim", 1 << 12, 64, &p->rope_dim, e));
    TRY(get_i32(config, "v_head_dim", 1 << 12, 128, &p->v_dim, e));
    p->kv_heads = 1;
    p->head_dim = p->rope_dim; /* what rotary embedding goes by */
    return 0;
}

static int read_act(const json_t *config, struct hparams *p, struct err *e)
{
    const char *act;
    TRY(json_get_string(config, "hidden_act", "silu", where, &act, e));
    if (!strcmp(act, "silu") || !strcmp(act, "swish"))
        p->glu = GLU_SILU;
    else if (!strcmp(act, "gelu_pytorch_tanh") || !strcmp(act, "gelu_new"))
        p->glu = GLU_GELU_TANH;
    else
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: hidden_act \"%s\" is not supported; supported are silu and gelu_pytorch_tanh",
                       where, act);
    return 0;
}

static int read_all(const json_t *config, struct warn_sink *warn, struct hparams *p, struct err *e)
{
    double eps;
    const int32_t big = 1 << 24;
    if (!json_is_object(config))
        return err_set(e, ERR_FORMAT, "%s should be a JSON object", where);
    TRY(get_i32(config, "vocab_size", big, 0, &p->vocab, e));
    TRY(get_i32(config, "hidden_size", big, 0, &p->hidden, e));
    TRY(get_i32(config, "num_hidden_layers", HPARAMS_MAX_LAYERS, 0, &p->layers, e));
    TRY(get_i32(config, "num_attention_heads", 1 << 16, 0, &p->heads, e));
    TRY(get_i32(config, "num_key_value_heads", 1 << 16, p->heads, &p->kv_heads, e));
    TRY(get_i32(config, "head_dim", 1 << 12, MAX(p->hidden / p->heads, 1), &p->head_dim, e));
    TRY(get_i32(config, "intermediate_size", big, 0, &p->ffn, e));
    TRY(get_i32(config, "max_position_embeddings", INT32_MAX, 2048, &p->max_position, e));
    TRY(json_get_double(config, "rms_norm_eps", 1e-6, where, &eps, e));
    TRY(json_get_bool(config, "tie_word_embeddings", false, where, &p->tied, e));
    TRY(json_get_bool(config, "attention_bias", false, where, &p->attention_bias, e));
    TRY(json_get_bool(config, "mlp_bias", false, where, &p->mlp_bias, e));
    if (p->heads % p->kv_heads)
        return err_set(e, ERR_FORMAT, "%s: %d attention heads cannot share %d key-value heads evenly", where,
                       p->heads, p->kv_heads);
    if (!(eps >= 0 && eps < 1))
        return err_set(e, ERR_FORMAT, "%s: rms_norm_eps is %g, which is outside 0..1", where, eps);
    p->eps = (float)eps;
    TRY(read_experts(config, p, e));
    if (!strncmp(p->type, "deepseek", 8))
        TRY(read_latent(config, p, e));
    TRY(read_act(config, p, e));
    TRY(read_windows(config, p, e));
    TRY(read_rope(config, p, warn, e));
    int32_t width = p->kv_lora ? p->nope_dim + p->rope_dim : p->head_dim;
    p->attention_scale = 1.0f / sqrtf((float)width);
    if (p->kv_lora && p->rope.scaling == ROPE_YARN)
        p->attention_scale *= (float)(p->rope.score_scale * p->rope.score_scale);
    return 0;
}

int hparams_read(const json_t *config, const char *type, struct warn_sink *warn, struct hparams *ret,
                 struct err *e)
{
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->type, sizeof(ret->type), "%s", type);
    int rc = read_all(config, warn, ret, e);
    if (rc)
        hparams_release(ret);
    return rc;
}

void hparams_release(struct hparams *p)
{
    xfree(p->freq_factors);
    p->freq_factors = NULL;
    p->rope.freq_factors = NULL;
}
