# What shell suites count with, and how they end. Each of them reads it first: . "$(dirname "$0")/../suite.sh"
# shellcheck shell=sh
passed=0 failed=0
out=out # where says puts what a command prints; check: $out.check
logs=   # files whose ends tell why something failed, beside its name
match=F # texts that says looks for are fixed; E: regular expressions
within= # "timeout 180": what says runs commands under
root=$(cd "$(dirname "$0")/../.." && pwd)

ok() { passed=$((passed + 1)); }
fail() { # what failed
	failed=$((failed + 1))
	echo "FAIL $*"
	[ -z "$logs" ] || tail -n 5 $logs
}
is() { # NAME STATUS: of the check just run
	if [ "$2" = 0 ]; then ok; else fail "$1"; fi
}
want() { # NAME GOT EXPECTED
	if [ "$2" = "$3" ]; then ok; else fail "$1: $2, expected $3"; fi
}
check() { # NAME COMMAND...: the command succeeds
	check_name=$1
	shift
	if "$@" >"$out.check" 2>&1; then ok; else
		fail "$check_name"
		tail -n 5 "$out.check"
	fi
}
says() { # NAME STATUS TEXT COMMAND...: it exits so, and says the text
	says_name=$1 says_status=$2 says_text=$3
	shift 3
	$within "$@" >"$out" 2>&1
	says_got=$?
	if [ $says_got = "$says_status" ] && grep -q$match -- "$says_text" "$out"; then ok; else
		fail "$says_name: status $says_got, not $says_status, or not: $says_text"
		tail -n 5 "$out"
	fi
}
count() { # NAME TEXT: what a program that counts itself printed; its last line and its first failures are shown
	echo "$1: $(echo "$2" | tail -n 1)"
	echo "$2" | grep FAIL | head -n 10
	set -- $(echo "$2" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' | tail -n 1)
	passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1}))
}

# Several suites want the runtime's objects: with the same words in each, so that the compiler cache makes them once.
cc="${CC:-gcc} -std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -Wall -Wextra -Wpedantic -Werror -fopenmp -I$root/runtime -I$root/runtime/ranks"
plain="-O1 -g"
san="$plain -fsanitize=address,undefined -fno-sanitize-recover=all"
compiles() { # FOLDER FLAGS one | mpi: prints the commands, a line each
	for source in "$root"/runtime/*.c "$root"/runtime/cpu/*.c "$root/runtime/$3"/*.c "$root"/runtime/ranks/*.c; do
		[ "$3" != one ] || [ "${source%/ranks/*}" = "$source" ] || continue
		with=$cc
		[ "${source%/mpi/*}" = "$source" ] || with="mpicc ${cc#* }"
		echo "$with $2 -c $source -o $1/$(basename "$source" .c).o"
	done
}
tree() { # FOLDER OPTION...: olmogen's tree of these, and its trainer: by the CFLAGS of the environment, else as users get it
	"$olmogen" --emit-only -o "$@" && make -s -j2 -C "$1"
}
side_by_side() { # commands from there, a line each
	xargs -P 2 -d '\n' -n 1 sh -c
}

# The glibc that a program needs, by the versions of its symbols; whether that is as old as it has to be.
newest_glibc() {
	objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1
}
old_glibc() { # TRAINER, which says the same
	needs_glibc=$(newest_glibc "$1")
	[ "$(printf '%s\n2.34\n' "$needs_glibc" | sort -V | tail -n 1)" = 2.34 ] &&
		"$1" info | grep -q "^needs .*glibc $needs_glibc or later"
	is "a trainer needs glibc 2.34 or older, here $needs_glibc, and says so: $1" $?
}

# The last line of a suite, and its status.
suite_end() {
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
}
suite_skip() { # why nothing of it can run here
	echo "skipped: $1"
	echo "0 passed, 0 failed"
	exit 0
}
suite_stop() { # why the rest of it cannot run
	fail "$1"
	suite_end
	exit 1
}
