package config_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

var update = flag.Bool("update", false, "write the golden files anew; read the diff before committing it")

// golden compares got with a file, or writes the file under -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\nrun go test -update to write it", err)
	}
	if got != string(want) {
		t.Errorf("%s is not what came out; run go test -update and read the diff\n--- got:\n%s\n--- want:\n%s", file, got, want)
	}
}

// TestFaults holds what a file gets for its mistakes against testdata/faults.
func TestFaults(t *testing.T) {
	files, err := filepath.Glob("testdata/faults/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = config.Parse(filepath.Base(file), data)
			var faults *config.Faults
			if !errors.As(err, &faults) {
				t.Fatalf("error is %v, want *Faults", err)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".want", faults.Error()+"\n")
		})
	}
}
