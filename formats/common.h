/* common.h: what the readers of this layer share: an index of names, and a look at bytes that are none of
 * ours.
 *
 * Names come from files. They are checked once, by name_check, so that they may be printed and compared as C
 * strings from then on.
 */
#ifndef YOKE_FORMATS_COMMON_H
#define YOKE_FORMATS_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NAME_MAX_BYTES 1024 /* of a tensor or a metadata key; the longest known are near 100 */

/* What is wrong with a name of n bytes ("is empty", "holds control characters", ...); NULL if nothing. */
const char *name_check(const char *s, size_t n);

/* From name to position in somebody's array. Names are borrowed and must outlive the index. Add all, then
 * sort once, then find. */
struct names {
    struct name_entry {
        const char *name;
        size_t i;
    } * v;
    size_t n, cap;
};
#define NAMES_NONE SIZE_MAX
void names_add(struct names *x, const char *name, size_t i);
const char *names_sort(struct names *x); /* a name that is there twice (the first in order), or NULL */
size_t names_find(const struct names *x, const char *name); /* NAMES_NONE if it is not there */
void names_release(struct names *x);

/* An array of bytes that claim places in a file. */
struct extent {
    uint64_t begin, end;
    size_t i;
};
/* Sorts by begin (then end, then i). */
void extents_sort(struct extent *v, size_t n);

/* If a file that starts with these bytes is a well-known mistake (a Git LFS pointer, a web page, a zip from
 * PyTorch), what it is and what to do, as the end of a sentence; else NULL. */
const char *bytes_known_mistake(const void *p, size_t n);

#endif
