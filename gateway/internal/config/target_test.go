package config

import (
	"strings"
	"testing"
)

// TestTargetFaults: what other products write for a server gets the URL to write here.
func TestTargetFaults(t *testing.T) {
	for target, want := range map[string]string{
		"127.0.0.1:3000":                   "write http://127.0.0.1:3000",
		"localhost":                        "write http://localhost",
		"app:3000/v1":                      "write http://app:3000/v1",
		"3000":                             "write http://127.0.0.1:3000",
		":3000":                            "write http://127.0.0.1:3000",
		"::1":                              "write http://[::1]:3000",
		"[::1]:3000":                       "write http://[::1]:3000",
		"//app:3000":                       "write http://app:3000",
		"http:/app:3000":                   "write http://app:3000",
		"http//app:3000":                   "write http://app:3000",
		"https:app":                        "write https://app",
		"htpp://app":                       "write http://app",
		"HTTP://app":                       "",
		"tcp://app:3000":                   "write http://app:3000",
		"grpc://app:3000":                  "write h2c://app:3000",
		"ws://app":                         "write http://app",
		"fastcgi://127.0.0.1:9000":         "write http://127.0.0.1:3000: the address of a server that speaks HTTP",
		"http://":                          "names no host; write http://127.0.0.1:3000",
		"http://:3000":                     "names no host; write for instance http://127.0.0.1:3000",
		"http://app:0":                     "has the port 0",
		"http://app:99999":                 "has the port 99999",
		"http://*.example.com":             "has a wildcard for a host",
		"http://u:secret@app":              "carries a user name",
		"server 10.0.0.1:80;":              "write http://10.0.0.1:80",
		"http://$BACKEND:3000":             "write http://${BACKEND}:3000",
		"{$BACKEND}":                       "write ${BACKEND}",
		"http://{$BACKEND:app}:1":          "write http://${BACKEND:-app}:1",
		"http://{env.BACKEND}":             "write http://${BACKEND}",
		"unix:/run/app.sock":               "",
		"unix:///run/app.sock":             "",
		"unix://run/app.sock":              "write unix:/run/app.sock",
		"unix//run/app.sock":               "write unix:/run/app.sock",
		"http://unix:/run/app.sock":        "write unix:/run/app.sock",
		"http://unix:/run/app.sock:/":      "write unix:/run/app.sock",
		"http+unix:///run/app.sock":        "write unix:/run/app.sock",
		"unix@/run/app.sock":               "write unix:/run/app.sock",
		"/run/app.sock":                    "write unix:/run/app.sock",
		"unix:/run/app.sock:/v1":           "write unix:/run/app.sock",
		"unix:":                            "names no socket",
		"unix:/" + strings.Repeat("x", 99): "is too long for a socket",
	} {
		err := checkTarget(target)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want && (want == "" || !strings.HasSuffix(got, want) && !strings.Contains(got, want+";") && !strings.Contains(got, want+" for") && !strings.Contains(got, want+",")) || strings.Contains(got, "secret") {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
		if m := targetMeant(target); err != nil && !strings.ContainsAny(m, " ") && !strings.ContainsAny(target, "${*@?") && !strings.HasPrefix(target, "http://app:") && checkTarget(m) != nil && strings.Contains(got, "write "+m) {
			t.Errorf("%s: the advice %s is wrong itself: %v", target, m, checkTarget(m))
		}
	}
}

// TestSocketBesideTheFile: a socket that is not absolute stands beside the file.
func TestSocketBesideTheFile(t *testing.T) {
	cfg, err := Parse("/etc/weir/weir.yaml", []byte("upstreams: {app: {targets: ['unix:app.sock', 'unix:/run/b.sock']}}\nroutes: [{match: [/], upstream: app}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(cfg.Upstreams["app"].Targets, " "); got != "unix:/etc/weir/app.sock unix:/run/b.sock" {
		t.Error(got)
	}
}
