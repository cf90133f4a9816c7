#include "text/vocab.h"

#include <string.h>
#include "base/mem.h"

/* Spellings are short: eight bytes at a time, multiply and fold. The vocabulary comes with the model, so a
 * hostile one can only slow down its own loading. */
static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ n;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        s += 8;
        n -= 8;
    }
    uint64_t w = 0;
    for (size_t i = 0; i < n; i++) /* a variable-size memcpy would be a call */
        w |= (uint64_t)(unsigned char)s[i] << (8 * i);
    h = (h ^ w) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static void index_token(struct vocab *v, int32_t id)
{
    size_t i = hash_bytes(v->pool.s + v->token[id].at, v->token[id].len) & (v->n_slots - 1);
    while (v->slot[i] >= 0)
        i = (i + 1) & (v->n_slots - 1);
    v->slot[i] = id;
}

static void rehash(struct vocab *v, size_t n_slots)
{
    xfree(v->slot);
    v->slot = xreallocarray(NULL, n_slots, sizeof(*v->slot));
    memset(v->slot, 0xFF, n_slots * sizeof(*v->slot));
    v->n_slots = n_slots;
    for (int32_t id = 0; id < v->n_ids; id++)
        if (v->token[id].len != UINT32_MAX)
            index_token(v, id);
}

void vocab_init(struct vocab *v, size_t expected_tokens)
{
    memset(v, 0, sizeof(*v));
    buf_init(&v->pool);
    size_t n_slots = 64;
    while (n_slots < 2 * expected_tokens && n_slots < 2 * (VOCAB_MAX_ID + 1))
        n_slots *= 2;
    rehash(v, n_slots);
}

void vocab_release(struct vocab *v)
{
    buf_release(&v->pool);
    xfree(v->token);
    xfree(v->slot);
    memset(v, 0, sizeof(*v));
    buf_init(&v->pool);
}

int vocab_add(struct vocab *v, const char *s, size_t len, int32_t id, const char *where, struct err *e)
{
    size_t other;
    if (id < 0 || id > VOCAB_MAX_ID)
        return err_set(e, ERR_LIMIT, "%s: token \"%.80s\" has id %d, which is outside 0..%d", where, s, id,
                       VOCAB_MAX_ID);
    if (len > VOCAB_MAX_SIZE - v->pool.len - 1)
        return err_set(e, ERR_LIMIT, "%s: the tokens' spellings have more than %u bytes", where,
                       VOCAB_MAX_SIZE);
    if (vocab_spelling(v, id, &other))
        return err_set(e, ERR_FORMAT, "%s: tokens \"%.80s\" and \"%.80s\" have the same id %d", where,
                       vocab_spelling(v, id, &other), s, id);
    int32_t taken = vocab_find(v, s, len);
    if (taken >= 0)
        return err_set(e, ERR_FORMAT, "%s: token \"%.80s\" has two ids, %d and %d", where, s, taken, id);
    if (id >= v->cap_ids) {
        v->cap_ids = MAX(id + 1, MIN(2 * v->cap_ids, VOCAB_MAX_ID + 1));
        v->token = xreallocarray(v->token, (size_t)v->cap_ids, sizeof(*v->token));
    }
    for (; v->n_ids <= id; v->n_ids++)
        v->token[v->n_ids].len = UINT32_MAX;
    v->token[id] = (struct vocab_token){(uint32_t)v->pool.len, (uint32_t)len};
    buf_add(&v->pool, s, len);
    buf_addc(&v->pool, 0);
    v->max_len = MAX(v->max_len, (uint32_t)len);
    v->n_tokens++;
    if (2 * (size_t)v->n_tokens > v->n_slots)
        rehash(v, 2 * v->n_slots);
    else
        index_token(v, id);
    return 0;
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t len)
{
    if (len > v->max_len)
        return -1;
    for (size_t i = hash_bytes(s, len) & (v->n_slots - 1); v->slot[i] >= 0; i = (i + 1) & (v->n_slots - 1)) {
        const struct vocab_token *t = &v->token[v->slot[i]];
        if (t->len == len && !memcmp(v->pool.s + t->at, s, len))
            return v->slot[i];
    }
    return -1;
}

const char *vocab_spelling(const struct vocab *v, int32_t id, size_t *ret_len)
{
    if (id < 0 || id >= v->n_ids || v->token[id].len == UINT32_MAX)
        return NULL;
    *ret_len = v->token[id].len;
    return v->pool.s + v->token[id].at;
}
