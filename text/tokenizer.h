/* tokenizer.h: text to token ids and back, exactly as the model was trained.
 *
 * A tokenizer is read from Hugging Face's tokenizer.json (with tokenizer_config.json beside it) or from a
 * GGUF's metadata. It is immutable and may be used by many threads at once. Byte-level BPE (GPT-2, Llama 3,
 * Qwen, SmolLM, DeepSeek: each with its own pre-tokenizer) and sentencepiece-style BPE with byte fallback.
 *
 * The yardstick is PyPI tokenizers: the same ids for every text, the same text for all ids. What a file asks
 * for and this does not do is an error when it is read, which names the part, its place and what there is.
 *
 * Encoding is linear in the text's length (n log n within one pre-token), on any text.
 * Special tokens: where `parse_special` is false, a special token's spelling inside the text is ordinary text
 * and never becomes the control token, not by merging either; user text is always encoded so. (The unknown
 * token stands for characters outside the vocabulary all the same.) Rendered chat templates are encoded with
 * true. Added tokens that are not special are found in any text. Invalid UTF-8 is encoded as if each maximal
 * ill-formed part were U+FFFD (what Python's errors="replace" gives).
 */
#ifndef YOKE_TEXT_TOKENIZER_H
#define YOKE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"

struct tokenizer;
struct gguf;

/* dir: a folder with tokenizer.json, or else tokenizer.gguf (a shard set made from a GGUF). Beside the former
 * are read, where present: chat_template.jinja, tokenizer_config.json, special_tokens_map.json; what comes
 * first in this list wins. add_bos_token and add_eos_token are ignored, as transformers (5) does: the
 * post-processor says what is added. */
int tokenizer_open_dir(const char *dir, struct tokenizer **ret, struct err *e);
int tokenizer_from_json(const char *tokenizer_json, size_t n, const char *config_json /* may be NULL */,
                        size_t n_config, const char *where, struct tokenizer **ret, struct err *e);
/* tokenizer.ggml.model "gpt2" (with the tokenizer.ggml.pre of most families) or "llama". Does not keep g. */
int tokenizer_from_gguf(const struct gguf *g, struct tokenizer **ret, struct err *e);
void tokenizer_free(struct tokenizer *t); /* NULL is fine */

int tokenizer_n_vocab(const struct tokenizer *t); /* largest id + 1 */
int tokenizer_bos(const struct tokenizer *t);     /* -1: none */
int tokenizer_eos(const struct tokenizer *t);     /* -1: none; generation_config may name more */
int tokenizer_id(const struct tokenizer *t,
                 const char *token); /* of a token's exact spelling (added or vocabulary); -1 */
const char *tokenizer_token(const struct tokenizer *t,
                            int id); /* its spelling in the vocabulary; NULL if none */
bool tokenizer_is_special(const struct tokenizer *t, int id);
/* The chat template that came with the tokenizer (tokenizer_config.json, chat_template.jinja, GGUF); NULL if
 * none. */
const char *tokenizer_chat_template(const struct tokenizer *t);

struct ids {
    int32_t *id;
    size_t n, cap;
};
void ids_release(struct ids *ids);

struct encode_options {
    bool add_special;   /* what the post-processor adds (bos, ...), as add_special_tokens=True */
    bool parse_special; /* spellings of special tokens become those tokens */
};
/* Appends to ids; on failure they are as before. Fails on absurd lengths (2^28 bytes), where a pattern of the
 * file's own making gives up on the text (ERR_LIMIT; the published ones do not), and where a character has no
 * token and the file names an unknown token that does not exist. `e` may be NULL. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, struct encode_options o,
                     struct ids *ids, struct err *e);
/* Appends the text of ids, as tokenizers' decode() does (clean_up_tokenization_spaces off). Ids that do not
 * exist count as nothing. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                      struct buf *out);

/* Incremental decoding: feed ids one at a time, get text as soon as it is certain: only whole UTF-8
 * characters, and the concatenation of all pieces (with the flush) equals tokenizer_decode of all ids. */
struct detokenizer;
struct detokenizer *detokenizer_new(const struct tokenizer *t, bool skip_special);
void detokenizer_free(struct detokenizer *d);
void detokenizer_add(struct detokenizer *d, int32_t id, struct buf *out); /* appends what became certain */
void detokenizer_flush(struct detokenizer *d, struct buf *out); /* the end: incomplete bytes become U+FFFD */

#endif
