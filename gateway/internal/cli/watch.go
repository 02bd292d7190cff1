package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// watchStatus prints the status each time that every has passed, until ctx ends. A gateway that does
// not answer at the start is an error. One that goes away later is waited for, because it may
// be restarting.
func watchStatus(ctx context.Context, o statusOptions, every time.Duration) error {
	to, terminal := o.Out, redrawable(o.Out)
	for first := true; ; first = false {
		var text bytes.Buffer
		o.Out = &text
		err := runStatus(ctx, o)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			text.Reset()
			fmt.Fprintln(&text, escaped(err.Error()))
		}
		if err := showFrame(to, terminal, time.Now(), text.String()); err != nil {
			return fmt.Errorf("status: %w", err)
		}
		timer := time.NewTimer(every)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// showFrame writes the status of a moment. On a terminal it takes the place of the last one,
// as much of it as there is room for. Elsewhere it follows the last one.
func showFrame(out io.Writer, terminal bool, now time.Time, text string) error {
	head := now.Format("15:04:05") + " "
	if !terminal {
		_, err := io.WriteString(out, head+text+"\n")
		return err
	}
	width, height := terminalSize(out)
	_, err := io.WriteString(out, frame(head+text, width, height))
	return err
}

// frame returns text so that it takes the place of what is on a terminal. Lines and columns
// that do not fit are left out: they would scroll the others away. A size of 0 is unknown.
func frame(text string, width, height int) string {
	lines, end := strings.Split(strings.TrimRight(text, "\n"), "\n"), "\x1b[K\n"
	if height == 1 { // a second line would scroll the first away
		lines, end = lines[:1], "\x1b[K"
	}
	if more := len(lines) - (height - 1); height > 1 && more > 0 {
		lines = append(lines[:height-2], fmt.Sprintf("and %d more lines; a taller window shows them", more+1))
	}
	var b strings.Builder
	b.WriteString("\x1b[?7l\x1b[H") // no line wraps: some characters take two columns
	for _, line := range lines {
		if runes := []rune(line); width > 0 && len(runes) > width {
			line = string(runes[:width])
		}
		b.WriteString(line + end)
	}
	return b.String() + "\x1b[J\x1b[?7h"
}

// terminalSize returns the width and height of a terminal, 0 where they are not known.
func terminalSize(out io.Writer) (width, height int) {
	f, ok := out.(*os.File)
	if !ok {
		return 0, 0
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}
