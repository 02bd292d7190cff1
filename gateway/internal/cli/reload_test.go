package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// reloadable runs a gateway with a file until the test ends.
type reloadable struct {
	file, text, admin, token string
	signals                  chan os.Signal
	log                      *os.File
}

func startReloadable(t *testing.T) *reloadable {
	t.Helper()
	g := &reloadable{admin: freeAddr(t), token: write(t, "token", "0123456789abcdef\n"), signals: make(chan os.Signal)}
	g.text = "upstreams: {app: {targets: [\"http://127.0.0.1:1\"]}}\n" +
		"listeners: [{address: \"" + freeAddr(t) + "\"}]\nadmin: {address: \"" + g.admin + "\", token_file: \"" + g.token + "\"}\n" +
		"gates: {api: {limit: {limit: 3}}}\nroutes: [{match: [/], gates: [api], upstream: app}]\n" +
		"shutdown: {lame_duck: 0s}\n"
	g.file = write(t, "weir.yaml", g.text)
	g.run(t, runOptions{File: g.file, Signals: g.signals})
	return g
}

// run runs a gateway until the test ends, once it answers.
func (g *reloadable) run(t *testing.T, o runOptions) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	g.log = logFile(t)
	o.LogTo, o.Version = g.log, "test"
	go func() { ended <- runGateway(ctx, o) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	await.That(t, "it answers", func() bool {
		res, err := http.Get("http://" + g.admin + "/readyz")
		if err == nil {
			res.Body.Close()
		}
		return err == nil
	})
}

// save writes the file anew, with a line replaced.
func (g *reloadable) save(t *testing.T, old, now string) {
	t.Helper()
	g.text = strings.Replace(g.text, old, now, 1)
	if err := os.WriteFile(g.file, []byte(g.text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReload(t *testing.T) {
	g := startReloadable(t)
	reload := func(want string, ok bool, args ...string) {
		t.Helper()
		out, _, err := run(NewReloadCommand(), "", append([]string{"--admin", g.admin}, args...)...)
		if err != nil {
			out += err.Error()
		}
		if !strings.Contains(out, want) || (err == nil) != ok {
			t.Errorf("reload %v: %s, want %q", args, out, want)
		}
	}
	token := []string{"--token-file", g.token}
	reload("reloaded "+g.file+"; nothing in it has changed\n", true, token...)
	g.save(t, "limit: 3", "limit: 7")
	// The gateway may have seen the change by itself, which is said in other words.
	reload("  gates.api.limit.limit: 7 (was 3)\n", true, token...)
	g.save(t, "limit: 7", "limit: many")
	reload("the configuration in force stays:\n"+g.file+":4:", false, token...)
	g.save(t, "limit: many", "limit: 7")
	reload("changed since ", true, token...)
	reload(fmt.Sprintf("weir reload --pid %d on the gateway's machine", os.Getpid()), false)
}

// By a signal, it says what became of it if it can know.
func TestReloadBySignal(t *testing.T) {
	g := startReloadable(t)
	out := new(strings.Builder)
	o := reloadOptions{Admin: g.admin, PID: os.Getpid(), Answer: await.Patience, Wait: await.Patience, Out: out}
	o.Signal = func(int) error { g.signals <- syscall.SIGHUP; return nil }
	g.save(t, "limit: 3", "limit: 7")
	if err := runReload(t.Context(), o); err != nil || !strings.Contains(out.String(), "gates.api.limit.limit: 7 (was 3)") {
		t.Errorf("%v %s", err, out)
	}
	out.Reset()
	stranger := exec.Command("sleep", "600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	o.PID = stranger.Process.Pid
	if _, err := os.Stat("/proc/self/comm"); err == nil {
		// The name of a process is that of its parent until it has begun.
		await.That(t, "a process that is no weir is left alone", func() bool {
			name, stranger := strangeProcess(o.PID)
			return stranger && name == "sleep"
		})
		signal := o.Signal
		o.Signal = func(int) error { t.Error("a signal was sent"); return nil }
		if err := runReload(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is sleep, and no weir") {
			t.Errorf("%v", err)
		}
		o.Signal = signal
	}
	o.PID = 1 << 30 // none: a stand-in for a weir elsewhere, whose name nobody knows
	if err := runReload(t.Context(), o); err != nil || !strings.Contains(out.String(), fmt.Sprintf("its log says what became of it (the gateway at %s is process %d)", o.Admin, os.Getpid())) {
		t.Errorf("%v %s", err, out)
	}
	o.Signal = func(int) error { return errors.New("not permitted") }
	if err := runReload(t.Context(), o); err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("%v", err)
	}
}

// The format of the log changes with the file, also for loggers that were made before.
func TestReloadLogFormat(t *testing.T) {
	g := startReloadable(t)
	g.save(t, "shutdown:", "log: {format: text, level: debug}\nshutdown:")
	says := func(text string) bool { return strings.Contains(logged(t, g.log), text) }
	g.signals <- syscall.SIGHUP
	await.That(t, "the log is text", func() bool { return says(`level=INFO msg="configuration reloaded"`) })
	g.save(t, "format: text", "format: auto")
	g.signals <- syscall.SIGHUP
	await.That(t, "the log is JSON again", func() bool { return says(`"level":"INFO","msg":"configuration reloaded"`) })
}

func TestReloadWithoutFile(t *testing.T) {
	g := &reloadable{admin: freeAddr(t)}
	g.run(t, runOptions{Upstream: "http://127.0.0.1:1", Listen: freeAddr(t), Admin: g.admin})
	o := reloadOptions{Admin: g.admin, PID: os.Getpid(), Answer: await.Patience, Wait: await.Patience}
	o.Signal = func(int) error { t.Error("a signal was sent"); return nil }
	for _, pid := range []int{o.PID, 0} {
		o.PID = pid
		if err := runReload(t.Context(), o); err == nil || !strings.Contains(err.Error(), "without a configuration file") {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

func TestReloadMistakes(t *testing.T) {
	silent := httptest.NewServer(http.NotFoundHandler())
	defer silent.Close()
	f := func(code int, want string, args ...string) {
		t.Helper()
		_, _, err := run(NewReloadCommand(), "", args...)
		got := exitError
		if exit := (*ExitError)(nil); errors.As(err, &exit) {
			got = exit.Code
		}
		if err == nil || got != code || !strings.Contains(err.Error(), want) {
			t.Errorf("reload %v: code %d, %v; want code %d and %q", args, got, err, code, want)
		}
	}
	f(2, "--pid 0 is not the number of a process", "--pid=0")
	f(2, "leave --token-file out", "--pid=1", "--token-file=x")
	f(2, "no such file", "--token-file=none")
	f(2, "does not hold one token", "--token-file=/dev/zero")
	f(2, "too many arguments", "weir.yaml")
	f(1, "weir reload --pid sends a signal", "--admin=127.0.0.1:1")
	f(1, "as new as this weir?", "--admin="+silent.Listener.Addr().String())
}

// Only a fault makes it wait so long, also where the gateway never reloads.
func TestReloadGivesUp(t *testing.T) {
	g := startReloadable(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	o := reloadOptions{Admin: g.admin, PID: os.Getpid(), Answer: await.Patience, Wait: 100 * time.Millisecond, Out: new(strings.Builder)}
	o.Signal = func(int) error { return nil }
	err := runReload(ctx, o)
	if err == nil {
		t.Error("a signal that nobody has got is reported as a reload")
	}
}

// What takes connections and never answers is given up long before a reload would be, and so is a gateway that
// does not come to an end.
func TestReloadWithoutAnswer(t *testing.T) {
	for _, test := range []struct {
		silent       string // the method that gets no answer
		answer, wait time.Duration
		want         string
	}{
		{http.MethodGet, 100 * time.Millisecond, time.Hour, "there was no whole answer within"},
		{http.MethodPost, time.Hour, 100 * time.Millisecond, "has not reloaded within 100ms, and may still do so"},
	} {
		ended := make(chan struct{})
		var reached atomic.Bool // the request that gets no answer
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == test.silent {
				reached.Store(true)
				<-ended
			}
			_, _ = w.Write([]byte(`{"pid": 1}`))
		}))
		o := reloadOptions{Admin: s.URL, Answer: test.answer, Wait: test.wait, Out: new(strings.Builder)}
		var err error
		for within := test.wait; ; within *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			err = runReload(ctx, o)
			if cancel(); reached.Load() || within > await.Patience { // else a busy machine has not come so far
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s is not answered: %v, want %q", test.silent, err, test.want)
		}
		close(ended)
		s.Close()
	}
}
