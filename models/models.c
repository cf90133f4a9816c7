#include "models/models.h"

#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "models/registry.h"

static const struct {
    const char *architecture, *model_type;
    model_fn *build;
} registry[] = {
    {"LlamaForCausalLM", "llama", llama_model},
    {"MistralForCausalLM", "mistral", llama_model},
    {"Qwen2ForCausalLM", "qwen2", qwen2_model},
    {"Qwen3ForCausalLM", "qwen3", qwen3_model},
    {"MixtralForCausalLM", "mixtral", mixtral_model},
    {"Qwen2MoeForCausalLM", "qwen2_moe", qwen2_moe_model},
    {"Qwen3MoeForCausalLM", "qwen3_moe", qwen3_moe_model},
    {"DeepseekV2ForCausalLM", "deepseek_v2", deepseek_model},
    {"DeepseekV3ForCausalLM", "deepseek_v3", deepseek_model},
};

void model_list(struct buf *out)
{
    for (size_t i = 0; i < ARRAY_LEN(registry); i++)
        buf_addf(out, "%s%s", i ? ", " : "", registry[i].architecture);
}

/* The registry's row for a configuration; its model_type is what hparams go by, whatever the file says. */
static int find(const json_t *config, struct err *e)
{
    const char *arch = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    const char *type = json_string_value(json_object_get(config, "model_type"));
    for (size_t i = 0; i < ARRAY_LEN(registry); i++)
        if (arch ? !strcmp(arch, registry[i].architecture) : type && !strcmp(type, registry[i].model_type))
            return (int)i;
    struct buf known = BUF_INIT;
    model_list(&known);
    err_set(e, ERR_UNSUPPORTED, "the architecture \"%s\" is not supported; supported are %s",
            arch ? arch : (type ? type : "(none given in config.json)"), known.s);
    buf_release(&known);
    return -1;
}

int model_build(const json_t *config, struct warn_sink *warn, struct graph **ret, struct hparams *ret_p,
                struct err *e)
{
    struct hparams p;
    int row = find(config, e);
    if (row < 0)
        return ERR_UNSUPPORTED;
    int rc = hparams_read(config, registry[row].model_type, warn, &p, e);
    if (rc)
        return rc;
    struct graph *g = graph_new();
    graph_axis(g, AX_VOCAB, p.vocab);
    graph_axis(g, AX_EMBED, p.hidden);
    graph_axis(g, AX_HEAD, p.heads);
    graph_axis(g, AX_KV_HEAD, p.kv_heads);
    graph_axis(g, AX_HEAD_DIM, p.head_dim);
    graph_axis(g, AX_FFN, p.ffn);
    if (p.experts) {
        graph_axis(g, AX_EXPERT, p.experts);
        graph_axis(g, AX_MOE_FFN, p.moe_ffn);
        graph_axis(g, AX_ONE, 1);
    }
    if (p.kv_lora) {
        graph_axis(g, AX_KV_LORA, p.kv_lora);
        graph_axis(g, AX_LATENT, p.kv_lora + p.rope_dim);
        graph_axis(g, AX_NOPE_DIM, p.nope_dim);
        graph_axis(g, AX_QK_DIM, p.nope_dim + p.rope_dim);
        graph_axis(g, AX_V_DIM, p.v_dim);
    }
    if (p.q_lora)
        graph_axis(g, AX_Q_LORA, p.q_lora);
    if (p.shared_ffn)
        graph_axis(g, AX_SHARED_FFN, p.shared_ffn);
    registry[row].build(g, &p);
    graph_select_rows(g);
    rc = graph_finish(g, e);
    if (rc) {
        graph_free(g);
        hparams_release(&p);
        return rc;
    }
    *ret = g;
    if (ret_p)
        *ret_p = p;
    else
        hparams_release(&p);
    return 0;
}
