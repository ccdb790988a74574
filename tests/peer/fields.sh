#!/bin/sh
# A new field of the language does not compile until hf.def says how it is exported. Usage: tests/peer/fields.sh SOURCES WORKDIR
set -u
src=$(realpath "$1") work=$2
passed=0 failed=0
rm -rf "$work"
mkdir -p "$work"
cp -r "$src/generator" "$work/generator"
sed -i 's/^FIELD(router, weight_scale/FIELD(router, probe, NUM, 0, 1, "0.0", "", "not in hf.def")\n&/' "$work/generator/field.def"

is() { # name, 0 or 1: what compiling has to give, and what it has to say
	gcc -std=c11 -D_POSIX_C_SOURCE=200809L -fsyntax-only -I"$work/generator" -I"$src/runtime" "$work/generator/hf.c" \
		>"$work/log" 2>&1
	if [ $? = "$2" ] && { [ -z "$3" ] || grep -q "$3" "$work/log"; }; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAIL $1: $(head -n 3 "$work/log")"
	fi
}
is "a field without a row" 1 "ROW_router_probe.* undeclared"
echo 'EXPORT(router, probe, ONLY, "0", "no architecture has it")' >>"$work/generator/hf.def"
is "a field with a row" 0 ""
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
