package weirhttp

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// ownBody is the body of a request that can be sent only once, such as one that came in. It remembers why it
// could not be read, and whether the server had to wait for it. net/http reads it in a goroutine of its own, and closes it
// when the server has failed: what fails after that is no cause.
//
// net/http ends an attempt over HTTP/1 only once the Read under way has returned, which may wait for a stranger. So Read returns
// at the end of the attempt's context, and leaves what it has begun to a goroutine.
type ownBody struct {
	io.ReadCloser
	ctx     context.Context // of the attempt
	left    int64           // of a body whose length is known; below 0 if it is not
	buffer  []byte          // for a Read that may be left
	reading atomic.Bool     // whoever sends it has not sent the rest
	starved atomic.Bool     // so it was when the attempt ended
	closed  atomic.Bool
	fault   atomic.Pointer[error] // the first
}

func newOwnBody(ctx context.Context, r *http.Request) *ownBody {
	left := r.ContentLength
	if left == 0 {
		left = -1 // with a body, that means unknown
	}
	return &ownBody{ReadCloser: r.Body, ctx: ctx, left: left}
}

// Read implements [io.Reader].
func (b *ownBody) Read(to []byte) (int, error) {
	if b.starved.Load() {
		return 0, cmp.Or(b.ctx.Err(), http.ErrBodyReadAfterClose)
	}
	b.reading.Store(b.left != 0) // after the last byte net/http looks whether there is another one
	n, err := b.read(to)
	b.reading.Store(false)
	if b.left > 0 {
		b.left = max(0, b.left-int64(n))
	}
	if err != nil && err != io.EOF && !b.closed.Load() && !b.starved.Load() {
		fault := err
		b.fault.CompareAndSwap(nil, &fault)
	}
	return n, err
}

// mostAtOnce is how much a Read that may be left reads, as io.Copy does.
const mostAtOnce = 32 << 10

// read reads until the end of the context.
func (b *ownBody) read(to []byte) (int, error) {
	if b.ctx.Done() == nil {
		return b.ReadCloser.Read(to)
	}
	if len(to) > mostAtOnce {
		to = to[:mostAtOnce]
	}
	if len(b.buffer) < len(to) {
		b.buffer = make([]byte, len(to))
	}
	into := b.buffer[:len(to)]
	var n int
	var err error
	read := startAside(func() { n, err = b.ReadCloser.Read(into) })
	select {
	case <-read.done:
		read.fail()
		return copy(to, into[:max(0, min(n, len(into)))]), err
	case <-b.ctx.Done():
		b.starved.Store(b.left != 0)
		b.buffer = nil // it is that Read's
		return 0, b.ctx.Err()
	}
}

// Close implements [io.Closer]. The body of a request that came in is closed only once a Read has ended. So what may be
// waiting for a stranger is closed in a goroutine.
func (b *ownBody) Close() error {
	b.closed.Store(true)
	if b.reading.Load() || b.starved.Load() {
		b.starved.Store(true)
		go func() { _ = b.ReadCloser.Close() }()
		return nil
	}
	return b.ReadCloser.Close()
}

// unreadable reports whether err says that the body of a request could not be read.
func unreadable(r *http.Request, err error) bool {
	b, ok := r.Body.(*ownBody)
	if !ok {
		return false
	}
	fault := b.fault.Load()
	return fault != nil && errors.Is(err, *fault)
}

// starved reports whether the rest of the body of a request has not come, or cannot be read. So it was not the server
// that took so long.
func starved(r *http.Request) bool {
	b, ok := r.Body.(*ownBody)
	return ok && (b.reading.Load() || b.starved.Load() || b.fault.Load() != nil)
}

// aheadBody is a body whose beginning is read ahead. Close also ends the reading ahead.
type aheadBody struct {
	io.ReadCloser
	*aside
	head []byte // of what is read ahead, as err is
	err  error
}

func readAhead(body io.ReadCloser) *aheadBody {
	b := &aheadBody{ReadCloser: body}
	b.aside = startAside(func() { b.head, b.err = io.ReadAll(io.LimitReader(body, longestProblem)) })
	return b
}

// Read implements [io.Reader].
func (b *aheadBody) Read(to []byte) (int, error) {
	<-b.done
	b.fail()
	switch {
	case len(b.head) > 0:
		n := copy(to, b.head)
		b.head = b.head[n:]
		return n, nil
	case b.err != nil:
		return 0, b.err
	}
	return b.ReadCloser.Read(to)
}

// aside is the reading of a body in a goroutine of its own.
type aside struct {
	done chan struct{} // closed when it has ended
	// panicked is what the body has panicked with. It panics again where the caller can recover.
	panicked any
}

func startAside(read func()) *aside {
	a := &aside{done: make(chan struct{}), panicked: "weirhttp: the Read of a body has ended its goroutine"}
	go func() {
		defer close(a.done)
		defer func() {
			if p := recover(); p != nil {
				a.panicked = p
			}
		}()
		read()
		a.panicked = nil
	}()
	return a
}

// fail panics as the body has. It is called once it is done.
func (a *aside) fail() {
	if a.panicked != nil {
		panic(a.panicked)
	}
}
