package live

import (
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestDraw(t *testing.T) {
	for _, dist := range []string{"", "bimodal", "lognormal"} {
		l := Load{
			Phases:   []Phase{{Load: 0.5, For: 10 * time.Second}, {Load: 3, For: 10 * time.Second}},
			Capacity: 1000, Mean: ms(10), Dist: dist, Seed: 7,
		}
		all := l.draw()
		first := len(due(all, 0, 10*time.Second))
		if math.Abs(float64(first)-5000) > 5*math.Sqrt(5000) || math.Abs(float64(len(all)-first)-30000) > 5*math.Sqrt(30000) {
			t.Errorf("%q: %d and %d requests, want about 5000 and 30000", dist, first, len(all)-first)
		}
		work := 0.0
		for i, r := range all {
			if i > 0 && r.Due < all[i-1].Due {
				t.Fatalf("%q: request %d is due before the one before it", dist, i)
			}
			work += r.Work.Seconds()
		}
		// Five standard errors of the widest distribution, of variation 4.
		if mean := work / float64(len(all)); math.Abs(mean/0.01-1) > 5*4/math.Sqrt(float64(len(all))) {
			t.Errorf("%q: mean work %v s, want .01", dist, mean)
		}
		again := l.draw()
		if len(again) != len(all) || again[len(all)-1] != all[len(all)-1] {
			t.Errorf("%q: the same seed gave another load", dist)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	mux := http.NewServeMux()
	statuses := []int{200, 429, 503, 500, 200}
	next := 0
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(workHeader) != "1500" {
			t.Errorf("work %q, want 1500 µs", r.Header.Get(workHeader))
		}
		if next == len(statuses) {
			<-hold
			return
		}
		w.WriteHeader(statuses[next])
		next++
		_, _ = w.Write([]byte("some text"))
	})
	srv := httptest.NewServer(mux)
	defer srv.CloseClientConnections()
	addr := srv.Listener.Addr().String()
	var c conn
	defer c.close()
	for i, want := range []Answer{OK, Refused, Refused, Failed, OK} {
		if got := c.roundTrip(addr, head("/", ""), 1500*time.Microsecond, time.Now().Add(time.Minute)); got != want {
			t.Errorf("status %d is answer %d, want %d", statuses[i], got, want)
		}
		if c.Conn == nil {
			t.Error("the connection was not kept")
		}
	}
	if got := c.roundTrip(addr, head("/", ""), 1500*time.Microsecond, time.Now().Add(ms(20))); got != GaveUp || c.Conn != nil {
		t.Errorf("no answer in time is %d, connection %v; want %d and none", got, c.Conn, GaveUp)
	}
}

func TestParseHead(t *testing.T) {
	tests := []struct {
		head   string
		status int
		length int
		again  bool
		fails  bool
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", 200, 3, true, false},
		{"HTTP/1.1 503 Service Unavailable\r\ncontent-length:12\r\nConnection: Close\r\n", 503, 12, false, false},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", 200, 0, false, false},
		{"HTTP/1.1 200 OK\r\nContent-Length: x\r\n", 0, 0, false, true},
		{"HTTP/2 200\r\n", 0, 0, false, true},
		{"", 0, 0, false, true},
	}
	for _, tt := range tests {
		status, length, again, err := parseHead([]byte(tt.head))
		if (err != nil) != tt.fails || !tt.fails && (status != tt.status || length != tt.length || again != tt.again) {
			t.Errorf("%q: %d %d %v %v", tt.head, status, length, again, err)
		}
	}
}

// More requests than connections stay unsent, and everything ends.
func TestUnsent(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c := &clients{heads: []string{head("/", "")}, addr: ln.Addr().String(), epoch: time.Now(), patience: ms(50), late: time.Hour, all: make([]Record, 3), open: mostOpen - 2}
	for i := range c.all {
		c.send(i)
	}
	c.finish()
	if c.all[0].Answer != GaveUp || c.all[1].Answer != GaveUp || c.all[2].Answer != Unsent {
		t.Errorf("answers %v, want two that gave up and one unsent", c.all)
	}
}

func TestPlan(t *testing.T) {
	bad := Plan{Rounds: 0, Pace: 100, Parts: []string{"gateway", "other"}}
	err := bad.check()
	if err == nil {
		t.Fatal("a bad plan passes")
	}
	full := Plan{Rounds: 3, Pace: 1, Weir: "weir", Parts: hour}
	if err := full.check(); err != nil {
		t.Error(err)
	}
	t.Logf("the whole scoreboard takes about %v", full.Duration())
	if d := full.Duration(); d > time.Hour {
		t.Errorf("the whole scoreboard takes %v, more than an hour", d)
	}
	quick := quickPlan("weir")
	if d := quick.Duration(); d > 90*time.Second {
		t.Errorf("the quick one takes %v", d)
	}
}
