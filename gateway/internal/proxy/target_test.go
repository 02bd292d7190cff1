package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

func TestAddress(t *testing.T) {
	f := func(target, in, want string) {
		t.Helper()
		tg, err := newTarget(target)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.ParseRequestURI(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := tg.address(u).String(); got != want {
			t.Errorf("%s at %s: %s, want %s", in, target, got, want)
		}
	}
	f("http://a:1", "/", "http://a:1/")
	f("http://a:1/", "/x?q=1", "http://a:1/x?q=1")
	f("http://a:1/base", "/x", "http://a:1/base/x")
	f("http://a:1/base/", "/x/", "http://a:1/base/x/")
	f("http://a:1/ba%2Fse", "/x%2Fy?q", "http://a:1/ba%2Fse/x%2Fy?q")
	f("https://a", "/a//b", "https://a/a//b")
	f("h2c://a:1", "/", "http://a:1/")
}

func TestCheckUpstream(t *testing.T) {
	f := func(want string, targets ...string) {
		t.Helper()
		err := Check("app", config.Upstream{Targets: targets})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q", targets, err, want)
		}
	}
	f("", "http://a:1", "https://b:2")
	f("", "h2c://a:1", "h2c://b:2")
	f("no targets")
	f("scheme", "ftp://a")
	f("no host", "http://")
	f("1 of its 2 targets are h2c", "http://a:1", "h2c://b:2")
}

// newTestUpstream returns an upstream that leaves targets out after 3 failures,
// for 10 s.
func newTestUpstream(t *testing.T, targets ...string) *Upstream {
	t.Helper()
	u, err := New("app", config.Upstream{
		Targets: targets, Eject: config.Eject{Failures: 3, For: policy.Duration(10 * time.Second)},
	}, Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// picks says which targets n requests in a row go to, by the last letter of
// their host.
func picks(t *testing.T, u *Upstream, n int) string {
	t.Helper()
	var b strings.Builder
	for range n {
		c, err := u.pick(context.Background(), weir.Work{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(c.seat.url.Hostname())
	}
	return b.String()
}

func TestEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTestUpstream(t, "http://a", "http://b")
		fail := func(i, n int) {
			for range n {
				u.note(&exchange{choice: choice{seat: u.seats[i]}}, failedConnect, errors.New("refused"))
			}
		}
		check := func(when, want string) {
			t.Helper()
			if got := picks(t, u, len(want)); got != want {
				t.Errorf("%s: requests go to %s, want %s", when, got, want)
			}
		}
		check("at first", "abab")
		fail(0, 2)
		u.seats[0].succeeded()
		fail(0, 2)
		check("two in a row twice, with a success between", "abab")
		fail(0, 1)
		check("three in a row", "bbbb")
		fail(1, 3)
		check("the last one left fails too: it stays", "bbbb")
		if st := u.Stats(); st[1].Ejected || st[1].Ejections != 0 || !st[0].Ejected || st[0].Ejections != 1 {
			t.Errorf("stats %+v", st)
		}
		u.seats[1].succeeded()

		time.Sleep(10 * time.Second)
		if got := picks(t, u, 6); strings.Count(got, "a") != 1 {
			t.Errorf("after 10 s requests go to %s, want one that tries a", got)
		}
		fail(0, 1)
		check("it failed again", "bbbb")
		time.Sleep(10 * time.Second)
		if got := picks(t, u, 2); !strings.Contains(got, "a") {
			t.Errorf("after another 10 s requests go to %s, want one that tries a", got)
		}
		if !u.seats[0].succeeded() || u.seats[0].succeeded() {
			t.Error("the first success brings it back, and only that one")
		}
		if got := picks(t, u, 4); got != "abab" && got != "baba" {
			t.Errorf("after a success: %s, want both in turn", got)
		}
	})
}

func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTestUpstream(t, "http://a")
		u.Expect(100 * time.Millisecond)
		x := &exchange{upstream: u, started: u.now(), deadline: u.now() + time.Second}
		f := func(want time.Duration) {
			t.Helper()
			if got := x.rest(u.now(), 0) - u.now(); got != want {
				t.Errorf("after %v: %v to go, want %v", u.now()-x.started, got, want)
			}
		}
		f(100 * time.Millisecond)
		time.Sleep(50 * time.Millisecond)
		f(100 * time.Millisecond)
		time.Sleep(350 * time.Millisecond)
		f(400 * time.Millisecond)
		time.Sleep(400 * time.Millisecond)
		f(200 * time.Millisecond) // the response time-out is near
		u.Expect(0)
		f(200 * time.Millisecond)
		x.deadline = 0
		u.Expect(time.Second)
		f(time.Second)
	})
}

func TestReloadKeepsTargets(t *testing.T) {
	old := newTestUpstream(t, "http://a", "http://b")
	old.seats[1].requests.Add(7)
	next, err := New("app", config.Upstream{Targets: []string{"http://b", "http://c"}},
		Options{Logger: slog.New(slog.DiscardHandler), Previous: old})
	if err != nil {
		t.Fatal(err)
	}
	st := next.Stats()
	if st[0].Target != "http://b" || st[0].Requests != 7 || st[1].Requests != 0 {
		t.Errorf("stats %+v; want b with its 7 requests, and a new c", st)
	}
	if next.shared.transport != old.shared.transport {
		t.Error("the connections were thrown away although nothing about them has changed")
	}
}

func TestMean(t *testing.T) {
	var m mean
	m.add(time.Second)
	if m.value() != time.Second {
		t.Errorf("first value: %v", m.value())
	}
	for range 10 * meanWeight {
		m.add(2 * time.Second)
	}
	if d := 2*time.Second - m.value(); d < 0 || d > 10*time.Millisecond {
		t.Errorf("after many of 2s: %v", m.value())
	}
}

// What is quick on one route says nothing about another, and what is stuck
// nothing good about what came after it.
func TestRestByRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTestUpstream(t, "http://a")
		s := u.shared.services
		quick, slow := s.of("quick"), s.of("slow")
		f := func(what string, sv *service, age, want time.Duration) {
			t.Helper()
			x := &exchange{upstream: u, service: sv, started: u.now() - age, deadline: u.now() + time.Minute}
			if got := x.rest(u.now(), 1) - u.now(); got != want {
				t.Errorf("%s: %v to go, want %v", what, got, want)
			}
		}
		time.Sleep(time.Minute)
		s.add(quick, 10*time.Millisecond)
		f("quick", quick, 0, 10*time.Millisecond)
		f("slow, before its first answer", slow, 0, time.Minute)
		f("one route too many", nil, 0, time.Minute)
		s.add(slow, 2*time.Second)
		f("quick after slow", quick, 0, 10*time.Millisecond)
		f("slow", slow, 0, 2*time.Second)
		f("slow and old", slow, 3*time.Second, 3*time.Second)
		quick.see(1, u.now()-5*time.Second)
		quick.see(1, u.now()-time.Second) // a newer one
		f("quick, behind one that is stuck", quick, 0, 5*time.Second)
		quick.see(2, u.now())
		f("quick, with that one gone", quick, 0, 10*time.Millisecond)
		if got, want := u.Expected(), 10*time.Millisecond+(2*time.Second-10*time.Millisecond)/meanWeight; got != want {
			t.Errorf("over all routes %v, want %v", got, want)
		}
	})
}

// However many names there are, what is kept of them is bounded.
func TestServicesAreBounded(t *testing.T) {
	var s services
	first := s.of("0")
	for i := range maxServices + 10 {
		s.of(strconv.Itoa(i))
	}
	if s.of("one more") != nil || s.of("0") != first {
		t.Error("more routes than there may be, or one was forgotten")
	}
}
