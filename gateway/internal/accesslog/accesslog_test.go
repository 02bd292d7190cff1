package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
)

// entry is a request that a gate has refused, of a client that tries to write lines of its own.
var entry = Entry{
	Time: time.Date(2026, 11, 22, 10, 0, 0, 1500, time.UTC), Client: "203.0.113.9", Method: "GET", Host: "shop.example",
	Path: "/a b\n{\"x\":1}", Query: "token=1", Proto: "HTTP/1.1", Status: 503, Bytes: 213,
	Duration: 1500 * time.Millisecond, Waited: 1499 * time.Millisecond, By: "gate", Route: "/", Class: "normal",
	Gate: "api", Reason: "queue_full", RequestID: "\x1b[2J\U0001f600\xff",
}

func TestLines(t *testing.T) {
	const head = `{"time":"2026-11-22T10:00:00.000001Z","client":"203.0.113.9","method":"GET","host":"shop.example","path":"/a b\u000a{\"x\":1}",`
	const tail = `"proto":"HTTP/1.1","status":503,"bytes":213,"duration":1.500000,"waited":1.499000,"by":"gate","route":"/","class":"normal",` +
		`"gate":"api","reason":"queue_full","request_id":"\u001b[2J\ud83d\ude00\ufffd"}` + "\n"
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"JSON", appendJSON(nil, &entry, false), head + tail},
		{"with the query", appendJSON(nil, &entry, true), head + `"query":"token=1",` + tail},
		{"text", appendText(nil, &entry, false), `time=2026-11-22T10:00:00.000001Z client=203.0.113.9 method=GET host=shop.example path="/a b\u000a{\"x\":1}" ` +
			`proto=HTTP/1.1 status=503 bytes=213 duration=1.500000 waited=1.499000 by=gate route=/ class=normal gate=api reason=queue_full ` +
			`request_id="\u001b[2J\ud83d\ude00\ufffd"` + "\n"},
	} {
		if string(tt.got) != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, tt.got, tt.want)
		}
	}
}

// The guide has each field of a line.
func TestGuideHasAllFields(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/howto/access-log.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(guide), "## Fields")
	e := entry
	e.Upstream, e.Target, e.Rule, e.TraceID = "app", "http://127.0.0.1:3000", "user=*", "4bf92f3577b34da6a3ce929d0e0e4736"
	var fields map[string]any
	if err := json.Unmarshal(appendJSON(nil, &e, true), &fields); err != nil {
		t.Fatal(err)
	}
	for field := range fields {
		if !strings.Contains(table, "`"+field+"`") {
			t.Errorf("the guide does not have %s", field)
		}
	}
}

// FuzzLine holds that a line is one line of printable ASCII, and that JSON gives a text back.
func FuzzLine(f *testing.F) {
	f.Add("/a\nb", "x")
	f.Add(strings.Repeat("é", longestText), "\xff\"\\= \u2028\U0001f600")
	f.Fuzz(func(t *testing.T, path, host string) {
		e := Entry{Path: path, Host: host}
		for _, line := range [][]byte{appendJSON(nil, &e, true), appendText(nil, &e, true)} {
			if len(line) > 6*2*longestText+1000 {
				t.Errorf("%d bytes", len(line))
			}
			for i, c := range line {
				if (c < ' ' || c > '~') && i != len(line)-1 || i == len(line)-1 && c != '\n' {
					t.Fatalf("byte %#02x in %q", c, line)
				}
			}
		}
		var got struct{ Path, Host string }
		if err := json.Unmarshal(appendJSON(nil, &e, true), &got); err != nil {
			t.Fatal(err)
		}
		if want := strings.ToValidUTF8(path, "\ufffd"); len(path) <= longestText && len([]rune(path)) == len([]rune(want)) && got.Path != want {
			t.Errorf("%q came back as %q", path, got.Path)
		}
	})
}

// broken is a file of limited room, on a disk that may be full.
type broken struct {
	mu   sync.Mutex
	room int
	bytes.Buffer
}

func (b *broken) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(p) > b.room {
		n, _ := b.Buffer.Write(p[:b.room])
		b.room = 0
		return n, syscall.ENOSPC
	}
	b.room -= len(p)
	return b.Buffer.Write(p)
}

// A full disk loses lines and counts them. When there is room again, the next line begins anew.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, counts := &broken{room: 10}, new(Counts)
		s := newSink(out, nil, counts)
		settle := func() { time.Sleep(2 * linger); synctest.Wait() }
		for range 3 {
			s.add([]byte("1234567\n"))
		}
		settle()
		if got := counts.Snapshot(); got.Written != 1 || got.Failed != 2 || got.Err != syscall.ENOSPC.Error() {
			t.Errorf("counted %+v; want one line written and two lost", got)
		}
		s.add([]byte("still no room\n"))
		settle()
		out.mu.Lock()
		out.room = 1000
		out.mu.Unlock()
		s.add([]byte("room\n"))
		s.close(time.Minute)
		if got := counts.Snapshot(); got.Written != 2 || got.Failed != 3 || out.String() != "1234567\n12\nroom\n" {
			t.Errorf("counted %+v, wrote %q", got, out.String())
		}
	})
}

// A pipe that nobody reads holds nobody up, takes no more memory than it may, and a shutdown does not
// wait for it for ever.
func TestSlowPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		counts := new(Counts)
		s := newSink(w, nil, counts)
		line := bytes.Repeat([]byte("x"), 1<<10)
		line[len(line)-1] = '\n'
		for range 64 { // which the goroutine takes, and then cannot write
			s.add(line)
		}
		synctest.Wait()
		const more = 3000
		for range more {
			if !s.add(line) {
				t.Fatal("it is not closed")
			}
		}
		if len(s.buf) > maxBuffered {
			t.Errorf("%d bytes are buffered", len(s.buf))
		}
		s.close(time.Second)
		got := counts.Snapshot()
		if got.Written != 0 || got.Full == 0 || got.Full+got.Failed != more || got.Err != errSlow.Error() {
			t.Errorf("counted %+v; want all %d counted as lost", got, more)
		}
		if s.add(line) {
			t.Error("a closed log took a line")
		}
		r.Close()
		<-s.ended
		if got := counts.Snapshot(); got.Full+got.Failed != more+64 {
			t.Errorf("counted %+v in the end; want %d lost", got, more+64)
		}
	})
}

// A Writer keeps nobody waiting for a stream that stands still. Once it moves again, the Writer tells how many lines were lost.
func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stream := io.Pipe()
		w := NewWriter(stream, func(lines uint64) { fmt.Fprintf(stream, "%d lost\n", lines) })
		line := bytes.Repeat([]byte("x"), 1<<10)
		line[len(line)-1] = '\n'
		put := func(n int) {
			for range n {
				if n, err := w.Write(line); n != len(line) || err != nil {
					t.Errorf("%d, %v", n, err)
				}
			}
			synctest.Wait()
		}
		const fit = maxBuffered >> 10
		put(1) // which the goroutine takes, and then cannot write
		put(fit + 17)
		got := make(chan string)
		go func() {
			text, _ := io.ReadAll(r)
			got <- string(text)
		}()
		synctest.Wait()
		put(1)
		if !w.Close(time.Minute) {
			t.Error("the stream has not taken the last lines")
		}
		stream.Close()
		one := string(line)
		if text, want := <-got, one+"17 lost\n"+strings.Repeat(one, fit+1); text != want {
			t.Errorf("%d bytes were written, want %d", len(text), len(want))
		}
	})
}

// A Writer whose stream stands still ends all the same.
func TestWriterEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stream := io.Pipe()
		w := NewWriter(stream, nil)
		_, _ = w.Write([]byte("line\n"))
		if w.Close(time.Second) {
			t.Error("the stream has taken what nobody has read")
		}
		r.Close() // which ends its goroutine
	})
}

// Lines that follow each other are written together.
func TestLinesAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out writes
		s := newSink(&out, nil, new(Counts))
		for range 100 {
			s.add([]byte("line\n"))
		}
		time.Sleep(2 * linger)
		synctest.Wait()
		if len(out) != 1 {
			t.Errorf("%d writes for 100 lines, want 1", len(out))
		}
		s.close(time.Minute)
	})
}

type writes [][]byte

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, bytes.Clone(p))
	return len(p), nil
}

// Open opens a file anew, and goes on with a stream.
func TestOpen(t *testing.T) {
	counts := new(Counts)
	file := filepath.Join(t.TempDir(), "access.log")
	to := func(name string) config.AccessLog { return config.AccessLog{To: name, Format: "text", Sample: 1} }
	open := func(cfg config.AccessLog, prev *Log) *Log {
		t.Helper()
		l, err := Open(cfg, prev, counts)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := open(to("off"), nil); l != nil || l.Wants(500) || l.Shares(nil) {
		t.Error("a log that is off")
	}
	first := open(to(file), nil)
	first.Write(&entry)
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	second := open(to(file), first)
	second.Write(&entry)
	if second.Shares(first) {
		t.Error("the file was not opened anew")
	}
	first.Close(time.Minute)
	if first.Write(&entry) {
		t.Error("a closed log took a line")
	}
	second.Close(time.Minute)
	for _, name := range []string{file, file + ".1"} {
		if text, err := os.ReadFile(name); err != nil || strings.Count(string(text), "\n") != 1 {
			t.Errorf("%s has %q, %v; want one line", name, text, err)
		}
	}
	if got := counts.Snapshot(); got.Written != 2 || got.Full+got.Failed != 0 {
		t.Errorf("counted %+v, want two lines", got)
	}
	stream := open(to("stderr"), nil)
	defer stream.Close(time.Minute)
	for _, name := range []string{"stderr", "/dev/stderr"} {
		if again := open(to(name), stream); !again.Shares(stream) {
			t.Errorf("%s: a stream has two buffers", name)
		}
	}
	var missing *os.PathError
	if _, err := Open(to(filepath.Join(file, "none")), nil, counts); !errors.As(err, &missing) {
		t.Errorf("%v, want the file that cannot be opened", err)
	}
}

func TestSample(t *testing.T) {
	l := &Log{cfg: config.AccessLog{Sample: 0.25}}
	n := 0
	for range 4000 {
		if l.Wants(200) {
			n++
		}
		if !l.Wants(503) || !l.Wants(429) || !l.Wants(400) {
			t.Fatal("a refusal has no line")
		}
	}
	if n < 800 || n > 1200 { // seven standard deviations
		t.Errorf("%d of 4000 answers have a line, want a quarter", n)
	}
}

// BenchmarkWrite is what a line costs the request that it is about.
func BenchmarkWrite(b *testing.B) {
	for name, line := range map[string]func([]byte, *Entry, bool) []byte{"json": appendJSON, "text": appendText} {
		b.Run(name, func(b *testing.B) {
			l := &Log{cfg: config.AccessLog{Sample: 1}, line: line, sink: newSink(io.Discard, nil, new(Counts))}
			defer l.Close(time.Minute)
			e := entry
			e.Path, e.RequestID = "/v1/orders/17", "5b1f7a"
			b.ReportAllocs()
			for b.Loop() {
				l.Write(&e)
			}
		})
	}
}
