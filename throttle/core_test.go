package throttle

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

const normal = 1 // the class of weir.Normal

func coreOf(t testing.TB, cfg Config, bins int) *core {
	t.Helper()
	cfg, err := cfg.complete()
	if err != nil {
		t.Fatal(err)
	}
	c := newCore(&cfg, bins)
	return &c
}

// fill records requests of the class Normal, of which some were accepted.
func (c *core) fill(now time.Duration, requests, accepts int) {
	for i := range requests {
		c.record(now, normal, map[bool]int{true: accepted, false: refused}[i < accepts])
	}
}

// The formula at its limits, and where a blog post is wrong. With half of the requests rejected nothing is
// dropped, with nine in ten 79 % at first.
func TestShare(t *testing.T) {
	for _, tt := range []struct {
		k, padding        float64
		requests, accepts int
		want              float64
	}{
		{2, 1, 0, 0, 0},
		{2, 1, 100, 100, 0},
		{2, 1, 100, 50, 0},
		{2, 1, 100, 49, 2.0 / 101},
		{2, 1, 100, 10, 80.0 / 101},
		{2, 1, 100, 0, 100.0 / 101},
		{2, 1, 300, 100, 100.0 / 301},
		{4.0 / 3, 1, 300, 150, 100.0 / 301},
		{1.1, 8, 100, 100, 0},
		{1.1, 8, 110, 100, 0},
		{2, 8, 8, 0, 0.5}, // too few for a decision
	} {
		c := coreOf(t, Config{K: tt.k, Padding: tt.padding}, bins)
		c.fill(0, tt.requests, tt.accepts)
		if got := c.share(normal); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("K %v, padding %v: of %d requests %d accepted: refuses %.6f, want %.6f", tt.k, tt.padding, tt.requests, tt.accepts, got, tt.want)
		}
	}
}

// This is the test of an established throttler: its decision after each result, with a random number that is
// always a half. Its own refusals count as refused requests, and a random number equal to the share is not
// refused.
func TestDecideAfterEachResult(t *testing.T) {
	c := coreOf(t, Config{K: 1.1, Padding: 8}, bins)
	var got []byte
	for _, run := range []struct {
		result, times int
	}{{refused, 9}, {accepted, 6}, {refused, 4}} {
		for range run.times {
			c.record(0, normal, run.result)
			if _, sent := c.decide(0, normal, 0.5, true); sent {
				got = append(got, 'n')
			} else {
				got = append(got, 'y')
			}
		}
	}
	if want := "nnnnnnnnyyyyynnnyyy"; string(got) != want {
		t.Errorf("throttles %s, want %s", got, want)
	}
}

// Events leave the window, with three bins and with one.
func TestWindow(t *testing.T) {
	for _, tt := range []struct {
		bins             int
		accepts, refused [3]uint64
	}{
		{3, [3]uint64{1, 1, 1}, [3]uint64{0, 1, 1}},
		{1, [3]uint64{1, 0, 0}, [3]uint64{0, 1, 0}},
	} {
		w := newWindow(time.Duration(tt.bins)*time.Second, tt.bins, kinds)
		for i := range 3 {
			now := time.Duration(i) * time.Second
			switch w.advance(now); i {
			case 0:
				w.add(now, accepted)
			case 1:
				w.add(now, refused)
			}
			if w.sums[accepted] != tt.accepts[i] || w.sums[refused] != tt.refused[i] {
				t.Errorf("%d bins, at %v: %d accepted and %d refused, want %d and %d", tt.bins, now,
					w.sums[accepted], w.sums[refused], tt.accepts[i], tt.refused[i])
			}
		}
	}
}

// A minute of calls that end by their time-out, then a minute of answers.
func TestRecovery(t *testing.T) {
	c := coreOf(t, Config{Window: time.Minute}, bins)
	for i := range 1200 {
		now := time.Duration(i) * 100 * time.Millisecond
		switch {
		case i < 600:
			c.record(now, normal, refused)
		case i == 600:
			if c.share(normal) == 0 {
				t.Error("nothing is throttled after a minute without an answer")
			}
			fallthrough
		default:
			c.record(now, normal, accepted)
		}
	}
	c.advance(2 * time.Minute)
	if got := c.share(normal); got != 0 {
		t.Errorf("refuses %v after a minute of answers", got)
	}
}

// An outage after a healthy time is throttled. A rule from a blog post runs beside it for comparison. It lets
// the accepted count decay only when a request is accepted, so it never throttles.
func TestOutageAfterHealth(t *testing.T) {
	c := coreOf(t, Config{}, bins)
	accepts, requests := 0.0, 0.0 // the rule of the blog post
	for i := range 30 {
		c.fill(time.Duration(i)*time.Second, 100, 100)
	}
	for range 3000 {
		requests, accepts = requests*0.95+1, accepts*0.95+1
	}
	for i := range 30 {
		c.fill(time.Duration(30+i)*time.Second, 100, 0)
	}
	for range 3000 {
		requests = requests*0.95 + 1
	}
	if got := c.share(normal); got < 0.9 {
		t.Errorf("refuses %v after 30s of outage", got)
	}
	if got := max(0, (requests-2*accepts)/(requests+1)); got != 0 {
		t.Errorf("the blog post's rule refuses %v: its fault is gone, and so may this test", got)
	}
}

// The lower class is refused first: where the server refuses without regard to priority, and where it
// refuses the lower one only.
func TestLowerClassFirst(t *testing.T) {
	const low, high = 0, 2
	for _, tt := range []struct {
		name              string
		low, high         [2]int // requests, accepted
		wantLow, wantHigh float64
	}{
		{"no regard", [2]int{100, 25}, [2]int{100, 25}, 100.0 / 108, 0},
		{"no regard, much high", [2]int{50, 10}, [2]int{200, 40}, 50.0 / 58, 100.0 / 208},
		{"low only", [2]int{100, 0}, [2]int{100, 100}, 100.0 / 108, 0},
		{"outage", [2]int{100, 0}, [2]int{100, 0}, 100.0 / 108, 100.0 / 108},
		{"nothing low was seen", [2]int{0, 0}, [2]int{100, 0}, 100.0 / 108, 100.0 / 108},
		{"high only", [2]int{1000, 1000}, [2]int{100, 25}, 50.0 / 1008, 0},
	} {
		c := coreOf(t, Config{}, bins)
		for class, n := range map[int][2]int{low: tt.low, high: tt.high} {
			for i := range n[0] {
				c.record(0, class, map[bool]int{true: accepted, false: refused}[i < n[1]])
			}
		}
		if l, h := c.share(low), c.share(high); math.Abs(l-tt.wantLow) > 1e-9 || math.Abs(h-tt.wantHigh) > 1e-9 {
			t.Errorf("%s: refuses %.4f of low and %.4f of high, want %.4f and %.4f", tt.name, l, h, tt.wantLow, tt.wantHigh)
		}
	}
}

// The newest tenth of the window decides after four accepted requests in a row, not before.
func TestNewestTenth(t *testing.T) {
	c := coreOf(t, Config{}, bins)
	c.fill(0, 100, 0)
	const now = 20 * time.Second
	for range 40 {
		if _, sent := c.decide(now, normal, 0, true); sent {
			t.Fatal("sent in an outage, with a random number of 0")
		}
	}
	for i, result := range []int{accepted, accepted, accepted, refused, accepted, accepted, accepted, accepted} {
		c.record(now, normal, result)
		want := []float64{6: 135.0 / 155, 7: 34 / 48.8}[i]
		if got := c.share(normal); i >= 6 && math.Abs(got-want) > 1e-9 {
			t.Errorf("after result %d: refuses %.4f, want %.4f", i+1, got, want)
		}
	}
}

// After two minutes without an accepted request, nine tenths of what comes from 35 s to a minute after it are sent
// again, whatever the rate. In the last ten seconds of that minute all are sent, however chance has it. By the
// whole window alone it took 65 s at 10 requests a second, and 103 s at 1,000.
func TestRecoversFromAnOutage(t *testing.T) {
	const outage = 2 * time.Minute
	for _, rate := range []float64{1, 10, 100, 1000} {
		var sent, asked int
		for seed := range uint64(10) {
			random := rand.New(rand.NewPCG(seed, 2))
			c := coreOf(t, Config{}, bins)
			for now := time.Duration(0); now < outage+time.Minute; {
				now += time.Duration(random.ExpFloat64() / rate * float64(time.Second))
				_, ok := c.decide(now, normal, random.Float64(), true)
				if ok {
					c.record(now, normal, map[bool]int{true: refused, false: accepted}[now < outage])
				}
				if now < outage+35*time.Second {
					continue
				}
				if asked++; ok {
					sent++
				} else if now > outage+50*time.Second {
					t.Errorf("%v a second, seed %d: one is refused %v after the outage", rate, seed, now-outage)
				}
			}
		}
		if float64(sent) < 0.9*float64(asked) {
			t.Errorf("%v a second: of %d only %d are sent, 35s after the outage", rate, asked, sent)
		}
	}
}

// A server that takes a fixed number a second gets about K times as much, and no more.
func TestSendsKTimesWhatIsTaken(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, k := range []float64{1.1, 2, 4} {
		c := coreOf(t, Config{K: k}, bins)
		const capacity, offered = 100, 1000
		sent, taken := 0, 0
		for second := range 90 {
			room := capacity
			for i := range offered {
				now := time.Duration(second)*time.Second + time.Duration(i)*time.Millisecond
				if _, ok := c.decide(now, normal, random.Float64(), true); !ok {
					continue
				}
				result := refused
				if room > 0 {
					room, result = room-1, accepted
				}
				c.record(now, normal, result)
				if second >= 60 {
					sent++
					taken += 1 - result
				}
			}
		}
		if got := float64(sent) / float64(taken); got < k*0.95 || got > k*1.05 {
			t.Errorf("K %v: %v sent for each that was taken", k, got)
		}
	}
}

// The core agrees with a model that keeps every event, and its bounds hold at any time.
func TestCoreModel(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 7))
		c := coreOf(t, Config{K: 1 + 2*random.Float64(), Padding: 1 + 10*random.Float64()}, bins)
		width := int64(c.window.width)
		type event struct {
			bin    int64
			class  int
			result int
		}
		var events []event
		var now time.Duration
		head := int64(0)
		for step := range 3000 {
			now += time.Duration(random.ExpFloat64() * float64(50*time.Millisecond))
			at := now
			switch random.IntN(200) {
			case 0:
				now += time.Duration(random.IntN(60)) * time.Second
				at = now
			case 1:
				at = now - 40*time.Second // the clock goes back for one event
			}
			head = max(head, int64(at)/width)
			class, result := random.IntN(weir.Classes), random.IntN(kinds)
			if random.IntN(2) == 0 {
				if _, sent := c.decide(at, class, random.Float64(), true); sent {
					continue
				}
				result = refused
			} else {
				c.record(at, class, result)
			}
			events = append(events, event{head, class, result})
			var requests, accepts [weir.Classes]float64
			for _, e := range events {
				if head-e.bin >= bins {
					continue
				}
				requests[e.class]++
				accepts[e.class] += float64(1 - e.result)
			}
			above := 1.0
			for class := range weir.Classes {
				if r, a := c.window.count(class); r != requests[class] || a != accepts[class] {
					t.Fatalf("seed %d, step %d: class %d has %v requests, %v accepted; the model %v, %v", seed, step, class, r, a, requests[class], accepts[class])
				}
				share := c.share(class)
				if !(share >= 0 && share < 1) || share > above {
					t.Fatalf("seed %d, step %d: class %d is refused with %v, the one below with %v", seed, step, class, share, above)
				}
				above = share
			}
		}
	}
}

// A clock that jumps either way, and one that starts below zero.
func TestClockJumps(t *testing.T) {
	c := coreOf(t, Config{}, bins)
	for _, now := range []time.Duration{-time.Hour, 0, math.MaxInt64, 0, -1, math.MinInt64, math.MaxInt64} {
		c.record(now, normal, refused)
		if _, sent := c.decide(now, normal, 0.999999, true); !sent {
			t.Errorf("at %v nothing is sent", now)
		}
	}
}

func FuzzCore(f *testing.F) {
	f.Add([]byte{1, 2, 3, 250, 9, 17})
	f.Fuzz(func(t *testing.T, ops []byte) {
		c := coreOf(t, Config{}, 10)
		b := newBudget(&BudgetConfig{Ratio: 0.1, Floor: 10, Window: 30 * time.Second})
		var charges []Charge
		var now time.Duration
		for _, op := range ops {
			now += time.Duration(int8(op)) * 10 * time.Millisecond
			class := int(op>>2) % weir.Classes
			switch op & 3 {
			case 0:
				c.record(now, class, int(op>>4)&1)
				b.request(now)
			case 1:
				c.decide(now, class, float64(op)/256, true)
				if charge, ok := b.charge(now); ok {
					charges = append(charges, charge)
				}
			case 2:
				now += time.Duration(op) * time.Second
			case 3:
				if n := len(charges); n > 0 {
					b.refund(now, charges[n-1])
					charges = charges[:n-1]
				}
			}
			above := 1.0
			for class := range weir.Classes {
				share := c.share(class)
				if !(share >= 0 && share < 1) || share > above {
					t.Fatalf("class %d is refused with %v, the one below with %v", class, share, above)
				}
				above = share
			}
			checkSums(t, &c.window)
			checkSums(t, &c.recent)
			checkSums(t, &b.window)
		}
	})
}

// checkSums compares the sums of a window with its bins.
func checkSums(t *testing.T, w *window) {
	t.Helper()
	sums := make([]uint64, w.kinds)
	for i, n := range w.bins {
		sums[i%w.kinds] += uint64(n)
	}
	for kind, sum := range sums {
		if w.sums[kind] != sum {
			t.Fatalf("the sum of kind %d is %d, its bins have %d", kind, w.sums[kind], sum)
		}
	}
}
