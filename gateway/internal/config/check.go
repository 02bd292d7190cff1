package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
)

// checkMeaning reports what is wrong with a configuration that is right in form.
// It skips whatever has a fault already, and makes file names absolute in the
// sense of the file: relative ones are relative to its directory.
func checkMeaning(c *Config, faults *fault.List) {
	m := &meaning{Config: c, List: faults, dir: filepath.Dir(c.name), listening: map[string][]listening{}}
	if c.root.Get("listeners") == nil && !c.onlyKafka() {
		c.Listeners = []Listener{DefaultListener(DefaultListen)}
	}
	m.admin() // first, so that a listener in its way is told so where it is written
	m.listeners()
	m.upstreams()
	m.routes()
	m.signals()
	m.kafka()
	m.kafkaSignals()
	m.stores()
	m.accessLog()
	m.tracing()
	m.dynamic()
	m.rateLimits()
	m.files() // before state, which tells less of a file that has other uses
	m.state()
	m.policy()
}

type meaning struct {
	*Config
	*fault.List
	dir       string
	listening map[string][]listening // by port
}

// listening is a host that a field of the file listens on.
type listening struct {
	host string
	path fault.Path
}

// clashes reports whether both hosts cannot be bound on one port.
func (l listening) clashes(host string) bool {
	all := []string{"", "0.0.0.0", "::"}
	return bound(l.host) == bound(host) || slices.Contains(all, l.host) || slices.Contains(all, host)
}

// bound is the host that a socket has in the end. Of the addresses of localhost that is the one of IPv4.
func bound(host string) string {
	if strings.EqualFold(host, "localhost") {
		return "127.0.0.1"
	}
	return host
}

// report adds a fault at a path, unless it or something in it is faulty already.
func (m *meaning) report(path fault.Path, remedy, format string, args ...any) {
	if !m.Has(path) {
		m.Add(path, fmt.Sprintf(format, args...), remedy)
	}
}

// reportError is report for the error of a value.
func (m *meaning) reportError(path fault.Path, err error) {
	if !m.Has(path) {
		m.AddError(path, err)
	}
}

// onlyKafka reports whether a file is about clients of Kafka and says nothing of HTTP. It looks at what is written: that may
// have faults, and they are no reason to ask for upstreams.
func (c *Config) onlyKafka() bool {
	clusters := c.root.Get("kafka")
	if clusters == nil || c.root.Get("listeners") != nil || c.root.Get("upstreams") != nil || c.root.Get("routes") != nil {
		return false
	}
	serves := func(cluster *setting.Node) bool {
		return slices.ContainsFunc([]string{"listen", "nodes", "quotas"}, func(key string) bool { return cluster.Get(key) != nil })
	}
	return serves(clusters) || slices.ContainsFunc(clusters.Members, func(m setting.Member) bool { return serves(m.Value) })
}

func (m *meaning) listeners() {
	if m.root.Get("listeners") != nil && len(m.Listeners) == 0 {
		m.report(fault.Path{"listeners"}, "write - address: "+DefaultListen+", or remove listeners for that default", "is an empty list, nobody could connect")
	}
	for i := range m.Listeners {
		l := &m.Listeners[i]
		path := fault.Path{"listeners"}.Index(i)
		if _, ok := l.Socket(); ok {
			m.socket(path, l)
		} else if l.ServesEnvoy() && strings.HasPrefix(l.Address, "/") {
			m.report(path.At("address"), "write "+unixPrefix+l.Address, "%s is no host:port", quote(l.Address))
		} else {
			m.address(path.At("address"), l.Address)
		}
		m.exempt(path.At("connections", "exempt"), l.Connections.Exempt)
		m.purpose(path, l)
		if l.TLS == nil {
			continue
		}
		if l.H2C {
			m.report(path.At("h2c"), "remove h2c; with tls HTTP/2 is on anyway", "h2c is HTTP/2 without TLS, but this listener has tls")
		}
		m.certificate(path.At("tls"), l.TLS)
	}
}

// purpose checks what a listener serves, and who may connect to one for Envoy.
func (m *meaning) purpose(path fault.Path, l *Listener) {
	for i, what := range l.Serve {
		switch {
		case what != ServeHTTP && what != ServeExtProc && what != ServeRateLimit:
			m.report(path.At("serve").Index(i), "write "+ServeHTTP+", "+ServeExtProc+" or "+ServeRateLimit, "%s is nothing that a listener serves", quote(what))
			return
		case slices.Contains(l.Serve[:i], what):
			m.report(path.At("serve"), "write it once", "%s is written twice", what)
			return
		case i > 0 && slices.Contains(l.Serve, ServeHTTP):
			m.report(path.At("serve"), "write two listeners, each with an address of its own", "a listener for http serves nothing else")
			return
		}
	}
	if l.MaxHeaders > 0 && !slices.Contains(l.Serve, ServeExtProc) {
		m.report(path.At("max_headers"), "leave it out; max_header_bytes bounds the headers here", "counts only where %s is served", ServeExtProc)
	}
	if !l.ServesEnvoy() {
		return
	}
	if m.root != nil && !m.root.Has(path.At("max_concurrent_streams")) {
		l.MaxConcurrentStreams = envoyStreams
	}
	if _, ok := l.Socket(); ok {
		return // its file says who may connect
	}
	host, _, err := net.SplitHostPort(l.Address)
	if err != nil || host == "localhost" {
		return
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsLoopback() {
		return
	}
	if l.TLS == nil || l.TLS.ClientCA == "" || l.TLS.ClientAuth == ClientOptional {
		m.report(path.At("serve"), "write an address such as 127.0.0.1:8091. Or write tls with a client_ca that vouches for Envoy alone",
			"everybody who reaches %s could speak for any client", l.Address)
	}
}

// socket checks a listener on a Unix socket, and makes its path absolute.
func (m *meaning) socket(path fault.Path, l *Listener) {
	name, _ := l.Socket()
	switch {
	case !l.ServesEnvoy():
		m.report(path.At("address"), "write serve: ["+ServeExtProc+"] beside it, or host:port, for instance "+DefaultListen,
			"only a listener for an Envoy may be a Unix socket")
		return
	case name == "":
		m.report(path.At("address"), "write unix:/run/weir/envoy.sock", "names no socket")
		return
	}
	name = m.resolve(name)
	l.Address = unixPrefix + name
	if len(name) > longestSocket {
		m.report(path.At("address"), "write a shorter one, such as unix:/run/weir/envoy.sock", "a path of %d bytes is too long for a socket", len(name))
	}
	for _, other := range m.listening[l.Address] {
		m.report(path.At("address"), "write another path", "the socket is taken by %s", m.named(other.path))
	}
	m.listening[l.Address] = append(m.listening[l.Address], listening{"", path.At("address")})
}

// envoyStreams are the streams on one connection of an Envoy, where the file does not say. It has a
// few connections for all its requests.
const envoyStreams = 10_000

func (m *meaning) exempt(path fault.Path, networks []string) {
	for i, text := range networks {
		if _, err := policy.ParseNetwork(text); err != nil {
			m.reportError(path.Index(i), err)
		}
	}
}

// address checks an address to listen on, and that nobody else has it.
func (m *meaning) address(path fault.Path, address string) {
	if m.Has(path) {
		return
	}
	if err := checkAddress(address); err != nil {
		var f fault.Fault
		if errors.As(err, &f) && path[0] == "admin" {
			err = fault.New(f.Problem, strings.ReplaceAll(f.Instead, DefaultListen, DefaultAdmin)+", or off")
		}
		m.reportError(path, err)
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "0" { // 0: any free port
		return
	}
	for _, other := range m.listening[port] {
		if other.clashes(host) {
			m.report(path, "write another port", "port %s is taken by %s", port, m.named(other.path))
			return
		}
	}
	m.listening[port] = append(m.listening[port], listening{host, path})
}

// named is the name of a path for a message, with its line or its being a default.
func (m *meaning) named(path fault.Path) string {
	if m.root.Has(path) {
		return fmt.Sprintf("%v on line %d", path, m.root.Where(path).Line)
	}
	return path.String() + ", where that is the default"
}

func (m *meaning) admin() {
	if m.Admin.Enabled() {
		m.address(fault.Path{"admin", "address"}, m.Admin.Address)
	}
	path, f := fault.Path{"admin", "socket"}, &m.Admin.Socket
	if *f == "" {
		return
	}
	*f = m.resolve(*f)
	if len(*f) > longestSocket {
		m.report(path, "write a shorter one, such as /run/weir/admin.sock", "a path of %d bytes is too long for a socket", len(*f))
	}
	if !m.Admin.Enabled() {
		m.report(path, "give admin an address, or leave out socket", "means nothing where the admin listener is off")
	}
	m.listening[unixPrefix+*f] = append(m.listening[unixPrefix+*f], listening{"", path})
}

// unreadable says why a file cannot be read, without reading what is no plain
// file: a pipe would hang, a device never end.
func unreadable(file string) string {
	info, err := os.Stat(file)
	switch {
	case os.IsNotExist(err):
		return fmt.Sprintf("there is no file %s", quote(file))
	case err != nil:
		return fmt.Sprintf("%s cannot be read: %v", quote(file), err)
	case !info.Mode().IsRegular():
		return fmt.Sprintf("%s is not a regular file", quote(file))
	case info.Size() > MaxSize:
		return fmt.Sprintf("%s is larger than %d bytes", quote(file), MaxSize)
	}
	f, err := os.Open(file)
	if err != nil {
		return fmt.Sprintf("%s cannot be read: %v", quote(file), err)
	}
	f.Close()
	return ""
}

func (m *meaning) resolve(file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(m.dir, file)
}

func (m *meaning) upstreams() {
	if len(m.Upstreams) == 0 && m.passesOn() && !m.onlyKafka() {
		m.report(fault.Path{"upstreams"}, "write app: {targets: [http://127.0.0.1:3000]} below it", "names no upstream")
	}
	for _, name := range slices.Sorted(maps.Keys(m.Upstreams)) {
		u := m.Upstreams[name]
		path := fault.Path{"upstreams", name, "targets"}
		if len(u.Targets) == 0 {
			m.report(path, "write a URL, for instance [http://127.0.0.1:3000]", "is an empty list")
		}
		m.mixed(path, u.Targets)
		m.healthCheck(fault.Path{"upstreams", name, "health_check"}, u.HealthCheck)
		seen := map[string]bool{}
		for i, target := range u.Targets {
			sub := path.Index(i)
			if path, ok := strings.CutPrefix(target, "unix:"); ok && path != "" && !strings.HasPrefix(path, "/") {
				target = "unix:" + m.resolve(path)
				u.Targets[i] = target
			}
			if err := checkTarget(target); err != nil {
				m.reportError(sub, err)
			} else if seen[target] {
				m.report(sub, "remove one of the two", "%s is listed twice", quote(target))
			}
			seen[target] = true
		}
	}
}

// healthCheck checks what targets are asked for, nil for nothing.
func (m *meaning) healthCheck(path fault.Path, h *HealthCheck) {
	if h == nil || m.Wrong(path.At("path")) {
		return
	}
	if u, err := url.Parse(h.Path); err != nil || !strings.HasPrefix(h.Path, "/") || u.Host != "" || u.Fragment != "" {
		m.report(path.At("path"), "write a path such as /healthz", "%s is not a path", quote(h.Path))
	}
	switch {
	case h.Timeout <= h.Interval:
	case m.root != nil && !m.root.Has(path.At("timeout")):
		h.Timeout = h.Interval // the default is for longer ones
	default:
		m.report(path.At("timeout"), "write a shorter timeout, or a longer interval", "is %v, longer than the interval of %v", h.Timeout, h.Interval)
	}
}

// mixed reports an upstream if some of its targets speak only HTTP/2 and others do not.
func (m *meaning) mixed(path fault.Path, targets []string) {
	n := 0
	for _, target := range targets {
		if strings.HasPrefix(target, "h2c://") {
			n++
		}
	}
	if n > 0 && n < len(targets) {
		m.report(path, "write all of them as h2c://, or none; or make two upstreams", "%d of %d targets are h2c", n, len(targets))
	}
}

// passesOn is [Config.ServesHTTP] without listeners that do so only because what they say of their purpose is wrong. They
// are no reason to ask for upstreams.
func (m *meaning) passesOn() bool {
	for i := range m.Listeners {
		l := &m.Listeners[i]
		if _, socket := l.Socket(); !l.ServesEnvoy() && !socket && !m.Has(fault.Path{"listeners"}.Index(i).At("serve")) {
			return true
		}
	}
	return len(m.Listeners) == 0 && m.ServesHTTP()
}

func (m *meaning) routes() {
	route := "{match: [/], upstream: app}"
	if !m.passesOn() {
		route = "{match: [/], gates: [api]}" // the Envoy knows where requests go
	}
	if m.root.Get("routes") == nil && m.servesRoutes() && !m.onlyKafka() {
		m.report(fault.Path{"routes"}, "add routes: ["+route+"]", "is missing")
	} else if len(m.Routes) == 0 && m.servesRoutes() && !m.onlyKafka() {
		m.report(fault.Path{"routes"}, "write - "+route, "is an empty list, so no request would be matched")
	}
	upstreams := slices.Sorted(maps.Keys(m.Upstreams))
	for i, rt := range m.Routes {
		path := fault.Path{"routes"}.Index(i)
		if len(rt.Match) == 0 {
			m.report(path.At("match"), "write a pattern, for instance [/]", "is an empty list")
		}
		if rt.Upstream == "" && m.passesOn() {
			m.report(path.At("upstream"), oneOf("", upstreams, "upstreams"), "is missing, and a listener serves http")
		} else if _, ok := m.Upstreams[rt.Upstream]; !ok && rt.Upstream != "" {
			m.report(path.At("upstream"), oneOf(rt.Upstream, upstreams, "upstreams"), "there is no upstream %s", quote(rt.Upstream))
		}
	}
}

// quote quotes text of the file for a message, shortened.
func quote(s string) string { return strconv.Quote(setting.Clip(s)) }

// oneOf is the remedy for a name that refers to nothing.
func oneOf(name string, known []string, where string) string {
	if best := fault.Nearest(name, known); best != "" {
		return "write " + best
	}
	if len(known) == 0 {
		return "define it under " + where
	}
	return "write one of: " + setting.Clip(strings.Join(known, ", ")) + "; or define it under " + where
}

// signals makes the names of files that signals read absolute.
func (m *meaning) signals() {
	for name, s := range m.Signals {
		if s.Path != "" {
			s.Path = m.resolve(s.Path)
			m.Signals[name] = s
		}
	}
}

func (m *meaning) state() {
	if m.State.File == "" || m.Wrong(fault.Path{"state", "file"}) {
		return
	}
	m.State.File = m.resolve(m.State.File)
	path := fault.Path{"state", "file"}
	if info, err := os.Stat(filepath.Dir(m.State.File)); err != nil || !info.IsDir() {
		m.report(path, "create the directory, or name a file in one that exists", "there is no directory %s", quote(filepath.Dir(m.State.File)))
	} else if info, err := os.Stat(m.State.File); err == nil && !info.Mode().IsRegular() {
		m.report(path, "name a file", "%s is not a regular file", quote(m.State.File))
	} else if err == nil && info.Size() > 0 && !mayBeLearned(m.State.File) {
		m.report(path, "name a file of its own, or remove that one", "%s holds no learned limits, and would be overwritten", quote(m.State.File))
	}
}

// learned is the beginning of a file with learned limits, see policy.Saved. One that is broken behind it is no
// reason not to start.
var learned = regexp.MustCompile(`^\s*\{\s*"saved_at"`)

// mayBeLearned reports whether a file begins as one with learned limits.
func mayBeLearned(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return true // perhaps the gateway's user can
	}
	defer f.Close()
	head, _ := io.ReadAll(io.LimitReader(f, 64))
	return learned.Match(head)
}

// accessLog makes the name of the file absolute, and checks that it can be a file.
func (m *meaning) accessLog() {
	a, path := &m.AccessLog, fault.Path{"access_log", "to"}
	if !a.Enabled() || a.Stream() != nil || m.Wrong(path) {
		return
	}
	a.To = m.resolve(a.To)
	if info, err := os.Stat(filepath.Dir(a.To)); err != nil || !info.IsDir() {
		m.report(path, "create the directory, or name a file in one that exists", "there is no directory %s", quote(filepath.Dir(a.To)))
	} else if info, err := os.Stat(a.To); err == nil && !info.Mode().IsRegular() {
		m.report(path, "name a file", "%s is not a regular file", quote(a.To))
	}
}

// tracing checks the URL of the collector.
func (m *meaning) tracing() {
	path := fault.Path{"tracing", "endpoint"}
	if !m.Tracing.Enabled() {
		return
	}
	u, err := url.Parse(m.Tracing.Endpoint)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		m.report(path, "write for instance http://127.0.0.1:4318", "%s is not an http or https URL", quote(m.Tracing.Endpoint))
	case u.User != nil:
		m.report(path, "put them into OTEL_EXPORTER_OTLP_HEADERS", "a URL in this file is no place for credentials")
	}
}

// plainHost is a host of several words, or an address of IPv4.
var plainHost = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$|^localhost$`)

// numbers is a host that can only be an address of IPv4.
var numbers = regexp.MustCompile(`^[0-9.]+$`)

// checkAddress says what is wrong with a host:port to listen on.
func checkAddress(address string) error {
	if meant := bracedVariable(address); meant != address {
		return fault.New(fmt.Sprintf("%q has a variable that is not replaced", address), "write "+meant)
	}
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		if words := strings.Fields(address); len(words) > 1 && isPort(words[0]) {
			instead := fmt.Sprintf("write address: \":%s\"", words[0])
			if slices.Contains(words, "ssl") {
				instead += ", and tls: {cert: server.crt, key: server.key}"
			}
			return fault.New(fmt.Sprintf("%q has words behind the port", address), instead)
		}
		if isPort(address) {
			return fault.New(fmt.Sprintf("%q has no host", address), fmt.Sprintf("write 127.0.0.1:%s, or :%s for all interfaces", address, address))
		}
		if plainHost.MatchString(address) {
			return fault.New(fmt.Sprintf("%q has no port", address), fmt.Sprintf("write %s:8080", address))
		}
		return fault.New(fmt.Sprintf("%q has no port", address), fmt.Sprintf("write host:port, for instance %s", DefaultListen))
	}
	host, port := address[:i], address[i+1:]
	if words := strings.Fields(port); host == "*" && len(words) > 0 {
		return fault.New(fmt.Sprintf("%q begins with *, which is not a host", address), fmt.Sprintf("write :%s for all interfaces", words[0]))
	}
	if _, rest, ok := strings.Cut(address, "://"); ok {
		instead := "write only host:port, for instance " + DefaultListen
		if rest = strings.TrimSuffix(rest, "/"); checkAddress(rest) == nil {
			instead = "write " + rest
		}
		return fault.New(fmt.Sprintf("%q is a URL", address), instead)
	}
	if strings.ContainsRune(host, ':') && (!strings.HasPrefix(host, "[") || !strings.HasSuffix(host, "]")) {
		return fault.New(fmt.Sprintf("%q has an IPv6 host without brackets", address), "write [::1]:8080")
	}
	ip := host
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		ip = host[1 : len(host)-1]
	}
	if strings.ContainsAny(ip, " \t/@?#[]") {
		return fault.New(fmt.Sprintf("%q begins with %q, which is not a host", address, host), fmt.Sprintf("write host:port, for instance %s", DefaultListen))
	}
	if _, err := netip.ParseAddr(ip); err != nil && (numbers.MatchString(host) || strings.HasPrefix(host, "[")) {
		return fault.New(fmt.Sprintf("%q begins with %q, which is not an address", address, host), fmt.Sprintf("write host:port, for instance %s", DefaultListen))
	}
	if !isPort(port) {
		return fault.New(fmt.Sprintf("%q has the port %q, which is not a number from 0 to 65535", address, port), fmt.Sprintf("write host:port, for instance %s", DefaultListen))
	}
	return nil
}

func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

// longestSocket is the longest path that a Unix socket may have everywhere, less what
// it is called until it is ready.
const longestSocket = 80

// shortestToken is the length in bytes that a token for writing must have at least.
const shortestToken = 16

// dynamic makes names of files absolute and checks them.
func (m *meaning) dynamic() {
	if f := &m.Quotas.File; *f != "" {
		*f = m.resolve(*f)
	} else if m.Quotas.StartBroken && m.Quotas.Store == "" {
		m.report(fault.Path{"runtime_quotas", "start_broken"}, "write file: weir.quotas.json or store: beside it, or leave it out", "means nothing where no rules are kept")
	}
	if name := m.Quotas.Store; name != "" {
		if _, ok := m.Stores[name]; !ok {
			m.report(fault.Path{"runtime_quotas", "store"}, m.storeMeant(name), "there is no store %s", quote(name))
		}
		if m.Quotas.File != "" {
			m.report(fault.Path{"runtime_quotas", "store"}, "leave one of them out", "rules are kept in one place, and there is a file too")
		}
	}
	if f := &m.Admin.TokenFile; *f != "" {
		*f = m.resolve(*f)
		why := unreadable(*f)
		if info, err := os.Stat(*f); why == "" && err == nil && info.Size() < shortestToken {
			why = fmt.Sprintf("holds %d bytes, and nobody may write with fewer than %d", info.Size(), shortestToken)
		}
		if why != "" {
			m.report(fault.Path{"admin", "token_file"}, "make it by openssl rand -hex 32, readable by the gateway alone", "%s", why)
		}
		if !m.Admin.Enabled() {
			m.report(fault.Path{"admin", "token_file"}, "give admin an address, or leave out token_file", "means nothing where the admin listener is off")
		}
	}
	if m.Admin.Pprof != nil && *m.Admin.Pprof && !m.Admin.Enabled() {
		m.report(fault.Path{"admin", "pprof"}, "give admin an address, or leave out pprof", "means nothing where the admin listener is off")
	}
}

// policy compiles what the file says of gates and routes, to learn what the
// compiler objects to. The limits of upstreams are compiled as gates of their own.
func (m *meaning) policy() {
	m.compile(m.Config.Policy(), "gates")
	limits := map[string]policy.GateSpec{}
	for name, u := range maps.All(m.Upstreams) {
		if u.Limit != nil {
			limits[name] = policy.GateSpec{Limit: u.Limit}
		}
	}
	m.compile(policy.Spec{Signals: m.signalSpecs(), Gates: limits}, "upstreams")
}

// compile reports the compiler's faults at their lines. In the file, gates stand under the given
// key. Fields that already had a fault are left out: the compiler saw only a zero value there. So are domains whose
// files have one.
func (m *meaning) compile(spec policy.Spec, gates string) {
	opts := m.Unread()
	opts.Stores = m.unasked()
	p, err := policy.Compile(spec, opts)
	if err == nil {
		p.Close()
		return
	}
	var faults *fault.Faults
	if !errors.As(err, &faults) {
		m.report(nil, "", "the policy cannot be compiled: %v", err)
		return
	}
	faults.List = slices.DeleteFunc(faults.List, func(f fault.Fault) bool {
		if f.Path[0] == "gates" {
			f.Path[0] = gates
		}
		return m.Has(f.Path) || f.Path[0] == "gates" && len(f.Path) > 1 && m.RateLimit.faulty(f.Path[1])
	})
	m.AddError(nil, faults)
}

// silent is a source of no readings, in the place of a poller.
type silent struct{}

// Readings implements control.Source.
func (silent) Readings(into []control.Reading) []control.Reading { return into }
