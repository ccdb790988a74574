# Prints 300,000 bytes of words that are the same on every machine and after every change of the sources: 20 steps of
# training on them are far from ties of a router, which rounding would decide otherwise in another layout.
BEGIN {
	n = split("the a of and to in is rank step token expert layer weight sum it that for each one two not which has are", word, " ")
	for (x = 1; bytes < 300000; bytes += length(out) + 1) {
		x = x * 16807 % 2147483647
		out = word[x % n + 1] (x % 17 ? "" : ".")
		printf "%s%s", out, x % 11 ? " " : "\n"
	}
}
