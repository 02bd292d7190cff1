//go:build integration

package integration

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// certificate is one that nobody signed, for 127.0.0.1, and its files.
type certificate struct {
	cert, key string
	pool      *x509.CertPool // of clients that believe it
}

// newCertificate writes a certificate into dir, over one that is there.
func newCertificate(t *testing.T, dir string, serial int64) *certificate {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	c := &certificate{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), pool: x509.NewCertPool()}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	writeFile(t, c.cert, block)
	writeFile(t, c.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	c.pool.AppendCertsFromPEM(block)
	return c
}

// listener is the setting of a listener with the certificate.
func (c *certificate) listener() string {
	return fmt.Sprintf("tls: {cert: %q, key: %q}", c.cert, c.key)
}

// client speaks one protocol under TLS and believes only this certificate.
func (c *certificate) client(t *testing.T, proto string) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(proto == "HTTP/1.1")
	p.SetHTTP2(proto == "HTTP/2.0")
	tr := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{RootCAs: c.pool}, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: await.Patience}
}

// A listener with a certificate offers HTTP/2 and HTTP/1.1, and what nginx
// answers arrives whole over both, many answers at a time.
func TestTLS(t *testing.T) {
	up := startNginx(t)
	cert := newCertificate(t, t.TempDir(), 1)
	g := startListening(t, "https", cert.listener(), gatewayConfig(up.addr, 64))
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := cert.client(t, proto)
		var all sync.WaitGroup
		for i := range 12 {
			path, want := "/hello", []byte("hello\n")
			if i%6 == 0 {
				path, want = "/big.bin", up.big
			}
			all.Go(func() {
				res, err := client.Get(g.url + path)
				if err != nil {
					t.Errorf("%s %s: %v", proto, path, err)
					return
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				if res.Proto != proto || res.StatusCode != 200 || err != nil || !bytes.Equal(body, want) {
					t.Errorf("%s %s: %s %s, %d bytes, %v; want %d", proto, path, res.Proto, res.Status, len(body), err, len(want))
				}
			})
		}
		all.Wait()
	}
	g.idle(t)
}

// What a TLS client may ask for, and what it gets.
func TestTLSHandshake(t *testing.T) {
	up := startNginx(t)
	cert := newCertificate(t, t.TempDir(), 1)
	g := startListening(t, "https", cert.listener(), gatewayConfig(up.addr, 8))
	for _, tt := range []struct {
		name   string
		max    uint16
		offers []string
		chosen string // of the protocols; "-" for no connection
	}{
		{"both", tls.VersionTLS13, []string{"h2", "http/1.1"}, "h2"},
		{"both in TLS 1.2", tls.VersionTLS12, []string{"http/1.1", "h2"}, "h2"},
		{"HTTP/1.1 alone", tls.VersionTLS13, []string{"http/1.1"}, "http/1.1"},
		{"nothing", tls.VersionTLS13, nil, ""},
		{"an unknown protocol", tls.VersionTLS13, []string{"gopher"}, "-"},
		{"TLS 1.1", tls.VersionTLS11, []string{"h2"}, "-"},
	} {
		conf := &tls.Config{RootCAs: cert.pool, NextProtos: tt.offers, MinVersion: tls.VersionTLS10, MaxVersion: tt.max}
		got := "-"
		if c, err := tls.Dial("tcp", g.addr, conf); err == nil {
			got = c.ConnectionState().NegotiatedProtocol
			c.Close()
		}
		if got != tt.chosen {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.chosen)
		}
	}
	res, err := http.Get("http://" + g.addr + "/hello")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("without TLS: %s, want 400", res.Status)
	}
	g.idle(t)
}

// A renewed certificate is taken up without a restart, and a file with a fault
// in it is not.
func TestTLSRenewal(t *testing.T) {
	up := startNginx(t)
	dir := t.TempDir()
	cert := newCertificate(t, dir, 1)
	g := startListening(t, "https", cert.listener(), gatewayConfig(up.addr, 8))
	shown := func() int64 {
		c, err := tls.Dial("tcp", g.addr, &tls.Config{InsecureSkipVerify: true}) // it is looked at here
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if n := shown(); n != 1 { // weir listens before it has read the files
		t.Errorf("certificate %d is shown at first, want 1", n)
	}
	cert = newCertificate(t, dir, 2)
	g.signal(t, syscall.SIGHUP)
	eventually(t, "the renewed certificate is shown", func() bool { return shown() == 2 })

	writeFile(t, cert.cert, []byte("half a certif"))
	g.signal(t, syscall.SIGHUP)
	eventually(t, "the log names the fault", func() bool {
		return strings.Contains(g.out.String(), "certificate and key cannot be used")
	})
	if n := shown(); n != 2 {
		t.Errorf("certificate %d is shown after a bad file, want 2", n)
	}
	res, err := cert.client(t, "HTTP/2.0").Get(g.url + "/hello")
	if err != nil {
		t.Fatalf("a client that believes the renewed certificate: %v", err)
	}
	res.Body.Close()
}

// clientAuthority signs certificates of clients.
type clientAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newClientAuthority(t *testing.T, name string) *clientAuthority {
	t.Helper()
	a := &clientAuthority{}
	a.cert, a.key = signed(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
	return a
}

// signed returns a certificate that by has signed, or that is its own authority.
func signed(t *testing.T, template *x509.Certificate, by *clientAuthority) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// write makes file the PEM file of the authority.
func (a *clientAuthority) write(t *testing.T, file string) {
	t.Helper()
	writeFile(t, file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// client speaks HTTP/2 and shows a certificate with a SPIFFE ID; id "" shows none.
func (a *clientAuthority) client(t *testing.T, server *certificate, id string) *http.Client {
	t.Helper()
	client := server.client(t, "HTTP/2.0")
	if id == "" {
		return client
	}
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := signed(t, &x509.Certificate{URIs: []*url.URL{uri}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, a)
	shown := &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
	client.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil }
	return client
}

// Clients are who their certificates say. Who has none of the right authority does not
// get in, and an authority that is taken away takes its connections with it.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Header.Get("X-Priority")+r.Header.Get("X-Forwarded-Client-Cert"))
	}))
	defer up.Close()
	ours, theirs := newClientAuthority(t, "ours"), newClientAuthority(t, "theirs")
	file := filepath.Join(t.TempDir(), "clients.pem")
	ours.write(t, file)
	server := newCertificate(t, t.TempDir(), 1)
	g := startListening(t, "https", fmt.Sprintf("tls: {cert: %q, key: %q, client_ca: %q}", server.cert, server.key, file),
		`identity: {user: cert:uri, tenant: cert:uri, priority: header:X-Priority, trusted_proxies: [], trusted_certs: ["uri:spiffe://example.org/edge/*"]}`+"\n"+
			gatewayConfig(strings.TrimPrefix(up.URL, "http://"), 8))
	ask := func(c *http.Client) (int, string) {
		req, err := http.NewRequest("GET", g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Priority", "critical")
		req.Header.Set("X-Forwarded-Client-Cert", "forged")
		res, err := c.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	cart := ours.client(t, server, "spiffe://example.org/cart")
	if status, body := ask(cart); status != 200 || body != "normal" {
		t.Errorf("a client: %d, %s", status, body)
	}
	if status, body := ask(ours.client(t, server, "spiffe://example.org/edge/1")); status != 200 || body != "criticalforged" {
		t.Errorf("a trusted proxy: %d, %s", status, body)
	}
	for name, c := range map[string]*http.Client{"none": ours.client(t, server, ""), "another's": theirs.client(t, server, "spiffe://example.org/edge/1")} {
		if status, _ := ask(c); status != 0 {
			t.Errorf("with %s: %d", name, status)
		}
	}
	for _, want := range []string{ // a client hears of its refusal before it is counted
		`reason="no_certificate"} 1`, `reason="unknown_ca"} 1`, `tenant="spiffe://example.org/cart"} 1`,
	} {
		eventually(t, "metrics have "+want, func() bool { return strings.Contains(string(get(t, g.admin+"/metrics")), want) })
	}
	eventually(t, "the log says who was refused", func() bool {
		out := g.out.String()
		return strings.Contains(out, "client certificate refused") && strings.Contains(out, "CN=theirs")
	})

	theirs.write(t, file) // read again when it changes
	eventually(t, "the old authority is gone, also for a connection that lasts", func() bool {
		status, _ := ask(cart)
		return status != 200
	})
	if status, body := ask(theirs.client(t, server, "spiffe://example.org/cart")); status != 200 || body != "normal" {
		t.Errorf("a client of the new authority: %d, %s", status, body)
	}
}
