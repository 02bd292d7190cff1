//go:build integration

package integration

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
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
	return &http.Client{Transport: tr, Timeout: 5 * time.Second}
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
	cert = newCertificate(t, dir, 2)
	g.signal(t, syscall.SIGHUP)
	eventually(t, 3*time.Second, "the renewed certificate is shown", func() bool { return shown() == 2 })

	writeFile(t, cert.cert, []byte("half a certif"))
	g.signal(t, syscall.SIGHUP)
	eventually(t, 3*time.Second, "the log names the fault", func() bool {
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
