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
            int32_t block = dtype_info(pw->dtype)->block;
            wmat_init(&w->mat[i], pw->dtype, range_n(pw->row), range_n(pw->col),
                      block == 256 ? pw->col.begin % block : 0, &pw->cuts);
            w->mat[i].data = data;
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
    xfree(w->mat);
    xfree(w->vec);
    xfree(w);
}
