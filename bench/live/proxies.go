package live

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
)

// newProxy returns the rival called name before upstream: ReverseProxy alone, or
// inside failsafe-go's handler. Transport and buffers are tuned as the gateway's
// are, so that only the limiter differs.
func newProxy(name, upstream string) (http.Handler, error) {
	target, err := url.Parse(upstream)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			MaxIdleConnsPerHost:    1024,
			IdleConnTimeout:        45 * time.Second,
			MaxResponseHeaderBytes: 256 << 10,
			DisableCompression:     true,
		},
		BufferPool: new(bufferPool),
		// A client that left is no news; the status is as ReverseProxy's own.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	switch name {
	case guardNone:
		return proxy, nil
	case guardFailsafe:
		return failsafehttp.NewHandler(proxy, adaptivelimiter.NewWithDefaults[*http.Response]()), nil
	case guardFailsafeQueue:
		// The factors are those that its prioritized limiter uses where none are given.
		return failsafehttp.NewHandler(proxy, adaptivelimiter.NewBuilder[*http.Response]().WithQueueing(2, 3).Build()), nil
	}
	return nil, fmt.Errorf("proxy %q: unknown", name)
}

type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *bufferPool) Put(p []byte) { b.pool.Put(&p) }
