#!/bin/sh
# The rules of the house that a compiler and clang-format do not know. Prints what is wrong, and nothing if all is well.
# Usage: tests/lint.sh
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT

# what is tracked, and what would be with "git add": a rule should speak before the commit
all=$(git ls-files -co --exclude-standard | sort -u | while read -r f; do [ -f "$f" ] && echo "$f"; done)
[ -n "$all" ] || {
	echo "lint: this is not a git work tree"
	exit 1
}
# generated trees and inputs whose odd text is the test are not ours to format
ours=$(echo "$all" | grep -vE '^tests/(gold/[^/]*/|err/|fuzz/seeds/|runtime/[^/]*\.(yaml|err)$)')
pick() { # regular expression of names
	echo "$ours" | grep -E "$1"
}
say() { # text that stands before each line of standard input
	sed "s|^|$1|" >>"$out"
}

top='\.ci|\.clang-format|\.gitignore|LICENSE|Makefile|README\.md'
top="$top|generator|kernels|models|out|runtime|share|templates|tests"
echo "$all" | cut -d/ -f1 | sort -u | grep -vxE "$top" |
	say 'not a known entry of the top level: '

# shellcheck disable=SC2046 # no name of a file here has a blank
{
	grep -nIE '[[:blank:]]+$' $ours | sed 's/^\([^:]*:[0-9]*\):.*/\1: ends with a blank/' | say ''

	# code keeps to 100 columns of tabs of eight; scripts, which carry long messages, to 160, descriptions to 120; prose is free
	awk '{
		limit = FILENAME ~ /\.sh$|^\.ci\// ? 160 : FILENAME ~ /\.lua$/ ? 120 : 100
		n = 0
		for (i = 1; i <= length($0); i++)
			n += substr($0, i, 1) == "\t" ? 8 - n % 8 : 1
		if (n > limit)
			print FILENAME ":" FNR ": has " n " columns, at most " limit
	}' $(pick '(\.(c|h|cu|cuh|def|lua|sh)|^\.ci/run)$') | say ''
	grep -nE '^	* {8}|^ +	' $(pick '\.(c|h|cu|cuh|def)$') |
		sed 's/^\([^:]*:[0-9]*\):.*/\1: is indented by blanks, not tabs/' | say ''
	grep -n '	' $(pick '\.lua$') | sed 's/^\([^:]*:[0-9]*\):.*/\1: has a tab/' | say ''

	grep -nwE 'TODO|FIXME|XXX|HACK|TBD|WIP' $(pick '^(generator|runtime|kernels|templates)/') | say 'unfinished: '
	grep -n 'DESIGN[.]md' $ours /dev/null | say 'a document that is not here: '
	grep -nE '/(hom[e]|User[s]|roo[t]|wor[k])/[A-Za-z]' $ours /dev/null | say 'a path of one machine: '

	# a header that is meant to be included again says "no guard"
	for f in $(pick '^(generator|kernels|runtime)/.*\.h$'); do
		awk '/no guard/ { ok = 1 } /^#/ { ok = ok || /^#ifndef [A-Z0-9_]+_H$/; exit } END { exit !ok }' "$f" ||
			echo "$f: has no include guard"
	done | say ''

	wc -l $(pick '\.(c|h|cu|cuh)$') |
		awk '$2 != "total" && $1 >= 900 { print $2 ": has " $1 " lines, at most 899" }' | say ''
}

# A folder of generator/ is a stage. It includes its own header and those of the folders before it, and of runtime/, and
# its own tables; main.c and what asks the whole pipeline stand above all.
folders='base lang graph shard plan emit build'
for f in $(pick '^generator/.*\.[ch]$' | grep -v '/embed\.c$'); do
	own=$(dirname "${f#generator/}") lower=" $folders "
	[ "$own" = . ] || lower=" ${folders%%"$own"*}$own "
	case " $folders . " in *" $own "*) ;; *) echo "generator/$own: is no stage, which lint.sh knows in their order" ;; esac
	case $f in
	generator/*/*.c) grep -q "^#include \"$own/$own.h\"" "$f" || echo "$f: does not include its stage's header, $own/$own.h" ;;
	generator/*/*.h) [ "$f" = "generator/$own/$own.h" ] || echo "$f: a stage has one header, $own/$own.h" ;;
	esac
	sed -n 's/^#include "\([^"]*\)".*/\1/p' "$f" | while read -r i; do
		case $i in
		*/*) [ -f "generator/$i" ] && case $lower in *" ${i%/*} "*) continue ;; esac ;;
		*) [ -f "$(dirname "$f")/$i" ] || [ -f "runtime/$i" ] && continue ;;
		esac
		echo "$f: includes $i, which is not of $own or a stage before it ($folders)"
	done
done | say ''

# What stands in a header's part "private to this folder" is called by no other folder.
for stage in $folders; do
	sed -n '/private to this folder/,$s/.*\<\([a-z_0-9]*\)(.*/\1/p' "generator/$stage/$stage.h" | while read -r name; do
		grep -lE "(^|[^a-z_0-9.>])$name\(" generator/*.c generator/*/*.c | grep -v "^generator/$stage/" |
			sed "s|$|: calls $name, which is private to generator/$stage|"
	done
done | say ''

grep -nE 'diag_(error|note|help)' generator/remedy.c | say 'remedies are answers, who asks reports: generator/remedy.c:'

# Files call down, too: no two of them need each other. What each has and needs is in its object file.
for f in $(pick '^generator/.*\.c$' | grep -v '/embed\.c$'); do
	o=build/${f%.c}.o
	[ -f "$o" ] || { echo "$o is missing: lint looks at what make has built" >>"$out"; break; }
	nm -P -g "$o" | sed "s|^|$f |"
done | awk '$3 == "U" { need[$1 " " $2] } $3 != "U" { has[$2] = $1 } END {
	for (n in need) {
		split(n, s, " ")
		if (s[2] in has)
			print s[1], has[s[2]]
	}
}' | sort -u | tsort 2>&1 >/dev/null | sed 's/.*: input contains a loop:/these files need each other:/; s/^tsort: -*:* */	/' | say ''

# names in the guides are those of the code; softsign is HACKING's example of what is not there
# shellcheck disable=SC2046 # no name of a file here has a blank
for guide in generator/HACKING.md runtime/README.md kernels/README.md; do
	grep -o '`[a-z0-9_]*_[a-z0-9_]*`' $guide | tr -d '`' | grep -v softsign | sort -u | while read -r word; do
		grep -qF -- "$word" $(pick '\.(c|h|def|cu|sh|py|mk)$|Makefile$') tests/gold/moe/src/step.c || echo "$guide: no source has the name $word"
	done
done | say ''

# What an op is like stands in its row of op.def. Elsewhere only those who add an op to a graph name it, and nobody
# compares with a name.
grep -nE '([=!]=|case) *OP_[a-z]|OP_[a-z_0-9]+ *[=!]=' $(pick '^generator/.*\.[ch]$') |
	sed 's/^\([^:]*:[0-9]*\):.*/\1: compares with the name of an op, which should be a trait in op.def/' | say ''
grep -nE '\<OP_[a-z]' $(pick '^generator/.*\.[ch]$') | grep -vE '^generator/(graph/(model|grad)|shard/expert)\.c:' |
	sed 's/^\([^:]*:[0-9]*\):.*/\1: names an op, and is none of those who add ops to a graph/' | say ''

# op.def: a rule names an op that is there, with as many arguments as it takes; it may do without the optional
awk '
{
	gsub(/\/\*[^*]*\*\//, "")
	if (comment && !sub(/.*\*\//, ""))
		next
	comment = sub(/\/\*.*/, "")
	text = text $0
}
END {
	n = split(text, row, /OP\(/)
	for (i = 2; i <= n; i++) {
		name = row[i]
		sub(/,.*/, "", name)
		split(row[i], s, "\"")
		inputs[name] = split(s[6], unused, " ")
		least[name] = inputs[name] - gsub(/\?/, "", s[6])
		rest[name] = row[i]
	}
	for (name in rest)
		while (match(rest[name], /= *[a-z_0-9]+\([^)]*\)/)) {
			call = substr(rest[name], RSTART + 1, RLENGTH - 1)
			rest[name] = substr(rest[name], RSTART + RLENGTH)
			op = call
			gsub(/^ *|\(.*/, "", op)
			args = split(substr(call, index(call, "(") + 1), unused, ",")
			if (!(op in inputs))
				print "a rule of " name ": there is no op " op
			else if (args < least[op] || args > inputs[op])
				print "a rule of " name ": " op " takes " inputs[op] " arguments, gets " args
		}
}' generator/graph/op.def | sort | say 'generator/graph/op.def: '

cat "$out"
[ ! -s "$out" ]
