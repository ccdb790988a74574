#!/bin/sh
# Wrong descriptions against the whole text they must give on stderr, and exit status 1.
#
#   tests/err/run.sh OLMOGEN [NAME...]     BLESS=1 rewrites what is expected
#
# A first line "-- flags: ..." in NAME.lua gives further options. Runs in the repository's root, so that
# file names read tests/err/NAME.lua.
set -u
. "$(dirname "$0")/../suite.sh"
olmogen=$(realpath "$1") || exit 2
shift
cd "$(dirname "$0")/../.." || exit 2
[ $# -gt 0 ] || set -- $(ls tests/err | sed -n 's/\.lua$//p')

tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
ulimit -t 10 # seconds of a processor: no description runs for long
for name; do
	lua=tests/err/$name.lua err=tests/err/$name.err
	flags=$(sed -n '1s/^-- flags: //p' "$lua")
	# shellcheck disable=SC2086 # flags are words
	timeout 60 "$olmogen" --plan $flags "$lua" >"$tmp/out" 2>"$tmp/err"
	status=$?
	[ -z "${BLESS:-}" ] || cp "$tmp/err" "$err"
	if [ $status -eq 1 ] && [ ! -s "$tmp/out" ] && diff -u "$err" "$tmp/err" >"$tmp/diff" 2>&1; then
		ok
		continue
	fi
	fail "$name: exit status $status"
	cat "$tmp/diff" "$tmp/out" 2>/dev/null
	: >"$tmp/diff"
done
suite_end
