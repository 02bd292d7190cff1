// Package accesslog writes a line for each request that the gateway has answered. Requests never
// wait for it: a line goes into a bounded buffer, and a goroutine writes the buffer out. What finds
// the buffer full, or cannot be written, is lost and counted. A [Writer] is the same for the log of the gateway itself.
package accesslog

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
)

// Counts is what all logs of a gateway have written and lost. It is safe for concurrent use.
type Counts struct {
	written, full, failed atomic.Uint64
	err                   atomic.Value // of type error text, of the last failed write
}

// Snapshot is what was counted up to one moment. The numbers never fall.
type Snapshot struct {
	// Written is the number of lines that were written. Full were lost because the buffer was full,
	// Failed because a write failed.
	Written, Full, Failed uint64
	// Err is the last error of a write, empty if there was none.
	Err string
}

// Snapshot returns what was counted so far.
func (c *Counts) Snapshot() Snapshot {
	err, _ := c.err.Load().(string)
	return Snapshot{Written: c.written.Load(), Full: c.full.Load(), Failed: c.failed.Load(), Err: err}
}

// Log is an access log that is in use. It is safe for concurrent use. A nil Log wants nothing.
type Log struct {
	cfg  config.AccessLog
	line func(b []byte, e *Entry, query bool) []byte
	sink *sink
}

// Open returns the log that cfg asks for, nil for none. Its error names the file that cannot be
// opened. prev is the log in use, nil for none: a log to the same standard stream goes on with its
// buffer. A file is opened anew, because it may have been renamed. The caller closes prev when
// requests have got the new log.
func Open(cfg config.AccessLog, prev *Log, counts *Counts) (*Log, error) {
	if !cfg.Enabled() {
		return nil, nil
	}
	l := &Log{cfg: cfg, line: appendJSON}
	if cfg.Format == "text" {
		l.line = appendText
	}
	switch stream := cfg.Stream(); {
	case stream == nil:
		f, err := openFile(cfg.To)
		if err != nil {
			return nil, fmt.Errorf("the access log cannot be opened: %w", err)
		}
		l.sink = newSink(f, f.Close, counts)
	case prev != nil && prev.cfg.Stream() == stream:
		l.sink = prev.sink
	default:
		l.sink = newSink(stream, nil, counts)
	}
	return l, nil
}

// openFile opens a regular file. To open a pipe waits for its reader. The flag prevents that, because another file may
// have the name by then.
func openFile(name string) (*os.File, error) {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file; name a file, or write stdout or stderr", name)
	}
	return os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o640)
}

// Wants reports whether an answer with this status gets a line. Of answers below 400 the settings
// may want only some.
func (l *Log) Wants(status int) bool {
	return l != nil && (status >= 400 || l.cfg.Sample >= 1 || rand.Float64() < l.cfg.Sample)
}

// Write adds a line for e. It does not block. It reports false if the log is closed: another one has
// taken its place then.
func (l *Log) Write(e *Entry) bool {
	buf := lines.Get().(*[]byte)
	defer lines.Put(buf)
	*buf = l.line((*buf)[:0], e, l.cfg.Query)
	return l.sink.add(*buf)
}

var lines = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// Shares reports whether both logs write by the same buffer: then it must not be closed.
func (l *Log) Shares(other *Log) bool { return l != nil && other != nil && l.sink == other.sink }

// Close writes what is buffered, for at most the given time. Later lines are refused. What cannot be
// written in that time is lost and counted. A nil Log has nothing to close.
func (l *Log) Close(most time.Duration) {
	if l != nil {
		l.sink.close(most)
	}
}

const (
	// maxBuffered bounds the bytes that wait to be written, some 3,000 lines.
	maxBuffered = 1 << 20
	// urgent is how many bytes are written without waiting for more.
	urgent = 64 << 10
	// linger is how long a line may wait for others, to be written with them.
	linger = 100 * time.Millisecond
)

// Writer writes whole lines to a stream that may stand still. It is safe for concurrent use.
type Writer struct{ sink *sink }

// NewWriter returns a Writer to a stream. After lines have been lost and one could be written again, it calls lost with their
// number. Nothing else is written meanwhile, so lost may write to the stream itself.
func NewWriter(stream io.Writer, lost func(lines uint64)) *Writer {
	s := makeSink(stream, new(Counts))
	s.lost = lost
	go s.run()
	return &Writer{s}
}

// Write implements io.Writer, one line or more a call. It neither blocks nor fails.
func (w *Writer) Write(lines []byte) (int, error) {
	w.sink.add(lines)
	return len(lines), nil
}

// Close writes what is buffered, for at most the given time, and reports whether the stream has taken it. Later lines are
// lost.
func (w *Writer) Close(most time.Duration) bool { return w.sink.close(most) }

// sink writes lines to a file or a stream in a goroutine of its own.
type sink struct {
	out    io.Writer
	end    func() error // nil for a stream, which stays open
	counts *Counts
	linger time.Duration      // before a first line is written
	lost   func(lines uint64) // see NewWriter; may be nil

	some    chan struct{} // there is a first line
	enough  chan struct{} // there is no need to wait for more
	closing chan struct{}
	ended   chan struct{}

	mu     sync.Mutex // guards what follows
	buf    []byte
	n      int // lines in it
	closed bool
}

func newSink(out io.Writer, end func() error, counts *Counts) *sink {
	s := makeSink(out, counts)
	s.end, s.linger = end, linger
	go s.run()
	return s
}

func makeSink(out io.Writer, counts *Counts) *sink {
	return &sink{
		out: out, counts: counts,
		some: make(chan struct{}, 1), enough: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{}),
	}
}

// add buffers a line, or counts it as lost. It reports false if the sink is closed.
func (s *sink) add(line []byte) bool {
	s.mu.Lock()
	before := len(s.buf)
	open, fits := !s.closed, before+len(line) <= maxBuffered
	if open && fits {
		s.buf = append(s.buf, line...)
		s.n++
	}
	after := len(s.buf)
	s.mu.Unlock()
	switch {
	case !open:
		return false
	case !fits:
		s.counts.full.Add(1)
	case before == 0:
		notify(s.some)
	}
	if before < urgent && after >= urgent {
		notify(s.enough)
	}
	return true
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run writes what is buffered until the sink is closed.
func (s *sink) run() {
	defer close(s.ended)
	wait := time.NewTimer(s.linger)
	defer wait.Stop()
	var spare []byte
	var told Snapshot
	torn := false // what was written last ends within a line
	for open := true; open; {
		select {
		case <-s.some:
			wait.Reset(s.linger)
			select {
			case <-wait.C:
			case <-s.enough:
			case <-s.closing:
			}
		case <-s.closing:
			open = false
		}
		s.mu.Lock()
		full, n := s.buf, s.n
		s.buf, s.n = spare[:0], 0
		s.mu.Unlock()
		torn = s.write(full, n, torn)
		spare = full
		if !torn {
			told = s.tell(told)
		}
	}
	if s.end != nil {
		if err := s.end(); err != nil {
			s.counts.err.Store(err.Error())
		}
	}
}

// tell reports the lines that were lost since told, if lines have been written since then.
func (s *sink) tell(told Snapshot) Snapshot {
	now := s.counts.Snapshot()
	lost := now.Full + now.Failed - told.Full - told.Failed
	if s.lost == nil || lost > 0 && now.Written == told.Written {
		return told
	}
	if lost > 0 {
		s.lost(lost)
	}
	return now
}

// write writes n lines, and counts those that were not written in full. It reports whether the last
// one was torn. The next write ends that line first, so that no line is mixed with another.
func (s *sink) write(lines []byte, n int, torn bool) bool {
	if n == 0 {
		return torn
	}
	if torn {
		if _, err := s.out.Write([]byte{'\n'}); err != nil {
			s.fail(n, err)
			return true
		}
	}
	done, err := s.out.Write(lines)
	if err == nil && done < len(lines) {
		err = io.ErrShortWrite
	}
	if err == nil {
		s.counts.written.Add(uint64(n))
		return false
	}
	whole := 0
	for _, c := range lines[:done] {
		if c == '\n' {
			whole++
		}
	}
	s.counts.written.Add(uint64(whole))
	s.fail(n-whole, err)
	return done > 0 && lines[done-1] != '\n'
}

func (s *sink) fail(n int, err error) {
	s.counts.err.Store(err.Error())
	s.counts.failed.Add(uint64(n))
}

// errSlow is why lines are lost that nobody took in time.
var errSlow = errors.New("the file or stream did not take the last lines in time")

// close ends the sink. A write that blocks is waited for no longer than most. It reports whether it has ended.
func (s *sink) close(most time.Duration) bool {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		close(s.closing)
	}
	wait := time.NewTimer(most)
	defer wait.Stop()
	select {
	case <-s.ended:
		return true
	case <-wait.C:
	}
	s.mu.Lock()
	n := s.n
	s.buf, s.n = nil, 0
	s.mu.Unlock()
	if n > 0 {
		s.fail(n, errSlow)
	}
	return false
}
