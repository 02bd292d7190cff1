package policy

import (
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
)

// matcher finds routes by pattern. It lets an http.ServeMux do so, because its
// rules of precedence are the ones people know, but takes from it nothing but
// the route: it never redirects, answers, or touches the request.
type matcher struct {
	mux *http.ServeMux
	// only is the route of a policy whose one pattern is "/"; no need to ask.
	only *Route
	// none is true if no route has a pattern.
	none bool
	pool sync.Pool
}

// match is one look-up: a request of its own for the mux to write to, and the
// "response" that its handlers write the route into.
type match struct {
	from  *matcher
	route *Route
	found bool
	req   http.Request
	url   url.URL
	// waste takes the header of a redirect that is never sent.
	waste http.Header
}

// endpoint is a pattern's handler.
type endpoint struct{ route *Route }

func (e endpoint) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	m := w.(*match)
	m.route, m.found = e.route, true
}

// Header implements http.ResponseWriter, for the mux's redirects.
func (m *match) Header() http.Header {
	if m.waste == nil {
		m.waste = http.Header{}
	}
	return m.waste
}

func (m *match) Write(p []byte) (int, error) { return len(p), nil }
func (m *match) WriteHeader(int)             {}

func newMatcher() *matcher {
	f := &matcher{mux: http.NewServeMux(), none: true}
	f.pool.New = func() any { return &match{from: f} }
	return f
}

// add registers a pattern, whose faults come back as an error.
func (f *matcher) add(pattern string, rt *Route) error {
	if err := register(f.mux, pattern, endpoint{rt}); err != nil {
		return err
	}
	if f.none && pattern == "/" {
		f.only = rt
	} else {
		f.only = nil
	}
	f.none = false
	return nil
}

// finish makes the mux complete: what matches no route reaches an endpoint too,
// so that whatever else answers is a redirect.
func (f *matcher) finish() {
	// A pattern that already matches everything conflicts, which is as good.
	_ = register(f.mux, "/", endpoint{})
}

// find looks up the route of r. The match, nil where the mux need not be asked,
// is the caller's to free.
func (f *matcher) find(r *http.Request) (*Route, *match) {
	if f.none || f.only != nil {
		return f.only, nil
	}
	m := f.pool.Get().(*match)
	m.req.Method, m.req.Host, m.req.URL = r.Method, hostname(r.Host), &m.url
	m.url.Path, m.url.RawPath = canonical(r.URL)
	f.mux.ServeHTTP(m, &m.req)
	if !m.found {
		// The mux would redirect /tree to /tree/: to this policy they are one.
		m.url.Path += "/"
		if m.url.RawPath != "" {
			m.url.RawPath += "/"
		}
		f.mux.ServeHTTP(m, &m.req)
	}
	return m.route, m
}

// free gives the match back for the next request.
func (m *match) free() {
	if m == nil {
		return
	}
	clear(m.waste)
	*m = match{from: m.from, waste: m.waste}
	m.from.pool.Put(m)
}

// value returns what the path has in place of the wildcard.
func (m *match) value(wildcard string) string {
	if m == nil {
		return ""
	}
	return m.req.PathValue(wildcard)
}

// canonical returns the path as patterns see it: no empty, "." and ".."
// segments, however their dots are written. Requests without a path (CONNECT, OPTIONS *) are for "/".
func canonical(u *url.URL) (unescaped, escaped string) {
	if u == nil || u.Path == "" || u.Path == "*" {
		return "/", ""
	}
	given := u.EscapedPath()
	if isClean(given) {
		return u.Path, u.RawPath
	}
	clean := cleanPath(dots.Replace(given))
	if clean == given {
		return u.Path, u.RawPath
	}
	unescaped, err := url.PathUnescape(clean)
	if err != nil { // cannot be: EscapedPath returns valid escapes only
		return clean, ""
	}
	return unescaped, clean
}

// isClean reports whether a path surely has no segment to take out, at less cost
// than taking them out.
func isClean(p string) bool {
	return p[0] == '/' && !strings.Contains(p, "//") && !strings.Contains(p, "/.") &&
		!strings.Contains(p, "/%2")
}

// Ambiguous reports whether u is one path to a policy and leads elsewhere at a
// server that unescapes slashes before it takes out segments, as nginx does:
// unescaping %2F would make an empty, "." or ".." segment. "/x%2f..%2fheavy" is a
// name below the root here, and /heavy there, past the gates of its route. A
// server in front of others answers such requests with 400; nobody sends them in
// earnest.
//
// Other escaped slashes are part of a name here: "/a%2Fb" has one segment.
func Ambiguous(u *url.URL) bool {
	if u == nil || u.RawPath == "" {
		return false // what has an escaped slash has a RawPath
	}
	given := cleanPath(dots.Replace(u.EscapedPath()))
	unescaped := slashes.Replace(given)
	return unescaped != given && cleanPath(unescaped) != unescaped
}

var slashes = strings.NewReplacer("%2f", "/", "%2F", "/")

// dots unescapes dots, which is what most servers do before they take out dot
// segments (RFC 3986, 6.2.2.2). If "/x/%2e%2e/heavy" were another path here, it
// would reach /heavy without its gate.
var dots = strings.NewReplacer("%2e", ".", "%2E", ".")

// cleanPath is path.Clean for paths of URLs, where a trailing slash matters.
func cleanPath(p string) string {
	if p == "" {
		return "/"
	}
	if p[0] != '/' {
		p = "/" + p
	}
	clean := path.Clean(p)
	if p[len(p)-1] != '/' || clean == "/" {
		return clean
	}
	if len(p) == len(clean)+1 {
		return p
	}
	return clean + "/"
}

// hostname returns a Host header as patterns see it: lower case, no port, no
// brackets, no trailing dot.
func hostname(host string) string {
	if end := strings.IndexByte(host, ']'); end > 0 && host[0] == '[' {
		host = host[1:end]
	} else if i := strings.IndexByte(host, ':'); i >= 0 && i == strings.LastIndexByte(host, ':') {
		host = host[:i]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
