#!/bin/bash
# hosts.sh YOKE ROOT OUT [GGUF]: tensor parallel across two hosts against a pipeline across them, at 1 and 10 Gb/s, as
# docs/hosts.md reports it. Hosts are namespaces (tests/hosts/hosts.sh), so this needs root. OUT gets one line of JSON per
# run, and the table is printed at the end. RUNS (default 3) of each; the best counts, per figure. GGUF is a second
# model beside a synthetic one, such as SmolLM2-135M.
set -u
yoke=$1 root=$2 result=$3 gguf=${4-}
. "$root/tests/hosts/hosts.sh"
hosts_sandbox "$@"
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
hosts_add h1 h2
python3 "$root/tests/hosts/make_model.py" /dev/shm/model "$root/tests/golden/models/llama-gqa" \
    --hidden 2048 --layers 8 --heads 16 --kv 4 --ffn 5632 --vocab 16000
words=$(for ((i = 0; i < 170; i++)); do printf 'word %d ' $i; done)
echo "$words" >$dir/prompts1
for ((i = 1; i <= 8; i++)); do echo "$i ${words:0:300}"; done >$dir/prompts8
: >"$result"

measure() { # MODEL-NAME RATE SPLIT PROMPTS COMMAND...
    local what="\"model\": \"$1\", \"rate\": \"$2\", \"split\": \"$3\", \"prompts\": $4" prompts=$4 i
    shift 4
    for ((i = 0; i < ${RUNS:-3}; i++)); do
        "$@" --prompts-file $dir/prompts"$prompts" --batch-size 8 --seq-length 2048 --memory 2GB \
            --prefill-chunk 128 -n 32 --ignore-eos --stats-json $dir/stats -o $dir/answers >$dir/log 2>&1 ||
            { tail -n 5 $dir/log; return; }
        echo "{$what, \"stats\": $(tr '\n' ' ' <$dir/stats)}" >>"$result"
        [ -s "$dir/$prompts.${what:10:5}" ] || cp $dir/answers "$dir/$prompts.${what:10:5}"
        cmp -s $dir/answers "$dir/$prompts.${what:10:5}" || echo "other answers: $what"
    done
}

for name in synthetic ${gguf:+smollm2}; do
    model=(timeout 200 "$yoke" run -t 1)
    if [ $name = synthetic ]; then model+=(-m /dev/shm/model --quant w4); else model+=(-m "$gguf"); fi
    for prompts in 1 8; do
        measure $name - "one process, one thread" $prompts "${model[@]}"
        measure $name - "tp 2, one host" $prompts "${model[@]}" --tp 2
        for rate in 10gbit 1gbit; do
            hosts_rate $rate
            for split in tp pp; do
                measure $name $rate "$split 2, two hosts" $prompts hosts_mpirun 1 -n 2 "${model[@]}" --$split 2
            done
        done
    done
done

python3 - "$result" <<'PY'
import json
import sys
best = {}
for line in open(sys.argv[1]):
    r = json.loads(line)
    s, key = r["stats"], (r["model"], r["prompts"], r["rate"], r["split"])
    moved = [sum(c["bytes"] for c in k["collectives"].values()) for k in s["ranks"]]
    tokens = s["prefill_tokens"] + s["decode_tokens"]
    now = (s["prefill_tokens"] / s["prefill_s"], s["decode_tokens"] / max(s["decode_s"], 1e-9), sum(moved) / tokens,
           s["prompt_tokens"], s["output_tokens"] / s["wall_s"])
    old = best.get(key, now)
    best[key] = tuple(map(max, now, old))
print("| model | prompts | prompt tokens | split | link | prefill tokens/s | decode tokens/s | output tokens/s, all in all | KB moved per token |")
print("|---|---|---|---|---|---|---|---|---|")
for (model, prompts, rate, split), (p, d, b, n, w) in best.items():
    print(f"| {model} | {prompts} | {n} | {split} | {rate} | {p:.0f} | {d:.1f} | {w:.1f} | {b / 1000:.1f} |")
PY
