#!/usr/bin/env python3
"""Writes text/unidata.h: what the tokenizers library knows of Unicode and the system's libraries do not (yet), or no longer.

The tables are measured, not copied: the script asks the installed `tokenizers` package about every code point and compares
with what PCRE2 (Unicode 14, Debian 12) and utf8proc (Unicode 15) answer at least. Run with the oracle's Python:
    python3 text/make_unidata.py > text/unidata.h && clang-format -i text/unidata.h
"""
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

assert unicodedata.unidata_version == "14.0.0", "the base of the difference is Unicode 14: Python 3.11"
CHARS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(CHARS)


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def regex_set(pattern):
    return {ord(c) for c in normalizers.Replace(Regex("(?:(?!%s)(?m:.))" % pattern), "").normalize_str(ALL)}


def split_set(pre):
    return {ord(s) for s, _ in pre.pre_tokenize_str("a".join(CHARS)) if len(s) == 1 and s != "a"}


def table(comment, name, points):
    print("/* %s */" % comment)
    print("static const struct uni_range %s[] = {" % name)
    for lo, hi in ranges(points):
        print("    {0x%X, 0x%X}," % (lo, hi))
    print("};\n")


print("/* unidata.h: made by make_unidata.py against tokenizers %s; do not edit." % tokenizers.__version__)
print(" * What tokenizers' libraries know of Unicode where PCRE2's and utf8proc's tables say something else. */")
print("#ifndef YOKE_TEXT_UNIDATA_H\n#define YOKE_TEXT_UNIDATA_H\n\n#include <stdint.h>\n")
print("struct uni_range {\n    uint32_t lo, hi;\n};\n")
print("/* A run of characters of one general category, named as in regular expressions. */")
print("struct uni_run {\n    uint32_t lo, hi;\n    char category[3];\n};\n")

cats = {}
for cat in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So".split():
    for c in regex_set(r"\p{%s}" % cat):
        if unicodedata.category(chr(c)) == "Cn":
            cats[c] = cat
print("/* Assigned after Unicode 14, as the pattern library (Oniguruma) has them; in order of code points. */")
print("static const struct uni_run uni_new[] = {")
run = None
for c in sorted(cats):
    if run and run[1] == c - 1 and run[2] == cats[c]:
        run[1] = c
    else:
        if run:
            print('    {0x%X, 0x%X, "%s"},' % tuple(run))
        run = [c, c, cats[c]]
print('    {0x%X, 0x%X, "%s"},' % tuple(run))
print("};\n")

digits = split_set(pre_tokenizers.Digits(individual_digits=True))
table("Numeric for Digits (Rust's is_numeric) beyond \\\\p{N} above.".replace("\\\\", "\\"), "uni_digits_more", digits - regex_set(r"\p{N}"))
table("Punctuation for the Punctuation pre-tokenizer: an old Unicode's, and ASCII's.", "uni_punctuation",
      split_set(pre_tokenizers.Punctuation("isolated")))
strip = normalizers.StripAccents()
table("Combining marks for StripAccents: an old Unicode's.", "uni_combining",
      {ord(c) for c in CHARS if strip.normalize_str(c) != c})

# Normalisation: tokenizers' tables are those of an old Unicode. For it a younger character has no class and no decomposition.
nfd, nfkd, nfc = normalizers.NFD(), normalizers.NFKD(), normalizers.NFC()
young = set()
for c in CHARS:
    cc = unicodedata.combining(c)
    new = nfd.normalize_str("a\u0345" + c) + "|" + nfd.normalize_str("a" + c + "\u0334")
    old = unicodedata.normalize("NFD", "a\u0345" + c) + "|" + unicodedata.normalize("NFD", "a" + c + "\u0334")
    if new != old or nfkd.normalize_str(c) != unicodedata.normalize("NFKD", c):
        young.add(ord(c))
    elif unicodedata.category(c) == "Cn" and nfkd.normalize_str(c) == c and ord(c) in cats:
        young.add(ord(c))  # assigned later still; utf8proc may know it
young.add(0x11930)  # the second half of the pair that makes 11938
table("Characters that normalisation leaves alone, as an old Unicode does: no class, no decomposition.", "uni_young", young)

lower = normalizers.Lowercase()
print("/* Lower case where it is not utf8proc's: {from, to}; both ranges run in step. */")
print("struct uni_lower {\n    uint32_t lo, hi, to;\n};")
print("static const struct uni_lower uni_lower_new[] = {")
run = None
for c in CHARS:
    l = lower.normalize_str(c)
    if len(l) == 1 and l != c and unicodedata.category(c) in ("Cn", "Co") or (l != c and c.lower() != l):
        if run and run[1] == ord(c) - 1 and run[3] == ord(l) - 1:
            run[1], run[3] = ord(c), ord(l)
        else:
            if run:
                print("    {0x%X, 0x%X, 0x%X}," % tuple(run[:3]))
            run = [ord(c), ord(c), ord(l), ord(l)]
print("    {0x%X, 0x%X, 0x%X}," % tuple(run[:3]))
print("};\n\n#endif")
