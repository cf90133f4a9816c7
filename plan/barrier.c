/* barrier.c: where threads must meet.
 *
 * Each step touches storage in one of a few ways: all of it from every thread, or only the thread's own share
 * (runs of rows, runs of columns). Two steps without a barrier between them clash on storage that one of them
 * writes, unless both touch it by the same share of the same shape: then each thread only meets its own data.
 * A barrier is put before a step that clashes with any step since the last barrier.
 */
#include "base/mem.h"
#include "plan/internal.h"

enum manner { BY_ALL, BY_ROWS, BY_COLS, BY_ONE };

struct access {
    int32_t slot;
    bool write;
    enum manner manner;
};

static int accesses(const struct plan *p, const struct step *s, struct access a[2 + STEP_MAX_IN])
{
    int n = 0;
    enum manner own = s->share == SHARE_ROWS   ? BY_ROWS
                      : s->share == SHARE_COLS ? BY_COLS
                      : s->share == SHARE_ONE  ? BY_ONE
                                               : BY_ALL;
    for (int k = 0; k < STEP_MAX_IN; k++) {
        if (s->in[k] < 0 || p->slots[s->in[k]].kind == SLOT_WEIGHT)
            continue;
        /* a matmul reads its whole input; a selection reads rows that other threads may have made */
        bool all = s->kind == OP_MATMUL || s->kind == OP_ATTEND || s->kind == OP_SELECT ||
                   s->kind == OP_ABSORB || s->kind == OP_EXPAND || s->kind == STEP_EXPERT_GATHER ||
                   s->kind == STEP_EXPERT_JOIN || (s->kind == STEP_EXPERT_COMBINE && k < 2);
        a[n++] = (struct access){s->in[k], false, all ? BY_ALL : own};
    }
    if (s->kind != OP_SEND) /* its out is its in, for the printer's sake */
        a[n++] = (struct access){s->out, true, own};
    if (s->tmp >= 0)
        a[n++] = (struct access){s->tmp, true, own};
    return n;
}

static bool overlap(const struct plan *p, int32_t x, int32_t y)
{
    const struct slot *a = &p->slots[x], *b = &p->slots[y];
    if (a->kind != b->kind)
        return false;
    if (a->kind == SLOT_KV)
        return a->layer == b->layer;
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static bool clash(const struct plan *p, const struct access *a, const struct access *b)
{
    if ((!a->write && !b->write) || (a->manner == BY_ONE && b->manner == BY_ONE) ||
        !overlap(p, a->slot, b->slot))
        return false;
    const struct slot *s = &p->slots[a->slot], *t = &p->slots[b->slot];
    bool same_storage = s->kind == SLOT_WORK && t->kind == SLOT_WORK && s->root == t->root &&
                        s->row_bytes == t->row_bytes && s->row_axis == t->row_axis;
    return !(same_storage && a->manner == b->manner && a->manner != BY_ALL);
}

void plan_barriers(struct plan *p)
{
    int32_t since = 0; /* first step after the last barrier */
    for (int32_t i = 1; i < p->n_steps; i++) {
        struct access mine[2 + STEP_MAX_IN], theirs[2 + STEP_MAX_IN];
        int n = accesses(p, &p->steps[i], mine);
        bool need = false;
        for (int32_t j = since; j < i && !need; j++) {
            int m = accesses(p, &p->steps[j], theirs);
            for (int x = 0; x < n && !need; x++)
                for (int y = 0; y < m && !need; y++)
                    need = clash(p, &mine[x], &theirs[y]);
        }
        if (need) {
            p->steps[i].barrier = true;
            since = i;
        }
    }
}
