package config

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/fault"
)

// certificate checks that the files of a certificate are there and belong
// together, and that clients' authorities can be read.
func (m *meaning) certificate(path fault.Path, t *TLS) {
	ok := true
	for _, f := range []struct {
		name string
		file *string
	}{{"cert", &t.Cert}, {"key", &t.Key}} {
		ok = m.pemFile(path.At(f.name), f.file) && ok
	}
	m.clientCA(path, t)
	if ok {
		m.keyPair(path, t.Cert, t.Key)
	}
}

// keyPair checks two files that can be read, whatever faults stand beside them.
func (m *meaning) keyPair(path fault.Path, cert, key string) {
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil && !m.Wrong(path) {
		m.Add(path, fmt.Sprintf("certificate and key cannot be used: %v", err), "name the PEM files of one certificate and its key")
	}
}

// expiresSoon is how long before a certificate expires its owner should hear of it.
const expiresSoon = 7 * 24 * time.Hour

// expiryNotes is about listeners' own certificates that clients refuse, or will soon.
func (w *warner) expiryNotes() {
	for i, l := range w.Listeners {
		w.expiryNote(fault.Path{"listeners"}.Index(i).At("tls", "cert"), l.TLS)
	}
	for _, name := range slices.Sorted(maps.Keys(w.Kafka)) {
		if listen := w.Kafka[name].Listen; listen != nil {
			w.expiryNote(fault.Path{"kafka", name, "listen", "tls", "cert"}, listen.TLS)
		}
	}
}

func (w *warner) expiryNote(at fault.Path, t *TLS) {
	if t == nil {
		return
	}
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return // it was good a moment ago
	}
	switch left := time.Until(cert.Leaf.NotAfter); {
	case left <= 0:
		w.warn(at, "the certificate has expired on %s: clients refuse it", cert.Leaf.NotAfter.Format(time.DateOnly))
	case left < expiresSoon:
		w.remark(at, "the certificate expires on %s; put a new one in the place of its files, and it is read within a second", cert.Leaf.NotAfter.Format(time.DateOnly))
	}
}

// pemFile makes the name of a file absolute and reports whether it can be read.
func (m *meaning) pemFile(path fault.Path, file *string) bool {
	if m.Wrong(path) {
		return false
	}
	*file = m.resolve(*file)
	if problem := unreadable(*file); problem != "" {
		m.report(path, "write the name of a PEM file, relative to this file", "%s", problem)
		return false
	}
	return true
}

// clientCA checks the authorities that vouch for clients.
func (m *meaning) clientCA(path fault.Path, t *TLS) {
	if t.ClientCA == "" {
		if m.root.Has(path.At("client_auth")) {
			m.report(path.At("client_auth"), "write client_ca, the PEM file with the authorities, or remove client_auth",
				"asks for certificates, but no client_ca says whose")
		}
		return
	}
	at := path.At("client_ca")
	if !m.pemFile(at, &t.ClientCA) {
		return
	}
	data, err := os.ReadFile(t.ClientCA)
	if err == nil {
		_, err = ParseCAs(data)
	}
	if err != nil {
		m.report(at, "name a PEM file with the certificates of the authorities that vouch for clients", "cannot be used: %v", err)
	}
}

// ParseCAs returns the certificates in a PEM file. It takes nothing but
// certificates, and at least one: what is passed over in silence would be missed
// when the file is rotated.
func ParseCAs(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		block, rest := pem.Decode(data)
		switch {
		case block == nil && bytes.Contains(rest, []byte("-----BEGIN")):
			return nil, fmt.Errorf("after %d certificates there is a block that is not PEM", len(certs))
		case block == nil && len(certs) == 0:
			return nil, errors.New("there is no certificate in it")
		case block == nil:
			return certs, nil
		case block.Type != "CERTIFICATE":
			return nil, fmt.Errorf("there is a %.40q in it", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
		data = rest
	}
}
