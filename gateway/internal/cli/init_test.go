package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	out, _, err := run(NewInitCommand(), "", file)
	if err != nil || !strings.Contains(out, "wrote "+file) {
		t.Fatalf("init: %q, %v", out, err)
	}
	if _, errs, err := run(NewCheckCommand(), "", file); err != nil {
		t.Errorf("check refuses what init wrote: %v\n%s", err, errs)
	}
	text, _, err := run(NewInitCommand(), "")
	if written, _ := os.ReadFile(file); err != nil || text != string(written) || text == "" {
		t.Errorf("standard output differs from the file (%v):\n%s", err, text)
	}
}

func TestInitOverwritesOnlyByForce(t *testing.T) {
	file := write(t, "weir.yaml", "mine")
	_, _, err := run(NewInitCommand(), "", file)
	if err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("init over a file: %v, want a hint at --force", err)
	}
	if text, _ := os.ReadFile(file); string(text) != "mine" {
		t.Errorf("init changed the file: %q", text)
	}
	if _, _, err := run(NewInitCommand(), "", "--force", file); err != nil {
		t.Errorf("init --force: %v", err)
	}
	if text, _ := os.ReadFile(file); !strings.Contains(string(text), "upstreams:") {
		t.Errorf("init --force wrote %q", text)
	}
	if _, _, err := run(NewInitCommand(), "", filepath.Join(file, "x")); err == nil {
		t.Error("init below a file: no error")
	}
}

func TestSchema(t *testing.T) {
	out, _, err := run(NewSchemaCommand(), "")
	if err != nil || !strings.Contains(out, `"$schema": "https://json-schema.org/draft/2020-12/schema"`) {
		t.Errorf("schema: %v\n%.200s", err, out)
	}
}
