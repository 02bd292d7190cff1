package ratelimit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/ratelimit"
	"github.com/weir-go/weir/policy"
)

// Every fault is told with its file and line, all at once.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"no domain":      {"descriptors:\n", []string{"f.yaml:1:1: domain: is missing"}},
		"empty domain":   {"domain: ''\n", []string{"f.yaml:1:9: domain: is empty"}},
		"long domain":    {"domain: " + strings.Repeat("x", 300), []string{"f.yaml:1", "at most 256 bytes"}},
		"not YAML":       {"'''", []string{"f.yaml:1", "in quotes has no end"}},
		"a list":         {"- domain: a", []string{"f.yaml:1", "holds no fields"}},
		"unknown keys":   {"domain: a\nlimits: 1\ndescriptors:\n- {key: a, ratelimit: {unit: day}}\n- {key: b, rate_limit: {unit: day, requestsperunit: 5}}", []string{"f.yaml:2:1: limits: there is no such field", "f.yaml:4:", "ratelimit", "f.yaml:5:", "requestsperunit"}},
		"no texts":       {"domain: a\n0.25: x\n", []string{"f.yaml:2:1"}},
		"a list of one":  {"domain: a\ndescriptors: [a, b]\n", []string{"descriptors[0]: is the text \"a\"", "descriptors[1]"}},
		"empty key":      {"domain: a\ndescriptors:\n- value: x\n- {key: '', value: y}", []string{"f.yaml:3:3: descriptors[0].key: is missing", "f.yaml:4:", "descriptors[1].key: is empty"}},
		"twice":          {"domain: a\ndescriptors:\n- {key: k, value: v}\n- key: k\n  value: v", []string{"f.yaml:4:3: descriptors[1]: has the same key and value as descriptors[0]"}},
		"twice below":    {"domain: a\ndescriptors:\n- key: k\n  descriptors:\n  - key: x\n  - key: x", []string{"f.yaml:6:", "descriptors[0].descriptors[1]: has the same key and value as descriptors[0].descriptors[0]"}},
		"unit":           {"domain: a\ndescriptors:\n- {key: k, rate_limit: {unit: foo, requests_per_unit: 5}}\n- {key: l, rate_limit: {requests_per_unit: 5}}", []string{`f.yaml:3:`, `"foo" is not a unit of time`, "f.yaml:4:", "write second, minute"}},
		"unlimited":      {"domain: a\ndescriptors:\n- {key: k, rate_limit: {unlimited: true, unit: day}}", []string{"unit: means nothing where there is no limit"}},
		"too many":       {"domain: a\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 4294967296}}\n- {key: l, rate_limit: {unit: day, requests_per_unit: -1}}", []string{"f.yaml:3:", "f.yaml:4:", "4294967295"}},
		"replaces":       {"domain: a\ndescriptors:\n- {key: k, rate_limit: {unit: day, name: n, replaces: [{name: n}, {name: }, {name: ''}]}}", []string{"replaces[0].name: is the limit itself", "replaces[1].name: is missing", "replaces[2].name: is empty"}},
		"cycle":          {"domain: a\ndescriptors:\n- {key: k, rate_limit: {unit: day, name: n, replaces: [{name: m}]}}\n- {key: l, rate_limit: {unit: day, name: m, replaces: [{name: o}]}}\n- {key: m, rate_limit: {unit: day, name: o, replaces: [{name: n}]}}", []string{"limits replace each other", "m replaces o replaces n replaces m"}},
		"key wildcard":   {"domain: a\ndescriptors:\n- {key: 'k*', rate_limit: {unit: day, requests_per_unit: 5}}", []string{"f.yaml:3:9: descriptors[0].key: has a wildcard, which only a value may have"}},
		"nothing shared": {"domain: a\ndescriptors:\n- {key: k, value: v, share_threshold: true}", []string{"share_threshold", "has no wildcard"}},
		"long wildcard":  {"domain: a\ndescriptors:\n- {key: k, value: '" + strings.Repeat("x", 201) + "*'}", []string{"at most 200"}},
		"deep":           {"domain: a\n" + nested(40), []string{"levels deep"}},
		"bomb":           {"domain: a\nx0: &x0 [a, a, a, a, a, a, a, a, a, a]\n" + bomb(9), []string{"more than 50000 values"}},
		"itself":         {"domain: a\ndescriptors: &d\n- {key: k, descriptors: *d}", []string{"f.yaml", "levels deep"}},
		"metadata":       {"domain: a\ndescriptors:\n- {key: k, rate_limit: {unit: day}, metadata: [a]}", []string{"metadata"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, faults := load(map[string]string{"f.yaml": c.file})
			for _, want := range c.want {
				if !strings.Contains(faults, want) {
					t.Errorf("%q is missing in\n%s", want, faults)
				}
			}
			if len(faults) > 20_000 {
				t.Errorf("%d bytes of faults", len(faults))
			}
		})
	}
}

func nested(levels int) string {
	var b strings.Builder
	for i := range levels {
		fmt.Fprintf(&b, "%sdescriptors:\n%s- key: k\n", strings.Repeat("  ", i), strings.Repeat("  ", i))
	}
	return b.String()
}

func bomb(levels int) string {
	var b strings.Builder
	for i := range levels {
		fmt.Fprintf(&b, "x%d: &x%d [*x%d, *x%d, *x%d, *x%d, *x%d, *x%d, *x%d, *x%d, *x%d]\n", i+1, i+1, i, i, i, i, i, i, i, i, i)
	}
	return b.String()
}

// Anchors are followed, files of one domain are joined, and what is the same in two is a fault of
// the later.
func TestSeveralFiles(t *testing.T) {
	a := "domain: d\ndescriptors:\n- {key: k, rate_limit: &l {unit: day, requests_per_unit: 3}}\n- {key: m, rate_limit: *l}"
	limits, faults := load(map[string]string{"a.yaml": a, "b.yaml": "domain: d\ndescriptors:\n- {key: k, value: v}", "c.yaml": "domain: e\n"})
	if faults != "" || !slices.Equal(limits.Names(), []string{"d", "e"}) {
		t.Fatal(faults)
	}
	var rules []string
	for i, r := range limits["d"].Rules {
		rules = append(rules, fmt.Sprintf("%s %s%v %s", r.Pattern(), r.Rate, r.Exempt, limits["d"].Places[i]))
	}
	want := []string{"descriptor=k=* 3/24hfalse a.yaml:3", "descriptor=m=* 3/24hfalse a.yaml:4", "descriptor=k=v true b.yaml:3"}
	if !slices.Equal(rules, want) {
		t.Errorf("%q, want %q", rules, want)
	}
	if _, faults := load(map[string]string{"a.yaml": a, "b.yaml": "domain: d\ndescriptors:\n- key: k"}); !strings.Contains(faults, "b.yaml:3:3: descriptors[0]: has the same key and value as descriptors[0] in a.yaml") {
		t.Error(faults)
	}
}

// Files as large as they may be are read in seconds, whatever is in them.
func TestManyDescriptors(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 4500 {
		fmt.Fprintf(&b, "- {key: k, value: v%d*, rate_limit: {unit: second, requests_per_unit: 1}}\n", i)
	}
	limits, faults := load(map[string]string{"f.yaml": b.String()})
	if faults != "" {
		t.Fatalf("%.300s", faults)
	}
	if p, err := policy.Compile(policy.Spec{Gates: limits.Gates(nil, "", "", "")}, policy.Options{}); err != nil {
		t.Errorf("%.300v", err)
	} else {
		p.Close()
	}
}

// Whatever a file holds, it is read or its faults are told, and what is read makes a policy.
func FuzzFile(f *testing.F) {
	f.Add(limits)
	f.Add("domain: d\ndescriptors:\n- {key: k, value: a*, descriptors: [{key: x, rate_limit: {unit: day, requests_per_unit: 1}}]}\n- {key: k, descriptors: [{key: y, rate_limit: {unit: day}}]}\n- {key: k, value: ab}")
	f.Add("domain: d\ndescriptors: &d\n- {key: k, value: '%,=*', descriptors: *d}")
	f.Fuzz(func(t *testing.T, text string) {
		root, faults := config.ParseDocument("f.yaml", []byte(text))
		if root == nil {
			return
		}
		limits := ratelimit.Limits{}
		limits.Add("f.yaml", root, faults)
		limits.Compile()
		if err := faults.Err(""); err != nil {
			if !utf8.ValidString(err.Error()) || !strings.Contains(err.Error(), "f.yaml:") {
				t.Fatalf("%q", err)
			}
			return
		}
		p, err := policy.Compile(policy.Spec{Gates: limits.Gates(nil, "", "", "")}, policy.Options{})
		if err != nil {
			t.Fatalf("%v of\n%s", err, text)
		}
		p.Close()
	})
}
