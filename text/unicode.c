#include "text/unicode.h"

#include <stddef.h>
#include <string.h>
#include <utf8proc.h>
#include "base/mem.h"
#include "text/unidata.h"

static bool in_ranges(const struct uni_range *r, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c > r[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && c >= r[lo].lo;
}

#define IN(table, c) in_ranges(table, ARRAY_LEN(table), c)

bool uni_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool uni_is_punctuation(uint32_t c)
{
    return IN(uni_punctuation, c);
}

bool uni_is_combining(uint32_t c)
{
    return c >= 0x300 && IN(uni_combining, c);
}

bool uni_is_young(uint32_t c)
{
    return c >= 0x7FD && IN(uni_young, c);
}

/* The general category's two letters, as of the newest Unicode known here. */
static const char *category(uint32_t c)
{
    static const char names[][3] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                    "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                    "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
    utf8proc_category_t known = utf8proc_category((utf8proc_int32_t)c);
    if (known != UTF8PROC_CATEGORY_CN)
        return names[known];
    for (size_t i = 0; i < ARRAY_LEN(uni_new); i++)
        if (c >= uni_new[i].lo && c <= uni_new[i].hi)
            return uni_new[i].category;
    return names[0];
}

bool uni_is_numeric(uint32_t c)
{
    if (c < 0x80)
        return c >= '0' && c <= '9';
    return category(c)[0] == 'N' || IN(uni_digits_more, c);
}

bool uni_is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    const char *cat = category(c);
    return cat[0] == 'L' || cat[0] == 'M' || !strcmp(cat, "Nd") || !strcmp(cat, "Nl") || !strcmp(cat, "Pc") ||
           c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
           (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

int uni_lower(uint32_t c, uint32_t ret[2])
{
    if (c < 0x80) {
        ret[0] = c >= 'A' && c <= 'Z' ? c + 32 : c;
        return 1;
    }
    if (c == 0x130) { /* the one character whose lower case is two */
        ret[0] = 'i';
        ret[1] = 0x307;
        return 2;
    }
    for (size_t i = 0; i < ARRAY_LEN(uni_lower_new); i++)
        if (c >= uni_lower_new[i].lo && c <= uni_lower_new[i].hi) {
            ret[0] = uni_lower_new[i].to + (c - uni_lower_new[i].lo);
            return 1;
        }
    ret[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}

static void add_range(struct buf *class, uint32_t lo, uint32_t hi)
{
    buf_addf(class, lo == hi ? "\\x{%X}" : "\\x{%X}-\\x{%X}", lo, hi);
}

void uni_add_new_ranges(struct buf *class, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < ARRAY_LEN(uni_new); i++)
        if (!strncmp(uni_new[i].category, name, n))
            add_range(class, uni_new[i].lo, uni_new[i].hi);
}

void uni_add_new_han(struct buf *class)
{
    add_range(class, 0x2B739, 0x2B739);
    add_range(class, 0x2EBF0, 0x2EE5D);
    add_range(class, 0x31350, 0x323AF);
}
