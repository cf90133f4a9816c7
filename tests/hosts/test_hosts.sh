#!/bin/bash
# test_hosts.sh YOKE MPI_RANKS ROOT [NAME...]: yoke over three hosts made of namespaces (hosts.sh). Answers are those of
# one process, bit by bit; whichever rank is killed and whichever link is cut, all ends within 10 s, with a non-zero
# code, naming rank and host. Needs root; skipped (77) where namespaces are not to be had. NAMEs choose tests.
set -u
yoke=$1 mpi_ranks=$2 root=$3
. "$(dirname "$0")/hosts.sh"
hosts_sandbox "$@"
shift 3
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LC_ALL=C.UTF-8 ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS-}"
model=$dir/model
python3 "$(dirname "$0")/make_model.py" $model "$root/tests/golden/models/llama-gqa" || exit 1
hosts_add h1 h2 h3
hosts_rate 1gbit
out=$dir/out
failures=0 passed=0 name=

fail() {
    echo "FAIL $name: $*"
    sed 's/^/    /' $out | tail -n 40
    failures=$((failures + 1))
    return 1
}

# Ranks and mpirun. Not Open MPI's daemons on other hosts: one that is cut off from mpirun amid a message ends only when
# TCP gives up, which is the kernel's setting (net.ipv4.tcp_retries2: a quarter of an hour); it holds nothing any more.
left_over() { (pgrep -x 'yoke|mpi_ranks'; pgrep -x mpirun) | tr '\n' ' '; }

kill_ours() { # PID...: all processes that we can see are the sandbox's
    [ $$ = 1 ] || exit 1
    [ $# = 0 ] || kill -9 "$@" 2>/dev/null
}

nothing_left() { # within so many tenths of a second
    local i
    for ((i = 0; i < $1; i++)); do
        [ -z "$(left_over)" ] && return 0
        sleep 0.1
    done
    return 1
}

pid_of_rank() {
    local p
    for p in $(pgrep -x yoke); do
        grep -qz "^OMPI_COMM_WORLD_RANK=$1\$" "/proc/$p/environ" 2>/dev/null && echo "$p" && return
    done
}

# ---- the same answers ----

prompts() { printf 'So 166\nPage 117\nThe model and the rest of it\nA much longer prompt, so that the rows of a tick go beyond one: 1 2 3 4 5 6\n'; }

same() { # RANKS-PER-HOST RANKS DEGREES...
    local slots=$1 n=$2
    shift 2
    [ -s $dir/alone ] || prompts | "$yoke" run -m "$model" --prompts-file - -n 24 --ignore-eos -o $dir/alone -t 1 >$out 2>&1
    [ -s $dir/alone_logits ] || "$yoke" logits -m "$model" -p "Page 117" --all -t 1 --json >$dir/alone_logits 2>$out
    prompts >$dir/prompts
    hosts_mpirun "$slots" -n "$n" timeout 60 "$yoke" run -m "$model" --prompts-file $dir/prompts -n 24 --ignore-eos -t 1 \
        -o $dir/answers "$@" >$out 2>&1 || fail "run $*: exit code $?" || return
    cmp -s $dir/alone $dir/answers || fail "run $*: other answers than alone" || return
    hosts_mpirun "$slots" -n "$n" timeout 60 "$yoke" logits -m "$model" -p "Page 117" --all -t 1 --json "$@" \
        >$dir/logits 2>$out || fail "logits $*: exit code $?" || return
    cmp -s $dir/alone_logits $dir/logits || fail "logits $*: other bits than alone" || return
    nothing_left 50 || fail "left over: $(left_over)"
}

same_tp2() { same 1 2 --tp 2; }
same_tp4_two_per_host() { same 2 4 --tp 4; }
same_pp2() { same 1 2 --pp 2; }
same_pp3() { same 1 3 --pp 3; }
same_tp2_pp3() { same 2 6 --tp 2 --pp 3; }

# ---- the ways of an end ----

# A run that would last for minutes, over all three hosts. Fills pid, and returns once it generates.
start_long() { # DEGREES...
    local i
    rm -f $dir/long
    for ((i = 0; i < 20000; i++)); do echo "So 166"; done >$dir/many
    hosts_mpirun 1 -n 3 "$yoke" run -m "$model" --prompts-file $dir/many -n 50 --ignore-eos -t 1 -o $dir/long "$@" \
        >$out 2>&1 &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        [ -s $dir/long ] && sleep 0.5 && return
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    fail "the long run did not start"
}

# All of it ends within 10 s from SINCE, with a non-zero code, and the output says which ranks may be meant.
ends_naming() { # SINCE PATTERN
    local rc ranks=0 i took left
    for ((i = 0; i < 100; i++)); do
        [ $ranks = 0 ] && [ -z "$(pgrep -x yoke)" ] && ranks=$(($(date +%s%N) - $1))
        [ -z "$(left_over)" ] && break
        sleep 0.1
    done
    took=$(($(date +%s%N) - $1))
    left=$(left_over)
    [ -z "$left" ] || { kill_ours $left; fail "still there after 10 s: $left"; return; }
    wait $pid
    rc=$?
    kill_ours $(pgrep -x orted)
    [ $took -lt 10000000000 ] || fail "took $((took / 1000000)) ms" || return
    [ $rc != 0 ] || fail "exit code 0" || return
    grep -Eq "$2" $out || fail "the output does not name it: $2" || return
    echo "    ranks $((ranks / 1000000)) ms, mpirun $((took / 1000000)) ms, exit code $rc: $(grep -Em1 "$2" $out | cut -c1-230)"
}

killed() { # RANK DEGREES...
    local r=$1 since
    shift
    start_long "$@" || return
    since=$(date +%s%N)
    kill -9 "$(pid_of_rank "$r")"
    ends_naming "$since" "(rank $r on (host|node) h$((r + 1))|rank $r with PID [0-9]+ on node h$((r + 1)))"
}

cut_link() { # HOST SIDE DEGREES...
    local h=$1 side=$2 since r=$(($1 - 1))
    shift 2
    start_long "$@" || return
    since=$(date +%s%N)
    if [ "$side" = hub ]; then ip link set "h$h" down; else ip -n "h$h" link set eth0 down; fi
    ends_naming "$since" "rank $r on host h$h"
    ip link set "h$h" up
    ip -n "h$h" link set eth0 up
    for ((i = 0; i < 50; i++)); do # the bridge's port learns of the carrier after a moment
        on_host h1 bash -c "exec 3<>/dev/udp/10.77.0.$h/9" 2>/dev/null && break
        sleep 0.1
    done
    sleep 1
}

# A host without power: its processes and its network go at the same moment.
power_cut() {
    local since
    start_long "$@" || return
    since=$(date +%s%N)
    ip link set h3 down
    kill -9 "$(pid_of_rank 2)" $(pgrep -x orted | while read -r p; do grep -qx h3 <(nsenter -t "$p" -u hostname) && echo "$p"; done)
    ends_naming "$since" "rank 2 on host h3"
    ip link set h3 up
    sleep 1
}

killed_rank_0() { killed 0 --tp 3; }
killed_rank_1() { killed 1 --tp 3; }
killed_rank_2() { killed 2 --tp 3; }
killed_rank_1_pp() { killed 1 --pp 3; }
cut_h1() { cut_link 1 hub --tp 3; }
cut_h2() { cut_link 2 hub --tp 3; }
cut_h3() { cut_link 3 hub --tp 3; }
cut_h2_own_end() { cut_link 2 own --tp 3; }
cut_h2_pp() { cut_link 2 hub --pp 3; }
cut_h3_pp() { cut_link 3 hub --pp 3; }
power_cut_tp() { power_cut --tp 3; }

# A link that comes back before the silence has lasted long enough ends nothing.
short_cut() {
    start_long --tp 3 || return
    local before after
    ip link set h2 down
    sleep 2
    ip link set h2 up
    sleep 4
    before=$(wc -l <$dir/long)
    for ((i = 0; i < 80; i++)); do
        after=$(wc -l <$dir/long)
        [ "$after" -gt "$before" ] && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    [ "$after" -gt "$before" ] || fail "does not go on after two seconds without a link"
    kill $(pgrep -x mpirun)
    wait $pid
    nothing_left 50 || { fail "left over: $(left_over)"; kill_ours $(left_over); }
}

busy() { # a rank that computes for longer than silence may last is not lost
    hosts_mpirun 1 -n 3 timeout 60 "$mpi_ranks" busy net >$out 2>&1 || fail "exit code $?"
}

collectives() { # two ranks on each host: shared memory within, messages between
    hosts_mpirun 2 -n 6 timeout 100 "$mpi_ranks" check net >$out 2>&1 || fail "exit code $?"
}

all="collectives busy same_tp2 same_tp4_two_per_host killed_rank_0 killed_rank_1 killed_rank_2 cut_h1 cut_h2 cut_h3
    cut_h2_own_end power_cut_tp short_cut same_pp2 same_pp3 same_tp2_pp3 killed_rank_1_pp cut_h2_pp cut_h3_pp"
[ $# -gt 0 ] && all="$*"
for name in $all; do
    : >$out
    before=$failures since=$SECONDS
    $name
    [ "$failures" = "$before" ] && passed=$((passed + 1)) && echo "ok   $name ($((SECONDS - since)) s)"
done
echo "$passed passed, $failures failed"
[ "$failures" = 0 ]
