package accept

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/weir-go/weir/policy"
)

// at is an address for tests.
func at(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// step is an event at a limiter, with its result.
type step struct {
	now   time.Duration
	addr  netip.Addr
	leave int // which of those let in leaves, from 1; 0: addr comes
	want  limitKind
}

// counts are the values that the tests compare.
type counts struct {
	open, peers, crowd int
	admitted           uint64
	refused, observed  [numLimitKinds]uint64
}

func (d *limiter) snapshot() counts {
	return counts{d.open, d.peers.len(), d.peers.crowd.open, d.admitted, d.refused, d.observed}
}

func TestLimiter(t *testing.T) {
	a, b, c := at(1), at(2), at(3)
	v6 := netip.MustParseAddr
	for _, tt := range []struct {
		name   string
		limits limits
		steps  []step
	}{
		{"no limits", limits{}, []step{{addr: a}, {addr: a}, {addr: netip.Addr{}}}},
		{"all", limits{open: 2}, []step{{addr: a}, {addr: b}, {addr: c, want: limitOpen}, {leave: 1}, {addr: c}, {addr: a, want: limitOpen}}},
		{"each", limits{open: 9, peerOpen: 1, peers: 9}, []step{
			{addr: a}, {addr: a, want: limitPeerOpen}, {addr: b}, {leave: 1}, {addr: a}, {addr: b, want: limitPeerOpen},
		}},
		{"IPv6 by /64", limits{peerOpen: 1, peers: 9}, []step{
			{addr: v6("2001:db8::1")}, {addr: v6("2001:db8::ffff:2"), want: limitPeerOpen}, {addr: v6("2001:db8:0:1::1")},
			{addr: v6("::ffff:10.0.0.1")}, {addr: a, want: limitPeerOpen},
			{addr: v6("fe80::1%eth0")}, {addr: v6("fe80::2%eth1"), want: limitPeerOpen},
		}},
		{"exempt", limits{open: 3, peerOpen: 1, peerRate: 1, peers: 9, exempt: func(x netip.Addr) bool { return x == a }}, []step{
			{addr: a}, {addr: a}, {addr: b}, {addr: a, want: limitOpen},
		}},
		{"rate", limits{rate: 2}, []step{
			{addr: a}, {addr: b}, {addr: c, want: limitRate}, {now: 499 * time.Millisecond, addr: c, want: limitRate},
			{now: 500 * time.Millisecond, addr: c}, {now: 500 * time.Millisecond, addr: c, want: limitRate},
			{now: time.Hour, addr: a}, {now: time.Hour, addr: a}, {now: time.Hour, addr: a, want: limitRate},
		}},
		{"less than one a second", limits{rate: 0.1}, []step{
			{addr: a}, {now: 9 * time.Second, addr: a, want: limitRate}, {now: 10 * time.Second, addr: a},
		}},
		{"a clock that goes back", limits{rate: 1}, []step{
			{now: time.Hour, addr: a}, {now: time.Minute, addr: a, want: limitRate}, {now: time.Minute + time.Second, addr: a},
		}},
		{"rate of each", limits{peerRate: 1, peers: 9}, []step{
			{addr: a}, {addr: a, want: limitPeerRate}, {addr: b}, {leave: 1}, {addr: a, want: limitPeerRate}, {now: time.Second, addr: a},
		}},
		{"who is refused for itself takes nothing from others", limits{rate: 2, peerRate: 1, peers: 9}, []step{
			{addr: a}, {addr: a, want: limitPeerRate}, {addr: a, want: limitPeerRate}, {addr: b}, {addr: c, want: limitRate},
			{now: 500 * time.Millisecond, addr: c}, // its own was not charged
		}},
		{"a crowd is one address", limits{peerOpen: 2, peers: 1}, []step{
			{addr: a}, {addr: b}, {addr: c}, {addr: at(4), want: limitAddresses}, {addr: a}, {addr: a, want: limitPeerOpen},
			{leave: 2}, {addr: at(4)}, {leave: 1}, {addr: at(5), want: limitAddresses},
		}},
		{"a crowd's rate", limits{peerRate: 1, peers: 1}, []step{
			{now: time.Second, addr: a}, {now: time.Second, addr: b}, {now: time.Second, addr: c, want: limitAddresses},
		}},
		{"the idle make room once they are as good as new", limits{peerRate: 1, peers: 1}, []step{
			{now: time.Second, addr: a}, {now: time.Second, leave: 1},
			{now: 1500 * time.Millisecond, addr: b}, // in the crowd
			{now: 1500 * time.Millisecond, addr: c, want: limitAddresses},
			{now: 2 * time.Second, addr: c},
			{now: 2 * time.Second, addr: c, want: limitPeerRate},
		}},
		{"nobody is forgotten who is in", limits{peerOpen: 1, peers: 1}, []step{
			{addr: a}, {now: time.Hour, addr: b}, {now: time.Hour, addr: a, want: limitPeerOpen}, {now: time.Hour, leave: 1}, {now: time.Hour, addr: c},
			{now: time.Hour, addr: c, want: limitPeerOpen},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newLimiter(tt.limits)
			var in []*peer
			for i, s := range tt.steps {
				if s.leave > 0 {
					d.leave(in[s.leave-1], s.now)
					continue
				}
				p, got := d.admit(s.addr, s.now)
				if got != s.want {
					t.Fatalf("step %d: %v at %v: %q, want %q", i, s.addr, s.now, got, s.want)
				}
				if got == noLimit {
					in = append(in, p)
				}
			}
		})
	}
}

// admitOrRefuse is admit with the refusal counted.
func admitOrRefuse(d *limiter, addr netip.Addr, now time.Duration) (*peer, limitKind) {
	p, got := d.admit(addr, now)
	if got != noLimit {
		d.countRefused(got)
	}
	return p, got
}

// New limits hold at once, keep all counts, and fill no bucket.
func TestLimiterReconfigured(t *testing.T) {
	a, b := at(1), at(2)
	d := newLimiter(limits{open: 9, peerOpen: 9, rate: 10, peerRate: 4, peers: 9})
	admit := func(addr netip.Addr, now time.Duration, want limitKind) *peer {
		t.Helper()
		p, got := admitOrRefuse(d, addr, now)
		if got != want {
			t.Fatalf("%v at %v: %q, want %q", addr, now, got, want)
		}
		return p
	}
	var in []*peer
	for range 4 {
		in = append(in, admit(a, 0, noLimit))
	}
	d.configure(limits{open: 9, peerOpen: 2, rate: 100, peerRate: 100, peers: 9}, 0)
	admit(a, time.Minute, limitPeerOpen) // four are in
	d.leave(in[0], time.Minute)
	d.leave(in[1], time.Minute)
	admit(a, time.Minute, limitPeerOpen)
	d.leave(in[2], time.Minute)
	admit(a, time.Minute, noLimit)
	d.configure(limits{open: 9, rate: 6}, time.Minute)
	for range 6 {
		admit(b, time.Minute, noLimit)
	}
	d.configure(limits{open: 9, rate: 1000}, time.Minute)
	admit(b, time.Minute, limitRate) // not one of a thousand
	admit(b, time.Minute+time.Millisecond, noLimit)
	d.configure(limits{open: 3}, time.Minute)
	admit(b, time.Minute, limitOpen)
	d.leave(in[3], time.Minute)
	if s := d.snapshot(); s.open != 8 || s.admitted != 12 || s.refused[limitPeerOpen] != 2 || s.refused[limitRate] != 1 || s.refused[limitOpen] != 1 {
		t.Errorf("%+v", s)
	}
}

// A limiter in observe mode decides as in enforce mode, but admits connections that it would refuse. Only the
// limit on all connections at once is always enforced.
func TestLimiterObserves(t *testing.T) {
	a, b := at(1), at(2)
	d := newLimiter(limits{open: 5, peerOpen: 2, rate: 4, peers: 9, mode: policy.Observe})
	type guest struct{ p *peer }
	admit := func(addr netip.Addr, now time.Duration, would, want limitKind) guest {
		t.Helper()
		p, got := d.admit(addr, now)
		if got != would {
			t.Fatalf("%v at %v: %q, want %q", addr, now, got, would)
		}
		if got != noLimit {
			got = d.observe(got)
		}
		if got != want {
			t.Fatalf("%v at %v: %q in the end, want %q", addr, now, got, want)
		}
		return guest{p}
	}
	first := admit(a, 0, noLimit, noLimit)
	admit(a, 0, noLimit, noLimit)
	would := admit(a, 0, limitPeerOpen, noLimit)
	admit(b, 0, noLimit, noLimit)
	if s := d.snapshot(); s.open != 4 || s.admitted != 4 || s.observed[limitPeerOpen] != 1 || s.peers != 2 {
		t.Errorf("%+v", s)
	}
	d.leave(would.p, 0) // frees nothing of the two of a
	admit(a, 0, limitPeerOpen, noLimit)
	d.leave(first.p, 0)
	admit(a, 0, noLimit, noLimit) // the fourth that is within the limits
	admit(b, 0, limitRate, noLimit)
	admit(b, 0, limitOpen, limitOpen)
	if s := d.snapshot(); s.open != 5 || s.observed[limitRate] != 1 || s.observed[limitPeerOpen] != 2 || s.observed[limitOpen] != 0 {
		t.Errorf("%+v", s)
	}
	d.configure(limits{open: 9, peerOpen: 2, peers: 9}, 0)
	admit(a, 0, limitPeerOpen, limitPeerOpen)
}

// However many addresses connect, the number of known ones is bounded, and a stranger gets no more than the
// crowd has.
func TestLimiterFlood(t *testing.T) {
	const known, each = 100, 3
	d := newLimiter(limits{peerOpen: each, peerRate: each, peers: known})
	regular, _ := d.admit(at(0), 0)
	for i := 1; i <= 100_000; i++ {
		admitOrRefuse(d, at(i), 0)
	}
	s := d.snapshot()
	if s.peers != known || s.crowd != each || s.open != known+each || s.refused[limitAddresses] != 100_000-known-each+1 {
		t.Errorf("%+v", s)
	}
	if _, got := d.admit(at(0), 0); got != noLimit {
		t.Errorf("one who was there before: %q", got)
	}
	d.leave(regular, 0)
	if _, got := d.admit(at(0), 0); got != noLimit {
		t.Errorf("one who was there before, again: %q", got)
	}
}

// slowLimiter is a simple limiter with unbounded memory: it keeps each address for ever.
type slowLimiter struct {
	limits limits
	open   int
	bucket bucket
	peers  map[netip.Addr]*peer
}

func (d *slowLimiter) admit(addr netip.Addr, now time.Duration) limitKind {
	l, p := &d.limits, d.peers[addr]
	if p == nil {
		p = &peer{bucket: fullBucket(l.peerRate, now)}
		d.peers[addr] = p
	}
	switch {
	case l.open > 0 && d.open >= l.open:
		return limitOpen
	case l.peerOpen > 0 && p.open >= l.peerOpen:
		return limitPeerOpen
	case l.peerRate > 0 && !p.bucket.refill(l.peerRate, now):
		return limitPeerRate
	case l.rate > 0 && !d.bucket.refill(l.rate, now):
		return limitRate
	}
	d.open++
	d.bucket.tokens--
	p.open++
	p.bucket.tokens--
	return noLimit
}

// While the table has room, a limiter decides as slowLimiter does.
func FuzzLimiter(f *testing.F) {
	f.Add([]byte("hello, door: a few comings and goings"), uint64(1))
	f.Add([]byte{0, 0, 0, 0, 1, 2, 3, 255, 255, 128, 7, 7, 7}, uint64(99))
	f.Fuzz(func(t *testing.T, script []byte, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := limits{
			open: r.IntN(8), peerOpen: r.IntN(4), rate: float64(r.IntN(8)) / 2, peerRate: float64(r.IntN(4)) / 2, peers: 16,
		}
		d := newLimiter(l)
		slow := &slowLimiter{limits: l, bucket: fullBucket(l.rate, 0), peers: map[netip.Addr]*peer{}}
		type held struct {
			p    *peer
			addr netip.Addr
		}
		var in []held
		now := time.Duration(0)
		for len(script) >= 2 {
			n := binary.LittleEndian.Uint16(script)
			script = script[2:]
			now += time.Duration(n>>8) * 4 * time.Millisecond
			addr := at(int(n & 15))
			if n&16 != 0 && len(in) > 0 {
				i := int(n&15) % len(in)
				d.leave(in[i].p, now)
				slow.open--
				slow.peers[in[i].addr].open--
				in = append(in[:i], in[i+1:]...)
				continue
			}
			p, got := d.admit(addr, now)
			if want := slow.admit(addr, now); got != want {
				t.Fatalf("%+v: %v at %v: %q, want %q", l, addr, now, got, want)
			}
			if got == noLimit {
				in = append(in, held{p, addr})
			}
		}
		if s := d.snapshot(); s.open != len(in) {
			t.Errorf("%d open, want %d", s.open, len(in))
		}
		for _, h := range in {
			d.leave(h.p, now)
		}
		idle := 0
		for p := d.peers.idle.next; p != &d.peers.idle; p = p.next {
			idle++
		}
		if s := d.snapshot(); s.open != 0 || s.crowd != 0 || idle != s.peers {
			t.Errorf("in the end %d open, %d in the crowd, %d idle of %d", s.open, s.crowd, idle, s.peers)
		}
	})
}

func BenchmarkLimiter(b *testing.B) {
	d := newLimiter(limits{open: 10_000, peerOpen: 5_000, rate: 1e6, peerRate: 1e6, peers: 65_536})
	for i := 0; b.Loop(); i++ {
		now := d.now()
		if p, got := d.admit(at(i&0xffff), now); got == noLimit {
			d.leave(p, now)
		}
	}
}

// BenchmarkPeers measures the memory of a known address.
func BenchmarkPeers(b *testing.B) {
	const known = 65_536
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		d := newLimiter(limits{peerOpen: 1, peers: known})
		for i := range known {
			d.admit(at(i), 0)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(d)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/known, "B/address")
}
