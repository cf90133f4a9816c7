#!/bin/bash
# test_hosts.sh YOKE MPI_RANKS RELAY ROOT [NAME...]: yoke over three hosts made of namespaces (hosts.sh). Answers are those of
# one process, bit by bit; whichever rank is killed, whichever link is cut, `yoke launch` ends within 10 s, with a non-zero
# code, naming rank and host, and leaves nothing behind. Needs root; skipped (77) where namespaces are not to be had. NAMEs
# choose tests.
#
# Most of these tests wait for something to be noticed. So they run side by side, in lanes: each lane is a sandbox of its
# own, with its own hosts, processes and files.
set -u
lanes=(
    "collectives same_tp2 killed_rank_1 cut_h3 busy"
    "same_tp2_pp3 killed_rank_0 cut_h2 hosts_without_the_launcher"
    "launch_over_ssh same_pp3 killed_rank_2_pp cut_h1 power_cut"
    "short_cut same_tp4_two_per_host cut_by_hand cut_h2_own_end_pp same_pp2_with_delay"
)
if [ $# = 4 ]; then
    logs=$(mktemp -d)
    trap 'kill -9 $(jobs -p) 2>/dev/null; rm -rf "$logs"' EXIT # unshare ignores SIGTERM; its child dies with it
    trap 'exit 143' TERM INT
    for i in "${!lanes[@]}"; do
        bash "$0" "$@" ${lanes[i]} >"$logs/$i" 2>&1 &
        pids[i]=$!
    done
    passed=0 failed=0
    for i in "${!lanes[@]}"; do
        wait "${pids[i]}"
        rc=$?
        [ $rc != 77 ] || { cat "$logs/$i"; exit 77; }
        grep -vE '^[0-9]+ passed, [0-9]+ failed$' "$logs/$i"
        read -r p f < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$logs/$i") || p=0 f=1 # it broke off
        [ $rc = 0 ] || [ "$f" -gt 0 ] || f=1
        passed=$((passed + p)) failed=$((failed + f))
    done
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
fi

yoke=$(realpath "$1") mpi_ranks=$2 relay=$3 root=$4
. "$(dirname "$0")/hosts.sh"
hosts_sandbox "$@"
shift 4
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LC_ALL=C.UTF-8 ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS-}"
model=$dir/model
python3 "$(dirname "$0")/make_model.py" $model "$root/tests/golden/models/llama-gqa" || exit 1
hosts_add h1 h2 h3
hosts_rate 1gbit
if ! hosts_sshd h1 h2 h3; then
    echo "no sshd here (openssh-server): a script stands in for ssh"
    export OMPI_MCA_plm_rsh_agent=$dir/agent
fi
out=$dir/out
failures=0 passed=0 name=

fail() {
    echo "FAIL $name: $*"
    sed 's/^/    /' $out | tail -n 40
    failures=$((failures + 1))
    return 1
}

programs='yoke|mpi_ranks|orterun|orted|ssh'

kill_ours() { # PID...: all processes that we can see are the sandbox's
    [ $$ = 1 ] || exit 1
    [ $# = 0 ] || kill -9 "$@" 2>/dev/null
}

nothing_left() { # within so many tenths of a second
    local i
    for ((i = 0; i < $1; i++)); do
        [ -z "$(hosts_processes "$programs" h1 h2 h3)" ] && return 0
        sleep 0.1
    done
    fail "left over: $(ps -o args= -p $(hosts_processes "$programs" h1 h2 h3) 2>&1)"
}

# The command, not its supervisor.
pid_of_rank() {
    local p
    for p in $(hosts_processes yoke h1 h2 h3); do
        grep -qz '^run$' "/proc/$p/cmdline" && ! grep -qz '^launch' "/proc/$p/cmdline" &&
            grep -qz "^OMPI_COMM_WORLD_RANK=$1\$" "/proc/$p/environ" && echo "$p" && return
    done 2>/dev/null
}

# As a user does it, from the first host; over ssh, that is.
hosts_launch() { # ARGUMENTS...
    on_host h1 env OMPI_MCA_orte_tmpdir_base=$dir/tmp "$yoke" launch --log-dir $dir/logs --mpirun-args "-x ASAN_OPTIONS" "$@"
}

# ---- the same answers ----

prompts() { printf 'So 166\nPage 117\nThe model and the rest of it\nA much longer prompt, so that the rows of a tick go beyond one: 1 2 3 4 5 6\n'; }

alone() {
    prompts >$dir/prompts
    [ -s $dir/alone ] || "$yoke" run -m "$model" --prompts-file $dir/prompts -n 24 --ignore-eos -o $dir/alone -t 1 >$out 2>&1
    [ -s $dir/alone_logits ] || "$yoke" logits -m "$model" -p "Page 117" --all -t 1 --json >$dir/alone_logits 2>$out
}

same() { # RANKS-PER-HOST RANKS DEGREES...
    local slots=$1 n=$2
    shift 2
    alone
    hosts_mpirun "$slots" -n "$n" timeout 60 "$yoke" run -m "$model" --prompts-file $dir/prompts -n 24 --ignore-eos -t 1 \
        -o $dir/answers "$@" >$out 2>&1 || fail "run $*: exit code $?" || return
    cmp -s $dir/alone $dir/answers || fail "run $*: other answers than alone" || return
    hosts_mpirun "$slots" -n "$n" timeout 60 "$yoke" logits -m "$model" -p "Page 117" --all -t 1 --json "$@" \
        >$dir/logits 2>$out || fail "logits $*: exit code $?" || return
    cmp -s $dir/alone_logits $dir/logits || fail "logits $*: other bits than alone" || return
    nothing_left 50
}

same_tp2() { same 1 2 --tp 2; }
same_tp4_two_per_host() { same 2 4 --tp 4; }
same_pp3() { same 1 3 --pp 3; }
same_tp2_pp3() { same 2 6 --tp 2 --pp 3; }

launch_over_ssh() {
    alone
    hosts_launch --hosts h1,h2:2,h3 -- run -m "$model" --prompts-file $dir/prompts -n 24 --ignore-eos -t 1 --tp 2 --pp 2 \
        -o $dir/answers --stats >$out 2>&1 || fail "exit code $?" || return
    cmp -s $dir/alone $dir/answers || fail "other answers than alone" || return
    grep -q "hosts h1 (rank 0), h2 (ranks 1-2), h3 (rank 3)" $out || fail "not the hosts that were meant" || return
    nothing_left 20
}

# ---- the ways of an end ----

# A run that would last for minutes, one rank on each of the hosts. Fills pid, and returns once it generates.
start_long() { # COMMAND... that runs yoke; $degrees
    local i
    rm -f $dir/long
    for ((i = 0; i < 20000; i++)); do echo "So 166"; done >$dir/many
    "$@" run -m "$model" --prompts-file $dir/many -n 50 --ignore-eos -t 1 -o $dir/long $degrees >$out 2>&1 &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        [ -s $dir/long ] && sleep 0.5 && return
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    fail "the long run did not start"
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# From SINCE on: the launcher (or mpirun) ends within 10 s, with a non-zero code, and what it says last has the words. Then
# nothing is left on hosts REACHABLE, and on the others no rank, within the same 10 s.
ends_naming() { # SINCE PATTERN REACHABLE
    local since=$1 pattern=$2 reachable=$3 rc took i left
    while kill -0 $pid 2>/dev/null && [ $(($(now_ms) - since)) -lt 12000 ]; do sleep 0.05; done
    took=$(($(now_ms) - since))
    kill -0 $pid 2>/dev/null && { kill_ours $pid $(hosts_processes "$programs" h1 h2 h3); fail "still there after $took ms"; return; }
    wait $pid
    rc=$?
    while :; do
        left=$(hosts_processes "$programs" $reachable; hosts_processes yoke h1 h2 h3)
        [ -n "$left" ] && [ $(($(now_ms) - since)) -lt 10000 ] || break
        sleep 0.1
    done
    [ -z "$left" ] || fail "left over after 10 s: $(ps -o args= -p $left 2>&1)"
    kill_ours $(hosts_processes "$programs" h1 h2 h3)
    [ -z "$left" ] || return
    [ $took -lt 10000 ] || fail "took $took ms" || return
    [ $rc != 0 ] || fail "exit code 0" || return
    grep "^yoke: " $out | tail -n 1 | grep -Eq "$pattern" || fail "what is said last does not name it: $pattern" || return
    echo "    $took ms, exit code $rc: $(grep "^yoke: " $out | tail -n 1 | cut -c1-250)"
}

launched() { start_long hosts_launch --hosts "${hosts_to_use-h1,h2,h3}" --; }

killed() { # RANK DEGREES...
    local r=$1 degrees="${*:2}" since
    launched || return
    since=$(now_ms)
    kill -9 "$(pid_of_rank "$r")"
    ends_naming "$since" "^yoke: error: rank $r on host h$((r + 1)) .*killed by signal 9" "h1 h2 h3"
}

join_again() { # HOST
    ip link set "h$1" up
    ip -n "h$1" link set eth0 up
    hosts_reach "h$1" # the bridge's port takes a moment
}

cut_link() { # HOST SIDE DEGREES...
    local h=$1 side=$2 degrees="${*:3}" since reachable
    launched || return
    since=$(now_ms)
    if [ "$side" = hub ]; then ip link set "h$h" down; else ip -n "h$h" link set eth0 down; fi
    reachable="h1 h2 h3"
    [ "$h" = 1 ] && reachable=h1
    ends_naming "$since" "^yoke: error: rank $((h - 1)) on host h$h .*(not been heard from|cut off)" "${reachable/ h$h/}"
    join_again "$h"
}

# A host without power: its network and its processes go at the same moment.
power_cut() {
    local since degrees="--tp 3"
    launched || return
    since=$(now_ms)
    ip link set h3 down
    kill_ours $(hosts_processes '.*' h3)
    ends_naming "$since" "^yoke: error: rank 2 on host h3 .*not been heard from" "h1 h2"
    ip link set h3 up
    hosts_sshd h3
}

# Nobody who is left on the launcher's host can say anything: mpirun must.
hosts_without_the_launcher() {
    local since degrees="--pp 2" hosts_to_use=h2,h3
    launched || return
    since=$(now_ms)
    ip link set h1 down
    ends_naming "$since" "^yoke: error: host h[23] is lost, with rank [01]: " h1
    join_again 1
}

killed_rank_0() { killed 0 --tp 3; }
killed_rank_1() { killed 1 --tp 3; }
killed_rank_2_pp() { killed 2 --pp 3; }
cut_h1() { cut_link 1 hub --tp 3; }
cut_h2() { cut_link 2 hub --tp 3; }
cut_h3() { cut_link 3 hub --tp 3; }
cut_h2_own_end_pp() { cut_link 2 own --pp 3; }

cut_by_hand() { # by mpirun alone: its ranks say who is meant
    local since degrees="--tp 3"
    start_long hosts_mpirun 1 -n 3 "$yoke" || return
    since=$(now_ms)
    ip link set h2 down
    ends_naming "$since" "rank 1 on host h2 .*not been heard from" "h1 h3"
    join_again 2
}

# A link that comes back before the silence has lasted long enough ends nothing.
short_cut() {
    local before after p degrees="--tp 3"
    launched || return
    ip link set h2 down
    sleep 2
    ip link set h2 up
    sleep 3 # TCP takes up to as long again to resume
    before=$(wc -l <$dir/long)
    for ((i = 0; i < 80; i++)); do
        after=$(wc -l <$dir/long)
        [ "$after" -gt "$before" ] && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    [ "$after" -gt "$before" ] || fail "does not go on after two seconds without a link"
    for p in $(hosts_processes yoke h1); do
        grep -qz '^launch$' "/proc/$p/cmdline" && kill "$p"
    done
    wait $pid
    nothing_left 50
}

busy() { # a rank that computes for longer than silence may last is not lost
    hosts_mpirun 1 -n 3 timeout 60 "$mpi_ranks" busy net >$out 2>&1 || fail "exit code $?"
}

collectives() { # two ranks on each host: shared memory within, messages between
    hosts_mpirun 2 -n 6 timeout 100 "$mpi_ranks" check net >$out 2>&1 || fail "exit code $?"
}

same_pp2_with_delay() { # two more hosts, with a link of half a millisecond between them
    local hosts=() rtt
    hosts_relay "$relay" 500 d1 d2 || { echo "skipped: no link with a delay here"; return; }
    rtt=$(hosts_ping d1 d2)
    [ "$rtt" -ge 1000 ] || fail "the way there and back takes \"$rtt\" us instead of 1000 or more" || return
    same 1 2 --pp 2
}

for name; do
    : >$out
    before=$failures since=$SECONDS
    $name
    [ "$failures" = "$before" ] && passed=$((passed + 1)) && echo "ok   $name ($((SECONDS - since)) s)"
done
echo "$passed passed, $failures failed"
[ "$failures" = 0 ]
