//go:build integration

package weirredis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// identity is a certificate for 127.0.0.1 that vouches for itself, and its key.
type identity struct {
	cert, key string // files
	pool      *x509.CertPool
}

func (id *identity) trust() *tls.Config { return &tls.Config{RootCAs: id.pool} }

func certificate(t *testing.T) *identity {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	id := &identity{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), pool: x509.NewCertPool()}
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	writeFile(t, id.cert, cert)
	writeFile(t, id.key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	id.pool.AppendCertsFromPEM([]byte(cert))
	return id
}

// startTLS starts a server that speaks nothing but TLS, with its own nodes too.
func startTLS(t *testing.T, id *identity, options ...string) *server {
	t.Helper()
	program := part(t, "redis-server")
	needTLS(t, program)
	s := &server{program: program, dir: t.TempDir(), addr: freeAddr(t), tls: id}
	s.launch(t, append([]string{
		"--port", "0", "--tls-port", s.port(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir,
		"--tls-cert-file", id.cert, "--tls-key-file", id.key, "--tls-ca-cert-file", id.cert, "--tls-auth-clients", "no",
	}, options...))
	return s
}

// needTLS skips the test if the server was built without.
func needTLS(t *testing.T, program string) {
	t.Helper()
	if chosen == "" {
		return // Debian's has it, and nothing may hide that a test does not run
	}
	if answer := startProgram(t, program).ask(t, "CONFIG GET tls-port"); !strings.Contains(answer, "tls-port") {
		t.Skip("this server was built without TLS")
	}
}

func TestTLS(t *testing.T) {
	id := certificate(t)
	server := startTLS(t, id)
	s := open(t, Config{URL: "rediss://" + server.addr, TLS: id.trust()})
	if r := takeOne(t, s, quota.Per(10, time.Second)); !r.OK {
		t.Errorf("%+v", r)
	}
	strict := open(t, Config{URL: "rediss://" + server.addr, DialTimeout: 5 * time.Second})
	if st := strict.Stats(); !st.Down || st.Why == nil || !strings.Contains(st.Why.Error(), "certificate") {
		t.Errorf("a certificate that nobody vouches for: %+v", st)
	}
}

// All nodes of a cluster are asked over TLS, by their own names.
func TestClusterTLS(t *testing.T) {
	t.Parallel()
	id := certificate(t)
	nodes := startCluster(t, func(o ...string) *server { return startTLS(t, id, append(o, "--tls-cluster", "yes")...) })
	s := open(t, Config{URL: "rediss://weir:secret@" + nodes[0].addr, TLS: id.trust()})
	asked := map[*server]bool{}
	for i := range 50 {
		key := fmt.Sprint(i)
		eventually(t, 10*time.Second, "a decision", func() bool {
			r, err := s.Take(context.Background(), &quota.Take{Key: key, Limits: []quota.Limit{quota.Per(10, time.Second)}, Cost: 1})
			return err == nil && r.OK
		})
		asked[nodeOf(nodes, key)] = true
	}
	if len(asked) != len(nodes) {
		t.Errorf("%d nodes of %d were asked", len(asked), len(nodes))
	}
}
