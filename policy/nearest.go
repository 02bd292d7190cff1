package policy

import "strings"

// suggest returns what to write instead of a word that is not among the known
// ones: the nearest of them, if one is near enough to be what was meant, and
// the list of them all otherwise. many is the plural of what they are.
func suggest(word string, known []string, many string) string {
	if len(known) == 0 {
		return "there are no " + many + " to choose from"
	}
	if n := nearest(word, known); n != "" {
		return "did you mean " + n + "?"
	}
	return "write one of " + list(known)
}

// list joins words for a sentence, and stops where nobody reads on.
func list(words []string) string {
	const most = 12
	if len(words) > most {
		return strings.Join(words[:most], ", ") + ", …"
	}
	return strings.Join(words, ", ")
}

// nearest returns the known word with the smallest edit distance from word, if
// at most a third of its letters differ, else "". It looks no further than a
// reader would.
func nearest(word string, known []string) string {
	const longest, most = 128, 1000
	if len(word) > longest {
		return ""
	}
	known = known[:min(len(known), most)]
	best, bestDistance := "", 0
	for _, k := range known {
		if len(k) > longest {
			continue
		}
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if 3*d <= max(len(word), len(k), 3) && (best == "" || d < bestDistance) {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to turn a into b.
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
