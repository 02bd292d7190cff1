//go:build integration

package weirredis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// liar is a server that greets as Redis does, and answers scripts as a test wants.
type liar struct {
	addr  string
	lie   atomic.Pointer[func(c net.Conn)] // answers a script; nil: as it should
	greet map[string]string                // answers to other commands, in place of the usual
	mu    sync.Mutex
	open  []net.Conn
}

func startLiar(t *testing.T, greet map[string]string) *liar {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &liar{addr: l.Addr().String(), greet: greet}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open = append(s.open, c)
			s.mu.Unlock()
			serving.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		for _, c := range s.open {
			c.Close()
		}
		s.mu.Unlock()
		serving.Wait()
	})
	return s
}

func (s *liar) tell(answer string) {
	s.with(func(c net.Conn) { _, _ = io.WriteString(c, answer) })
}

func (s *liar) with(lie func(net.Conn)) { s.lie.Store(&lie) }

func (s *liar) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		if text, ok := s.greet[strings.ToUpper(words[0])]; ok {
			_, _ = io.WriteString(c, text)
			continue
		}
		switch strings.ToUpper(words[0]) {
		case "HELLO":
			_, _ = io.WriteString(c, "%3\r\n+server\r\n+redis\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n")
		case "INFO":
			answer(c, "redis_version:7.0.0\r\nmaxmemory_policy:noeviction\r\n")
		case "PING":
			_, _ = io.WriteString(c, "+PONG\r\n")
		case "EVAL", "EVALSHA":
			if strings.Contains(words[1], "INFO") {
				answer(c, "maxmemory_policy:noeviction\r\n")
				continue
			}
			if lie := s.lie.Load(); lie != nil {
				(*lie)(c)
				continue
			}
			answer(c, truth)
		case "CLUSTER":
			_, _ = io.WriteString(c, "-ERR This instance has cluster support disabled\r\n")
		default:
			_, _ = io.WriteString(c, "-ERR unknown command\r\n")
		}
	}
}

// truth is what the script says of one window that held ten tokens.
var truth = "\x01" + string(double(double(double(nil, 1), 1e15), 10))

func answer(w io.Writer, text string) { fmt.Fprintf(w, "$%d\r\n%s\r\n", len(text), text) }

func readCommand(in *bufio.Reader) (words []string, err error) {
	n, err := readNumber(in, '*')
	for ; err == nil && n > 0; n-- {
		var size int
		if size, err = readNumber(in, '$'); err != nil {
			break
		}
		word := make([]byte, size+2)
		if _, err = io.ReadFull(in, word); err == nil {
			words = append(words, string(word[:size]))
		}
	}
	return words, err
}

func readNumber(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil || line[0] != kind {
		return 0, errors.Join(err, io.ErrUnexpectedEOF)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// Whatever a server says, a decision ends in time with a result or an Error, nothing
// is left over, and when the server has come to its senses the store is back.
func TestLies(t *testing.T) {
	for name, lie := range map[string]string{
		"nothing":         "",
		"an error":        "-ERR no\r\n",
		"an empty error":  "-\r\n",
		"elsewhere":       "-MOVED 7 127.0.0.1:1\r\n",
		"asked elsewhere": "-ASK 7 127.0.0.1:1\r\n",
		"no script":       "-NOSCRIPT ever\r\n",
		"try again":       "-TRYAGAIN\r\n",
		"redirect":        "-REDIRECT 127.0.0.1:1\r\n",
		"null":            "_\r\n",
		"old null":        "$-1\r\n",
		"a number":        ":1\r\n",
		"a list":          "*2\r\n:1\r\n:2\r\n",
		"too short":       "$3\r\nabc\r\n",
		"too long":        "$64\r\n" + strings.Repeat("x", 64) + "\r\n",
		"not a number":    "$25\r\n\x01" + strings.Repeat("\xff", 24) + "\r\n",
		"garbage":         "hello, I am a web server\r\n\r\n",
		"http":            "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
		"half a frame":    "$25\r\n\x01abc",
		"half a length":   "$2",
		"a push":          ">2\r\n+invalidate\r\n*1\r\n+k\r\n" + frame(truth),
		"an odd push":     ">2\r\n:1\r\n:2\r\n" + frame(truth),
		"an unsubscribe":  ">3\r\n+unsubscribe\r\n+a\r\n:0\r\n",
		"a subscribe":     ">3\r\n+subscribe\r\n+a\r\n:1\r\n",
		"an attribute":    "|1\r\n+ttl\r\n:3600\r\n" + frame(truth),
		"twice":           frame(truth) + frame(truth),
		"a negative size": "$-2\r\n",
		"a vast size":     "$9223372036854775807\r\n",
		"a gigabyte":      "$99999999999\r\nabc",
		"a vast list":     "*9223372036854775807\r\n",
		"a negative list": "*-2\r\n",
		"chunks":          "$?\r\n;9223372036854775807\r\n",
		"a deep list":     strings.Repeat("*1\r\n", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			server := startLiar(t, nil)
			before := runtime.NumGoroutine()
			s, err := New(Config{Addrs: []string{server.addr}, Deadline: 100 * time.Millisecond, DialTimeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			take := func() (quota.Decision, error) {
				return s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{{Rate: 1, Burst: 10}}, Cost: 1})
			}
			eventually(t, "an answer in time", func() bool {
				r, err := take()
				return err == nil && r.OK
			})
			server.tell(lie)
			for range 50 {
				begin := time.Now()
				_, err := take()
				if took := time.Since(begin); took > 20*time.Second {
					t.Errorf("took %v", took)
				}
				if err != nil && !errors.Is(err, ErrUnavailable) {
					t.Errorf("%v", err)
				}
				if n := runtime.NumGoroutine() - before; n > 150 {
					t.Fatalf("%d goroutines more", n)
				}
			}
			server.lie.Store(nil)
			eventually(t, "the store is back", func() bool {
				r, err := take()
				return err == nil && r.OK
			})
		})
	}
}

func frame(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

// Whatever a server says when it is met, New ends soon, with an error or a store that
// decides or is down, and Close ends too.
func TestLiesAtFirst(t *testing.T) {
	hello := "%3\r\n+server\r\n+redis\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n"
	for name, greet := range map[string]map[string]string{
		"no greeting":      {"HELLO": ""},
		"two greetings":    {"HELLO": hello + hello},
		"a number":         {"HELLO": ":3\r\n"},
		"an odd map":       {"HELLO": "%1\r\n*1\r\n:1\r\n_\r\n"},
		"an old server":    {"HELLO": "-ERR unknown command 'HELLO'\r\n"},
		"no version":       {"HELLO": "%1\r\n+proto\r\n:3\r\n"},
		"a web server":     {"HELLO": "HTTP/1.1 400 Bad Request\r\n\r\n"},
		"no information":   {"INFO": "_\r\n"},
		"a list of it":     {"INFO": "*1\r\n+maxmemory_policy:noeviction\r\n"},
		"slots of nobody":  {"CLUSTER": "*0\r\n"},
		"slots of a list":  {"CLUSTER": "*1\r\n*3\r\n:0\r\n:16383\r\n*0\r\n"},
		"slots beyond":     {"CLUSTER": "*1\r\n*3\r\n:-5\r\n:9999999999\r\n*2\r\n+127.0.0.1\r\n:1\r\n"},
		"slots backwards":  {"CLUSTER": "*1\r\n*3\r\n:16383\r\n:0\r\n*2\r\n_\r\n:-7\r\n"},
		"slots in words":   {"CLUSTER": "*1\r\n*3\r\n+a\r\n+b\r\n+c\r\n"},
		"slots as a map":   {"CLUSTER": "%1\r\n+a\r\n+b\r\n"},
		"slots elsewhere":  {"CLUSTER": "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n+127.0.0.1\r\n:1\r\n"},
		"slots of no text": {"CLUSTER": "_\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			server := startLiar(t, greet)
			before := runtime.NumGoroutine()
			begin := time.Now()
			s, err := New(Config{Addrs: []string{server.addr}, DialTimeout: 200 * time.Millisecond})
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("New took %v", took)
			}
			if err != nil {
				return
			}
			for range 10 {
				_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{{Rate: 1, Burst: 10}}, Cost: 1})
				if err != nil && !errors.Is(err, ErrUnavailable) {
					t.Error(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			eventually(t, "no goroutine is left but the server's", func() bool {
				return runtime.NumGoroutine() <= before+2
			})
		})
	}
}

// A server that refuses only for the moment is down when the store is made, as one that cannot
// be reached. Anything else that it refuses is an error.
func TestRefusesAtFirst(t *testing.T) {
	for what, tt := range map[string]struct {
		command, says string
		passes        bool
	}{
		"many clients":         {"HELLO", "ERR max number of clients reached", true},
		"many, in a cluster":   {"HELLO", "ERR max number of clients + cluster connections reached", true},
		"many, after greeting": {"INFO", "ERR max number of clients reached", true},
		"a slow script":        {"INFO", "BUSY Redis is busy running a script.", true},
		"no right":             {"INFO", "NOPERM User weir has no permissions to run the 'info' command", false},
		"no such user":         {"HELLO", "WRONGPASS invalid username-password pair or user is disabled.", false},
	} {
		t.Run(what, func(t *testing.T) {
			server := startLiar(t, map[string]string{tt.command: "-" + tt.says + "\r\n"})
			s, err := New(Config{Addrs: []string{server.addr}, DialTimeout: patient})
			if err == nil {
				defer s.Close()
			}
			if (err == nil) != tt.passes {
				t.Fatalf("%v", err)
			}
			if tt.passes && !s.Stats().Down {
				t.Error("the store is not down")
			}
		})
	}
}
