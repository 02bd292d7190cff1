package sim

import (
	"testing"
	"time"
)

// What phases do to a backend, told by the fates of single requests.
func TestTroubleInPhases(t *testing.T) {
	tests := []struct {
		name, phases, at string
		good, late       uint64
		p999             time.Duration
	}{
		{"as usual", `{"for": "1s"}`, `"0s"`, 1, 0, 10 * time.Millisecond},
		{"three times the work", `{"for": "1s", "work": 3}`, `"0s"`, 1, 0, 30 * time.Millisecond},
		{"the work is that of the arrival", `{"for": "5ms", "work": 3}, {"for": "1s"}`, `"0s"`, 1, 0, 30 * time.Millisecond},
		{"stalled", `{"for": "5ms"}, {"for": "100ms", "stalled": true}, {"for": "1s"}`, `"0s"`, 1, 0, 110 * time.Millisecond},
		{"errors", `{"for": "1s", "errors": {}}`, `"0s"`, 0, 1, time.Millisecond},
		{"errors take time", `{"for": "1s", "errors": {"after": "7ms", "as": "overload"}}`, `"0s"`, 0, 1, 7 * time.Millisecond},
		{"alone there is no conflict", `{"for": "1s", "errors": {"conflict": 1}}`, `"0s"`, 1, 0, 10 * time.Millisecond},
		{"the answer reaches a suspended process late", `{"for": "5ms"}, {"for": "100ms", "suspended": true}, {"for": "1s"}`, `"0s"`, 1, 0, 105 * time.Millisecond},
		{"so does the request", `{"for": "5ms"}, {"for": "100ms", "suspended": true}, {"for": "1s"}`, `"65ms"`, 1, 0, 50 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := summary(t, `{"name": "trouble", `+pool+`, `+guarded+`, "phases": [`+tt.phases+`], "traffic": [{"at": [`+tt.at+`]}]}`)
			if s.Good != tt.good || s.LateShare != float64(tt.late) {
				t.Errorf("good %d, late %v; want %d, %d", s.Good, s.LateShare, tt.good, tt.late)
			}
			if off := s.P999 - tt.p999; off.Abs() > tt.p999/50 {
				t.Errorf("took %v, want %v", s.P999, tt.p999)
			}
		})
	}
}

// A request that conflicts with one inside does its work and fails.
func TestConflicts(t *testing.T) {
	s := summary(t, `{"name": "trouble", `+pool+`, `+guarded+`, "phases": [{"for": "1s", "errors": {"conflict": 1}}], "traffic": [{"at": ["0s", "5ms", "100ms"]}]}`)
	if s.Good != 2 || s.Answered != 3 || s.P999 < 9*time.Millisecond {
		t.Errorf("%d good of %d, in up to %v", s.Good, s.Answered, s.P999)
	}
	within(t, "wasted work", s.WastedShare, 1./3, 1e-9)
	// Of n inside each succeeds with the odds 0.65^(n-1).
	s = summary(t, `{"name": "trouble", `+pool+`, `+guarded+`, "phases": [{"for": "100s", "rps": 2000, "errors": {"conflict": 0.35}}]}`)
	if part := float64(s.Good) / float64(s.Answered); part < 0.63 || part > 0.67 {
		t.Errorf("%.3f succeed", part)
	}
}

// Every law stands still when it is told to, and goes on afterwards.
func TestStalledLaws(t *testing.T) {
	for _, law := range []string{
		`"law": "pool", "workers": 2`, `"law": "cores", "cores": 2`, `"law": "cores", "cores": 2, "discipline": "ps"`,
		`"law": "usl", "sigma": 0.1`, `"law": "mutex", "outside": "10ms"`,
	} {
		s := mustParse(t, `{"name": "stall", "policy": "none", "backend": {`+law+`, "service": {"dist": "constant", "mean": "10ms"}},
			"phases": [{"for": "1s", "rps": 50}, {"for": "1s", "rps": 50, "stalled": true}, {"for": "3s", "rps": 10}],
			"traffic": [{"arrivals": "regular"}], "seeds": [1],
			"goals": [{"metric": "goodput", "from": "1s", "to": "2s"}, {"metric": "settle", "from": "2s"}]}`)
		r := mustRun(t, s).Runs[0]
		stalled, all := r.Windows[1], r.Windows[0]
		if stalled.Answered > 2 || stalled.Capacity != 0 {
			t.Errorf("%s: %d answers while it stood still, capacity %v", law, stalled.Answered, stalled.Capacity)
		}
		if all.Good+1 < all.Offered {
			t.Errorf("%s: %d of %d served in the end", law, all.Good, all.Offered)
		}
	}
}

// A client that leaves while the process is suspended never reaches the gate.
func TestSuspendedClientsLeave(t *testing.T) {
	s := summary(t, `{"name": "suspended", `+pool+`, `+guarded+`,
		"phases": [{"for": "100ms", "suspended": true}, {"for": "1s"}],
		"traffic": [{"timeout": "30ms", "at": ["0s", "90ms"]}]}`)
	if s.Admitted != 1 || s.GaveUp != 1 || s.Good != 1 {
		t.Errorf("admitted %d, gave up %d, good %d; want 1, 1, 1", s.Admitted, s.GaveUp, s.Good)
	}
}

// Slower for good: half the capacity by requests, the same by work.
func TestGoodputByWork(t *testing.T) {
	s := summary(t, `{"name": "work", `+pool+`, "policy": "none", "phases": [{"for": "20s", "rps": 50, "work": 2}], "traffic": [{"arrivals": "regular"}]}`)
	within(t, "capacity", s.Capacity, 100, 1e-9)
	within(t, "goodput", s.Ratio, 0.5, 0.01)
	within(t, "goodput by work", s.WorkRatio, 0.5, 0.01)
}

// A shape keeps its form and takes the backend's mean; patience is in units of
// the backend's latency.
func TestShapeAndPatience(t *testing.T) {
	s := mustParse(t, `{"name": "shape", `+pool+`, "policy": "none", "seeds": [1],
		"phases": [{"for": "1s"}],
		"traffic": [
			{"at": ["0s"], "work": 3, "shape": {"dist": "constant", "mean": "1h"}},
			{"at": ["500ms"], "work": 3, "patience": 2.5}]}`)
	w := mustRun(t, s).Runs[0].Windows[0]
	if off := w.P999 - 30*time.Millisecond; off.Abs() > time.Millisecond || w.Good != 1 || w.Abandoned != 1 {
		t.Errorf("took %v, good %d, abandoned %d; want 30ms, 1, 1", w.P999, w.Good, w.Abandoned)
	}
	if got := s.Traffic[1].Useful(&s.Backend.Backend); got != 25*time.Millisecond {
		t.Errorf("useful for %v, want 25ms", got)
	}
}

// A flushed cache is empty, sends everything to the backend, and fills again.
func TestCache(t *testing.T) {
	s := mustParse(t, `{"name": "cache", "policy": "none", "seeds": [1],
		"backend": {"law": "pool", "workers": 50, "service": {"dist": "constant", "mean": "10ms"}},
		"phases": [{"for": "40s", "rps": 1000}],
		"traffic": [{"cache": {"keys": 1000, "zipf": 1, "size": 600, "flush": ["20s"]}}],
		"goals": [{"metric": "refill", "from": "0s", "to": "20s", "level": 0.8}, {"metric": "refill", "from": "20s", "to": "40s", "level": 0.8}]}`)
	r := mustRun(t, s)
	before, after := r.Runs[0].Windows[1], r.Runs[0].Windows[2]
	if share := float64(before.Hits) / float64(before.Hits+before.Offered); share < 0.85 || share > 0.95 {
		t.Errorf("%.3f of the requests were hits before the flush, want about .9", share)
	}
	if after.Offered <= before.Offered {
		t.Errorf("%d misses after the flush, %d before", after.Offered, before.Offered)
	}
	full, flushed := r.Spread(s.Goals[0]).Median, r.Spread(s.Goals[1]).Median
	if full != 0 || flushed <= 0 || flushed > 10 {
		t.Errorf("refilled after %v s before the flush and %v s after it; want 0 and a few", full, flushed)
	}
}

// All calls of a task are about the key that its client asked for, whoever else has a cache.
func TestCacheOfTasks(t *testing.T) {
	s := mustParse(t, `{"name": "cache", "policy": "none",
		"backend": {"law": "pool", "workers": 2, "service": {"dist": "constant", "mean": "10ms"}}, "phases": [{"for": "1s"}], "traffic": [
			{"name": "other", "at": ["1ms"], "cache": {"keys": 1000000, "zipf": 0.000001, "size": 1}},
			{"name": "task", "calls": 2, "at": ["200ms"], "cache": {"keys": 1000, "zipf": 0.000001, "size": 1}}]}`)
	w, err := newWorld(s, 1, &Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := w.classes[1].cache
	if _, err := w.play(t.Context(), s, 1); err != nil {
		t.Fatal(err)
	}
	if len(c.held) != 1 || c.held[0] != c.key || c.key == 0 {
		t.Errorf("the cache holds %v after a task about key %d", c.held, c.key)
	}
}

// Slots that are given back when the client leaves bring the backend over the
// limit; slots that are held do not.
func TestOverLimit(t *testing.T) {
	for onAbandon, want := range map[string]float64{"hold": 0, "release": 2} {
		s := summary(t, `{"name": "leave", "on_abandon": "`+onAbandon+`",
			"backend": {"law": "pool", "workers": 2, "service": {"dist": "constant", "mean": "100ms"}}, `+guarded+`,
			"phases": [{"for": "1s"}],
			"traffic": [{"timeout": "30ms", "at": ["0s", "1ms", "50ms", "51ms"]}]}`)
		if s.OverLimit != want {
			t.Errorf("%s: %v over the limit, want %v", onAbandon, s.OverLimit, want)
		}
	}
}

func TestSeries(t *testing.T) {
	s := mustParse(t, `{"name": "series", `+pool+`, `+guarded+`, "seeds": [1],
		"phases": [{"for": "10s", "rps": 100}, {"for": "10s", "rps": 50, "capacity": 0.5}], "traffic": [{"arrivals": "regular"}]}`)
	got := mustRun(t, s).Series(0, 20)
	if got.Width != time.Second || len(got.Offered) != 20 || len(got.P99) != 20 {
		t.Fatalf("%d columns of %v, want 20 of 1s", len(got.Offered), got.Width)
	}
	within(t, "offered at first", got.Offered[2], 100, 0.02)
	within(t, "good at last", got.Good[18], 50, 0.02)
	within(t, "capacity at first", got.Capacity[0], 200, 1e-9)
	within(t, "capacity at last", got.Capacity[19], 100, 1e-9)
	within(t, "limit", got.Limit[10], 2, 1e-9)
	if (&Report{Runs: []*Result{{}}}).Series(0, 20).Width != 0 {
		t.Error("a run without bins has columns")
	}
}

func TestParseFindsFaultsOfTrouble(t *testing.T) {
	_, err := ParseScenario([]byte(`{
		"name": "bad", "backend": "B1", "policy": "none",
		"phases": [{"for": "10s", "work": -1, "stalled": true, "capacity": 0.5, "errors": {"share": 2, "after": "-1s", "as": "ok", "conflict": 0.5}}],
		"traffic": [
			{"patience": 2, "leaves": true, "cache": {"keys": 0, "zipf": 0, "size": 3, "flush": ["-1s"]}},
			{"work": -1, "shape": {"dist": "constant"}},
			{"shape": {"dist": "constant", "mean": "1s"}, "service": {"dist": "constant", "mean": "1s"}},
			{"phases": [{"for": "1s", "suspended": true}]}]
	}`))
	wantFaults(t, err, "phases[0].work: is -1", "phases[0].stalled: ", "phases[0].errors.share: is 2", "phases[0].errors.after: is -1s", "phases[0].errors.conflict: cannot go together with share or after", `phases[0].errors.as: "ok"`,
		"traffic[0].patience: ", "traffic[0].cache.keys: is 0", "traffic[0].cache.zipf: is 0", "traffic[0].cache.size: 3", "traffic[0].cache.flush[0]: is -1s",
		"traffic[1].work: is -1", "traffic[1].shape.mean", "traffic[2].service: ", "traffic[3].phases[0]: ")

	// A 0 that was written is not what stands for one that was not.
	_, err = ParseScenario([]byte(`{
		"name": "bad", "backend": "B1", "policy": "none",
		"phases": [{"for": "10s", "work": 0, "capacity": 0, "errors": {"share": 0}}, {"for": "10s", "errors": {"conflict": 0}}],
		"traffic": [{"share": 0, "work": 0}],
		"goals": [{"metric": "calm", "level": 0, "alone_at": 0}]
	}`))
	wantFaults(t, err, "phases[0].work: is 0", "phases[0].capacity: is 0", "phases[0].errors.share: is 0", "phases[1].errors.conflict: is 0",
		"traffic[0].share: is 0", "traffic[0].work: is 0", "goals[0].level: is 0", "goals[0].alone_at: is 0")
}
