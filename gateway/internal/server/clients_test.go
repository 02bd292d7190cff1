package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
)

// priorities is an upstream that answers with the priority it is told of.
func priorities(t *testing.T) *httptest.Server {
	return upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Priority"))
	})
}

// secure is the URL under TLS.
func (g *running) secure() string { return "https://" + g.Addr().String() }

// ask returns the answer of a request that claims to be critical.
func ask(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Priority", "critical")
	res, err := c.Do(req)
	if err != nil {
		return nil, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func (g *running) scrape() string {
	rec := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return rec.Body.String()
}

func spiffe(t *testing.T, id string) func(*x509.Certificate) {
	u, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *x509.Certificate) { c.URIs = []*url.URL{u} }
}

// Who is let in, who is trusted, and what is counted and said of the others.
func TestClientCertificates(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	cfg, _ := asking(t, priorities(t).URL, ours)
	cfg.Identity.Tenant = "cert:uri"
	cfg.Identity.Priority = "header:X-Priority"
	cfg.Identity.Trusted = []string{}
	cfg.Identity.TrustedCerts = []string{"uri:spiffe://example.org/edge"}
	g := start(t, cfg, Options{})
	edge, cart := spiffe(t, "spiffe://example.org/edge"), spiffe(t, "spiffe://example.org/cart")
	for _, tt := range []struct {
		name  string
		cert  *tls.Certificate
		want  string // the priority at the upstream
		fault string // or why the handshake fails
	}{
		{"trusted", ours.issue(t, edge), "critical", ""},
		{"let in", ours.issue(t, cart), "normal", ""},
		{"none", nil, "", "no_certificate"},
		{"of another authority", theirs.issue(t, edge), "", "unknown_ca"},
		{"expired", ours.issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "", "expired"},
		{"not yet valid", ours.issue(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), "", "expired"},
		{"a server's", ours.issue(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "", "bad_certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := g.listeners[0].conns.Snapshot().Handshakes[tt.fault]
			res, body := ask(t, clientWith(t, tt.cert, nil), g.secure())
			if tt.fault == "" {
				if res == nil || body != tt.want {
					t.Fatalf("%v: %s, want %s", res, body, tt.want)
				}
				return
			}
			if res != nil {
				t.Fatalf("let in: %s", res.Status)
			}
			eventually(t, "it is counted", func() bool { return g.listeners[0].conns.Snapshot().Handshakes[tt.fault] == before+1 })
			eventually(t, "the log says why", func() bool { // a moment later
				return strings.Contains(g.log.String(), `msg="client certificate refused" listener=127.0.0.1:0 reason=`+tt.fault)
			})
		})
	}
	if log := g.log.String(); !strings.Contains(log, `subject="CN=client" issuer="CN=theirs" error="x509: certificate signed by unknown authority`) {
		t.Errorf("the log does not say whose certificate it was:\n%s", log)
	}
	metrics := g.scrape()
	for _, want := range []string{
		`weir_tls_handshake_failures_total{listener="127.0.0.1:0",reason="unknown_ca"} 1`,
		`weir_tls_handshake_failures_total{listener="127.0.0.1:0",reason="outdated"} 0`,
		`weir_tenant_requests_total{by="upstream",tenant="spiffe://example.org/cart"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// With client_auth: optional a client without a certificate is a stranger, and one
// with a wrong certificate is refused all the same.
func TestOptionalClientCertificates(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	cfg, _ := asking(t, priorities(t).URL, ours)
	cfg.Listeners[0].TLS.ClientAuth = config.ClientOptional
	cfg.Identity.Priority = "header:X-Priority"
	cfg.Identity.Trusted = []string{}
	cfg.Identity.TrustedCerts = []string{"any"}
	g := start(t, cfg, Options{})
	for _, tt := range []struct {
		name string
		cert *tls.Certificate
		want string
	}{{"with", ours.issue(t, nil), "critical"}, {"without", nil, "normal"}} {
		if res, body := ask(t, clientWith(t, tt.cert, nil), g.secure()); res == nil || body != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, body, tt.want)
		}
	}
	if res, _ := ask(t, clientWith(t, theirs.issue(t, nil), nil), g.secure()); res != nil {
		t.Errorf("of another authority: %s", res.Status)
	}
}

// A resumed session proves what the first one did, for as long as its authority is one.
func TestResumedSessions(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			old, next := newAuthority(t, "old"), newAuthority(t, "next")
			cfg, file := asking(t, priorities(t).URL, old)
			cfg.Identity.Priority = "header:X-Priority"
			cfg.Identity.Trusted = []string{}
			cfg.Identity.TrustedCerts = []string{"cn:client"}
			g := start(t, cfg, Options{Load: func() (*config.Config, error) { return cfg, nil }})
			client := clientWith(t, old.issue(t, nil), func(c *tls.Config) {
				c.ClientSessionCache, c.MaxVersion = tls.NewLRUClientSessionCache(1), version
			})
			again := func(want string, resumed bool) {
				t.Helper()
				client.CloseIdleConnections()
				res, body := ask(t, client, g.secure())
				if res == nil {
					t.Fatal(body)
				}
				if body != want || res.TLS.DidResume != resumed {
					t.Errorf("%s, resumed %t; want %s, %t", body, res.TLS.DidResume, want, resumed)
				}
			}
			again("critical", false)
			again("critical", true)
			write(t, file, next, old) // both hold for a while
			if err := g.Reload(); err != nil {
				t.Fatal(err)
			}
			again("critical", true)
			write(t, file, next)
			if err := g.Reload(); err != nil {
				t.Fatal(err)
			}
			client.CloseIdleConnections()
			if res, _ := ask(t, client, g.secure()); res != nil {
				t.Errorf("let in by a ticket when its authority was gone: %s", res.Status)
			}
		})
	}
}

// A connection outlasts a reload of its authorities, but not the trust in them.
func TestConnectionsOutlastTheirAuthority(t *testing.T) {
	none := func(*config.Config) {}
	another := func(cfg *config.Config) { cfg.Listeners[0].MaxHeaderBytes++ }
	for _, tt := range []struct {
		name   string
		before func(cfg *config.Config) // in a reload that changes no authority
		change func(cfg *config.Config)
		http2  bool
		refuse bool // the file of settings, at last
	}{
		{name: "HTTP/1, the file", before: none, change: none},
		{name: "HTTP/2, the file", before: none, change: none, http2: true},
		{name: "HTTP/2, another listener", before: none, change: another, http2: true},
		{name: "HTTP/2, no more certificates", before: none, change: func(cfg *config.Config) { cfg.Listeners[0].TLS.ClientCA = "" }, http2: true},
		{name: "HTTP/1, another listener and then the file", before: another, change: none},
		{name: "HTTP/2, another listener and then the file", before: another, change: none, http2: true},
		{name: "HTTP/2, another listener twice", before: another, change: another, http2: true},
		{name: "HTTP/2, another listener and then a file that is refused", before: another, change: none, http2: true, refuse: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old, next := newAuthority(t, "old"), newAuthority(t, "next")
			cfg, file := asking(t, priorities(t).URL, old)
			cfg.Identity.Priority = "header:X-Priority"
			cfg.Identity.Trusted = []string{}
			cfg.Identity.TrustedCerts = []string{"any"}
			src := new(source)
			load := func(next *config.Config, err error) { src.set(func() (*config.Config, error) { return next, err }) }
			load(cfg, nil)
			opts := Options{Load: src.load}
			if tt.refuse {
				opts.Watch = file
			}
			g := start(t, cfg, opts)
			client := clientWith(t, old.issue(t, nil), func(c *tls.Config) {
				if !tt.http2 {
					c.NextProtos = []string{"http/1.1"}
				}
			})
			if !tt.http2 {
				client.Transport.(*http.Transport).ForceAttemptHTTP2 = false
			}
			for range 2 {
				if res, body := ask(t, client, g.secure()); body != "critical" || res.ProtoMajor == 2 != tt.http2 {
					t.Fatalf("before: %v, %s", res, body)
				}
			}
			write(t, file, next, old)
			if err := g.Reload(); err != nil {
				t.Fatal(err)
			}
			if _, body := ask(t, client, g.secure()); body != "critical" {
				t.Fatalf("while both hold: %s", body)
			}
			if n := g.Connections()[0].InFlight; n != 1 {
				t.Fatalf("%d connections, want the first one", n)
			}
			between := clone(cfg)
			tt.before(between)
			load(between, nil)
			if err := g.Reload(); err != nil {
				t.Fatal(err)
			}
			last := clone(between)
			tt.change(last)
			var refused error
			if tt.refuse {
				refused = errors.New("refused")
			}
			load(last, refused)
			write(t, file, next)
			for range 2 { // a file that is refused for the first time changes nothing
				if err := g.Reload(); err != refused {
					t.Fatal(err)
				}
			}
			res, body := ask(t, client, g.secure())
			if res == nil || res.StatusCode != http.StatusMisdirectedRequest || !strings.Contains(body, "connect anew") {
				t.Fatalf("on the old connection: %v, %s", res, body)
			}
		})
	}
}

// clone copies a configuration as far as these tests change it.
func clone(cfg *config.Config) *config.Config {
	c := *cfg
	c.Listeners = append([]config.Listener(nil), cfg.Listeners...)
	t := *c.Listeners[0].TLS
	c.Listeners[0].TLS = &t
	return &c
}

// A certificate is judged anew once it, or one above it, has expired.
func TestCertificateExpiresMeanwhile(t *testing.T) {
	ours := newAuthority(t, "ours")
	cfg, _ := asking(t, priorities(t).URL, ours)
	g := start(t, cfg, Options{})
	l := g.listeners[0]
	cert := ours.issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(10 * time.Minute) })
	held := func(what string, r *http.Request, in time.Duration, want bool) {
		t.Helper()
		if got := l.conns.CertificateValid(r, time.Now().Add(in)); got != want {
			t.Errorf("%s: holds %t, want %t", what, got, want)
		}
	}
	state := &tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{cert.Leaf}, VerifiedChains: [][]*x509.Certificate{{cert.Leaf, ours.cert}},
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = state
	held("no connection is known", r, 0, false)
	r = r.WithContext(l.server.ConnContext(t.Context(), nil))
	r.TLS = state
	held("at first", r, 0, true)
	held("before it expires", r, 9*time.Minute, true)
	held("after", r, 11*time.Minute, false)
	r.TLS = &tls.ConnectionState{}
	held("without one", r, 0, true)
}

// What names a client is bounded and fit to print, whatever its certificate says.
func TestOddSubjects(t *testing.T) {
	ours := newAuthority(t, "ours")
	cfg, _ := asking(t, priorities(t).URL, ours)
	cfg.Identity.Tenant = "cert:cn"
	cfg.Metrics.Tenants = 20
	g := start(t, cfg, Options{})
	for _, tt := range []struct {
		name    string
		subject pkix.Name
		want    string
	}{
		{"empty", pkix.Name{}, ""},
		{"huge", pkix.Name{CommonName: strings.Repeat("x", 10<<10)}, "sha256:"},
		{"not UTF-8", pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{{
			Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: asn1.RawValue{Tag: asn1.TagT61String, Bytes: []byte("caf\xe9\n")},
		}}}, "sha256:"},
		{"plain", pkix.Name{CommonName: "cart"}, "cart"},
	} {
		cert := ours.issue(t, func(c *x509.Certificate) { c.Subject = tt.subject })
		res, body := ask(t, clientWith(t, cert, nil), g.secure())
		if res == nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", tt.name, body)
		}
		if want := `tenant="` + tt.want; !strings.Contains(g.scrape(), want) {
			t.Errorf("%s: the metrics lack %s", tt.name, want)
		}
	}
}

var certificateHeaders = []string{
	"Client-Cert", "Client-Cert-Chain", "X-Forwarded-Client-Cert", "X-Client-Cert", "X-Ssl-Cert", "Ssl-Client-Cert",
	"X-Ssl-Client-Cert", "X-Ssl-Client-Verify", "X-Ssl-Client-S-Dn", "X-Ssl-Client-Dn", "X-Ssl-Client-Cn",
	"X-Client-Verify", "X-Client-Dn", "Ssl-Client-Verify", "Ssl-Client-S-Dn",
}

// Nobody says in a header what a certificate proves, but a trusted peer.
func TestForgedCertificateHeaders(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range append([]string{"X_forwarded_client_cert"}, certificateHeaders...) {
			if v := r.Header[name]; len(v) > 0 {
				_, _ = io.WriteString(w, name+" ")
			}
		}
	})
	cfg := baseConfig(t, up.URL)
	cfg.Identity.Trusted = []string{}
	stranger := start(t, cfg, Options{})
	cfg = baseConfig(t, up.URL)
	trusted := start(t, cfg, Options{})
	for _, tt := range []struct {
		g    *running
		want string
	}{{stranger, ""}, {trusted, strings.Join(certificateHeaders, " ") + " "}} {
		req, err := http.NewRequest(http.MethodGet, tt.g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append([]string{"X_forwarded_client_cert"}, certificateHeaders...) {
			req.Header[name] = []string{"Subject=\"CN=admin\""}
		}
		if _, body := do(t, req); body != tt.want {
			t.Errorf("the upstream saw %q, want %q", body, tt.want)
		}
	}
}

// A file of authorities that cannot be read changes nothing.
func TestBadAuthorities(t *testing.T) {
	ours := newAuthority(t, "ours")
	cfg, file := asking(t, priorities(t).URL, ours)
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return cfg, nil }})
	cert := ours.issue(t, nil)
	for _, text := range []string{"", "half a certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.Reload(); err == nil || !strings.Contains(err.Error(), "client_ca of listener") {
			t.Errorf("%q: %v", text, err)
		}
		if res, body := ask(t, clientWith(t, cert, nil), g.secure()); res == nil || res.StatusCode != http.StatusOK {
			t.Errorf("after %q: %s", text, body)
		}
	}
}

// A reload that fails after the certificates were read leaves those in force, too.
func TestFailedReloadKeepsCertificates(t *testing.T) {
	old, next := newAuthority(t, "old"), newAuthority(t, "next")
	cfg, file := asking(t, priorities(t).URL, old)
	loaded := clone(cfg)
	loaded.AccessLog.To = filepath.Join(t.TempDir(), "none", "access.log")
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return loaded, nil }})
	let := func(a *authority) bool {
		res, _ := ask(t, clientWith(t, a.issue(t, nil), nil), g.secure())
		return res != nil && res.StatusCode == http.StatusOK
	}
	write(t, file, next)
	if err := g.Reload(); err == nil || !strings.Contains(err.Error(), "access.log") {
		t.Fatalf("the reload: %v", err)
	}
	if !let(old) || let(next) {
		t.Error("a reload that has failed has changed the authorities")
	}
	loaded = cfg
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if let(old) || !let(next) {
		t.Error("the next reload has not changed the authorities")
	}
}

// While the file on disk is refused, certificates are read again all the same. A reload that is refused for the first time changes nothing.
// The next one reads them, also if nobody asks for it.
func TestCertificatesAreReadWhileTheFileIsRefused(t *testing.T) {
	for name, again := range map[string]func(*running) error{"asked for": (*running).Reload, "tried again": func(g *running) error {
		g.reloading.Lock()
		defer g.reloading.Unlock()
		return g.reload(true)
	}} {
		t.Run(name, func(t *testing.T) { readWhileRefused(t, again) })
	}
}

func readWhileRefused(t *testing.T, again func(*running) error) {
	old, next := newAuthority(t, "old"), newAuthority(t, "next")
	cfg, file := asking(t, priorities(t).URL, old)
	watched := filepath.Join(t.TempDir(), "weir.yaml")
	put := func(text string) {
		if err := os.WriteFile(watched, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("whole")
	refused := errors.New("refused")
	g := start(t, cfg, Options{Watch: watched, Load: func() (*config.Config, error) {
		if text, err := os.ReadFile(watched); err != nil || string(text) != "whole" {
			return nil, refused
		}
		return cfg, nil
	}})
	let := func(a *authority) bool {
		res, _ := ask(t, clientWith(t, a.issue(t, nil), nil), g.secure())
		return res != nil && res.StatusCode == http.StatusOK
	}
	put("with a fault")
	write(t, file, next)
	if err := g.Reload(); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if !let(old) || let(next) {
		t.Error("a file that is refused for the first time has changed the authorities")
	}
	if err := again(g); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if let(old) || !let(next) {
		t.Error("the authorities were not read again")
	}
	if err := os.WriteFile(file, []byte("half a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Reload(); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if !let(next) {
		t.Error("half a certificate has changed the authorities")
	}
	retry := func() {
		g.reloading.Lock()
		defer g.reloading.Unlock()
		if err := g.reload(true); !errors.Is(err, refused) {
			t.Fatal(err)
		}
	}
	retry()
	if n := strings.Count(g.log.String(), "certificates not read again"); n != 1 {
		t.Errorf("half a certificate is told of %d times, want once", n)
	}
	write(t, file, old)
	retry()
	if !let(old) {
		t.Error("the authorities were not read again, once they could be")
	}
}

// A certificate that cannot be used is told of once, in a reload that is refused for it.
func TestFaultyCertificateIsToldOnce(t *testing.T) {
	cert, key := certificate(t)
	file := filepath.Join(t.TempDir(), "weir.yaml")
	put := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(file, `{admin: {address: "off"}, listeners: [{address: "127.0.0.1:0", tls: {cert: `+cert+`, key: `+key+`}}], `+
		`upstreams: {app: {targets: ["http://127.0.0.1:1"]}}, routes: [{match: [/], upstream: app}]}`)
	load := func() (*config.Config, error) { return config.Load(file) }
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	s, log := idleServer(t, cfg, Options{Watch: file, Load: load})
	put(cert, "half a certificate")
	for i := range 2 {
		if err := s.Reload(); err == nil {
			t.Fatal("half a certificate was taken")
		}
		if lines := log.lines("certificates", "configuration"); len(lines) != i+1 {
			t.Errorf("after %d reloads the log says %q", i+1, lines)
		}
	}
	put(file, "{")
	put(cert, "less")
	for range 2 {
		_ = s.Reload() // the fault is another
	}
	if lines := log.lines("certificates not read again"); len(lines) != 1 {
		t.Errorf("while the file says nothing of certificates the log says %q", lines)
	}
}

// The log says that a listener's own certificate has expired, and its connections say when it does.
func TestExpiredCertificate(t *testing.T) {
	for lasts, told := range map[time.Duration]int{-time.Minute: 1, time.Hour: 0} {
		cert := newAuthority(t, "ours").issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(lasts) })
		key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "both.pem")
		both := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
		if err := os.WriteFile(file, both, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := baseConfig(t, "http://127.0.0.1:1")
		cfg.Listeners[0].TLS = &config.TLS{Cert: file, Key: file}
		g := start(t, cfg, Options{})
		if on := g.Connections()[0].CertificateExpires; !on.Equal(cert.Leaf.NotAfter) {
			t.Errorf("it expires on %v, want %v", on, cert.Leaf.NotAfter)
		}
		if log := g.log.String(); strings.Count(log, "the certificate has expired") != told {
			t.Errorf("one that lasts for %v, told %d times:\n%s", lasts, told, log)
		}
	}
}

// An authority that has expired vouches for nobody, which the log says.
func TestExpiredAuthority(t *testing.T) {
	ours, gone := newAuthority(t, "ours"), newAuthority(t, "gone")
	expired := *gone.cert
	expired.NotAfter = time.Now().Add(-time.Minute)
	gone.cert = sign(t, &expired, &expired, &gone.key.PublicKey, gone.key)
	cfg, _ := asking(t, priorities(t).URL, ours, gone)
	g := start(t, cfg, Options{})
	if res, body := ask(t, clientWith(t, ours.issue(t, nil), nil), g.secure()); res == nil {
		t.Error(body)
	}
	if res, _ := ask(t, clientWith(t, gone.issue(t, nil), nil), g.secure()); res != nil {
		t.Errorf("vouched for by one that has expired: %s", res.Status)
	}
	if log := g.log.String(); !strings.Contains(log, "CN=gone") {
		t.Errorf("the log does not say which has expired:\n%s", log)
	}
}

// authority signs certificates of clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

var serials atomic.Int64

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serials.Add(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = sign(t, template, template, &a.key.PublicKey, a.key)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t *testing.T, template, parent *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// issue signs a client's certificate; change may alter what it says.
func (a *authority) issue(t *testing.T, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serials.Add(1)), Subject: pkix.Name{CommonName: "client"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(template)
	}
	key := newKey(t)
	cert := sign(t, template, a.cert, &key.PublicKey, a.key)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// write makes file the PEM file of authorities.
func write(t *testing.T, file string, all ...*authority) {
	t.Helper()
	var data []byte
	for _, a := range all {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// asking is a configuration whose listener asks for certificates of the authorities in
// the file that it returns.
func asking(t *testing.T, upstream string, all ...*authority) (cfg *config.Config, file string) {
	t.Helper()
	cfg = baseConfig(t, upstream)
	cert, key := certificate(t)
	file = filepath.Join(t.TempDir(), "clients.pem")
	write(t, file, all...)
	cfg.Listeners[0].TLS = &config.TLS{Cert: cert, Key: key, ClientCA: file}
	return cfg, file
}

// clientWith is a client with a certificate of its own, nil for none.
func clientWith(t *testing.T, cert *tls.Certificate, change func(*tls.Config)) *http.Client {
	t.Helper()
	conf := &tls.Config{InsecureSkipVerify: true} // the server is not what is tested
	if cert != nil {
		// Whatever authorities the server names.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	if change != nil {
		change(conf)
	}
	tr := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// certificate writes a certificate that nobody signed and returns its files.
func certificate(t testing.TB) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weir test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePEM(t, cert, "CERTIFICATE", der)
	writePEM(t, key, "PRIVATE KEY", keyDER)
	return cert, key
}

func writePEM(t testing.TB, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
