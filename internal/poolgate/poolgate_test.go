package poolgate

import (
	"strings"
	"testing"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// Pool and limiter fit each other: the limiter never asks for more connections than there are, and may ask for one.
func TestFit(t *testing.T) {
	for _, tt := range []struct {
		name          string
		gate          limit.Config
		conns         int64
		exempt, limit int64 // limit: the ceiling where nothing is fixed, else the limit
		err           string
	}{
		{"a pool of 64", limit.Config{}, 64, 8, 56, ""},
		{"pgx's default", limit.Config{}, 4, 1, 3, ""},
		{"two connections", limit.Config{}, 2, -1, 2, ""},
		{"one connection", limit.Config{}, 1, -1, 1, ""},
		{"exempt places of one's own", limit.Config{Exempt: 2}, 10, 2, 8, ""},
		{"no exempt places", limit.Config{Exempt: -1}, 10, -1, 10, ""},
		{"fixed", limit.Config{Limit: 8}, 10, 2, 8, ""},
		{"no connections", limit.Config{}, 0, 0, 0, "pkg: a pool of 0 connections; open at least 1"},
		{"none left", limit.Config{Name: "db", Exempt: 8}, 8, 0, 0, "pkg: Exempt: 8 will not do; must be below the connections, which are 8"},
		{"fixed above", limit.Config{Name: "db", Limit: 9}, 10, 0, 0, "pkg: Limit: 9 will not do; must be at most 8: there are 10 connections; for exempt work: 2"},
	} {
		gate, err := Fit("pkg", tt.gate, tt.conns)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.err)
			}
			continue
		}
		if err != nil || gate.Exempt != tt.exempt {
			t.Errorf("%s: %d exempt, %v", tt.name, gate.Exempt, err)
			continue
		}
		if gate.Controller == nil {
			if gate.Limit != tt.limit {
				t.Errorf("%s: a limit of %d, want %d", tt.name, gate.Limit, tt.limit)
			}
			continue
		}
		l, err := limit.New(gate)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int64{tt.limit, tt.limit + 1} { // the controller takes it from there
			l.Restore(control.State{Limit: float64(n)})
			if got := l.Snapshot().Limit; got > tt.limit {
				t.Errorf("%s: a limit of %d with a ceiling of %d", tt.name, got, tt.limit)
			}
		}
		l.Restore(control.State{Limit: 1})
		if got := l.Snapshot().Limit; got != 1 {
			t.Errorf("%s: a limit of %d, and one transaction at a time may be best", tt.name, got)
		}
		l.Close()
	}
}
