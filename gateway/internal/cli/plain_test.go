package cli

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/weir-go/weir/internal/plain"
)

// Help is read in a hurry: its sentences are as short as those of the docs.
func TestHelpIsPlain(t *testing.T) {
	root := NewRootCommand("")
	judged := 0
	judge := func(where, text string) {
		all := plain.Printed(text)
		judged += len(all)
		for _, fault := range plain.Faults(all) {
			t.Errorf("%s: %s", where, fault)
		}
	}
	for _, cmd := range append(withSubcommands(root), root) {
		path := cmd.CommandPath()
		judge(path, cmd.Short)
		judge(path, longOf(cmd))
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { judge(path+" --"+f.Name, f.Usage) })
	}
	if judged < 250 {
		t.Errorf("only %d sentences were found", judged)
	}
}
