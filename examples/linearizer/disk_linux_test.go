package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// smallDisk is a file system of 8 MB, or none where this process may not mount one.
func smallDisk(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=8m")
	if errors.Is(err, syscall.EPERM) {
		t.Skip("only root may mount a small file system")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// fill takes all that is left of a file system, and returns how to give it back.
func fill(t *testing.T, folder string) (empty func()) {
	t.Helper()
	name := filepath.Join(folder, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// When the disk of the store is full the processors stand still, so the lag rises and the API admits less. With room on
// it all of that comes back, and nothing is lost.
func TestDiskFull(t *testing.T) {
	s := newSystem(t)
	folder := smallDisk(t)
	s.path = filepath.Join(folder, "store.db")
	s.processor(nil)
	s.processor(nil)
	gate, err := openAdmission(admissionConfig{controller: byLine, min: 1, max: 8, target: 10, critical: 40, every: 50 * time.Millisecond}, s.brokers, s.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.close)
	a := s.api(1, func(cfg *apiConfig) { cfg.gate, cfg.overdue = gate, 50*time.Millisecond })
	const databases = 10
	sent := map[string]int{} // batches of each database that were taken
	send := func(database, id string) int {
		body := fmt.Sprintf(`{"id":"%s","events":[{"type":"x","data":"%s"}]}`, id, strings.Repeat("x", 2000))
		code := s.post(a, database, body, "Prefer", "wait=0").code
		if code == 201 || code == 202 {
			sent[database]++
		}
		return code
	}
	round := func(n int) (taken int) {
		for i := range databases {
			if code := send(fmt.Sprintf("db%d", i), fmt.Sprint(n)); code == 201 || code == 202 {
				taken++
			} else if code != 503 {
				t.Errorf("round %d: %d", n, code)
			}
		}
		return taken
	}
	round(0)
	s.until("all is applied before", func() bool { return a.inFlight() == 0 })
	empty := sync.OnceFunc(fill(t, folder))
	defer empty()
	n := 0
	s.until("nobody is admitted, with fewer slots than before", func() bool {
		n++
		return round(n) == 0 && gate.Snapshot().Limit < 8
	})
	if log := s.logged.String(); !strings.Contains(log, "the store cannot be written; trying again") || !strings.Contains(log, "full") {
		t.Error("the processors do not say why they stand still")
	}
	t.Logf("%d rounds, %d in flight, lag %v", n, a.inFlight(), gate.Lag().Value)
	// Asking goes on meanwhile.
	if got := s.get(a, "/v1/databases/db0/batches/0"); got.code != 200 {
		t.Errorf("a result of before: %d %s", got.code, got.body)
	}
	empty()
	s.until("all permits are back", func() bool { return a.inFlight() == 0 })
	s.until("the API admits the most", func() bool { return gate.Snapshot().Limit == 8 })
	for database, want := range sent {
		got := s.get(a, "/v1/databases/"+database+"/events")
		for i, e := range got.Events {
			if e.Revision != int64(i+1) {
				t.Errorf("%s: event %d has revision %d", database, i, e.Revision)
			}
		}
		if len(got.Events) != want {
			t.Errorf("%s: %d batches of %d are in the log", database, len(got.Events), want)
		}
	}
}
