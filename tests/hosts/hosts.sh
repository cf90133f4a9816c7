# hosts.sh: hosts made of namespaces, for tests and measurements. To be sourced by a bash script, which calls
# `hosts_sandbox "$@"` first.
#
# The script runs again inside a sandbox: mount, network, process, IPC and UTS namespaces of its own, as process 1 of
# them. Whatever it starts, mounts or joins ends with it, even if it is killed: there is nothing to clean up, and the
# machine's own network is never touched. In the sandbox each "host" is a network and a UTS namespace; a veth pair joins
# it to one bridge. Addresses are 10.77.0.N, reachable from nowhere else. Processes of all hosts share one process
# namespace, so that the script can find and kill any of them.

hosts_skip() { echo "skipped: $*"; exit 77; }

hosts_sandbox() {
    if [ -z "${HOSTS_INSIDE-}" ]; then
        [ "$(id -u)" = 0 ] || hosts_skip "network namespaces need root"
        for tool in ip tc unshare nsenter mpirun; do
            command -v $tool >/dev/null || hosts_skip "no $tool"
        done
        unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc true 2>/dev/null ||
            hosts_skip "this machine does not let us make namespaces"
        HOSTS_INSIDE=1 exec unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc bash "$0" "$@"
    fi
    [ $$ = 1 ] || { echo "HOSTS_INSIDE is set, but this is no sandbox"; exit 1; }
    trap 'exit 143' TERM
    trap 'exit 130' INT
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /dev/shm
    dir=/run/hosts
    mkdir -p $dir/tmp
    ip link set lo up
    ip link add type veth 2>/dev/null || hosts_skip "this kernel has no veth"
    ip link del veth0
    ip link add hub type bridge 2>/dev/null || hosts_skip "this kernel has no bridge"
    ip link set hub up
    # Open MPI starts its daemons on other hosts by this, in place of `ssh -o ServerAliveInterval=1 -o
    # ServerAliveCountMax=6`: it ends when the daemon does, or once one of the two links has been down for 6 s.
    cat >$dir/agent <<'AGENT'
#!/bin/bash
host=$1 heard=${EPOCHREALTIME/.}
shift
nsenter --net=/run/netns/"$host" --uts=/run/hosts/"$host".uts sh -c "$*" &
daemon=$!
trap 'kill $daemon' TERM
while :; do
    sleep 0.25
    if ip link show eth0 | grep -q LOWER_UP && ip -n "$host" link show eth0 | grep -q LOWER_UP; then
        heard=${EPOCHREALTIME/.}
        kill -0 $daemon 2>/dev/null || break # one cannot hear over a cut link that it has ended
    fi
    [ $((${EPOCHREALTIME/.} - heard)) -ge 6000000 ] && exit 255
done
wait $daemon
AGENT
    chmod +x $dir/agent
    echo "127.0.0.1 localhost" >$dir/etc_hosts
    mount --bind $dir/etc_hosts /etc/hosts
    hosts=()
}

hosts_add() { # NAME...
    local name
    for name; do
        hosts+=("$name")
        ip netns add "$name"
        : >"$dir/$name.uts"
        unshare --uts="$dir/$name.uts" hostname "$name"
        ip link add "$name" type veth peer name eth0 netns "$name"
        ip link set "$name" master hub up
        ip -n "$name" link set lo up
        ip -n "$name" addr add 10.77.0.${#hosts[@]}/24 dev eth0
        ip -n "$name" link set eth0 up
        echo "10.77.0.${#hosts[@]} $name" >>$dir/etc_hosts
    done
}

# What each host may send and receive, such as 1gbit. The burst must hold what arrives between two ticks of the kernel.
hosts_rate() {
    local name rate=$1 burst=256kb
    [ "$rate" = 10gbit ] && burst=5mb
    for name in "${hosts[@]}"; do
        tc qdisc replace dev "$name" root tbf rate "$rate" burst $burst latency 50ms
        tc -n "$name" qdisc replace dev eth0 root tbf rate "$rate" burst $burst latency 50ms
    done
}

on_host() { # NAME COMMAND...
    local name=$1
    shift
    nsenter --net=/run/netns/"$name" --uts="$dir/$name.uts" "$@"
}

# mpirun from the first host over all of them; SLOTS ranks on each. How yoke launch calls it, too:
# - keepalives: a daemon that cannot be reached any more is given up after 5 to 6 s, not after 8 minutes; not sooner,
#   because yoke's ranks notice after 4 s, and they can tell which rank is meant;
# - ranks are not bound: the ranks of all hosts share this machine's few cores.
hosts_mpirun() { # SLOTS ARGUMENTS...
    local list
    list=$(printf "%s:$1," "${hosts[@]}")
    shift
    on_host "${hosts[0]}" mpirun --allow-run-as-root --host "${list%,}" --bind-to none --oversubscribe \
        --mca plm_rsh_agent $dir/agent --mca orte_tmpdir_base $dir/tmp --mca btl tcp,vader,self \
        --mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 5 "$@"
}
