package accept

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
)

// clientTLS is the TLS of a listener.
type clientTLS struct {
	cfg     config.TLS
	bare    bool // no protocol is negotiated
	current atomic.Pointer[credentials]
}

// credentials are a listener's own certificate, and the authorities that it trusts for client
// certificates. They never change; a reload replaces them.
type credentials struct {
	cert *tls.Certificate
	cas  *clientCAs // nil if clients are not asked for certificates
	conf *tls.Config
}

// clientCAs are the authorities for client certificates. If the content has not changed, a reload keeps the old
// clientCAs, so that a comparison of pointers shows a change.
type clientCAs struct {
	pool    *x509.CertPool
	sum     [sha256.Size]byte
	expired []string // subjects of expired authorities
}

// ReadCertificates reads the files of the listener's certificate, and of its authorities, again. Until use is
// called, and after an error, the old ones stay.
func (l *Listener) ReadCertificates() (use func(), err error) {
	if l.tls == nil {
		return func() {}, nil
	}
	old := l.tls.current.Load()
	c, err := l.tls.load(l.cfg.Address, old)
	if err != nil {
		return nil, err
	}
	return func() {
		l.tls.current.Store(c)
		known := old != nil && old.cert.Leaf.Equal(c.cert.Leaf)
		if on := c.cert.Leaf.NotAfter; time.Now().After(on) && !known {
			l.log.CertificateExpired(l.cfg.Address, on)
		}
		if c.cas != nil && (old == nil || old.cas != c.cas) {
			for _, subject := range c.cas.expired {
				l.log.AuthorityExpired(l.cfg.Address, subject)
			}
		}
	}, nil
}

func (t *clientTLS) load(address string, old *credentials) (*credentials, error) {
	cert, err := tls.LoadX509KeyPair(t.cfg.Cert, t.cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate of listener %s: %w", address, err)
	}
	c := &credentials{cert: &cert}
	if t.cfg.ClientCA != "" {
		if c.cas, err = readCAs(t.cfg.ClientCA); err != nil {
			return nil, fmt.Errorf("client_ca of listener %s: %w", address, err)
		}
		if old != nil && old.cas != nil && old.cas.sum == c.cas.sum {
			c.cas = old.cas
		}
	}
	c.conf = t.config(c)
	return c, nil
}

// readCAs reads a PEM file. It uses all certificates in the file, or none.
func readCAs(file string) (*clientCAs, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	certs, err := config.ParseCAs(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	cas := &clientCAs{pool: x509.NewCertPool(), sum: sha256.Sum256(data)}
	for _, cert := range certs {
		cas.pool.AddCert(cert)
		if time.Now().After(cert.NotAfter) {
			cas.expired = append(cas.expired, cert.Subject.String())
		}
	}
	return cas, nil
}

// config is the configuration of one handshake. Session tickets are encrypted with the keys of the server's own
// Config, so tickets outlast a reload. crypto/tls accepts a ticket only if its chain has not expired and still
// ends at one of ClientCAs.
func (t *clientTLS) config(c *credentials) *tls.Config {
	conf := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{*c.cert},
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if t.bare {
		conf.NextProtos = nil
	}
	if c.cas != nil {
		conf.ClientCAs = c.cas.pool
		conf.ClientAuth = tls.RequireAndVerifyClientCert
		if t.cfg.ClientAuth == config.ClientOptional {
			conf.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	return conf
}

// ConfigureServer sets up srv for TLS on the listener. On plain HTTP it changes nothing.
func (l *Listener) ConfigureServer(srv *http.Server) {
	if l.tls == nil {
		return
	}
	srv.TLSConfig = l.TLSConfig()
	if l.tls.cfg.ClientCA != "" {
		srv.ConnContext = connContext
	}
}

// TLSConfig returns the configuration for handshakes on the listener, or nil on plain HTTP.
func (l *Listener) TLSConfig() *tls.Config {
	if l.tls == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: l.tls.configForClient}
}

// Vouched is the last check of a client certificate on a connection. The zero value is no check.
type Vouched struct{ atomic.Pointer[vouched] }

type vouched struct {
	by    *clientCAs
	until time.Time // zero if not checked since the handshake
}

type vouchedKey struct{}

// connContext is an http.Server.ConnContext.
func connContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, vouchedKey{}, new(Vouched))
}

// configForClient is a tls.Config.GetConfigForClient. It stores the authorities of the handshake.
func (t *clientTLS) configForClient(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	c := t.current.Load()
	if v, ok := hello.Context().Value(vouchedKey{}).(*Vouched); ok {
		v.Store(&vouched{by: c.cas})
	}
	return c.conf, nil
}

// CertificateValid reports whether the client certificate of the request's connection is still valid, and
// counts it if not. Connections last for days. In that time a certificate can expire, and a reload can remove
// its authority. It returns true for a client without a certificate.
func (l *Listener) CertificateValid(r *http.Request, now time.Time) bool {
	known, _ := r.Context().Value(vouchedKey{}).(*Vouched)
	return l.StillValid(r.TLS, known, now)
}

// StillValid is [Listener.CertificateValid] for a connection that is not net/http's. shown is the state after
// its handshake.
func (l *Listener) StillValid(shown *tls.ConnectionState, known *Vouched, now time.Time) bool {
	if l.tls == nil || l.tls.cfg.ClientCA == "" || l.tls.valid(shown, known, now) {
		return true
	}
	l.failures.add(certOutdated)
	return false
}

func (t *clientTLS) valid(shown *tls.ConnectionState, known *Vouched, now time.Time) bool {
	if shown == nil || len(shown.VerifiedChains) == 0 {
		return true // the client has no certificate
	}
	cas := t.current.Load().cas
	if known == nil || cas == nil {
		return false
	}
	v := known.Load()
	if v != nil && v.by == cas {
		if v.until.IsZero() {
			v = &vouched{cas, expiry(shown.VerifiedChains[0])}
			known.Store(v)
		}
		if now.Before(v.until) {
			return true
		}
	}
	chain, err := cas.verify(shown.PeerCertificates, now)
	if err != nil {
		return false
	}
	known.Store(&vouched{cas, expiry(chain)})
	return true
}

// verify finds a chain from a client's certificate to one of the authorities.
func (cas *clientCAs) verify(certs []*x509.Certificate, now time.Time) ([]*x509.Certificate, error) {
	opts := x509.VerifyOptions{
		Roots: cas.pool, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, cert := range certs[1:] {
		opts.Intermediates.AddCert(cert)
	}
	chains, err := certs[0].Verify(opts)
	if err != nil {
		return nil, err
	}
	return chains[0], nil
}

// expiry is when the first certificate of a chain expires.
func expiry(chain []*x509.Certificate) time.Time {
	until := chain[0].NotAfter
	for _, cert := range chain[1:] {
		if cert.NotAfter.Before(until) {
			until = cert.NotAfter
		}
	}
	return until
}

// ReplacedBy gives the authorities of next to a listener that was at its address before. So a certificate that
// next does not trust is not trusted on old connections either. Call it again after each change of next's.
func (l *Listener) ReplacedBy(next *Listener) {
	if l.tls == nil {
		return
	}
	old := l.tls.current.Load()
	if old.cas == nil {
		return
	}
	c := *old
	if c.cas = nil; next.tls != nil {
		c.cas = next.tls.current.Load().cas
	}
	c.conf = l.tls.config(&c)
	l.tls.current.Store(&c)
}

// failure is why a TLS connection has failed.
type failure uint8

const (
	certNone      failure = iota // no certificate, where one is required
	certUnknownCA                // not signed by an authority in client_ca
	certExpired                  // the certificate, or one between it and the authority, has expired
	certBad                      // not for clients, malformed, or faulty in another way
	certOutdated                 // valid when the connection began, but not now
	clientSlow
	clientGone
	handshakeOther // no TLS, no version or protocol in common
	numFailures
)

var failureNames = [numFailures]string{
	"no_certificate", "unknown_ca", "expired", "bad_certificate", "outdated", "timeout", "gone", "other",
}

// String is the name in metrics and logs.
func (f failure) String() string { return failureNames[f] }

// failures counts the handshakes that failed on a listener.
type failures [numFailures]atomic.Uint64

func (h *failures) add(f failure) { h[f].Add(1) }

// counts returns the counts, by name.
func (h *failures) counts() map[string]uint64 {
	all := make(map[string]uint64, numFailures)
	for f := range numFailures {
		all[f.String()] = h[f].Load()
	}
	return all
}

// handshakeEnded is called with a TLS connection that has ended. If its handshake had failed, a new call of
// Handshake returns the same error.
func (l *Listener) handshakeEnded(c *tls.Conn) {
	if err := c.HandshakeContext(context.Background()); err != nil {
		l.HandshakeFailed(c.RemoteAddr(), err)
	}
}

// HandshakeFailed counts a TLS handshake that has failed. It reports the failure if the certificate was the
// reason.
func (l *Listener) HandshakeFailed(from net.Addr, err error) {
	f := failureOf(err)
	l.failures.add(f)
	if f <= certBad {
		l.log.CertificateRefused(l.cfg.Address, f.String(), from, err)
	}
}

// failureOf returns the kind of failure. If crypto/tls has no type for an error, its text decides.
func failureOf(err error) failure {
	var verification *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	var timeout net.Error
	switch {
	case errors.As(err, &verification):
		switch {
		case errors.As(verification.Err, new(x509.UnknownAuthorityError)):
			return certUnknownCA
		case errors.As(verification.Err, &invalid) && invalid.Reason == x509.Expired:
			return certExpired
		}
		return certBad
	case errors.As(err, &timeout) && timeout.Timeout():
		return clientSlow
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return clientGone
	case strings.Contains(err.Error(), "client didn't provide a certificate"):
		return certNone
	case strings.Contains(err.Error(), "client certificate"), strings.Contains(err.Error(), "client sent certificate"):
		return certBad
	}
	return handshakeOther
}
