package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/admin"
)

// reloadOptions are the settings of weir reload.
type reloadOptions struct {
	Admin     string
	TokenFile string
	PID       int // 0: over the admin listener
	Signal    func(pid int) error
	Answer    time.Duration // for what a gateway answers at once
	Wait      time.Duration // for the end of a reload
	Out       io.Writer
}

// reloadPatience is how long weir reload waits: a reload may connect to stores.
const reloadPatience = 30 * time.Second

// NewReloadCommand returns weir reload.
func NewReloadCommand() *cobra.Command {
	o := reloadOptions{Signal: hangUp, Answer: patience, Wait: reloadPatience}
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have a running gateway read its configuration again, and show what changed",
		Long: `Reload has a gateway read its configuration file again. It prints what changed, or every
fault of the file. With a fault nothing changes: the configuration in force stays. No
request is lost either way, but for a few uploads over HTTP/2 when the settings of their
listener change. A gateway also reloads by itself when its file changes.

It asks the gateway over its admin socket (--admin unix:/run/weir/admin.sock), or over
its admin listener with the gateway's token (--token-file). A gateway with neither can be
sent a signal: --pid 1234 sends SIGHUP to that process on this machine. What became of it
is then read from the admin listener, if that belongs to the process.

The exit code is 0 if the file is in force, and 1 if it was refused or no gateway answers.
It is 2 if the command line is wrong.`,
		Example: "  weir reload --admin unix:/run/weir/admin.sock\n  weir reload --token-file /etc/weir/admin.token\n  weir reload --pid 1234",
		Args:    needs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := emptyFlag(cmd); err != nil {
				return err
			}
			switch bySignal := cmd.Flags().Changed("pid"); {
			case bySignal && o.PID < 1:
				return usage("--pid %d is not the number of a process; write the number of the gateway's, for instance 1234", o.PID)
			case bySignal && o.TokenFile != "":
				return usage("--pid sends a signal, which needs no token; leave --token-file out")
			}
			o.Out = cmd.OutOrStdout()
			ctx, cancel := context.WithTimeout(cmd.Context(), o.Wait)
			defer cancel()
			return runReload(ctx, o)
		},
	}
	adminFlag(cmd, &o.Admin)
	cmd.Flags().StringVar(&o.TokenFile, "token-file", "", "file with the gateway's token")
	cmd.Flags().IntVar(&o.PID, "pid", 0, "process to send SIGHUP to, in place of a request to the admin listener")
	return cmd
}

func runReload(ctx context.Context, o reloadOptions) error {
	if o.PID != 0 {
		return o.bySignal(ctx)
	}
	header, err := tokenHeader(o.TokenFile)
	if err != nil {
		return err
	}
	// A gateway answers this at once. What does not is not worth the wait for a reload.
	before, err := o.last(ctx)
	if err != nil {
		return fmt.Errorf("%w; weir reload --pid sends a signal instead", err)
	}
	res, err := askAdmin(ctx, o.Admin, http.MethodPost, "/reload", header, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the gateway at %s has not reloaded within %v, and may still do so; its log says what becomes of it", o.Admin, o.Wait)
	}
	if err != nil {
		return fmt.Errorf("%w; weir reload --pid sends a signal instead", err)
	}
	switch res.StatusCode {
	case http.StatusOK, http.StatusUnprocessableEntity:
		var done admin.Reload
		if err := res.decode(&done, "pid"); err != nil {
			return err
		}
		return o.print(&done)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w; without them, weir reload --pid %d on the gateway's machine sends a signal", res.problem(), before.PID)
	}
	return res.problem()
}

// last asks what became of the last reload.
func (o *reloadOptions) last(ctx context.Context) (*admin.Reload, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Answer)
	defer cancel()
	res, err := askAdmin(ctx, o.Admin, http.MethodGet, "/reload", nil, nil)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, res.problem()
	}
	last := new(admin.Reload)
	return last, res.decode(last, "pid")
}

// bySignal sends SIGHUP, and asks the admin listener what became of it.
func (o *reloadOptions) bySignal(ctx context.Context) error {
	before, err := o.last(ctx)
	switch {
	case err == nil && before.PID != o.PID:
		err = fmt.Errorf("the gateway at %s is process %d", o.Admin, before.PID)
	case err == nil && before.File == "":
		return errors.New("there is nothing to reload: the gateway was started without a configuration file")
	}
	if name, stranger := strangeProcess(o.PID); err != nil && stranger { // SIGHUP would end it
		return fmt.Errorf("process %d is %s, and no weir (%w): no signal was sent", o.PID, name, err)
	}
	if sent := o.Signal(o.PID); sent != nil {
		return fmt.Errorf("no signal was sent to process %d: %w", o.PID, sent)
	}
	if err != nil {
		_, err = fmt.Fprintf(o.Out, "sent SIGHUP to process %d; its log says what became of it (%v)\n", o.PID, err)
		return err
	}
	for {
		now, err := o.last(ctx)
		if err == nil && now.Attempts > before.Attempts {
			return o.print(now)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d was sent SIGHUP and has not reloaded within %v; its log says more", o.PID, o.Wait)
		case <-time.After(signalPoll):
		}
	}
}

const signalPoll = 50 * time.Millisecond

// print prints what became of a reload. Its error is that of a file with faults.
func (o *reloadOptions) print(done *admin.Reload) error {
	switch done.Result {
	case admin.ReloadRefused:
		return fmt.Errorf("not reloaded; the configuration in force stays:\n%s", done.Error)
	case admin.ReloadUnchanged:
		text := fmt.Sprintf("reloaded %s; nothing in it has changed", done.File)
		if !done.ChangedAt.IsZero() {
			text += " since " + done.ChangedAt.Local().Format("15:04:05") + ", when the gateway applied:\n" + indented(done.Changes)
		}
		_, err := fmt.Fprintln(legible{o.Out}, strings.TrimRight(text, "\n"))
		return err
	}
	_, err := fmt.Fprintf(legible{o.Out}, "reloaded %s:\n%s", done.File, indented(done.Changes))
	return err
}

func indented(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

// strangeProcess returns the name of a process, and whether it is no weir. Where the system does not say, it may be one.
func strangeProcess(pid int) (name string, stranger bool) {
	own, _ := os.ReadFile("/proc/self/comm")
	other, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	name = strings.TrimSpace(string(other))
	return name, err == nil && name != "weir" && name != strings.TrimSpace(string(own))
}

// hangUp sends SIGHUP to a process.
func hangUp(pid int) error {
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Signal(syscall.SIGHUP)
	}
	if errors.Is(err, os.ErrProcessDone) {
		return errors.New("there is no such process")
	}
	return err
}
