#include "cli/suggest.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

enum { LONGEST = 64 };

static int fold(char c)
{
    return c == '_' ? '-' : tolower((unsigned char)c);
}

int edit_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    n_a = MIN(n_a, (size_t)LONGEST);
    n_b = MIN(n_b, (size_t)LONGEST);
    /* Three rows of the usual table: two back (for swaps), one back, this one. */
    int row[3][LONGEST + 1];
    for (size_t j = 0; j <= n_b; j++)
        row[0][j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int *now = row[i % 3], *back = row[(i + 2) % 3], *back2 = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            int same = fold(a[i - 1]) == fold(b[j - 1]);
            int d = MIN(MIN(back[j] + 1, now[j - 1] + 1), back[j - 1] + !same);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]))
                d = MIN(d, back2[j - 2] + 1);
            now[j] = d;
        }
    }
    return row[n_a % 3][n_b];
}

void suggest_init(struct suggest *s, const char *typed, size_t n)
{
    *s = (struct suggest){.typed = typed, .n = n};
}

static size_t limit_of(size_t n)
{
    return MAX((size_t)1, n / 3);
}

/* Words whose lengths alone tell them apart need no table. */
static int distance_within_reason(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t apart = n_a > n_b ? n_a - n_b : n_b - n_a;
    return apart > limit_of(n_a) ? (int)apart : edit_distance(a, n_a, b, n_b);
}

/* `halves` counts half edits; n is the length by which they are judged. */
static void offer(struct suggest *s, const char *candidate, size_t n_candidate, int halves, size_t n)
{
    int most = 2 * (int)limit_of(n) + 1;
    if (halves > most || (s->best && halves >= s->distance))
        return;
    s->best = candidate;
    s->best_len = n_candidate;
    s->distance = halves;
}

void suggest_try(struct suggest *s, const char *candidate, size_t n)
{
    offer(s, candidate, n, 2 * distance_within_reason(s->typed, s->n, candidate, n), s->n);
}

static size_t leaf_at(const char *path, size_t n)
{
    while (n && path[n - 1] != '.')
        n--;
    return n;
}

void suggest_try_path(struct suggest *s, const char *candidate, size_t n)
{
    size_t at_typed = leaf_at(s->typed, s->n), at = leaf_at(candidate, n);
    int halves = 2 * distance_within_reason(s->typed + at_typed, s->n - at_typed, candidate + at, n - at);
    /* "generation" for "generation_config": the beginning of a word that is two */
    size_t n_leaf = s->n - at_typed;
    if (n_leaf >= 5 && n - at > n_leaf && candidate[at + n_leaf] == '_' &&
        !strncasecmp(s->typed + at_typed, candidate + at, n_leaf))
        halves = MIN(halves, 3);
    if (halves <= 2 * (int)limit_of(n_leaf) + 1 && (at_typed != at || memcmp(s->typed, candidate, at)))
        halves += edit_distance(s->typed, at_typed, candidate, at) <= 2 ? 1 : 2;
    offer(s, candidate, n, halves, s->n - at_typed);
}
