package weirhttp

import (
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// readFrom copies src into the response. Files go to the server's own ReadFrom
// in pieces, so that they are still sent by the kernel; the first piece ends
// where the response becomes a stream. Any other source is copied through
// Write, because waiting for the source must not look like a client that stalls.
func (w *writer) readFrom(src io.Reader) (int64, error) {
	if !isFile(src) {
		buf := copyBuffers.Get().(*[]byte)
		defer copyBuffers.Put(buf)
		return io.CopyBuffer(onlyWriter{w}, onlyReader{src}, *buf)
	}
	w.answer(http.StatusOK)
	var total int64
	for {
		piece := &io.LimitedReader{R: src, N: w.pieceLen()}
		if limited, ok := src.(*io.LimitedReader); ok {
			piece.R = limited.R
			piece.N = min(piece.N, limited.N)
		}
		want := piece.N
		if want <= 0 {
			return total, nil
		}
		w.grow(want)
		n, err := w.watched(func() (int64, error) { return w.inner.(io.ReaderFrom).ReadFrom(piece) })
		total += n
		if limited, ok := src.(*io.LimitedReader); ok {
			limited.N -= n
		}
		if err != nil || n < want {
			return total, err
		}
	}
}

// pieceLen is how much of a file may be sent under one deadline. The first
// pieces end exactly where the response becomes a stream, so that a file which
// ends there is none.
func (w *writer) pieceLen() int64 {
	if s := w.request.streams; s != nil && w.wrote < s.bytes {
		return min(s.bytes-w.wrote, writeChunk)
	}
	return writeChunk
}

// isFile reports whether the server can send src by itself: a file, or a part
// of one, as [http.ServeContent] hands it over. Connections are left out: to
// read from one is to wait for somebody else.
func isFile(src io.Reader) bool {
	if l, ok := src.(*io.LimitedReader); ok {
		src = l.R
	}
	if _, ok := src.(net.Conn); ok {
		return false
	}
	_, seeks := src.(io.Seeker)
	_, ok := src.(syscall.Conn)
	return ok && seeks
}

// onlyWriter and onlyReader hide the methods by which io.CopyBuffer would take
// another way than the buffer.
type onlyWriter struct{ io.Writer }

type onlyReader struct{ io.Reader }

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}
