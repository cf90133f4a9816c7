/* bpe.h: byte pair encoding of one pre-token.
 *
 * Two ways of saying which neighbours merge, one machine: a list of merges in the order of their ranks
 * (tokenizer.json, GGUF "gpt2"), or a score for each token (sentencepiece, GGUF "llama"), where two
 * neighbours merge if together they spell a token, the best score first. The machine is a linked list of
 * symbols and a heap of possible merges: O(n log n) for n characters. Of equal ranks the leftmost goes first.
 *
 * An object is filled while the tokenizer is read and constant from then on. What one encoding needs is in
 * its own bpe_scratch.
 */
#ifndef YOKE_TEXT_BPE_H
#define YOKE_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

struct bpe_merge {
    int32_t left, right; /* left == -1: an empty slot */
    uint32_t rank;       /* the least goes first */
    int32_t result;
};

struct bpe {
    struct vocab vocab;
    struct bpe_merge *merge; /* [n_slots] open hash table by (left, right) */
    size_t n_slots, n_merges;
    uint32_t *score_rank;  /* [vocab.n_ids] sentencepiece: 0 for the best score; UINT32_MAX: never merged to.
                              NULL: merges are a list. */
    bool ignore_merges;    /* a pre-token that is in the vocabulary is that token */
    bool byte_fallback;    /* a character outside the vocabulary becomes its bytes' tokens <0xNN> */
    bool fuse_unk;         /* neighbouring unknown characters become one token */
    int32_t unk;           /* -1: none (unknown characters vanish) */
    bool unk_missing;      /* an unk_token was named that is not in the vocabulary */
    char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; NULL: none */
    size_t prefix_len, suffix_len;
    int32_t byte[256];      /* ids of <0xNN>; -1 */
    int32_t low[0x180];     /* ids of the first characters' one-character tokens; -1. Byte-level text needs no
                               others. */
    const uint8_t *special; /* [n_special], borrowed: ids that ordinary text must not become */
    int32_t n_special;
};

void bpe_init(struct bpe *b, size_t expected_tokens, size_t expected_merges);
void bpe_release(struct bpe *b);
/* Before the merges. NULL: none. */
void bpe_set_affixes(struct bpe *b, const char *prefix, const char *suffix);
/* The rank is the number of merges so far. A pair given twice has the later rank, as in tokenizers. */
int bpe_add_merge(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right,
                  const char *where, struct err *e);
/* After vocabulary and flags are complete. */
void bpe_finish(struct bpe *b);

struct bpe_symbol {
    int32_t id;         /* -1: spells no token (sentencepiece) */
    uint32_t at, len;   /* its bytes in the pre-token; len == 0: merged into another */
    int32_t prev, next; /* -1: none */
};

struct bpe_scratch {
    struct bpe_symbol *symbol;
    size_t n_symbols, cap_symbols;
    struct bpe_candidate {
        uint64_t order; /* rank << 32 | position of the left symbol */
        int32_t result;
        int32_t left, right; /* the symbols' ids, and the length of both together, when this was proposed: */
        uint32_t len;        /* what has changed since is out of date */
    } * heap;
    size_t n_heap, cap_heap;
    uint64_t work; /* heap operations, for tests of linearity */
};
void bpe_scratch_release(struct bpe_scratch *s);

/* Appends the tokens of s[0..n), n > 0, well-formed UTF-8 of at most 2^30 bytes. allow_special: merges may
 * make special tokens out of ordinary characters, as the library lets them; else they never do. */
int bpe_encode(const struct bpe *b, const char *s, size_t n, bool allow_special, struct bpe_scratch *scratch,
               struct ids *ids, struct err *e);

#endif
