/* arena.h: memory that dies together.
 *
 * An arena is named after a lifetime (a model, a plan, a template). Allocate freely, free once. Not for
 * things that grow; not shared between threads.
 */
#ifndef YOKE_BASE_ARENA_H
#define YOKE_BASE_ARENA_H

#include <stddef.h>

struct arena;
struct arena *arena_new(void);
void arena_free(struct arena *a);                /* NULL is fine */
void *arena_alloc(struct arena *a, size_t size); /* zeroed, aligned to 16 */
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
size_t arena_bytes(const struct arena *a); /* handed out so far */

#endif
