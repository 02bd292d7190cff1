package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"
)

// A machine without certificates of authorities, such as the container image, can check those of upstreams.
// The system's are read when the program starts, so the test starts itself again.
func TestRootsWithoutSystem(t *testing.T) {
	if os.Getenv("SSL_CERT_FILE") == "/nowhere" {
		roots, err := x509.SystemCertPool()
		if err != nil {
			t.Fatal(err)
		}
		if roots.Equal(x509.NewCertPool()) {
			t.Fatal("there are no roots")
		}
		return
	}
	again := exec.Command(os.Args[0], "-test.run", "^TestRootsWithoutSystem$", "-test.v")
	again.Env = append(os.Environ(), "SSL_CERT_FILE=/nowhere", "SSL_CERT_DIR=/nowhere")
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
