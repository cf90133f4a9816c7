#!/bin/sh
# mpi_run.sh MODE RANKS KIND PROGRAM: runs PROGRAM (mpi_ranks) under mpirun and looks at how it ends. KIND is shm, net or mixed.
mode=$1 ranks=$2 kind=$3 program=$4
command -v mpirun >/dev/null || { echo "no mpirun: skipped"; exit 77; }
[ "$kind" = net ] && export YOKE_COMM=net
# Open MPI keeps memory until its end, of which a leak checker complains.
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS-}"
out=$(mktemp) && trap 'rm -f "$out"' EXIT
# What the job might leave; yoke_shards_* is scratch of tests/model/test_shards.c, which may run at the same time.
names() { ls /dev/shm 2>/dev/null | grep yoke | grep -cv '^yoke_shards_'; }
before=$(names)
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    timeout -k 1 60 mpirun --oversubscribe -n "$ranks" "$program" "$mode" "$kind" >"$out" 2>&1
rc=$?
end=$(date +%s)
# from the moment that rank 1 goes, as it says
took=$((end - $(sed -n 's/^rank 1: the end comes at \([0-9]*\) s$/\1/p' "$out" | grep . || echo "$end")))
cat "$out"
echo "mpirun ended with $rc after $took s"
fail() { echo "FAIL: $*"; exit 1; }
[ "$(names)" = "$before" ] || fail "something was left in /dev/shm"
case $mode in
check | busy) [ $rc = 0 ] || fail "not 0" ;;
stop)
    [ $rc != 0 ] || fail "ended with 0"
    [ $took -le 10 ] || fail "took more than 10 s"
    last=$((ranks - 1))
    grep -q "yoke: rank $last on host .* has not been heard from for [0-9.]* s, says rank .* (rank 0 on host .* ends)" \
        "$out" || fail "rank 0 did not end by itself, naming rank $last" ;;
kill | die)
    [ $rc != 0 ] || fail "ended with 0"
    [ $took -le 5 ] || fail "took more than 5 s"
    # Whoever notices first, mpirun or a survivor, ends the job; mpirun's line is missing if it was a survivor.
    ours="rank [023]: after .*: rank 1 on host .* (pid [0-9]*) has died"
    mpiruns="process rank 1 with PID .* exited on signal 9"
    [ $mode = die ] || grep -q "$ours" "$out" || fail "no survivor names the rank"
    grep -q -e "$ours" -e "$mpiruns" "$out" || fail "nobody names the rank" ;;
abort)
    [ $rc != 0 ] || fail "ended with 0"
    [ $took -le 5 ] || fail "took more than 5 s"
    grep -q "rank 1 on host .* (pid [0-9]*) gave up: the model file is gone" "$out" || fail "the reason is not told" ;;
esac
