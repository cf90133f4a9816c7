#!/bin/sh
# check_headers.sh: every header compiles alone, with warnings as errors. CC: the compiler (gcc).
set -eu
cd "$(dirname "$0")/.."

flags="-fsyntax-only -x c -std=gnu11 -D_GNU_SOURCE -DYOKE_DEBUG=1 -I. -Wall -Wextra -Werror -Wno-unused-function
       -Wno-unused-parameter $(pkg-config --cflags jansson libfyaml hwloc libpcre2-8 libutf8proc libcrypto)
       $(pkg-config --cflags ompi-c 2>/dev/null || true)"
case $(uname -m) in # intrinsics of the other machine cannot be compiled here
x86_64) other=kernels/arm ;;
*) other=kernels/x86 ;;
esac

n=0 bad=0
for h in $(git ls-files --cached --others --exclude-standard '*.h' | grep -v "^$other/"); do
    [ -f "$h" ] || continue
    n=$((n + 1))
    case $h in
    kernels/x86/*) more=-mavx2\ -mfma\ -mf16c ;; # for the level's own files
    tests/*) more="-DYOKE_SOURCE_DIR=\"\"" ;;
    *) more= ;;
    esac
    printf '#include "%s"\n' "$h" | ${CC:-gcc} $flags $more - || { echo "$h does not compile alone" >&2; bad=$((bad + 1)); }
done
echo "$n headers, $bad do not compile alone"
[ "$bad" = 0 ]
