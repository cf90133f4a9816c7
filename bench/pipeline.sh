#!/bin/sh
# What a pipeline gains from several sequences in flight: tokens/s of decode at --pp 2, one thread a stage, with one sequence
# and with N, beside one rank with as many; and the bubble, measured and in theory.
#
#   bench/pipeline.sh MODEL [N [TOKENS [ROUNDS]]]
#   YOKE=build-release/cli/yoke
#
# The settings take turns, ROUNDS times; the best of each counts, since other work only ever slows one down.
set -eu
model=${1:?usage: bench/pipeline.sh MODEL [N [TOKENS [ROUNDS]]]}
n=${2:-8} tokens=${3:-64} rounds=${4:-5}
yoke=${YOKE:-$(dirname "$0")/../build-release/cli/yoke}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

run() { # NAME ROUND SEQUENCES PP
	yes "Once upon a time" | head -n "$3" >"$tmp/prompts"
	"$yoke" run -m "$model" --prompts-file "$tmp/prompts" -o "$tmp/out" -n "$tokens" --greedy --ignore-eos --threads 1 \
		--seq-length 256 --max-batch "$3" --pp "$4" --stats-json "$tmp/$1.$2.json" >/dev/null
}

round=1
while [ "$round" -le "$rounds" ]; do
	run "pp1-seq1" "$round" 1 1
	run "pp1-seq$n" "$round" "$n" 1
	run "pp2-seq1" "$round" 1 2
	run "pp2-seq$n" "$round" "$n" 2
	round=$((round + 1))
done
python3 - "$tmp" "$n" <<'EOF'
import glob, json, sys
tmp, n = sys.argv[1:]
best = {}
for pp, seq in (("1", "1"), ("1", n), ("2", "1"), ("2", n)):
    runs = [json.load(open(f)) for f in glob.glob(f"{tmp}/pp{pp}-seq{seq}.*.json")]
    s = max(runs, key=lambda s: s["decode_tokens"] / s["decode_s"])
    best[pp, seq] = s["decode_tokens"] / s["decode_s"]
    line = f"pp {pp}, {seq} in flight: {best[pp, seq]:8.1f} tokens/s"
    if "pipeline" in s:
        p = s["pipeline"]
        line += f"; {p['ticks_in_flight']:.2f} ticks in flight, bubble {100 * p['bubble_theory']:.1f}% in theory, measured " + \
            ", ".join(f"{100 * r['bubble']:.1f}%" for r in s["ranks"])
    print(line)
print(f"{n} in flight against one, pp 2: {best['2', n] / best['2', '1']:.2f} times; "
      f"pp 2 against pp 1, {n} in flight: {best['2', n] / best['1', n]:.2f} times")
EOF
