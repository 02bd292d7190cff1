package cli

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Help is read in a hurry: no sentence of it has more than 25 words, which is what the docs are held to.
func TestHelpIsPlain(t *testing.T) {
	root := NewRootCommand("")
	judged := 0
	judge := func(where, text string) {
		for _, s := range sentencesOf(text) {
			judged++
			if n := len(strings.Fields(s)); n > 25 {
				t.Errorf("%s: %d words, and 25 are the most: %s", where, n, s)
			}
		}
	}
	for _, cmd := range append(withSubcommands(root), root) {
		path := cmd.CommandPath()
		judge(path, cmd.Short)
		judge(path, cmd.Long)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { judge(path+" --"+f.Name, f.Usage) })
	}
	judge("weir sim", simHelp) // the list before it is the scenarios' own text, as in docs/reference/scenarios.md
	if judged < 150 {
		t.Errorf("only %d sentences were found", judged)
	}
}

var (
	quoted    = regexp.MustCompile("`[^`]*`|\"[^\"]*\"")
	paragraph = regexp.MustCompile(`\n\s*\n|\n {2,}`) // a row of a table is one by itself
	endOf     = regexp.MustCompile(`[.!?]["')]*\s+|:\n`)
)

// sentencesOf takes a text of the help apart. What is quoted counts as one word.
func sentencesOf(text string) (all []string) {
	for _, part := range paragraph.Split(quoted.ReplaceAllString(text, "code"), -1) {
		for _, s := range endOf.Split(part, -1) {
			if s = strings.Join(strings.Fields(s), " "); s != "" {
				all = append(all, s)
			}
		}
	}
	return all
}
