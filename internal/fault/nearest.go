package fault

import "strings"

// Suggest returns what to write instead of an unknown word. It is the nearest known word,
// if that was probably meant, else all of them. many is the plural of what they are.
func Suggest(word string, known []string, many string) string {
	if len(known) == 0 {
		return "there are no " + many + " to choose from"
	}
	if n := Nearest(word, known); n != "" {
		return "did you mean " + n + "?"
	}
	const most = 12
	if len(known) > most {
		return "write one of " + strings.Join(known[:most], ", ") + ", …"
	}
	return "write one of " + strings.Join(known, ", ")
}

// Nearest returns the known word with the smallest edit distance from word. It returns ""
// if more than a third of the letters differ. Case, dashes and underscores do not count.
// It compares with at most a thousand words.
func Nearest(word string, known []string) string {
	const longest, most = 128, 1000
	if len(word) > longest {
		return ""
	}
	same := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }
	best, least := "", 0
	for _, k := range known[:min(len(known), most)] {
		if len(k) > longest {
			continue
		}
		if d := distance(same(word), same(k)); 3*d <= max(len(word), len(k), 3) && (best == "" || d < least) {
			best, least = k, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour to
// turn a into b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			replace := last[j]
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(replace, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
