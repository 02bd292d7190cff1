package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// answering is the address of an admin listener that says body at /gates.
func answering(t *testing.T, status int, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/gates" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// What the guide shows is what status prints, and --json what the gateway says.
func TestStatus(t *testing.T) {
	body, err := os.ReadFile("testdata/status.json")
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../../../docs/howto/watch.md")
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(string(guide), "$ weir status --top 2\n")
	want, _, found := strings.Cut(want, "```")
	admin := answering(t, http.StatusOK, string(body))
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin, "--top", "2")
	for _, line := range strings.Split(out, "\n") {
		if strings.TrimRight(line, " ") != line {
			t.Errorf("space at the end of %q", line)
		}
	}
	if err != nil || !found || out != want {
		t.Errorf("%v: status prints\n%s\nthe guide shows\n%s", err, out, want)
	}
	out, _, err = run(NewRootCommand("test"), "", "status", "--admin", admin, "--json")
	if err != nil || out != string(body) || !json.Valid([]byte(out)) {
		t.Errorf("%v: --json prints\n%s", err, out)
	}
	if out, _, _ = run(NewRootCommand("test"), "", "status", "--admin", admin, "--top", "100"); !strings.Contains(out, "\ninitech  db ") || !strings.Contains(out, "\ninitech  0 ") {
		t.Errorf("not all of them:\n%s", out)
	}
}

// Pools of reads and of writes have a line each.
func TestStatusOfParts(t *testing.T) {
	admin := answering(t, http.StatusOK, `{"gates": [{"name": "db", "parts": {"write": {"limit": 4, "in_flight": 3, "waiting": 2, "admitted": 1}, "read": {"limit": 12}}}]}`)
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin)
	if want := "read db 12 0 0 0 write db 4 3 2 1"; err != nil || !strings.HasSuffix(strings.Join(strings.Fields(out), " "), want) {
		t.Errorf("%v\n%s", err, out)
	}
}

// The probes of a gate have a line, where it has one pool and where it has two.
func TestStatusOfProbes(t *testing.T) {
	const probes = `"probes": {"up": 5, "up_kept": 4, "down": 3, "down_kept": 2, "nudged": 1, "stable": 12.34, "throughput": 1234.5, "probed": 1300}`
	for _, gate := range []string{`"name": "db", ` + probes, `"name": "db", "parts": {"read": {` + probes + `}}`} {
		admin := answering(t, http.StatusOK, `{"gates": [{`+gate+`}]}`)
		out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin)
		if want := "IN THE PROBE db 5 4 3 2 1 12.3 1234 1300"; err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// A newer gateway has words of its own for reasons, outcomes and priorities.
func TestStatusOfNewerGateway(t *testing.T) {
	counts := `"waiting": 3, "waiting_by_class": {"high": 2, "urgent": 1}, "rejected": {"quota": 4, "canceled": 1, "moon": 5}, "outcomes": {"ok": 1, "odd": 2}`
	body := `{"ready": true, "gates": [{"name": "db", "kind": "limit", "mode": "enforce", ` + counts + `, "observed": {"moon": 1}, "parts": {"read": {` + counts + `}}}],
		"connections": [{"listener": ":80", "refused": {"moon": 6}, ` + counts + `}]}`
	at := answering(t, http.StatusOK, body)
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", at)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"db enforce 0 0 3 0 9 1", "db 0 2 0 0", "read db 0 0 3 0", ":80 0 0 0 6 moon 6"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if out, _, err = run(NewRootCommand("test"), "", "status", "--admin", at, "--json"); err != nil || out != body {
		t.Errorf("%v: --json prints\n%s", err, out)
	}
}

// Refusals are told apart by priority and reason. An older gateway knows only the reasons, and
// a newer one priorities of its own.
func TestStatusOfRefusals(t *testing.T) {
	admin := answering(t, http.StatusOK, `{"gates": [
		{"name": "api", "rejected": {"limit": 4, "deadline": 6}, "refused_by_class":
			{"background": {"limit": 4}, "critical": {"deadline": 1}, "normal": {"deadline": 5, "moon": 7}, "urgent": {"limit": 2}, "high": {}}},
		{"name": "old", "rejected": {"limit": 4, "deadline": 6, "canceled": 3}}, {"name": "idle"}],
		"tenants": [{"tenant": "", "served": 3}, {"tenant": "other", "served": 1}]}`)
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin)
	const want = "REFUSED AT PRIORITY TIMES WHY api critical 1 deadline 1 api normal 12 moon 7, deadline 5 api urgent 2 limit 2 " +
		"api background 4 limit 4 old any 10 deadline 6, limit 4 TENANT SERVED REFUSED FAILED MEAN TIME (no tenant) 3 "
	if text := strings.Join(strings.Fields(out), " "); err != nil || !strings.Contains(text, want) {
		t.Errorf("%v\n%s", err, out)
	}
}

// What a gate in observe mode would have refused has a line.
func TestStatusOfObserved(t *testing.T) {
	admin := answering(t, http.StatusOK, `{"gates": [
		{"name": "api", "mode": "observe", "observed": {"queue_full": 3, "limit": 9}},
		{"name": "idle", "mode": "observe"},
		{"name": "db", "mode": "enforce", "observed": {"limit": 5}}]}`)
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin)
	if want := "ONLY OBSERVED WOULD REFUSE api limit 9, queue_full 3"; err != nil || !strings.HasSuffix(strings.Join(strings.Fields(out), " "), want) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A gateway in which nothing is going on has one table.
func TestStatusOfLittle(t *testing.T) {
	admin := answering(t, http.StatusOK, `{"gates": [{"name": "api", "mode": "observe", "limit": 4}], "tenants": [{"tenant": "other"}]}`)
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin)
	if want := "shutting down, 0 requests in progress"; err != nil || !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 4 {
		t.Errorf("%v\n%s", err, out)
	}
}

// Who names itself as it likes writes nothing to a terminal.
func TestStatusOfOddNames(t *testing.T) {
	for name, want := range map[string]string{
		"acme": "acme", "": `""`, "a b": `"a b"`, "\x1b[2J": `"\x1b[2J"`, "x\ty\n": `"x\ty\n"`, `"`: `"\""`, "\u202egpj": `"\u202egpj"`,
		"größe": "größe", strings.Repeat("ä", 100): strings.Repeat("ä", 39) + "…",
	} {
		if got := printable(name); got != want {
			t.Errorf("%q is printed as %s, want %s", name, got, want)
		}
	}
	name, err := json.Marshal("\x1b[2J\n")
	if err != nil {
		t.Fatal(err)
	}
	body := `{"gates": [{"name": "db", "keys": {"top": [{"key": ` + string(name) + `}]}}], "tenants": [{"tenant": ` + string(name) + `, "served": 1}, {"tenant": "other"}]}`
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", answering(t, http.StatusOK, body))
	if err != nil || bytes.ContainsRune([]byte(out), '\x1b') || strings.Count(out, `"\x1b[2J\n"`) != 2 {
		t.Errorf("%v\n%q", err, out)
	}
}

func TestStatusFaults(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		if _, _, err := run(NewRootCommand("test"), "", append([]string{"status", "--admin"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	f("no gateway answers at 127.0.0.1:1", "127.0.0.1:1")
	f("is not an address", "%")
	f("--top -1: must be at least 0", "127.0.0.1:1", "--top", "-1")
	f("404 Not Found; is it the admin listener", answering(t, http.StatusNotFound, ""))
	f("does not answer as a gateway does", answering(t, http.StatusOK, "hello"))
	f("does not answer as a gateway does", answering(t, http.StatusOK, "hello"), "--json")
}

// clock is what a clock here shows at a second of a moment in the test's data.
func clock(second int) string {
	return time.Date(2026, 11, 25, 12, 30, second, 0, time.UTC).Local().Format(time.TimeOnly)
}

// A quota has a table of its own, for it has no slots, and so have stores.
func TestStatusOfQuotas(t *testing.T) {
	var l gatewayStatus
	err := json.Unmarshal([]byte(`{"ready": true, "gates": [
		{"name": "slots", "kind": "limit", "mode": "enforce", "limit": 20},
		{"name": "near", "kind": "quota", "mode": "enforce", "admitted": 7, "rejected": {"quota": 3, "canceled": 1}, "quota": {"rules": 2, "buckets": {"known": 5, "max": 100, "overflowed": 4}, "store_errors": 0,
			"refused": [{"bucket": "near/user=alice", "times": 5}, {"bucket": "near/user=bob", "times": 4}, {"bucket": "near/user=carol", "times": 2}, {"bucket": "other", "times": 7}]}},
		{"name": "far", "kind": "quota", "mode": "observe", "quota": {"rules": 1, "store_errors": 6, "unsettled": 1}}],
		"stores": [{"name": "shared", "down": true, "why": "no answer", "takes": 12, "failed": {"timeout": 2, "down": 3}, "trips": 1}],
		"kafka": [{"cluster": "orders", "connections": 3, "logins": 8, "logins_unnamed": 2, "logins_failed": 1, "muted": 3, "held_bytes": 1234567, "held_waiting": 9, "muted_longest": [{"from": "10.1.0.7:5123", "node": 1, "user": "alice", "client": "", "quota": "produce", "until": "2026-11-25T12:30:05Z", "seconds": 12.3456},
			{"from": "10.1.0.8:5123", "node": -1, "user": "bob", "client": "app\u001b", "quota": "fetch", "until": "2026-11-25T12:30:04Z", "seconds": 11}, {"from": "10.1.0.9:1", "quota": "fetch"}], "throttled_produce": {"times": 7, "seconds": 12.34}, "throttled_fetch": {"times": 2, "seconds": 0.5}, "throttled_mutations": {"times": 1, "seconds": 8}, "bootstrap": {"node": -1, "address": ":9092", "connections": 1, "accepted": 9}, "nodes": [
			{"node": 1, "broker": "10.0.0.1:9092", "address": "kafka.example.org:9101", "connections": 2, "accepted": 5, "failed": 1},
			{"node": 200, "broker": "10.0.0.2:9092", "trouble": "its port would be 9300"}]}]}`), &l)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := printStatus(&b, &l, 2); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(b.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	got := strings.Join(rows, "\n")
	for _, want := range []string{
		"slots enforce 20 0 0 0 0 0 - - -",
		"QUOTA MODE RULES BUCKETS AT MOST OVERFLOWED WAITING ADMITTED REFUSED LEFT STORE ERRORS UNSETTLED",
		"near enforce 2 5 100 4 0 7 3 1 0 0",
		"far observe 1 - - - 0 0 0 0 6 1",
		"shared down 12 5 1 no answer",
		"KAFKA NODE AT BROKER OPEN ACCEPTED FAILED TROUBLE\norders bootstrap :9092 - 1 9 0 -\norders 1 kafka.example.org:9101 10.0.0.1:9092 2 5 1 -\norders 200 - 10.0.0.2:9092 0 0 0 its port would be 9300",
		"LOGINS OF ALL THAT ENDED WELL WITHOUT A NAME FAILED\norders 8 2 1",
		"DELAYS BY QUOTAS OF NOW PRODUCE SECONDS FETCH SECONDS MUTATIONS SECONDS\norders 3 7 12.3 2 0.5 1 8.0",
		"WAITING FOR MEMORY CONNECTIONS HELD BYTES\norders 9 1234567",
		"MUTED AT NODE FROM USER CLIENT BY UNTIL FOR\norders 1 10.1.0.7:5123 alice \"\" produce " + clock(5) + " 12.346s\norders bootstrap 10.1.0.8:5123 bob \"app\\x1b\" fetch " + clock(4) + " 11s",
		"BUCKET OF REFUSED\nuser=alice near 5\nuser=bob near 4\n(other) near 9",
	} {
		if !strings.Contains(got, "\n"+want) {
			t.Errorf("no row %q", want)
		}
	}
	if strings.Contains(got, "10.1.0.9") {
		t.Error("more of those who wait longest than were asked for")
	}
	if strings.Count(got, "\nnear enforce") != 1 {
		t.Error("a quota is among the limits too")
	}
	if t.Failed() {
		t.Log(b.String())
	}
}

func TestStatusOfListeners(t *testing.T) {
	admin := answering(t, http.StatusOK, `{"gates": [], "connections": [
		{"listener": ":8443", "limit": 100, "in_flight": 7, "admitted": 40, "addresses": 3, "max_addresses": 65536, "crowd": 2,
		 "refused": {"max_connections": 1, "connections.rate": 0, "connections.per_address": 12},
		 "handshakes_failed": {"unknown_ca": 4, "expired": 0}},
		{"listener": ":8080", "limit": 100, "refused": {}, "mode": "observe", "observed": {"connections.rate": 5, "connections.addresses": 0}},
		{"listener": ":8081", "limit": 100, "refused": {}, "mode": "observe", "observed": {"connections.rate": 0}}]}`)
	out, _, err := run(NewRootCommand("test"), "", "status", "--admin", admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"LISTENER  OPEN  MAX  ACCEPTED  REFUSED  BY                                              ADDRESSES KNOWN  MAX KNOWN  OPEN OF OTHERS",
		":8443     7            100      40     13       connections.per_address 12, max_connections 1   3          65536    2",
		":8080     0            100      0      0        -                                               0          0        0",
		"CONNECTIONS OF  ONLY OBSERVED, WOULD REFUSE\n:8080           connections.rate 5\n:8081           nothing\n",
		"HANDSHAKES AT  FAILED\n:8443          unknown_ca 4\n",
	} {
		if !strings.Contains(collapse(out), collapse(want)) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
}

// collapse makes columns of any width alike.
func collapse(s string) string {
	for strings.Contains(s, "  ") {
		s = strings.ReplaceAll(s, "  ", " ")
	}
	return s
}
