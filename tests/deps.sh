#!/bin/sh
# Installs the packages that building and testing need, where something is missing and apt is there.
# Usage: tests/deps.sh [chromium], that alone, for suite page, which is skipped where there is none.
set -u
missing=
need() { # package, test that it is there
	sh -c "$2" >/dev/null 2>&1 || missing="$missing $1"
}
header() {
	need "$1" "echo '#include <$2>' | gcc $3 -E - "
}
need gcc 'gcc --version'
need libc6-dev 'echo "#include <stdio.h>" | gcc -E -'
need make 'make --version'
need pkg-config 'pkg-config --version'
need bash 'bash --version'
need ccache 'ccache --version'
need python3 'python3 --version'
need liblua5.4-dev 'pkg-config --exists lua5.4'
header libyaml-dev yaml.h ''
header libjansson-dev jansson.h ''
need openmpi-bin 'mpirun --version'
need libopenmpi-dev 'mpicc --showme:version'
if [ "${1:-}" = chromium ]; then
	missing=
	need chromium 'command -v chromium || command -v chromium-browser || command -v google-chrome'
fi
[ -n "$missing" ] || exit 0
echo "installing:$missing"
if ! command -v apt-get >/dev/null; then
	[ "${1:-}" != chromium ] || exit 0
	echo "this machine has no apt-get: install what stands for$missing by hand" >&2
	exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null || [ "${1:-}" = chromium ]
