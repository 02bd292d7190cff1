package policy

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/weir-go/weir"
)

// shown is a request with a verified certificate.
func shown(r *http.Request, cert *x509.Certificate) *http.Request {
	r.TLS = &tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}},
	}
	return r
}

func uris(t *testing.T, all ...string) []*url.URL {
	t.Helper()
	var list []*url.URL
	for _, s := range all {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, u)
	}
	return list
}

// named is a subject with these common names.
func named(names ...string) pkix.Name {
	var n pkix.Name
	for _, name := range names {
		n.Names = append(n.Names, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: name})
		n.CommonName = name
	}
	return n
}

func hashed(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func TestCertSources(t *testing.T) {
	const id = "spiffe://example.org/ns/shop/sa/cart"
	long := strings.Repeat("x", 10<<10)
	raw := sha256.Sum256([]byte("certificate"))
	for _, tt := range []struct {
		name, source string
		cert         x509.Certificate
		want         string
	}{
		{"SPIFFE ID", "cert:uri", x509.Certificate{URIs: uris(t, id)}, id},
		{"escapes in a URI", "cert:uri", x509.Certificate{URIs: uris(t, "urn:a%20b")}, "urn:a%20b"},
		{"two URIs", "cert:uri", x509.Certificate{URIs: uris(t, id, "spiffe://example.org/admin")}, ""},
		{"no URI", "cert:uri", x509.Certificate{DNSNames: []string{"a"}}, ""},
		{"DNS name", "cert:dns", x509.Certificate{DNSNames: []string{"Cart.Example.ORG", "b"}}, "cart.example.org"},
		{"no DNS name", "cert:dns", x509.Certificate{Subject: named("a")}, ""},
		{"common name", "cert:cn", x509.Certificate{Subject: named("cart")}, "cart"},
		{"two common names", "cert:cn", x509.Certificate{Subject: named("cart", "admin")}, ""},
		{"empty common name", "cert:cn", x509.Certificate{Subject: named("")}, ""},
		{"subject", "cert:subject", x509.Certificate{Subject: pkix.Name{CommonName: "cart", Organization: []string{"Acme, Inc."}}}, `CN=cart,O=Acme\, Inc.`},
		{"empty subject", "cert:subject", x509.Certificate{}, ""},
		{"huge subject", "cert:subject", x509.Certificate{Subject: pkix.Name{CommonName: long}}, hashed("CN=" + long)},
		{"subject that is not UTF-8", "cert:cn", x509.Certificate{Subject: named("\xff\xfe")}, hashed("\xff\xfe")},
		{"line break in a subject", "cert:cn", x509.Certificate{Subject: named("a\nb")}, hashed("a\nb")},
		{"hash", "cert:hash", x509.Certificate{Raw: []byte("certificate")}, hex.EncodeToString(raw[:])},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, Spec{Identity: IdentitySpec{User: tt.source, Tenant: tt.source}}, Options{})
			_, w := p.Match(shown(from("192.0.2.1:99"), &tt.cert))
			user := tt.want
			if user == "" {
				user = "192.0.2.1" // who says nothing is its address
			}
			if w.Tenant != tt.want || w.User != user {
				t.Errorf("tenant %q, user %q; want %q, %q", w.Tenant, w.User, tt.want, user)
			}
		})
	}
}

// A certificate that was sent and not verified proves nothing.
func TestUnverifiedCertificate(t *testing.T) {
	p := compile(t, Spec{Identity: IdentitySpec{User: "cert:cn", Tenant: "header:X-Tenant", TrustedCerts: []string{"any"}}}, Options{})
	for name, state := range map[string]*tls.ConnectionState{
		"no TLS":         nil,
		"no certificate": {},
		"not verified":   {PeerCertificates: []*x509.Certificate{{Subject: named("root")}}},
		"empty chain":    {VerifiedChains: [][]*x509.Certificate{{}}},
	} {
		r := from("192.0.2.1:99", "X-Tenant: acme")
		r.TLS = state
		if _, w := p.Match(r); w.User != "192.0.2.1" || w.Tenant != "" || p.Trusted(r) {
			t.Errorf("%s: user %q, tenant %q, trusted %t", name, w.User, w.Tenant, p.Trusted(r))
		}
	}
}

func TestTrustedCerts(t *testing.T) {
	edge := x509.Certificate{
		Subject: named("edge"), URIs: uris(t, "spiffe://example.org/edge/1"),
		DNSNames: []string{"one.edge.example.org", "Other.example.net"}, Raw: []byte("edge"),
	}
	sum := sha256.Sum256(edge.Raw)
	two := edge
	two.URIs = uris(t, "spiffe://example.org/edge/1", "spiffe://example.org/x")
	of := func(uri string) x509.Certificate { return x509.Certificate{URIs: uris(t, uri)} }
	for _, tt := range []struct {
		pattern string
		cert    x509.Certificate
		want    bool
	}{
		{"any", x509.Certificate{}, true},
		{"uri:spiffe://example.org/edge/1", edge, true},
		{"uri:spiffe://example.org/edge/1", two, false},
		{"uri:spiffe://example.org/edge", edge, false},
		{"uri:spiffe://example.org/edge/*", edge, true},
		{"uri:spiffe://example.org/edge/1*", edge, false},
		{"uri:spiffe://example.org/*", edge, true},
		{"uri:spiffe://example.org/edge/*", of("spiffe://example.org/edge/../cart"), false},
		{"uri:spiffe://example.org/edge/*", of("spiffe://example.org/edge/a/%2E%2e/../cart"), false},
		{"uri:spiffe://example.org/edge/*", of("spiffe://example.org/edge/."), false},
		{"uri:spiffe://example.org/edge/*", of("spiffe://example.org/edge/..a/b.c"), true},
		{"uri:spiffe://example.org/edge/*", of("spiffe://example.org/edge/a?b=/../c"), true},
		{"uri:spiffe://example.org/Edge/1", edge, false},
		{"dns:one.edge.example.org", edge, true},
		{"dns:ONE.edge.example.org", edge, true},
		{"dns:other.example.net", edge, true},
		{"dns:*.edge.example.org", edge, true},
		{"dns:*.example.org", edge, false},
		{"dns:*.one.edge.example.org", edge, false},
		{"dns:edge.example.org", edge, false},
		{"cn:edge", edge, true},
		{"cn:edg", edge, false},
		{"subject:CN=edge", edge, true},
		{"subject:CN=edge", x509.Certificate{}, false},
		{"hash:" + hex.EncodeToString(sum[:]), edge, true},
		{"hash:" + strings.ToUpper(hex.EncodeToString(sum[:])), edge, true},
		{"hash:" + hex.EncodeToString(sum[:]), two, true},
		{"hash:" + hex.EncodeToString(sum[:]), x509.Certificate{Raw: []byte("other")}, false},
	} {
		p := compile(t, Spec{Identity: IdentitySpec{
			User: "header:X-User", Priority: "header:X-Priority", Trusted: []string{}, TrustedCerts: []string{tt.pattern},
		}}, Options{})
		r := shown(from("192.0.2.1:99", "X-User: alice", "X-Priority: critical"), &tt.cert)
		_, w := p.Match(r)
		if (w.User == "alice") != tt.want || (w.Priority == weir.Critical) != tt.want || p.Trusted(r) != tt.want {
			t.Errorf("%s: user %q, priority %v, trusted %t; want %t", tt.pattern, w.User, w.Priority, p.Trusted(r), tt.want)
		}
	}
}

// Behind a proxy that is trusted for its certificate the address is whom it names.
func TestOriginBehindCertificate(t *testing.T) {
	p := compile(t, Spec{Identity: IdentitySpec{Client: "peer", TrustedCerts: []string{"cn:edge"}}}, Options{})
	for name, want := range map[string]string{"edge": "198.51.100.7", "other": "192.0.2.1"} {
		r := shown(from("192.0.2.1:9", "X-Forwarded-For: 1.2.3.4, 198.51.100.7"), &x509.Certificate{Subject: named(name)})
		if _, w := p.Match(r); w.Client != want || w.User != want {
			t.Errorf("behind %s: client %q, user %q; want %q", name, w.Client, w.User, want)
		}
	}
}

// What is forwarded of a peer that is trusted for its certificate.
func TestForwardBehindCertificate(t *testing.T) {
	p := compile(t, Spec{Identity: IdentitySpec{Tenant: "header:X-Tenant", Priority: "header:X-Priority", TrustedCerts: []string{"cn:edge"}}}, Options{})
	for name, want := range map[string]string{"edge": "acme|critical", "other": "|normal"} {
		r := shown(from("192.0.2.1:9", "X-Tenant: acme", "X-Priority: critical"), &x509.Certificate{Subject: named(name)})
		_, w := p.Match(r)
		out := r.Header.Clone()
		p.Forward(out, r, &w, p.time())
		if got := out.Get("X-Tenant") + "|" + out.Get("X-Priority"); got != want {
			t.Errorf("behind %s: %s, want %s", name, got, want)
		}
	}
}

func TestCertFaults(t *testing.T) {
	for _, tt := range []struct {
		spec IdentitySpec
		want string
	}{
		{IdentitySpec{User: "cert"}, `identity.user: "cert" is not a source; did you mean cert:? ` + sourceForms},
		{IdentitySpec{User: "cert:"}, "identity.user: cert: does not say what to read; " + certForms},
		{IdentitySpec{User: "cert:san"}, "identity.user: a certificate has several kinds of alternative names; write cert:uri for a SPIFFE ID or another URI, or cert:dns"},
		{IdentitySpec{User: "cert:mail"}, `identity.user: a certificate has no "mail"; ` + certForms},
		{IdentitySpec{Priority: "cert:cn"}, "identity.priority: a certificate says who somebody is, not how important the work is; write header:NAME, and the certificates that are believed under trusted_certs"},
		{IdentitySpec{TrustedCerts: []string{"edge"}}, `identity.trusted_certs[0]: "edge" names no certificate; ` + certPatternForms},
		{IdentitySpec{TrustedCerts: []string{""}}, `identity.trusted_certs[0]: "" names no certificate; ` + certPatternForms},
		{IdentitySpec{TrustedCerts: []string{"any", "cn:"}}, "identity.trusted_certs[1]: cn: names nobody; " + certPatternForms},
		{IdentitySpec{TrustedCerts: []string{"dns:a.*.b"}}, `identity.trusted_certs[0]: "dns:a.*.b" has a star that does not stand for the first label; write a name such as dns:edge.example.org, or dns:*.example.org`},
		{IdentitySpec{TrustedCerts: []string{"dns:*"}}, `identity.trusted_certs[0]: "dns:*" has a star that does not stand for the first label; write a name such as dns:edge.example.org, or dns:*.example.org`},
		{IdentitySpec{TrustedCerts: []string{"uri:spiffe://*/edge"}}, `identity.trusted_certs[0]: "uri:spiffe://*/edge" has a star that is not at its end; write a URI, or the beginning of one and a star: uri:spiffe://example.org/edge/*`},
		{IdentitySpec{TrustedCerts: []string{"uri:spiffe://example.org*"}}, `identity.trusted_certs[0]: "uri:spiffe://example.org*" could be continued to another domain; write the slash after the domain: uri:spiffe://example.org/*`},
		{IdentitySpec{TrustedCerts: []string{"uri:*"}}, `identity.trusted_certs[0]: "uri:*" could be continued to another domain; write the slash after the domain: uri:spiffe://example.org/*`},
		{IdentitySpec{TrustedCerts: []string{"uri:edge"}}, `identity.trusted_certs[0]: "uri:edge" is not a URI; write a URI such as uri:spiffe://example.org/edge`},
		{IdentitySpec{TrustedCerts: []string{"hash:abc"}}, `identity.trusted_certs[0]: "hash:abc" is not a SHA-256; write 64 hexadecimal digits, as openssl x509 -fingerprint -sha256 prints them`},
	} {
		_, err := Compile(Spec{Identity: tt.spec}, Options{})
		if err == nil || err.Error() != "policy: "+tt.want {
			t.Errorf("got  %v\nwant policy: %s", err, tt.want)
		}
	}
}

func FuzzCertName(f *testing.F) {
	f.Add("cart", "cart.example.org", "spiffe://example.org/cart")
	f.Add("\xff\n", "*", "::")
	p := compile(f, Spec{Identity: IdentitySpec{
		Tenant: "cert:subject", User: "cert:uri", Client: "cert:dns",
		TrustedCerts: []string{"uri:spiffe://example.org/*", "dns:*.example.org"},
	}}, Options{})
	f.Fuzz(func(t *testing.T, subject, dns, uri string) {
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: subject}, DNSNames: []string{dns}}
		if u, err := url.Parse(uri); err == nil {
			cert.URIs = []*url.URL{u}
		}
		r := shown(from("192.0.2.1:99"), cert)
		_, w := p.Match(r)
		for _, id := range []string{w.Tenant, w.User, w.Client} {
			if bounded(id) != id {
				t.Errorf("identity %q is not fit to be kept", id)
			}
		}
		if p.Trusted(r) && !strings.Contains(strings.ToLower(dns+uri), "example.org") {
			t.Errorf("trusts %q, %q", dns, uri)
		}
	})
}
