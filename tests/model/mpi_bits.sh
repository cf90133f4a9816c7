#!/bin/sh
# The same bits over MPI: one rank writes every subject's logits; 2 and 4 processes must compute the same ones.
set -eu
prog=$1
command -v mpirun >/dev/null || { echo "mpirun is not installed: skipped"; exit 77; }
YOKE_ANSWERS=$(mktemp -d)
export YOKE_ANSWERS OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
trap 'rm -rf "$YOKE_ANSWERS"' EXIT
"$prog" --write
n=$("$prog" --count)
# A leak checker takes seconds for what Open MPI keeps: it looks at the first subject only. (Subjects differ in their models,
# which model/bits has looked at.)
sanitizer=${ASAN_OPTIONS-}
for ranks in 2 4; do
    i=0
    while [ "$i" -lt "$n" ]; do
        export ASAN_OPTIONS="$sanitizer"
        [ "$i" = 0 ] || ASAN_OPTIONS="$sanitizer:detect_leaks=0:fast_unwind_on_malloc=1"
        mpirun --oversubscribe -n "$ranks" "$prog" --mpi "$i" "$ranks"
        i=$((i + 1))
    done
done
