#!/bin/bash
# test.sh: everything that must pass before a change goes in. About ten minutes on two cores.
#
#   scripts/test.sh              all suites
#   scripts/test.sh quick        without the sanitizers
#
# The last line is "N passed, N failed": test functions and checks of all suites together. Logs: output/test/.
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@" # sh scripts/test.sh works too
set -u
cd "$(dirname "$0")/.." || exit 1
mode=${1:-all}
case $mode in all|quick) ;; *) echo "usage: scripts/test.sh [quick]" >&2; exit 2 ;; esac

logs=output/test
mkdir -p "$logs"
passed=0 failed=0

# What the sanitizers do on a finding: stop, with a stack, and a status that a test cannot mistake for its own.
export ASAN_OPTIONS=abort_on_error=0:detect_stack_use_after_return=1:strict_string_checks=1:print_legend=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
export LSAN_OPTIONS=suppressions=$PWD/scripts/lsan.supp:print_suppressions=0
ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-14 || command -v llvm-symbolizer) && export ASAN_SYMBOLIZER_PATH
# Ranks as processes, on a machine with fewer cores than ranks, maybe in a container, maybe as root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

say() { printf '%s\n' "$*"; }

# check NAME COMMAND...: counts as one.
check() {
    local name=$1 log=$logs/$1.log start=$SECONDS
    shift
    if "$@" >"$log" 2>&1 </dev/null; then
        passed=$((passed + 1))
        say "ok    $name ($((SECONDS - start)) s)"
    else
        failed=$((failed + 1))
        say "FAIL  $name ($((SECONDS - start)) s); from $log:"
        # A compiler's first complaint, or else the end.
        { grep -m 1 -A 30 '^FAILED:' "$log" || tail -n 30 "$log"; } | sed 's/^/      /'
        return 1
    fi
}

# build DIR CC MESON-OPTION...: a build folder is made once, then only looked over for new files and folders.
build() {
    local dir=$1 cc=$2 again=
    shift 2
    [ ! -f "$dir/build.ninja" ] || again=--reconfigure
    [ -n "$again" ] || rm -rf "$dir"
    CC=$cc meson setup $again "$dir" "$@" && ninja -C "$dir"
}

# suite NAME DIR [MESON-TEST-ARGUMENT...]: runs meson's tests and counts the test functions within.
suite() {
    local name=$1 dir=$2 log=$logs/$1.log start=$SECONDS p f
    shift 2
    rm -f "$dir/meson-logs/testlog.json"
    $run meson test -C "$dir" --no-rebuild --print-errorlogs "$@" >"$log" 2>&1 </dev/null
    read -r p f < <(python3 scripts/tally.py "$dir/meson-logs/testlog.json")
    passed=$((passed + p)) failed=$((failed + f))
    if [ "$f" = 0 ]; then
        say "ok    $name: $p passed ($((SECONDS - start)) s)"
    else
        say "FAIL  $name: $p passed, $f failed ($((SECONDS - start)) s); $log:"
        python3 scripts/tally.py --show "$dir/meson-logs/testlog.json" | sed 's/^/      /'
    fi
}
run=

# tests DIR PATTERN: the names of a build's tests that match.
tests() {
    meson test -C "$1" --list 2>/dev/null | sed 's/.* \/ //' | grep -E "$2"
}

if ! scripts/deps.sh build test; then
    say "0 passed, 1 failed"
    exit 1
fi

check layers python3 scripts/check_layers.py
check headers scripts/check_headers.sh
check format scripts/check_format.sh
check docs scripts/check_docs.sh

if check build-gcc build build gcc; then
    suite tests build
fi

if [ "$mode" = all ]; then
    # Optimised a little, or the golden models take minutes.
    if check build-asan build build-asan clang-14 -Dbuildtype=debug -Doptimization=1 -Db_lundef=false \
        -Db_sanitize=address,undefined -Dc_args=-fno-sanitize-recover=all; then
        mapfile -t names < <(tests build-asan . | grep -vE 'mpi|model/long') # 32768 tokens would take minutes
        suite asan build-asan --timeout-multiplier 6 "${names[@]}"
        # Open MPI keeps some memory for good; its plugins are gone when leaks are looked for, so it takes slow, full
        # stacks to recognise it (lsan.supp).
        # Not hosts-mpi: it is about links and processes that are cut off, takes minutes, and e2e/mpi and comm/mpi-* run the same code.
        mapfile -t names < <(tests build-asan mpi | grep -v hosts)
        if [ ${#names[@]} -gt 0 ]; then
            ASAN_OPTIONS=$ASAN_OPTIONS:fast_unwind_on_malloc=0 \
                suite asan-mpi build-asan --timeout-multiplier 6 "${names[@]}"
        fi
    fi

    # Threads matter where there are threads. Without MPI: Open MPI's own threads are not instrumented.
    if check build-tsan build build-tsan clang-14 -Dbuildtype=debug -Doptimization=1 -Db_lundef=false \
        -Db_sanitize=thread -Dmpi=disabled; then
        mapfile -t names < <(tests build-tsan '^(exec|comm|engine)/')
        if [ ${#names[@]} -gt 0 ]; then
            setarch -R true 2>/dev/null && run="setarch -R" # TSan's shadow wants predictable addresses
            suite tsan build-tsan --timeout-multiplier 10 "${names[@]}"
            run=
        else
            say "--    tsan: there are no exec, comm or engine tests"
        fi
    fi
fi

say "$passed passed, $failed failed"
[ "$failed" = 0 ]
