package cli

import (
	"errors"
	"strings"
	"testing"
)

// badRates are limits that are none, and what is said of them.
var badRates = map[string]string{
	"0/s": "not above 0", "-1/s": "not above 0", "NaN/s": "is not a number", "Inf/s": "is not a number", "1e300/s": "out of range", "1e-300/s": "out of range",
	"0x10/s": "is not a number", "1e400/s": "is not a number", "10/s burst 0": "not above 0", "10/s burst -1": "not above 0", "10/s burst Inf": "is not a number",
	"10/s burst 1e300": "out of range", "10/0s": "is not a unit", "0 a day": "not above 0", "10": "is not a limit", "": "is not a limit", "10/s\n": "",
	"10/s\x00": "is not a unit", strings.Repeat("9", 10<<10) + "/s": "bytes are too many for a limit",
}

// badBursts are those that are none.
var badBursts = []string{"-1", "0", ".5", "NaN", "+Inf", "1e300", "2e15"}

// A quota in flags that is none ends with status 2 and a sentence, before anything
// listens.
func TestRunBadRates(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		args = append([]string{"run", someUpstream, "--listen=127.0.0.1:nowhere"}, args...) // which is found out afterwards
		_, _, err := run(NewRootCommand("test"), "", args...)
		var exit *ExitError
		if !errors.As(err, &exit) || exit.Code != 2 || !strings.Contains(err.Error(), want) || len(err.Error()) > 1000 {
			t.Errorf("%.100q: %.300v, want %q", args, err, want)
		}
	}
	for rate, want := range badRates {
		f(want, "--rate="+rate)
		f(want, "--rate=1/h", "--rate="+rate)
	}
	for _, burst := range badBursts {
		f("how many may come at once, from 1 to 1e+15", "--rate=10/s", "--burst="+burst)
	}
	f("--burst", "--rate=10/s", "--burst=many")
	for _, name := range []string{"", "{}", "a b", "a\x00b", "a\nb", "ü"} {
		f("is not a header name", "--rate=10/s", "--by=header:"+name)
	}
	f("", "--rate=10/s", "--by=header:"+strings.Repeat("x", 10<<10))
}

// So it is with weir quota set, and nothing changes.
func TestQuotaSetBadInput(t *testing.T) {
	at, token := quotaGateway(t)
	set := func(want string, args ...string) {
		t.Helper()
		args = append([]string{"set", "--admin", at, "--token-file", token}, args...)
		out, _, err := run(NewQuotaCommand(), "", args...)
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 2000 {
			t.Errorf("%.100q: %.300v, %s; want %q", args, err, out, want)
		}
	}
	for rate, want := range badRates {
		if rate == "10/s\n" { // which is a rate
			continue
		}
		if rate == "" {
			want = "" // as if it were left out
		}
		set(want, "--user", "alice", "--rate", rate)
		set(want, "--user", "alice", "--limit", "1/h", "--limit", rate)
	}
	for _, burst := range badBursts {
		set("", "--user", "alice", "--rate", "10/s", "--burst", burst)
	}
	for _, name := range []string{strings.Repeat("x", 10<<10), "a\x00b", "a\nb"} {
		set("no user has this name", "--user", name, "--rate", "10/s")
	}
	set("write sha256:a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89", "--user", "\xff", "--rate", "10/s")
	set("--user is empty; write a name, or '*' for each", "--user", "", "--blocked")
	set("--route is empty", "--user", "alice", "--route=", "--rate", "10/s")
	set("--if-match is empty; write a value, or leave the flag out", "--user", "alice", "--rate", "10/s", "--if-match", "")
	if out, _, err := run(NewQuotaCommand(), "", "list", "--admin", at); err != nil || !strings.Contains(out, "none") {
		t.Errorf("something has been set: %s, %v", out, err)
	}
	for _, name := range []string{"{}", "a/client=b", "~", " "} {
		if out, _, err := run(NewQuotaCommand(), "", "set", "--admin", at, "--token-file", token, "--user", name, "--rate", "10/s"); err != nil {
			t.Errorf("%q: %v, %s", name, err, out)
		}
	}
}
