package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Each file of the gateway in the docs passes weir check as it is pasted. A comment before a
// block says what else it is: <!-- fragment --> is completed first, and <!-- not weir: WHAT -->
// is a file of another program.
func TestFilesOfTheDocs(t *testing.T) {
	t.Setenv("QUOTA_PASSWORD", "secret")
	dir := t.TempDir()
	certificate(t, dir)
	checked := 0
	err := filepath.WalkDir("../../../docs", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range files.FindAllStringSubmatch(string(text), -1) {
			mark, block := m[1], m[3]
			if m[2] != "" { // in a list
				block = strings.ReplaceAll("\n"+block, "\n"+m[2], "\n")
			}
			switch {
			case mark == "fragment":
				block = complete(block)
			case strings.HasPrefix(mark, "not weir: "):
				continue
			case mark != "":
				t.Errorf("%s: a block is marked %q, which this test does not know", path, mark)
			}
			checked++
			block = packaged.ReplaceAllString(block, dir+"/") // directories that the packages make
			file := filepath.Join(dir, "weir.yaml")
			if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
				return err
			}
			if out, errs, err := run(NewRootCommand("test"), "", "check", file); err != nil {
				t.Errorf("%s: weir check says\n%s%s%v\nof\n%s", path, out, errs, err, block)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 30 {
		t.Errorf("only %d files found", checked)
	}
}

var files = regexp.MustCompile("(?ms)(?:^ *<!-- ([^\n]*) -->\n)?^( *)```yaml\n(.*?)^ *```")

var packaged = regexp.MustCompile(`/(?:etc|run|var/lib|var/log)/weir/`)

// complete adds to a part of a file what every file needs.
func complete(part string) string {
	for _, line := range []string{
		"routes: [{match: [/], upstream: app}]", "gates: {all: {limit: {}}}", "upstreams: {app: {targets: [http://127.0.0.1:3000]}}",
	} {
		if key, _, _ := strings.Cut(line, " "); !strings.HasPrefix(part, key) && !strings.Contains(part, "\n"+key) {
			part = line + "\n" + part
		}
	}
	return part
}

// certificate writes the files of certificates that the docs name.
func certificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "docs"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]pem.Block{
		"server.pem": {Type: "CERTIFICATE", Bytes: der}, "server.crt": {Type: "CERTIFICATE", Bytes: der}, "clients.pem": {Type: "CERTIFICATE", Bytes: der}, "server.key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
