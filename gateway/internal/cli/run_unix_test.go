//go:build unix

package cli

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
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

// A log that nobody reads holds up no request, no reload and no shutdown, and a second signal still ends the gateway at once.
func TestNobodyReadsTheLog(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			close(arrived)
			<-release
		}
	}))
	defer up.Close()
	defer close(release)
	unread, log, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	defer unread.Close()
	fill(t, log)

	addr, admin := freeAddr(t), freeAddr(t)
	file := write(t, "weir.yaml", "upstreams: {app: {targets: [\""+up.URL+"\"]}}\nlisteners: [{address: \""+addr+"\"}]\nadmin: {address: \""+admin+"\"}\n"+
		"gates: {api: {limit: 3}}\nroutes: [{match: [/], gates: [api], upstream: app}]\nshutdown: {lame_duck: 0s, grace: 1h}\n")
	signals, ended := make(chan os.Signal), make(chan error, 1)
	go func() {
		ended <- runGateway(t.Context(), runOptions{File: file, LogTo: log, Signals: signals, Version: "test"})
	}()
	ask := func(url string) bool {
		res, err := http.Get(url)
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	}
	await.That(t, "it serves", func() bool { return ask("http://" + addr) })
	signals <- syscall.SIGHUP
	if !ask("http://" + admin + "/gates") {
		t.Error("no answer after a reload")
	}
	go ask("http://" + addr + "/hold")
	<-arrived
	await.That(t, "signals end it", func() bool {
		select {
		case signals <- syscall.SIGTERM: // those that follow the first too soon count as one
			return false
		case err = <-ended:
			return true
		}
	})
	if exit := new(ExitError); !errors.As(err, &exit) || exit.Code != exitError || exit.Err != nil {
		t.Errorf("ended with %v; want the exit code alone, because nobody reads more", err)
	}
}

// fill fills a pipe.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	raw, err := pipe.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	some := make([]byte, 1<<10)
	err = raw.Write(func(fd uintptr) bool {
		for err == nil {
			_, err = syscall.Write(int(fd), some)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
}
