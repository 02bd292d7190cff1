#!/usr/bin/env bash
# Instructions per operation, which repeat on a busy machine where nanoseconds do
# not: callgrind counts a run of N operations and one of 2N, and the difference
# over N is what one takes. Usage: bench/internal/cost/callgrind.sh [N]
set -euo pipefail
cd "$(dirname "$0")"

n=${1:-20000}
goal_subject=1 # admit + done, fixed limit: weir TryAdmit
goal=45

if ! command -v valgrind >/dev/null; then
	echo "callgrind.sh: valgrind is missing; on Debian: apt-get install valgrind" >&2
	exit 1
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -o "$dir/cost" ../../cmd/cost

# count SUBJECT N: instructions of N operations.
count() {
	GOMAXPROCS=1 GODEBUG=asyncpreemptoff=1 valgrind --tool=callgrind --callgrind-out-file="$dir/out" \
		--toggle-collect='*cost.counted' "$dir/cost" -subject "$1" -ops "$2" >"$dir/log" 2>&1 ||
		{ cat "$dir/log" >&2; return 1; }
	sed -n 's/^.*Collected : \([0-9]*\).*$/\1/p' "$dir/log"
}

printf '%12s  %s\n' 'instructions' 'per operation of'
while IFS=$'\t' read -r subject name; do
	case $name in hand-off*) continue ;; esac # runs on two goroutines; the toggle follows one
	once=$(count "$subject" "$n")
	twice=$(count "$subject" "$((2 * n))")
	each=$(awk -v a="$once" -v b="$twice" -v n="$n" 'BEGIN { printf "%.1f", (b - a) / n }')
	note=
	if [[ $subject == "$goal_subject" ]]; then
		if awk -v e="$each" -v g="$goal" 'BEGIN { exit !(e <= g) }'; then
			note="  (goal ≤ $goal: reached)"
		else
			note="  (goal ≤ $goal: MISSED)"
		fi
	fi
	printf '%12s  %s%s\n' "$each" "$name" "$note"
done < <("$dir/cost" -list)
