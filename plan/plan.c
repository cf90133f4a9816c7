#include "plan/plan.h"

#include <assert.h>
#include <string.h>
#include <openssl/evp.h>
#include "base/mem.h"
#include "plan/internal.h"

const char *step_name(int kind)
{
    if (kind < OP_COUNT)
        return op_name((enum op_kind)kind);
    static const char *const names[STEP_KINDS] = {
        [STEP_QUANTIZE] = "quantize",
        [STEP_ROPE_TABLE] = "rope_table",
        [STEP_EXPERT_SORT] = "expert_sort",
        [STEP_EXPERT_GATHER] = "expert_gather",
        [STEP_EXPERT_UP] = "expert_up",
        [STEP_EXPERT_DOWN] = "expert_down",
        [STEP_EXPERT_COMBINE] = "expert_combine",
        [STEP_EXPERT_SPREAD] = "expert_spread",
        [STEP_EXPERT_EXCHANGE] = "expert_exchange",
        [STEP_EXPERT_RETURN] = "expert_return",
        [STEP_EXPERT_JOIN] = "expert_join",
    };
    return names[kind];
}

int plan_make(const struct graph *g, const struct plan_options *o, struct plan **ret, struct err *e)
{
    assert(o->max_tokens > 0 && o->max_out > 0 && o->page_tokens > 0 && o->rank >= 0 && o->rank < o->tp);
    if (o->tp > PLAN_MAX_RANKS)
        return err_set(e, ERR_SPLIT, "tensor parallelism of %d: at most %d ranks are supported", o->tp,
                       PLAN_MAX_RANKS);
    struct plan *p;
    XNEW(p);
    p->graph = g;
    p->opt = *o;
    p->opt.ep = MAX(o->ep, 1);
    p->opt.pp = MAX(o->pp, 1);
    p->opt.dp = MAX(o->dp, 1);
    int rc = plan_lower(p, e);
    if (rc) {
        plan_free(p);
        return rc;
    }
    plan_place(p);
    plan_barriers(p);
    p->opt.source = NULL;
    p->opt.pins = NULL;
    *ret = p;
    return 0;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    xfree(p->slots);
    xfree(p->steps);
    xfree(p->weights);
    xfree(p->expert_layers);
    xfree(p->stage_end);
    xfree(p->stage_cost);
    xfree(p);
}

void plan_weight_mat(const struct plan_weight *w, struct wmat *ret)
{
    int32_t rows = range_n(w->row), cols = range_n(w->col), block = dtype_info(w->dtype)->block;
    if (w->blocks.scale_rows && w->dtype == DT_F8_E4M3)
        wmat_init_f8(ret, rows, cols, &w->blocks, &w->cuts);
    else /* K-quants may be cut within their blocks of 256 */
        wmat_init(ret, w->dtype, rows, cols, block == 256 ? w->col.begin % block : 0, &w->cuts);
}

void plan_cache(const struct plan *p, uint64_t bytes, struct plan_cache *ret)
{
    *ret = (struct plan_cache){.weight_bytes = p->weight_bytes};
    for (int32_t i = 0; i < p->n_expert_layers; i++) {
        const struct expert_layer *x = &p->expert_layers[i];
        int32_t n = range_n(x->stack);
        ret->records += n;
        ret->least = MAX(ret->least, n);
        ret->slot_bytes = MAX(ret->slot_bytes, x->bytes);
        ret->bytes += x->bytes * (size_t)n;
    }
    ret->slots = ret->records;
    if (bytes >= ret->bytes)
        return;
    ret->slots = (int32_t)(bytes / ret->slot_bytes);
    ret->bytes = ret->slot_bytes * (size_t)ret->slots;
    ret->weight_bytes += ret->bytes;
    for (int32_t i = 0; i < p->n_weights; i++)
        if (p->weights[i].expert_layer >= 0)
            ret->weight_bytes -= p->weights[i].bytes;
}

uint64_t plan_digest(const void *bytes, size_t n)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    uint64_t h = 0;
    if (EVP_Digest(bytes, n, digest, NULL, EVP_sha256(), NULL))
        memcpy(&h, digest, sizeof(h));
    return h;
}

uint64_t plan_hash(const struct plan *p)
{
    struct buf b = BUF_INIT;
    graph_print(p->graph, &b);
    buf_addf(&b, "tp %d pp %d ep %d spread %d quant %d kv %d tokens %d out %d page %d weights %llx\n",
             p->opt.tp, p->opt.pp, p->opt.ep, plan_spreads(p), p->opt.quant, p->opt.kv, p->opt.max_tokens,
             p->opt.max_out, p->opt.page_tokens, (unsigned long long)p->weights_digest);
    uint64_t h = plan_digest(b.s, b.len);
    buf_release(&b);
    return h;
}

size_t plan_spread_bytes(const struct plan *p, const struct step *s)
{
    if (s->kind != STEP_EXPERT_EXCHANGE && s->kind != STEP_EXPERT_RETURN)
        return 0;
    size_t rows = (size_t)(p->graph->axis_n[AX_CHOICE] / 2) * (size_t)plan_expert_slices(p);
    return rows * p->slots[s->in[0]].row_bytes; /* for each choice, to all that have a slice of its expert */
}

size_t plan_step_bytes(const struct plan *p, const struct step *s, int64_t rows)
{
    switch (s->kind) {
    case OP_ALLREDUCE:
    case OP_REDUCE_SCATTER:
    case OP_ALLGATHER:
    case OP_ALLTOALL:
    case OP_SEND:
        return p->slots[s->in[0]].row_bytes * (size_t)rows;
    default:
        return 0;
    }
}
