//go:build integration

package integration

import (
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// knownFailures are the cases of h2spec that the gateway fails, by section and title, and
// why. All of them are decided in net/http.
var knownFailures = map[string]string{
	"http2/3.5: Sends invalid connection preface":                                                                   "what begins no HTTP/2 is taken for HTTP/1, and answered with 400 before the connection is closed",
	"http2/6.5.3: Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE":                                            "a frame with a setting twice ends the connection",
	"http2/8.1.2.2: Sends a HEADERS frame that contains the connection-specific header field":                       "the answer is 400, not a reset stream",
	"http2/8.1.2.2: Sends a HEADERS frame that contains the TE header field with any value other than \"trailers\"": "the answer is 400, not a reset stream",
}

// The gateway passes h2spec but for the known failures. One that passes has to leave the
// list.
func TestH2Spec(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, "hello")
	}))
	defer up.Close()
	g := startGateway(t, gatewayConfig(up.Listener.Addr().String(), 64))
	// On a machine that is slow, two seconds may be too short for a case that passes. Only the
	// sections with such cases are run again: known failures wait for the whole time.
	wrong, sections := g.h2spec(t, 2)
	if len(sections) > 0 {
		wrong, _ = g.h2spec(t, 60, sections...)
	}
	for _, text := range wrong {
		t.Error(text)
	}
	g.idle(t)
}

// h2spec runs the cases of some sections, or all, each with so many seconds to be answered. It
// returns how they differ from what is known, and the sections in which they do.
func (g *gateway) h2spec(t *testing.T, seconds int, only ...string) (wrong, sections []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.xml")
	host, port, err := net.SplitHostPort(g.addr)
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-h", host, "-p", port, "-o", fmt.Sprint(seconds), "-j", file}, only...)
	out, _ := exec.CommandContext(t.Context(), part(t, "h2spec"), args...).CombinedOutput()
	text, err := os.ReadFile(file) // h2spec fails if a case does
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var report struct {
		Cases []struct {
			Section string    `xml:"package,attr"`
			Title   string    `xml:"classname,attr"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
		} `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	if n := len(report.Cases); n < 145 && len(only) == 0 {
		wrong = append(wrong, fmt.Sprintf("h2spec has run %d cases, want 145", n))
	}
	left := len(knownFailures)
	for _, c := range report.Cases {
		name := c.Section + ": " + c.Title
		why, known := knownFailures[name]
		failed := c.Failure != nil || c.Error != nil
		if known != failed && !slices.Contains(sections, c.Section) {
			sections = append(sections, c.Section)
		}
		switch {
		case known && !failed:
			wrong = append(wrong, fmt.Sprintf("%s passes: take it off the list (%s)", name, why))
		case failed && !known:
			wrong = append(wrong, name+" fails")
		}
		if known {
			left--
		}
	}
	if left > 0 && len(only) == 0 {
		wrong = append(wrong, fmt.Sprintf("%d of the known failures are no cases of h2spec", left))
	}
	return wrong, sections
}
