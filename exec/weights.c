#include "exec/weights.h"

#include <assert.h>
#include <sys/mman.h>
#include "base/mem.h"

size_t weights_offset(const struct plan *p, int32_t i)
{
    size_t at = 0;
    for (int32_t k = 0; k < i; k++)
        at += ROUND_UP(p->weights[k].bytes, 64);
    return at;
}

static struct weights *new_part(const struct plan *p, int32_t first, int32_t n)
{
    assert(first >= 0 && n >= 0 && n <= p->n_weights - first);
    struct weights *w;
    XNEW(w);
    w->plan = p;
    w->first = first;
    w->n = n;
    w->bytes = weights_offset(p, first + n) - weights_offset(p, first);
    XNEW_N(w->mat, (size_t)p->n_weights);
    XNEW_N(w->vec, (size_t)p->n_weights);
    return w;
}

/* Points matrices and vectors into the image. */
static void lay_out(struct weights *w, void *memory)
{
    size_t at = 0;
    w->memory = memory;
    for (int32_t i = w->first; i < w->first + w->n; i++) {
        const struct plan_weight *pw = &w->plan->weights[i];
        uint8_t *data = (uint8_t *)memory + at;
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
}

int weights_new_part(const struct plan *p, int32_t first, int32_t n, struct weights **ret, struct err *e)
{
    struct weights *w = new_part(p, first, n);
    void *memory = big_alloc(w->bytes, "the weights", e);
    if (!memory) {
        weights_free(w);
        return ERR_MEMORY;
    }
    lay_out(w, memory);
    *ret = w;
    return 0;
}

int weights_new(const struct plan *p, struct weights **ret, struct err *e)
{
    return weights_new_part(p, 0, p->n_weights, ret, e);
}

void weights_map(const struct plan *p, void *map, size_t map_bytes, size_t payload_at, struct weights **ret)
{
    struct weights *w = new_part(p, 0, p->n_weights);
    assert(payload_at % 64 == 0 && payload_at <= map_bytes && w->bytes <= map_bytes - payload_at);
    w->map = map;
    w->map_bytes = map_bytes;
    lay_out(w, (uint8_t *)map + payload_at);
    *ret = w;
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    if (w->map)
        munmap(w->map, w->map_bytes);
    else if (w->memory)
        big_free(w->memory, w->bytes);
    for (int i = 0; i < w->plan->n_weights; i++)
        xfree(w->mat[i]);
    xfree(w->mat);
    xfree(w->vec);
    xfree(w);
}
