package weirkafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
)

// level is a signal that a test sets; negative means that it cannot be read.
type level struct {
	name string
	v    atomic.Int64
}

func (l *level) Name() string { return l.name }
func (l *level) Read(context.Context) (float64, error) {
	if v := l.v.Load(); v >= 0 {
		return float64(v), nil
	}
	return 0, errors.New("no broker answers")
}

func lagging(messages int64) *level {
	l := &level{name: "kafka_lag"}
	l.v.Store(messages)
	return l
}

// journal is a log that a test can read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// since returns what was written since the last time.
func (j *journal) since() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.text.Reset()
	return j.text.String()
}

func admission(t *testing.T, cfg AdmissionConfig) *Admission {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	a, err := NewAdmission(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// One error names all faults: the fields, and what to write.
func TestAdmissionFaults(t *testing.T) {
	lag := lagging(0)
	line, err := control.NewLagMap(control.LagMapConfig{})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		cfg  AdmissionConfig
		want []string
	}{
		{"nothing", AdmissionConfig{}, []string{"Lag: there is no lag to follow; set the signal of NewLag, or Disabled"}},
		{"a lag that was never made", AdmissionConfig{Lag: (*Lag)(nil)}, []string{"Lag: there is no lag to follow"}},
		{"bounds of another kind", AdmissionConfig{Lag: lag, AdjustmentInterval: math.MaxInt64, MaxDatabases: -1}, []string{"AdjustmentInterval: ", "MaxDatabases: "}},
		{"the least above the most", AdmissionConfig{Lag: lag, MaxCapacity: 5}, []string{"MinCapacity: 10 is above MaxCapacity, which is 5; write 5 or less"}},
		{"critical at the target", AdmissionConfig{Lag: lag, TargetLag: 7, CriticalLag: 7}, []string{"CriticalLag: 7 is not above TargetLag, which is 7; write more"}},
		{"a target above the default", AdmissionConfig{Lag: lag, TargetLag: 200_000}, []string{"CriticalLag: 100000 is not above TargetLag, which is 200000; write more"}},
		{"all of it", AdmissionConfig{MinCapacity: -1, MaxCapacity: -2, TargetLag: -3, CriticalLag: -4, AdjustmentInterval: time.Millisecond, Prefix: "9 lives"}, []string{
			"Lag: ", "MinCapacity: ", "MaxCapacity: ", "TargetLag: ", "CriticalLag: ", "AdjustmentInterval: ", `Prefix: "9 lives" cannot begin the name of a metric; write letters`,
		}},
		{"a controller and its bounds", AdmissionConfig{Lag: lag, Controller: line, MaxCapacity: 5, CriticalLag: 7}, []string{
			"MaxCapacity: a Controller has its own; leave this one out", "CriticalLag: a Controller has its own",
		}},
		{"two signals of one name", AdmissionConfig{Lag: lag, Pressures: []signal.Watch{{Signal: lagging(0)}}}, []string{`another signal is called "kafka_lag"`}},
		{"an override", AdmissionConfig{Lag: lag, Overrides: map[string]keyed.Override{"orders": {Limit: -1}}}, []string{"Overrides.orders.Limit: "}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // which fails if a poller is left
				_, err := NewAdmission(tt.cfg)
				if err == nil {
					t.Fatal("accepted")
				}
				for _, want := range tt.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("no %q in:\n%v", want, err)
					}
				}
			})
		})
	}
}

// The capacity follows EvidentDB's formula, with the presets too.
func TestCapacity(t *testing.T) {
	tests := []struct {
		cfg       AdmissionConfig
		lag, want int64
	}{
		{AdmissionConfig{}, 0, 1000},
		{AdmissionConfig{}, 10_000, 1000},
		{AdmissionConfig{}, 10_001, 999}, // 999.989
		{AdmissionConfig{}, 55_000, 505},
		{AdmissionConfig{}, 99_999, 10}, // 10.011
		{AdmissionConfig{}, 100_000, 10},
		{AdmissionConfig{}, 500_000, 10},
		{HighThroughput(), 5000, 2000},
		{HighThroughput(), 27_500, 1025},
		{HighThroughput(), 50_000, 50},
		{CostOptimized(), 20_000, 500},
		{CostOptimized(), 110_000, 252}, // 252.5
		{CostOptimized(), 200_000, 5},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			tt.cfg.Lag = lagging(tt.lag)
			a := admission(t, tt.cfg)
			defer a.Close()
			time.Sleep(11 * time.Second)
			if got := a.Snapshot().Limit; got != tt.want {
				t.Errorf("lag %d: capacity %d, want %d", tt.lag, got, tt.want)
			}
			if use, known := a.Database("orders"); use.Limit != tt.want || known {
				t.Errorf("lag %d: a database to come would get %+v", tt.lag, use)
			}
		})
	}
}

// A shrink revokes nothing, and nothing is granted until enough permits are back (E12). Each change is one
// line.
func TestShrinkAndItsLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lag, log := lagging(0), &journal{}
		var mu sync.Mutex
		var told []string
		hooks := weir.Hooks{LimitChanged: func(gate string, from, to int64, reason string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf("%s: %d to %d, %s", gate, from, to, reason))
		}}
		a := admission(t, AdmissionConfig{Lag: lag, AllAlike: true, Logger: log.logger(), Queue: limit.Queue{Len: -1}, Hooks: hooks})
		defer a.Close()
		var held []weir.Permit
		for range 900 {
			p, err := a.Admit(t.Context(), weir.Work{Tenant: "orders"})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, p)
		}
		lag.v.Store(55_000)
		time.Sleep(6 * time.Second)
		want := `level=INFO msg="adjusted capacity" gate=admission from=1000 to=505 reason="lag 55000" lag=55000
level=WARN msg="decreased capacity; permits in use stay valid, and no new ones are granted until enough are given back" gate=admission from=1000 to=505 permits=-495
`
		if got := log.since(); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
		for len(held) > 505 {
			held[0].Done(weir.OK)
			held = held[1:]
			if len(held) >= 505 {
				if _, err := a.TryAdmit(weir.Work{Tenant: "orders"}); err == nil {
					t.Fatalf("granted with %d of 505 in use", len(held))
				}
			}
		}
		p, err := a.Admit(t.Context(), weir.Work{Tenant: "billing"})
		if err != nil {
			t.Errorf("another database: %v", err)
		}
		p.Done(weir.OK)
		lag.v.Store(0)
		time.Sleep(6 * time.Second)
		if got := log.since(); got != "level=INFO msg=\"adjusted capacity\" gate=admission from=505 to=1000 reason=\"lag 0\" lag=0\n" {
			t.Errorf("%s", got)
		}
		for _, p := range held {
			p.Done(weir.OK)
		}
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"admission: 1000 to 505, lag 55000", "admission: 505 to 1000, lag 0"}; !slices.Equal(told, want) {
			t.Errorf("the caller's hook was told %q", told)
		}
	})
}

// A fault of a kind writes one line, and no other within a minute of its end. If the capacity falls for it,
// that line names the cause each time.
func TestUnknownLagInTheLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lag, log := lagging(0), &journal{}
		a := admission(t, AdmissionConfig{Lag: lag, Logger: log.logger()})
		defer a.Close()
		for range 2 {
			time.Sleep(10 * time.Second)
			log.since()
			lag.v.Store(-1)
			time.Sleep(40 * time.Second)
			const want = `from=1000 to=10 reason="lag unknown for more than 3 intervals: safe limit 10" error="no broker answers"`
			if got := log.since(); !strings.Contains(got, want) {
				t.Errorf("%s\nlacks\n%s", got, want)
			}
			lag.v.Store(0)
		}
	})
}

// The databases that hold most shrink first. With AllAlike, a database that floods makes all others shrink.
func TestWhoShrinksFirst(t *testing.T) {
	for alike, want := range map[bool]int64{true: 1, false: 50} {
		synctest.Test(t, func(t *testing.T) {
			lag := lagging(0)
			a := admission(t, AdmissionConfig{
				Lag: lag, MaxCapacity: 100, MinCapacity: 1, TargetLag: 10, CriticalLag: 110, AllAlike: alike, Queue: limit.Queue{Len: -1},
			})
			defer a.Close()
			for database, n := range map[string]int{"noisy": 100, "orders": 5, "billing": 5} {
				for range n {
					p, err := a.Admit(t.Context(), weir.Work{Tenant: database})
					if err != nil {
						t.Fatal(err)
					}
					defer p.Done(weir.OK)
				}
			}
			lag.v.Store(110)
			time.Sleep(6 * time.Second)
			if got := a.Snapshot().Limit; got != want {
				t.Errorf("all alike %v: capacity %d, want %d (%s)", alike, got, want, a.Snapshot().LimitReason)
			}
			p, err := a.TryAdmit(weir.Work{Tenant: "orders"})
			if (err != nil) != alike {
				t.Errorf("all alike %v: a quiet database: %v", alike, err)
			}
			p.Done(weir.OK)
			if _, err := a.TryAdmit(weir.Work{Tenant: "noisy"}); err == nil {
				t.Errorf("all alike %v: the database that floods was admitted", alike)
			}
		})
	}
}

// An unknown lag is not a lag of 0. The capacity stays, and then goes to MinCapacity.
func TestUnknownLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lag, log := lagging(55_000), &journal{}
		a := admission(t, AdmissionConfig{Lag: lag, Logger: log.logger()})
		defer a.Close()
		time.Sleep(6 * time.Second)
		log.since()
		lag.v.Store(-1)
		time.Sleep(15 * time.Second)
		if got := a.Snapshot().Limit; got != 505 {
			t.Errorf("capacity %d after three intervals", got)
		}
		if got := log.since(); !strings.Contains(got, `level=WARN msg="a signal of admission control cannot be read; its last value, if any, is used for some intervals. If it is the lag, the capacity then goes to its minimum" gate=admission signal=kafka_lag error="no broker answers"`) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s", got)
		}
		time.Sleep(15 * time.Second)
		if got, lag := a.Snapshot().Limit, a.Lag(); got != 10 || lag.Known || lag.Err == nil {
			t.Errorf("capacity %d after six, %v", got, lag)
		}
		for m := range a.Metrics() {
			if strings.HasSuffix(m.Name, "_lag") {
				t.Errorf("an unknown lag has a value: %+v", m)
			}
		}
		lag.v.Store(0)
		time.Sleep(10 * time.Second)
		if got := a.Snapshot().Limit; got != 1000 {
			t.Errorf("capacity %d after it is known again", got)
		}
		if got := log.since(); !strings.Contains(got, "can be read again") {
			t.Errorf("%s", got)
		}
	})
}

// A cluster has time to answer for as long as the capacity stays.
func TestSilentLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 4 * time.Second
		var silent atomic.Bool
		lag := signal.Func("kafka_lag", func(ctx context.Context) (float64, error) {
			if silent.Load() {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			time.Sleep(late)
			return 7, nil
		})
		a := admission(t, AdmissionConfig{Lag: lag, Logger: (&journal{}).logger()})
		defer a.Close()
		time.Sleep(late + time.Millisecond)
		if lag := a.Lag(); !lag.Known || lag.Value != 7 {
			t.Errorf("a late answer: %+v", lag)
		}
		silent.Store(true)
		time.Sleep(late + 6*time.Second) // one more reading may be in progress
		if lag := a.Lag(); lag.Err == nil {
			t.Errorf("no answer: %+v", lag)
		}
	})
}

// A pressure binds instead of the lag if it asks for less.
func TestPressureBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cpu := &level{name: "cpu"}
		a := admission(t, AdmissionConfig{Lag: lagging(5000), MaxCapacity: 100, Pressures: []signal.Watch{{Signal: cpu}}, Queue: limit.Queue{Len: -1}})
		defer a.Close()
		for range 40 {
			p, err := a.Admit(t.Context(), weir.Work{Tenant: "orders"})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Done(weir.OK)
		}
		time.Sleep(10 * time.Second)
		if s := a.Snapshot(); s.Limit != 100 || s.Signal != "" {
			t.Fatalf("without pressure: %+v", s)
		}
		cpu.v.Store(2)
		time.Sleep(2 * time.Second)
		if s := a.Snapshot(); s.Limit > 40 || s.Limit < 10 || s.Signal != "cpu" {
			t.Errorf("at twice the most that is wanted: limit %d by %q (%s)", s.Limit, s.Signal, s.LimitReason)
		}
		cpu.v.Store(100)
		time.Sleep(10 * time.Second)
		if s := a.Snapshot(); s.Limit != 10 {
			t.Errorf("at a hundred times that: limit %d, want the least", s.Limit)
		}
		cpu.v.Store(0)
		time.Sleep(20 * time.Second)
		if s := a.Snapshot(); s.Limit != 100 || s.Signal != "" {
			t.Errorf("after the pressure: limit %d by %q", s.Limit, s.Signal)
		}
	})
}

// Other controllers work: a Drain, or a line with damping.
func TestOtherControllers(t *testing.T) {
	drain, err := control.NewDrain(control.DrainConfig{Signal: "kafka_lag", Max: 100, Target: 1000, Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	damped, err := control.NewLagMap(control.LagMapConfig{Signal: "kafka_lag", Min: 10, Max: 100, Target: 100, Critical: 200, Smoothing: 0.5, Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]control.Controller{"drain": drain, "lag": damped} {
		synctest.Test(t, func(t *testing.T) {
			a := admission(t, AdmissionConfig{Lag: lagging(200), Controller: c, AdjustmentInterval: time.Second})
			defer a.Close()
			time.Sleep(1500 * time.Millisecond)
			want := int64(100) // below the drain's threshold
			if name == "lag" {
				want = 55 // half of the way to 10
			}
			if s := a.Snapshot(); s.Controller != name || s.Limit != want {
				t.Errorf("%s: %d by %s, want %d", name, s.Limit, s.Controller, want)
			}
		})
	}
}

// Work waits for a bounded time, in the order of priorities, or is refused at once.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &journal{}
		a := admission(t, AdmissionConfig{Lag: lagging(0), MaxCapacity: 1, MinCapacity: 1, Logger: log.logger(), Overrides: map[string]keyed.Override{"big": {Limit: 2}}})
		defer a.Close()
		held, err := a.Admit(t.Context(), weir.Work{Tenant: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Admit(t.Context(), weir.Work{Tenant: "orders", MaxWait: weir.NoWait}); weir.AsRejection(err) == nil {
			t.Errorf("refusal instead of waiting: %v", err)
		}
		began := time.Now()
		_, err = a.Admit(t.Context(), weir.Work{Tenant: "orders"})
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonQueueTimeout || r.Gate != "admission" || time.Since(began) != 2*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		var order []string
		var mu sync.Mutex
		var waiting sync.WaitGroup
		for _, w := range []weir.Work{{Op: "reindex", Priority: weir.Background}, {Op: "write"}, {Op: "unblock", Priority: weir.High}} {
			w.Tenant = "orders"
			waiting.Go(func() {
				p, err := a.Admit(t.Context(), w)
				mu.Lock()
				order = append(order, w.Op)
				mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				p.Done(weir.OK)
			})
			synctest.Wait()
		}
		time.Sleep(125 * time.Millisecond)
		held.Done(weir.OK)
		waiting.Wait()
		if got := fmt.Sprint(order); got != "[unblock write reindex]" {
			t.Errorf("served in the order %s", got)
		}
		if got := log.since(); strings.Count(got, "\n") != 3 || !strings.Contains(got, `level=DEBUG msg="admission control wait" gate=admission database=orders wait=125ms`) {
			t.Errorf("%s", got)
		}
		if use, _ := a.Database("big"); use.Limit != 2 {
			t.Errorf("an override: %+v", use)
		}
	})
}

// Work under a permit of the gate takes no second one, as at any gate.
func TestAdmissionNests(t *testing.T) {
	a := admission(t, AdmissionConfig{Lag: lagging(0), MaxCapacity: 1, MinCapacity: 1, Queue: limit.Queue{Len: -1}})
	defer a.Close()
	p, err := a.Admit(t.Context(), weir.Work{Tenant: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := a.Admit(weir.WithPermit(t.Context(), a, p), weir.Work{Tenant: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	inner.Done(weir.OK)
	p.Done(weir.OK)
	if n := a.Snapshot().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

func TestAdmissionDisabled(t *testing.T) {
	a := admission(t, AdmissionConfig{Disabled: true})
	for range 3 {
		p, err := a.Admit(t.Context(), weir.Work{Tenant: "orders"})
		if err != nil || p.Live() {
			t.Errorf("%v, live %v", err, p.Live())
		}
	}
	if _, err := a.TryAdmit(weir.Work{}); err != nil {
		t.Error(err)
	}
	if _, _, err := a.Arrive(weir.Work{}, nil); err != nil {
		t.Error(err)
	}
	if s := a.Snapshot(); s.Mode != "off" || s.Limit != 0 || a.Name() != "admission" || a.Lag().Known {
		t.Errorf("%+v", s)
	}
	if _, known := a.Database("orders"); known {
		t.Error("a database is known")
	}
	for m := range a.Metrics() {
		t.Errorf("a metric: %+v", m)
	}
	if err := a.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	a.Close()
}

func TestAdmissionDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails if the lag is still read
		a := admission(t, AdmissionConfig{Lag: lagging(0)})
		p, err := a.TryAdmit(weir.Work{Tenant: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Drain(gone); err == nil || !strings.Contains(err.Error(), "1 still in flight") {
			t.Errorf("%v", err)
		}
		if _, err := a.Admit(t.Context(), weir.Work{Tenant: "orders"}); weir.AsRejection(err) == nil {
			t.Errorf("a closed gate: %v", err)
		}
		p.Done(weir.OK)
		if err := a.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The metrics have EvidentDB's names behind the prefix, in a format that Prometheus reads.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := admission(t, AdmissionConfig{Lag: lagging(55_000), Prefix: "evidentdb", Overrides: map[string]keyed.Override{"orders": {Limit: 7}}})
		defer a.Close()
		time.Sleep(6 * time.Second)
		for _, database := range []string{"orders", "a\"b\\c\nd", "", OtherDatabases, "\xff", strings.Repeat("x", 129)} {
			p, err := a.Admit(t.Context(), weir.Work{Tenant: database})
			if err != nil {
				t.Fatal(err)
			}
			p.Done(weir.OK)
		}
		var b strings.Builder
		if err := a.WriteMetrics(&b); err != nil {
			t.Fatal(err)
		}
		brief := regexp.MustCompile(`(?m)^.*_bucket\{.*le="(0\.00.|0\.0[^"]*|0\.[25]5?|1|2\.5|5)"\}.*\n`).ReplaceAllString(b.String(), "")
		want := `# HELP evidentdb_admission_control_capacity Permits that a database may have at once.
# TYPE evidentdb_admission_control_capacity gauge
evidentdb_admission_control_capacity{database=""} 505
evidentdb_admission_control_capacity{database="a\"b\\c\nd"} 505
evidentdb_admission_control_capacity{database="orders"} 7
evidentdb_admission_control_capacity{database="other"} 505
# HELP evidentdb_admission_control_wait Seconds that admitted work has waited for a permit.
# TYPE evidentdb_admission_control_wait histogram
evidentdb_admission_control_wait_bucket{database="",le="0.1"} 1
evidentdb_admission_control_wait_bucket{database="",le="10"} 1
evidentdb_admission_control_wait_bucket{database="",le="+Inf"} 1
evidentdb_admission_control_wait_sum{database=""} 0
evidentdb_admission_control_wait_count{database=""} 1
evidentdb_admission_control_wait_bucket{database="a\"b\\c\nd",le="0.1"} 1
evidentdb_admission_control_wait_bucket{database="a\"b\\c\nd",le="10"} 1
evidentdb_admission_control_wait_bucket{database="a\"b\\c\nd",le="+Inf"} 1
evidentdb_admission_control_wait_sum{database="a\"b\\c\nd"} 0
evidentdb_admission_control_wait_count{database="a\"b\\c\nd"} 1
evidentdb_admission_control_wait_bucket{database="orders",le="0.1"} 1
evidentdb_admission_control_wait_bucket{database="orders",le="10"} 1
evidentdb_admission_control_wait_bucket{database="orders",le="+Inf"} 1
evidentdb_admission_control_wait_sum{database="orders"} 0
evidentdb_admission_control_wait_count{database="orders"} 1
evidentdb_admission_control_wait_bucket{database="other",le="0.1"} 3
evidentdb_admission_control_wait_bucket{database="other",le="10"} 3
evidentdb_admission_control_wait_bucket{database="other",le="+Inf"} 3
evidentdb_admission_control_wait_sum{database="other"} 0
evidentdb_admission_control_wait_count{database="other"} 3
# HELP evidentdb_kafka_consumer_lag Messages that the consumer group is behind, over all partitions.
# TYPE evidentdb_kafka_consumer_lag gauge
evidentdb_kafka_consumer_lag 55000
`
		if brief != want {
			t.Errorf("got\n%s\nwant\n%s", brief, want)
		}
	})
}

// A wait is counted in the first bucket that covers it, and series are bounded.
func TestWaitsAreBounded(t *testing.T) {
	var w waits
	var workers sync.WaitGroup
	for worker := range 4 {
		workers.Go(func() {
			for i := range 500 {
				w.observe(fmt.Sprintf("%d of %d", i, worker), 100*time.Millisecond)
			}
		})
	}
	workers.Wait()
	w.observe(OtherDatabases, time.Minute)
	if len(w.of) != MaxSeries {
		t.Errorf("%d series", len(w.of))
	}
	sum := w.other.histogram().Count
	for _, one := range w.of {
		h := one.histogram()
		sum += h.Count
		if h.Within[4] != 0 || h.Within[5] != h.Count || len(h.Within) != len(WaitBuckets()) {
			t.Errorf("%+v", h)
		}
	}
	if label("orders") != "orders" || label(strings.Repeat("x", longestLabel+1)) != OtherDatabases {
		t.Error("names in the log are not bounded")
	}
	if h := w.other.histogram(); sum != 2001 || h.Within[len(h.Within)-1] != h.Count-1 {
		t.Errorf("%d counted, others %+v", sum, h)
	}
}

// Databases that have been idle for an hour lose their series if another database wants one.
func TestIdleSeriesAreGivenUp(t *testing.T) {
	var w waits
	for i := range MaxSeries {
		w.observe(fmt.Sprint("early-", i), 0)
	}
	at := time.Unix(1_000_000, 0)
	w.all(at)
	busy := func() { w.observe("early-0", 0) }
	busy()
	if got := w.all(at.Add(idleSeries)); len(got) != MaxSeries {
		t.Errorf("nobody wants a place, and %d series are left", len(got))
	}
	w.observe("late", 0)
	if h := w.other.histogram(); h.Count != 1 {
		t.Errorf("%d counted as others", h.Count)
	}
	busy()
	if got := w.all(at.Add(idleSeries + time.Minute)); len(got) != 1 || got["early-0"].count() != 3 {
		t.Errorf("%d series, the busy one with %+v", len(got), got["early-0"])
	}
	w.observe("late", 0)
	w.observe("early-1", 0)
	if got := w.all(at.Add(idleSeries + 2*time.Minute)); len(got) != 3 || got["late"].count() != 1 || got["early-1"].count() != 1 {
		t.Errorf("%d series: %+v, %+v", len(got), got["late"], got["early-1"])
	}
}

// The capacity follows a consumer group on a cluster.
func TestAdmissionOnACluster(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("batches", 60, 45)
	c.commit("processor", "batches", 5, -1)
	a := admission(t, AdmissionConfig{
		Lag: c.lag(LagConfig{Group: "processor", Topics: []string{"batches"}}), MaxCapacity: 20, MinCapacity: 2, TargetLag: 10, CriticalLag: 100, AdjustmentInterval: 500 * time.Millisecond,
	})
	defer a.Close()
	follows := func(want int64) {
		t.Helper()
		for a.Snapshot().Limit != want {
			select {
			case <-t.Context().Done():
				t.Fatalf("capacity %d, want %d: %v", a.Snapshot().Limit, want, a.Lag())
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	follows(2)
	c.commit("processor", "batches", 50, 0) // 55 behind
	follows(11)
	c.commit("processor", "batches", 60, 45)
	follows(20)
}
