package cli

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
)

// quotaGateway is the admin listener of a gateway with one quota; token is the name of
// the file with its token.
func quotaGateway(t *testing.T) (at, token string) {
	t.Helper()
	return quotaGatewayOf(t, policy.Spec{Gates: map[string]policy.GateSpec{"api": {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/h"}, By: []string{"user"}}}}})
}

func quotaGatewayOf(t *testing.T, spec policy.Spec) (at, token string) {
	t.Helper()
	store, err := quotas.OpenFile(filepath.Join(t.TempDir(), "quotas.json"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	book, err := quotas.Open(t.Context(), quotas.Options{Store: store, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	plan := book.Plan(spec, func(string, string) string { return "weir.yaml:7" }, nil)
	p, err := policy.Compile(spec, policy.Options{QuotaRules: plan.Rules})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	book.SetPolicy(plan, p)
	token = write(t, "token", "0123456789abcdef\n")
	s := httptest.NewServer(admin.Handler(admin.Options{
		Metrics: http.NotFoundHandler(), Gates: func() any { return 1 }, Ready: func() bool { return true },
		Quotas: &admin.QuotaAPI{Book: book, Writers: &admin.Writers{TokenFile: func() string { return token }, Socket: func() string { return "" }, Log: eventlog.New(slog.New(slog.DiscardHandler), nil)}},
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), token
}

func TestQuota(t *testing.T) {
	at, token := quotaGateway(t)
	f := func(code int, part string, args ...string) string {
		t.Helper()
		args = append(args, "--admin", at)
		out, _, err := run(NewQuotaCommand(), "", args...)
		got := exitOK
		if exit := (*ExitError)(nil); errors.As(err, &exit) {
			got = exit.Code
		} else if err != nil {
			got = exitError
		}
		text := out
		if err != nil {
			text += err.Error()
		}
		if got != code || !strings.Contains(text, part) {
			t.Errorf("%v: exit code %d, %s, want %d with %q", args, got, text, code, part)
		}
		return out
	}
	f(0, "none", "list")
	f(1, "--token-file", "set", "--user", "alice", "--rate", "3/h")
	f(2, "gives nothing", "set", "--user", "alice", "--token-file", token)
	f(2, `"abc" is not a limit`, "set", "--user", "alice", "--rate", "abc")
	for _, burst := range []string{"NaN", "+Inf", "-5", "0", "2e+15"} {
		f(2, "--burst "+burst+" is not", "set", "--user", "alice", "--rate", "3/h", "--burst", burst, "--token-file", token)
	}
	f(1, "nothing was changed: priority: \"urgent\" is not", "set", "--priority", "urgent", "--address", "10.0.0.0/33", "--rate", "3/h", "--token-file", token) // two faults
	f(2, "no such file", "set", "--user", "alice", "--rate", "3/h", "--token-file", token+"x")
	f(0, "gate api, user=alice: would be 3/h burst 3\n", "set", "--user", "alice", "--rate", "3/h", "--validate-only", "--token-file", token)
	f(0, "none", "list")
	f(0, "gate api, user=alice: now 3/h burst 9\n", "set", "--gate", "api", "--user", "alice", "--rate", "3/h", "--burst", "9", "--token-file", token)
	f(0, "now 10/s burst 20, 1000/h burst 1000 (the file gives 10/h burst 10)\n", "set", "--user", "*", "--limit", "10/s burst 20", "--limit", "1000/h", "--token-file", token)
	f(0, "now blocked (set before: 3/h burst 9)", "set", "--user", "alice", "--blocked", "--token-file", token)
	f(0, "now 10/s burst 20, 1000/h burst 1000 (set before: 10/s burst 20, 1000/h burst 1000; the file gives 10/h burst 10)\n", "set", "--user", "*", "--limit", "10/s burst 20", "--limit", "1000/h", "--token-file", token)
	f(1, "gates with a quota are api", "set", "--gate", "apo", "--user", "alice", "--blocked", "--token-file", token)
	f(3, "changed since", "delete", "--user", "alice", "--if-match", "old", "--token-file", token)
	out := f(0, "weir.yaml:7", "describe")
	for _, part := range []string{"ETag ", "user=*", "no: a rule set at run time has its place", "by token from 127.0.0.1"} {
		if !strings.Contains(out, part) {
			t.Errorf("describe says no %q:\n%s", part, out)
		}
	}
	if out := f(0, "blocked", "describe", "--user", "alice"); strings.Contains(out, "weir.yaml") {
		t.Errorf("not of alice:\n%s", out)
	}
	var l quotas.Listing
	if err := json.Unmarshal([]byte(f(0, "{", "list", "--json")), &l); err != nil || len(l.Rules) != 2 {
		t.Errorf("%v %+v", err, l)
	}
	f(0, "now as the file says: no rule for it (set before: blocked)\n", "delete", "--user", "alice", "--if-match", l.ETag, "--token-file", token)
	f(1, "no rule for user=alice", "delete", "--user", "alice", "--token-file", token)
	f(0, "gate api, user=alice: bucket api/user=alice of rule user=* is full again (10/s, burst 20; 1000/h, burst 1000); it held 20 of 10/s, burst 20\n", "reset", "--user", "alice", "--token-file", token)
	f(0, `"bucket": "api/user=alice"`, "reset", "--gate", "api", "--user", "alice", "--client", "web", "--json", "--token-file", token)
	f(1, "--token-file", "reset", "--user", "alice")
	f(1, "gates with a quota are api", "reset", "--gate", "apo", "--user", "alice", "--token-file", token)
	f(1, "user: is missing", "reset", "--client", "web", "--token-file", token)
	f(2, "nobody is named", "reset", "--token-file", token)
	f(2, "is not a name", "reset", "--user", "*", "--token-file", token)
	f(2, "--user is empty", "reset", "--user", "", "--token-file", token)
	f(2, "leave one out", "delete", "--all", "--user", "alice", "--token-file", token)
	f(2, "--gate", "delete", "--all", "--token-file", token)
	f(0, "user=*: now as the file says: 10/h burst 10 (set before: 10/s burst 20, 1000/h burst 1000)\n", "delete", "--gate", "api", "--all", "--token-file", token)
	f(0, "nothing to change", "delete", "--gate", "api", "--all", "--token-file", token)
}

// While the rules cannot be read, the list says what holds: the known ones, or none if nothing was ever read.
func TestQuotaTrouble(t *testing.T) {
	for neverRead, want := range map[bool]string{true: "they cannot be read now; none of them is in force: gone", false: "they cannot be read now; the known ones stay in force: gone"} {
		var out strings.Builder
		if err := printRules(&out, &quotas.Listing{KeptIn: "quotas.json", Trouble: "gone", NeverRead: neverRead}, false); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v\n%s\nwant %s", err, out.String(), want)
		}
	}
}

// Without a gateway it says where it looked, over the socket too.
func TestQuotaNobodyThere(t *testing.T) {
	for _, at := range []string{"127.0.0.1:1", "unix:" + filepath.Join(t.TempDir(), "s")} {
		_, _, err := run(NewQuotaCommand(), "", "list", "--admin", at)
		if err == nil || !strings.Contains(err.Error(), at) || !strings.Contains(err.Error(), "--admin") {
			t.Errorf("%v", err)
		}
	}
}

// Every example in the help of weir quota is a command line that is understood, and every
// command has one.
func TestQuotaExamples(t *testing.T) {
	at, token := quotaGateway(t)
	seen := 0
	for _, name := range []string{"", "set", "delete", "reset", "list", "describe"} {
		help, _, err := run(NewQuotaCommand(), "", append(strings.Fields(name), "--help")...)
		_, examples, found := strings.Cut(help, "Examples:\n")
		examples, _, _ = strings.Cut(examples, "\n\n")
		if err != nil || !found {
			t.Errorf("%q has no examples: %v\n%s", name, err, help)
			continue
		}
		for _, line := range strings.Split(strings.Trim(examples, "\n"), "\n") {
			command, _, _ := strings.Cut(strings.TrimSpace(line), "  # ") // a comment, in a shell too
			args := fields(strings.TrimPrefix(command, "weir quota"))
			if strings.HasPrefix(command, "weir explain") {
				continue
			}
			if i := slices.Index(args, "--admin"); i >= 0 {
				args = slices.Delete(args, i, i+2)
			}
			if i := slices.Index(args, "--token-file"); i >= 0 {
				args = slices.Delete(args, i, i+2)
			}
			args = append(args, "--admin", at)
			if !slices.Contains([]string{"list", "describe"}, args[0]) {
				args = append(args, "--token-file", token)
			}
			_, _, err := run(NewQuotaCommand(), "", args...)
			if err != nil && !strings.Contains(err.Error(), "has no rule for") {
				t.Errorf("%s: %v", command, err)
			}
			seen++
		}
	}
	if seen < 15 {
		t.Errorf("only %d examples", seen)
	}
}

// What a filter does not find is told with how to find out what counts.
func TestQuotaDescribeNobody(t *testing.T) {
	at, _ := quotaGateway(t)
	out, _, err := run(NewQuotaCommand(), "", "describe", "--user", "nobody", "--admin", at)
	if err != nil || !strings.Contains(out, "no rule says user=nobody; weir explain shows which one counts for a request") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, _ = run(NewQuotaCommand(), "", "list", "--admin", at); strings.Contains(out, "explain") {
		t.Errorf("%s", out)
	}
}
