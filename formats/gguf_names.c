#include "formats/gguf_names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* Which architectures a row of a table is for. */
enum arch_bit { LLAMA = 1, QWEN2 = 2, QWEN3 = 4, QWEN2MOE = 8, QWEN3MOE = 16, DEEPSEEK2 = 32, ALL = 63 };
#define MOE (QWEN2MOE | QWEN3MOE | DEEPSEEK2)

struct gguf_arch {
    const char *name;
    unsigned bit;
    const char *architecture, *model_type;
    bool rope_interleaved; /* the converter has permuted q and k */
};

static const struct gguf_arch archs[] = {
    {"llama", LLAMA, "LlamaForCausalLM", "llama", true}, /* and Mistral: see model_identity */
    {"qwen2", QWEN2, "Qwen2ForCausalLM", "qwen2", false},
    {"qwen3", QWEN3, "Qwen3ForCausalLM", "qwen3", false},
    {"qwen2moe", QWEN2MOE, "Qwen2MoeForCausalLM", "qwen2_moe", false},
    {"qwen3moe", QWEN3MOE, "Qwen3MoeForCausalLM", "qwen3_moe", false},
    {"deepseek2", DEEPSEEK2, "DeepseekV2ForCausalLM", "deepseek_v2", false}, /* V3: see model_identity */
};

/* Names without ".weight" or ".bias"; those of a layer, after "blk.N." and "model.layers.N.". The first row
 * that fits counts. */
static const struct tensor_name {
    const char *gguf, *hf;
    unsigned archs;
} global_names[] =
    {
        {"token_embd", "model.embed_tokens", ALL},
        {"output_norm", "model.norm", ALL},
        {"output", "lm_head", ALL},
},
  layer_names[] = {
      {"attn_norm", "input_layernorm", ALL},
      {"attn_q", "self_attn.q_proj", ALL},
      {"attn_k", "self_attn.k_proj", ALL},
      {"attn_v", "self_attn.v_proj", ALL},
      {"attn_output", "self_attn.o_proj", ALL},
      {"attn_q_norm", "self_attn.q_norm", ALL},
      {"attn_k_norm", "self_attn.k_norm", ALL},
      {"ffn_norm", "post_attention_layernorm", ALL},
      {"ffn_gate", "mlp.gate_proj", ALL},
      {"ffn_up", "mlp.up_proj", ALL},
      {"ffn_down", "mlp.down_proj", ALL},
      /* mixture of experts; *_exps hold all experts, stacked: [expert, out, in] */
      {"ffn_gate_inp", "mlp.gate", ALL},
      {"ffn_gate_exps", "mlp.experts.gate_proj", ALL},
      {"ffn_up_exps", "mlp.experts.up_proj", ALL},
      {"ffn_down_exps", "mlp.experts.down_proj", ALL},
      {"ffn_gate_inp_shexp", "mlp.shared_expert_gate", QWEN2MOE},
      {"ffn_gate_shexp", "mlp.shared_expert.gate_proj", QWEN2MOE},
      {"ffn_up_shexp", "mlp.shared_expert.up_proj", QWEN2MOE},
      {"ffn_down_shexp", "mlp.shared_expert.down_proj", QWEN2MOE},
      {"ffn_gate_shexp", "mlp.shared_experts.gate_proj", DEEPSEEK2},
      {"ffn_up_shexp", "mlp.shared_experts.up_proj", DEEPSEEK2},
      {"ffn_down_shexp", "mlp.shared_experts.down_proj", DEEPSEEK2},
      {"exp_probs_b", "mlp.gate.e_score_correction", DEEPSEEK2}, /* .bias: "..._bias", see gguf_hf_name */
      /* multi-head latent attention */
      {"attn_q_a", "self_attn.q_a_proj", DEEPSEEK2},
      {"attn_q_a_norm", "self_attn.q_a_layernorm", DEEPSEEK2},
      {"attn_q_b", "self_attn.q_b_proj", DEEPSEEK2},
      {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", DEEPSEEK2},
      {"attn_kv_a_norm", "self_attn.kv_a_layernorm", DEEPSEEK2},
      {"attn_kv_b", "self_attn.kv_b_proj", DEEPSEEK2},
      {"attn_k_b", "self_attn.k_b_proj", DEEPSEEK2}, /* kv_b_proj in two, by head, k turned */
      {"attn_v_b", "self_attn.v_b_proj", DEEPSEEK2},
};

/* Metadata keys that become configuration keys one to one. A leading "." stands for the architecture's name.
 */
static const struct config_key {
    const char *gguf, *hf;
    enum { INT, REAL, BOOL } kind;
    enum { OPTIONAL, REQUIRED, POSITIVE } need; /* the last: required, and not 0 */
    unsigned archs;
} config_keys[] =
    {
        {".embedding_length", "hidden_size", INT, POSITIVE, ALL},
        {".block_count", "num_hidden_layers", INT, POSITIVE, ALL},
        {".attention.head_count", "num_attention_heads", INT, POSITIVE, ALL},
        {".feed_forward_length", "intermediate_size", INT, POSITIVE, ALL},
        {".context_length", "max_position_embeddings", INT, POSITIVE, ALL},
        {".attention.layer_norm_rms_epsilon", "rms_norm_eps", REAL, REQUIRED, ALL},
        {".attention.sliding_window", "sliding_window", INT, OPTIONAL, ALL},
        {".attention.scale", "attention_multiplier", REAL, OPTIONAL, ALL},
        {".expert_used_count", "num_experts_per_tok", INT, REQUIRED, MOE},
        {".expert_feed_forward_length", "moe_intermediate_size", INT, REQUIRED, MOE},
        {".expert_count", "num_local_experts", INT, OPTIONAL, LLAMA}, /* Mixtral */
        {".expert_used_count", "num_experts_per_tok", INT, OPTIONAL, LLAMA},
        {".expert_count", "num_experts", INT, REQUIRED, QWEN2MOE | QWEN3MOE},
        {".expert_shared_feed_forward_length", "shared_expert_intermediate_size", INT, REQUIRED, QWEN2MOE},
        {".expert_count", "n_routed_experts", INT, REQUIRED, DEEPSEEK2},
        {".expert_shared_count", "n_shared_experts", INT, REQUIRED, DEEPSEEK2},
        {".leading_dense_block_count", "first_k_dense_replace", INT, REQUIRED, DEEPSEEK2},
        {".attention.q_lora_rank", "q_lora_rank", INT, OPTIONAL, DEEPSEEK2},
        {".attention.kv_lora_rank", "kv_lora_rank", INT, REQUIRED, DEEPSEEK2},
        {".rope.dimension_count", "qk_rope_head_dim", INT, REQUIRED, DEEPSEEK2},
        {".expert_weights_scale", "routed_scaling_factor", REAL, OPTIONAL, DEEPSEEK2},
        {".expert_weights_norm", "norm_topk_prob", BOOL, OPTIONAL, DEEPSEEK2},
        {".expert_group_count", "n_group", INT, OPTIONAL, DEEPSEEK2},
        {".expert_group_used_count", "topk_group", INT, OPTIONAL, DEEPSEEK2},
        {"tokenizer.ggml.bos_token_id", "bos_token_id", INT, OPTIONAL, ALL},
        {"tokenizer.ggml.eos_token_id", "eos_token_id", INT, OPTIONAL, ALL},
        {"tokenizer.ggml.padding_token_id", "pad_token_id", INT, OPTIONAL, ALL},
},
  sampling_keys[] = {
      {"general.sampling.temp", "temperature", REAL, OPTIONAL, ALL},
      {"general.sampling.top_k", "top_k", INT, OPTIONAL, ALL},
      {"general.sampling.top_p", "top_p", REAL, OPTIONAL, ALL},
      {"general.sampling.min_p", "min_p", REAL, OPTIONAL, ALL},
      {"general.sampling.penalty_repeat", "repetition_penalty", REAL, OPTIONAL, ALL},
};

const struct gguf_tensor *gguf_parts_find(const struct gguf_parts *p, const char *name)
{
    const struct gguf_tensor *t = NULL;
    for (int i = 0; i < p->n && !t; i++)
        t = gguf_find(p->part[i], name);
    return t;
}

int gguf_arch_find(const struct gguf *g, const struct gguf_arch **ret, struct err *e)
{
    struct gguf_str s;
    if (!gguf_get_string(g, "general.architecture", &s))
        return err_set(e, ERR_FORMAT, "%s has no metadata key \"general.architecture\" of type string",
                       gguf_path(g));
    struct buf known = BUF_INIT;
    for (size_t i = 0; i < ARRAY_LEN(archs); i++) {
        if (!strcmp(archs[i].name, s.s)) {
            *ret = &archs[i];
            buf_release(&known);
            return 0;
        }
        buf_addf(&known, "%s%s", i ? ", " : "", archs[i].name);
    }
    int rc = err_set(e, ERR_UNSUPPORTED, "%s is of the architecture \"%.64s\"; of GGUF files, yoke reads %s",
                     gguf_path(g), s.s, known.s);
    buf_release(&known);
    return rc;
}

static const char *lookup_name(const struct tensor_name *v, size_t n, const struct gguf_arch *a,
                               const char *s, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if ((v[i].archs & a->bit) && strlen(v[i].gguf) == len && !memcmp(v[i].gguf, s, len))
            return v[i].hf;
    return NULL;
}

void gguf_hf_name(const struct gguf_arch *a, const char *name, struct buf *out)
{
    const char *suffix = strrchr(name, '.'), *rest = name, *hf = NULL;
    size_t n_digits = 0;
    if (suffix && (!strcmp(suffix, ".weight") || !strcmp(suffix, ".bias"))) {
        if (!strncmp(name, "blk.", 4)) {
            n_digits = strspn(name + 4, "0123456789");
            rest = name + 4 + n_digits + 1;
            /* "blk.07" is no second name of "blk.7" */
            if (n_digits && name[4 + n_digits] == '.' && rest < suffix && (name[4] != '0' || n_digits == 1))
                hf = lookup_name(layer_names, ARRAY_LEN(layer_names), a, rest, (size_t)(suffix - rest));
        } else {
            hf = lookup_name(global_names, ARRAY_LEN(global_names), a, name, (size_t)(suffix - name));
        }
    }
    if (!hf) {
        buf_adds(out, name);
        return;
    }
    if (rest != name) {
        buf_adds(out, "model.layers.");
        buf_add(out, name + 4, n_digits);
        buf_addc(out, '.');
    }
    buf_adds(out, hf);
    if (!strcmp(hf, "mlp.gate.e_score_correction")) /* a parameter of its own there, not a bias of one */
        buf_addc(out, '_'), suffix++;
    buf_adds(out, suffix);
}

/* What the functions below build from. */
struct maker {
    const struct gguf_arch *a;
    const struct gguf_parts *p;
    const struct gguf *g; /* the first part */
    json_t *config;
    struct err *e;
};

static const char *full_key(const struct maker *m, const char *key, char *to, size_t n)
{
    snprintf(to, n, "%s%s", key[0] == '.' ? m->a->name : "", key);
    return to;
}
#define KEY_BYTES 128

static bool has_key(const struct maker *m, const char *key)
{
    char full[KEY_BYTES];
    full_key(m, key, full, sizeof(full));
    for (size_t i = 0; i < gguf_n_keys(m->g); i++)
        if (!strcmp(gguf_key(m->g, i), full))
            return true;
    return false;
}

/* A number that may also be given per layer; only if all layers have the same one is it a number to us. */
static int get_int(const struct maker *m, const char *key, bool *ret_found, int64_t *ret)
{
    char full[KEY_BYTES];
    enum gguf_type type;
    size_t n;
    int64_t v = 0;
    full_key(m, key, full, sizeof(full));
    if (!has_key(m, key)) {
        *ret_found = false;
        return 0;
    }
    bool ok = gguf_get_int(m->g, full, &v);
    if (!ok && gguf_get_array(m->g, full, &type, &n) && n && gguf_array_int(m->g, full, 0, &v)) {
        ok = true;
        for (size_t i = 1; i < n; i++) {
            int64_t other;
            if (!gguf_array_int(m->g, full, i, &other) || other != v)
                return err_set(m->e, ERR_UNSUPPORTED,
                               "%s: metadata key \"%s\" differs from layer to layer, which yoke does not do",
                               gguf_path(m->g), full);
        }
    }
    if (!ok || v < 0 || v > INT32_MAX)
        return err_set(m->e, ERR_FORMAT, "%s: metadata key \"%s\" should be an integer of 0 to 2^31-1",
                       gguf_path(m->g), full);
    *ret_found = true;
    *ret = v;
    return 0;
}

/* The decimal number that was meant by a float: 1e-05 and not 9.99999974737875e-06. */
static double shortest(double d)
{
    char s[40];
    if ((double)(float)d != d)
        return d;
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(s, sizeof(s), "%.*g", digits, d);
        if (strtof(s, NULL) == (float)d)
            return strtod(s, NULL);
    }
    return d;
}

static int get_real(const struct maker *m, const char *key, bool *ret_found, double *ret)
{
    char full[KEY_BYTES];
    double v;
    full_key(m, key, full, sizeof(full));
    *ret_found = false;
    if (!has_key(m, key))
        return 0;
    if (!gguf_get_double(m->g, full, &v) || !isfinite(v))
        return err_set(m->e, ERR_FORMAT, "%s: metadata key \"%s\" should be a finite number", gguf_path(m->g),
                       full);
    *ret_found = true;
    *ret = shortest(v);
    return 0;
}

static int copy_keys(const struct maker *m, const struct config_key *k, size_t n, json_t *to)
{
    char full[KEY_BYTES];
    for (; n; n--, k++) {
        bool found = false, b;
        int64_t i = 0;
        double d;
        int rc = 0;
        if (!(k->archs & m->a->bit))
            continue;
        full_key(m, k->gguf, full, sizeof(full));
        if (k->kind == BOOL) {
            found = gguf_get_bool(m->g, full, &b);
            if (found)
                json_object_set_new(to, k->hf, json_boolean(b));
            else if (has_key(m, k->gguf))
                rc = err_set(m->e, ERR_FORMAT, "%s: metadata key \"%s\" should be of type bool",
                             gguf_path(m->g), full);
        } else if (k->kind == INT) {
            rc = get_int(m, k->gguf, &found, &i);
            if (!rc && found)
                json_object_set_new(to, k->hf, json_integer(i));
        } else {
            rc = get_real(m, k->gguf, &found, &d);
            if (!rc && found)
                json_object_set_new(to, k->hf, json_real(d));
        }
        if (!rc && found && k->need == POSITIVE && i < 1)
            rc = err_set(m->e, ERR_FORMAT, "%s: metadata key \"%s\" is %lld; it should be at least 1",
                         gguf_path(m->g), full, (long long)i);
        if (!rc && !found && k->need != OPTIONAL)
            rc = err_set(m->e, ERR_FORMAT,
                         "%s has no metadata key \"%s\", which models of architecture %s need",
                         gguf_path(m->g), full, m->a->name);
        if (rc)
            return rc;
    }
    return 0;
}

static void set_int(json_t *o, const char *key, int64_t v)
{
    json_object_set_new(o, key, json_integer(v));
}

static int64_t int_of(const struct maker *m, const char *hf_key)
{
    return json_integer_value(json_object_get(m->config, hf_key));
}

static void model_identity(const struct maker *m)
{
    const char *architecture = m->a->architecture, *model_type = m->a->model_type;
    bool found;
    int64_t n;
    if (m->a->bit == LLAMA && !get_int(m, ".expert_count", &found, &n) && found && n > 0) {
        architecture = "MixtralForCausalLM"; /* under llama's name in GGUF */
        model_type = "mixtral";
    } else if (m->a->bit == LLAMA && json_object_get(m->config, "sliding_window")) {
        architecture = "MistralForCausalLM";
        model_type = "mistral";
    } else if (m->a->bit == DEEPSEEK2 && !get_int(m, ".expert_gating_func", &found, &n) && found && n == 2) {
        architecture = "DeepseekV3ForCausalLM"; /* 2: sigmoid; V2 has softmax */
        model_type = "deepseek_v3";
    }
    json_object_set_new(m->config, "architectures", json_pack("[s]", architecture));
    json_object_set_new(m->config, "model_type", json_string(model_type));
}

/* Heads and their sizes, for all but latent attention. */
static int attention_shape(const struct maker *m)
{
    int64_t heads = int_of(m, "num_attention_heads"), hidden = int_of(m, "hidden_size"), kv_heads = heads;
    int64_t key_len = 0, value_len, rope_dims;
    bool has, has_value, has_rope;
    int rc = get_int(m, ".attention.head_count_kv", &has, &kv_heads);
    if (!rc)
        rc = get_int(m, ".attention.key_length", &has, &key_len);
    if (rc)
        return rc;
    if (!has) {
        if (hidden % heads)
            return err_set(
                m->e, ERR_FORMAT,
                "%s: an embedding_length of %lld is no multiple of a head_count of %lld, and there is no "
                "attention.key_length",
                gguf_path(m->g), (long long)hidden, (long long)heads);
        key_len = hidden / heads;
    }
    value_len = rope_dims = key_len;
    rc = get_int(m, ".attention.value_length", &has_value, &value_len);
    if (!rc)
        rc = get_int(m, ".rope.dimension_count", &has_rope, &rope_dims);
    if (rc)
        return rc;
    if (value_len != key_len)
        return err_set(
            m->e, ERR_UNSUPPORTED,
            "%s: keys of length %lld and values of length %lld; for the architecture %s, yoke wants them "
            "equal",
            gguf_path(m->g), (long long)key_len, (long long)value_len, m->a->name);
    if (rope_dims > key_len || rope_dims % 2)
        return err_set(m->e, ERR_FORMAT,
                       "%s: rope.dimension_count is %lld; legal are even numbers up to the head's "
                       "size, %lld",
                       gguf_path(m->g), (long long)rope_dims, (long long)key_len);
    set_int(m->config, "num_key_value_heads", kv_heads);
    set_int(m->config, "head_dim", key_len);
    if (rope_dims != key_len)
        json_object_set_new(m->config, "partial_rotary_factor",
                            json_real((double)rope_dims / (double)key_len));
    return 0;
}

/* DeepSeek's: a file made for multi-query use says the lengths of its compressed form, and the true ones
 * under *_mla; older files say the true ones. */
static int latent_attention_shape(const struct maker *m)
{
    int64_t key_len = 0, value_len = 0, rope = int_of(m, "qk_rope_head_dim");
    bool has_key_len, has_value_len;
    int rc = get_int(m, ".attention.key_length_mla", &has_key_len, &key_len);
    if (!rc && !has_key_len)
        rc = get_int(m, ".attention.key_length", &has_key_len, &key_len);
    if (!rc)
        rc = get_int(m, ".attention.value_length_mla", &has_value_len, &value_len);
    if (!rc && !has_value_len)
        rc = get_int(m, ".attention.value_length", &has_value_len, &value_len);
    if (rc)
        return rc;
    if (!has_key_len || !has_value_len || key_len <= rope)
        return err_set(
            m->e, ERR_FORMAT,
            "%s: attention.key_length (%lld) and value_length (%lld) should be there, the first greater "
            "than rope.dimension_count (%lld)",
            gguf_path(m->g), (long long)key_len, (long long)value_len, (long long)rope);
    set_int(m->config, "num_key_value_heads", int_of(m, "num_attention_heads"));
    set_int(m->config, "qk_nope_head_dim", key_len - rope);
    set_int(m->config, "v_head_dim", value_len);
    return 0;
}

static int rope(const struct maker *m)
{
    char full[KEY_BYTES];
    struct gguf_str type = {"", 0};
    double base = 10000, factor = 1, v;
    bool found;
    int64_t original = 0;
    int rc = get_real(m, ".rope.freq_base", &found, &base);
    if (!rc)
        rc = get_real(m, ".rope.scaling.factor", &found, &factor);
    if (!rc && !found)
        rc = get_real(m, ".rope.scale_linear", &found, &factor); /* before there were types */
    if (!rc)
        rc = get_int(m, ".rope.scaling.original_context_length", &found, &original);
    if (rc)
        return rc;
    if (base <= 0 || factor <= 0)
        return err_set(m->e, ERR_FORMAT,
                       "%s: rope.freq_base (%g) and rope.scaling.factor (%g) should be positive",
                       gguf_path(m->g), base, factor);
    json_object_set_new(m->config, "rope_theta", json_real(base));
    if (m->a->rope_interleaved)
        json_object_set_new(m->config, "rope_interleaved", json_true());

    if (!gguf_get_string(m->g, full_key(m, ".rope.scaling.type", full, sizeof(full)), &type) &&
        has_key(m, ".rope.scaling.type"))
        return err_set(m->e, ERR_FORMAT, "%s: metadata key \"%s\" should be a string", gguf_path(m->g), full);
    if (!strcmp(type.s, "none") || (!type.len && factor == 1))
        return 0;
    if (type.len && strcmp(type.s, "linear") && strcmp(type.s, "yarn"))
        return err_set(m->e, ERR_UNSUPPORTED,
                       "%s: rope.scaling.type is \"%.64s\"; yoke reads none, linear, yarn", gguf_path(m->g),
                       type.s);
    json_t *scaling = json_pack("{s:s, s:f}", "rope_type", type.len ? type.s : "linear", "factor", factor);
    json_object_set_new(m->config, "rope_scaling", scaling);
    if (strcmp(type.s, "yarn"))
        return 0;
    if (original)
        set_int(scaling, "original_max_position_embeddings", original);
    static const struct {
        const char *gguf, *hf;
    } betas[] = {{".rope.scaling.yarn_beta_fast", "beta_fast"},
                 {".rope.scaling.yarn_beta_slow", "beta_slow"}};
    for (size_t i = 0; i < ARRAY_LEN(betas); i++) {
        rc = get_real(m, betas[i].gguf, &found, &v);
        if (rc)
            return rc;
        if (found)
            json_object_set_new(scaling, betas[i].hf, json_real(v));
    }
    /* Here a multiplier of the usual 0.1 ln(factor) + 1; there the whole. */
    static const char *const factors[] = {".rope.scaling.attn_factor", ".rope.scaling.yarn_attn_factor"};
    double attention = 1;
    for (size_t i = 0; i < ARRAY_LEN(factors); i++) {
        rc = get_real(m, factors[i], &found, &v);
        if (rc)
            return rc;
        attention *= found ? v : 1;
    }
    if (attention != 1)
        json_object_set_new(scaling, "attention_factor", json_real(attention * (0.1 * log(factor) + 1)));
    /* DeepSeek's converter writes 0.1 * mscale_all_dim. */
    rc = get_real(m, ".rope.scaling.yarn_log_multiplier", &found, &v);
    if (rc)
        return rc;
    if (found) {
        json_object_set_new(scaling, "mscale", json_real(shortest((double)(float)(v * 10))));
        json_object_set_new(scaling, "mscale_all_dim", json_real(shortest((double)(float)(v * 10))));
    }
    return 0;
}

/* What shows in the tensors only. */
static int from_tensors(const struct maker *m)
{
    const struct gguf_tensor *embed = gguf_parts_find(m->p, "token_embd.weight");
    enum gguf_type type;
    size_t n_tokens = 0;
    uint64_t bytes[DT_COUNT] = {0};
    enum dtype most = DT_F32;
    if (embed && embed->n_dims == 2)
        set_int(m->config, "vocab_size", embed->dim[0]); /* may be padded beyond the tokenizer's */
    else if (gguf_get_array(m->g, "tokenizer.ggml.tokens", &type, &n_tokens))
        set_int(m->config, "vocab_size", (int64_t)n_tokens);
    else
        return err_set(m->e, ERR_FORMAT,
                       "%s has neither a matrix \"token_embd.weight\" nor \"tokenizer.ggml.tokens\"",
                       gguf_path(m->g));
    json_object_set_new(m->config, "tie_word_embeddings",
                        json_boolean(!gguf_parts_find(m->p, "output.weight")));
    if (!(m->a->bit & (QWEN2 | QWEN2MOE))) /* these have it without saying so */
        json_object_set_new(m->config, "attention_bias",
                            json_boolean(gguf_parts_find(m->p, "blk.0.attn_q.bias") != NULL));
    if (m->a->bit == LLAMA)
        json_object_set_new(m->config, "mlp_bias",
                            json_boolean(gguf_parts_find(m->p, "blk.0.ffn_up.bias") != NULL));
    for (int p = 0; p < m->p->n; p++)
        for (size_t i = 0; i < gguf_n_tensors(m->p->part[p]); i++) {
            const struct gguf_tensor *t = gguf_tensor(m->p->part[p], i);
            bytes[t->dtype] += t->n_bytes;
        }
    for (int t = 0; t < DT_COUNT; t++)
        if (bytes[t] > bytes[most])
            most = (enum dtype)t;
    static const char *const torch[DT_COUNT] = {
        [DT_F32] = "float32", [DT_F16] = "float16", [DT_BF16] = "bfloat16"};
    json_object_set_new(m->config, "dtype", json_string(torch[most] ? torch[most] : dtype_name(most)));
    return 0;
}

/* What the architecture implies and its files do not say. */
static void constants(const struct maker *m)
{
    json_object_set_new(m->config, "hidden_act", json_string("silu"));
    if (m->a->bit & (QWEN2MOE | QWEN3MOE)) {
        set_int(m->config, "decoder_sparse_step", 1);
        json_object_set_new(m->config, "norm_topk_prob", json_boolean(m->a->bit == QWEN3MOE));
    }
    if (m->a->bit == DEEPSEEK2) {
        bool v3 = !strcmp(json_string_value(json_object_get(m->config, "model_type")), "deepseek_v3");
        json_object_set_new(m->config, "scoring_func", json_string(v3 ? "sigmoid" : "softmax"));
        json_object_set_new(m->config, "topk_method",
                            json_string(v3                         ? "noaux_tc"
                                        : int_of(m, "n_group") > 1 ? "group_limited_greedy"
                                                                   : "greedy"));
    }
}

static int generation_config(const struct maker *m, json_t **ret)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *gen = json_object(), *eos = json_array();
    int64_t id;
    bool found;
    int rc = 0;
    for (size_t i = 0; i < ARRAY_LEN(ends) && !rc; i++) {
        rc = get_int(m, ends[i], &found, &id);
        for (size_t j = 0; !rc && found && j < json_array_size(eos); j++)
            found = json_integer_value(json_array_get(eos, j)) != id;
        if (!rc && found)
            json_array_append_new(eos, json_integer(id));
    }
    if (json_array_size(eos))
        json_object_set(gen, "eos_token_id", eos);
    json_decref(eos);
    if (!rc)
        rc = copy_keys(m, sampling_keys, ARRAY_LEN(sampling_keys), gen);
    if (!rc && json_object_get(gen, "temperature"))
        json_object_set_new(gen, "do_sample",
                            json_boolean(json_number_value(json_object_get(gen, "temperature")) > 0));
    if (!rc && json_object_get(m->config, "bos_token_id"))
        json_object_set(gen, "bos_token_id", json_object_get(m->config, "bos_token_id"));
    if (rc || !json_object_size(gen)) {
        json_decref(gen);
        gen = NULL;
    }
    *ret = gen;
    return rc;
}

int gguf_hf_config(const struct gguf_arch *a, const struct gguf_parts *p, json_t **ret_config,
                   json_t **ret_generation_config, struct err *e)
{
    struct maker m = {a, p, p->part[0], json_object(), e};
    json_t *gen = NULL;
    int rc = copy_keys(&m, config_keys, ARRAY_LEN(config_keys), m.config);
    if (!rc) {
        model_identity(&m);
        rc = a->bit == DEEPSEEK2 ? latent_attention_shape(&m) : attention_shape(&m);
    }
    if (!rc)
        rc = rope(&m);
    if (!rc)
        rc = from_tensors(&m);
    if (!rc)
        constants(&m);
    if (!rc)
        rc = generation_config(&m, &gen);
    if (rc) {
        json_decref(m.config);
        return rc;
    }
    *ret_config = m.config;
    *ret_generation_config = gen;
    return 0;
}
