#!/bin/sh
# check_format.sh [--fix]: is all C laid out as .clang-format says? Version 14 decides; others differ in details.
set -eu
cd "$(dirname "$0")/.."

tool=$(command -v clang-format-14 || command -v clang-format) || { echo "clang-format-14 is not installed" >&2; exit 1; }
case $($tool --version) in
*"version 14."*) ;;
*) echo "clang-format 14 is needed; found: $($tool --version)" >&2; exit 1 ;;
esac
how="--dry-run -Werror"
[ "${1:-}" != --fix ] || how=-i
git ls-files --cached --others --exclude-standard '*.c' '*.h' |
    while IFS= read -r f; do [ ! -f "$f" ] || echo "$f"; done | xargs -r -n 16 -P 2 "$tool" $how
