package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/proxy"
)

// credentials are what TLS goes by on a listener: its own certificate, and whose
// certificates it takes from clients. A reload puts others in their place.
type credentials struct {
	cert *tls.Certificate
	cas  *clientCAs // nil if clients are not asked
	conf *tls.Config
}

// clientCAs are the authorities that vouch for clients. Two with the same content
// are one and the same, so that a pointer tells whether anything has changed.
type clientCAs struct {
	pool    *x509.CertPool
	sum     [sha256.Size]byte
	expired []string // subjects of those that vouch for nobody any more
}

// readCAs reads a PEM file. What is in it is all used, or nothing is.
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
			cas.expired = append(cas.expired, clip(cert.Subject.String()))
		}
	}
	return cas, nil
}

// loadCredentials reads the files of listeners again. On an error those before stay.
func (s *Server) loadCredentials(ls ...*listener) error {
	for _, l := range ls {
		before := l.creds.Load()
		if err := l.loadCredentials(); err != nil {
			return err
		}
		if c := l.creds.Load(); c != nil && c.cas != nil && (before == nil || before.cas != c.cas) {
			for _, subject := range c.cas.expired {
				s.log.Warn("an authority in client_ca has expired and vouches for nobody", "listener", l.cfg.Address, "subject", subject)
			}
		}
	}
	return nil
}

func (l *listener) loadCredentials() error {
	if l.cfg.TLS == nil {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(l.cfg.TLS.Cert, l.cfg.TLS.Key)
	if err != nil {
		return fmt.Errorf("certificate of listener %s: %w", l.cfg.Address, err)
	}
	c := &credentials{cert: &cert}
	if l.cfg.TLS.ClientCA != "" {
		if c.cas, err = readCAs(l.cfg.TLS.ClientCA); err != nil {
			return fmt.Errorf("client_ca of listener %s: %w", l.cfg.Address, err)
		}
		if old := l.creds.Load(); old != nil && old.cas != nil && old.cas.sum == c.cas.sum {
			c.cas = old.cas
		}
	}
	c.conf = l.tlsConfig(c)
	l.creds.Store(c)
	return nil
}

// tlsConfig is what a handshake goes by. Its session tickets are sealed with the
// keys of the server's own Config, so they outlast a reload; crypto/tls takes one
// only if its chain has not expired and still ends at one of ClientCAs.
func (l *listener) tlsConfig(c *credentials) *tls.Config {
	conf := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{*c.cert},
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if c.cas != nil {
		conf.ClientCAs = c.cas.pool
		conf.ClientAuth = tls.RequireAndVerifyClientCert
		if l.cfg.TLS.ClientAuth == config.ClientOptional {
			conf.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	return conf
}

// vouched is what is known of the certificate that a connection's client has shown.
type vouched struct {
	by    *clientCAs
	until time.Time // zero: not looked at since the handshake
}

type vouchedKey struct{}

// connContext is an http.Server.ConnContext.
func (l *listener) connContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, vouchedKey{}, new(atomic.Pointer[vouched]))
}

// configForClient is a tls.Config.GetConfigForClient. It notes which authorities
// the handshake goes by.
func (l *listener) configForClient(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	c := l.creds.Load()
	if v, ok := hello.Context().Value(vouchedKey{}).(*atomic.Pointer[vouched]); ok {
		v.Store(&vouched{by: c.cas})
	}
	return c.conf, nil
}

// holds reports whether the certificate that a request's connection began with is
// still good. Connections last for days: meanwhile it can expire, and a reload take
// away its authority.
func (l *listener) holds(r *http.Request, now time.Time) bool {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return true // nobody has claimed anything
	}
	known, ok := r.Context().Value(vouchedKey{}).(*atomic.Pointer[vouched])
	cas := l.creds.Load().cas
	if !ok || cas == nil {
		return false
	}
	v := known.Load()
	if v != nil && v.by == cas {
		if v.until.IsZero() {
			v = &vouched{cas, expiry(r.TLS.VerifiedChains[0])}
			known.Store(v)
		}
		if now.Before(v.until) {
			return true
		}
	}
	chain, err := cas.verify(r.TLS.PeerCertificates, now)
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

// succeed gives a listener that is going away the authorities of the one that takes
// its place: what those do not vouch for is not believed on old connections either.
func (l *listener) succeed(next *listener) {
	old := l.creds.Load()
	if old == nil || old.cas == nil {
		return
	}
	c := *old
	if c.cas = nil; next.creds.Load() != nil {
		c.cas = next.creds.Load().cas
	}
	c.conf = l.tlsConfig(&c)
	l.creds.Store(&c)
}

// certHeaders are those in which TLS servers tell what clients have shown, by RFC 9440
// and by custom: Envoy's, and what nginx is usually told to set. From anybody who is
// not trusted they are taken out.
var certHeaders = []string{
	"Client-Cert", "Client-Cert-Chain", "X-Forwarded-Client-Cert", "X-Client-Cert", "X-Ssl-Cert", "Ssl-Client-Cert",
	"X-Ssl-Client-Cert", "X-Ssl-Client-Verify", "X-Ssl-Client-S-Dn", "X-Ssl-Client-Dn", "X-Ssl-Client-Cn",
	"X-Client-Verify", "X-Client-Dn", "Ssl-Client-Verify", "Ssl-Client-S-Dn",
}

// outdated answers a request on a connection whose certificate holds no more. 421
// tells the client to try on another connection (RFC 9110, 15.5.20), on which it
// may show another certificate.
func (e *entrance) outdated(w http.ResponseWriter) {
	e.listener.handshakes.add(clientOutdated)
	e.bound(w)
	w.Header().Set("Connection", "close")
	proxy.WriteProblem(w, proxy.Problem{
		Title: http.StatusText(http.StatusMisdirectedRequest), Status: http.StatusMisdirectedRequest,
		Detail: "the client certificate of this connection has expired, or its authority is trusted no more; connect anew",
	})
}

// handshakeFault is why a TLS connection came to nothing.
type handshakeFault uint8

const (
	clientNone      handshakeFault = iota // no certificate, where one is required
	clientUnknownCA                       // signed by nobody in client_ca
	clientExpired                         // it, or one between it and the authority
	clientBad                             // not for clients, malformed, or another fault
	clientOutdated                        // was good when the connection began
	clientSlow
	clientGone
	clientOther // no TLS, no version or protocol in common
	numHandshakeFaults
)

var handshakeWords = [numHandshakeFaults]string{
	"no_certificate", "unknown_ca", "expired", "bad_certificate", "outdated", "timeout", "gone", "other",
}

// String is the word in metrics and logs.
func (f handshakeFault) String() string { return handshakeWords[f] }

// handshakes counts those that failed on a listener. Listeners at one address that
// follow each other share it.
type handshakes struct {
	failed [numHandshakeFaults]atomic.Uint64
}

func (h *handshakes) add(f handshakeFault) { h.failed[f].Add(1) }

// counts returns all of them, by word.
func (h *handshakes) counts() map[string]uint64 {
	all := make(map[string]uint64, numHandshakeFaults)
	for f := range numHandshakeFaults {
		all[f.String()] = h.failed[f].Load()
	}
	return all
}

// handshakeFaultOf tells the ways to fail apart. Those that crypto/tls has no type for
// are known by their text.
func handshakeFaultOf(err error) handshakeFault {
	var verification *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	var timeout net.Error
	switch {
	case errors.As(err, &verification):
		switch {
		case errors.As(verification.Err, new(x509.UnknownAuthorityError)):
			return clientUnknownCA
		case errors.As(verification.Err, &invalid) && invalid.Reason == x509.Expired:
			return clientExpired
		}
		return clientBad
	case errors.As(err, &timeout) && timeout.Timeout():
		return clientSlow
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return clientGone
	case strings.Contains(err.Error(), "client didn't provide a certificate"):
		return clientNone
	case strings.Contains(err.Error(), "client certificate"), strings.Contains(err.Error(), "client sent certificate"):
		return clientBad
	}
	return clientOther
}

// handshakeEnded looks at a TLS connection that has ended. If its handshake has failed, asking
// for it again returns the error of that time.
func (s *Server) handshakeEnded(l *listener, c *tls.Conn) {
	err := c.HandshakeContext(context.Background())
	if err == nil {
		return
	}
	fault := handshakeFaultOf(err)
	l.handshakes.add(fault)
	if fault <= clientBad {
		s.notes.handshake(l.cfg.Address, fault, c.RemoteAddr(), err)
	}
}

// strangerAttrs is what there is to say of a certificate that was refused. What is in
// it is the client's, so it is cut short.
func strangerAttrs(peer net.Addr, err error) []slog.Attr {
	attrs := []slog.Attr{slog.String("peer", peer.String())}
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) && len(verification.UnverifiedCertificates) > 0 {
		cert := verification.UnverifiedCertificates[0]
		attrs = append(attrs, slog.String("subject", clip(cert.Subject.String())), slog.String("issuer", clip(cert.Issuer.String())))
		err = verification.Err
	}
	return append(attrs, slog.String("error", clip(err.Error())))
}

// clip bounds a text that others chose.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
