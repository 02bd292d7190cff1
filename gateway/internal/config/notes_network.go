package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
)

// certNotes is about client certificates that no listener asks for, or that identity does not read.
func (w *warner) certNotes() {
	asks := slices.ContainsFunc(w.Listeners, func(l Listener) bool { return l.TLS != nil && l.TLS.ClientCA != "" })
	optional := slices.ContainsFunc(w.Listeners, func(l Listener) bool {
		return l.TLS != nil && l.TLS.ClientCA != "" && l.TLS.ClientAuth == ClientOptional
	})
	reads := len(w.Identity.TrustedCerts) > 0
	for _, s := range []struct{ key, source string }{
		{"tenant", w.Identity.Tenant}, {"user", w.Identity.User}, {"client", w.Identity.Client},
	} {
		if !strings.HasPrefix(s.source, "cert:") {
			continue
		}
		reads = true
		if !asks {
			w.warn(fault.Path{"identity", s.key}, "identity.%s comes from client certificates, but no listener has tls: {client_ca: ...}, so no client shows one", s.key)
		}
	}
	if len(w.Identity.TrustedCerts) > 0 && !asks {
		w.warn(fault.Path{"identity", "trusted_certs"}, "identity.trusted_certs names client certificates, but no listener has tls: {client_ca: ...}, so no client shows one")
	}
	if optional && !reads {
		w.warn(fault.Path{"listeners"}, "a listener has client_auth: optional, but identity reads nothing from certificates: they make no difference")
	}
}

// connectionNotes is about limits of one address that are as high as the limit of all addresses.
func (w *warner) connectionNotes() {
	for i, l := range w.Listeners {
		if l.Connections.Mode == policy.Off {
			continue
		}
		if n := l.Connections.PerAddress; n > 0 && n >= l.MaxConnections {
			w.warn(fault.Path{"listeners"}.Index(i).At("connections", "per_address"), "listeners[%d].connections.per_address is %d of max_connections %d: one address can take all", i, n, l.MaxConnections)
		}
		if r := l.Connections.RatePerAddress; r > 0 && l.Connections.Rate > 0 && r >= l.Connections.Rate {
			w.warn(fault.Path{"listeners"}.Index(i).At("connections", "rate_per_address"), "listeners[%d].connections.rate_per_address is %g of rate %g: one address can take all", i, r, l.Connections.Rate)
		}
	}
}

// widest is how short a prefix of trusted or exempt networks may be, by the bits of an address. Nobody
// has so many proxies.
var widest = map[int]int{32: 8, 128: 16}

// secretHeaders are headers that hold what a client proves itself by.
var secretHeaders = []string{
	"authorization", "proxy-authorization", "cookie", "x-auth-token", "x-access-token", "private-token",
	"x-api-key", "api-key", "x-apikey", "apikey", "x-api-token", "x-auth-key",
	"x-goog-api-key", "x-functions-key", "x-rapidapi-key", "ocp-apim-subscription-key",
}

// shownNotes is about identities that are secrets: they are shown in many places, and strangers' are removed.
func (w *warner) shownNotes() {
	id := &w.Identity
	for _, s := range []struct{ part, source string }{{"tenant", id.Tenant}, {"user", id.User}, {"client", id.Client}} {
		header, ok := strings.CutPrefix(s.source, "header:")
		if ok && slices.Contains(secretHeaders, strings.ToLower(header)) {
			w.warn(fault.Path{"identity", s.part}, "identity.%s: the value of %s is a password, a key or a token. An upstream that checks it refuses strangers, because weir removes it from their requests. Names of %[1]ss are shown in status, metrics and the log; let the proxy in front send the %[1]s in a header such as X-%[3]s",
				s.part, header, strings.ToUpper(s.part[:1])+s.part[1:])
		}
	}
}

// forwardedNotes is about identities from headers that are lists of addresses. A proxy adds the address of its client to what the
// client has sent.
func (w *warner) forwardedNotes() {
	id := &w.Identity
	for _, s := range []struct{ part, source string }{{"tenant", id.Tenant}, {"user", id.User}, {"client", id.Client}} {
		header, ok := strings.CutPrefix(s.source, "header:")
		if ok && (strings.EqualFold(header, "X-Forwarded-For") || strings.EqualFold(header, "Forwarded")) {
			w.warn(fault.Path{"identity", s.part}, "identity.%s: the client writes the beginning of %s, and each value is another %[1]s; write address, which reads X-Forwarded-For from its end",
				s.part, header)
		}
	}
}

// addressNotes is about rules, weights and overrides where the address stands for who asks. One for an address
// or a network that is not written as the name of a client is for nobody.
func (w *warner) addressNotes() {
	note := func(at fault.Path, part, name string) {
		named := clientAt(name)
		if named == name || !w.namedByAddress(part) {
			return
		}
		by := "a client of IPv6 is named by its /64; write " + named
		if named == "" {
			by = "each client of the network has its own; only a rule of a quota is for a network, by address: " + name
		} else if !strings.Contains(named, ":") {
			by = "a client of IPv4 is named by its address of IPv4; write " + named
		}
		w.warn(at, "%v is about the %s %s, and nobody has that name: %s", at, part, name, by)
	}
	for _, gate := range slices.Sorted(maps.Keys(w.Gates)) {
		g, at := w.Gates[gate], fault.Path{"gates", gate}
		if g.Quota != nil {
			for i := range g.Quota.Rules {
				for _, part := range []string{"user", "client", "tenant"} {
					note(at.At("quota", "rules").Index(i).At(part), part, string(*g.Quota.Rules[i].Part(part)))
				}
			}
		}
		if g.Limit != nil {
			for _, user := range slices.Sorted(maps.Keys(g.Limit.Queue.Weights.Users)) {
				note(at.At("limit", "queue", "weights", "users").At(user), "user", user)
			}
			for _, tenant := range slices.Sorted(maps.Keys(g.Limit.Queue.Weights.Tenants)) {
				note(at.At("limit", "queue", "weights", "tenants").At(tenant), "tenant", tenant)
			}
		}
		if g.Each != nil {
			for _, key := range slices.Sorted(maps.Keys(g.Each.Overrides)) {
				note(at.At("each", "overrides").At(key), cmp.Or(g.Each.By, "tenant"), key)
			}
		}
	}
}

// clientAt returns the name of the client at an address or a network, "" for a network of several. What is neither
// is returned as it is.
func clientAt(name string) string {
	text := name
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		text = name[1 : len(name)-1]
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return policy.PeerName(text)
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return name
	}
	addr := network.Addr()
	if own := min(64, addr.BitLen()); network.Bits() < own || addr.Is4In6() && network.Bits() < addr.BitLen() {
		return ""
	}
	return policy.PeerName(addr.String())
}

// addressSources are what an identity calls the address of a client.
var addressSources = []string{"address", "peer"}

// namedByAddress reports whether the address of a client stands for a part of its identity.
func (w *warner) namedByAddress(part string) bool {
	switch part {
	case "user":
		return w.Identity.User == "" || slices.Contains(addressSources, w.Identity.User)
	case "client":
		return slices.Contains(addressSources, w.Identity.Client)
	case "tenant":
		return slices.Contains(addressSources, w.Identity.Tenant)
	}
	return false
}

// trustNotes is about networks so wide that any client may be in them, and about headers that nobody is trusted to
// send. It is also about readers of the admin listener.
func (w *warner) trustNotes() {
	id := &w.Identity
	if id.Trusted != nil && len(id.Trusted)+len(id.TrustedCerts) == 0 {
		for _, s := range []struct{ part, source string }{
			{"tenant", id.Tenant}, {"user", id.User}, {"client", id.Client}, {"priority", id.Priority}, {"admissions", id.Admissions},
		} {
			if strings.HasPrefix(s.source, "header:") {
				w.warn(fault.Path{"identity", s.part}, "identity.%s is read from a header, but trusted_proxies and trusted_certs name nobody who is believed; name the networks of your own proxies", s.part)
			}
		}
	}
	for i, text := range w.Identity.Trusted {
		if p, err := policy.ParseNetwork(text); err == nil && p.Bits() < widest[p.Addr().BitLen()] {
			w.warn(fault.Path{"identity", "trusted_proxies"}.Index(i), "identity.trusted_proxies has %s, so any client may say who it is and how important: name only the networks of your own proxies", text)
		}
	}
	for i, l := range w.Listeners {
		for k, text := range l.Connections.Exempt {
			if p, err := policy.ParseNetwork(text); err == nil && p.Bits() < widest[p.Addr().BitLen()] {
				w.warn(fault.Path{"listeners"}.Index(i).At("connections", "exempt").Index(k), "listeners[%d].connections.exempt has %s, so the limits of one address hold for nobody: name only your own proxies", i, text)
			}
		}
	}
	if w.Admin.Enabled() && !loopback(w.Admin.Address) {
		w.warn(fault.Path{"admin", "address"}, "admin.address %s can be reached from other machines, and readers are not authenticated", w.Admin.Address)
	}
}

// shippedWait is the longest wait for which the max_message_timeout of packaging/envoy/ext_proc.yaml is enough.
const shippedWait = 34 * time.Second

// envoyNotes is about what the requests of an Envoy cannot have, or only if the Envoy is set up for it.
func (w *warner) envoyNotes() {
	if !w.servesExtProc() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		g := w.Gates[name]
		switch wait := g.LongestWait(); {
		case w.onlyKafka(name):
		case wait < 0:
			w.remark(fault.Path{"gates", name}, "the gate %s lets work wait without a bound, and requests of an Envoy for 30s", name)
		case wait > shippedWait:
			w.remark(fault.Path{"gates", name}, "the gate %s lets work wait for %v; set max_message_timeout of Envoy's ext_proc filter to %v", name, wait, wait+time.Second)
		}
	}
	id := &w.Identity
	for _, s := range []struct{ part, source string }{
		{"tenant", id.Tenant}, {"user", id.User}, {"client", id.Client}, {"priority", id.Priority}, {"admissions", id.Admissions},
	} {
		header, ok := strings.CutPrefix(s.source, "header:")
		if ok && strings.HasPrefix(strings.ToLower(header), "x-envoy-") {
			w.warn(fault.Path{"identity", s.part}, "identity.%s: Envoy lets nobody change %s, so it stays on requests of strangers; write another name, or allow_envoy: true in mutation_rules of its ext_proc filter", s.part, header)
		}
	}
	for i, rt := range w.Routes {
		if rt.SettleEvent != "" {
			w.warn(fault.Path{"routes"}.Index(i).At("settle_event"), "routes[%d] (%s): settle_event reads nothing for an Envoy, because no bodies come; write settle: header:NAME for a header or trailer with the cost", i, rt.Match[0])
		}
	}
}

// tracingNotes is about spans that go nowhere.
func (w *warner) tracingNotes() {
	if w.root != nil && w.root.Has(fault.Path{"tracing"}) && !w.Tracing.Enabled() {
		w.warn(fault.Path{"tracing"}, "tracing names no endpoint, so there are no spans")
	}
	if strings.HasSuffix(w.Tracing.Endpoint, ":4317") {
		w.warn(fault.Path{"tracing", "endpoint"}, "tracing.endpoint has the port 4317, where collectors usually take gRPC; weir sends OTLP over HTTP, usually 4318")
	}
}

// nodePortNotes is about ports for nodes of Kafka that the kernel of this machine may give to a connection first.
func (w *warner) nodePortNotes() {
	text, err := os.ReadFile(outgoingPorts)
	if err != nil {
		return // not Linux
	}
	reserved, _ := os.ReadFile(reservedPorts)
	for _, name := range w.KafkaListeners() {
		n := w.Config.Kafka[name].Nodes
		first, last := n.Range()
		if port := givenAway(first, last, string(text), string(reserved)); port > 0 {
			w.warn(fault.Path{"kafka", name, "nodes", "ports"}, "kafka.%s.nodes.ports %s: the kernel of this machine gives ports from %d on to outgoing connections, and a node cannot listen on one that is taken. Write ports below %s, or add them to net.ipv4.ip_local_reserved_ports",
				name, n.Ports, port, strings.Fields(string(text))[0])
		}
	}
}

// Where Linux says which ports it gives to outgoing connections, and which of them it does not.
const (
	outgoingPorts = "/proc/sys/net/ipv4/ip_local_port_range"
	reservedPorts = "/proc/sys/net/ipv4/ip_local_reserved_ports"
)

// givenAway returns the first port of a range that the kernel may give to a connection, 0 if there is none. outgoing is its
// range of such ports, as in "32768\t60999". Those in reserved, as in "8080,9148-9200", are left out.
func givenAway(first, last int, outgoing, reserved string) int {
	var from, to int
	if _, err := fmt.Sscan(outgoing, &from, &to); err != nil {
		return 0
	}
	kept := map[int]bool{}
	for part := range strings.SplitSeq(strings.TrimSpace(reserved), ",") {
		a, b, isRange := strings.Cut(part, "-")
		if !isRange {
			b = a
		}
		low, errLow := strconv.Atoi(a)
		high, errHigh := strconv.Atoi(b)
		for port := max(low, first); errLow == nil && errHigh == nil && port <= min(high, last); port++ {
			kept[port] = true
		}
	}
	for port := max(first, from); port <= min(last, to); port++ {
		if !kept[port] {
			return port
		}
	}
	return 0
}

// ownListenerNotes is about targets that are this gateway itself: a request would go round until it is
// refused.
func (w *warner) ownListenerNotes() {
	own := map[string]string{} // address by field
	for i, l := range w.Listeners {
		own[fmt.Sprintf("listeners[%d]", i)] = l.Address
	}
	if w.Admin.Enabled() {
		own["admin"] = w.Admin.Address
	}
	for _, name := range slices.Sorted(maps.Keys(w.Upstreams)) {
		for i, target := range w.Upstreams[name].Targets {
			u, err := url.Parse(target)
			if err != nil {
				continue
			}
			port := u.Port()
			if port == "" {
				port = map[string]string{"https": "443"}[u.Scheme]
			}
			if port == "" {
				port = "80"
			}
			for _, field := range slices.Sorted(maps.Keys(own)) {
				if u.Scheme != "unix" && reaches(u.Hostname(), port, own[field]) {
					w.warn(fault.Path{"upstreams", name, "targets"}.Index(i), "upstreams.%s.targets[%d] is this gateway itself, by %s; write the address of the server behind it", name, i, field)
				}
			}
		}
	}
}

// ownBrokerNotes is about clusters whose brokers are this gateway itself.
func (w *warner) ownBrokerNotes() {
	for _, name := range w.KafkaListeners() {
		k := w.Config.Kafka[name]
		for i, broker := range k.Bootstrap {
			if field := k.itself(broker); field != "" {
				w.warn(fault.Path{"kafka", name, "bootstrap"}.Index(i), "kafka.%s.bootstrap[%d] is this gateway itself, by kafka.%[1]s.%[3]s; write the address of a broker", name, i, field)
			}
		}
	}
}

// itself returns the field by which the gateway listens at the address of a broker, empty if it does not.
func (k *Kafka) itself(broker string) string {
	host, port, err := net.SplitHostPort(broker)
	if err != nil {
		return ""
	}
	if reaches(host, port, k.Listen.Address) {
		return "listen.address"
	}
	at, _, err := net.SplitHostPort(k.Listen.Address)
	first, last := k.Nodes.Range()
	if n, errPort := strconv.Atoi(port); err == nil && errPort == nil && n >= first && n <= last && reaches(host, port, net.JoinHostPort(at, port)) {
		return "nodes.ports"
	}
	return ""
}

// reaches reports whether a host and port lead to a listener of this machine.
func reaches(host, port, listener string) bool {
	at, its, err := net.SplitHostPort(listener)
	if err != nil || its != port || its == "0" {
		return false
	}
	if host == at {
		return true
	}
	all := at == "" || at == "0.0.0.0" || at == "::"
	return loopback(net.JoinHostPort(host, port)) && (all || loopback(listener) && (host == "localhost" || at == "localhost"))
}

// secretNotes is about passwords in variables that are not set. A file is often checked on another machine than it runs on.
func (w *warner) secretNotes() {
	note := func(at fault.Path, s *Secret) {
		if _, ok := os.LookupEnv(s.PasswordEnv); s.PasswordEnv != "" && !ok {
			at = at.At("password_env")
			w.remark(at, "%v: the environment has no variable %s here; set it where weir runs", at, quote(s.PasswordEnv))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Config.Kafka)) {
		if login := w.Config.Kafka[name].SASL; login != nil {
			note(fault.Path{"kafka", name, "sasl"}, &login.Secret)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Stores)) {
		s := w.Stores[name]
		note(fault.Path{"stores", name}, &s.Secret)
		if s.Sentinel != nil {
			note(fault.Path{"stores", name, "sentinel"}, &s.Sentinel.Secret)
		}
	}
}

// fileNotes is about files and sockets in directories that are not there, or that nobody may write to.
// They are no faults: a file is often checked on another machine.
func (w *warner) fileNotes() {
	w.directory(fault.Path{"admin", "socket"}, "socket", w.Admin.Socket)
	w.directory(fault.Path{"state", "file"}, "file", w.State.File)
	if kept := (fault.Path{"runtime_quotas", "file"}); w.directory(kept, "file", w.Quotas.File) {
		w.readOnly(kept, w.Quotas.File)
	}
	if log := (fault.Path{"access_log", "to"}); w.AccessLog.Enabled() && w.AccessLog.Stream() == nil && !w.readOnly(log, w.AccessLog.To) {
		w.directory(log, "file", w.AccessLog.To)
	}
	for _, name := range slices.Sorted(maps.Keys(w.Upstreams)) {
		for i, target := range w.Upstreams[name].Targets {
			path, ok := strings.CutPrefix(target, "unix:")
			if _, err := os.Stat(filepath.Dir(path)); ok && err != nil {
				w.warn(fault.Path{"upstreams", name, "targets"}.Index(i), "upstreams.%s.targets[%d]: there is no directory %s here; create it, or write the path of the socket that the server listens on", name, i, quote(filepath.Dir(path)))
			}
		}
	}
}

// directory reports whether files may be made where a field names one, empty for none. If not, it warns.
func (w *warner) directory(at fault.Path, what, file string) bool {
	dir := filepath.Dir(file)
	if file == "" {
		return false
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil || !info.IsDir():
		w.warn(at, "%v: there is no directory %s here; create it, or name a %s in one that exists", at, quote(dir), what)
	case info.Mode().Perm()&0o222 == 0:
		w.warn(at, "%v: nobody may write to the directory %s; allow the gateway's user to, or name another", at, quote(dir))
	default:
		return true
	}
	return false
}

// readOnly reports whether a file is there. If nobody may write to it, it warns.
func (w *warner) readOnly(at fault.Path, file string) (there bool) {
	info, err := os.Stat(file)
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o222 == 0 {
		w.warn(at, "%v: nobody may write to %s; allow the gateway's user to", at, quote(file))
	}
	return err == nil
}

// loopback reports whether only this machine can reach an address.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
