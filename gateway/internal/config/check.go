package config

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-go/weir/policy"
)

// checkMeaning reports what is wrong with a configuration that is right in form.
// It skips whatever has a fault already, and makes file names absolute in the
// sense of the file: relative ones are relative to its directory.
func checkMeaning(c *Config, d *decoder) {
	m := &meaning{Config: c, decoder: d, dir: filepath.Dir(d.file), listening: map[string][]listening{}}
	if _, given := d.pos["listeners"]; !given {
		c.Listeners = []Listener{DefaultListener(DefaultListen)}
	}
	m.admin() // first, so that a listener in its way is told so where it is written
	m.listeners()
	m.upstreams()
	m.routes()
	m.signals()
	m.stores()
	m.state()
	m.dynamic()
	m.policy()
}

type meaning struct {
	*Config
	*decoder
	dir       string
	listening map[string][]listening // by port
}

// listening is a host that a field of the file listens on.
type listening struct{ host, path string }

// clashes reports whether both hosts cannot be bound on one port.
func (l listening) clashes(host string) bool {
	all := []string{"", "0.0.0.0", "::"}
	return l.host == host || slices.Contains(all, l.host) || slices.Contains(all, host)
}

// report adds a fault at a path, unless it or something in it is faulty already.
func (m *meaning) report(path, remedy, format string, args ...any) {
	if m.faulty(path) {
		return
	}
	m.add(m.where(path), path, remedy, fmt.Sprintf(format, args...))
}

func (m *meaning) listeners() {
	if len(m.Listeners) == 0 {
		m.report("listeners", "write - address: "+DefaultListen+", or remove listeners for that default", "is an empty list, nobody could connect")
	}
	for i := range m.Listeners {
		l := &m.Listeners[i]
		path := fmt.Sprintf("listeners[%d]", i)
		m.address(join(path, "address"), l.Address)
		m.exempt(join(path, "connections.exempt"), l.Connections.Exempt)
		if l.TLS == nil {
			continue
		}
		if l.H2C {
			m.report(join(path, "h2c"), "remove h2c; with tls HTTP/2 is on anyway", "h2c is HTTP/2 without TLS, but this listener has tls")
		}
		m.certificate(join(path, "tls"), l.TLS)
	}
}

func (m *meaning) exempt(path string, networks []string) {
	for i, text := range networks {
		if _, err := policy.ParseNetwork(text); err != nil {
			problem, remedy, _ := strings.Cut(err.Error(), "; ")
			m.report(fmt.Sprintf("%s[%d]", path, i), remedy, "%s", problem)
		}
	}
}

// address checks an address to listen on, and that nobody else has it.
func (m *meaning) address(path, address string) {
	if m.faulty(path) {
		return
	}
	if err := checkAddress(address); err != nil {
		problem, remedy, _ := strings.Cut(err.Error(), "; ")
		m.report(path, remedy, "%s", problem)
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
func (m *meaning) named(path string) string {
	if p, ok := m.pos[path]; ok {
		return fmt.Sprintf("%s on line %d", path, p.line)
	}
	return path + ", where that is the default"
}

func (m *meaning) admin() {
	if m.Admin.Enabled() {
		m.address("admin.address", m.Admin.Address)
	}
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
		return fmt.Sprintf("%s is no plain file", quote(file))
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
	if len(m.Upstreams) == 0 {
		m.report("upstreams", "write app: {targets: [http://127.0.0.1:3000]} below it", "names no upstream")
	}
	for _, name := range slices.Sorted(maps.Keys(m.Upstreams)) {
		u := m.Upstreams[name]
		path := join("upstreams", name) + ".targets"
		if len(u.Targets) == 0 {
			m.report(path, "write a URL, for instance [http://127.0.0.1:3000]", "is an empty list")
		}
		m.mixed(path, u.Targets)
		seen := map[string]bool{}
		for i, target := range u.Targets {
			sub := fmt.Sprintf("%s[%d]", path, i)
			if err := checkTarget(target); err != nil {
				problem, remedy, _ := strings.Cut(err.Error(), "; ")
				m.report(sub, remedy, "%s", problem)
			} else if seen[target] {
				m.report(sub, "remove one of the two", "%s is listed twice", quote(target))
			}
			seen[target] = true
		}
	}
}

// mixed reports an upstream of which some targets speak only HTTP/2 and others
// do not.
func (m *meaning) mixed(path string, targets []string) {
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

func (m *meaning) routes() {
	if len(m.Routes) == 0 {
		m.report("routes", "write - {match: [/], upstream: app}", "is an empty list, so nothing would be passed on")
	}
	upstreams := slices.Sorted(maps.Keys(m.Upstreams))
	gates := slices.Sorted(maps.Keys(m.Gates))
	for i, rt := range m.Routes {
		path := fmt.Sprintf("routes[%d]", i)
		if len(rt.Match) == 0 {
			m.report(join(path, "match"), "write a pattern, for instance [/]", "is an empty list")
		}
		if _, ok := m.Upstreams[rt.Upstream]; !ok {
			m.report(join(path, "upstream"), oneOf(rt.Upstream, upstreams, "upstreams"), "there is no upstream %s", quote(rt.Upstream))
		}
		for j, g := range rt.Gates {
			if _, ok := m.Gates[g]; !ok {
				m.report(fmt.Sprintf("%s.gates[%d]", path, j), oneOf(g, gates, "gates"), "there is no gate %s", quote(g))
			}
		}
	}
}

// oneOf is the remedy for a name that refers to nothing.
func oneOf(name string, known []string, where string) string {
	if best, ok := nearest(name, known); ok {
		return "write " + best
	}
	if len(known) == 0 {
		return "define it under " + where
	}
	return "write one of: " + clip(strings.Join(known, ", ")) + "; or define it under " + where
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
	if m.State.File == "" || m.wrong["state.file"] {
		return
	}
	m.State.File = m.resolve(m.State.File)
	if info, err := os.Stat(filepath.Dir(m.State.File)); err != nil || !info.IsDir() {
		m.report("state.file", "create the directory, or name a file in one that exists", "there is no directory %s", quote(filepath.Dir(m.State.File)))
	} else if info, err := os.Stat(m.State.File); err == nil && !info.Mode().IsRegular() {
		m.report("state.file", "name a file", "%s is no plain file", quote(m.State.File))
	}
}
