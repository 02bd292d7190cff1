// Package admin serves what the gateway shows of itself: Prometheus metrics, health and
// readiness, the status of every gate as JSON, and Go's profiles. It also serves what can be
// changed at run time, the rules of quotas, and reloads the configuration.
//
// Anybody who can reach the listener may read, so by default it listens on loopback. To write takes
// a token, or the Unix socket that only the gateway's user can open. The listener refuses what a
// web page on another site could make a browser send. On loopback it refuses every request that names a
// host that is neither an address nor localhost (DNS rebinding). On every address it refuses
// requests that a browser marks as coming from another origin.
package admin

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"strings"
)

// Options is what the admin listener serves. All but Explain, Quotas, Reload and Pprof are required.
type Options struct {
	// Metrics serves /metrics.
	Metrics http.Handler
	// Gates returns what /gates shows.
	Gates func() any
	// Ready reports whether the gateway wants requests.
	Ready func() bool
	// Explain serves /explain, if it is not nil.
	Explain http.Handler
	// Quotas serves /quotas, if it is not nil.
	Quotas *QuotaAPI
	// Reload serves /reload, if it is not nil.
	Reload *ReloadAPI
	// Pprof serves Go's profiles under /debug/pprof/.
	Pprof bool
	// AnyHost accepts any Host header, for a listener that others on the network reach by a
	// name. On loopback a name is a sign of DNS rebinding.
	AnyHost bool
}

// Handler returns the admin listener's handler.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", o.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !o.Ready() {
			writeText(w, http.StatusServiceUnavailable, "draining\n")
			return
		}
		writeText(w, http.StatusOK, "ready\n")
	})
	mux.HandleFunc("GET /gates", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.Gates()) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "weir\n\n/metrics\n/healthz\n/readyz\n/gates\n/explain\n/quotas\n/reload\n")
	})
	if o.Explain != nil {
		mux.Handle("GET /explain", o.Explain)
	}
	if o.Quotas != nil {
		o.Quotas.register(mux)
	}
	if o.Reload != nil {
		o.Reload.register(mux)
	}
	if o.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return guard(mux, o.AnyHost)
}

// guard keeps web pages out.
func guard(next http.Handler, anyHost bool) http.Handler {
	cross := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !anyHost && !localName(r.Host):
			writeText(w, http.StatusMisdirectedRequest,
				"use the address of this listener, or localhost: a web page may have pointed any other name here\n")
			return
		case otherSite(r) || otherOrigin(r) || cross.Check(r) != nil:
			writeText(w, http.StatusForbidden, "requests from web pages of other origins are refused\n")
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// otherSite reports whether a browser says that a page of another origin asks. Unlike
// http.CrossOriginProtection it refuses GET too: a profile costs CPU, whoever reads it.
// Typing the address into the browser ("none") is fine.
func otherSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return false
	}
	return true
}

// otherOrigin reports whether the Origin header names another origin than this listener. Browsers
// too old for Sec-Fetch-Site send it with requests from pages that want to read the answer.
func otherOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(u.Host, r.Host)
}

// localName reports whether a Host header is an address or localhost. None at all is no name either: health
// checks may speak HTTP/1.0, and a browser always sends one.
func localName(host string) bool {
	if host == "" {
		return true
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // whoever asked has gone
}

func writeJSON(w http.ResponseWriter, v any) { writeDocument(w, http.StatusOK, "application/json", v) }

func writeDocument(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		writeText(w, http.StatusInternalServerError, "cannot be written as JSON: "+err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // whoever asked has gone
}
