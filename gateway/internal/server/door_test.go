package server

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/weir-go/weir/policy"
)

// at is an address of a test's own.
func at(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// step is something that happens at a door, and what it leads to.
type step struct {
	now   time.Duration
	addr  netip.Addr
	leave int // which of those let in leaves, from 1; 0: addr comes
	want  doorRule
}

func TestDoor(t *testing.T) {
	a, b, c := at(1), at(2), at(3)
	v6 := netip.MustParseAddr
	for _, tt := range []struct {
		name   string
		limits doorLimits
		steps  []step
	}{
		{"no limits", doorLimits{}, []step{{addr: a}, {addr: a}, {addr: netip.Addr{}}}},
		{"all", doorLimits{open: 2}, []step{{addr: a}, {addr: b}, {addr: c, want: doorFull}, {leave: 1}, {addr: c}, {addr: a, want: doorFull}}},
		{"each", doorLimits{open: 9, peerOpen: 1, peers: 9}, []step{
			{addr: a}, {addr: a, want: doorPeerFull}, {addr: b}, {leave: 1}, {addr: a}, {addr: b, want: doorPeerFull},
		}},
		{"IPv6 by /64", doorLimits{peerOpen: 1, peers: 9}, []step{
			{addr: v6("2001:db8::1")}, {addr: v6("2001:db8::ffff:2"), want: doorPeerFull}, {addr: v6("2001:db8:0:1::1")},
			{addr: v6("::ffff:10.0.0.1")}, {addr: a, want: doorPeerFull},
			{addr: v6("fe80::1%eth0")}, {addr: v6("fe80::2%eth1"), want: doorPeerFull},
		}},
		{"exempt", doorLimits{open: 3, peerOpen: 1, peerRate: 1, peers: 9, exempt: func(x netip.Addr) bool { return x == a }}, []step{
			{addr: a}, {addr: a}, {addr: b}, {addr: a, want: doorFull},
		}},
		{"rate", doorLimits{rate: 2}, []step{
			{addr: a}, {addr: b}, {addr: c, want: doorRate}, {now: 499 * time.Millisecond, addr: c, want: doorRate},
			{now: 500 * time.Millisecond, addr: c}, {now: 500 * time.Millisecond, addr: c, want: doorRate},
			{now: time.Hour, addr: a}, {now: time.Hour, addr: a}, {now: time.Hour, addr: a, want: doorRate},
		}},
		{"less than one a second", doorLimits{rate: 0.1}, []step{
			{addr: a}, {now: 9 * time.Second, addr: a, want: doorRate}, {now: 10 * time.Second, addr: a},
		}},
		{"a clock that goes back", doorLimits{rate: 1}, []step{
			{now: time.Hour, addr: a}, {now: time.Minute, addr: a, want: doorRate}, {now: time.Minute + time.Second, addr: a},
		}},
		{"rate of each", doorLimits{peerRate: 1, peers: 9}, []step{
			{addr: a}, {addr: a, want: doorPeerRate}, {addr: b}, {leave: 1}, {addr: a, want: doorPeerRate}, {now: time.Second, addr: a},
		}},
		{"who is refused for itself takes nothing from others", doorLimits{rate: 2, peerRate: 1, peers: 9}, []step{
			{addr: a}, {addr: a, want: doorPeerRate}, {addr: a, want: doorPeerRate}, {addr: b}, {addr: c, want: doorRate},
			{now: 500 * time.Millisecond, addr: c}, // its own was not charged
		}},
		{"a crowd is one address", doorLimits{peerOpen: 2, peers: 1}, []step{
			{addr: a}, {addr: b}, {addr: c}, {addr: at(4), want: doorCrowd}, {addr: a}, {addr: a, want: doorPeerFull},
			{leave: 2}, {addr: at(4)}, {leave: 1}, {addr: at(5), want: doorCrowd},
		}},
		{"a crowd's rate", doorLimits{peerRate: 1, peers: 1}, []step{
			{now: time.Second, addr: a}, {now: time.Second, addr: b}, {now: time.Second, addr: c, want: doorCrowd},
		}},
		{"the idle make room once they are as good as new", doorLimits{peerRate: 1, peers: 1}, []step{
			{now: time.Second, addr: a}, {now: time.Second, leave: 1},
			{now: 1500 * time.Millisecond, addr: b}, // in the crowd
			{now: 1500 * time.Millisecond, addr: c, want: doorCrowd},
			{now: 2 * time.Second, addr: c},
			{now: 2 * time.Second, addr: c, want: doorPeerRate},
		}},
		{"nobody is forgotten who is in", doorLimits{peerOpen: 1, peers: 1}, []step{
			{addr: a}, {now: time.Hour, addr: b}, {now: time.Hour, addr: a, want: doorPeerFull}, {now: time.Hour, leave: 1}, {now: time.Hour, addr: c},
			{now: time.Hour, addr: c, want: doorPeerFull},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(tt.limits)
			var in []*peer
			for i, s := range tt.steps {
				if s.leave > 0 {
					d.leave(in[s.leave-1], s.now)
					continue
				}
				p, rule := d.enter(s.addr, s.now)
				if rule != s.want {
					t.Fatalf("step %d: %v at %v: %q, want %q", i, s.addr, s.now, rule, s.want)
				}
				if rule == doorOpen {
					in = append(in, p)
				}
			}
		})
	}
}

// knock is enter with the refusal counted.
func knock(d *door, addr netip.Addr, now time.Duration) (*peer, doorRule) {
	p, rule := d.enter(addr, now)
	if rule != doorOpen {
		d.refuse(rule)
	}
	return p, rule
}

// New limits hold at once, forget nobody, and give nobody a full bucket.
func TestDoorReconfigured(t *testing.T) {
	a, b := at(1), at(2)
	d := newDoor(doorLimits{open: 9, peerOpen: 9, rate: 10, peerRate: 4, peers: 9})
	enter := func(addr netip.Addr, now time.Duration, want doorRule) *peer {
		t.Helper()
		p, rule := knock(d, addr, now)
		if rule != want {
			t.Fatalf("%v at %v: %q, want %q", addr, now, rule, want)
		}
		return p
	}
	var in []*peer
	for range 4 {
		in = append(in, enter(a, 0, doorOpen))
	}
	d.configure(doorLimits{open: 9, peerOpen: 2, rate: 100, peerRate: 100, peers: 9}, 0)
	enter(a, time.Minute, doorPeerFull) // four are in
	d.leave(in[0], time.Minute)
	d.leave(in[1], time.Minute)
	enter(a, time.Minute, doorPeerFull)
	d.leave(in[2], time.Minute)
	enter(a, time.Minute, doorOpen)
	d.configure(doorLimits{open: 9, rate: 6}, time.Minute)
	for range 6 {
		enter(b, time.Minute, doorOpen)
	}
	d.configure(doorLimits{open: 9, rate: 1000}, time.Minute)
	enter(b, time.Minute, doorRate) // not one of a thousand
	enter(b, time.Minute+time.Millisecond, doorOpen)
	d.configure(doorLimits{open: 3}, time.Minute)
	enter(b, time.Minute, doorFull)
	d.leave(in[3], time.Minute)
	if s := d.snapshot(); s.open != 8 || s.entered != 12 || s.refused[doorPeerFull] != 2 || s.refused[doorRate] != 1 || s.refused[doorFull] != 1 {
		t.Errorf("%+v", s)
	}
}

// A door that observes decides as one that enforces, and lets in whom it would refuse,
// but for the limit of all at once: that one is not for trying out.
func TestDoorObserves(t *testing.T) {
	a, b := at(1), at(2)
	d := newDoor(doorLimits{open: 5, peerOpen: 2, rate: 4, peers: 9, mode: policy.Observe})
	type guest struct{ p *peer }
	enter := func(addr netip.Addr, now time.Duration, would, want doorRule) guest {
		t.Helper()
		p, rule := d.enter(addr, now)
		if rule != would {
			t.Fatalf("%v at %v: %q, want %q", addr, now, rule, would)
		}
		if rule != doorOpen {
			rule = d.observe(rule)
		}
		if rule != want {
			t.Fatalf("%v at %v: %q in the end, want %q", addr, now, rule, want)
		}
		return guest{p}
	}
	first := enter(a, 0, doorOpen, doorOpen)
	enter(a, 0, doorOpen, doorOpen)
	would := enter(a, 0, doorPeerFull, doorOpen)
	enter(b, 0, doorOpen, doorOpen)
	if s := d.snapshot(); s.open != 4 || s.entered != 4 || s.observed[doorPeerFull] != 1 || s.peers != 2 {
		t.Errorf("%+v", s)
	}
	d.leave(would.p, 0) // frees nothing of the two of a
	enter(a, 0, doorPeerFull, doorOpen)
	d.leave(first.p, 0)
	enter(a, 0, doorOpen, doorOpen) // the fourth that is within the limits
	enter(b, 0, doorRate, doorOpen)
	enter(b, 0, doorFull, doorFull)
	if s := d.snapshot(); s.open != 5 || s.observed[doorRate] != 1 || s.observed[doorPeerFull] != 2 || s.observed[doorFull] != 0 {
		t.Errorf("%+v", s)
	}
	d.configure(doorLimits{open: 9, peerOpen: 2, peers: 9}, 0)
	enter(a, 0, doorPeerFull, doorPeerFull)
}

// However many addresses come, so many are known, and a stranger among them gets no
// more than the crowd has.
func TestDoorFlood(t *testing.T) {
	const known, each = 100, 3
	d := newDoor(doorLimits{peerOpen: each, peerRate: each, peers: known})
	regular, _ := d.enter(at(0), 0)
	for i := 1; i <= 100_000; i++ {
		knock(d, at(i), 0)
	}
	s := d.snapshot()
	if s.peers != known || s.crowd != each || s.open != known+each || s.refused[doorCrowd] != 100_000-known-each+1 {
		t.Errorf("%+v", s)
	}
	if _, rule := d.enter(at(0), 0); rule != doorOpen {
		t.Errorf("one who was there before: %q", rule)
	}
	d.leave(regular, 0)
	if _, rule := d.enter(at(0), 0); rule != doorOpen {
		t.Errorf("one who was there before, again: %q", rule)
	}
}

// slowDoor is a door as anybody would write it who has all the memory there is: each
// address for ever.
type slowDoor struct {
	limits doorLimits
	open   int
	bucket bucket
	peers  map[netip.Addr]*peer
}

func (d *slowDoor) enter(addr netip.Addr, now time.Duration) doorRule {
	l, p := &d.limits, d.peers[addr]
	if p == nil {
		p = &peer{bucket: fullBucket(l.peerRate, now)}
		d.peers[addr] = p
	}
	switch {
	case l.open > 0 && d.open >= l.open:
		return doorFull
	case l.peerOpen > 0 && p.open >= l.peerOpen:
		return doorPeerFull
	case l.peerRate > 0 && !p.bucket.refill(l.peerRate, now):
		return doorPeerRate
	case l.rate > 0 && !d.bucket.refill(l.rate, now):
		return doorRate
	}
	d.open++
	d.bucket.tokens--
	p.open++
	p.bucket.tokens--
	return doorOpen
}

// While the table has room a door decides as one that forgets nobody.
func FuzzDoor(f *testing.F) {
	f.Add([]byte("hello, door: a few comings and goings"), uint64(1))
	f.Add([]byte{0, 0, 0, 0, 1, 2, 3, 255, 255, 128, 7, 7, 7}, uint64(99))
	f.Fuzz(func(t *testing.T, script []byte, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := doorLimits{
			open: r.IntN(8), peerOpen: r.IntN(4), rate: float64(r.IntN(8)) / 2, peerRate: float64(r.IntN(4)) / 2, peers: 16,
		}
		d := newDoor(l)
		slow := &slowDoor{limits: l, bucket: fullBucket(l.rate, 0), peers: map[netip.Addr]*peer{}}
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
			p, rule := d.enter(addr, now)
			if want := slow.enter(addr, now); rule != want {
				t.Fatalf("%+v: %v at %v: %q, want %q", l, addr, now, rule, want)
			}
			if rule == doorOpen {
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

func BenchmarkDoor(b *testing.B) {
	d := newDoor(doorLimits{open: 10_000, peerOpen: 5_000, rate: 1e6, peerRate: 1e6, peers: 65_536})
	for i := 0; b.Loop(); i++ {
		now := d.now()
		if p, rule := d.enter(at(i&0xffff), now); rule == doorOpen {
			d.leave(p, now)
		}
	}
}

// What an address takes that is known.
func BenchmarkPeers(b *testing.B) {
	const known = 65_536
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		d := newDoor(doorLimits{peerOpen: 1, peers: known})
		for i := range known {
			d.enter(at(i), 0)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(d)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/known, "B/address")
}
