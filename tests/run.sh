#!/bin/sh
# All suites, each of which ends with "N passed, N failed"; the last line is their sum. Usage: run.sh [SUITE,SUITE...]
set -u
cd "$(dirname "$0")/.." || exit 1
only=${1:-all}
work=build/check
mkdir -p "$work"
passed=0 failed=0
# threads that wait by spinning steal the cores from each other where tests share them
export OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=30000

suite() { # name, command
	name=$1
	shift
	case ",$only," in
	,all, | *",$name,"*) ;;
	*) return ;;
	esac
	start=$(date +%s)
	"$@" >"$work/$name.log" 2>&1
	status=$?
	line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$work/$name.log" | tail -n 1)
	p=$(echo "$line" | sed 's/ passed.*//')
	f=$(echo "$line" | sed 's/.*passed, //; s/ failed//')
	# a suite that ends without its line, or badly without a failure, has failed
	[ -n "$line" ] || p=0 f=1
	[ $status = 0 ] || [ "$f" != 0 ] || f=1
	passed=$((passed + p)) failed=$((failed + f))
	printf '%-10s %5d passed, %d failed, %d s\n' "$name" "$p" "$f" $(($(date +%s) - start))
	[ "$f" = 0 ] || tail -n 40 "$work/$name.log"
}

suite front build/san/tests/front_test
suite plan build/san/tests/plan_test models/tiny.lua
suite ranks build/san/tests/ranks_test
suite err sh tests/err/run.sh build/olmogen
suite models sh tests/emit/models.sh build/olmogen
suite gold sh tests/gold/run.sh build/olmogen "$work"
suite emit sh tests/emit/run.sh build/olmogen build/san/olmogen "$work/emit"
suite random sh tests/emit/random.sh build/olmogen "$work" "$(date +%j)" 40
suite kernels sh tests/numeric/kernels.sh "$work"
suite expert sh tests/parallel/expert.sh "$work"
suite numeric sh tests/numeric/run.sh build/olmogen "$work/numeric"
suite peer sh tests/peer/run.sh build/olmogen "$work/peer"
suite cuda sh tests/gpu/compile.sh build/olmogen "$work/cuda"
suite runtime bash tests/runtime/run.sh
suite layouts sh tests/parallel/layouts.sh build/olmogen "$work/layouts"
suite layrandom sh tests/parallel/random.sh build/olmogen "$work/layrandom" "$(date +%j)" 3
suite parallel bash tests/parallel/run.sh "$work/parallel"
suite ckpt bash tests/parallel/ckpt.sh "$work/ckpt"
suite trainer sh tests/trainer/run.sh build/olmogen "$work/trainer"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
