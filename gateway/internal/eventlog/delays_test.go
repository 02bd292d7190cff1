package eventlog

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A bucket has a line when it begins to delay and one when nobody has been delayed for a while, however often it does between.
func TestDelays(t *testing.T) {
	out := new(logBuffer)
	l := &New(slog.New(slog.NewTextHandler(out, nil)), none).delays
	now := time.Unix(1e9, 0)
	alice := Delay{Cluster: "orders", Quota: "produce", Gate: "in", Rule: "user=*", Bucket: "in/user=alice", User: "alice", Client: "app", Wait: 1500 * time.Millisecond}
	for range 30 {
		l.add(alice, now)
		now = now.Add(time.Second)
		l.tick(now)
	}
	const about = "cluster=orders quota=produce gate=in rule=\"user=*\" bucket=\"in/user=alice\" user=alice client=app "
	if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `level=WARN msg="a quota begins to delay clients" `+about+"wait=1.5s\n") {
		t.Fatalf("%s", text)
	}
	alice.Wait = 4 * time.Second
	l.add(alice, now)
	l.tick(now.Add(4*time.Second + endAfter - 1))
	if text := out.String(); strings.Count(text, "\n") != 1 {
		t.Fatalf("it has not ended:\n%s", text)
	}
	l.tick(now.Add(4*time.Second + endAfter))
	l.tick(now.Add(time.Hour))
	if text := out.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `level=INFO msg="a quota no longer delays clients" `+about+"times=31 longest_wait=4s for=34s\n") {
		t.Fatalf("%s", text)
	}
	l.add(alice, now.Add(time.Hour))
	if text := out.String(); strings.Count(text, "begins to delay") != 2 {
		t.Errorf("again:\n%s", text)
	}
}

// Who invents names gets neither lines nor memory without bound, and the number of the others is told.
func TestDelaysAreBounded(t *testing.T) {
	out := new(logBuffer)
	l := &New(slog.New(slog.NewTextHandler(out, nil)), none).delays
	now := time.Unix(1e9, 0)
	l.tick(now)
	const names = 100_000
	for i := range names {
		l.add(Delay{Cluster: "orders", Quota: "fetch", Bucket: fmt.Sprint("out/client=", i), Client: strings.Repeat("x", 10_000), Wait: time.Hour}, now)
		if i%1000 == 0 {
			now = now.Add(time.Second)
			l.tick(now)
		}
	}
	l.tick(now.Add(summaryEvery))
	text := out.String()
	began := strings.Count(text, "begins to delay")
	if most := mostDelayLines * 12; began > most || began > mostDelays || began != len(l.buckets) || began < mostDelayLines {
		t.Errorf("%d lines, %d buckets", began, len(l.buckets))
	}
	unnamed := 0
	for line := range strings.Lines(text) {
		if _, n, ok := strings.Cut(line, "delays_since_the_last_line="); ok {
			var of int
			if _, err := fmt.Sscan(n, &of); err != nil {
				t.Fatal(err)
			}
			unnamed += of
		}
	}
	if began+unnamed != names {
		t.Errorf("%d lines, and %d are told as a number, of %d", began, unnamed, names)
	}
	for i := range 2 * mostDelays { // over a long time, all of them still delay
		now = now.Add(summaryEvery)
		l.tick(now)
		l.add(Delay{Bucket: fmt.Sprint("more", i), Wait: 100 * time.Hour}, now)
	}
	if len(l.buckets) != mostDelays {
		t.Errorf("%d buckets are kept", len(l.buckets))
	}
}
