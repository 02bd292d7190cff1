package policy

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/throttle"
)

// Route is a compiled route: its patterns, its chain of gates, and what its work is like. A Route
// does not change; its gates are live. The nil Route is empty: it is the route of work that matches
// none.
type Route struct {
	name     string
	upstream string
	patterns []string
	gates    []*Gate
	chain    weir.Gate
	work     weir.Work
	timeout  time.Duration
	longest  time.Duration // see LongestWait
	charging charging
	access   string // read, write; empty: by the method

	demoteAfter int64 // admissions; 0: never

	retryShare float64            // above which retries are common; 0: the default
	attempts   *throttle.Attempts // of what is refused
}

// none is the route of work that matches no route.
var none = &Route{chain: weir.All()}

func (rt *Route) orNone() *Route {
	if rt == nil {
		return none
	}
	return rt
}

// Name returns the route's name.
func (rt *Route) Name() string { return rt.orNone().name }

// Upstream returns where a proxy sends the route's work, as the Spec says.
func (rt *Route) Upstream() string { return rt.orNone().upstream }

// Patterns returns the patterns that the route matches, as the policy wrote
// them.
func (rt *Route) Patterns() []string { return slices.Clone(rt.orNone().patterns) }

// Gates returns the gates of the chain, in order.
func (rt *Route) Gates() []*Gate { return slices.Clone(rt.orNone().gates) }

// Gate returns the whole chain as one gate, all or nothing, with the modes
// applied: every gate but the last is tried without waiting. It is a
// weir.TryAdmitter and a weir.Arriver too. The nil Route, and a route without
// gates, admit everything.
func (rt *Route) Gate() weir.Gate { return rt.orNone().chain }

// Work returns what every piece of the route's work has in common: Op,
// Priority, Cost and MaxWait. It has no deadline; add Timeout to the time of
// arrival.
func (rt *Route) Work() weir.Work { return rt.orNone().work }

// Timeout returns how long after its arrival an answer to the route's work is
// useful, 0 for ever.
func (rt *Route) Timeout() time.Duration { return rt.orNone().timeout }

// LongestWait returns how long the chain lets the route's work wait, if its own MaxWait and deadline allow that. It
// is negative if nothing else bounds the wait. Only the last gate of a chain lets work wait.
func (rt *Route) LongestWait() time.Duration { return rt.orNone().longest }

// Told returns a refusal of the route's work as its client should hear it. While retries are common
// among what the route refuses for overload, that is a copy which is not Retryable; see
// [throttle.Attempts.Told]. Call it once for each refusal, before it becomes an answer. trusted is
// what [Policy.Trusted] says of the peer.
func (rt *Route) Told(w *weir.Work, trusted bool, r *weir.Rejection) *weir.Rejection {
	if rt == nil || rt.attempts == nil || r == nil {
		return r
	}
	return rt.attempts.Told(w, trusted, r)
}

// writes reports whether a request changes something: as the route says, else by its method (RFC
// 9110, section 9.2.1, calls some methods safe).
func (rt *Route) writes(method string) bool {
	if rt != nil && rt.access != "" {
		return rt.work.Write
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "": // as net/http, GET
		return false
	}
	return true
}

// Words for RouteSpec.Access.
var accesses = []string{"read", "write"}

func (c *compiler) checkRoutes(p *Policy) {
	p.matcher, p.byName = newMatcher(), map[string]*Route{}
	seen := &patterns{matcher: p.matcher}
	count := 0
	for i := range c.spec.Routes {
		at := fault.Path{"routes"}.Index(i)
		if count += len(c.spec.Routes[i].Match); count > mostPatterns {
			c.Add(at, fmt.Sprintf("up to here, routes have more than %d patterns", mostPatterns),
				"write fewer: {name} stands for any one segment of a path, and /dir/ for all that is below it")
			break
		}
		rt := c.checkRoute(at, &c.spec.Routes[i])
		rt.charging.ignored = p.identity.ignored
		rt.attempts = c.attemptsOf(rt)
		p.routes = append(p.routes, rt)
		if at := at.At("name"); rt.name != "" && p.byName[rt.name] != nil {
			c.Add(at, fmt.Sprintf("%q is the name of an earlier route too", rt.name), "give each route a name of its own")
		}
		p.byName[rt.name] = rt
		for j, pattern := range rt.patterns {
			c.checkPattern(at.At("match").Index(j), seen, pattern, rt)
		}
	}
	p.matcher.finish()
}

// attemptsOf returns the count of refused attempts of a route. It is that of the route with the same
// name in the policy before, or a new one. One with another share counts anew.
func (c *compiler) attemptsOf(rt *Route) *throttle.Attempts {
	if prev := c.opts.Previous; prev != nil && c.opts.Now == nil {
		if was := prev.byName[rt.name]; was != nil && was.retryShare == rt.retryShare {
			return was.attempts
		}
	}
	a, _ := throttle.NewAttempts(throttle.AttemptsConfig{Share: rt.retryShare}, c.opts.Now) // nil only with a fault that is told already
	return a
}

func (c *compiler) checkRoute(at fault.Path, r *RouteSpec) *Route {
	setting.Check(at, *r, &c.List)
	rt := &Route{name: r.Name, upstream: r.Upstream, access: r.Access, patterns: slices.Clone(r.Match), timeout: time.Duration(r.Timeout), retryShare: r.RetryShare}
	if rt.name == "" && len(r.Match) > 0 {
		rt.name = r.Match[0]
	}
	if rt.name == "" {
		c.Add(at.At("match"), "the route has neither a pattern nor a name, so nothing can reach it",
			"write a pattern, such as \"POST /v1/orders/{id}\"")
	} else {
		c.checkName(at.At("name"), "route", rt.name)
	}
	rt.work = weir.Work{Op: rt.name, Exempt: r.Exempt, Write: r.Access == "write", Cost: r.Cost, MaxWait: time.Duration(r.MaxWait)}
	if r.MaxWait < 0 {
		rt.work.MaxWait = weir.NoWait
	}
	if p, ok := weir.ParsePriority(r.Priority); ok {
		rt.work.Priority = p
	}
	rt.charging = c.checkCharging(at, r)
	c.checkCost(at, r)
	c.checkChain(at, r)
	return rt
}

// checkCost refuses a cost that no admission could ever meet.
func (c *compiler) checkCost(at fault.Path, r *RouteSpec) {
	for _, name := range r.Gates {
		g := c.spec.Gates[name]
		if g.Limit == nil || g.Limit.Count == "requests" {
			continue
		}
		if most := g.Limit.ceiling(); most > 0 && r.Cost > most {
			c.Add(at.At("cost"), fmt.Sprintf("%d can never be met by gate %s, which has at most %d slots", r.Cost, name, most),
				"write a lower cost or give the gate more slots")
		}
	}
}

func (c *compiler) checkChain(at fault.Path, r *RouteSpec) {
	at = at.At("gates")
	for i, name := range r.Gates {
		if _, ok := c.spec.Gates[name]; !ok {
			known := slices.Sorted(maps.Keys(c.spec.Gates))
			c.Add(at.Index(i), fmt.Sprintf("there is no gate %q", name), fault.Suggest(name, known, "gates"))
		}
		if slices.Contains(r.Gates[:i], name) {
			c.Add(at.Index(i), fmt.Sprintf("%q is in the chain already", name), "name each gate once")
		}
	}
}

// patterns are those registered so far, with their paths in the spec.
type patterns struct {
	matcher *matcher
	earlier []string
	at      []fault.Path
}

func (c *compiler) checkPattern(at fault.Path, seen *patterns, pattern string, rt *Route) {
	if problem, instead := patternFault(pattern); problem != "" {
		c.Add(at, problem, instead)
		return
	}
	if err := seen.matcher.add(pattern, rt); err != nil {
		problem, instead := seen.conflict(pattern, err)
		c.Add(at, problem, instead)
		return
	}
	seen.earlier, seen.at = append(seen.earlier, pattern), append(seen.at, at)
}

// checkWildcards refuses identities that name a wildcard which no pattern has.
func (c *compiler) checkWildcards(p *Policy) {
	var known []string
	for _, rt := range p.routes {
		for _, pattern := range rt.patterns {
			known = append(known, wildcards(pattern)...)
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	names := []string{"tenant", "user", "client"}
	for i, s := range p.identity.sources() {
		p.matcher.keeps = p.matcher.keeps || s.kind == pathSource
		if s.kind != pathSource || i >= len(names) || slices.Contains(known, s.key) {
			continue
		}
		c.Add(fault.Path{"identity", names[i]}, fmt.Sprintf("no route has the wildcard {%s}", s.key),
			fault.Suggest(s.key, known, "wildcards"))
	}
}

// wildcards returns the names in a pattern's braces.
func wildcards(pattern string) []string {
	var names []string
	for {
		_, rest, ok := strings.Cut(pattern, "{")
		name, rest, closed := strings.Cut(rest, "}")
		if !ok || !closed {
			return names
		}
		if name = strings.TrimSuffix(name, "..."); name != "$" {
			names = append(names, name)
		}
		pattern = rest
	}
}

// matcher finds routes by pattern. It uses an http.ServeMux, because people know its rules of
// precedence. It takes only the route from it: the mux never redirects, answers, or changes the
// request.
type matcher struct {
	mux *http.ServeMux
	// only is the route of a policy with the single pattern "/"; the mux is not asked then.
	only *Route
	// none is true if no route has a pattern, hosts if some pattern names a host.
	none, hosts bool
	pool        sync.Pool
	// keeps is true if a wildcard is part of somebody's identity.
	keeps bool
	fixed fixedRoutes
}

// mostFixed bounds how many paths a policy remembers, each of at most maxName bytes.
const mostFixed = 1024

// fixedRoutes are the routes of paths that come again and again. Nobody writes to the map; a new
// path makes a new one.
type fixedRoutes struct {
	mu sync.Mutex
	of atomic.Pointer[map[string]*Route]
}

func (f *fixedRoutes) find(path string) (rt *Route, ok bool) {
	if of := f.of.Load(); of != nil {
		rt, ok = (*of)[path]
	}
	return rt, ok
}

func (f *fixedRoutes) add(path string, rt *Route) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := map[string]*Route{}
	if old := f.of.Load(); old != nil {
		if len(*old) >= mostFixed {
			return
		}
		of = maps.Clone(*old)
	}
	of[strings.Clone(path)] = rt
	f.of.Store(&of)
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

// add registers a pattern. It returns the faults of the pattern as an error.
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
	f.hosts = f.hosts || namesHost(pattern)
	return nil
}

// namesHost reports whether a pattern has a host between its method and its path.
func namesHost(pattern string) bool {
	_, rest, method := strings.Cut(pattern, " ")
	if !method {
		rest = pattern
	}
	rest = strings.TrimLeft(rest, " \t")
	return !strings.HasPrefix(rest, "/")
}

// finish makes the mux complete: what matches no route reaches an endpoint too,
// so that whatever else answers is a redirect.
func (f *matcher) finish() {
	// A pattern that already matches everything conflicts, which is as good.
	_ = register(f.mux, "/", endpoint{})
}

// find looks up the route of a request. The match, nil where the mux need not be asked,
// is the caller's to free.
func (f *matcher) find(v *View) (*Route, *match) {
	if f.none || f.only != nil {
		return f.only, nil
	}
	if v.Fixed && len(v.Path) <= maxName && !f.hosts && !f.keeps && v.Method == http.MethodPost {
		rt, ok := f.fixed.find(v.Path)
		if !ok {
			var m *match
			rt, m = f.search(v)
			m.free()
			f.fixed.add(v.Path, rt)
		}
		return rt, nil
	}
	return f.search(v)
}

// search asks the mux.
func (f *matcher) search(v *View) (*Route, *match) {
	m := f.pool.Get().(*match)
	m.req.Method, m.req.URL = v.Method, &m.url
	if f.hosts {
		m.req.Host = hostname(v.Header.Host())
	}
	m.url.Path, m.url.RawPath = v.Path, v.RawPath
	m.url.Path, m.url.RawPath = canonical(&m.url)
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
	if u.Path == "" || u.Path == "*" {
		return "/", ""
	}
	given, raw := EscapedPath(u), u.RawPath
	if raw != "" {
		raw = given
	}
	if isClean(given) {
		return u.Path, raw
	}
	clean := cleanPath(dots.Replace(given))
	if clean == given {
		return u.Path, raw
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

// EscapedPath returns the path of u as it came, with the bytes escaped that have to be. [url.URL.EscapedPath] escapes the
// unescaped path instead, if there are such bytes. So "/a%2Fb|" would be "/a/b%7C", which is for another route.
func EscapedPath(u *url.URL) string {
	p := u.EscapedPath()
	if u.RawPath == "" || p == u.RawPath {
		return p
	}
	if path, err := url.PathUnescape(u.RawPath); err != nil || path != u.Path {
		return p // somebody has changed the path
	}
	var b strings.Builder
	for i := range len(u.RawPath) {
		if c := u.RawPath[i]; c == '%' || mayStandInPath(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// mayStandInPath reports whether a byte needs no escape in a path. Brackets need one by RFC 3986 (3.3), but all
// send them as they are.
func mayStandInPath(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~!$&'()*+,;=:@/[]", c) >= 0
}

// AmbiguousText tells a client why a request with an [Ambiguous] path is refused.
const AmbiguousText = "servers differ on where the path leads: .. follows // or goes above the root, or with %2F unescaped it has an empty, . or .. segment, or it is no path"

// Ambiguous reports whether another server may read the path of u differently from a policy. nginx,
// for example, unescapes slashes before it removes segments. So a %2F there can make an empty, "."
// or ".." segment. "/x%2f..%2fheavy" is a name below the root here, and /heavy there, past the
// gates of its route. A server in front of others answers these requests with 400; no honest client
// sends them.
//
// Other escaped slashes are part of a name here: "/a%2Fb" has one segment.
//
// Some servers take out dot segments before they merge slashes, as RFC 3986 (5.2.4) does, and others the other way
// round. "/heavy//../light" is /light here, and /heavy/light there. A path that goes above the root leaves the base path of
// a proxy's target: "/../private" below "/public" is /private there. A target that is no path, such as
// "x:http://host/heavy", would be sent on as it is, and is for "/" here.
func Ambiguous(u *url.URL) bool {
	if u == nil {
		return false
	}
	if u.Opaque != "" {
		return true
	}
	if u.RawPath == "" && !strings.Contains(u.Path, "//") && !strings.Contains(u.Path, "/..") { // nearly all; what has an escaped slash has a RawPath
		return false
	}
	given := dots.Replace(EscapedPath(u))
	if goesAboveRoot(given) {
		return true
	}
	clean := cleanPath(given)
	if strings.Contains(given, "//") && cleanPath(withoutDots(given)) != clean {
		return true
	}
	unescaped := slashes.Replace(clean)
	return unescaped != clean && cleanPath(unescaped) != unescaped
}

// goesAboveRoot reports whether a path does so for a server that merges slashes.
func goesAboveRoot(p string) bool {
	depth := 0
	for segment := range strings.SplitSeq(p, "/") {
		switch segment {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return true
			}
		default:
			depth++
		}
	}
	return false
}

// withoutDots takes dot segments out of a path, where an empty segment is one like any other.
func withoutDots(p string) string {
	var kept []string
	segments := strings.Split(strings.TrimPrefix(p, "/"), "/")
	for i, s := range segments {
		last := i == len(segments)-1
		switch {
		case s == ".." && len(kept) > 0:
			kept = kept[:len(kept)-1]
		case s != "." && s != "..":
			kept = append(kept, s)
			continue
		}
		if last {
			kept = append(kept, "")
		}
	}
	return "/" + strings.Join(kept, "/")
}

var slashes = strings.NewReplacer("%2f", "/", "%2F", "/")

// dots unescapes dots, which is what most servers do before they take out dot
// segments (RFC 3986, 6.2.2.2). If "/x/%2e%2e/heavy" were another path here, it
// would reach /heavy without its gate.
var dots = strings.NewReplacer("%2e", ".", "%2E", ".")

// cleanPath is path.Clean for paths of URLs, where a trailing slash matters. What ends with a dot
// segment ends with a slash without it (RFC 3986, 5.2.4). nginx does the same. Else "/heavy/." would
// pass the gates of "/heavy" alone, and be served as "/heavy/".
func cleanPath(p string) string {
	if p == "" {
		return "/"
	}
	if p[0] != '/' {
		p = "/" + p
	}
	clean := path.Clean(p)
	if clean == "/" || !strings.HasSuffix(p, "/") && !strings.HasSuffix(p, "/.") && !strings.HasSuffix(p, "/..") {
		return clean
	}
	if len(p) == len(clean)+1 {
		return p
	}
	return clean + "/"
}

// AmbiguousHostText tells a client why a request with a [Policy.AmbiguousHost] is refused.
const AmbiguousHostText = "servers differ on which host is meant: it has several colons and no brackets, or its brackets or its port are not as in [::1]:80"

// AmbiguousHost reports whether another server may read a Host header differently from a policy. nginx, for example, ends
// the name at the first colon. So "heavy.test:80:80" is heavy.test there, and here a host of its own, past the gates of heavy.test.
// A server in front of others answers these requests with 400 (RFC 9112, 3.2). No host is ambiguous to a policy in which
// neither a pattern nor an identity has one: it has the same gates for all. That lets in clients of gRPC with a list of
// addresses, which send the whole list as their host.
func (p *Policy) AmbiguousHost(host string) bool {
	return isAmbiguousHost(host) && (p.matcher.hosts || p.identity.readsHost())
}

func isAmbiguousHost(host string) bool {
	literal, hasBracket := strings.CutPrefix(host, "[")
	if !hasBracket {
		return strings.Count(host, ":") > 1
	}
	name, port, closed := strings.Cut(literal, "]")
	return !closed || !isIPv6(name) || port != "" && (port[0] != ':' || strings.Count(port, ":") > 1)
}

func isIPv6(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && addr.Is6()
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

// mostPatterns bounds the patterns of all routes: each is compared with those before it.
const mostPatterns = 10_000

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
