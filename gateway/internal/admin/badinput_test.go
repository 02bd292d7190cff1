package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A rule that is nonsense is refused with a sentence, and nothing changes, whichever
// way it comes.
func TestBadQuotaInput(t *testing.T) {
	text := func(s string) string {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	bad := map[string]string{ // members of a rule beside its user, to what is said
		`"rate": 10`: "", `"rate": "10/s", "burst": -1`: "", `"rate": "10/s", "burst": 0.5`: "burst", `"rate": "10/s", "burst": 1e300`: "burst",
		`"rate": "10/s", "burst": 1e999`: "", `"rate": "10/s", "burst": NaN`: "", `"rate": "10/s", "burst": "20"`: "", `"rate": "10/s", "burst": 2e15`: "burst",
		`"limits": ["1/h", "0/s"]`: "not above 0", `"limits": []`: "", `"rate": ""`: "", `"rate": null`: "", `"rate": "10/s", "blocked": true`: "",
	}
	for rate, want := range map[string]string{
		"0/s": "not above 0", "-1/s": "not above 0", "NaN/s": "is no number", "Inf/s": "is no number", "1e300/s": "out of range", "1e-300/s": "out of range",
		"10/s burst 0": "not above 0", "10/s burst -1": "not above 0", "10/s burst NaN": "is no number", "10/s burst 1e300": "out of range", "10": "is no limit",
		strings.Repeat("9", 10<<10) + "/s": "bytes are no limit", "10/s\x00": "is no unit",
	} {
		bad[`"rate": `+text(rate)] = want
	}
	c := newCounter(t, true)
	refused := func(what, method, path, body, want string, header ...string) {
		t.Helper()
		w := c.write(method, path, body, header...)
		if w.Code < 400 || w.Code >= 500 || !strings.Contains(w.Body.String(), want) || !json.Valid(w.Body.Bytes()) || w.Body.Len() > 4000 {
			t.Errorf("%s: %.100s: %d %.300s, want a refusal with %q", what, body, w.Code, w.Body, want)
		}
		if n := len(c.book.Look("").Rules); n != 1 {
			t.Fatalf("%s: %.100s: there are %d rules now", what, body, n)
		}
	}
	for members, want := range bad {
		refused("set", "POST", "/quotas", fmt.Sprintf(`{"ops": [{"gate": "api", "set": {"user": "alice", %s}}]}`, members), want)
		refused("among good ones", "POST", "/quotas", fmt.Sprintf(`{"ops": [{"gate": "api", "set": {"user": "bob", "rate": "1/h"}}, {"gate": "api", "set": {"user": "alice", %s}}]}`, members), want)
		refused("put", "PUT", "/quotas/api", fmt.Sprintf(`{"rules": [{"user": "alice", %s}]}`, members), want, "If-Match", "*")
	}
	for _, name := range []string{strings.Repeat("x", 10<<10), "a\x00b", "a\nb"} {
		refused("name", "POST", "/quotas", fmt.Sprintf(`{"ops": [{"gate": "api", "set": {"user": %s, "rate": "1/h"}}]}`, text(name)), "no user has this name")
	}
	for _, body := range []string{"", "null", "[]", "{", `{"ops": null}`, `{"ops": [{}]}`, `{"ops": [null]}`, "\x00", `{"ops": [{"gate": "api", "set": {}}]}`} {
		refused("body", "POST", "/quotas", body, "")
	}
	for _, name := range []string{"{}", "a/client=b", "~"} {
		if w := c.write("POST", "/quotas", fmt.Sprintf(`{"ops": [{"gate": "api", "set": {"user": %s, "rate": "1/h"}}]}`, text(name))); w.Code != http.StatusOK {
			t.Errorf("%q: %d %s", name, w.Code, w.Body)
		}
	}
}
