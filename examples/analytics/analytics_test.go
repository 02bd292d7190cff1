//go:build integration

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testbed/postgres"
)

// The pods are processes of this test binary.
func TestMain(m *testing.M) {
	if spec := os.Getenv(podVariable); spec != "" {
		exit(servePod(context.Background(), spec))
		return
	}
	os.Exit(withFolder(m))
}

// gateway is where the gateway is built, for the first test that needs it.
var gateway string

func withFolder(m *testing.M) int {
	folder, err := os.MkdirTemp("", "weir-analytics-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	gateway = filepath.Join(folder, "weir")
	return m.Run()
}

var build = sync.OnceValue(func() error {
	if text, err := exec.Command("../../scripts/build", gateway, "-ldflags", "-s -w").CombinedOutput(); err != nil {
		return fmt.Errorf("scripts/build: %w\n%s", err, text)
	}
	return nil
})

// part returns the path of a program that make parts installs.
func part(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", ".cache", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil && os.Getenv("CI") == "" {
		t.Skipf("there is no %s in .cache/bin: make parts installs it where it can be had", name)
	}
	return path
}

// Envoy finds no fault in either form of its configuration, and no word is left to fill in.
func TestEnvoyConfiguration(t *testing.T) {
	program := part(t, "envoy")
	for _, s := range []setup{{balance: "LEAST_REQUEST"}, {balance: "RANDOM", gateway: oneGate}} {
		text := envoyFile(s.gateway != "", "{{callers}}", "19001", "{{admin}}", "19002", "{{pod0}}", "19003", "{{pod1}}", "19004", "{{weir}}", "19005",
			"{{balance}}", s.balance, "{{host_attempts}}", "50")
		if strings.Contains(text, "{{") || strings.Contains(text, "envoy.filters.http.ext_proc") != (s.gateway != "") {
			t.Errorf("the configuration for %+v is\n%s", s, text)
		}
		file := filepath.Join(t.TempDir(), "envoy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(program, "--mode", "validate", "-c", file).CombinedOutput(); err != nil {
			t.Errorf("envoy --mode validate: %v\n%s", err, out)
		}
	}
}

// quick is the short form of the command, with the parts that make parts has installed.
func quick(t *testing.T, out io.Writer) *options {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return &options{
		weir: gateway, envoy: part(t, "envoy"), postgres: part(t, "postgres"),
		metrics: "127.0.0.1:0", hostAttempts: 50, quick: true, out: out, runs: setups[:6],
	}
}

// remember keeps the identifiers of all processes that are started, and in the end wants none to be
// left.
func remember(t *testing.T) {
	t.Helper()
	var mu sync.Mutex
	var pids []int
	started = func(pid int) {
		mu.Lock()
		defer mu.Unlock()
		pids = append(pids, pid)
	}
	t.Cleanup(func() {
		started = func(int) {}
		if len(pids) == 0 {
			t.Error("no process was started")
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("process %d is left: %v", pid, err)
			}
		}
	})
}

// Whatever the machine can do: each call has an answer, all who count agree, a refusal has details,
// and a refused call is tried again on the other pod.
func TestRuns(t *testing.T) {
	remember(t)
	var out bytes.Buffer
	o := quick(t, &out)
	o.plots = t.TempDir()
	results, err := analytics(t.Context(), o)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		t.Run(r.name, func(t *testing.T) {
			sent, refused := r.answered(t)
			c := r.counts
			var pods podCounts
			for _, p := range c.pods {
				pods.Calls += p.Calls
				pods.Refused += p.Refused
				pods.Retries += p.Retries
				pods.SameAgain += p.SameAgain
			}
			var rejected, admitted int64
			for _, g := range c.weir {
				for _, n := range g.Rejected {
					rejected += n
				}
				admitted += g.Admitted
			}
			for _, same := range []struct {
				what      string
				got, want int64
			}{
				{"calls that Envoy received, and those sent", c.envoy["http.callers.downstream_rq_total"], sent},
				{"calls that the pods received, and those that Envoy sent them", pods.Calls, c.envoy["cluster.pods.upstream_rq_total"]},
				{"retries that the pods received, and those that Envoy made", pods.Retries, c.envoy["cluster.pods.upstream_rq_retry"]},
				{"calls at the pods, and those let in with their retries", pods.Calls, sent - rejected + pods.Retries},
				{"refusals but those that were tried again, and what the callers got", rejected + pods.Refused - pods.Retries, refused},
				{"refused calls that were tried again on the same pod", pods.SameAgain, 0},
			} {
				if same.got != same.want {
					t.Errorf("%s: %d and %d", same.what, same.got, same.want)
				}
			}
			if r.gateway != "" && admitted+rejected != sent {
				t.Errorf("the gateway's gates decided about %d calls of %d", admitted+rejected, sent)
			}
			if svg, err := os.ReadFile(filepath.Join(o.plots, "analytics-"+r.name+".svg")); err != nil || !strings.HasPrefix(string(svg), "<svg") {
				t.Errorf("no plot: %v", err)
			}
		})
	}
}

// answered wants each call to have been served or refused, and returns how many there were of both
// together, and of refusals.
func (r *result) answered(t *testing.T) (sent, refused int64) {
	t.Helper()
	for _, l := range r.lanes {
		all := l.between(0, r.plan.warm+r.plan.calm+r.plan.wave+r.plan.end)
		var seconds int64
		for i := range l.meter.Seconds() { // also those in which the load left late
			s := l.meter.Second(i)
			seconds += s.Offered
			refused += s.Refused
			if s.OK+s.Refused != s.Offered {
				t.Errorf("%s, second %d: of %d calls %d were served, %d refused, %d failed, %d late, %d not sent", l.name, i, s.Offered, s.OK, s.Refused, s.Failed, s.GaveUp, s.Unsent)
			}
		}
		if seconds == 0 || l.bare > 0 {
			t.Errorf("%s: %d calls, %d refused without details (%v)", l.name, seconds, l.bare, l.reasons)
		}
		if all.seconds == 0 {
			t.Errorf("%s: no figures", l.name)
		}
		sent += seconds
	}
	return sent, refused
}

// Interrupted in the middle of a run, nothing is left.
func TestInterrupted(t *testing.T) {
	remember(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	interrupt := errors.New("interrupted")
	o := quick(t, io.Discard)
	o.runs = setups[2:3] // with a gateway
	before := started
	var n int
	started = func(pid int) {
		before(pid)
		if n++; n == 5 { // PostgreSQL, two pods, the gateway, Envoy
			time.AfterFunc(time.Second, func() { cancel(interrupt) })
		}
	}
	if _, err := analytics(ctx, o); !errors.Is(err, interrupt) && !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if n != 5 {
		t.Errorf("%d processes were started, want 5", n)
	}
}

// A system that cannot start says so, stops what it has started, and leaves no folder. An interrupt while it starts is
// such a case.
func TestSystemFails(t *testing.T) {
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, c := range []struct {
		name string
		ctx  context.Context
		o    options
		want string
	}{
		{"interrupted", interrupted, options{}, ""}, // as a rule before the first pod is up
		{"no gateway", t.Context(), options{weir: "/nonexistent"}, "/nonexistent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			remember(t)
			folder := t.TempDir()
			t.Setenv("TMPDIR", folder)
			nobody := &database{Server: &postgres.Server{URL: "postgres://nobody@127.0.0.1:1/none"}} // a pod asks it later
			if _, err := startSystem(c.ctx, &c.o, setups[2], nobody); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it ended with %v, want %q in it", err, c.want)
			}
			if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
				t.Errorf("the folder for temporary files has %v (%v)", left, err)
			}
		})
	}
}

// All programs that the runs need are looked for before anything starts, and so is whether plots can be written.
func TestCheck(t *testing.T) {
	var out bytes.Buffer
	o := options{weir: "/no/weir", envoy: "/no/envoy", postgres: os.Args[0], runs: setups[:1], out: &out}
	_, err := analytics(t.Context(), &o)
	if err == nil || !strings.Contains(err.Error(), "-envoy") || strings.Contains(err.Error(), "-postgres") || strings.Contains(err.Error(), "-weir") {
		t.Errorf("a run without a gateway: %v", err)
	}
	o.runs = setups
	if _, err = analytics(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "-envoy") || !strings.Contains(err.Error(), "-weir") {
		t.Errorf("all runs: %v", err)
	}
	o.plots = filepath.Join(os.Args[0], "plots") // in a file
	if _, err = analytics(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "-plot: ") {
		t.Errorf("a folder that cannot be: %v", err)
	}
	o.plots = filepath.Join(t.TempDir(), "new")
	if err := writable(o.plots); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(o.plots); err != nil || len(left) > 0 {
		t.Errorf("the folder for plots has %v (%v)", left, err)
	}
	if out.Len() > 0 {
		t.Errorf("it began: %s", &out)
	}
}

// The names that the command is given are those of its runs.
func TestChoose(t *testing.T) {
	var o options
	if err := o.choose("pods,nothing"); err != nil || len(o.runs) != 2 || o.runs[0].name != "pods" {
		t.Errorf("%v, %v", o.runs, err)
	}
	if err := o.choose("none"); err == nil || !strings.Contains(err.Error(), `no run "none"; there are nothing, seed, gateway, `) {
		t.Errorf("a run that does not exist: %v", err)
	}
}
