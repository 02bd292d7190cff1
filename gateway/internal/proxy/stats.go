package proxy

import "time"

// TargetStats is what has become of the requests to one target. Counters only
// grow, also over reloads that keep the target's URL.
type TargetStats struct {
	Target    string            `json:"target"`
	Requests  uint64            `json:"requests"`
	Failures  map[string]uint64 `json:"failures"` // by kind: connect, timeout, reset, body, status
	Ejections uint64            `json:"ejections"`
	Ejected   bool              `json:"ejected"`
}

// Stats returns the figures of each target, in the order of the configuration.
func (u *Upstream) Stats() []TargetStats {
	stats := make([]TargetStats, 0, len(u.seats))
	for _, s := range u.seats {
		st := TargetStats{
			Target:    s.key,
			Requests:  s.requests.Load(),
			Failures:  make(map[string]uint64, numFailures),
			Ejections: s.ejections.Load(),
			Ejected:   !s.inRotation(),
		}
		for f, name := range failureNames {
			st.Failures[name] = s.failures[f].Load()
		}
		stats = append(stats, st)
	}
	return stats
}

// Abandoned returns how many requests have lost their client while the upstream
// was working on them. It never falls.
func (u *Upstream) Abandoned() uint64 { return u.shared.abandoned.Load() }

// Expect sets how long the upstream is expected to take on routes without an
// answer yet. 0, as at first, means that it is not known.
func (u *Upstream) Expect(d time.Duration) { u.shared.services.guess.Store(int64(d)) }

// Expected returns the moving mean of the time the upstream takes to answer, over
// all routes; 0 before the first answer.
func (u *Upstream) Expected() time.Duration { return u.shared.services.all.value() }
