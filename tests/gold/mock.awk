# From src/launch.h: a mock of each launch function, which prints its name and the offsets of its arguments.
BEGIN {
	print "#include \"launch.h\"\n#include \"trace.h\"\n"
}
/^void launch_/ { text = "" ; inside = 1 }
inside { text = text " " $0 }
inside && /;$/ {
	inside = 0
	gsub(/[ \t]+/, " ", text)
	sub(/^ void /, "", text)
	sub(/;$/, "", text)
	name = text; sub(/\(.*/, "", name)
	args = text; sub(/^[^(]*\(/, "", args); sub(/\)$/, "", args)
	n = split(args, part, ", ")
	list = ""
	for (i = 1; i <= n; i++) {
		word = part[i]; sub(/.*\*/, "", word)
		list = list ", " word
	}
	printf "void\n%s(%s)\n{\n\ttrace(\"%s\", %d%s);\n}\n\n", name, args, name, n, list
}
