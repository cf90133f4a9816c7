#!/bin/bash
# fuzz.sh [TARGET] [SECONDS]: fuzzes one target, or each in turn, under libFuzzer, ASan and UBSan; 60 seconds each.
# New inputs gather in output/fuzz/TARGET/; what crashes is left as output/fuzz/TARGET-crash-*.
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@" # sh scripts/fuzz.sh works too
set -eu
cd "$(dirname "$0")/.."
target=${1:-all} seconds=${2:-60}
case $target in *[!0-9]*) ;; *) seconds=$target target=all ;; esac # fuzz.sh 30

build=build-fuzz
flags=-fsanitize=fuzzer-no-link,address,undefined
again=
[ ! -f $build/build.ninja ] || again=--reconfigure # a target may be new
# Instrumented from the bottom up, or the fuzzer would be blind to the layers below its target.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{
    CC=clang-14 meson setup $again $build -Dfuzz=true -Dmpi=disabled -Dbuildtype=debug -Doptimization=1 -Db_lundef=false \
        -Dc_args="$flags -fno-sanitize-recover=all" -Dc_link_args=-fsanitize=address,undefined &&
        ninja -C $build
} >"$log" 2>&1 || { tail -n 30 "$log"; exit 1; }

bad=0 found=0
for f in fuzz/fuzz_*.c; do
    [ -f "$f" ] || continue
    name=$(basename "$f" .c) name=${name#fuzz_}
    [ "$target" = all ] || [ "$target" = "$name" ] || continue
    found=1
    new=output/fuzz/$name seeds=fuzz/corpus/$name dict=fuzz/$name.dict
    mkdir -p "$new"
    args=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1
        -artifact_prefix="output/fuzz/$name-")
    [ ! -f "$dict" ] || args+=(-dict="$dict")
    [ ! -d "$seeds" ] || args+=("$new" "$seeds")
    [ -d "$seeds" ] || args+=("$new")
    echo "fuzzing $name for $seconds s"
    if ASAN_OPTIONS=print_legend=0 UBSAN_OPTIONS=print_stacktrace=1 \
        $build/fuzz/fuzz_$name "${args[@]}" >"output/fuzz/$name.log" 2>&1; then
        grep -E 'stat::(number_of_executed_units|average_exec_per_sec|new_units_added)' "output/fuzz/$name.log" | sed 's/^/  /'
    else
        bad=1
        echo "  FOUND something; output/fuzz/$name.log ends:"
        tail -n 25 "output/fuzz/$name.log" | sed 's/^/  /'
    fi
done
[ $found = 1 ] || { echo "fuzz.sh: there is no target \"$target\"; see fuzz/fuzz_*.c" >&2; exit 2; }
exit $bad
