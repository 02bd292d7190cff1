package eventlog

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// none has no gates.
func none(string) (weir.Snapshot, bool) { return weir.Snapshot{}, false }

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := new(logBuffer)
		n := New(slog.New(slog.NewTextHandler(out, nil)), none)
		ctx, cancel := context.WithCancel(t.Context())
		go n.Run(ctx)
		lines := func(part string) int { return strings.Count(out.String(), part) }

		rej := &weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Value: 256, Limit: 256}
		for range 1000 {
			n.Rejected(weir.Work{}, rej)
		}
		n.Observed(weir.Work{}, rej)
		if lines("msg=refusing") != 1 || lines("would refuse") != 1 {
			t.Errorf("at once:\n%s\nwant the first of each kind", out)
		}
		time.Sleep(summaryEvery + 2*time.Second)
		if lines("count=999") != 1 {
			t.Errorf("after a while:\n%s\nwant the sum of the other 999", out)
		}
		time.Sleep(2 * summaryEvery)
		n.Rejected(weir.Work{}, rej)
		if lines("msg=refusing ") != 2 {
			t.Errorf("a refusal after a pause:\n%s\nwant it logged at once", out)
		}
		cancel()
	})
}

// The level of a gate that sheds moves all the time. Its refusals share a line all the same.
func TestRefusalsByLevel(t *testing.T) {
	out := new(logBuffer)
	n := New(slog.New(slog.NewTextHandler(out, nil)), none)
	for _, level := range []string{"below normal/37", "below normal/38", "below high/0"} {
		n.Rejected(weir.Work{}, &weir.Rejection{Gate: "front", Reason: weir.ReasonShed, Rule: level})
	}
	n.sumUp()
	if text := out.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `count=2 rule="below high/0"`) {
		t.Errorf("%s\nwant the first and the sum of the others, with the last level", text)
	}
}

// A gate that sheds has levels, not slots.
func TestLevelChanged(t *testing.T) {
	out := new(logBuffer)
	n := New(slog.New(slog.NewTextHandler(out, nil)), func(string) (weir.Snapshot, bool) { return weir.Snapshot{Kind: "shed"}, true })
	n.LimitChanged("front", 512, 0, "pressure 3.3")
	n.Flush()
	if text := out.String(); !strings.Contains(text, `msg="level changed" gate=front from=512 to=0`) {
		t.Errorf("%s\nwant it called a level", text)
	}
}

// What a refusal has no figure for is not in its lines.
func TestRefusalLines(t *testing.T) {
	for _, tt := range []struct {
		rej  weir.Rejection
		want string
	}{
		{weir.Rejection{Gate: "api", Reason: weir.ReasonDraining}, `gate=api reason=draining`},
		{weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Value: 256, Limit: 256, RetryAfter: time.Second},
			`gate=api reason=queue_full value=256 limit=256 retry_after=1s`},
		{weir.Rejection{Gate: "api", Reason: weir.ReasonDeadline, Value: 0.376761483, Limit: 0.25, RetryAfter: 505579014 * time.Nanosecond},
			`gate=api reason=deadline value=0.377 limit=0.25 retry_after=506ms`},
		{weir.Rejection{Gate: "api", Reason: weir.ReasonQuota, Limit: 5, Rule: "per user"}, `gate=api reason=quota value=0 limit=5 rule="per user"`},
		{weir.Rejection{Gate: "api", Reason: weir.ReasonLimit, Value: 8, Limit: 8, Signal: "cpu"}, `gate=api reason=limit value=8 limit=8 signal=cpu`},
	} {
		out := new(logBuffer)
		n := New(slog.New(slog.NewTextHandler(out, nil)), none)
		n.Rejected(weir.Work{}, &tt.rej)
		n.Rejected(weir.Work{}, &tt.rej)
		n.sumUp()
		short := strings.Replace(tt.want, " reason="+tt.rej.Reason.String(), " reason="+tt.rej.Reason.String()+" count=1", 1)
		if text := out.String(); !strings.Contains(text, "msg=refusing "+tt.want+"\n") || !strings.Contains(text, `msg="refused since the last line" `+short+"\n") {
			t.Errorf("%s\nwant %q, and with a count in the summary", text, tt.want)
		}
	}
}

// Writes that are refused have few lines too, however long their paths are.
func TestRefusedWrites(t *testing.T) {
	out := new(logBuffer)
	n := New(slog.New(slog.NewTextHandler(out, nil)), none)
	r := httptest.NewRequest(http.MethodPut, "/quotas/"+strings.Repeat("a", 1000), nil)
	for range 100 {
		n.WriteRefused(r, errors.New("the token is wrong"))
	}
	n.sumUp()
	text := out.String()
	for _, want := range []string{
		`msg="admin write refused" reason="the token is wrong" peer=192.0.2.1:1234 method=PUT path=/quotas/aaa`,
		`msg="admin writes refused since the last line" reason="the token is wrong" count=99 peer=`,
	} {
		if !strings.Contains(text, want) || len(text) > 1000 {
			t.Errorf("%s\nwant %s", text, want)
		}
	}
}

// A dead upstream is told at once, and then summed up for each target and kind of failure.
func TestUpstreamFailures(t *testing.T) {
	out := new(logBuffer)
	n := New(slog.New(slog.NewTextHandler(out, nil)), none)
	refused := errors.New("connection refused")
	for range 100 {
		n.UpstreamFailed("app", "http://a", "connect", refused)
	}
	n.UpstreamFailed("app", "http://a", "timeout", errors.New(strings.Repeat("slow", 1000)))
	n.UpstreamFailed("app", "http://b", "connect", refused)
	if text := out.String(); strings.Count(text, "\n") != 3 || len(text) > 1500 {
		t.Errorf("%s\nwant the first of each kind", text)
	}
	n.sumUp()
	for _, want := range []string{
		`level=WARN msg="upstream target failed" upstream=app target=http://a reason=connect error="connection refused"`,
		`msg="upstream target failures since the last line" upstream=app target=http://a reason=connect count=99 error="connection refused"`,
		`msg="upstream target failed" upstream=app target=http://b reason=connect error=`,
	} {
		if text := out.String(); strings.Count(text, want) != 1 {
			t.Errorf("%s\nwant %s", text, want)
		}
	}
}

// What net/http says is about single clients, but for what an operator must do
// something about.
func TestServerErrors(t *testing.T) {
	for line, want := range map[string]string{
		"http: TLS handshake error from 192.0.2.1:5: EOF\n":                                              "level=DEBUG",
		"http: panic serving 192.0.2.1:5: oh\n":                                                          "level=ERROR",
		"http: Accept error: accept tcp 127.0.0.1:8080: accept4: too many open files; retrying in 5ms\n": "level=WARN",
	} {
		out := new(logBuffer)
		c := serverErrors{New(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})), none), "127.0.0.1:8080"}
		if n, err := c.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: wrote %d, %v", line, n, err)
		}
		if !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "listener=127.0.0.1:8080") {
			t.Errorf("%q: %s; want %s", line, out, want)
		}
	}
}

// Without descriptors, net/http complains many times a second.
func TestNoDescriptor(t *testing.T) {
	out := new(logBuffer)
	n := New(slog.New(slog.NewTextHandler(out, nil)), none)
	for _, at := range []string{"127.0.0.1:8080", "127.0.0.1:8090"} {
		for range 100 {
			n.ServerErrors(at).Print("http: Accept error: accept tcp ", at, ": accept4: too many open files; retrying in 5ms")
		}
	}
	if text := out.String(); strings.Count(text, "\n") != 2 || strings.Count(text, "ulimit -n") != 2 {
		t.Errorf("%s\nwant the first of each listener", text)
	}
	n.sumUp()
	if text, want := out.String(), `without a file descriptor since the last line" listener=127.0.0.1:8090 reason="too many open files" count=99 error=`; strings.Count(text, "\n") != 4 || strings.Count(text, want) != 1 {
		t.Errorf("%s\nwant %s", text, want)
	}
}

func TestSameTrouble(t *testing.T) {
	const reset = "lookup: read tcp 127.0.0.1:5->127.0.0.1:6379: read: connection reset by peer"
	for other, want := range map[string]bool{
		reset: true, strings.Replace(reset, ":5", ":6", 1): true, strings.ReplaceAll(reset, "127.0.0.1", "[fe80::1%eth0]"): true,
		strings.Replace(reset, "reset", "refused", 1): false, "quotas.json:3: no such field": false,
	} {
		if got := SameTrouble(errors.New(reset), errors.New(other)); got != want {
			t.Errorf("%s: %v, want %v", other, got, want)
		}
	}
	if err := errors.New("x"); SameTrouble(nil, err) || SameTrouble(err, nil) || SameTrouble(nil, nil) {
		t.Error("nil is trouble")
	}
}

// logging runs fn beside a Log that writes to the log it is given.
func logging(t *testing.T, level slog.Level, fn func(t *testing.T, n *Log, out *logBuffer)) {
	synctest.Test(t, func(t *testing.T) {
		out := new(logBuffer)
		n := New(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})), none)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go n.Run(ctx)
		fn(t, n, out)
	})
}

// A limit that goes to and fro is no news, however long; where it goes is.
func TestALimitOnTheMoveIsNoFlood(t *testing.T) {
	for _, pair := range [][2]int64{{1, 2}, {3, 5}, {9, 14}, {82, 122}, {8187, 12215}} {
		logging(t, slog.LevelInfo, func(t *testing.T, n *Log, out *logBuffer) {
			low, high := pair[0], pair[1]
			n.LimitChanged("api", high, low, "comparing")
			for range 600 {
				n.LimitChanged("api", low, high, "1% more concurrency, 0.05% more throughput")
				time.Sleep(100 * time.Millisecond)
				n.LimitChanged("api", high, low, "1% more concurrency, 0.07% more throughput")
				time.Sleep(100 * time.Millisecond)
			}
			if text := out.String(); text != "" {
				t.Errorf("two minutes between %d and %d:\n%s\nwant no line", low, high, text)
			}
			n.LimitChanged("api", low, low/2-1, "less than half of what finished was of use")
			if low < 4 {
				return
			}
			time.Sleep(2 * time.Second)
			if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "steps=1202 reason=\"less than half of what finished was of use\"\n") {
				t.Errorf("after a fall:\n%s\nwant a line with the reason and all steps since the start", text)
			}
		})
	}
}

// Of a climb there are a few lines, of a limit that jumps all the time no more.
func TestNewsOfLimitsAreFew(t *testing.T) {
	logging(t, slog.LevelInfo, func(t *testing.T, n *Log, out *logBuffer) {
		for limit := int64(20); limit < 20<<6; limit *= 2 {
			n.LimitChanged("api", limit, 2*limit, "throughput follows: a step up")
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * limitEvery)
		text := out.String()
		if !strings.HasSuffix(text, "to=1280 steps=6 reason=\"throughput follows: a step up\"\n") || strings.Count(text, "\n") != 1 {
			t.Errorf("after a climb within a second:\n%s", text)
		}
	})
	logging(t, slog.LevelInfo, func(t *testing.T, n *Log, out *logBuffer) {
		low, high := int64(10), int64(1000)
		for range 600 { // a minute
			n.LimitChanged("api", low, high, "lag")
			low, high = high, low
			time.Sleep(100 * time.Millisecond)
		}
		if lines := strings.Count(out.String(), "\n"); lines > 20 {
			t.Errorf("%d lines in a minute, want at most one in %v", lines, limitEvery)
		}
	})
}

// The default controller before a backend of eight workers, for two minutes of
// too much: it never leaves the limit alone.
func TestTheDefaultControllerLogsLittle(t *testing.T) {
	logging(t, slog.LevelInfo, func(t *testing.T, n *Log, out *logBuffer) {
		var steps atomic.Int64
		p, err := policy.Compile(policy.Spec{
			Gates:  map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Queue: policy.QueueSpec{Len: 10}}}},
			Routes: []policy.RouteSpec{{Match: []string{"/"}, Gates: []string{"api"}}},
		}, policy.Options{Hooks: weir.Hooks{LimitChanged: func(gate string, from, to int64, reason string) {
			steps.Add(1)
			n.LimitChanged(gate, from, to, reason)
		}}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		workers := make(chan struct{}, 8)
		var all sync.WaitGroup
		for range 12_000 {
			time.Sleep(10 * time.Millisecond) // twice what the workers can do
			all.Go(func() {
				permit, err := p.Gate("api").Admit(t.Context(), weir.Work{})
				if err != nil {
					return
				}
				defer permit.Done(weir.OK)
				workers <- struct{}{}
				time.Sleep(160 * time.Millisecond)
				<-workers
			})
		}
		all.Wait()
		lines := strings.Count(out.String(), "\n")
		t.Logf("%d steps, %d lines", steps.Load(), lines)
		if steps.Load() < 20 || lines > 6 {
			t.Errorf("%d steps, %d lines, want many steps and hardly a line:\n%s", steps.Load(), lines, out)
		}
	})
}

// Who wants every step finds it at the level debug.
func TestEveryStepIsThereForDebug(t *testing.T) {
	logging(t, slog.LevelDebug, func(t *testing.T, n *Log, out *logBuffer) {
		n.LimitChanged("api", 10, 12, "comparing")
		n.LimitChanged("api", 12, 10, "comparing")
		if lines := strings.Count(out.String(), `level=DEBUG msg="limit step" gate=api`); lines != 2 {
			t.Errorf("%d lines for two steps:\n%s", lines, out)
		}
	})
}

// What a reload has done to a limit is told, what the limit was doing anyway is
// not told as the reload's doing.
func TestConfiguredLimits(t *testing.T) {
	for _, tt := range []struct {
		controller string
		to         int64
		want       string
	}{
		{"fixed", 9, "from=8 to=9 steps=1 reason=configured\n"},
		{"knee", 9, ""},
		{"knee", 16, "from=8 to=16 steps=1 reason=configured\n"},
		{"knee", 4, "from=8 to=4 steps=1 reason=configured\n"},
		{"fixed", 8, ""},
	} {
		logging(t, slog.LevelInfo, func(t *testing.T, n *Log, out *logBuffer) {
			n.limits.snapshot = func(string) (weir.Snapshot, bool) {
				return weir.Snapshot{Controller: tt.controller, Signal: "memory"}, true
			}
			n.LimitChanged("api", 10, 8, "comparing")
			n.BeforeReload()
			n.LimitChanged("api", 8, tt.to, "configured")
			n.AfterReload()
			want := strings.Replace(tt.want, "reason=configured", "reason=configured signal=memory", 1)
			if text := out.String(); !strings.HasSuffix(text, want) || want == "" && text != "" {
				t.Errorf("%s from 8 to %d:\n%s\nwant %q", tt.controller, tt.to, text, want)
			}
		})
	}
}

// A reload that failed takes nothing from the steps so far. A line that was written meanwhile
// stays the last one.
func TestFailedReload(t *testing.T) {
	logging(t, slog.LevelInfo, func(t *testing.T, n *Log, out *logBuffer) {
		n.LimitChanged("api", 8, 15, "comparing")
		n.LimitChanged("other", 8, 15, "comparing")
		failed := n.BeforeReload()
		n.LimitChanged("other", 15, 30, "comparing")
		n.limits.flush()
		failed()
		n.LimitChanged("api", 15, 16, "comparing")
		n.LimitChanged("other", 30, 32, "comparing")
		n.Flush()
		text := out.String()
		for _, want := range []string{"gate=api from=8 to=16 steps=2", "gate=other from=15 to=30 steps=1"} {
			if strings.Count(text, want) != 1 || strings.Count(text, "limit changed") != 2 {
				t.Errorf("no line %q:\n%s", want, text)
			}
		}
	})
}

// Gates that are no more leave nothing behind.
func TestGoneGatesAreForgotten(t *testing.T) {
	n := New(slog.New(slog.DiscardHandler), none)
	n.LimitChanged("a", 1, 2, "")
	n.LimitChanged("b", 1, 2, "")
	n.KeepOnly(func(gate string) bool { return gate != "a" })
	if len(n.limits.gates) != 1 || n.limits.gates["b"] == nil {
		t.Errorf("kept %v, want b", n.limits.gates)
	}
}
