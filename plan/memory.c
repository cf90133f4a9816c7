/* memory.c: lifetimes, storage shared in place, and an offset for every work buffer. */
#include "base/mem.h"
#include "plan/internal.h"

static void touch(struct plan *p, int32_t slot, int32_t step)
{
    if (slot < 0)
        return;
    struct slot *s = &p->slots[slot];
    if (s->def < 0)
        s->def = step;
    s->last = step;
}

/* These read element i of in[0] only to write element i of out, so out may lie where in[0] lay. */
static bool in_place(int kind)
{
    return kind == OP_ADD || kind == OP_ROPE || kind == OP_GLU || kind == OP_ALLREDUCE ||
           kind == OP_RMS_NORM || kind == OP_GATE || kind == OP_NORM_PART;
}

static void share_storage(struct plan *p)
{
    for (int32_t i = 0; i < p->n_steps; i++) {
        const struct step *s = &p->steps[i];
        if (!in_place(s->kind) || s->in[0] < 0)
            continue;
        struct slot *in = &p->slots[s->in[0]], *out = &p->slots[s->out];
        struct slot *root = &p->slots[in->root];
        if (in->kind != SLOT_WORK || out->kind != SLOT_WORK || in->row_bytes != out->row_bytes ||
            in->row_axis != out->row_axis || root->last != i)
            continue;
        out->root = in->root;
        root->last = out->last;
    }
}

/* First fit in order of birth: each buffer takes the lowest offset that no buffer alive at the same time
 * covers. A few hundred buffers: the square of that is nothing. */
static void assign_offsets(struct plan *p)
{
    int32_t *placed;
    int32_t n = 0;
    XNEW_N(placed, (size_t)p->n_slots);
    for (int32_t step = 0; step < p->n_steps; step++) {
        const int32_t made[2] = {p->steps[step].out, p->steps[step].tmp};
        for (int k = 0; k < 2; k++) {
            if (made[k] < 0)
                continue;
            struct slot *s = &p->slots[made[k]];
            if (s->kind != SLOT_WORK || s->root != made[k] || s->def != step)
                continue;
            size_t at = 0, need = ROUND_UP(s->bytes, 64);
            for (bool moved = true; moved;) {
                moved = false;
                for (int32_t j = 0; j < n; j++) {
                    const struct slot *o = &p->slots[placed[j]];
                    size_t end = o->offset + ROUND_UP(o->bytes, 64);
                    if (o->last >= s->def && s->last >= o->def && at < end && o->offset < at + need) {
                        at = end;
                        moved = true;
                    }
                }
            }
            s->offset = at;
            placed[n++] = made[k];
            p->work_bytes = MAX(p->work_bytes, at + need);
        }
    }
    xfree(placed);
    for (int32_t i = 0; i < p->n_slots; i++)
        if (p->slots[i].kind == SLOT_WORK)
            p->slots[i].offset = p->slots[p->slots[i].root].offset;
}

void plan_place(struct plan *p)
{
    for (int32_t i = 0; i < p->n_steps; i++) {
        const struct step *s = &p->steps[i];
        touch(p, s->out, i);
        touch(p, s->tmp, i);
        for (int k = 0; k < STEP_MAX_IN; k++)
            touch(p, s->in[k], i);
    }
    if (p->logits >= 0)
        p->slots[p->logits].last = p->n_steps; /* read after the tick */
    share_storage(p);
    assign_offsets(p);
}
