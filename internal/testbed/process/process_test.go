//go:build unix

package process

import (
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A process that ends before it is ready is no process that is still waited for, and what it
// printed is in the error. Its standard error goes to whoever wants it, too.
func TestEndedEarly(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo why; echo because >&2; exit 3")
	var warned strings.Builder
	cmd.Stderr = &warned
	p, err := Start("shell", cmd)
	if err != nil {
		t.Fatal(err)
	}
	err = p.Until(t.Context(), "serve", func() bool { return false })
	if err == nil || !strings.Contains(err.Error(), "shell ended by itself: exit status 3; it said:\n") || !strings.Contains(err.Error(), "why") || !strings.Contains(err.Error(), "because") {
		t.Errorf("it ended with %v", err)
	}
	if warned.String() != "because\n" {
		t.Errorf("its standard error was %q", warned.String())
	}
}

// What listens is found, and what is stopped is gone.
func TestStop(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := Start("sleep", exec.Command("sleep", "1000"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Listening(t.Context(), l.Addr().String()); err != nil {
		t.Error(err)
	}
	if err := p.Alive(); err != nil {
		t.Error(err)
	}
	p.Stop()
	p.Stop()
	if err := syscall.Kill(p.Pid(), 0); err != syscall.ESRCH {
		t.Errorf("process %d is left: %v", p.Pid(), err)
	}
	if err := p.Alive(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("stopped, it says %v", err)
	}
}

// A server ends with the program that has started it, also when nobody stops it.
func TestEndsWithItsProgram(t *testing.T) {
	const child = "PROCESS_TEST_CHILD"
	if os.Getenv(child) != "" {
		server := exec.Command("sleep", "600")
		server.Stdout = os.Stdout
		if _, err := Start("sleep", server); err != nil {
			t.Fatal(err)
		}
		os.Exit(7)
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends it")
	}
	ours, theirs, err := os.Pipe() // it ends when all that have the other end have ended
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	program := exec.Command(os.Args[0], "-test.run=^TestEndsWithItsProgram$")
	program.Env, program.Stdout = append(os.Environ(), child+"=1"), theirs
	err = program.Run()
	theirs.Close()
	if program.ProcessState.ExitCode() != 7 {
		t.Fatalf("the program: %v", err)
	}
	if err := ours.SetReadDeadline(time.Now().Add(Within)); err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(ours); err != nil {
		t.Errorf("the server still runs: %v; the program said %q", err, said)
	}
}
