/* vocab.h: token spellings by id and ids by spelling.
 *
 * Ids may have gaps; spellings are unique, and so are ids. The bytes live in one pool, the index is one open
 * hash table of 4-byte ids: about 8 bytes a token beside its spelling. Filled once, then read-only.
 */
#ifndef YOKE_TEXT_VOCAB_H
#define YOKE_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"

#define VOCAB_MAX_ID   ((1 << 22) - 1)
#define VOCAB_MAX_SIZE (1u << 30) /* bytes of all spellings */

struct vocab {
    struct buf pool; /* spellings, each followed by a 0 */
    struct vocab_token {
        uint32_t at, len; /* len == UINT32_MAX: no such id */
    } * token;            /* [n_ids] */
    int32_t n_ids;        /* largest id + 1 */
    int32_t cap_ids;
    int32_t n_tokens;
    int32_t *slot; /* [n_slots] ids, -1: empty; n_slots is a power of two, at most half full */
    size_t n_slots;
    uint32_t max_len; /* bytes of the longest spelling */
};

void vocab_init(struct vocab *v, size_t expected_tokens);
void vocab_release(struct vocab *v);
/* id within 0..VOCAB_MAX_ID. Errors name both parties: an id or a spelling that is taken. */
int vocab_add(struct vocab *v, const char *s, size_t len, int32_t id, const char *where, struct err *e);
int32_t vocab_find(const struct vocab *v, const char *s, size_t len); /* -1: none */
/* NULL if there is no such id. */
const char *vocab_spelling(const struct vocab *v, int32_t id, size_t *ret_len);

#endif
