#!/usr/bin/env python3
"""check_layers.py: the house rules that a compiler does not know (ARCHITECTURE.md, CONTRIBUTING.md).

An #include names its folder, and only a folder below (or base); x.c includes its own x.h first; memory comes from
base/mem.h.
"""
import pathlib
import re
import sys

ORDER = "base comm kernels formats graph models plan exec text engine server cli".split()  # bottom first
NEVER = {("engine", "text")}  # the engine speaks tokens, the server speaks text
EVERYTHING = {"tests", "fuzz", "bench"}  # may include any layer, and use their own allocators

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
ALLOC = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|reallocarray|free|strdup|strndup|aligned_alloc|posix_memalign"
                   r"|asprintf|vasprintf)\s*\(")
NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def check(path):
    layer, text = path.parts[0], path.read_text()
    includes = [(text.count("\n", 0, m.start(1)) + 1, m.group(1)) for m in INCLUDE.finditer(text)]
    for line, name in includes:
        to = name.split("/")[0]
        if "/" not in name:
            yield line, f'"{name}" should name its folder'
        elif layer not in EVERYTHING and to in ORDER and ORDER.index(to) > ORDER.index(layer):
            yield line, f"{layer}/ includes from {to}/, which is above it"
        elif layer not in EVERYTHING and (to in EVERYTHING or (layer, to) in NEVER):
            yield line, f"{layer}/ must know nothing of {to}/"
    own = path.with_suffix(".h").as_posix()
    if path.suffix == ".c" and own in [n for _, n in includes] and includes[0][1] != own:
        yield includes[0][0], f'"{own}" should be the first include'
    if layer != "base" and layer not in EVERYTHING:
        code = NOISE.sub(blank, text)
        for m in ALLOC.finditer(code):
            yield code.count("\n", 0, m.start()) + 1, f"{m.group(1)}() outside base/; see base/mem.h"


def main():
    files = [p for d in [*ORDER, *sorted(EVERYTHING)] for p in sorted(pathlib.Path(d).rglob("*.[ch]"))]
    bad = [f"{p}:{line}: {what}" for p in files for line, what in check(p)]
    print("\n".join(bad) if bad else f"{len(files)} files, every include points downwards")
    return bool(bad)


sys.exit(main())
