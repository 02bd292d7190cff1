//go:build integration

package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testbed/process"
)

// The command in its shortest form: each part runs, whatever this machine makes of it, and every figure is there.
func TestCommand(t *testing.T) {
	weir := filepath.Join(t.TempDir(), "weir")
	if out, err := exec.CommandContext(t.Context(), "../../scripts/build", weir, "-ldflags", "-s -w").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	nginx, redis := process.Find(".cache/bin/nginx"), process.Find(".cache/bin/redis-server")
	if nginx == "" || redis == "" {
		t.Fatal("there is no nginx or no redis-server in .cache/bin: make parts fetches them")
	}
	var out bytes.Buffer
	b := &bench{weir: weir, nginx: nginx, redis: redis, rounds: 1, turn: 100 * time.Millisecond, rate: 2_000_000, window: time.Second, idle: 50, slow: 4, out: &out}
	if err := b.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	said := out.String()
	for _, want := range []string{
		`\n## What a principal`, `\n\| gateways \| 16 KiB \| produced \| .* decisions/s `, `\n\| gateways \| 1024 KiB \| fetched \| .* decisions/s `, `\n\| brokers alone \| 1024 KiB \| fetched \| `,
		`\n## Plain TCP; relay, broker and client share`, `\n## Plain TCP; .*core for`, `\n## TLS, `,
		`\n\| produce, MB/s \| direct \| [1-9]`, `\n\| produce, MB/s \| nginx \| [1-9]`, `\n\| produce, MB/s \| weir \| [1-9].* µs/MB .*over direct`,
		`\n\| consume, MB/s \| direct \| [1-9]`, `\n\| consume, MB/s \| nginx \| [1-9]`, `\n\| consume, MB/s \| weir \| [1-9].* µs/MB .*over direct`,
		`\n\| round trip, acks=1, p50 µs \| direct \| [1-9]`, `\n\| round trip, acks=1, p50 µs \| weir \| [1-9].* µs/request .*more than direct`,
		`\n## 50 connections that rest`, `\n\| weir \| [1-9].* KiB `, `\n\| weir, TLS \| [1-9]`,
		`\n## 4 clients that read`, `\n\| weir \| [1-9].* MiB `,
	} {
		if !regexp.MustCompile(want).MatchString(said) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if t.Failed() || strings.Contains(said, "NaN") {
		t.Errorf("the output:\n%s", said)
	}
}

// What cannot be measured is refused before anything is started.
func TestArguments(t *testing.T) {
	for _, b := range []bench{
		{rounds: 1, rate: 1e6, turn: time.Second, window: time.Second, idle: 1, slow: 1, parts: []string{"fast"}},
		{rounds: 0, rate: 1e6, turn: time.Second, window: time.Second, idle: 1, slow: 1},
		{rounds: 1, rate: 1e6, turn: time.Millisecond, window: time.Second, idle: 1, slow: 1},
		{rounds: 1, rate: 1e6, turn: time.Second, window: time.Millisecond, idle: 1, slow: 1},
		{rounds: 1, rate: 1e6, turn: time.Second, window: time.Second, idle: 9001, slow: 1},
		{rounds: 1, rate: 1e3, turn: time.Second, window: time.Second, idle: 1, slow: 1},
	} {
		if err := b.run(t.Context()); err == nil || !strings.Contains(err.Error(), "-") {
			t.Errorf("%+v: %v", b, err)
		}
	}
}

// A window ends at the first count that is late enough, and counts for as long as it was. What has no end is none.
func TestWindows(t *testing.T) {
	s := time.Second
	counts := []count{{0, 0}, {1 * s, 100}, {3 * s, 100}, {4 * s, 400}, {5 * s, 500}}
	for _, tt := range []struct {
		length time.Duration
		want   []float64
	}{
		{2 * s, []float64{100. / 3, 0, 400. / 2}},
		{5 * s, []float64{100}},
		{6 * s, nil},
	} {
		if got := windows(counts, tt.length); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.length, got, tt.want)
		}
	}
}
