package cli

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// ending ends a context when enough has been written.
type ending struct {
	text strings.Builder
	word string
	n    int
	end  func()
}

func (e *ending) Write(p []byte) (int, error) {
	n, err := e.text.Write(p)
	if strings.Count(e.text.String(), e.word) >= e.n {
		e.end()
	}
	return n, err
}

// Where there is no terminal each status follows the last one, without escapes. A gateway
// that goes away is told of, and shown again when it is back.
func TestWatch(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 2 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = w.Write([]byte(`{"ready": true, "gates": [{"name": "api", "limit": 4}]}`))
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	out := &ending{word: "in progress", n: 3, end: cancel}
	if err := watchStatus(ctx, statusOptions{Admin: s.URL, Out: out}, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	text := out.text.String()
	if strings.Contains(text, "\x1b") || strings.Count(text, " ready, 0 requests in progress\n\nGATE ") != 3 || strings.Count(text, "502 Bad Gateway; is it the admin listener") != 1 {
		t.Errorf("%s", text)
	}
	err := watchStatus(t.Context(), statusOptions{Admin: "127.0.0.1:1", Out: out}, time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "no gateway answers") {
		t.Errorf("%v", err)
	}
	if _, _, err := run(NewStatusCommand(), "", "--watch", "--json"); err == nil {
		t.Error("--watch and --json go together")
	}
}

// On a terminal a status takes the place of the last, and no more than its room.
func TestFrame(t *testing.T) {
	const clear = "\x1b[K\n"
	for _, tt := range []struct {
		text          string
		width, height int
		want          string
	}{
		{"a\nb\n", 80, 24, "a" + clear + "b" + clear},
		{"a\nb\n", 0, 0, "a" + clear + "b" + clear},
		{"größer\n", 3, 24, "grö" + clear},
		{"a\nb\nc\nd\ne\n", 80, 4, "a" + clear + "b" + clear + "and 3 more lines; a taller window shows them" + clear},
		{"a\nb\nc\n", 80, 2, "and 3 more lines; a taller window shows them" + clear},
		{"a\nb\nc\n", 80, 1, "a\x1b[K"},
		{"a\nb\nc\n", 80, 4, "a" + clear + "b" + clear + "c" + clear},
	} {
		if got := frame(tt.text, tt.width, tt.height); got != "\x1b[?7l\x1b[H"+tt.want+"\x1b[J\x1b[?7h" {
			t.Errorf("%q in %d by %d: %q", tt.text, tt.width, tt.height, got)
		}
	}
}
