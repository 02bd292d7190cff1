//go:build integration

package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// answer is what a client learns from one request, and when.
type answer struct {
	status       int
	after        string        // Retry-After
	exact        time.Duration // the document's time
	limit        string        // RateLimit
	rule         string
	asked, heard time.Time // the gateway decided in between
}

// ask sends a request as a user, on a connection that is open already.
func (g *gateway) ask(t *testing.T, user string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, g.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-User", user)
	a := answer{asked: time.Now()}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a.heard, a.status, a.after, a.limit = time.Now(), res.StatusCode, res.Header.Get("Retry-After"), res.Header.Get("RateLimit")
	if a.status == http.StatusTooManyRequests {
		var doc struct {
			After int64 `json:"retry_after_ms"`
			Rule  string
		}
		if err := json.Unmarshal(body, &doc); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		a.exact, a.rule = time.Duration(doc.After)*time.Millisecond, doc.Rule
	}
	return a
}

// used asks until the quota is used up, and returns the refusal.
func (g *gateway) used(t *testing.T, user string, most int) answer {
	t.Helper()
	for range most + 1 {
		if a := g.ask(t, user); a.status != http.StatusOK {
			return a
		}
	}
	t.Fatalf("more than %d requests get through", most)
	return answer{}
}

// A client that comes back after the time that it was told is served; one that comes
// 20 ms sooner is not. When the gateway decided is known to lie between request and
// answer only, so a round that the machine has drawn out proves nothing and is
// repeated.
func TestRetryAfterIsTrue(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	const early = 20 * time.Millisecond
	g := startDefault(t, strings.TrimPrefix(up.URL, "http://"), "--rate", "2/s", "--burst", "3", "--by", "header:X-User")

	const rounds = 20
	proved := 0
	for i := 0; i < rounds && proved < 3; i++ {
		user := "user" + strconv.Itoa(i)
		no := g.used(t, user, 20)
		if no.status != http.StatusTooManyRequests || no.exact <= 0 || no.exact > 500*time.Millisecond || no.after != "1" || no.rule != "user=*" {
			t.Fatalf("refused with %+v, want 429 and at most 500 ms", no)
		}
		if !strings.HasSuffix(no.limit, ";r=0;t=1") {
			t.Errorf("RateLimit %s, want none for 1 s", no.limit)
		}
		// At asked+exact at the latest the token may not be there yet, at
		// heard+exact it is. The answer is in whole milliseconds, rounded up.
		await.Moment(no.asked.Add(no.exact - early))
		soon := g.ask(t, user)
		if soon.heard.Before(no.asked.Add(no.exact - time.Millisecond)) {
			if soon.status != http.StatusTooManyRequests {
				t.Errorf("%v before the time, status %d", no.asked.Add(no.exact).Sub(soon.heard), soon.status)
			}
			proved++
		} else if soon.status == http.StatusOK {
			continue // it has come at about the time itself
		}
		await.Moment(no.heard.Add(no.exact))
		if then := g.ask(t, user); then.status != http.StatusOK {
			t.Errorf("told to come back in %v, refused %v later, for %v", no.exact, then.asked.Sub(no.heard), then.exact)
		}
	}
	if proved == 0 {
		t.Skipf("in none of %d rounds did request and answer lie within %v: the machine is too busy to tell", rounds, early)
	}
}

// Whole seconds are enough for a client that knows nothing but Retry-After, and what
// one user takes is nobody else's.
func TestRetryAfterInSeconds(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	g := startDefault(t, strings.TrimPrefix(up.URL, "http://"), "--rate", "40/min", "--burst", "2", "--by", "header:X-User")
	no := g.used(t, "alice", 20)
	seconds, err := strconv.Atoi(no.after)
	if wait := time.Duration(seconds) * time.Second; err != nil || no.exact <= 0 || no.exact > 1500*time.Millisecond || wait < no.exact || wait-no.exact >= time.Second {
		t.Fatalf("refused with %+v, want at most 1.5 s, rounded up", no)
	}
	if bob := g.ask(t, "bob"); bob.status != http.StatusOK || strings.Contains(bob.limit, ";r=0") {
		t.Errorf("bob: %+v", bob)
	}
	await.Moment(no.heard.Add(time.Duration(seconds) * time.Second))
	if then := g.ask(t, "alice"); then.status != http.StatusOK {
		t.Errorf("refused for %v more after Retry-After", then.exact)
	}
	if s := g.gate(t, "quota"); s.Admitted < 4 {
		t.Errorf("%d admitted at the gate called quota", s.Admitted)
	}
}

// What weir explain says of a running gateway is what the next request meets, and
// saying it takes nothing.
func TestExplain(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	g := startDefault(t, strings.TrimPrefix(up.URL, "http://"), "--rate", "1/h", "--burst", "3", "--by", "header:X-User")
	explain := func(user, want string, ok bool) {
		t.Helper()
		out, served := weirCommand(t, "explain", "--admin", g.admin, "--header", "X-User: "+user)
		if served != ok || !strings.Contains(out, want) {
			t.Errorf("%s: exit code 0: %v, want %v and %q:\n%s", user, served, ok, want, out)
		}
	}
	for left := 3; left > 0; left-- {
		explain("alice", strconv.Itoa(left)+" of 3 left", true)
		explain("alice", strconv.Itoa(left)+" of 3 left", true)
		if a := g.ask(t, "alice"); a.status != http.StatusOK {
			t.Fatalf("with %d left: %+v", left, a)
		}
	}
	explain("alice", "Refused by quota: 429, come back in ", false)
	if a := g.ask(t, "alice"); a.status != http.StatusTooManyRequests {
		t.Errorf("with nothing left: %+v", a)
	}
	explain("bob", "quota/user=bob", true)
	if s := g.gate(t, "quota"); s.Admitted != 3 {
		t.Errorf("%d admitted, want the 3 that were sent", s.Admitted)
	}
}
