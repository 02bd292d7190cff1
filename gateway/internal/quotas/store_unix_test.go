//go:build unix

package quotas

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/policy"
)

// What is no file is said so at once. To open a pipe would wait for a writer, and
// whoever changes rules for that.
func TestFileIsNoFile(t *testing.T) {
	f := newFile(t, inTemp(t))
	for name, err := range map[string]error{
		"pipe":   syscall.Mkfifo(f.Name()+".pipe", 0o600),
		"device": os.Symlink("/dev/zero", f.Name()+".device"),
	} {
		if err := errors.Join(err, os.Rename(f.Name()+"."+name, f.Name())); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("a %s: %v", name, err)
		}
		if err := f.Write(t.Context(), tag(nil), []byte("x")); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("over a %s: %v", name, err)
		}
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if err := f.Write(t.Context(), tag(nil), []byte("x")); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(f.Name()))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v %v: want the file and its lock", entries, err)
	}
}

// Who has which quota is nobody else's business on the machine.
func TestFileIsPrivate(t *testing.T) {
	name := inTemp(t)
	newDesk(t, newFile(t, name), base()).must(set("api", "bob", "3/h"))
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("the rules have mode %o, want 600", mode)
	}
}

// writerEnv names the file in which a process of this test sets rules until it is killed.
const writerEnv = "WEIR_QUOTAS_TEST_WRITER"

func TestMain(m *testing.M) {
	if name := os.Getenv(writerEnv); name != "" {
		fmt.Fprintln(os.Stderr, setForever(name))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// setForever sets one rule after the other, and prints the number of each once it is
// kept. Each makes the file larger, or smaller by far.
func setForever(name string) error {
	file, err := OpenFile(name)
	if err != nil {
		return err
	}
	book, err := Open(context.Background(), Options{Store: file, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	plan := book.Plan(base(), nowhere, nil)
	p, err := policy.Compile(base(), policy.Options{QuotaRules: plan.Rules})
	if err != nil {
		return err
	}
	book.SetPolicy(plan, p)
	for n := book.saved.doc.Revision + 1; ; n++ {
		ops := []Op{{Gate: "other", Set: user("last", fmt.Sprint(n, "/h"))}}
		for i := range 40 {
			ops = append(ops, Op{Gate: "api", Set: user(fmt.Sprintf("u-%d-%d", n, i), "1/h")})
		}
		if n%5 == 0 {
			ops = []Op{ops[0], {Gate: "api", Clear: true}}
		}
		if _, err := book.Change(context.Background(), Change{Ops: ops}); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// A gateway that is killed while it writes leaves the rules as they were before a write or
// after it, and none that it has said is kept is lost. Others can open the file at once.
func TestKilledWhileWriting(t *testing.T) {
	name := inTemp(t)
	const kills = 15
	said := uint64(0)
	for kill := range kills {
		said = killWriter(t, name, kill, said)
		file, err := OpenFile(name)
		if err != nil {
			t.Fatalf("kill %d: %v", kill, err)
		}
		k, err := Read(t.Context(), file, false)
		if err != nil {
			t.Fatalf("kill %d: %v", kill, err)
		}
		last := k.doc.find(identity{"other", user("last", "").Pattern()})
		if last == nil {
			t.Fatalf("kill %d: %d rules, and not the one that each write sets", kill, k.Len())
		}
		if k.doc.Revision < said || k.doc.Revision > said+1 || last.Rate != fmt.Sprint(k.doc.Revision, "/h") {
			t.Fatalf("kill %d: revision %d with %s, the last that was said to be kept is %d", kill, k.doc.Revision, last.Rate, said)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(name))
	if err != nil || len(entries) > 3 {
		t.Errorf("%v %v: want the file, its lock, and one that was not finished at most", entries, err)
	}
}

// killWriter starts a process that sets rules and kills it a moment after it has said that
// some are kept. It returns the last that it has said, or what was said before.
func killWriter(t *testing.T, name string, kill int, said uint64) uint64 {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writerEnv+"="+name)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var end *time.Timer
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if said, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
			t.Errorf("%q: %v", lines.Text(), err)
		}
		if end == nil { // at another moment each time: somewhere in one of the next writes
			end = time.AfterFunc(time.Duration(kill)*500*time.Microsecond, func() { _ = cmd.Process.Kill() })
		}
	}
	if end == nil {
		t.Fatalf("the writer ended by itself: %s", &errs)
	}
	end.Stop()
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	return said
}
