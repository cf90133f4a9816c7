#include "exec/weights.h"

#include "base/mem.h"

int weights_new(const struct plan *p, struct weights **ret, struct err *e)
{
    struct weights *w;
    XNEW(w);
    w->plan = p;
    XNEW_N(w->mat, (size_t)p->n_weights);
    XNEW_N(w->vec, (size_t)p->n_weights);
    for (int i = 0; i < p->n_weights; i++)
        w->bytes += ROUND_UP(p->weights[i].bytes, 64);
    w->memory = big_alloc(w->bytes, "the weights", e);
    if (!w->memory) {
        weights_free(w);
        return ERR_MEMORY;
    }
    size_t at = 0;
    for (int i = 0; i < p->n_weights; i++) {
        const struct plan_weight *pw = &p->weights[i];
        uint8_t *data = (uint8_t *)w->memory + at;
        if (pw->matrix) {
            int32_t n = range_n(pw->stack);
            XNEW_N(w->mat[i], (size_t)n);
            for (int32_t k = 0; k < n; k++) {
                plan_weight_mat(pw, &w->mat[i][k]);
                w->mat[i][k].data = data + ROUND_UP(wmat_bytes(&w->mat[i][k]), 64) * (size_t)k;
            }
        } else {
            w->vec[i] = (float *)data;
        }
        at += ROUND_UP(pw->bytes, 64);
    }
    *ret = w;
    return 0;
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    if (w->memory)
        big_free(w->memory, w->bytes);
    for (int i = 0; i < w->plan->n_weights; i++)
        xfree(w->mat[i]);
    xfree(w->mat);
    xfree(w->vec);
    xfree(w);
}
