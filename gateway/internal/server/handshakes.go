package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
)

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
