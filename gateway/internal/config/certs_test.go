package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// What is wrong with the file of authorities is said where it is named.
func TestClientCAFaults(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty.pem": "", "text.pem": "hello",
		"broken.pem":  "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
		"half.pem":    "-----BEGIN CERTIFICATE-----\nAAAA\n",
		"private.pem": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const remedy = "; name a PEM file with the certificates of the authorities that vouch for clients"
	for tls, want := range map[string]string{
		"client_ca: none.pem":    "client_ca: there is no file",
		"client_ca: empty.pem":   "client_ca: cannot be used: there is no certificate in it" + remedy,
		"client_ca: text.pem":    "client_ca: cannot be used: there is no certificate in it" + remedy,
		"client_ca: broken.pem":  "client_ca: cannot be used: certificate 1: x509:",
		"client_ca: half.pem":    "client_ca: cannot be used: after 0 certificates there is a block that is no PEM" + remedy,
		"client_ca: private.pem": `client_ca: cannot be used: there is a "PRIVATE KEY" in it` + remedy,
		"client_auth: optional":  "client_auth: asks for certificates, but no client_ca says whose; write client_ca",
		"client_auth: maybe":     "client_auth: \"maybe\" is not known; write one of: require, optional",
	} {
		_, err := config.Parse(filepath.Join(dir, "weir.yaml"), []byte("listeners: [{address: \":8443\", tls: {cert: a, key: b, "+tls+"}}]\n"+
			"upstreams: {app: {targets: [http://a]}}\nroutes: [{match: [/], upstream: app}]\n"))
		if err == nil || !strings.Contains(err.Error(), "listeners[0].tls."+want) {
			t.Errorf("%s: got\n%v\nwant %s", tls, err, want)
		}
	}
}

func TestCertNotes(t *testing.T) {
	plain := config.Listener{Address: ":8080"}
	asks := config.Listener{Address: ":8443", TLS: &config.TLS{ClientCA: "ca"}}
	mayAsk := config.Listener{Address: ":8443", TLS: &config.TLS{ClientCA: "ca", ClientAuth: config.ClientOptional}}
	for _, tt := range []struct {
		listener config.Listener
		user     string
		trusted  []string
		want     string
	}{
		{plain, "cert:uri", nil, "identity.user comes from client certificates, but no listener has"},
		{plain, "", []string{"any"}, "identity.trusted_certs names client certificates, but no listener has"},
		{asks, "cert:uri", []string{"any"}, ""},
		{asks, "", nil, ""},
		{mayAsk, "header:X-User", nil, "a listener has client_auth: optional, but identity reads nothing"},
		{mayAsk, "cert:cn", nil, ""},
	} {
		c := config.Config{Listeners: []config.Listener{tt.listener}}
		c.Identity.User, c.Identity.TrustedCerts = tt.user, tt.trusted
		c.Admin.Address = config.Off
		if notes := strings.Join(c.Notes(), "\n"); !strings.HasPrefix(notes, tt.want) || tt.want == "" && notes != "" {
			t.Errorf("user %q, trusted %v: %q, want %q", tt.user, tt.trusted, notes, tt.want)
		}
	}
}
