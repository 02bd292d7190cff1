package rig

import (
	"testing"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

// A connection is used again, and an upstream answers each request on it.
func TestConnBeforeUpstream(t *testing.T) {
	l, err := StartUpstream()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := new(Conn)
	defer c.Close()
	for range 3 {
		if a := c.RoundTrip(l.Addr().String(), []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), time.Now().Add(time.Minute)); a != loadgen.OK || !c.Open() {
			t.Fatalf("the answer is %v; the connection is open: %v", a, c.Open())
		}
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
