package proxy

import (
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// idlePerTarget bounds the idle connections kept to one target. The
	// default of net/http is 2, which makes a busy proxy dial for nearly every
	// request and costs three times the CPU.
	idlePerTarget = 1024
	// idleFor is shorter than the keep-alive time of most servers, so that it
	// is rarely they who close a connection just as a request is sent on it.
	idleFor = 45 * time.Second
	// maxAnswerHeader bounds the headers of an answer.
	maxAnswerHeader = 256 << 10
	// bufferSize is what one read or write moves at most.
	bufferSize = 32 << 10
)

// newTransport returns a transport for one upstream. With h2c it speaks HTTP/2
// without TLS to http targets; else HTTP/1.1 to them, and to https targets what
// they prefer of the two.
func newTransport(connectTimeout time.Duration, h2c bool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(!h2c)
	protocols.SetUnencryptedHTTP2(h2c)
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    connectTimeout,
		Protocols:              protocols,
		MaxIdleConnsPerHost:    idlePerTarget,
		IdleConnTimeout:        idleFor,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxAnswerHeader,
		DisableCompression:     true, // what the client asked for is passed on as it is
		HTTP2: &http.HTTP2Config{
			// A connection that died unnoticed is found by a ping, and not by
			// requests that hang on it.
			SendPingTimeout: 15 * time.Second,
			PingTimeout:     5 * time.Second,
		},
	}
}

// buffers lends the buffers that bodies are copied with.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
