#!/bin/sh
# deps.sh [build|test|demo ...]: installs from Debian what these need, if anything is missing. Default: build test.
# Says nothing and needs no network and no root when all is there.
set -eu

build="gcc libc6-dev make meson ninja-build pkg-config python3 libjansson-dev libfyaml-dev libhwloc-dev libpcre2-dev
       libutf8proc-dev libssl-dev libopenmpi-dev openmpi-bin"
# clang's runtime (sanitizers, libFuzzer) and symbolizer come as packages of their own.
test="git libcmocka-dev clang-14 libclang-rt-14-dev llvm-14 clang-format-14 util-linux iproute2"
# tests/hosts has an ssh server of its own in each of its hosts. Not where installing it would open this machine to the
# network: there the test uses a script in place of ssh.
[ -d /run/systemd/system ] || test="$test openssh-client openssh-server"
demo="python3 ca-certificates"

[ $# -gt 0 ] || set -- build test
wanted=
for group in "$@"; do
    case $group in
    build) wanted="$wanted $build" ;;
    test) wanted="$wanted $test" ;;
    demo) wanted="$wanted $demo" ;;
    pip) wanted="$wanted python3-pip" ;;
    *) echo "deps.sh: no group \"$group\"; there are build, test, demo, pip" >&2; exit 2 ;;
    esac
done

if ! command -v apt-get >/dev/null; then
    echo "deps.sh: this is no Debian; install what corresponds to:$(echo $wanted | sed 's/^/ /')" >&2
    exit 1
fi
missing=
for p in $wanted; do
    case $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) in
    installed*) ;;
    *) missing="$missing $p" ;;
    esac
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
    sudo=$(command -v sudo) || { echo "deps.sh: as root, please: apt-get install$missing" >&2; exit 1; }
fi
echo "installing:$missing" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { $sudo apt-get -qq update && $sudo apt-get -qq -y --no-install-recommends install $missing; } \
    >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    echo "deps.sh: apt-get could not install:$missing" >&2
    exit 1
fi
