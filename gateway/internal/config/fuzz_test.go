package config_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/internal/fault"
)

// lineBreak is what ends a line in YAML.
var lineBreak = regexp.MustCompile("\r\n|\n|\r|\u0085|\u2028|\u2029")

// FuzzParse: no text makes the parser panic, what it refuses has a place and a
// reason, and what it accepts is read the same a second time from its own JSON.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add(config.Starter)
	f.Add(config.FullStarter)
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := config.Parse("fuzz.yaml", data)
		if err == nil {
			again(t, cfg)
			return
		}
		var faults *fault.Faults
		if !errors.As(err, &faults) || len(faults.List) == 0 {
			t.Fatalf("error without faults: %v", err)
		}
		lines := 1 + len(lineBreak.FindAll(data, -1))
		last := 0
		for _, fault := range faults.List {
			if fault.Line < 1 || fault.Line > lines || fault.Col < 1 || fault.Problem == "" {
				t.Errorf("fault in a file of %d lines: %+v", lines, fault)
			}
			if fault.Line < last {
				t.Errorf("not in the order of lines: %v", err)
			}
			last = fault.Line
		}
	})
}

// again reads a configuration from its own JSON, which is YAML too.
func again(t *testing.T, cfg *config.Config) {
	t.Helper()
	text := asJSON(t, cfg)
	if strings.Contains(text, "$") {
		return // which a file would have to write twice
	}
	next, err := config.Parse("fuzz.yaml", []byte(text))
	if err != nil {
		t.Fatalf("refuses what it accepted before: %v\n%s", err, text)
	}
	if got := asJSON(t, next); got != text {
		t.Errorf("reads something else from the same:\n%s\n%s", text, got)
	}
}

func asJSON(t *testing.T, cfg *config.Config) string {
	t.Helper()
	text, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// FuzzDocument: whatever is accepted names a line for any path.
func FuzzDocument(f *testing.F) {
	f.Add([]byte("a: &x {b: [1, 0x1f, .5, ~, on]}\nc: *x\n"))
	f.Add([]byte(`{"a": [1, 2, {"b": "\u00e9"}]}`))
	f.Add([]byte("- 2020-01-01\n- .inf\n- !!binary aGk=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, faults := config.ParseDocument("fuzz.yaml", data)
		switch {
		case root == nil && faults.Len() == 0:
			t.Fatal("neither a tree nor faults")
		case root != nil && faults.Len() > 0:
			t.Fatalf("a tree with faults: %v", faults.Err(""))
		case root != nil:
			if at := root.Where(fault.Path{"a", "b", "0", "c"}); at.Line < 1 || at.Col < 1 {
				t.Errorf("no place: %+v", at)
			}
		}
	})
}
