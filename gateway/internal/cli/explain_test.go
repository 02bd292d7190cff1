package cli

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/explain"
	"github.com/weir-go/weir/policy"
)

var update = flag.Bool("update", false, "write the golden file anew; read the diff before committing it")

// The session has commands and what they print, as it would look on a terminal. What the
// guide shows is in it.
func TestExplainGolden(t *testing.T) {
	const file = "testdata/explain/session.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var is strings.Builder
	for _, block := range strings.Split(string(text), "$ weir explain")[1:] {
		line, _, _ := strings.Cut(block, "\n")
		args := fields(strings.Replace(line, "weir.yaml", "testdata/explain/weir.yaml", 1))
		out, errs, err := run(NewExplainCommand(), "", args...)
		is.WriteString("$ weir explain" + line + "\n" + out + errs)
		var exit *ExitError
		switch {
		case errors.As(err, &exit) && exit.Err == nil:
			is.WriteString("(exit code 1)\n")
		case err != nil:
			is.WriteString("weir: " + err.Error() + "\n")
		}
		is.WriteString("\n")
		for _, line := range strings.Split(out, "\n") {
			if strings.TrimRight(line, " ") != line {
				t.Errorf("space at the end of %q", line)
			}
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(is.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if is.String() != string(text) {
		t.Errorf("the session is now\n%s", is.String())
	}
	guide, err := os.ReadFile("../../../docs/howto/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(guide), "$ weir explain")
	shown, _, found := strings.Cut(shown, "```")
	if !found || !strings.Contains(is.String(), "$ weir explain"+shown) {
		t.Errorf("the guide shows something else: $ weir explain%s", shown)
	}
}

// fields splits a command line, in which single quotes keep words together.
func fields(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}

// explaining is the address of an admin listener of a gateway with a configuration, and
// its policy.
func explaining(t *testing.T, yaml string) (admin string, p *policy.Policy) {
	t.Helper()
	cfg, err := config.Parse("weir.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	if p, err = policy.Compile(cfg.Policy(), policy.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	mux := http.NewServeMux()
	mux.Handle("GET /explain", explain.Handler(func() explain.View { return explain.View{Config: cfg, Policy: p} }))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), p
}

// A running gateway is asked as often as one likes: no token is gone afterwards, and
// nothing is counted.
func TestExplainConsumesNothing(t *testing.T) {
	admin, p := explaining(t, `
upstreams: {app: {targets: ["http://127.0.0.1:3000"]}}
gates:
  api: {quota: {rate: 1/h, burst: 2, by: [user]}}
  slots: {limit: {limit: 1, queue: {len: 5}}}
routes: [{match: [/], gates: [api, slots], upstream: app}]
`)
	ask := func() explain.Answer {
		t.Helper()
		out, _, err := run(NewExplainCommand(), "", "--admin", admin, "--user", "alice", "--json")
		var exit *ExitError
		var a explain.Answer
		if err != nil && !(errors.As(err, &exit) && exit.Code == 1 && exit.Err == nil) || json.Unmarshal([]byte(out), &a) != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if (err != nil) != (a.Status != 0) {
			t.Errorf("status %d and exit code %v", a.Status, err)
		}
		return a
	}
	for range 5 {
		if a := ask(); a.Status != 0 || a.Gates[0].Why != "2 of 2 left" || a.Gates[0].Bucket != "api/user=alice" || a.Gates[1].Says != explain.Passes {
			t.Fatalf("%+v", a)
		}
	}
	_, w := p.Match(httptest.NewRequest(http.MethodGet, "/", nil))
	w.User = "alice"
	permit, err := p.Route("/").Gate().Admit(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	if a := ask(); a.Status != 0 || a.Gates[0].Why != "1 of 2 left" || a.Gates[1].Says != explain.Waits || !strings.HasPrefix(a.Gates[1].Why, "1 of 1 slots taken") {
		t.Errorf("with one on its way: %+v", a)
	}
	permit.Done(0)
	if _, err := p.Gate("api").TryAdmit(w); err != nil {
		t.Fatal(err)
	}
	a := ask()
	if a.Status != 429 || a.By != "api" || a.AfterMS < 3_500_000 || a.AfterMS > 3_600_000 || a.Gates[1].Says != explain.NotReached {
		t.Errorf("used up: %+v", a)
	}
	for name, g := range p.Gates() {
		if s := g.Snapshot(); len(s.Rejected) != 0 || s.InFlight > 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// What is no request of HTTP is asked about in a running gateway too.
func TestExplainOfOtherProtocols(t *testing.T) {
	admin, _ := explaining(t, `
kafka:
  orders:
    bootstrap: [127.0.0.1:9092]
    listen: {address: "127.0.0.1:19092"}
    nodes: {ports: 9100-9199, advertise: localhost}
    quotas: {produce: in}
gates:
  in: {quota: {rate: 1000/s}}
  rl: {quota: {rules: [{descriptor: "database=*", rate: 100/s}]}}
`)
	for args, want := range map[string]string{
		"--descriptor=database=users":              "descriptor database=users\n",
		"--kafka=orders --api=Produce --cost=2500": "Delayed by in: the connection is not read for 1.5s.",
	} {
		if out, _, err := run(NewExplainCommand(), "", append(strings.Fields(args), "--admin", admin)...); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}

func TestExplainMistakes(t *testing.T) {
	admin, _ := explaining(t, "upstreams: {app: {targets: [\"http://127.0.0.1:3000\"]}}\nroutes: [{match: [/], upstream: app}]\n")
	f := func(want string, args ...string) {
		t.Helper()
		if _, _, err := run(NewExplainCommand(), "", args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	for _, to := range []string{"--admin=" + admin, "--config=testdata/explain/weir.yaml"} {
		f(`--path "v1" does not begin with /; write /v1`, to, "--path=v1")
		f(`--path "/a b" cannot be the path of a request`, to, "--path=/a b")
		f(`--from "me" is not an address; write for instance 192.0.2.7`, to, "--from=me")
		f(`--method "G T" cannot be the method of a request; write for instance GET`, to, "--method=G T")
		f(`--header "X-User" is not a name, a colon and a value; write it as in "X-User: alice"`, to, "--header=X-User")
		f(`--priority "urgent" is unknown; write background, normal, high or critical`, to, "--priority=urgent")
		f(`--cost -1 is negative`, to, "--cost=-1")
	}
	broken := write(t, "q.json", "{}")
	f("no gateway would start with them: "+broken+":1:", "--config="+write(t, "weir.yaml", "upstreams: {app: {targets: [\"http://127.0.0.1:3000\"]}}\nroutes: [{match: [/], upstream: app}]\nquotas: {file: "+broken+"}\n"))
	f("leave one out", "--admin=x", "--config=y")
	f("no gateway answers at 127.0.0.1:1", "--admin=127.0.0.1:1")
	f("is not an address", "--admin=%")
	none := httptest.NewServer(http.NotFoundHandler())
	defer none.Close()
	f("404 Not Found; is it the admin listener", "--admin", none.URL)
	f("does not answer as a gateway does", "--admin", answeringAnything(t, "{}"))
	f("does not answer as a gateway does", "--admin", answeringAnything(t, "hello"))
	f("weir init", "--config=nothing.yaml")
	f("too many arguments; write explain with flags alone, as in weir explain --config weir.yaml --user alice --path /v1/items", "GET", "/v1/items")
}

func answeringAnything(t *testing.T, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
	t.Cleanup(s.Close)
	return s.URL
}

// A query is what Values makes of an Ask, and nothing else.
func TestExplainQuery(t *testing.T) {
	admin, _ := explaining(t, "upstreams: {app: {targets: [\"http://127.0.0.1:3000\"]}}\nroutes: [{match: [/], upstream: app}]\n")
	for query, want := range map[string]string{
		"usr=alice": `"usr" says nothing about a request`, "cost=many": `cost "many" is not a whole number`, "path=/a&path=/b": "path is given 2 times",
	} {
		res, err := http.Get("http://" + admin + "/explain?" + query)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s, want %s", query, res.StatusCode, body, want)
		}
	}
}
