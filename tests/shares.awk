# Reads what a trainer's bench prints. Fails unless the times and shares of its table, none of them negative, add up to
# the last line's, and the step's median lies in its range.
/^a step, operator by operator / { on = 1; next }
/ms a step, .* the median of / {
	for (i = 1; i <= NF; i++)
		if ($i == "them,") { low = $(i + 1); high = $(i + 3) }
	if (!(low > 0 && low <= $1 && $1 <= high))
		wrong = wrong "; median " $1 " of " low " to " high
	median = 1
}
on && match($0, / +-?[0-9.]+ +-?[0-9.]+%/) {
	split(substr($0, RSTART, RLENGTH), x, " ")
	if (/^\(all of them\)/) { on = 0; all = x[1]; share = x[2]; next }
	rows++; ms += x[1]; sum += x[2]
	if (x[1] < 0 || x[2] < 0)
		wrong = wrong "; negative: " $0
}
END {
	if (rows < 2 || !median || ms - all > 0.001 * rows || all - ms > 0.001 * rows || sum - 100 > 0.05 * rows + 0.1 ||
	    100 - sum > 0.05 * rows + 0.1 || share != "100.0%")
		wrong = wrong "; " rows " rows of " ms " ms and " sum " % in all of " all " ms, " share
	if (wrong) { print "bench: " substr(wrong, 3); exit 1 }
}
