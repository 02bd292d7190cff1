package config_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/plain"
)

// What weir check says is read by somebody who is stuck: its sentences are as short as those of the docs.
// TestTextsArePlain of internal/deptest reads literals. This one reads the golden files, where messages stand
// as a user gets them.
func TestMessagesArePlain(t *testing.T) {
	judged := 0
	for _, pattern := range []string{"testdata/mistakes/*.txt", "testdata/faults/*.want"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files are %s: %v", pattern, err)
		}
		for _, file := range files {
			for _, m := range message.FindAllStringSubmatch(string(read(t, file)), -1) {
				judged++
				for _, fault := range plain.Faults(plain.Printed(m[1])) {
					t.Errorf("%s: %s", file, fault)
				}
			}
		}
	}
	if judged < 300 {
		t.Errorf("only %d messages were found", judged)
	}
}

// The starters explain settings to somebody who has never seen one.
func TestStartersArePlain(t *testing.T) {
	for _, name := range []string{"starter.yaml", "starter-full.yaml"} {
		all := plain.Printed(explained(string(read(t, name))))
		for _, fault := range plain.Faults(all) {
			t.Errorf("%s: %s", name, fault)
		}
		if len(all) < 15 {
			t.Errorf("%s: only %d sentences were found", name, len(all))
		}
	}
}

// explained is what the comments of a file say, those of one place in a paragraph. "#key:" is a setting.
func explained(file string) string {
	var b strings.Builder
	for line := range strings.Lines(file) {
		m := comment.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil || m[1] != "" {
			b.WriteString("\n\n") // the comment beside a setting is one by itself
		}
		if m != nil {
			b.WriteString(m[2] + "\n")
		}
	}
	return b.String()
}

var (
	message = regexp.MustCompile(`(?m)^(?:[\w.-]+:)?\d+:\d+: (?:warning: )?(.*)$`)
	comment = regexp.MustCompile(`^\s*(#?[^#\s].*)?#\s+(\S.*)$`)
)
