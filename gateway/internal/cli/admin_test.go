package cli

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every command that asks a gateway finds it by its socket too.
func TestAskOverTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(map[string]string{
			"/gates": `{"gates": [{"name": "db", "limit": 4}]}`, "/explain": `{"method": "GET", "path": "/db", "gates": []}`, "/quotas": `{"etag": "db", "gates": []}`,
		}[r.URL.Path]))
	}))
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	for _, args := range [][]string{{"status"}, {"explain"}, {"quota", "describe", "--json"}} {
		out, _, err := run(NewRootCommand("test"), "", append(args, "--admin", "unix:"+path)...)
		if err != nil || !strings.Contains(out, "db") {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}

// An answer that breaks off may be of a write that was carried out.
func TestAnswerBreaksOff(t *testing.T) {
	for _, test := range []struct {
		args []string
		off  string // the method whose answer breaks off
		look bool
	}{
		{[]string{"set", "--user", "alice", "--blocked"}, http.MethodPost, true},
		{[]string{"set", "--user", "alice", "--blocked"}, http.MethodGet, false},
		{[]string{"list"}, http.MethodGet, false},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == test.off {
				w.Header().Set("Content-Length", "20")
			}
			_, _ = w.Write([]byte(`{"gates": []}`))
		}))
		t.Cleanup(s.Close)
		_, _, err := run(NewQuotaCommand(), "", append(test.args, "--admin", s.URL)...)
		if err == nil || !strings.Contains(err.Error(), "broke off") || strings.Contains(err.Error(), "whether it was done") != test.look {
			t.Errorf("%q: %v", test.args, err)
		}
	}
}

// A service that answers everything with JSON, such as one behind the gateway, is no gateway. It gets no token and no
// write.
func TestAskNoGateway(t *testing.T) {
	token := write(t, "token", "0123456789abcdef\n")
	for _, args := range []string{
		"status", "status --json", "explain", "reload --token-file " + token, "quota list --token-file " + token, "quota describe",
		"quota set --user alice --blocked --token-file " + token, "quota reset --gate api --user alice --token-file " + token,
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.Header.Get("Authorization") != "" {
				t.Errorf("%s: %s %s with %q", args, r.Method, r.URL, r.Header.Get("Authorization"))
			}
			_, _ = w.Write([]byte(`{"path": "/", "method": "GET", "ready": true}`))
		}))
		t.Cleanup(s.Close)
		out, _, err := run(NewRootCommand("test"), "", append(strings.Fields(args), "--admin", s.URL)...)
		if err == nil || !strings.Contains(err.Error(), "does not answer as a gateway does: its answer has no") || out != "" {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}

// A variable that is not set is no address. The path of the request, such as gates, was taken for the host.
func TestAskNobody(t *testing.T) {
	token := write(t, "token", "0123456789abcdef\n")
	for _, args := range []string{"status", "explain", "reload --token-file " + token, "quota list", "kafka import weir.yaml"} {
		for at, want := range map[string]string{"": "--admin is empty", "http://": `--admin "http://" is not an address`, "https:///": "is not an address", "/": "is not an address"} {
			if strings.HasPrefix(args, "kafka") && at != "" {
				continue // it asks its file first
			}
			_, _, err := run(NewRootCommand("test"), "", append(strings.Fields(args), "--admin", at)...)
			var exit *ExitError
			if !errors.As(err, &exit) || exit.Code != 2 || !strings.Contains(err.Error(), want) {
				t.Errorf("%s --admin %q: %v, want %q", args, at, err, want)
			}
		}
	}
}

// Whatever answers in place of a gateway, a terminal gets no commands from it.
func TestAnswersAreLegible(t *testing.T) {
	const red, shown, inJSON = "\\u001b[31mred\u009b\u202e\U000e0041", `\x1b[31mred\u009b\u202e\U000e0041`, `\u001b[31mred\u009b\u202e\udb40\udc41`
	for _, test := range []struct {
		args   []string
		status int
		body   string
	}{
		{[]string{"status"}, http.StatusOK, `{"gates": [{"name": "` + red + `"}]}`},
		{[]string{"quota", "list"}, http.StatusOK, `{"gates": [], "trouble": "` + red + `"}`},
		{[]string{"explain"}, http.StatusOK, `{"gates": [], "method": "GET", "route": "` + red + `"}`},
		{[]string{"reload"}, http.StatusOK, `{"pid": 1, "result": "applied", "changes": ["` + red + `"]}`},
		{[]string{"reload"}, http.StatusOK, `{"pid": 1, "result": "refused", "error": "` + red + `"}`},
		{[]string{"quota", "list"}, http.StatusConflict, `{"detail": "` + red + `"}`},
		{[]string{"status", "--json"}, http.StatusOK, `{"gates": [{"name": "` + red + `"}]}`},
		{[]string{"quota", "list", "--json"}, http.StatusOK, `{"gates": [], "trouble": "` + red + `"}`},
		{[]string{"quota", "delete", "--user", "a", "--json"}, http.StatusOK, "{\"gates\": [],\r\n" + `"steps": [], "etag": "` + red + `"}`},
		{[]string{"quota", "reset", "--gate", "g", "--user", "a", "--json"}, http.StatusOK, `{"gates": [], "bucket": "` + red + `"}`},
		{[]string{"explain", "--json"}, http.StatusOK, `{"gates": [], "method": "GET", "route": "` + red + `"}`},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(test.status)
			_, _ = w.Write([]byte(test.body))
		}))
		t.Cleanup(s.Close)
		out, _, err := run(NewRootCommand("test"), "", append(test.args, "--admin", s.URL)...)
		if err != nil {
			var told strings.Builder
			complain(&told, err)
			out += told.String()
		}
		want := shown
		if slices.Contains(test.args, "--json") {
			want = inJSON
		}
		if strings.ContainsAny(out, "\x1b\u009b\u202e\U000e0041") || !strings.Contains(out, want) {
			t.Errorf("%q, %s: %q", test.args, test.body, out)
		}
	}
}
