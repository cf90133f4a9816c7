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
};

void model_list(struct buf *out)
{
    for (size_t i = 0; i < ARRAY_LEN(registry); i++)
        buf_addf(out, "%s%s", i ? ", " : "", registry[i].architecture);
}

static model_fn *find(const json_t *config, struct err *e)
{
    const char *arch = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    const char *type = json_string_value(json_object_get(config, "model_type"));
    for (size_t i = 0; i < ARRAY_LEN(registry); i++)
        if (arch ? !strcmp(arch, registry[i].architecture) : type && !strcmp(type, registry[i].model_type))
            return registry[i].build;
    struct buf known = BUF_INIT;
    model_list(&known);
    err_set(e, ERR_UNSUPPORTED, "the architecture \"%s\" is not supported; supported are %s",
            arch ? arch : (type ? type : "(none given in config.json)"), known.s);
    buf_release(&known);
    return NULL;
}

int model_build(const json_t *config, struct warn_sink *warn, struct graph **ret, struct hparams *ret_p,
                struct err *e)
{
    struct hparams p;
    model_fn *build = find(config, e);
    if (!build)
        return ERR_UNSUPPORTED;
    int rc = hparams_read(config, warn, &p, e);
    if (rc)
        return rc;
    struct graph *g = graph_new();
    graph_axis(g, AX_VOCAB, p.vocab);
    graph_axis(g, AX_EMBED, p.hidden);
    graph_axis(g, AX_HEAD, p.heads);
    graph_axis(g, AX_KV_HEAD, p.kv_heads);
    graph_axis(g, AX_HEAD_DIM, p.head_dim);
    graph_axis(g, AX_FFN, p.ffn);
    build(g, &p);
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
