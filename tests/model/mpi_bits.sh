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
# A leak checker takes seconds for what Open MPI keeps, and needs exact stacks, which are slow, to recognise it (lsan.supp): it
# looks at the first subject only. (Subjects differ in their models, which model/bits has looked at.)
first="${ASAN_OPTIONS-}:fast_unwind_on_malloc=0" others="${ASAN_OPTIONS-}:detect_leaks=0"
for ranks in 2 4; do
    i=0
    while [ "$i" -lt "$n" ]; do
        export ASAN_OPTIONS="$([ "$i" = 0 ] && echo "$first" || echo "$others")"
        ! "$prog" --takes "$i" "$ranks" || mpirun --oversubscribe -n "$ranks" "$prog" --mpi "$i" "$ranks"
        i=$((i + 1))
    done
done
# the last subject's experts are spread over replicas: their exchange over messages, too
YOKE_COMM=net mpirun --oversubscribe -n 4 "$prog" --mpi $((n - 1)) 4
