package cores

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A process that is started pinned may use that core only. The thread that started it gets its cores back.
func TestPinned(t *testing.T) {
	test, rest, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	before, err := affinity()
	if err != nil {
		t.Fatal(err)
	}
	if !before.has(test) || !before.has(rest) {
		t.Fatalf("cores %d and %d are not among those of this thread, %b", test, rest, before)
	}
	var status []byte
	failed := errors.New("as start says")
	err = Pinned(test, func() (err error) {
		if status, err = exec.Command("cat", "/proc/self/status").Output(); err != nil {
			return err
		}
		if after, _ := affinity(); after.has(rest) != (rest == test) {
			t.Errorf("the thread may still use core %d", rest)
		}
		return failed
	})
	if err != failed {
		t.Errorf("Pinned returned %v, not the error of start", err)
	}
	want := set{}
	want.add(test)
	if got := listed(string(status)); got != want {
		t.Errorf("the process may use %b, not just core %d", got, test)
	}
	if after, _ := affinity(); after != before {
		t.Errorf("afterwards the thread may use %b, before it was %b", after, before)
	}
}

// All threads of the process, those that begin meanwhile too, may use that core only.
func TestPinSelf(t *testing.T) {
	test, _, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if err := PinSelf(test); err != nil {
		t.Fatal(err)
	}
	want := set{}
	want.add(test)
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d threads, %v", len(files), err)
	}
	for _, file := range files {
		status, err := os.ReadFile(file)
		if err == nil && listed(string(status)) != want {
			t.Errorf("%s: not just core %d", file, test)
		}
	}
}

// listed reads the line Cpus_allowed_list of a process that may use one core.
func listed(status string) (s set) {
	for line := range strings.Lines(status) {
		if list, found := strings.CutPrefix(line, "Cpus_allowed_list:"); found {
			core := 0
			for _, digit := range strings.TrimSpace(list) {
				if digit < '0' || digit > '9' {
					return set{}
				}
				core = 10*core + int(digit-'0')
			}
			s.add(core)
		}
	}
	return s
}
