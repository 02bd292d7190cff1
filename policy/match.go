package policy

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
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

func (m *match) WriteHeader(int) {}

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

// methods are the methods that a pattern is likely to name, to tell a forgotten
// space from a host.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
}

// register adds a pattern to the mux and turns its panics into errors.
func register(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%v", fault)
		}
	}()
	mux.Handle(pattern, h)
	return nil
}

// patternFault says what is wrong with a pattern by itself: what ServeMux
// refuses, and what it accepts but could never match here.
func patternFault(pattern string) (problem, instead string) {
	if pattern == "" {
		return "the pattern is empty", "write \"/\" to match everything"
	}
	method, rest := "", pattern
	if i := strings.IndexAny(pattern, " \t"); i >= 0 {
		method, rest = pattern[:i], strings.TrimLeft(pattern[i:], " \t")
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return fmt.Sprintf("%q has no path", pattern), fmt.Sprintf("write %q", strings.TrimSpace(method+" /"+rest))
	}
	host, path := rest[:slash], rest[slash:]
	switch {
	case method != strings.ToUpper(method):
		return fmt.Sprintf("the method %s is not in upper case, and methods are compared by letter", method),
			fmt.Sprintf("write %q", strings.ToUpper(method)+" "+rest)
	case strings.Contains(path, "?"):
		path, _, _ := strings.Cut(path, "?")
		return "a pattern matches the path, not the query", fmt.Sprintf("write %q", strings.TrimSpace(method+" "+host+path))
	case strings.ContainsAny(path, " \t"):
		return fmt.Sprintf("the path %q has a space in it", path), "write %20 for a space"
	case method == "" && slices.Contains(methods, host):
		return fmt.Sprintf("a space is missing between the method %s and the path", host), fmt.Sprintf("write %q", host+" "+path)
	case host != hostname(host) && !strings.Contains(host, "{"):
		return fmt.Sprintf("the host %s would match nothing: hosts are compared in lower case and without port", host),
			fmt.Sprintf("write %q", strings.TrimSpace(method+" "+hostname(host)+path))
	case path != cleanPath(path):
		return fmt.Sprintf("%q would match nothing: paths are compared without empty, . and .. segments", path),
			fmt.Sprintf("write %q", strings.TrimSpace(method+" "+host+cleanPath(path)))
	}
	if err := register(http.NewServeMux(), pattern, endpoint{}); err != nil {
		return muxProblem(err), "write [METHOD ][HOST]/PATH, with wildcards such as /v1/{name} or /files/{path...}"
	}
	return "", ""
}

// muxProblem is ServeMux's word on a pattern, without the parts about Go code.
func muxProblem(err error) string {
	text := err.Error()
	if _, after, ok := strings.Cut(text, "at offset "); ok {
		if _, after, ok := strings.Cut(after, ": "); ok {
			return after
		}
	}
	return strings.TrimPrefix(text, "http: ")
}

// mostCompared bounds the search for the pattern that another conflicts with, so
// that a file with thousands of them is refused in good time.
const mostCompared = 1000

// conflict explains why a pattern that is fine by itself cannot stand beside the
// earlier ones.
func (s *patterns) conflict(pattern string, err error) (problem, instead string) {
	for i, earlier := range s.earlier[:min(len(s.earlier), mostCompared)] {
		if normalPattern(pattern) == normalPattern(earlier) {
			return fmt.Sprintf("%q stands at %v already", pattern, s.at[i]), "leave one of them out"
		}
		pair := http.NewServeMux()
		if register(pair, earlier, endpoint{}) != nil || register(pair, pattern, endpoint{}) == nil {
			continue
		}
		_, why, _ := strings.Cut(err.Error(), "):\n")
		why = strings.Join(strings.Fields(why), " ")
		return strings.TrimSpace(fmt.Sprintf("%q conflicts with %q at %v: %s", pattern, earlier, s.at[i], strings.TrimSuffix(why, "."))),
			"make one of them more specific than the other"
	}
	return muxProblem(err), "change one of the two patterns"
}

// normalPattern writes a pattern with single spaces.
func normalPattern(pattern string) string { return strings.Join(strings.Fields(pattern), " ") }
