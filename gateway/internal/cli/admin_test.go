package cli

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
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
			"/gates": `{"gates": [{"name": "db", "limit": 4}]}`, "/explain": `{"method": "GET", "path": "/db"}`, "/quotas": `{"etag": "db"}`,
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
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = w.Write([]byte("{"))
	}))
	t.Cleanup(s.Close)
	for _, test := range []struct {
		args []string
		look bool
	}{
		{[]string{"set", "--user", "alice", "--blocked"}, true},
		{[]string{"list"}, false},
	} {
		_, _, err := run(NewQuotaCommand(), "", append(test.args, "--admin", s.URL)...)
		if err == nil || !strings.Contains(err.Error(), "broke off") || strings.Contains(err.Error(), "whether it was done") != test.look {
			t.Errorf("%q: %v", test.args, err)
		}
	}
}

// Whatever answers in place of a gateway, a terminal gets no commands from it.
func TestAnswersAreLegible(t *testing.T) {
	const red, shown = `\u001b[31mred\u009b\u202e`, `\x1b[31mred\u009b\u202e`
	for _, test := range []struct {
		args   []string
		status int
		body   string
	}{
		{[]string{"status"}, http.StatusOK, `{"gates": [{"name": "` + red + `"}]}`},
		{[]string{"quota", "list"}, http.StatusOK, `{"trouble": "` + red + `"}`},
		{[]string{"explain"}, http.StatusOK, `{"method": "GET", "route": "` + red + `"}`},
		{[]string{"reload"}, http.StatusOK, `{"result": "applied", "changes": ["` + red + `"]}`},
		{[]string{"reload"}, http.StatusOK, `{"result": "refused", "error": "` + red + `"}`},
		{[]string{"quota", "list"}, http.StatusConflict, `{"detail": "` + red + `"}`},
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
		if strings.ContainsAny(out, "\x1b\u009b\u202e") || !strings.Contains(out, shown) {
			t.Errorf("%q, %s: %q", test.args, test.body, out)
		}
	}
}
