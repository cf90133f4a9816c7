/* Python's str: methods, case, % and format(), on code points. Upper and lower case are utf8proc's simple
 * mappings, with the ones that make several characters out of one listed here. */
#include "text/template_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>
#include "base/mem.h"

/* ---- UTF-8 ---- */

unsigned utf8_at(const char *s, const char *end, size_t *n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *n = 1;
        return p[0];
    }
    size_t len = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    assert(len <= (size_t)(end - s));
    *n = len;
    unsigned cp = p[0] & (0xFFu >> (len + 1));
    for (size_t i = 1; i < len; i++)
        cp = cp << 6 | (p[i] & 0x3F);
    return cp;
}

size_t utf8_encode(char *out, unsigned c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

bool utf8_check(const char *s, size_t len, size_t *bad_at)
{
    for (size_t i = 0; i < len;) {
        if ((unsigned char)s[i] < 0x80) {
            i++;
            continue;
        }
        utf8proc_int32_t cp;
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)(len - i), &cp);
        if (n < 0) {
            *bad_at = i;
            return false;
        }
        i += (size_t)n;
    }
    return true;
}

/* ---- character classes ---- */

static utf8proc_category_t category(unsigned cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool cp_is_space(unsigned c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static bool is_letter(unsigned cp)
{
    utf8proc_category_t k = category(cp);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool cp_is_alnum(unsigned cp)
{
    utf8proc_category_t k = category(cp);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

bool cp_is_word(unsigned cp)
{
    return cp == '_' || cp_is_alnum(cp) || (cp >= 0x80 && cp_is_name(cp));
}

bool cp_is_name_start(unsigned cp)
{
    return cp == '_' || is_letter(cp) || category(cp) == UTF8PROC_CATEGORY_NL;
}

bool cp_is_name(unsigned cp)
{
    utf8proc_category_t k = category(cp);
    return cp_is_name_start(cp) || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC ||
           k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_PC;
}

bool cp_is_printable(unsigned cp)
{
    if (cp < 0x7F)
        return cp >= 0x20;
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

static bool is_decimal(unsigned cp)
{
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

static bool is_digit_cp(unsigned cp) /* decimals, and digits written raised, lowered or in circles */
{
    return is_decimal(cp) || cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468);
}

static bool is_numeric(unsigned cp)
{
    utf8proc_category_t k = category(cp);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

/* ---- case ---- */

struct special_case {
    unsigned cp, upper[3], title[3];
};

/* Unicode's SpecialCasing, unconditional: characters whose upper or title case is several characters. */
static const struct special_case special_cases[] = {
    /* clang-format off */
    {0xDF, {0x53, 0x53, 0}, {0x53, 0x73, 0}},
    {0x149, {0x2BC, 0x4E, 0}, {0x2BC, 0x4E, 0}},
    {0x1F0, {0x4A, 0x30C, 0}, {0x4A, 0x30C, 0}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x587, {0x535, 0x552, 0}, {0x535, 0x582, 0}},
    {0x1E96, {0x48, 0x331, 0}, {0x48, 0x331, 0}},
    {0x1E97, {0x54, 0x308, 0}, {0x54, 0x308, 0}},
    {0x1E98, {0x57, 0x30A, 0}, {0x57, 0x30A, 0}},
    {0x1E99, {0x59, 0x30A, 0}, {0x59, 0x30A, 0}},
    {0x1E9A, {0x41, 0x2BE, 0}, {0x41, 0x2BE, 0}},
    {0x1F50, {0x3A5, 0x313, 0}, {0x3A5, 0x313, 0}},
    {0x1F52, {0x3A5, 0x313, 0x300}, {0x3A5, 0x313, 0x300}},
    {0x1F54, {0x3A5, 0x313, 0x301}, {0x3A5, 0x313, 0x301}},
    {0x1F56, {0x3A5, 0x313, 0x342}, {0x3A5, 0x313, 0x342}},
    {0x1F80, {0x1F08, 0x399, 0}, {0x1F88, 0, 0}},
    {0x1F81, {0x1F09, 0x399, 0}, {0x1F89, 0, 0}},
    {0x1F82, {0x1F0A, 0x399, 0}, {0x1F8A, 0, 0}},
    {0x1F83, {0x1F0B, 0x399, 0}, {0x1F8B, 0, 0}},
    {0x1F84, {0x1F0C, 0x399, 0}, {0x1F8C, 0, 0}},
    {0x1F85, {0x1F0D, 0x399, 0}, {0x1F8D, 0, 0}},
    {0x1F86, {0x1F0E, 0x399, 0}, {0x1F8E, 0, 0}},
    {0x1F87, {0x1F0F, 0x399, 0}, {0x1F8F, 0, 0}},
    {0x1F88, {0x1F08, 0x399, 0}, {0x1F88, 0, 0}},
    {0x1F89, {0x1F09, 0x399, 0}, {0x1F89, 0, 0}},
    {0x1F8A, {0x1F0A, 0x399, 0}, {0x1F8A, 0, 0}},
    {0x1F8B, {0x1F0B, 0x399, 0}, {0x1F8B, 0, 0}},
    {0x1F8C, {0x1F0C, 0x399, 0}, {0x1F8C, 0, 0}},
    {0x1F8D, {0x1F0D, 0x399, 0}, {0x1F8D, 0, 0}},
    {0x1F8E, {0x1F0E, 0x399, 0}, {0x1F8E, 0, 0}},
    {0x1F8F, {0x1F0F, 0x399, 0}, {0x1F8F, 0, 0}},
    {0x1F90, {0x1F28, 0x399, 0}, {0x1F98, 0, 0}},
    {0x1F91, {0x1F29, 0x399, 0}, {0x1F99, 0, 0}},
    {0x1F92, {0x1F2A, 0x399, 0}, {0x1F9A, 0, 0}},
    {0x1F93, {0x1F2B, 0x399, 0}, {0x1F9B, 0, 0}},
    {0x1F94, {0x1F2C, 0x399, 0}, {0x1F9C, 0, 0}},
    {0x1F95, {0x1F2D, 0x399, 0}, {0x1F9D, 0, 0}},
    {0x1F96, {0x1F2E, 0x399, 0}, {0x1F9E, 0, 0}},
    {0x1F97, {0x1F2F, 0x399, 0}, {0x1F9F, 0, 0}},
    {0x1F98, {0x1F28, 0x399, 0}, {0x1F98, 0, 0}},
    {0x1F99, {0x1F29, 0x399, 0}, {0x1F99, 0, 0}},
    {0x1F9A, {0x1F2A, 0x399, 0}, {0x1F9A, 0, 0}},
    {0x1F9B, {0x1F2B, 0x399, 0}, {0x1F9B, 0, 0}},
    {0x1F9C, {0x1F2C, 0x399, 0}, {0x1F9C, 0, 0}},
    {0x1F9D, {0x1F2D, 0x399, 0}, {0x1F9D, 0, 0}},
    {0x1F9E, {0x1F2E, 0x399, 0}, {0x1F9E, 0, 0}},
    {0x1F9F, {0x1F2F, 0x399, 0}, {0x1F9F, 0, 0}},
    {0x1FA0, {0x1F68, 0x399, 0}, {0x1FA8, 0, 0}},
    {0x1FA1, {0x1F69, 0x399, 0}, {0x1FA9, 0, 0}},
    {0x1FA2, {0x1F6A, 0x399, 0}, {0x1FAA, 0, 0}},
    {0x1FA3, {0x1F6B, 0x399, 0}, {0x1FAB, 0, 0}},
    {0x1FA4, {0x1F6C, 0x399, 0}, {0x1FAC, 0, 0}},
    {0x1FA5, {0x1F6D, 0x399, 0}, {0x1FAD, 0, 0}},
    {0x1FA6, {0x1F6E, 0x399, 0}, {0x1FAE, 0, 0}},
    {0x1FA7, {0x1F6F, 0x399, 0}, {0x1FAF, 0, 0}},
    {0x1FA8, {0x1F68, 0x399, 0}, {0x1FA8, 0, 0}},
    {0x1FA9, {0x1F69, 0x399, 0}, {0x1FA9, 0, 0}},
    {0x1FAA, {0x1F6A, 0x399, 0}, {0x1FAA, 0, 0}},
    {0x1FAB, {0x1F6B, 0x399, 0}, {0x1FAB, 0, 0}},
    {0x1FAC, {0x1F6C, 0x399, 0}, {0x1FAC, 0, 0}},
    {0x1FAD, {0x1F6D, 0x399, 0}, {0x1FAD, 0, 0}},
    {0x1FAE, {0x1F6E, 0x399, 0}, {0x1FAE, 0, 0}},
    {0x1FAF, {0x1F6F, 0x399, 0}, {0x1FAF, 0, 0}},
    {0x1FB2, {0x1FBA, 0x399, 0}, {0x1FBA, 0x345, 0}},
    {0x1FB3, {0x391, 0x399, 0}, {0x1FBC, 0, 0}},
    {0x1FB4, {0x386, 0x399, 0}, {0x386, 0x345, 0}},
    {0x1FB6, {0x391, 0x342, 0}, {0x391, 0x342, 0}},
    {0x1FB7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1FBC, {0x391, 0x399, 0}, {0x1FBC, 0, 0}},
    {0x1FC2, {0x1FCA, 0x399, 0}, {0x1FCA, 0x345, 0}},
    {0x1FC3, {0x397, 0x399, 0}, {0x1FCC, 0, 0}},
    {0x1FC4, {0x389, 0x399, 0}, {0x389, 0x345, 0}},
    {0x1FC6, {0x397, 0x342, 0}, {0x397, 0x342, 0}},
    {0x1FC7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1FCC, {0x397, 0x399, 0}, {0x1FCC, 0, 0}},
    {0x1FD2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1FD3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1FD6, {0x399, 0x342, 0}, {0x399, 0x342, 0}},
    {0x1FD7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1FE2, {0x3A5, 0x308, 0x300}, {0x3A5, 0x308, 0x300}},
    {0x1FE3, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x1FE4, {0x3A1, 0x313, 0}, {0x3A1, 0x313, 0}},
    {0x1FE6, {0x3A5, 0x342, 0}, {0x3A5, 0x342, 0}},
    {0x1FE7, {0x3A5, 0x308, 0x342}, {0x3A5, 0x308, 0x342}},
    {0x1FF2, {0x1FFA, 0x399, 0}, {0x1FFA, 0x345, 0}},
    {0x1FF3, {0x3A9, 0x399, 0}, {0x1FFC, 0, 0}},
    {0x1FF4, {0x38F, 0x399, 0}, {0x38F, 0x345, 0}},
    {0x1FF6, {0x3A9, 0x342, 0}, {0x3A9, 0x342, 0}},
    {0x1FF7, {0x3A9, 0x342, 0x399}, {0x3A9, 0x342, 0x345}},
    {0x1FFC, {0x3A9, 0x399, 0}, {0x1FFC, 0, 0}},
    {0xFB00, {0x46, 0x46, 0}, {0x46, 0x66, 0}},
    {0xFB01, {0x46, 0x49, 0}, {0x46, 0x69, 0}},
    {0xFB02, {0x46, 0x4C, 0}, {0x46, 0x6C, 0}},
    {0xFB03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xFB04, {0x46, 0x46, 0x4C}, {0x46, 0x66, 0x6C}},
    {0xFB05, {0x53, 0x54, 0}, {0x53, 0x74, 0}},
    {0xFB06, {0x53, 0x54, 0}, {0x53, 0x74, 0}},
    {0xFB13, {0x544, 0x546, 0}, {0x544, 0x576, 0}},
    {0xFB14, {0x544, 0x535, 0}, {0x544, 0x565, 0}},
    {0xFB15, {0x544, 0x53B, 0}, {0x544, 0x56B, 0}},
    {0xFB16, {0x54E, 0x546, 0}, {0x54E, 0x576, 0}},
    {0xFB17, {0x544, 0x53D, 0}, {0x544, 0x56D, 0}},
    /* clang-format on */
};

static const struct special_case *special_case(unsigned cp)
{
    size_t lo = 0, hi = ARRAY_LEN(special_cases);
    if (cp < special_cases[0].cp)
        return NULL;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (special_cases[mid].cp == cp)
            return &special_cases[mid];
        if (special_cases[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

static bool is_upper(unsigned cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216F) ||
           (cp >= 0x24B6 && cp <= 0x24CF);
}

static bool is_lower(unsigned cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xAA || cp == 0xBA || (cp >= 0x2B0 && cp <= 0x2B8) ||
           (cp >= 0x2170 && cp <= 0x217F) || (cp >= 0x24D0 && cp <= 0x24E9);
}

static bool is_cased(unsigned cp)
{
    return is_upper(cp) || is_lower(cp) || category(cp) == UTF8PROC_CATEGORY_LT;
}

static bool is_case_ignorable(unsigned cp)
{
    utf8proc_category_t k = category(cp);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' || cp == ':' ||
           cp == 0xB7 || cp == 0x2019 || cp == 0x2018 || cp == 0x2024 || cp == 0x2027;
}

enum casing { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_FOLD };

/* A capital sigma ends a word where a cased letter comes before it and none after it. */
static bool final_sigma(const char *s, const char *at, const char *end)
{
    size_t n;
    const char *p = at;
    bool before = false;
    while (p > s) {
        p--;
        while (((unsigned char)*p & 0xC0) == 0x80)
            p--;
        unsigned cp = utf8_at(p, end, &n);
        if (is_case_ignorable(cp))
            continue;
        before = is_cased(cp);
        break;
    }
    if (!before)
        return false;
    for (p = at + 2; p < end; p += n) {
        unsigned cp = utf8_at(p, end, &n);
        if (!is_case_ignorable(cp))
            return !is_cased(cp);
    }
    return true;
}

static void add_cased(struct render *r, struct scratch *out, const char *s, const char *at, const char *end,
                      unsigned cp, enum casing how)
{
    if (how == CASE_LOWER) {
        if (cp == 0x3A3)
            scratch_add_cp(r, out, final_sigma(s, at, end) ? 0x3C2 : 0x3C3);
        else if (cp == 0x130)
            scratch_adds(r, out, "i\xCC\x87");
        else
            scratch_add_cp(r, out, (unsigned)utf8proc_tolower((utf8proc_int32_t)cp));
        return;
    }
    if (how == CASE_FOLD) {
        utf8proc_int32_t folded[8];
        int boundary = 0;
        utf8proc_ssize_t n =
            utf8proc_decompose_char((utf8proc_int32_t)cp, folded, 8, UTF8PROC_CASEFOLD, &boundary);
        for (utf8proc_ssize_t i = 0; i < n && n <= 8; i++)
            scratch_add_cp(r, out, (unsigned)folded[i]);
        return;
    }
    const struct special_case *c = special_case(cp);
    if (c) {
        const unsigned *to = how == CASE_UPPER ? c->upper : c->title;
        for (int i = 0; i < 3 && to[i]; i++)
            scratch_add_cp(r, out, to[i]);
    } else if (how == CASE_UPPER) {
        scratch_add_cp(r, out, (unsigned)utf8proc_toupper((utf8proc_int32_t)cp));
    } else {
        scratch_add_cp(r, out, (unsigned)utf8proc_totitle((utf8proc_int32_t)cp));
    }
}

static struct val map_case(struct render *r, struct str *s, enum casing first, enum casing rest)
{
    struct scratch *out = scratch_begin(r);
    const char *end = s->s + s->len;
    size_t n;
    charge(r, text_work(s->len));
    for (const char *p = s->s; p < end; p += n) {
        unsigned cp = utf8_at(p, end, &n);
        add_cased(r, out, s->s, p, end, cp, p == s->s ? first : rest);
    }
    return scratch_end(r, out);
}

struct val str_upper(struct render *r, struct str *s)
{
    return map_case(r, s, CASE_UPPER, CASE_UPPER);
}

struct val str_lower(struct render *r, struct str *s)
{
    return map_case(r, s, CASE_LOWER, CASE_LOWER);
}

struct val str_capitalize(struct render *r, struct str *s)
{
    return map_case(r, s, CASE_TITLE, CASE_LOWER);
}

/* jinja2's title filter: words begin after white space and - ( { [ <. */
struct val str_title_words(struct render *r, struct str *s)
{
    struct scratch *out = scratch_begin(r);
    const char *end = s->s + s->len, *word = s->s;
    size_t n;
    bool begins = true;
    charge(r, text_work(s->len));
    for (const char *p = s->s; p < end; p += n) {
        unsigned cp = utf8_at(p, end, &n);
        bool split = cp_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
        if (split)
            word = p + n;
        const char *word_end = p + n; /* a sigma looks at its own word only */
        while (!split && cp == 0x3A3 && word_end < end) {
            size_t m;
            unsigned c = utf8_at(word_end, end, &m);
            if (cp_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c)))
                break;
            word_end += m;
        }
        const char *rest = word; /* item[1:] is lowered as a string of its own */
        if (!split && !begins && rest < p) {
            size_t m;
            utf8_at(rest, end, &m);
            rest += m;
        }
        add_cased(r, out, rest, p, word_end, cp, begins || split ? CASE_UPPER : CASE_LOWER);
        begins = split;
    }
    return scratch_end(r, out);
}

/* str.title(): words are runs of cased letters. */
static struct val str_title(struct render *r, struct str *s)
{
    struct scratch *out = scratch_begin(r);
    const char *end = s->s + s->len;
    bool in_word = false;
    size_t n;
    charge(r, text_work(s->len));
    for (const char *p = s->s; p < end; p += n) {
        unsigned cp = utf8_at(p, end, &n);
        add_cased(r, out, s->s, p, end, cp, in_word ? CASE_LOWER : CASE_TITLE);
        in_word = is_cased(cp);
    }
    return scratch_end(r, out);
}

static struct val str_swapcase(struct render *r, struct str *s)
{
    struct scratch *out = scratch_begin(r);
    const char *end = s->s + s->len;
    size_t n;
    charge(r, text_work(s->len));
    for (const char *p = s->s; p < end; p += n) {
        unsigned cp = utf8_at(p, end, &n);
        if (is_upper(cp))
            add_cased(r, out, s->s, p, end, cp, CASE_LOWER);
        else if (is_lower(cp))
            add_cased(r, out, s->s, p, end, cp, CASE_UPPER);
        else
            scratch_add_cp(r, out, cp);
    }
    return scratch_end(r, out);
}

bool str_is_cased(struct str *s, bool upper)
{
    bool any = false;
    size_t n;
    for (const char *p = s->s, *end = p + s->len; p < end; p += n) {
        unsigned cp = utf8_at(p, end, &n);
        if (upper ? is_lower(cp) : is_upper(cp))
            return false;
        if (category(cp) == UTF8PROC_CATEGORY_LT)
            return false;
        any |= upper ? is_upper(cp) : is_lower(cp);
    }
    return any;
}

/* ---- pieces ---- */

static struct val substring(struct render *r, struct str *s, const char *from, const char *to)
{
    if (from == s->s && to == s->s + s->len)
        return v_str(s);
    struct val v = str_borrow(r, from, to > from ? (size_t)(to - from) : 0);
    if (s->n_cp == s->len)
        v.s->n_cp = v.s->len;
    return v;
}

struct val str_slice(struct render *r, struct str *s, size_t from, size_t to)
{
    if (from >= to)
        return str_lit(r, "");
    charge(r, str_cp(s) == s->len ? 1 : text_work(s->len));
    return substring(r, s, s->s + str_offset(s, from), s->s + str_offset(s, to));
}

static bool in_set(const struct str *chars, unsigned cp)
{
    if (!chars)
        return cp_is_space(cp);
    size_t n;
    for (const char *p = chars->s, *end = p + chars->len; p < end; p += n)
        if (utf8_at(p, end, &n) == cp)
            return true;
    return false;
}

struct val str_strip(struct render *r, struct str *s, const struct str *chars, bool left, bool right)
{
    const char *from = s->s, *to = s->s + s->len;
    size_t n, cost = chars ? text_work(chars->len) : 0;
    for (; left && from < to && in_set(chars, utf8_at(from, to, &n)); from += n)
        charge(r, cost);
    while (right && to > from) {
        const char *p = to - 1;
        while (((unsigned char)*p & 0xC0) == 0x80)
            p--;
        if (!in_set(chars, utf8_at(p, to, &n)))
            break;
        charge(r, cost);
        to = p;
    }
    charge(r, text_work(s->len - (size_t)(to - from)));
    return substring(r, s, from, to);
}

const char *find_bytes(const char *s, size_t n, const char *needle, size_t m)
{
    return m == 0 ? s : memmem(s, n, needle, m);
}

/* Plain search from the right; what it compares is charged, for a text can be made where that is much. */
static const char *rfind_bytes(struct render *r, const char *s, size_t n, const char *needle, size_t m)
{
    if (m > n)
        return NULL;
    size_t work = 0;
    for (const char *p = s + (n - m);; p--) {
        size_t k = 0;
        while (k < m && p[k] == needle[k])
            k++;
        if (k == m)
            return p;
        if (p == s)
            return NULL;
        work += k + 1;
        if (work >= 4096) {
            charge(r, work / 64);
            work = 0;
        }
    }
}

struct val str_replace(struct render *r, struct str *s, struct str *from, struct str *to, int64_t count)
{
    const char *p = s->s, *end = s->s + s->len;
    charge(r, text_work(s->len));
    if (from->len && (count == 0 || !find_bytes(p, s->len, from->s, from->len)))
        return v_str(s);
    struct scratch *out = scratch_begin(r);
    if (!from->len) { /* between all characters, and at both ends */
        for (size_t n; count != 0; count -= count > 0) {
            charge(r, 1);
            scratch_add(r, out, to->s, to->len);
            if (p == end)
                break;
            utf8_at(p, end, &n);
            scratch_add(r, out, p, n);
            p += n;
        }
    } else {
        for (; count != 0; count -= count > 0) {
            const char *hit = find_bytes(p, (size_t)(end - p), from->s, from->len);
            if (!hit)
                break;
            charge(r, 1);
            scratch_add(r, out, p, (size_t)(hit - p));
            scratch_add(r, out, to->s, to->len);
            p = hit + from->len;
        }
    }
    scratch_add(r, out, p, (size_t)(end - p));
    return scratch_end(r, out);
}

static bool is_line_end(unsigned c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

struct list *str_splitlines(struct render *r, struct str *s, bool keep_ends)
{
    struct list *ret = list_new(r, 0);
    const char *p = s->s, *end = s->s + s->len, *line = p;
    charge(r, text_work(s->len));
    while (p < end) {
        size_t n;
        unsigned c = utf8_at(p, end, &n);
        if (!is_line_end(c)) {
            p += n;
            continue;
        }
        const char *stop = p;
        p += n;
        if (c == '\r' && p < end && *p == '\n')
            p++;
        list_push(r, ret, substring(r, s, line, keep_ends ? p : stop));
        line = p;
    }
    if (line < end)
        list_push(r, ret, substring(r, s, line, end));
    return ret;
}

static struct val split_space(struct render *r, struct str *s, int64_t max)
{
    struct list *ret = list_new(r, 0);
    const char *p = s->s, *end = s->s + s->len;
    size_t n;
    for (;;) {
        while (p < end && cp_is_space(utf8_at(p, end, &n)))
            p += n;
        if (p == end)
            break;
        if (max == 0) {
            list_push(r, ret, substring(r, s, p, end));
            break;
        }
        const char *word = p;
        while (p < end && !cp_is_space(utf8_at(p, end, &n)))
            p += n;
        list_push(r, ret, substring(r, s, word, p));
        max -= max > 0;
    }
    return v_list(ret);
}

static struct val rsplit_space(struct render *r, struct str *s, int64_t max)
{
    struct list *rev = list_new(r, 0);
    const char *end = s->s + s->len;
    size_t n;
    for (;;) {
        struct val head = str_strip(r, str_borrow(r, s->s, (size_t)(end - s->s)).s, NULL, false, true);
        end = s->s + head.s->len;
        if (end == s->s)
            break;
        if (max == 0) {
            list_push(r, rev, head);
            break;
        }
        const char *word = end;
        while (word > s->s) {
            const char *p = word - 1;
            while (((unsigned char)*p & 0xC0) == 0x80)
                p--;
            if (cp_is_space(utf8_at(p, end, &n)))
                break;
            word = p;
        }
        list_push(r, rev, substring(r, s, word, end));
        end = word;
        max -= max > 0;
    }
    struct list *ret = list_new(r, rev->n);
    for (size_t i = rev->n; i--;)
        list_push(r, ret, rev->v[i]);
    return v_list(ret);
}

static struct val str_split(struct render *r, struct str *s, struct val sep, int64_t max, bool from_right)
{
    charge(r, text_work(s->len));
    if (sep.t == V_NONE || sep.t == V_MISSING)
        return from_right ? rsplit_space(r, s, max) : split_space(r, s, max);
    if (sep.t == V_UNDEF)
        undef_error(r, sep);
    if (sep.t != V_STR)
        type_error(r, "must be str or None, not %s", type_name(sep));
    if (!sep.s->len)
        type_error(r, "empty separator");
    struct list *ret = list_new(r, 0);
    const char *p = s->s, *end = s->s + s->len, *hit;
    if (!from_right) {
        while (max != 0 && (hit = find_bytes(p, (size_t)(end - p), sep.s->s, sep.s->len))) {
            list_push(r, ret, substring(r, s, p, hit));
            p = hit + sep.s->len;
            max -= max > 0;
        }
        list_push(r, ret, substring(r, s, p, end));
        return v_list(ret);
    }
    struct list *rev = list_new(r, 0);
    while (max != 0 && (hit = rfind_bytes(r, p, (size_t)(end - p), sep.s->s, sep.s->len))) {
        list_push(r, rev, substring(r, s, hit + sep.s->len, end));
        end = hit;
        max -= max > 0;
    }
    list_push(r, rev, substring(r, s, p, end));
    for (size_t i = rev->n; i--;)
        list_push(r, ret, rev->v[i]);
    return v_list(ret);
}

struct val str_escape(struct render *r, struct str *s)
{
    struct scratch *out = scratch_begin(r);
    const char *p = s->s, *end = s->s + s->len, *plain = p;
    for (; p < end; p++) {
        const char *to = *p == '&'    ? "&amp;"
                         : *p == '<'  ? "&lt;"
                         : *p == '>'  ? "&gt;"
                         : *p == '\'' ? "&#39;"
                         : *p == '"'  ? "&#34;"
                                      : NULL;
        if (!to)
            continue;
        scratch_add(r, out, plain, (size_t)(p - plain));
        scratch_adds(r, out, to);
        plain = p + 1;
    }
    scratch_add(r, out, plain, (size_t)(end - plain));
    struct val v = scratch_end(r, out);
    v.s->markup = true;
    return v;
}

/* ---- numbers from text ---- */

/* Strips white space, checks and drops underscores between digits. False: too long, or a stray underscore. */
static bool clean_number(struct str *s, char *ret, size_t cap)
{
    const char *p = s->s, *end = s->s + s->len;
    size_t n = 0, w;
    while (p < end && cp_is_space(utf8_at(p, end, &w)))
        p += w;
    while (end > p) {
        const char *q = end - 1;
        while (((unsigned char)*q & 0xC0) == 0x80)
            q--;
        if (!cp_is_space(utf8_at(q, end, &w)))
            break;
        end = q;
    }
    for (const char *q = p; q < end; q++) {
        if (*q == '_') {
            bool digit_before =
                q > p && ((q[-1] >= '0' && q[-1] <= '9') || ((q[-1] | 0x20) >= 'a' && (q[-1] | 0x20) <= 'z'));
            bool digit_after = q + 1 < end && ((q[1] >= '0' && q[1] <= '9') ||
                                               ((q[1] | 0x20) >= 'a' && (q[1] | 0x20) <= 'z'));
            if (!digit_before || !digit_after)
                return false;
            continue;
        }
        if (n + 1 >= cap || !*q)
            return false;
        ret[n++] = *q;
    }
    ret[n] = 0;
    return n > 0;
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9'                     ? c - '0'
           : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                    : 99;
}

bool str_to_int(struct str *s, int base, int64_t *ret, bool *too_big)
{
    char text[512];
    *too_big = false;
    if (!clean_number(s, text, sizeof(text)) || base == 1 || base < 0 || base > 36)
        return false;
    const char *p = text;
    bool negative = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    int prefix = *p != '0'              ? 0
                 : (p[1] | 0x20) == 'x' ? 16
                 : (p[1] | 0x20) == 'o' ? 8
                 : (p[1] | 0x20) == 'b' ? 2
                                        : 0;
    if (prefix && (base == 0 || base == prefix)) {
        base = prefix;
        p += 2;
    } else if (base == 0) {
        base = 10;
        if (*p == '0' && strspn(p, "0") != strlen(p))
            return false;
    }
    if (!*p)
        return false;
    int64_t v = 0;
    for (; *p; p++) {
        int d = digit_value(*p);
        if (d >= base)
            return false;
        if (__builtin_mul_overflow(v, base, &v) || __builtin_sub_overflow(v, d, &v))
            *too_big = true;
    }
    if (!negative && __builtin_sub_overflow(0, v, &v))
        *too_big = true;
    *ret = v;
    return true;
}

bool str_to_float(struct str *s, double *ret)
{
    char text[512], *stop;
    if (!clean_number(s, text, sizeof(text)))
        return false;
    const char *p = text + (*text == '-' || *text == '+');
    static const char *const words[] = {"inf", "infinity", "nan"};
    bool word = false;
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        word |= strcasecmp(p, words[i]) == 0;
    if (!word && strspn(p, "0123456789.eE+-") != strlen(p)) /* strtod also reads hexadecimal */
        return false;
    *ret = strtod(text, &stop);
    return !*stop;
}

/* ---- formatting ---- */

struct spec {
    unsigned fill; /* 0: none given */
    char align;    /* < > = ^, 0: none given */
    char sign;     /* + - blank */
    bool alternate, zero;
    char group;               /* , or _ */
    int64_t width, precision; /* -1: none */
    char type;
};

enum { MAX_FORMAT_DIGITS = 1000 };

/* Pads `body`, of which the first `prefix` bytes are sign and 0x. */
static void put_padded(struct render *r, struct scratch *out, const struct spec *f, const char *body,
                       size_t len, size_t n_cp, size_t prefix, char natural)
{
    size_t pad = f->width > 0 && (uint64_t)f->width > n_cp ? (size_t)f->width - n_cp : 0;
    char align = f->align ? f->align : f->zero ? '=' : natural;
    unsigned fill = f->fill ? f->fill : f->zero ? '0' : ' ';
    size_t before = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    if (align == '=')
        scratch_add(r, out, body, prefix);
    else
        prefix = 0;
    if (pad > r->max_memory)
        tmpl_raise(r, ERR_LIMIT, "a field of %zu characters", pad);
    for (size_t i = 0; i < before; i++)
        scratch_add_cp(r, out, fill);
    scratch_add(r, out, body + prefix, len - prefix);
    for (size_t i = before; i < pad; i++)
        scratch_add_cp(r, out, fill);
}

/* Digits, with a separator each `every` from the right. */
static void group_digits(char *text, size_t cap, size_t first, char sep, size_t every)
{
    size_t len = strlen(text), end = first;
    while (text[end] && digit_value(text[end]) < 16 && text[end] != '.' && text[end] != 'e')
        end++;
    for (size_t at = end; at > first + every;) {
        at -= every;
        if (len + 1 >= cap)
            return;
        memmove(text + at + 1, text + at, len - at + 1);
        text[at] = sep;
        len++;
    }
}

static size_t put_sign(char *text, bool negative, char sign)
{
    if (negative || sign == '+' || sign == ' ') {
        text[0] = negative ? '-' : sign;
        return 1;
    }
    return 0;
}

static void format_int(struct render *r, struct scratch *out, struct spec *f, int64_t v)
{
    char text[256];
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    size_t n = put_sign(text, v < 0, f->sign);
    unsigned base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    if (f->alternate && base != 10) {
        text[n++] = '0';
        text[n++] = f->type;
    }
    size_t prefix = n;
    char rev[80];
    size_t m = 0;
    do
        rev[m++] = (f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
    while (u /= base);
    while (m)
        text[n++] = rev[--m];
    text[n] = 0;
    if (f->group)
        group_digits(text, sizeof(text), prefix, f->group, base == 10 ? 3 : 4);
    n = strlen(text);
    put_padded(r, out, f, text, n, n, prefix, '>');
}

static void format_double(struct render *r, struct scratch *out, struct spec *f, double v)
{
    char text[MAX_FORMAT_DIGITS + 400], fmt[16];
    bool negative = signbit(v) && !isnan(v);
    size_t prefix = put_sign(text, negative, f->sign);
    if (f->precision > MAX_FORMAT_DIGITS)
        tmpl_raise(r, ERR_LIMIT, "a precision of %" PRId64 " digits", f->precision);
    char type = f->type;
    bool percent = type == '%';
    if (percent || type == 'n')
        type = percent ? 'f' : 'g';
    if (!type) {
        struct scratch *s = scratch_begin(r);
        if (f->precision < 0) {
            print_float(r, s, fabs(v));
        } else { /* like g, but at least one digit after the point */
            snprintf(text + prefix, sizeof(text) - prefix, "%.*g", (int)MAX(f->precision, 1), fabs(v));
            scratch_adds(r, s, text + prefix);
            if (!strpbrk(text + prefix, ".en"))
                scratch_adds(r, s, ".0");
        }
        snprintf(text + prefix, sizeof(text) - prefix, "%s", s->b.s);
        scratch_drop(r, s);
    } else {
        snprintf(fmt, sizeof(fmt), "%%%s.*%c", f->alternate ? "#" : "", type);
        int precision = f->precision < 0 ? 6 : (int)f->precision;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text + prefix, sizeof(text) - prefix, fmt, precision, fabs(percent ? v * 100 : v));
#pragma GCC diagnostic pop
    }
    if (percent)
        strcat(text, "%");
    if (f->group && isfinite(v))
        group_digits(text, sizeof(text), prefix, f->group, 3);
    size_t n = strlen(text);
    put_padded(r, out, f, text, n, n, prefix, '>');
}

static void format_str(struct render *r, struct scratch *out, const struct spec *f, struct str *s)
{
    struct val v = v_str(s);
    if (f->precision >= 0 && (uint64_t)f->precision < str_cp(s))
        v = str_slice(r, s, 0, (size_t)f->precision);
    put_padded(r, out, f, v.s->s, v.s->len, str_cp(v.s), 0, '<');
}

static int64_t read_count(struct render *r, const char **p, const char *end)
{
    int64_t n = 0;
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, **p - '0', &n))
            tmpl_raise(r, ERR_LIMIT, "too many digits in a format string");
    return n;
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static void format_value(struct render *r, struct scratch *out, struct val v, const char *p, const char *end)
{
    struct spec f = {.width = -1, .precision = -1};
    size_t n = 0;
    if (p == end) {
        print_str(r, out, v);
        return;
    }
    unsigned first = utf8_at(p, end, &n);
    if (p + n < end && p[n] && strchr("<>=^", p[n])) {
        f.fill = first;
        f.align = p[n];
        p += n + 1;
    } else if (strchr("<>=^", *p)) {
        f.align = *p++;
    }
    if (p < end && strchr("+- ", *p) && *p)
        f.sign = *p++;
    if (p < end && *p == '#') {
        f.alternate = true;
        p++;
    }
    if (p < end && *p == '0') {
        f.zero = true;
        p++;
    }
    if (p < end && *p >= '0' && *p <= '9')
        f.width = read_count(r, &p, end);
    if (p < end && (*p == ',' || *p == '_'))
        f.group = *p++;
    if (p < end && *p == '.') {
        p++;
        if (p == end || *p < '0' || *p > '9')
            type_error(r, "Format specifier missing precision");
        f.precision = read_count(r, &p, end);
    }
    if (p < end)
        f.type = *p++;
    if (p < end)
        type_error(r, "Invalid format specifier for object of type '%s'", type_name(v));
    if (v.t == V_STR) {
        if ((f.type && f.type != 's') || f.sign || f.group || f.align == '=' || f.alternate)
            type_error(r, "Unknown format code for object of type 'str'");
        if (f.zero && !f.align)
            f.align = '<';
        format_str(r, out, &f, v.s);
    } else if (is_integral(v) && f.type == 'c') {
        if (as_int(v) < 0 || as_int(v) > 0x10FFFF || (as_int(v) >= 0xD800 && as_int(v) < 0xE000))
            type_error(r, "%%c arg not in range(0x110000)");
        char u[4];
        size_t len = utf8_encode(u, (unsigned)as_int(v));
        put_padded(r, out, &f, u, len, 1, 0, '<');
    } else if (is_integral(v) && (!f.type || strchr("dnxXob", f.type))) {
        if (f.precision >= 0)
            type_error(r, "Precision not allowed in integer format specifier");
        if (f.type == 'd' || f.type == 'n')
            f.type = 0;
        format_int(r, out, &f, as_int(v));
    } else if (is_num(v) && (!f.type || strchr("eEfFgGn%", f.type))) {
        format_double(r, out, &f, as_double(v));
    } else if (v.t == V_UNDEF || !is_num(v)) {
        type_error(r, "unsupported format string passed to %s.__format__", type_name(v));
    } else {
        type_error(r, "Unknown format code '%c' for object of type '%s'", f.type, type_name(v));
    }
}

struct fields {
    const struct args *args;
    struct val map; /* format_map's, or V_MISSING */
    int64_t next;   /* of automatic numbering; -1: numbers are given */
};

static void format_into(struct render *r, struct scratch *out, const char *p, const char *end,
                        struct fields *f, int depth);

/* `name.attr[index]` */
static struct val field_value(struct render *r, const char *p, const char *end, struct fields *f)
{
    const char *q = p;
    while (q < end && *q != '.' && *q != '[')
        q++;
    struct val v = v_missing();
    bool number = q > p;
    for (const char *d = p; d < q; d++)
        number &= *d >= '0' && *d <= '9';
    if (p == q || number) {
        int64_t i;
        if (p == q) {
            if (f->next < 0)
                type_error(r, "cannot switch from manual field specification to automatic field numbering");
            i = f->next++;
        } else {
            if (f->next > 0)
                type_error(r, "cannot switch from automatic field numbering to manual field specification");
            f->next = -1;
            const char *d = p;
            i = read_count(r, &d, q);
        }
        if (f->map.t != V_MISSING || (uint64_t)i >= f->args->n)
            type_error(r, "Replacement index %" PRId64 " out of range for positional args tuple", i);
        v = f->args->v[i];
    } else if (f->map.t != V_MISSING) {
        struct val *found = f->map.t == V_DICT ? dict_find_s(f->map.d, p, (size_t)(q - p)) : NULL;
        v = found ? *found : v_missing();
    } else {
        for (size_t i = 0; i < f->args->n_kw; i++)
            if (f->args->kw[i].name->len == (size_t)(q - p) &&
                !memcmp(f->args->kw[i].name->s, p, (size_t)(q - p)))
                v = f->args->kw[i].v;
    }
    if (v.t == V_MISSING)
        type_error(r, "format() has no argument '%.*s'", (int)MIN(q - p, 60), p);
    while (q < end) {
        const char *from = q + 1;
        if (*q == '.') {
            for (q = from; q < end && *q != '.' && *q != '[';)
                q++;
            if (q == from)
                type_error(r, "Empty attribute in format string");
            v = get_attr(r, v, str_copy(r, from, (size_t)(q - from)).s);
        } else if (*q == '[') {
            q = memchr(from, ']', (size_t)(end - from));
            if (!q || q == from)
                type_error(r, !q ? "Missing ']' in format string" : "Empty attribute in format string");
            const char *d = from;
            int64_t i = *d >= '0' && *d <= '9' ? read_count(r, &d, q) : 0;
            v = get_item(r, v, d == q ? v_int(i) : str_copy(r, from, (size_t)(q - from)));
            q++;
        } else {
            type_error(r, "Only '.' or '[' may follow ']' in format field specifier");
        }
    }
    return v;
}

static void format_field(struct render *r, struct scratch *out, const char *p, const char *end,
                         struct fields *f, int depth)
{
    const char *q = p;
    bool bracket = false;
    while (q < end && (bracket || (*q != '!' && *q != ':'))) {
        bracket = *q == '[' || (bracket && *q != ']');
        q++;
    }
    struct val v = field_value(r, p, q, f);
    if (q < end && *q == '!') {
        char how = q + 1 < end ? q[1] : 0;
        if ((how != 'r' && how != 's' && how != 'a') || (q + 2 < end && q[2] != ':'))
            type_error(r, "Unknown conversion specifier in format string");
        struct scratch *s = scratch_begin(r);
        if (how == 's')
            print_str(r, s, v);
        else
            print_repr(r, s, v);
        v = scratch_end(r, s);
        q += 2;
    }
    if (q < end)
        q++;
    struct scratch *spec = scratch_begin(r);
    format_into(r, spec, q, end, f, depth + 1);
    struct val text = scratch_end(r, spec);
    format_value(r, out, v, text.s->s, text.s->s + text.s->len);
}

static void format_into(struct render *r, struct scratch *out, const char *p, const char *end,
                        struct fields *f, int depth)
{
    charge(r, text_work((size_t)(end - p)));
    while (p < end) {
        const char *q = p;
        while (q < end && *q != '{' && *q != '}')
            q++;
        scratch_add(r, out, p, (size_t)(q - p));
        p = q;
        if (p == end)
            return;
        if (depth == 0 && p + 1 < end && p[1] == *p) {
            scratch_add(r, out, p, 1);
            p += 2;
            continue;
        }
        if (*p == '}')
            type_error(r, "Single '}' encountered in format string");
        if (depth > 1)
            type_error(r, "Max string recursion exceeded");
        int open = 1;
        for (q = p + 1; q < end; q++) {
            open += (*q == '{') - (*q == '}');
            if (!open)
                break;
        }
        if (q >= end)
            type_error(r, p + 1 == end ? "Single '{' encountered in format string"
                                       : "expected '}' before end of string");
        format_field(r, out, p + 1, q, f, depth);
        p = q + 1;
    }
}

/* ---- `format % values` ---- */

struct percent {
    struct val all; /* what stood right of the % */
    size_t next;
};

static struct val next_arg(struct render *r, struct percent *a)
{
    if (a->all.t == V_TUPLE) {
        if (a->next >= a->all.l->n)
            type_error(r, "not enough arguments for format string");
        return a->all.l->v[a->next++];
    }
    if (a->next++)
        type_error(r, "not enough arguments for format string");
    return a->all;
}

static int64_t star_or_count(struct render *r, const char **p, const char *end, struct percent *a)
{
    if (*p < end && **p == '*') {
        ++*p;
        struct val v = next_arg(r, a);
        if (!is_integral(v))
            type_error(r, "* wants int");
        return as_int(v);
    }
    return read_count(r, p, end);
}

static void percent_number(struct render *r, struct scratch *out, struct spec *f, struct val v, char type)
{
    if (v.t == V_UNDEF)
        undef_error(r, v);
    if (strchr("diuoxX", type)) {
        if (v.t == V_FLOAT && strchr("diu", type)) {
            if (!(fabs(v.f) < 9.2e18))
                tmpl_raise(r, ERR_LIMIT, "a number does not fit a 64-bit integer");
            v = v_int((int64_t)v.f);
        }
        if (!is_integral(v))
            type_error(r, "%%%c format: %s is required, not %s", type,
                       strchr("diu", type) ? "a real number" : "an integer", type_name(v));
        f->type = strchr("diu", type) ? 0 : type;
        if (f->precision > (int64_t)sizeof(char[200]))
            tmpl_raise(r, ERR_LIMIT, "a precision of %" PRId64 " digits", f->precision);
        if (f->precision >= 0) { /* at least that many digits */
            struct scratch *s = scratch_begin(r);
            struct spec digits = {.type = f->type, .width = f->precision, .zero = true};
            uint64_t u = as_int(v) < 0 ? 0 - (uint64_t)as_int(v) : (uint64_t)as_int(v);
            size_t prefix = 0;
            if (as_int(v) < 0 || f->sign) {
                scratch_adds(r, s, as_int(v) < 0 ? "-" : f->sign == '+' ? "+" : " ");
                prefix = 1;
            }
            format_int(r, s, &digits, (int64_t)MIN(u, (uint64_t)INT64_MAX));
            struct val text = scratch_end(r, s);
            put_padded(r, out, f, text.s->s, text.s->len, text.s->len, prefix, '>');
            return;
        }
        format_int(r, out, f, as_int(v));
        return;
    }
    if (!is_num(v))
        type_error(r, "must be real number, not %s", type_name(v));
    f->type = type;
    format_double(r, out, f, as_double(v));
}

struct val str_percent(struct render *r, struct str *format, struct val args)
{
    struct scratch *out = scratch_begin(r);
    struct percent a = {.all = args};
    bool by_name = false;
    const char *p = format->s, *end = p + format->len;
    charge(r, text_work(format->len));
    while (p < end) {
        const char *q = memchr(p, '%', (size_t)(end - p));
        scratch_add(r, out, p, (size_t)((q ? q : end) - p));
        if (!q)
            break;
        p = q + 1;
        struct spec f = {.width = -1, .precision = -1};
        struct val v = v_missing();
        if (p < end && *p == '(') {
            const char *close = memchr(p, ')', (size_t)(end - p));
            if (args.t != V_DICT)
                type_error(r, "format requires a mapping");
            if (!close)
                type_error(r, "incomplete format key");
            struct val *found = dict_find_s(args.d, p + 1, (size_t)(close - p - 1));
            if (!found)
                type_error(r, "the format string's key '%.*s' is not in the mapping",
                           (int)MIN(close - p - 1, 60), p + 1);
            v = *found;
            by_name = true;
            p = close + 1;
        }
        bool left = false;
        for (; p < end && *p && strchr("-+ #0", *p); p++) {
            left |= *p == '-';
            if (*p == '+' || (*p == ' ' && !f.sign))
                f.sign = *p;
            f.alternate |= *p == '#';
            f.zero |= *p == '0';
        }
        f.width = star_or_count(r, &p, end, &a);
        if (f.width < 0) {
            left = true;
            f.width = f.width == INT64_MIN ? INT64_MAX : -f.width;
        }
        if (p < end && *p == '.') {
            p++;
            f.precision = star_or_count(r, &p, end, &a);
            if (f.precision < 0)
                f.precision = 0;
        }
        while (p < end && (*p == 'l' || *p == 'h' || *p == 'L'))
            p++;
        if (p == end)
            type_error(r, "incomplete format");
        char type = *p++;
        f.align = left ? '<' : 0;
        if (type == '%') {
            scratch_adds(r, out, "%");
            continue;
        }
        if (!type || !strchr("sracdiuoxXeEfFgG", type))
            type_error(r, "unsupported format character '%c'", type >= 0x20 && type < 0x7F ? type : '?');
        if (v.t == V_MISSING)
            v = next_arg(r, &a);
        if (strchr("sra", type)) {
            struct scratch *s = scratch_begin(r);
            if (type == 's')
                print_str(r, s, v);
            else
                print_repr(r, s, v);
            f.zero = false;
            f.align = left ? '<' : '>';
            format_str(r, out, &f, scratch_end(r, s).s);
        } else if (type == 'c') {
            f.zero = false;
            f.align = left ? '<' : '>';
            if (v.t == V_STR && str_cp(v.s) == 1) {
                put_padded(r, out, &f, v.s->s, v.s->len, 1, 0, '>');
            } else {
                if (!is_integral(v) || as_int(v) < 0 || as_int(v) > 0x10FFFF ||
                    (as_int(v) >= 0xD800 && as_int(v) < 0xE000))
                    type_error(r, "%%c requires int or char");
                char u[4];
                size_t len = utf8_encode(u, (unsigned)as_int(v));
                put_padded(r, out, &f, u, len, 1, 0, '>');
            }
        } else {
            percent_number(r, out, &f, v, type);
        }
    }
    bool used = by_name || args.t == V_DICT || (args.t == V_TUPLE ? a.next >= args.l->n : a.next > 0);
    if (!used && args.t != V_LIST && args.t != V_UNDEF) /* what has [] passes for a mapping */
        type_error(r, "not all arguments converted during string formatting");
    return scratch_end(r, out);
}

/* ---- methods ---- */

static struct str *str_arg(struct render *r, const struct args *a, size_t i)
{
    struct val v = a->v[i];
    if (v.t == V_UNDEF)
        undef_error(r, v);
    if (v.t != V_STR)
        type_error(r, "argument %zu must be str, not %s", i + 1, type_name(v));
    return v.s;
}

static int64_t int_arg(struct render *r, const struct args *a, size_t i, int64_t fallback)
{
    struct val v = a->v[i];
    return v.t == V_MISSING || v.t == V_NONE ? fallback : must_be_int(r, v);
}

/* The bytes of self[start:stop]; false: start is behind the end, where even "" is not found. */
static bool sub_range(struct render *r, struct str *s, const struct args *a, size_t first, const char **from,
                      const char **to)
{
    int64_t n = (int64_t)str_cp(s);
    int64_t start = int_arg(r, a, first, 0), stop = int_arg(r, a, first + 1, n);
    charge(r, text_work(s->len));
    start = start < 0 ? MAX(start + n, 0) : start;
    stop = stop < 0 ? MAX(stop + n, 0) : MIN(stop, n);
    if (start > n || start > stop)
        return false;
    *from = s->s + str_offset(s, (size_t)start);
    *to = s->s + str_offset(s, (size_t)stop);
    return true;
}

static bool ends(struct render *r, struct str *s, const struct args *a, struct val piece, bool start)
{
    const char *from, *to;
    if (piece.t != V_STR)
        type_error(r, "%s first arg must be str or a tuple of str, not %s", start ? "startswith" : "endswith",
                   type_name(piece));
    if (!sub_range(r, s, a, 1, &from, &to) || (size_t)(to - from) < piece.s->len)
        return false;
    return memcmp(start ? from : to - piece.s->len, piece.s->s, piece.s->len) == 0;
}

static struct val starts_or_ends(struct render *r, struct val self, const struct args *a, bool start)
{
    struct val piece = a->v[0];
    if (piece.t == V_UNDEF)
        undef_error(r, piece);
    if (piece.t != V_TUPLE)
        return v_bool(ends(r, self.s, a, piece, start));
    for (size_t i = 0; i < piece.l->n; i++)
        if (ends(r, self.s, a, piece.l->v[i], start))
            return v_bool(true);
    return v_bool(false);
}

static struct val m_startswith(struct render *r, struct val self, const struct args *a)
{
    return starts_or_ends(r, self, a, true);
}

static struct val m_endswith(struct render *r, struct val self, const struct args *a)
{
    return starts_or_ends(r, self, a, false);
}

static struct val strip_args(struct render *r, struct val self, const struct args *a, bool left, bool right)
{
    bool none = a->v[0].t == V_MISSING || a->v[0].t == V_NONE;
    return str_strip(r, self.s, none ? NULL : str_arg(r, a, 0), left, right);
}

static struct val m_strip(struct render *r, struct val self, const struct args *a)
{
    return strip_args(r, self, a, true, true);
}

static struct val m_lstrip(struct render *r, struct val self, const struct args *a)
{
    return strip_args(r, self, a, true, false);
}

static struct val m_rstrip(struct render *r, struct val self, const struct args *a)
{
    return strip_args(r, self, a, false, true);
}

static struct val m_split(struct render *r, struct val self, const struct args *a)
{
    return str_split(r, self.s, a->v[0], int_arg(r, a, 1, -1), false);
}

static struct val m_rsplit(struct render *r, struct val self, const struct args *a)
{
    return str_split(r, self.s, a->v[0], int_arg(r, a, 1, -1), true);
}

static struct val m_splitlines(struct render *r, struct val self, const struct args *a)
{
    return v_list(str_splitlines(r, self.s, truthy(a->v[0])));
}

static struct val m_replace(struct render *r, struct val self, const struct args *a)
{
    return str_replace(r, self.s, str_arg(r, a, 0), str_arg(r, a, 1), int_arg(r, a, 2, -1));
}

static int64_t search(struct render *r, struct val self, const struct args *a, bool last)
{
    struct str *needle = str_arg(r, a, 0);
    const char *from, *to;
    if (!sub_range(r, self.s, a, 1, &from, &to))
        return -1;
    size_t n = (size_t)(to - from);
    const char *hit =
        last ? rfind_bytes(r, from, n, needle->s, needle->len) : find_bytes(from, n, needle->s, needle->len);
    if (!hit || needle->len > n)
        return -1;
    return (int64_t)str_cp(&(struct str){.s = self.s->s, .len = (size_t)(hit - self.s->s), .n_cp = SIZE_MAX});
}

static struct val found_or_raise(struct render *r, int64_t at)
{
    if (at < 0)
        type_error(r, "substring not found");
    return v_int(at);
}

static struct val m_find(struct render *r, struct val self, const struct args *a)
{
    return v_int(search(r, self, a, false));
}

static struct val m_rfind(struct render *r, struct val self, const struct args *a)
{
    return v_int(search(r, self, a, true));
}

static struct val m_index(struct render *r, struct val self, const struct args *a)
{
    return found_or_raise(r, search(r, self, a, false));
}

static struct val m_rindex(struct render *r, struct val self, const struct args *a)
{
    return found_or_raise(r, search(r, self, a, true));
}

static struct val m_count(struct render *r, struct val self, const struct args *a)
{
    struct str *needle = str_arg(r, a, 0);
    const char *from, *to;
    if (!sub_range(r, self.s, a, 1, &from, &to))
        return v_int(0);
    int64_t n = 0;
    if (!needle->len)
        return v_int((int64_t)str_cp(&(struct str){.s = from, .len = (size_t)(to - from), .n_cp = SIZE_MAX}) +
                     1);
    while ((from = find_bytes(from, (size_t)(to - from), needle->s, needle->len))) {
        from += needle->len;
        n++;
    }
    return v_int(n);
}

static struct val m_upper(struct render *r, struct val self, const struct args *a)
{
    return str_upper(r, self.s);
}

static struct val m_lower(struct render *r, struct val self, const struct args *a)
{
    return str_lower(r, self.s);
}

static struct val m_casefold(struct render *r, struct val self, const struct args *a)
{
    return map_case(r, self.s, CASE_FOLD, CASE_FOLD);
}

static struct val m_capitalize(struct render *r, struct val self, const struct args *a)
{
    return str_capitalize(r, self.s);
}

static struct val m_title(struct render *r, struct val self, const struct args *a)
{
    return str_title(r, self.s);
}

static struct val m_swapcase(struct render *r, struct val self, const struct args *a)
{
    return str_swapcase(r, self.s);
}

static struct val m_removeprefix(struct render *r, struct val self, const struct args *a)
{
    struct str *s = self.s, *p = str_arg(r, a, 0);
    bool has = s->len >= p->len && memcmp(s->s, p->s, p->len) == 0;
    return has ? substring(r, s, s->s + p->len, s->s + s->len) : self;
}

static struct val m_removesuffix(struct render *r, struct val self, const struct args *a)
{
    struct str *s = self.s, *p = str_arg(r, a, 0);
    bool has = s->len >= p->len && memcmp(s->s + s->len - p->len, p->s, p->len) == 0;
    return has ? substring(r, s, s->s, s->s + s->len - p->len) : self;
}

static struct val split_at(struct render *r, struct val self, const struct args *a, bool last)
{
    struct str *s = self.s, *sep = str_arg(r, a, 0);
    if (!sep->len)
        type_error(r, "empty separator");
    charge(r, text_work(s->len));
    const char *hit =
        last ? rfind_bytes(r, s->s, s->len, sep->s, sep->len) : find_bytes(s->s, s->len, sep->s, sep->len);
    struct list *l = list_new(r, 3);
    struct val empty = str_lit(r, "");
    if (!hit) {
        list_push(r, l, last ? empty : self);
        list_push(r, l, empty);
        list_push(r, l, last ? self : empty);
    } else {
        list_push(r, l, substring(r, s, s->s, hit));
        list_push(r, l, v_str(sep));
        list_push(r, l, substring(r, s, hit + sep->len, s->s + s->len));
    }
    return v_tuple(l);
}

static struct val m_partition(struct render *r, struct val self, const struct args *a)
{
    return split_at(r, self, a, false);
}

static struct val m_rpartition(struct render *r, struct val self, const struct args *a)
{
    return split_at(r, self, a, true);
}

static struct val m_join(struct render *r, struct val self, const struct args *a)
{
    struct scratch *out = scratch_begin(r);
    struct iter *it = iterate(r, a->v[0]);
    size_t n = 0;
    for (struct val v; iter_next(r, it, &v); n++) {
        if (v.t != V_STR)
            type_error(r, "sequence item %zu: expected str instance, %s found", n, type_name(v));
        if (n)
            scratch_add(r, out, self.s->s, self.s->len);
        scratch_add(r, out, v.s->s, v.s->len);
    }
    return scratch_end(r, out);
}

static struct val m_format(struct render *r, struct val self, const struct args *a)
{
    struct scratch *out = scratch_begin(r);
    struct fields f = {.args = a, .map = v_missing()};
    format_into(r, out, self.s->s, self.s->s + self.s->len, &f, 0);
    return scratch_end(r, out);
}

static struct val m_format_map(struct render *r, struct val self, const struct args *a)
{
    struct scratch *out = scratch_begin(r);
    struct fields f = {.args = a, .map = a->v[0]};
    if (f.map.t != V_DICT)
        type_error(r, "format_map() wants a dict, not %s", type_name(f.map));
    format_into(r, out, self.s->s, self.s->s + self.s->len, &f, 0);
    return scratch_end(r, out);
}

static struct val justify(struct render *r, struct val self, const struct args *a, char align)
{
    int64_t width = int_arg(r, a, 0, 0);
    struct spec f = {.width = width, .align = align, .fill = ' '};
    int64_t n = (int64_t)str_cp(self.s);
    if (a->v[1].t != V_MISSING) {
        struct str *fill = str_arg(r, a, 1);
        if (str_cp(fill) != 1)
            type_error(r, "The fill character must be exactly one character long");
        size_t len;
        f.fill = utf8_at(fill->s, fill->s + fill->len, &len);
    }
    if (width <= n)
        return self;
    if ((uint64_t)(width - n) > r->max_memory)
        tmpl_raise(r, ERR_LIMIT, "a field of %" PRId64 " characters", width);
    struct scratch *out = scratch_begin(r);
    if (align == '^') { /* str.center puts the odd blank to the left when the width is odd */
        int64_t pad = width - n, left = pad / 2 + (pad & width & 1);
        for (int64_t i = 0; i < left; i++)
            scratch_add_cp(r, out, f.fill);
        scratch_add(r, out, self.s->s, self.s->len);
        for (int64_t i = left; i < pad; i++)
            scratch_add_cp(r, out, f.fill);
    } else {
        put_padded(r, out, &f, self.s->s, self.s->len, (size_t)n, 0, '<');
    }
    return scratch_end(r, out);
}

static struct val m_ljust(struct render *r, struct val self, const struct args *a)
{
    return justify(r, self, a, '<');
}

static struct val m_rjust(struct render *r, struct val self, const struct args *a)
{
    return justify(r, self, a, '>');
}

static struct val m_center(struct render *r, struct val self, const struct args *a)
{
    return justify(r, self, a, '^');
}

static struct val m_zfill(struct render *r, struct val self, const struct args *a)
{
    int64_t width = int_arg(r, a, 0, 0);
    struct str *s = self.s;
    struct spec f = {.width = width, .zero = true};
    size_t prefix = s->len && (s->s[0] == '-' || s->s[0] == '+');
    struct scratch *out = scratch_begin(r);
    put_padded(r, out, &f, s->s, s->len, str_cp(s), prefix, '>');
    return scratch_end(r, out);
}

static struct val m_expandtabs(struct render *r, struct val self, const struct args *a)
{
    int64_t size = int_arg(r, a, 0, 8), column = 0;
    struct scratch *out = scratch_begin(r);
    size_t n;
    charge(r, text_work(self.s->len));
    for (const char *p = self.s->s, *end = p + self.s->len; p < end; p += n) {
        unsigned cp = utf8_at(p, end, &n);
        if (cp == '\t') {
            int64_t pad = size > 0 ? size - column % size : 0;
            scratch_pad(r, out, ' ', (size_t)pad);
            column += pad;
        } else {
            column = cp == '\n' || cp == '\r' ? 0 : column + 1;
            scratch_add(r, out, p, n);
        }
    }
    return scratch_end(r, out);
}

static struct val all_cp(struct render *r, struct val self, bool (*is)(unsigned), bool empty)
{
    size_t n;
    charge(r, text_work(self.s->len));
    for (const char *p = self.s->s, *end = p + self.s->len; p < end; p += n)
        if (!is(utf8_at(p, end, &n)))
            return v_bool(false);
    return v_bool(self.s->len ? true : empty);
}

static bool is_alnum_cp(unsigned cp)
{
    return is_letter(cp) || is_numeric(cp) || is_digit_cp(cp);
}

static bool is_ascii(unsigned cp)
{
    return cp < 0x80;
}

#define IS_METHOD(name, is, empty)                                                                           \
    static struct val m_##name(struct render *r, struct val self, const struct args *a)                      \
    {                                                                                                        \
        return all_cp(r, self, is, empty);                                                                   \
    }
IS_METHOD(isalpha, is_letter, false)
IS_METHOD(isalnum, is_alnum_cp, false)
IS_METHOD(isascii, is_ascii, true)
IS_METHOD(isdecimal, is_decimal, false)
IS_METHOD(isdigit, is_digit_cp, false)
IS_METHOD(isnumeric, is_numeric, false)
IS_METHOD(isspace, cp_is_space, false)
IS_METHOD(isprintable, cp_is_printable, true)

static struct val m_isidentifier(struct render *r, struct val self, const struct args *a)
{
    if (!truthy(all_cp(r, self, cp_is_name, false)))
        return v_bool(false);
    size_t n;
    return v_bool(cp_is_name_start(utf8_at(self.s->s, self.s->s + self.s->len, &n)));
}

static struct val m_islower(struct render *r, struct val self, const struct args *a)
{
    charge(r, text_work(self.s->len));
    return v_bool(str_is_cased(self.s, false));
}

static struct val m_isupper(struct render *r, struct val self, const struct args *a)
{
    charge(r, text_work(self.s->len));
    return v_bool(str_is_cased(self.s, true));
}

static struct val m_istitle(struct render *r, struct val self, const struct args *a)
{
    bool in_word = false, any = false;
    size_t n;
    charge(r, text_work(self.s->len));
    for (const char *p = self.s->s, *end = p + self.s->len; p < end; p += n) {
        unsigned cp = utf8_at(p, end, &n);
        bool starts_word = is_upper(cp) || category(cp) == UTF8PROC_CATEGORY_LT;
        if (starts_word ? in_word : is_lower(cp) && !in_word)
            return v_bool(false);
        in_word = starts_word || is_lower(cp);
        any |= in_word;
    }
    return v_bool(any);
}

const struct builtin *str_method(const struct str *name)
{
    static const struct builtin methods[] = {
        {"capitalize", "/", m_capitalize},
        {"casefold", "/", m_casefold},
        {"center", "/width | fillchar", m_center},
        {"count", "/sub | start end", m_count},
        {"endswith", "/suffix | start end", m_endswith},
        {"expandtabs", "| tabsize", m_expandtabs},
        {"find", "/sub | start end", m_find},
        {"format", "*", m_format},
        {"format_map", "/mapping", m_format_map},
        {"index", "/sub | start end", m_index},
        {"isalnum", "/", m_isalnum},
        {"isalpha", "/", m_isalpha},
        {"isascii", "/", m_isascii},
        {"isdecimal", "/", m_isdecimal},
        {"isdigit", "/", m_isdigit},
        {"isidentifier", "/", m_isidentifier},
        {"islower", "/", m_islower},
        {"isnumeric", "/", m_isnumeric},
        {"isprintable", "/", m_isprintable},
        {"isspace", "/", m_isspace},
        {"istitle", "/", m_istitle},
        {"isupper", "/", m_isupper},
        {"join", "/iterable", m_join},
        {"ljust", "/width | fillchar", m_ljust},
        {"lower", "/", m_lower},
        {"lstrip", "/| chars", m_lstrip},
        {"partition", "/sep", m_partition},
        {"removeprefix", "/prefix", m_removeprefix},
        {"removesuffix", "/suffix", m_removesuffix},
        {"replace", "/old new | count", m_replace},
        {"rfind", "/sub | start end", m_rfind},
        {"rindex", "/sub | start end", m_rindex},
        {"rjust", "/width | fillchar", m_rjust},
        {"rpartition", "/sep", m_rpartition},
        {"rsplit", "| sep maxsplit", m_rsplit},
        {"rstrip", "/| chars", m_rstrip},
        {"split", "| sep maxsplit", m_split},
        {"splitlines", "| keepends", m_splitlines},
        {"startswith", "/prefix | start end", m_startswith},
        {"strip", "/| chars", m_strip},
        {"swapcase", "/", m_swapcase},
        {"title", "/", m_title},
        {"upper", "/", m_upper},
        {"zfill", "/width", m_zfill},
    };
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if (str_is(name, methods[i].name))
            return &methods[i];
    return NULL;
}
