package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// TestMistakes holds what users of other products are told against testdata/mistakes. Each file there
// is a product, guesses.txt what anybody may try. A case begins with == and a title; behind -- stands what weir check says, without
// the name of the file. What a case leaves out of a file is added at its end.
func TestMistakes(t *testing.T) {
	files, err := filepath.Glob("testdata/mistakes/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	n := 0
	for _, file := range files {
		var out strings.Builder
		seen := map[string]bool{}
		for _, one := range strings.Split("\n"+string(read(t, file)), "\n== ")[1:] {
			title, rest, _ := strings.Cut(one, "\n")
			text, _, _ := strings.Cut(rest+"\n", "\n--\n")
			text = strings.TrimRight(text, "\n") + "\n"
			if seen[title] {
				t.Errorf("%s: two cases are called %q", file, title)
			}
			seen[title] = true
			n++
			said := mistake(completed(text))
			if said == "" {
				t.Errorf("%s: %s: nothing is said of\n%s", file, title, text)
			}
			out.WriteString("== " + title + "\n" + text + "--\n" + said)
		}
		golden(t, file, out.String())
	}
	if n < 150 {
		t.Errorf("%d mistakes, want 150 or more", n)
	}
}

// completed adds to a part of a file what it needs to be whole. A file about Kafka needs nothing.
func completed(text string) string {
	if strings.HasPrefix(text, "kafka:") {
		return text
	}
	for _, part := range []string{"upstreams: {app: {targets: [http://127.0.0.1:3000]}}", "gates: {api: {limit: auto}}", "routes: [{match: [/], gates: [api], upstream: app}]"} {
		key, _, _ := strings.Cut(part, ":")
		if !regexp.MustCompile(`(?m)^` + key + `:`).MatchString(text) {
			text += part + "\n"
		}
	}
	return text
}

// ofAPart is what is warned of because only a part of a file was written.
var ofAPart = []string{"passes no gate", "no route uses the gate", "no route uses the upstream", "no gate uses the store"}

// mistake returns the faults of a file, or else its warnings.
func mistake(text string) string {
	var b strings.Builder
	cfg, err := config.Parse("FILE", []byte(text))
	if err != nil {
		b.WriteString(strings.ReplaceAll(err.Error(), "FILE:", "") + "\n")
		return b.String()
	}
	dir, err := os.Getwd()
	if err != nil {
		return err.Error()
	}
	for _, n := range cfg.Notes() {
		if !slices.ContainsFunc(ofAPart, func(part string) bool { return strings.Contains(n.Problem, part) }) {
			b.WriteString(strings.ReplaceAll(strings.ReplaceAll(n.Error(), "FILE:", ""), dir+"/", "") + "\n")
		}
	}
	return b.String()
}
