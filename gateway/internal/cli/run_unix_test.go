//go:build unix

package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// A signal to stop ends a gateway that waits for something before it serves, here for the rest of its file. The test starts
// itself again, because a signal is for a process.
func TestSignalBeforeTheStart(t *testing.T) {
	if file := os.Getenv("WEIR_TEST_RUN"); file != "" {
		_, _, err := run(NewRootCommand("test"), "", "run", file)
		t.Fatalf("the gateway has not waited: %v", err)
	}
	for range 3 { // a machine that stands still may be too late with the signal
		if signalEndsWait(t) {
			return
		}
	}
	t.Error("the signal did not end the gateway")
}

// signalEndsWait reports whether a signal ended a gateway before it was tired of waiting, which is after 5 s.
func signalEndsWait(t *testing.T) bool {
	t.Helper()
	name := filepath.Join(t.TempDir(), "weir.yaml")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(name, os.O_RDWR, 0) // with a reader, opening it does not wait
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	again := exec.Command(os.Args[0], "-test.run", "^TestSignalBeforeTheStart$")
	again.Env = append(os.Environ(), "WEIR_TEST_RUN="+name)
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = again.Wait() // ProcessState has the reason
	}()
	if err := pipe.SetWriteDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Write(bytes.Repeat([]byte("#\n"), 40<<10)); err != nil { // more than fits, so the gateway reads
		t.Fatal(err)
	}
	_ = again.Process.Signal(syscall.SIGTERM) // it may have ended
	<-ended
	return again.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM
}
