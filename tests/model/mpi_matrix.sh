#!/bin/sh
# The matrix over MPI: every legal split of 2, 3 and 4 ranks, each model, f32 and w8a8, with and without int8 KV, in company and alone,
# against one rank. By hand, since a process joins one world in its life and each split is a launch: some hundreds, several minutes.
#
#   YOKE_ROOT=. sh tests/model/mpi_matrix.sh build/tests/model/test_matrix
set -eu
prog=$1
YOKE_ANSWERS=$(mktemp -d)
export YOKE_ANSWERS OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
trap 'rm -rf "$YOKE_ANSWERS"' EXIT
"$prog" --write
for ranks in 2 3 4; do
    "$prog" --list "$ranks" | while read -r split; do
        mpirun --oversubscribe -n "$ranks" "$prog" --mpi $split </dev/null || { echo "FAILED over $ranks ranks: $split"; exit 1; }
    done
done
