package server

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

func TestNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := new(logBuffer)
		n := newNotes(slog.New(slog.NewTextHandler(out, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		go n.run(ctx)
		lines := func(part string) int { return strings.Count(out.String(), part) }

		rej := &weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Value: 256, Limit: 256}
		for range 1000 {
			n.rejected(weir.Work{}, rej)
		}
		n.observed(weir.Work{}, rej)
		if lines("msg=refusing") != 1 || lines("would refuse") != 1 {
			t.Errorf("at once:\n%s\nwant the first of each kind", out)
		}
		time.Sleep(noteEvery + 2*time.Second)
		if lines("count=999") != 1 {
			t.Errorf("after a while:\n%s\nwant the sum of the other 999", out)
		}
		time.Sleep(2 * noteEvery)
		n.rejected(weir.Work{}, rej)
		if lines("msg=refusing ") != 2 {
			t.Errorf("a refusal after a pause:\n%s\nwant it logged at once", out)
		}
		cancel()
	})
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
		n := newNotes(slog.New(slog.NewTextHandler(out, nil)))
		n.rejected(weir.Work{}, &tt.rej)
		n.rejected(weir.Work{}, &tt.rej)
		n.sumUp()
		short := strings.Replace(tt.want, " reason="+tt.rej.Reason.String(), " reason="+tt.rej.Reason.String()+" count=1", 1)
		if text := out.String(); !strings.Contains(text, "msg=refusing "+tt.want+"\n") || !strings.Contains(text, `msg="refusing, in short" `+short+"\n") {
			t.Errorf("%s\nwant %q, and with a count in short", text, tt.want)
		}
	}
}

// What net/http says is about single clients, but for what an operator must do
// something about.
func TestComplaints(t *testing.T) {
	for line, want := range map[string]string{
		"http: TLS handshake error from 192.0.2.1:5: EOF\n":                                              "level=DEBUG",
		"http: panic serving 192.0.2.1:5: oh\n":                                                          "level=ERROR",
		"http: Accept error: accept tcp 127.0.0.1:8080: accept4: too many open files; retrying in 5ms\n": "level=WARN",
	} {
		out := new(logBuffer)
		c := complaints{slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		if n, err := c.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: wrote %d, %v", line, n, err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q: %s; want %s", line, out, want)
		}
	}
}

// A controller that fails is told of in a line, through the hook that gates call.
func TestAFailingControllerIsLogged(t *testing.T) {
	out := new(logBuffer)
	s := &Server{notes: newNotes(slog.New(slog.NewTextHandler(out, nil)))}
	s.hooks().Faulty("api", "it wants a limit of 0")
	if text := out.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, `gate=api problem="it wants a limit of 0"`) {
		t.Errorf("logged %s", text)
	}
}
