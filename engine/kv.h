/* kv.h: who owns which page of the KV cache.
 *
 * Pages are numbers 0..n-1, the same on all ranks; what lies in them is exec's business. A sequence holds
 * pages in order of position. One thread owns the pool.
 */
#ifndef YOKE_ENGINE_KV_H
#define YOKE_ENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

struct kv_pool;
struct kv_pool *kv_pool_new(int32_t n_pages, int32_t page_tokens);
void kv_pool_free(struct kv_pool *p); /* NULL is fine */
int32_t kv_pool_n_free(const struct kv_pool *p);

struct kv_seq {
    int32_t *pages;
    int32_t n, cap;
};
/* Makes room for positions 0..n_tokens-1; false, and nothing changed, if there are not enough free pages. */
bool kv_seq_reserve(struct kv_pool *p, struct kv_seq *s, int32_t n_tokens);
void kv_seq_release(struct kv_pool *p, struct kv_seq *s); /* gives all pages back */

#endif
