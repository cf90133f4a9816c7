/* regex.h: the patterns of tokenizer.json, which are Oniguruma's (Ruby syntax), run by PCRE2.
 *
 * A pattern is translated once: what the two read differently (\s and U+180E, \h, \v, $ and ^ at every line,
 * (?m), {n,m}+, nested classes and &&, scripts) is rewritten, and properties get the characters younger than
 * PCRE2's Unicode. A construct that has no faithful translation is an error, never a guess.
 *
 * Searching is done by hand, one anchored match after the other, in windows: PCRE2 sees the next few bytes
 * and says whether it would have looked further; only then the window grows. So the work of a match is known,
 * and added up: a pattern that rescans the same text again and again (quadratic) or backtracks without end is
 * stopped with ERR_LIMIT after `REGEX_WORK_PER_BYTE` times the text's length. Results are never cut short.
 *
 * A regex is immutable and may be used by many threads, each with its own scratch.
 */
#ifndef YOKE_TEXT_REGEX_H
#define YOKE_TEXT_REGEX_H

#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"

#define REGEX_WORK_PER_BYTE 256

struct regex;
struct regex_scratch; /* match data and JIT stack; grows on demand */

struct regex_match {
    size_t start, end;
};
struct regex_matches {
    struct regex_match *v;
    size_t n, cap;
    uint64_t work; /* adds up over searches: places tried and bytes looked at again; for tests of linearity */
};

/* where: for the error sentence. */
int regex_new(const char *pattern, size_t n, const char *where, struct regex **ret, struct err *e);
void regex_free(struct regex *r); /* NULL is fine */
/* The translation alone, for tests. */
int regex_translate(const char *pattern, size_t n, const char *where, struct buf *out, struct err *e);
/* Without the just-in-time compiler, for tests and fuzzing. */
void regex_disable_jit(struct regex *r);

struct regex_scratch *regex_scratch_new(void);
void regex_scratch_free(struct regex_scratch *s); /* NULL is fine */

/* Sets m to all matches in well-formed UTF-8 text, from left to right, not overlapping; an empty match right
 * after a match does not count (as in Oniguruma's find_iter). */
int regex_find_all(const struct regex *r, struct regex_scratch *s, const char *text, size_t n,
                   struct regex_matches *m, struct err *e);

#endif
