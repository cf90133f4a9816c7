#include "engine/kv.h"

#include <assert.h>
#include "base/mem.h"

/* Free pages are a stack: the page given back last is handed out first, while its lines are still warm. Any
 * page serves any sequence, so nothing can fragment. */
struct kv_pool {
    int32_t n_pages, page_tokens, n_free;
    int32_t free[]; /* [n_pages]; the first n_free are free, the last of these goes next */
};

struct kv_pool *kv_pool_new(int32_t n_pages, int32_t page_tokens)
{
    assert(n_pages >= 0 && page_tokens > 0);
    struct kv_pool *p = xmalloc(sizeof(*p) + sizeof(p->free[0]) * (size_t)n_pages);
    p->n_pages = p->n_free = n_pages;
    p->page_tokens = page_tokens;
    for (int32_t i = 0; i < n_pages; i++)
        p->free[i] = n_pages - 1 - i; /* the first page goes first */
    return p;
}

void kv_pool_free(struct kv_pool *p)
{
    xfree(p);
}

int32_t kv_pool_n_free(const struct kv_pool *p)
{
    return p->n_free;
}

void kv_seq_init(struct kv_seq *s, int32_t cap)
{
    *s = (struct kv_seq){.cap = cap};
    XNEW_N(s->pages, (size_t)cap);
}

static void make_room(struct kv_seq *s, int32_t n)
{
    if (n <= s->cap)
        return;
    s->cap = MAX(n, s->cap > INT32_MAX / 2 ? INT32_MAX : 2 * s->cap);
    s->pages = xreallocarray(s->pages, (size_t)s->cap, sizeof(s->pages[0]));
}

bool kv_seq_reserve(struct kv_pool *p, struct kv_seq *s, int32_t n_tokens)
{
    int32_t n = kv_pages(n_tokens, p->page_tokens);
    if (n - s->n > p->n_free)
        return false;
    make_room(s, n);
    while (s->n < n)
        s->pages[s->n++] = p->free[--p->n_free];
    return true;
}

void kv_seq_release(struct kv_pool *p, struct kv_seq *s)
{
    assert(s->n <= p->n_pages - p->n_free);
    while (s->n > 0) /* the last first: the next sequence gets them in this one's order */
        p->free[p->n_free++] = s->pages[--s->n];
}

void kv_seq_close(struct kv_pool *p, struct kv_seq *s)
{
    kv_seq_release(p, s);
    xfree(s->pages);
    *s = (struct kv_seq){0};
}
