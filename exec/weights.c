#include "exec/weights.h"

#include <assert.h>
#include <sys/mman.h>
#include "base/mem.h"

static struct range members_of(const struct weights_part *part, const struct plan_weight *w)
{
    struct range all = {0, range_n(w->stack)};
    if (w->expert_layer < 0)
        return all;
    return (struct range){MIN(part->experts.begin, all.end), MIN(part->experts.end, all.end)};
}

struct range weights_members(const struct weights *w, int32_t i)
{
    return members_of(&w->part, &w->plan->weights[i]);
}

size_t weights_net_bytes(const struct weights *w)
{
    size_t bytes = 0;
    for (int32_t i = w->part.first; i < w->part.first + w->part.n; i++) {
        const struct plan_weight *pw = &w->plan->weights[i];
        int32_t n = range_n(pw->stack);
        bytes += n ? pw->bytes / (size_t)n * (size_t)range_n(weights_members(w, i)) : 0;
    }
    return bytes;
}

/* Where weight i of a part begins, if what lies before it ends at *at; moves *at behind it. A layer's records
 * are placed with the first of the three weights, the other two lie in them. */
static size_t place(const struct plan *p, const struct weights_part *part, int32_t i, size_t *at)
{
    const struct plan_weight *w = &p->weights[i];
    struct range here = members_of(part, w);
    size_t begin = *at;
    if (w->expert_layer < 0 || !range_n(here)) {
        *at += w->expert_layer < 0 ? ROUND_UP(w->bytes, 64) : 0;
        return begin;
    }
    const struct expert_layer *x = &p->expert_layers[w->expert_layer];
    size_t all = x->bytes * (size_t)range_n(here);
    if (i != x->weight)
        return begin - all + x->at[i - x->weight];
    begin = ROUND_UP(begin, RECORD_ALIGN);
    *at = begin + all;
    return begin;
}

size_t weights_offset(const struct plan *p, int32_t i)
{
    const struct weights_part all = weights_all(p);
    size_t at = 0, begin = 0;
    for (int32_t k = 0; k <= i && k < p->n_weights; k++)
        begin = place(p, &all, k, &at);
    return i < p->n_weights ? begin : at;
}

size_t weights_stride(const struct plan *p, int32_t i)
{
    const struct plan_weight *w = &p->weights[i];
    struct wmat m;
    if (w->expert_layer >= 0)
        return p->expert_layers[w->expert_layer].bytes;
    plan_weight_mat(w, &m);
    return ROUND_UP(wmat_bytes(&m), 64);
}

static struct weights *new_part(const struct plan *p, const struct weights_part *part)
{
    assert(part->first >= 0 && part->n >= 0 && part->n <= p->n_weights - part->first);
    struct weights *w;
    XNEW(w);
    w->plan = p;
    w->part = *part;
    for (int32_t i = part->first; i < part->first + part->n; i++)
        place(p, part, i, &w->bytes);
    XNEW_N(w->mat, (size_t)p->n_weights);
    XNEW_N(w->vec, (size_t)p->n_weights);
    return w;
}

static void point_at(struct weights *w, int32_t i, uint8_t *data)
{
    const struct plan_weight *pw = &w->plan->weights[i];
    struct range here = weights_members(w, i);
    int32_t n = range_n(pw->stack);
    if (!pw->matrix) {
        w->vec[i] = (float *)(void *)data;
        return;
    }
    size_t stride = weights_stride(w->plan, i);
    XNEW_N(w->mat[i], (size_t)n);
    for (int32_t k = 0; k < n; k++) {
        plan_weight_mat(pw, &w->mat[i][k]);
        if (k >= here.begin && k < here.end)
            w->mat[i][k].data = data + stride * (size_t)(k - here.begin);
    }
}

/* Points matrices and vectors into the image. */
static void lay_out(struct weights *w, void *memory)
{
    size_t at = 0;
    w->memory = memory;
    for (int32_t i = w->part.first; i < w->part.first + w->part.n; i++)
        point_at(w, i, (uint8_t *)memory + place(w->plan, &w->part, i, &at));
}

int weights_new_part(const struct plan *p, const struct weights_part *part, struct weights **ret,
                     struct err *e)
{
    struct weights *w = new_part(p, part);
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
    const struct weights_part all = weights_all(p);
    return weights_new_part(p, &all, ret, e);
}

void weights_map(const struct plan *p, void *map, size_t map_bytes, size_t payload_at, struct weights **ret)
{
    const struct weights_part all = weights_all(p);
    struct weights *w = new_part(p, &all);
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
    expert_cache_free(w->cache);
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
