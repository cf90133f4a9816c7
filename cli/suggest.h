/* suggest.h: "did you mean ...?" */
#ifndef YOKE_CLI_SUGGEST_H
#define YOKE_CLI_SUGGEST_H

#include <stddef.h>

/* Edits (insert, delete, replace, swap of two neighbours) that turn a into b; '-' and '_', and cases, are
 * equal. Words longer than 64 bytes are compared by their first 64. */
int edit_distance(const char *a, size_t n_a, const char *b, size_t n_b);

/* Give it every candidate, then read `best`: NULL if none is near enough (a third of the typed word's
 * length). Among equals the first one stays. */
struct suggest {
    const char *typed;
    size_t n;
    const char *best;
    size_t best_len;
    int distance;
};
void suggest_init(struct suggest *s, const char *typed, size_t n);
void suggest_try(struct suggest *s, const char *candidate, size_t n);
/* For dotted paths: the last parts are compared; that the sections differ counts as half an
 * edit, or one where they differ much. */
void suggest_try_path(struct suggest *s, const char *candidate, size_t n);

#endif
