package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirhttp"
)

// refusing is a target of HTTP/2 that refuses its first requests, and answers what comes then. It resets their streams, or
// with goAway ends their connections. It begins none of them.
type refusing struct {
	*bufconn.Listener
	first  int32
	goAway bool
	seen   atomic.Int32
	// timeouts gets the deadline of each attempt, where it is not nil.
	timeouts chan string
}

func startRefusing(t *testing.T, first int32, goAway bool) *refusing {
	r := &refusing{Listener: bufconn.Listen(64 << 10), first: first, goAway: goAway}
	t.Cleanup(func() { r.Close() })
	go func() {
		for {
			c, err := r.Accept()
			if err != nil {
				return
			}
			go r.serve(c) // it ends with the upstream's idle connections
		}
	}()
	return r
}

func (r *refusing) serve(c net.Conn) {
	defer c.Close()
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
	_ = framer.WriteSettings()
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return
		}
		headers, ok := f.(*http2.MetaHeadersFrame)
		if ok && r.timeouts != nil {
			r.timeouts <- timeoutIn(headers)
		}
		switch {
		case !ok:
		case r.seen.Add(1) > r.first:
			ok200 := []byte{0x88} // :status 200 (RFC 7541, A)
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: headers.StreamID, BlockFragment: ok200, EndHeaders: true, EndStream: true})
		case r.goAway:
			_ = framer.WriteGoAway(0, http2.ErrCodeNo, nil)
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond)) // a close with something unread may overtake what was written
			_, _ = io.Copy(io.Discard, c)
			return
		default:
			_ = framer.WriteRSTStream(headers.StreamID, http2.ErrCodeRefusedStream)
		}
	}
}

func timeoutIn(headers *http2.MetaHeadersFrame) string {
	for _, f := range headers.RegularFields() {
		if f.Name == "x-request-timeout" {
			return f.Value
		}
	}
	return ""
}

// dialRefusing connects an upstream to targets, the first of which is h2c://a, and the next h2c://b. A nil one is dead.
func dialRefusing(u *Upstream, targets ...*refusing) {
	u.shared.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if r := targets[address[0]-'a']; r != nil {
			return r.DialContext(ctx)
		}
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("refused")}
	}
}

// What a target of HTTP/2 refuses to begin is sent to it again, and then to another one; to the last one left more often,
// later. A body whose beginning is kept is sent again. That a target was busy does not eject it.
func TestRefusedOverHTTP2(t *testing.T) {
	const always = 1000
	f := func(name string, first, other int32, body string, code int, sent, further int32, failures uint64) {
		t.Helper()
		for _, goAway := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				cfg := config.Upstream{Targets: []string{"h2c://a"}, Eject: config.Eject{Failures: 1, For: policy.Duration(time.Hour)}}
				a, b := startRefusing(t, first, goAway), startRefusing(t, other, goAway)
				if other >= 0 {
					cfg.Targets = append(cfg.Targets, "h2c://b")
				}
				u := makeUpstream(t, cfg, io.Discard, nil)
				defer u.ReplacedBy(nil)
				defer time.Sleep(2 * watchLinger) // until the watch and what net/http has begun have ended
				dialRefusing(u, a, b)
				w := httptest.NewRecorder()
				u.Serve(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)), &Call{})
				if w.Code != code || a.seen.Load() != sent || b.seen.Load() != further {
					t.Errorf("%s (GOAWAY: %v): %d, sent %d times and %d times to the other target; want %d, %d and %d",
						name, goAway, w.Code, a.seen.Load(), b.seen.Load(), code, sent, further)
				}
				if s := u.Stats()[0]; s.Requests != uint64(sent) || s.Failures["reset"] != failures || s.Ejected {
					t.Errorf("%s (GOAWAY: %v): %+v, want %d failures", name, goAway, s, failures)
				}
			})
		}
	}
	const alone = -1
	f("once", 1, 0, "", http.StatusOK, 2, 0, 0)
	f("twice", 2, alone, "", http.StatusOK, 3, 0, 0)
	f("many times", 5, alone, "", http.StatusOK, 6, 0, 0)
	f("always", always, alone, "", http.StatusBadGateway, 6, 0, 1)
	f("always, beside another target", always, 0, "", http.StatusOK, 2, 1, 1)
	f("by both", always, always, "", http.StatusBadGateway, 2, 5, 1)
	f("with a body", always, 0, "x", http.StatusOK, 2, 1, 1)
	f("with a long body", 2, alone, strings.Repeat("x", 20<<10), http.StatusOK, 3, 0, 0)
}

// What an attempt has read is the next one's too, while it is kept, and so is what an attempt that is over has waited for. An answer
// ends that.
func TestKeptBody(t *testing.T) {
	begin := func(whole bool, client io.Reader) (*clientBody, func() *sentBody) {
		x := &exchange{upstream: newTestUpstream(t, "http://a"), call: new(Call)}
		b := &clientBody{body: io.NopCloser(client), x: x, whole: whole}
		return b, func() *sentBody {
			s := new(sentBody)
			b.send(s, new(http.Request))
			return s
		}
	}
	long := strings.Repeat("0123456789abcdef", mostKept/16)
	for _, tt := range []struct {
		text             string
		whole, settled   bool
		repeatable, kept bool
	}{
		{text: long, whole: true, repeatable: true, kept: true},
		{text: long + "x", whole: true},
		{text: long, whole: true, settled: true},
		{text: "HTTP/1"},
	} {
		b, next := begin(tt.whole, strings.NewReader(tt.text))
		first := next()
		if got, err := io.ReadAll(first); err != nil || string(got) != tt.text {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if tt.settled {
			b.settle()
		}
		_ = first.Close()
		if b.repeatable() != tt.repeatable || (b.kept != nil) != tt.kept {
			t.Errorf("of %d bytes %d are kept, can be repeated: %v", len(tt.text), len(b.kept), b.repeatable())
		}
		if got, err := io.ReadAll(next()); tt.repeatable && (err != nil || string(got) != tt.text) {
			t.Errorf("%d of %d bytes again, %v", len(got), len(tt.text), err)
		}
	}
	for _, closed := range []bool{true, false} { // a transport may still have to close the body
		keptWhileRead(t, closed, begin)
	}
}

// keptWhileRead has an attempt end while it waits for the client. What comes then is for the next attempt.
func keptWhileRead(t *testing.T, closed bool, begin func(whole bool, client io.Reader) (*clientBody, func() *sentBody)) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		b, next := begin(true, r)
		first, ended := next(), !closed
		first.abort = func() { ended = true }
		read := make(chan error)
		go func() {
			_, err := io.ReadAll(first)
			read <- err
		}()
		_, _ = w.Write([]byte("one "))
		synctest.Wait() // the client is waited for
		if closed {
			_ = first.Close()
		}
		second := next()
		go func() {
			_, _ = w.Write([]byte("two"))
			_ = w.Close()
		}()
		got, err := io.ReadAll(second)
		if err != nil || string(got) != "one two" || !ended || !b.repeatable() {
			t.Errorf("%q, %v; the attempt has been ended: %v", got, err, ended)
		}
		if err := <-read; err != errAttemptOver {
			t.Errorf("the attempt that is over ends with %v", err)
		}
	})
}

// Nobody works on a request in the pause before another attempt. It ends when the client leaves or a shutdown cuts it, and
// does not begin where response_timeout leaves no time for it.
func TestPauseAfterARefusal(t *testing.T) {
	const early = 100 * time.Millisecond
	f := func(what string, first, sent int32, timeout, least, most time.Duration, act func(call *Call, leave func())) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			u := makeUpstream(t, config.Upstream{Targets: []string{"h2c://a"}, ResponseTimeout: policy.Duration(timeout)}, io.Discard, nil)
			a := startRefusing(t, first, false)
			defer u.ReplacedBy(nil)
			defer time.Sleep(2 * watchLinger) // until the watch and what net/http has begun have ended
			dialRefusing(u, a)
			client, leave := context.WithCancel(t.Context())
			defer leave()
			call, began := new(Call), time.Now()
			act(call, leave)
			func() {
				defer func() { _ = recover() }() // ReverseProxy aborts answers that are cut off
				u.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(client), call)
			}()
			if took := time.Since(began); took < least || took > most || a.seen.Load() != sent || u.Expected() != 0 || u.Abandoned() != 0 {
				t.Errorf("%s: ended after %v, sent %d times, %v expected, %d abandoned; want %v to %v and %d times",
					what, took, a.seen.Load(), u.Expected(), u.Abandoned(), least, most, sent)
			}
		})
	}
	f("an answer after it", 2, 3, 0, firstRest/2, 3*firstRest/2, func(*Call, func()) {})
	f("the client leaves", 1000, 2, 0, early, early, func(_ *Call, leave func()) { time.AfterFunc(early, leave) })
	f("a shutdown", 1000, 2, 0, early, early+watchEvery, func(call *Call, _ func()) {
		cutting, cut := context.WithCancel(context.Background())
		call.Cutting = cutting
		time.AfterFunc(early, cut)
	})
	f("no time for it", 1000, 2, early, 0, 0, func(*Call, func()) {})
	f("a deadline before its end", 1000, 2, 0, 0, 0, func(call *Call, _ func()) { call.Work.Deadline = time.Now().Add(early) })
}

// After a pause the target hears how much time is left then. How long the answer took with it says nothing of the target.
func TestAnswerAfterAPause(t *testing.T) {
	const patience = time.Minute
	for refusals, want := range map[int32]weir.Outcome{1: weir.OK, 2: weir.NoSample} {
		synctest.Test(t, func(t *testing.T) {
			u := makeUpstream(t, config.Upstream{Targets: []string{"h2c://a"}}, io.Discard, nil)
			a := startRefusing(t, refusals, false)
			a.timeouts = make(chan string, refusals+1)
			defer u.ReplacedBy(nil)
			defer time.Sleep(2 * watchLinger) // until the watch and what net/http has begun have ended
			dialRefusing(u, a)
			gate, w, r := newSampled(), httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-Request-Timeout", patience.String())
			began := time.Now()
			weirhttp.NewGuard().Serve(w, r, gate, weir.Work{}, func(w http.ResponseWriter, r *http.Request, q *weirhttp.Request) {
				u.Serve(w, r, &Call{Request: q, Arrived: began})
			})
			if w.Code != http.StatusOK || gate.outcome != want {
				t.Errorf("%d refusals: %d, sampled as %v, want %v", refusals, w.Code, gate.outcome, want)
			}
			var told string
			for range refusals + 1 {
				told = <-a.timeouts
			}
			left, err := time.ParseDuration(told)
			if d := patience - time.Since(began) - left; err != nil || d < -time.Millisecond || d > time.Millisecond {
				t.Errorf("%d refusals: the last attempt was told %s, after %v of %v", refusals, told, time.Since(began), patience)
			}
		})
	}
}

// That a target speaks HTTP/2 is known with its first connection, before it has answered anything.
func TestTargetThatChoosesHTTP2(t *testing.T) {
	var u *Upstream
	server := startHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		if !u.seats[0].http2.Load() {
			t.Error("the target is not known to speak HTTP/2")
		}
	})
	u = makeUpstream(t, config.Upstream{Targets: []string{server.URL}}, io.Discard, nil)
	u.shared.transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	w := httptest.NewRecorder()
	u.Serve(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x")), &Call{})
	if w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Who was refused over HTTP/2 may have caused that, so quotas give nothing back, whatever comes then.
func TestRefusedAndCharged(t *testing.T) {
	for name, want := range map[string]int{"full": http.StatusServiceUnavailable, "dead": http.StatusBadGateway} {
		cfg := config.Upstream{Targets: []string{"h2c://a", "h2c://b"}, Limit: &policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{Len: -1}}}
		gates := WithTargetGates(map[string]policy.GateSpec{"quota": {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h", Burst: 10}}}}, map[string]config.Upstream{"app": cfg})
		pol := compile(t, policy.Spec{Gates: gates}, policy.Options{})
		u := makeUpstream(t, cfg, io.Discard, nil)
		u.seats = nil
		u.Attach(pol, nil)
		dialRefusing(u, startRefusing(t, 2, false), nil)
		if name == "full" {
			defer fill(t, pol.Gate("app@b"))()
		}
		q := pol.Gate("quota")
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		weirhttp.NewGuard().Serve(w, r, q, weir.Work{}, func(w http.ResponseWriter, r *http.Request, request *weirhttp.Request) {
			u.Serve(w, r, &Call{Request: request, Quotas: Quotas{q}})
		})
		left, _ := q.Quota().Last(context.Background(), weir.Work{})
		if w.Code != want || int(left.Remaining) != 9 {
			t.Errorf("%s: %d, and %v of 10 are left", name, w.Code, left.Remaining)
		}
	}
}
