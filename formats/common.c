#include "formats/common.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/mem.h"

const char *name_check(const char *s, size_t n)
{
    if (n == 0)
        return "is empty";
    if (n > NAME_MAX_BYTES)
        return "is longer than 1024 bytes";
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return "holds control characters";
    return NULL;
}

void names_add(struct names *x, const char *name, size_t i)
{
    XGROW(x->v, x->n, x->cap);
    x->v[x->n++] = (struct name_entry){name, i};
}

static int by_name(const void *pa, const void *pb)
{
    const struct name_entry *a = pa, *b = pb;
    int c = strcmp(a->name, b->name);
    return c ? c : (a->i > b->i) - (a->i < b->i);
}

const char *names_sort(struct names *x)
{
    if (x->n > 1)
        qsort(x->v, x->n, sizeof(*x->v), by_name);
    for (size_t i = 1; i < x->n; i++)
        if (!strcmp(x->v[i - 1].name, x->v[i].name))
            return x->v[i].name;
    return NULL;
}

size_t names_find(const struct names *x, const char *name)
{
    size_t lo = 0, hi = x->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, x->v[mid].name);
        if (c == 0)
            return x->v[mid].i;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NAMES_NONE;
}

void names_release(struct names *x)
{
    xfree(x->v);
    *x = (struct names){0};
}

static int by_begin(const void *pa, const void *pb)
{
    const struct extent *a = pa, *b = pb;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return (a->i > b->i) - (a->i < b->i);
}

void extents_sort(struct extent *v, size_t n)
{
    if (n > 1)
        qsort(v, n, sizeof(*v), by_begin);
}

const char *bytes_known_mistake(const void *p, size_t n)
{
    static const struct {
        const char *start, *what;
    } known[] = {
        {"version https://git-lfs",
         "is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"},
        {"<!doctype", "is a web page, not a model: the download went wrong"},
        {"<html", "is a web page, not a model: the download went wrong"},
        {"PK\x03\x04", "is a zip archive (PyTorch's format?): convert it to safetensors"},
        {"\x80\x02", "is a Python pickle (PyTorch's format?): convert it to safetensors"},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        size_t len = strlen(known[i].start);
        if (n >= len && !strncasecmp(p, known[i].start, len))
            return known[i].what;
    }
    return NULL;
}
