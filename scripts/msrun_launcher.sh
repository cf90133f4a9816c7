#!/bin/sh
# Starts yoke with the command lines of MindFormers' launcher of this name:
#
#   sh scripts/msrun_launcher.sh "run_mindformer.py --config FILE --run_mode predict ..." [WORKER_NUM]
#   sh scripts/msrun_launcher.sh "..." WORKER_NUM MASTER_PORT LOG_DIR JOIN CLUSTER_TIME_OUT
#   sh scripts/msrun_launcher.sh "..." WORKER_NUM LOCAL_WORKER MASTER_ADDR MASTER_PORT NODE_RANK LOG_DIR JOIN CLUSTER_TIME_OUT
#
# "run_mindformer.py ARGS" becomes "yoke launch -n WORKER_NUM -- run ARGS" (yoke run understands MindFormers' arguments).
# What differs, all for the better: the run stays in the foreground whatever JOIN says, and its exit code is that of the
# rank that failed, whose last lines are shown; one worker just runs; ports and time-outs are not needed. Rank N's log is
# LOG_DIR/rank_N.log. MF_LOG_SUFFIX is appended to the default LOG_DIR, output/msrun_log, as "_SUFFIX".
#
# Several nodes: all ranks are started from the node of NODE_RANK 0, over ssh, or by the batch system's allocation (Slurm,
# PBS, LSF, SGE) if there is one. The nodes are named, that one first, in YOKE_HOSTS=node0,node1 or in the file
# YOKE_HOSTFILE, one a line. On the other nodes this script has nothing to do; it says so and ends with 0.
#
# YOKE is the program, by default build/cli/yoke of this source tree or yoke in the PATH.

usage() {
    [ $# = 0 ] || echo "msrun_launcher.sh: $*" >&2
    sed -n '/^#   sh /s/^# *//p' "$0" >&2
    echo "1, 2, 6 or 9 arguments; without WORKER_NUM there are 8 workers" >&2
    exit 1
}

number() { # NAME VALUE LEAST
    case $2 in
    '' | *[!0-9]* | ??????*) usage "$1 should be a number, but is \"$2\"" ;;
    esac
    [ "$2" -ge "$3" ] || usage "$1 should be at least $3, but is $2"
}

workers=8 local_workers= node=0 address=127.0.0.1
log_dir=output/msrun_log${MF_LOG_SUFFIX:+_$MF_LOG_SUFFIX}
case $# in
1) ;;
2) workers=$2 ;;
6) workers=$2 log_dir=$4 && number MASTER_PORT "$3" 0 && number CLUSTER_TIME_OUT "$6" 0 ;;
9)
    workers=$2 local_workers=$3 address=$4 node=$6 log_dir=$7
    number LOCAL_WORKER "$3" 1 && number MASTER_PORT "$5" 0 && number NODE_RANK "$6" 0 && number CLUSTER_TIME_OUT "$9" 0
    ;;
*) usage "$# arguments" ;;
esac
number WORKER_NUM "$workers" 1
nodes=1
if [ -n "$local_workers" ]; then
    [ $((workers % local_workers)) = 0 ] || usage "WORKER_NUM $workers is not a multiple of LOCAL_WORKER $local_workers"
    nodes=$((workers / local_workers))
fi
[ "$node" -lt "$nodes" ] || usage "NODE_RANK $node, but $workers workers, $local_workers a node, are $nodes node(s), counted from 0"

if [ "$node" != 0 ]; then
    echo "msrun_launcher.sh: nothing to do on this node: all $workers ranks, those of this node too, are started by the one" \
        "command on node 0 ($address), over ssh or by the batch system. It names the nodes in YOKE_HOSTS."
    exit 0
fi

if [ -z "$YOKE" ]; then
    YOKE=$(dirname "$0")/../build/cli/yoke
    [ -x "$YOKE" ] || YOKE=$(command -v yoke) || {
        echo "msrun_launcher.sh: no yoke: build it (meson setup build && ninja -C build), put it in the PATH, or set YOKE" >&2
        exit 127
    }
fi

# The command is one word for this script but many for a shell, with quotes in it: as there, a shell takes it apart.
command=$1
eval "set -- $command" || exit 1
case $1 in
python | python3 | */python | */python3) shift ;;
esac
case $1 in
run_mindformer.py | */run_mindformer.py) shift ;;
*) usage "the command should be \"run_mindformer.py ...\", but begins with \"$1\"" ;;
esac

if [ "$workers" = 1 ]; then
    exec "$YOKE" run "$@"
fi
if [ "$nodes" = 1 ]; then
    exec "$YOKE" launch -n "$workers" --log-dir "$log_dir" -- run "$@"
fi
if [ -n "$YOKE_HOSTS" ]; then
    exec "$YOKE" launch -n "$workers" --hosts "$YOKE_HOSTS" --log-dir "$log_dir" -- run "$@"
fi
if [ -n "$YOKE_HOSTFILE" ]; then
    exec "$YOKE" launch -n "$workers" --hostfile "$YOKE_HOSTFILE" --log-dir "$log_dir" -- run "$@"
fi
if [ -n "$SLURM_JOB_ID$PBS_JOBID$LSB_JOBID$PE_HOSTFILE" ]; then
    exec "$YOKE" launch -n "$workers" --log-dir "$log_dir" -- run "$@"
fi
echo "msrun_launcher.sh: $workers ranks on $nodes nodes are started from here, node 0; say where, this node first:" \
    "YOKE_HOSTS=$address,NODE1,... (or YOKE_HOSTFILE=FILE, a host a line)" >&2
exit 1
