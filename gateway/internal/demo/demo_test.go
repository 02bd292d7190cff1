package demo

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

// TestDemo runs the whole of it, small and short. How good the figures are is
// not asked here: that depends on what else the machine does.
func TestDemo(t *testing.T) {
	var out bytes.Buffer
	o := Options{Capacity: 100, Duration: 5 * time.Second, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Out: &out}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	with, without, err := startLanes(&o)
	if err != nil {
		t.Fatal(err)
	}
	defer without.stop()
	defer with.stop()
	introduce(&o, with, without)
	if strings.Contains(out.String(), "was taken") {
		t.Errorf("addresses that were asked for have moved:\n%s", &out)
	}
	for _, want := range []string{with.url(), without.url(), with.gateway.AdminAddr().String() + "/gates", "can do 100 requests a second"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the introduction does not mention %s:\n%s", want, &out)
		}
	}
	if _, err := load(t.Context(), &o, with, without); err != nil {
		t.Fatal(err)
	}
	a, b := total(with.meter), total(without.meter)
	t.Logf("with: %+v; without: %+v", counts(a), counts(b))
	for name, sum := range map[string]loadgen.Tally{"with": a, "without": b} {
		late := sum.LateSends > 0 // of what a busy machine sends late it may leave some out
		if sum.Offered == 0 || !late && sum.Offered < 500 || sum.Open() != 0 || sum.Failed != 0 {
			t.Errorf("%s: %+v; want about 690 offered, none open, none failed", name, counts(sum))
		}
	}
	if b.Refused != 0 {
		t.Errorf("refused %d without a gate, want none", b.Refused)
	}
	// A load that a busy machine sent late was never three times the capacity.
	if offered := a.LateSends+b.LateSends == 0; offered && (a.Refused == 0 || b.GaveUp == 0) {
		t.Errorf("refused %d with a gate, %d gave up without, want some of both", a.Refused, b.GaveUp)
	}
	emptied(t, with)
}

func total(m *loadgen.Meter) (sum loadgen.Tally) {
	for i := range m.Seconds() {
		s := m.Second(i)
		sum.Add(&s)
	}
	return sum
}

func counts(t loadgen.Tally) map[string]int64 {
	return map[string]int64{"offered": t.Offered, "ok": t.OK, "refused": t.Refused, "failed": t.Failed,
		"gave up": t.GaveUp, "unsent": t.Unsent, "late sends": t.LateSends}
}

// emptied waits until nothing is in flight at the gate.
func emptied(t *testing.T, l *lane) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		s := l.gateway.Policy().Gate(gateName).Snapshot()
		if s.InFlight == 0 && s.Waiting == 0 {
			return
		}
		if loadgen.Pause(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("after the load %d are in flight and %d wait", s.InFlight, s.Waiting)
		}
	}
}

// stopper cancels when something was written that contains word.
type stopper struct {
	bytes.Buffer
	word   string
	cancel func()
}

func (s *stopper) Write(p []byte) (int, error) {
	n, err := s.Buffer.Write(p)
	if strings.Contains(s.String(), s.word) {
		s.cancel()
	}
	return n, err
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &stopper{word: "\n 1 ", cancel: cancel} // the first second's line
	begin := time.Now()
	err := Run(ctx, Options{Capacity: 100, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Out: out})
	if err != nil {
		t.Errorf("interrupted: %v, want no error", err)
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("the demo went on for %v", took)
	}
	if strings.Contains(out.String(), "In all") {
		t.Errorf("an interrupted load has a conclusion:\n%s", out)
	}
}

func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Capacity: 39}, "capacity 39: must be from 40 to 1000"},
		{Options{Capacity: 1e9}, "capacity 1e+09"},
		{Options{Duration: time.Second}, "duration 1s: must be from 5s to 5m0s"},
		{Options{Duration: time.Hour, Capacity: -1}, "capacity -1"},
	} {
		if err := Run(t.Context(), tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want one that says %q", tt.o, err, tt.want)
		}
	}
}

func TestPrefer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := ln.Addr().String()
	if got := prefer("", taken); got != "127.0.0.1:0" {
		t.Errorf("%s is taken, and %s is chosen instead of any free port", taken, got)
	}
	if got := prefer(taken, "127.0.0.1:1"); got != taken {
		t.Errorf("asked for %s, got %s", taken, got)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if got := prefer("", taken); got != taken {
		t.Errorf("%s is free, and %s is chosen", taken, got)
	}
}

// A usual address that is taken is named, with the one that is used.
func TestMovedAddress(t *testing.T) {
	var out bytes.Buffer
	o := Options{Capacity: 100, Duration: 5 * time.Second, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Out: &out}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	with, without, err := startLanes(&o)
	if err != nil {
		t.Fatal(err)
	}
	defer without.stop()
	defer with.stop()
	o.Listen, o.Admin = "", "" // as if the usual ones had been taken
	introduce(&o, with, without)
	for _, want := range []string{
		DefaultListen + " was taken: the gateway is at " + with.gateway.Addr().String() + " instead.\n",
		DefaultAdmin + " was taken: the admin listener is at " + with.gateway.AdminAddr().String() + " instead.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &out)
		}
	}
}

// TestTakenAddress: an address that was asked for and is taken is an error, and
// leaves nothing running.
func TestTakenAddress(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	err = Run(t.Context(), Options{Listen: ln.Addr().String(), Admin: "127.0.0.1:0", Out: new(bytes.Buffer)})
	if err == nil || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Errorf("error %v, want one that names %s", err, ln.Addr())
	}
}

func TestUpstreamOverHTTP(t *testing.T) {
	u, err := startUpstream(MaxCapacity, 1)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(u.url())
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if err := u.close(); err != nil {
		t.Error(err)
	}
}
