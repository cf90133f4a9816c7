/* kv.h: who owns which page of the KV cache.
 *
 * Pages are numbers 0..n-1, the same on all ranks; what lies in them is exec's business. A sequence holds
 * pages in order of position. One thread owns the pool. Taking and giving back a page is O(1); any page
 * serves any sequence, so the pool never fragments.
 */
#ifndef YOKE_ENGINE_KV_H
#define YOKE_ENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

struct kv_pool;
struct kv_pool *kv_pool_new(int32_t n_pages, int32_t page_tokens);
void kv_pool_free(struct kv_pool *p); /* NULL is fine; sequences must have been closed or released */
int32_t kv_pool_n_free(const struct kv_pool *p);

/* Pages that n_tokens positions take. */
static inline int32_t kv_pages(int32_t n_tokens, int32_t page_tokens)
{
    return n_tokens / page_tokens + (n_tokens % page_tokens != 0);
}

struct kv_seq { /* all zeros: holds nothing */
    int32_t *pages;
    int32_t n, cap;
};
/* Holds nothing, but has the memory to hold cap pages: up to there kv_seq_reserve allocates nothing. */
void kv_seq_init(struct kv_seq *s, int32_t cap);
/* Makes room for positions 0..n_tokens-1; false, and nothing changed, if there are not enough free pages. */
bool kv_seq_reserve(struct kv_pool *p, struct kv_seq *s, int32_t n_tokens);
void kv_seq_release(struct kv_pool *p, struct kv_seq *s); /* gives all pages back */
void kv_seq_close(struct kv_pool *p, struct kv_seq *s);   /* and frees the list of them */

#endif
