package eventlog

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// delays turns the waits that clients of Kafka are told into two lines for each bucket of a quota. One says that it begins to
// delay, one that it has ended. Clients choose their names, so both lines and buckets are bounded; the rest is told as a number.
type delays struct {
	log *slog.Logger

	mu      sync.Mutex
	buckets map[bucket]*delay
	lines   int       // since summed
	unnamed int       // waits of buckets without a line of their own, since then
	summed  time.Time // when the rest was told last
}

// bucket is the bucket of a quota of a cluster.
type bucket struct{ cluster, quota, name string }

// delay is a bucket that delays now.
type delay struct {
	last    Delay
	since   time.Time
	until   time.Time // when its last wait is over
	times   int
	longest time.Duration
}

const (
	// endAfter is how long a bucket must delay nobody, after its last wait is over, to count as ended.
	endAfter = 10 * time.Second
	// mostDelays bounds the buckets with lines of their own at a time, and mostDelayLines those that get them in a summaryEvery.
	mostDelays     = 1000
	mostDelayLines = 20
)

// Delay is a wait that a client of Kafka has been told.
type Delay struct {
	Cluster, Quota     string // produce, fetch or mutations
	Gate, Rule, Bucket string
	User, Client       string
	Wait               time.Duration
}

func (d *Delay) attrs() []any {
	return []any{"cluster", d.Cluster, "quota", d.Quota, "gate", d.Gate, "rule", d.Rule, "bucket", Clip(d.Bucket), "user", Clip(d.User), "client", Clip(d.Client)}
}

// Delayed logs that a quota begins to delay. Further waits of the same bucket have no line until that has ended.
func (l *Log) Delayed(d Delay) { l.delays.add(d, time.Now()) }

func (l *delays) add(d Delay, now time.Time) {
	d.Client, d.User = strings.Clone(Clip(d.Client)), strings.Clone(Clip(d.User)) // keeps no more of a long name
	of := bucket{d.Cluster, d.Quota, d.Bucket}
	l.mu.Lock()
	b := l.buckets[of]
	begins := b == nil && len(l.buckets) < mostDelays && l.lines < mostDelayLines
	switch {
	case begins:
		b = &delay{since: now}
		l.buckets[of] = b
		l.lines++
	case b == nil:
		l.unnamed++
	}
	if b != nil {
		b.last, b.times, b.longest = d, b.times+1, max(b.longest, d.Wait)
		if until := now.Add(d.Wait); until.After(b.until) {
			b.until = until
		}
	}
	l.mu.Unlock()
	if begins {
		l.log.Warn("a quota begins to delay clients", append(d.attrs(), "wait", d.Wait.Round(time.Millisecond).String())...)
	}
}

// tick writes the lines of what has ended.
func (l *delays) tick(now time.Time) {
	var ended []*delay
	unnamed := 0
	l.mu.Lock()
	for of, b := range l.buckets {
		if now.Sub(b.until) >= endAfter {
			delete(l.buckets, of)
			ended = append(ended, b)
		}
	}
	if now.Sub(l.summed) >= summaryEvery {
		unnamed, l.unnamed, l.lines, l.summed = l.unnamed, 0, 0, now
	}
	l.mu.Unlock()
	slices.SortFunc(ended, func(a, b *delay) int { return a.since.Compare(b.since) })
	for _, b := range ended {
		l.log.Info("a quota no longer delays clients", append(b.last.attrs(), "times", b.times, "longest_wait", b.longest.Round(time.Millisecond).String(),
			"for", b.until.Sub(b.since).Round(time.Second).String())...)
	}
	if unnamed > 0 {
		l.log.Warn("too many buckets delay clients to give each a line; the other delays are only counted, here and in weir_kafka_delays_total", "delays_since_the_last_line", unnamed)
	}
}
