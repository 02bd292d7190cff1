//go:build integration

package weirredis

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// vast is a limit that is never reached, so that what a bucket lacks counts what
// has been charged to it.
var vast = quota.Window{Rate: 1e-9, Burst: 1e12}

// load is callers that ask without a pause.
type load struct {
	store *Store
	stop  chan struct{}
	wait  sync.WaitGroup

	ok, charged, other atomic.Int64 // answered; perhaps charged; certainly not
	slowest            atomic.Int64
	late               atomic.Int64 // by how much a timer of this process was late at most
	last               atomic.Pointer[Error]
}

func startLoad(t *testing.T, s *Store, callers int) *load {
	l := &load{store: s, stop: make(chan struct{})}
	for range callers {
		l.wait.Go(func() { l.ask(t) })
	}
	l.wait.Go(l.watch)
	t.Cleanup(l.end)
	return l
}

func (l *load) ask(t *testing.T) {
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		begin := time.Now()
		r, err := l.store.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
		if took := int64(time.Since(begin)); took > l.slowest.Load() {
			l.slowest.Store(took)
		}
		var e *Error
		switch {
		case err == nil && r.OK:
			l.ok.Add(1)
		case errors.As(err, &e) && errors.Is(err, ErrUnavailable):
			l.last.Store(e)
			if e.Charged() {
				l.charged.Add(1)
			} else {
				l.other.Add(1)
			}
			<-time.After(100 * time.Microsecond) // down answers at once
		default:
			t.Errorf("%+v, %v", r, err)
			return
		}
	}
}

// watch measures how late the machine is.
func (l *load) watch() {
	const pause = 10 * time.Millisecond
	for {
		begin := time.Now()
		select {
		case <-l.stop:
			return
		case <-time.After(pause):
			l.late.Store(max(l.late.Load(), int64(time.Since(begin)-pause)))
		}
	}
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.wait.Wait()
}

// more waits until n more decisions have been made by the server.
func (l *load) more(t *testing.T, n int64, what string) {
	t.Helper()
	want := l.ok.Load() + n
	eventually(t, what, func() bool { return l.ok.Load() >= want })
}

// answersSoon fails if a caller had to wait for much longer than the deadline: what is
// wrong would take a second, or ten. A machine on which timers are late is allowed more.
func (l *load) answersSoon(t *testing.T) {
	t.Helper()
	late := time.Duration(l.late.Load())
	if took := time.Duration(l.slowest.Load()); took > 900*time.Millisecond+4*late {
		t.Errorf("a decision took %v with a deadline of %v, on a machine whose timers are late by %v", took, l.store.cfg.Deadline, late)
	}
}

// A server that is killed and started again in the middle of load: every decision
// ends in time, nothing is sent while it is down but probes, and then all is as
// before.
func TestKilled(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) {
		server := start()
		var downs, ups atomic.Int64
		s := open(t, Config{
			Addrs: []string{server.addr}, Deadline: 50 * time.Millisecond,
			OnDown: func(error) { downs.Add(1) }, OnUp: func(time.Duration) { ups.Add(1) },
		})
		l := startLoad(t, s, 16)
		l.more(t, 200, "decisions before")
		server.kill(t)
		eventually(t, "the store is down", func() bool { return s.Stats().Down })
		if st := s.Stats(); st.Why == nil || st.Since.IsZero() {
			t.Errorf("down without a word: %+v", st)
		}
		eventually(t, "refused at once", func() bool { return s.Stats().Failed[Down] > 100 })
		eventually(t, "it is looked for", func() bool { return s.Stats().Probes > 1 })
		server.start(t)
		l.more(t, 200, "decisions after")
		l.end()
		l.answersSoon(t)
		if downs.Load() < 1 {
			t.Error("nobody was told that it is down")
		}
		eventually(t, "it is up, as was told, and nothing is under way", func() bool { // a busy machine may have taken it down again
			st := s.Stats()
			return !st.Down && st.InFlight == 0 && ups.Load() == downs.Load()
		})
	})
}

// A server that stands still holds on to what it was sent. No more than MaxInFlight
// is, whoever comes, and when it goes on each script has run at most once.
func TestStandsStill(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) {
		const most, callers = 40, 200
		server := start()
		s := open(t, Config{Addrs: []string{server.addr}, Deadline: 50 * time.Millisecond, MaxInFlight: most})
		before := runtime.NumGoroutine()
		l := startLoad(t, s, callers)
		l.more(t, 500, "decisions before")
		for range 3 {
			server.signal(t, syscall.SIGSTOP)
			eventually(t, "the store is down", func() bool { return s.Stats().Down })
			if n := s.Stats().InFlight; n > most {
				t.Errorf("%d under way, at most %d", n, most)
			}
			// Each caller, each script, and a handful of the store's and the client's.
			if n := runtime.NumGoroutine() - before; n > callers+most+20 {
				t.Errorf("%d goroutines more than before, for %d callers", n, callers)
			}
			server.signal(t, syscall.SIGCONT)
			l.more(t, 500, "decisions after")
		}
		l.end()
		l.answersSoon(t)
		eventually(t, "nothing is under way", func() bool { return s.Stats().InFlight == 0 })
		r := s.look(t)
		charged := int64(vast.Burst - r.Remaining)
		ok, perhaps := l.ok.Load(), l.charged.Load()
		t.Logf("%d answered, %d perhaps charged, %d certainly not; the bucket lacks %d", ok, perhaps, l.other.Load(), charged)
		if charged < ok || charged > ok+perhaps {
			t.Errorf("the bucket lacks %d: not from %d to %d", charged, ok, ok+perhaps)
		}
	})
}

// A server that is not there yet does not keep a process from starting.
func TestNotThereYet(t *testing.T) {
	server := startRedis(t)
	server.kill(t)
	s := open(t, Config{Addrs: []string{server.addr}, Deadline: 50 * time.Millisecond})
	_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
	var e *Error
	if !errors.As(err, &e) || e.Reason != Down || e.Charged() {
		t.Errorf("%v, want down", err)
	}
	server.start(t)
	eventually(t, "a decision", func() bool {
		_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
		return err == nil
	})
}

// Nor does one that stands still keep it for long.
func TestStandsStillAtFirst(t *testing.T) {
	server := startRedis(t)
	server.signal(t, syscall.SIGSTOP)
	begin := time.Now()
	s := open(t, Config{Addrs: []string{server.addr}, Deadline: 200 * time.Millisecond, DialTimeout: 100 * time.Millisecond})
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("New took %v", took)
	}
	if !s.Stats().Down {
		t.Error("the store is not down")
	}
	server.signal(t, syscall.SIGCONT)
	eventually(t, "a decision", func() bool { return takeKey(s, "k") == nil })
}

// Many processes lose the same server. Each looks for it one probe at a time, ever
// more seldom, and nobody else sends anything.
func TestNoStampede(t *testing.T) {
	t.Parallel() // it mostly waits
	const processes = 20
	server := startRedis(t)
	stores := make([]*Store, processes)
	for i := range stores {
		stores[i] = open(t, Config{Addrs: []string{server.addr}, DialTimeout: 100 * time.Millisecond})
	}
	begin := time.Now()
	server.kill(t)
	for _, s := range stores {
		eventually(t, "the store is down", func() bool {
			_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
			return err != nil && s.Stats().Down
		})
	}
	for _, s := range stores {
		eventually(t, "several probes", func() bool { return s.Stats().Probes >= 5 })
	}
	for i, s := range stores {
		n, took := s.Stats().Probes, time.Since(begin)
		var b backoff
		most, sum := uint64(1), time.Duration(0) // as many as fit if all waits are the shortest
		for ; sum < took; most++ {
			sum += b.next(0)
		}
		if n > most {
			t.Errorf("process %d has probed %d times in %v, at most %d", i, n, took, most)
		}
	}
	server.start(t)
	for _, s := range stores {
		eventually(t, "the store is up", func() bool { return !s.Stats().Down })
		takeOne(t, s, vast)
	}
}

// A caller who leaves hears of it at once, and nobody thinks worse of the server.
func TestCallerLeaves(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	server.signal(t, syscall.SIGSTOP)
	askAndLeave(t, s, 2*tripAfter)
	server.signal(t, syscall.SIGCONT)
	if s.Stats().Down {
		t.Error("the store is down")
	}
}

// askAndLeave has callers ask a server that stands still, and leave.
func askAndLeave(t *testing.T, s *Store, callers int) {
	t.Helper()
	for i := range callers {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			_, err := s.Decide(ctx, &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
			done <- err
		}()
		eventually(t, "it is under way", func() bool { return s.Stats().InFlight == i+1 })
		cancel()
		var e *Error
		if err := <-done; !errors.Is(err, context.Canceled) || !errors.As(err, &e) || e.Reason != Timeout {
			t.Errorf("%v, want that the context is over", err)
		}
	}
}

// What becomes of a call when its caller has left is counted: nobody else may wait when the
// connection is found dead.
func TestCallersLeaveBeforeItBreaks(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	server.signal(t, syscall.SIGSTOP)
	askAndLeave(t, s, tripAfter)
	server.kill(t)
	eventually(t, "the store is down", func() bool { return s.Stats().Down })
}

// After Close nothing is sent, and what was under way has ended: no goroutine is
// left, of the store's or the client's.
func TestClosed(t *testing.T) {
	server := startRedis(t)
	before := runtime.NumGoroutine()
	s := open(t, Config{Addrs: []string{server.addr}})
	l := startLoad(t, s, 8)
	l.more(t, 100, "decisions before")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "closed", func() bool { e := l.last.Load(); return e != nil && e.Reason == Closed })
	l.end()
	if n := s.Stats().InFlight; n != 0 {
		t.Errorf("%d under way", n)
	}
	if err := s.Close(); err != nil {
		t.Errorf("a second time: %v", err)
	}
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// slowly passes connections on to a server, and its answers on after a delay.
type slowly struct {
	addr  string
	delay atomic.Int64
}

func startSlowly(t *testing.T, server *server) *slowly {
	t.Helper()
	p := &slowly{}
	p.addr = relay(t, server, func(client, upstream net.Conn) {
		go p.pass(upstream, client, false)
		go p.pass(client, upstream, true)
	})
	return p
}

// relay accepts connections for a server, and has pass begin to hand on what either side
// says.
func relay(t *testing.T, server *server, pass func(client, upstream net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server.addr)
			if err != nil {
				client.Close()
				continue
			}
			pass(client, upstream)
		}
	}()
	return l.Addr().String()
}

func (p *slowly) pass(to, from net.Conn, late bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if late {
			<-time.After(time.Duration(p.delay.Load()))
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// A server that answers, but later than a decision may take, is down too: a probe
// that it answers late does not count. What it was sent is charged, and nothing is
// sent again.
func TestSlow(t *testing.T) {
	t.Parallel() // it mostly waits
	server := startRedis(t)
	slow := startSlowly(t, server)
	s := open(t, Config{Addrs: []string{slow.addr}, Deadline: 500 * time.Millisecond})
	take := func() error {
		_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
		return err
	}
	eventually(t, "a decision", func() bool { return take() == nil })
	slow.delay.Store(int64(800 * time.Millisecond))
	var e *Error
	if err := take(); !errors.As(err, &e) || e.Reason != Timeout || !e.Charged() {
		t.Errorf("%v, want a time-out that may have charged", err)
	}
	eventually(t, "the store is down", func() bool { return take() != nil && s.Stats().Down })
	eventually(t, "a probe is too slow", func() bool {
		why := s.Stats().Why
		return why != nil && strings.Contains(why.Error(), "a probe took")
	})
	if !s.Stats().Down {
		t.Error("a slow probe takes the store up")
	}
	slow.delay.Store(0)
	eventually(t, "the store is up", func() bool { return take() == nil })
}

// tell is ask of a server that may not answer, or by breaking the connection.
func (s *server) tell(t *testing.T, line string) {
	t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprintf(c, "%s\r\n", line)
	_, _ = c.Read(make([]byte, 1<<10))
}

// What is done to a server under load ends no decision late, leaves nothing under way,
// and charges what it says it has.
func TestSiege(t *testing.T) {
	for name, tt := range map[string]struct {
		attack, end string
		many        bool // the attack comes again and again
		down        bool
	}{
		"scripts forgotten":  {attack: "SCRIPT FLUSH", many: true},
		"connections killed": {attack: "CLIENT KILL TYPE normal", many: true, down: true},
		"a replica":          {attack: "REPLICAOF 127.0.0.1 1", end: "REPLICAOF NO ONE", down: true},
		"out of memory":      {attack: "CONFIG SET maxmemory 1", end: "CONFIG SET maxmemory 0", down: true},
		"keys taken away":    {attack: "ACL SETUSER weir resetkeys", end: "ACL SETUSER weir ~weir:*", down: true},
		"a user removed":     {attack: "ACL DELUSER weir", end: "ACL SETUSER weir on >secret ~weir:* -@all " + rights, down: true},
		"a long pause":       {attack: "CLIENT PAUSE 500", down: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := startRedis(t)
			server.grant(t, rights)
			before := runtime.NumGoroutine()
			s := open(t, Config{Addrs: []string{server.addr}, Username: "weir", Password: "secret", Deadline: 50 * time.Millisecond})
			const callers = 16
			l := startLoad(t, s, callers)
			l.more(t, 200, "decisions before")
			server.tell(t, tt.attack)
			for i := 0; tt.many && i < 50; i++ {
				server.tell(t, tt.attack)
			}
			if tt.down {
				eventually(t, "the store has been down", func() bool { return s.Stats().Trips > 0 })
			}
			if n := runtime.NumGoroutine() - before; n > 2*callers+60 {
				t.Errorf("%d goroutines more than before", n)
			}
			if tt.end != "" {
				server.tell(t, tt.end)
			}
			eventually(t, "the store is up", func() bool { return !s.Stats().Down })
			l.more(t, 200, "decisions after")
			l.end()
			l.answersSoon(t)
			eventually(t, "nothing is under way", func() bool { return s.Stats().InFlight == 0 })
			r := s.look(t)
			ok, perhaps, charged := l.ok.Load(), l.charged.Load(), int64(vast.Burst-r.Remaining)
			if charged < ok || charged > ok+perhaps {
				t.Errorf("the bucket lacks %d: not from %d to %d", charged, ok, ok+perhaps)
			}
		})
	}
}

// After a failover the old server may live on as a replica. It keeps its connections, so that
// only new ones reach the server to which the name leads by now.
func TestDemoted(t *testing.T) {
	for said, options := range map[string][]string{
		"READONLY":   nil,
		"MASTERDOWN": {"--replica-serve-stale-data", "no"},
	} {
		t.Run(said, func(t *testing.T) {
			old, next := startRedis(t, options...), startRedis(t)
			var leads atomic.Pointer[server]
			leads.Store(old)
			c := Config{
				Addrs: []string{"redis:6379"},
				dial: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
					return d.DialContext(ctx, "tcp", leads.Load().addr)
				},
			}
			s, rules := open(t, c), open(t, c).Document("rules")
			takeOne(t, s, vast)
			old.ask(t, "REPLICAOF 127.0.0.1 1")
			eventually(t, "the store is down", func() bool {
				_ = takeKey(s, "k")
				st := s.Stats()
				return st.Down && strings.Contains(st.Why.Error(), said)
			})
			if _, err := rules.Write(t.Context(), nil, []byte("a")); err == nil || !strings.Contains(err.Error(), said) {
				t.Errorf("%v, want %s", err, said)
			}
			leads.Store(next)
			eventually(t, "the store is up", func() bool { return takeKey(s, "k") == nil })
			eventually(t, "a document is written", func() bool {
				written, err := rules.Write(t.Context(), nil, []byte("a"))
				return written && err == nil
			})
		})
	}
}

// Whatever somebody has put under a key lets no more through than a full bucket does,
// and takes nothing down but that key.
func TestPlanted(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	now := float64(time.Now().UnixMicro())
	bucket := func(tokens, last float64) string {
		b := binary.LittleEndian.AppendUint64([]byte{1, 0}, math.Float64bits(tokens))
		return string(binary.LittleEndian.AppendUint64(b, math.Float64bits(last)))
	}
	nan, inf := math.NaN(), math.Inf(1)
	for i, value := range []string{
		"", "hello", bucket(nan, now), bucket(inf, now), bucket(-inf, now), bucket(5, nan), bucket(5, inf), bucket(5, -inf),
		bucket(5, 1e300), bucket(5, -1e300), bucket(1e300, now), bucket(-1e300, now), "\x02" + bucket(1, now)[1:], "\x01\x09" + bucket(1, now)[2:],
		strings.Repeat(bucket(5, now), 50),
	} {
		for j, limits := range [][]quota.Window{
			{quota.Per(10, time.Hour)}, {quota.Per(10, time.Hour), quota.Per(20, time.Hour)}, {quota.PerCalendar(10, quota.Month, nil)},
		} {
			take := quota.Request{Key: fmt.Sprintf("%d-%d", i, j), Windows: limits, Cost: 1}
			server.set(t, keyOf("weir:", take.Key), value)
			through := 0
			for range 25 {
				r, err := s.Decide(context.Background(), &take)
				var e *Error
				if err != nil && (!errors.As(err, &e) || e.Reason != Invalid) {
					t.Fatalf("%q: %v, want invalid", value, err)
				}
				if math.IsNaN(r.Remaining) || math.IsInf(r.Remaining, 0) {
					t.Errorf("%q: %+v", value, r)
				}
				if r.OK {
					through++
				}
			}
			if through > 10 {
				t.Errorf("%q, %v: %d let through", value, limits, through)
			}
		}
	}
}

// set puts a value under a key.
func (s *server) set(t *testing.T, key, value string) {
	t.Helper()
	s.ask(t, fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s", len(key), key, len(value), value))
}

// startCutting passes connections on to a server. Where cut is set, the answer to the
// next script is lost and its connection ends.
func startCutting(t *testing.T, server *server) (addr string, cut *atomic.Bool) {
	t.Helper()
	cut = new(atomic.Bool)
	addr = relay(t, server, func(client, upstream net.Conn) {
		var doomed atomic.Bool
		go pass(upstream, client, func(asked []byte) bool {
			if bytes.Contains(asked, []byte("EVAL")) && cut.CompareAndSwap(true, false) {
				doomed.Store(true)
			}
			return true
		})
		go pass(client, upstream, func([]byte) bool { return !doomed.Load() })
	})
	return addr, cut
}

// pass passes on what may be, and ends both connections with what may not.
func pass(to, from net.Conn, may func([]byte) bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || !may(buffer[:n]) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// A decision whose connection breaks before the answer is there has been charged, and
// is not sent again: twice is not what was asked for.
func TestAnswerLost(t *testing.T) {
	addr, cut := startCutting(t, startRedis(t))
	s := open(t, Config{Addrs: []string{addr}, DialTimeout: patient})
	l := quota.Window{Rate: 1e-9, Burst: 100}
	if r := takeOne(t, s, l); !r.OK || r.Remaining != 99 {
		t.Fatalf("%+v", r)
	}
	cut.Store(true)
	_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Cost: 1})
	var e *Error
	if !errors.As(err, &e) || e.Reason != Broken || !e.Charged() {
		t.Errorf("%v, want that the connection broke, and that it may be charged", err)
	}
	eventually(t, "another connection", func() bool {
		r, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Mode: quota.DryRun})
		if err == nil && (r.Remaining < 97.5 || r.Remaining > 98.5) {
			t.Errorf("%v left, want 98: 100 less 1, and less 1 that nobody was told of", r.Remaining)
		}
		return err == nil
	})
}
