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

new_host() { # NAME
    hosts+=("$1")
    ip netns add "$1"
    : >"$dir/$1.uts"
    unshare --uts="$dir/$1.uts" hostname "$1"
    ip -n "$1" link set lo up
}

address_host() { # NAME
    local address
    address=10.77.0.$(wc -l <$dir/etc_hosts)
    ip -n "$1" addr add "$address/24" dev eth0
    ip -n "$1" link set eth0 up
    echo "$address $1" >>$dir/etc_hosts
}

hosts_add() { # NAME...
    local name
    for name; do
        new_host "$name"
        ip link add "$name" type veth peer name eth0 netns "$name"
        ip link set "$name" master hub up
        address_host "$name"
    done
}

# Hosts joined not by the bridge but by a relay (relay.c), which holds each frame for DELAY_US microseconds. Returns 1 where
# it does not start, as without /dev/net/tun; it says why.
hosts_relay() { # RELAY DELAY_US NAME...
    local relay=$1 delay=$2 name
    shift 2
    for name; do new_host "$name"; done
    "$relay" "$delay" "${@/#//run/netns/}" &
    for name; do
        until ip -n "$name" link show eth0 >/dev/null 2>&1; do
            kill -0 $! 2>/dev/null || return
            sleep 0.05
        done
        address_host "$name"
    done
}

# What each host may send and receive, such as 1gbit. The burst must hold what arrives between two ticks of the kernel.
hosts_rate() {
    local name rate=$1 burst=256kb
    [ "$rate" = 10gbit ] && burst=5mb
    for name in "${hosts[@]}"; do
        # A relay's end of the cable has no queue: what its host receives is what others may send.
        [ ! -e "/sys/class/net/$name" ] || tc qdisc replace dev "$name" root tbf rate "$rate" burst $burst latency 50ms
        tc -n "$name" qdisc replace dev eth0 root tbf rate "$rate" burst $burst latency 50ms
    done
}

# A real sshd on hosts NAME..., and a client that asks no questions: what mpirun starts its daemons with when nobody says
# otherwise. Keys, configuration and root's dot files are the sandbox's. Returns 1 if this machine has no sshd.
hosts_sshd() { # NAME...
    local name sshd
    sshd=$(command -v sshd || echo /usr/sbin/sshd)
    if [ ! -d /run/sshd ]; then
        [ -x "$sshd" ] && command -v ssh-keygen >/dev/null && grep -q ^sshd: /etc/passwd || return
        mkdir -p /run/sshd ~/.ssh
        mount -t tmpfs tmpfs ~/.ssh
        mount -t tmpfs tmpfs /etc/ssh
        [ ! -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc
        ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/key
        printf '%s\n' "HostKey /etc/ssh/key" "AuthorizedKeysFile /etc/ssh/key.pub" "PermitRootLogin yes" "StrictModes no" \
            "UsePAM no" "PidFile none" >/etc/ssh/sshd_config
        printf '%s\n' "IdentityFile /etc/ssh/key" "StrictHostKeyChecking no" "UserKnownHostsFile /dev/null" \
            "LogLevel ERROR" >/etc/ssh/ssh_config
    fi
    for name; do
        on_host "$name" "$sshd" -D -e 2>>"$dir/sshd.log" &
    done
    for name; do hosts_reach "$name"; done
}

# Waits until NAME answers another host, if only that it has no sshd.
hosts_reach() { # NAME
    local from=${hosts[0]} i
    [ "$from" != "$1" ] || from=${hosts[1]}
    for ((i = 0; i < 100; i++)); do
        on_host "$from" timeout 1 bash -c "{ exec 3<>/dev/tcp/$1/22; } 2>&1 && echo connected" | grep -Eq "connected|refused" && return
        sleep 0.05
    done
    echo "no answer from $1"
    return 1
}

on_host() { # NAME COMMAND...
    local name=$1
    shift
    nsenter --net=/run/netns/"$name" --uts="$dir/$name.uts" "$@"
}

# The processes of hosts NAME... whose program's file is called like EXE, a pattern for grep -E: one look at all of /proc.
hosts_processes() { # EXE NAME...
    local exe=$1 name spaces=
    shift
    for name; do spaces+=" $(stat -L -c %i "$dir/$name.uts")"; done
    find /proc -mindepth 2 -maxdepth 3 \( -path '/proc/[0-9]*/exe' -o -path '/proc/[0-9]*/ns/uts' \) -printf '%p %l\n' 2>/dev/null |
        awk -v exe="/($exe)( .deleted.)?\$" -v spaces="$spaces " '
            { split($1, at, "/"); rest = substr($0, length($1) + 2) }
            /\/exe / && rest ~ exe { runs[at[3]] = 1 }
            /\/uts / { gsub(/[^0-9]/, "", rest); here[at[3]] = index(spaces, " " rest " ") }
            END { for (p in runs) if (here[p]) printf "%s ", p }'
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

# How long a small packet takes there and back, in microseconds: the median of 200.
hosts_ping() { # FROM TO
    on_host "$1" python3 - "$2" <<'PY'
import socket
import struct
import sys
import time
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
s.settimeout(1)
s.connect((sys.argv[1], 0))
times = []
for i in range(210):
    request = struct.pack("!BBHHH", 8, 0, 0xF7FF - i, 0, i)  # an echo request; its words add up to 0xFFFF
    began = time.perf_counter()
    s.send(request)
    while s.recv(100)[20] != 0:
        pass
    times.append(time.perf_counter() - began)
    time.sleep(0.002)
print(f"{sorted(times[10:])[100] * 1e6:.0f}")
PY
}
