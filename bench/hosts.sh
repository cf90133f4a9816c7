#!/bin/bash
# hosts.sh YOKE ROOT OUT [GGUF]: tensor parallel across two hosts against a pipeline across them, at 1 and 10 Gb/s, as
# docs/hosts.md reports it. Hosts are namespaces (tests/hosts/hosts.sh), so this needs root. OUT gets one line of JSON per
# run, after what it holds, and the table of all that is printed at the end. GGUF is a second model beside a synthetic one,
# such as SmolLM2-135M.
#
#   DELAY_US   delays of the link, one way; several are rows of the same rounds. Default 0. Above 0, and for "relay" (none,
#              but through it), hosts are joined by tests/hosts/relay.c instead of a bridge. How long a small packet takes
#              there and back is said for each
#   RUNS       of each row (3); the best counts, per figure
#   MODELS     synthetic smollm2; RATES 10gbit 1gbit; PROMPTS 1 8: all, or some of them, to measure in pieces
set -u
yoke=$1 root=$2 result=$3 gguf=${4-}
relay=$(dirname "$yoke")/../tests/hosts/hosts_relay
. "$root/tests/hosts/hosts.sh"
hosts_sandbox "$@"
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
pairs=()
for delay in ${DELAY_US:-0}; do
    hosts=()
    case $delay in
    0) hosts_add h1 h2 ;;
    relay) hosts_relay "$relay" 0 rh1 rh2 || exit ;;
    *) hosts_relay "$relay" "$delay" "d${delay}h1" "d${delay}h2" || exit ;;
    esac
    pairs+=("$delay ${hosts[*]}")
    echo "delay $delay us: a small packet there and back takes $(hosts_ping "${hosts[@]}") us"
done
[ "${MODELS-}" = smollm2 ] || python3 "$root/tests/hosts/make_model.py" /dev/shm/model "$root/tests/golden/models/llama-gqa" \
    --hidden 2048 --layers 8 --heads 16 --kv 4 --ffn 5632 --vocab 16000
words=$(for ((i = 0; i < 170; i++)); do printf 'word %d ' $i; done)
echo "$words" >$dir/prompts1
for ((i = 1; i <= 8; i++)); do echo "$i ${words:0:300}"; done >$dir/prompts8

measure() { # MODEL-NAME LINK SPLIT PROMPTS COMMAND...
    local what="\"model\": \"$1\", \"link\": \"$2\", \"split\": \"$3\", \"prompts\": $4" first=$dir/first.$1.$4 prompts=$4
    shift 4
    "$@" --prompts-file $dir/prompts"$prompts" --batch-size 8 --seq-length 2048 --memory 2GB --prefill-chunk 128 -n 32 \
        --ignore-eos --stats-json $dir/stats -o $dir/answers >$dir/log 2>&1 || { tail -n 5 $dir/log; return; }
    echo "{$what, \"stats\": $(tr '\n' ' ' <$dir/stats)}" >>"$result"
    [ -s "$first" ] || cp $dir/answers "$first"
    cmp -s $dir/answers "$first" || echo "other answers: $what"
}

measure_all() { # MODEL-NAME PROMPTS
    local model=(timeout 200 "$yoke" run -t 1) rate split hosts p delay
    if [ "$1" = synthetic ]; then model+=(-m /dev/shm/model --quant w4); else model+=(-m "$gguf"); fi
    measure "$1" - "one process, one thread" "$2" "${model[@]}"
    measure "$1" - "tp 2, one process" "$2" "${model[@]}" --tp 2
    for rate in ${RATES:-10gbit 1gbit}; do
        for p in "${pairs[@]}"; do
            read -r delay hosts <<<"$p"
            hosts=($hosts)
            hosts_rate $rate
            for split in tp pp; do
                measure "$1" "$rate, $delay us" "$split 2, two hosts" "$2" hosts_mpirun 1 -n 2 "${model[@]}" --$split 2
            done
        done
    done
}

# Round by round, so that whatever else the machine does hits all alike.
for name in ${MODELS:-synthetic ${gguf:+smollm2}}; do
    for ((i = 0; i < ${RUNS:-3}; i++)); do
        for prompts in ${PROMPTS:-1 8}; do
            measure_all "$name" "$prompts"
        done
    done
done

python3 - "$result" <<'PY'
import json
import sys
best = {}
for line in open(sys.argv[1]):
    r = json.loads(line)
    s, key = r["stats"], (r["model"], r["prompts"], r["link"], r["split"])
    moved = [sum(c["bytes"] for c in k["collectives"].values()) for k in s["ranks"]]
    tokens = s["prefill_tokens"] + s["decode_tokens"]
    now = (s["prefill_tokens"] / s["prefill_s"], s["decode_tokens"] / max(s["decode_s"], 1e-9), sum(moved) / tokens,
           s["prompt_tokens"], s["output_tokens"] / s["wall_s"])
    old = best.get(key, now)
    best[key] = tuple(map(max, now, old))
print("| model | prompts | prompt tokens | split | link | prefill tokens/s | decode tokens/s | output tokens/s, all in all | KB moved per token |")
print("|---|---|---|---|---|---|---|---|---|")
for (model, prompts, link, split), (p, d, b, n, w) in sorted(best.items(), key=lambda x: x[0][:2]):
    print(f"| {model} | {prompts} | {n} | {split} | {link} | {p:.0f} | {d:.1f} | {w:.1f} | {b / 1000:.1f} |")
PY
