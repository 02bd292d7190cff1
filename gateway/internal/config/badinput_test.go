package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// quotaFile is a file with a quota and a route; both are flow mappings.
func quotaFile(quota, route string) []byte {
	return fmt.Appendf(nil, "identity: {user: \"header:X-User\"}\nupstreams: {app: {targets: [\"http://127.0.0.1:1\"]}}\ngates: {q: {quota: {%s}}}\nroutes: [{match: [/], gates: [q], upstream: app, %s}]\n", quota, route)
}

// parseAll parses a file and compiles its policy, as the gateway does.
func parseAll(text []byte) (*policy.Policy, error) {
	c, err := config.Parse("weir.yaml", text)
	if err != nil {
		return nil, err
	}
	return policy.Compile(c.Policy(), policy.Options{})
}

// A rate, a burst or a cost that is none is a fault that says where it stands and what
// to write; never a limit that holds nobody.
func TestBadQuotaNumbers(t *testing.T) {
	rates := map[string]string{
		"0/s": "not above 0", "-1/s": "not above 0", "NaN/s": "is no number", "Inf/s": "is no number", "1e300/s": "out of range", "1e-300/s": "out of range",
		"0x10/s": "is no number", "1e400/s": "is no number", "10/s burst 0": "not above 0", "10/s burst -1": "not above 0", "10/s burst NaN": "is no number",
		"10/s burst 1e300": "out of range", "10/s burst .5": "lets nothing through", "0 a day": "not above 0", "NaN a day": "is no number", "": "", "10": "is no limit",
	}
	for rate, want := range rates {
		for where, quota := range map[string]string{
			"rate":          fmt.Sprintf("rate: %q", rate),
			"limits[1]":     fmt.Sprintf("limits: [1/h, %q]", rate),
			"rules[0].rate": fmt.Sprintf("rules: [{user: alice, rate: %q}]", rate),
		} {
			_, err := parseAll(quotaFile(quota, "timeout: 1s"))
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "weir.yaml:3:") && !strings.Contains(err.Error(), "gates.q.quota") {
				t.Errorf("%s %q: %v, want %q", where, rate, err, want)
			}
		}
	}
	for burst, want := range map[string]string{
		"-1": "too small", ".5": "a burst of at least 1", ".nan": "is no number", ".inf": "is no number", "1e300": "too large", "2e15": "too large", "ten": "is no number",
	} {
		if _, err := parseAll(quotaFile("rate: 10/s, burst: "+burst, "timeout: 1s")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("burst %s: %v, want %q", burst, err, want)
		}
	}
	for cost, want := range map[string]string{
		"-1": "too small", "1.5": "is no whole number", "9223372036854775808": "is no whole number", "99999999999999999999999": "is no whole number", "2000000000000000": "too large",
		"1e300": "is no whole number", ".nan": "is no whole number", "many": "is no whole number",
	} {
		if _, err := parseAll(quotaFile("rate: 10/s", "cost: "+cost)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("cost %s: %v, want %q", cost, err, want)
		}
	}
}

// Names that nobody may have are faults that say what the gateway calls such a user; odd
// ones are names like others.
func TestBadQuotaNames(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("x", 10<<10): "no user has this name", `a\0b`: "no user has this name", `a\nb`: "no user has this name",
		"{}": "", "{a}b": "", "a/client=b": "", "~": "", " ": "",
	} {
		p, err := parseAll(quotaFile(fmt.Sprintf("rules: [{user: \"%s\", rate: 1/h}]", name), "timeout: 1s"))
		if want == "" {
			if err != nil {
				t.Errorf("%.20q: %v", name, err)
				continue
			}
			if n := len(p.Gate("q").Quota().Rules()); n != 1 {
				t.Errorf("%.20q: %d rules", name, n)
			}
			p.Close()
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "sha256:") || len(err.Error()) > 2000 {
			t.Errorf("%.20q: %.300v, want %q", name, err, want)
		}
	}
}
