package quotas

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// What is wrong with a file is told with its line.
func TestDecodeFaults(t *testing.T) {
	head := "{\n  \"weir_quotas\": 1,\n  \"revision\": 3,\n  \"rules\": [\n"
	f := func(text string, parts ...string) {
		t.Helper()
		_, err := decode("q.json", []byte(text))
		if err == nil {
			t.Errorf("%q is taken", text)
			return
		}
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v, want %q in it", text, err, part)
			}
		}
	}
	f("[]", "q.json:1:", "is a list")
	f("{}", "q.json:1:", "weir_quotas: 0 is not the version")
	f(`{"weir_quotas": 2, "revision": 1, "rules": []}`, "weir_quotas: 2 is not the version")
	f("{\n\"weir_quotas\": 1,\n\"revisoin\": 2}", "q.json:3:", "revisoin")
	f("{\n\"weir_quotas\": 1,\n\"weir_quotas\": 1}", "q.json:3:", "twice")
	f(head+"    {\"gate\":\"api\",\"rate\":\"1/s\"},\n    {\"gate\":\"api\",\"user\":\"bob\",\"rate\":\"abc\"}\n  ]\n}\n", "q.json:6:", "rules[1]", `"abc"`)
	f(head+"    {\"gate\":\"api\",\"user\":\"bob\",\"raet\":\"1/s\"}\n  ]\n}\n", "q.json:5:", "raet")
	f(head+"    {\"gate\":\"api\",\"user\":\"bob\"}\n  ]\n}\n", "q.json:5:", "gives no limit")
	f(head+"    {\"user\":\"bob\",\"rate\":\"1/s\"}\n  ]\n}\n", "q.json:5:", "names no gate")
	f(head+"    {\"gate\":\"a\",\"rate\":\"1/s\"},\n\n    {\"gate\":\"a\",\"rate\":\"2/s\"}\n  ]\n}\n", "q.json:7:", "rules[1]: matches the same as rules[0], all")
	f(head+"    {\"gate\":\"a\",\"exempt\":true,\"blocked\":true}\n  ]\n}\n", "q.json:5:", "exempt and blocked")
	f(head+"    {\"gate\":\"a\",\"rate\":\"1/s\",\"set_at\":\"yesterday\"}\n  ]\n}\n", "q.json:5:", `"yesterday" is not a time; write one as in "2026`)
	f(head+"    {\"gate\":\"a\",\n", "q.json:")
	f(head+"  ]\n}\n}\n", "q.json:7:")
	f(strings.Repeat(" ", maxBytes+1), "larger than")
	f(head+strings.Repeat("{\"gate\":\"a\",\"user\":\"u\",\"rate\":\"1/s\"},\n", 2), "q.json:")
}

func TestDecodeTooMany(t *testing.T) {
	d := &document{Format: format}
	for i := range MaxRules + 1 {
		d.Rules = append(d.Rules, Rule{Gate: "a", QuotaRuleSpec: *user(fmt.Sprint("u", i), "1/s")})
	}
	data, err := d.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode("q.json", data); err == nil || !strings.Contains(err.Error(), "more than 10000 rules") {
		t.Errorf("%v", err)
	}
}

// What is kept can be read again, whatever it is.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("{\n\"weir_quotas\": 1,\n\"rules\": [{\"gate\":\"a\",\"user\":\"b\",\"rate\":\"1/s\",\"set_at\":\"2026-01-02T03:04:05Z\",\"set_by\":\"me\"}]}"))
	f.Add([]byte(`{"weir_quotas":1,"rules":[{"gate":"a","address":"10.0.0.0/8","limits":["1/s","5 a day UTC"],"blocked":false}]}`))
	f.Add([]byte(`{"rules":[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := decode("q", data)
		if err != nil || len(data) == 0 {
			return
		}
		text, err := d.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode("q", text)
		if err != nil {
			t.Fatalf("%s\ncannot be read again: %v", text, err)
		}
		text2, err := again.encode()
		if err != nil || !bytes.Equal(text, text2) {
			t.Fatalf("%v: %s\nbecomes\n%s", err, text, text2)
		}
	})
}

func TestDecode(t *testing.T) {
	type inner struct {
		A string `json:"a"`
	}
	type outer struct {
		X    int     `json:"x"`
		List []inner `json:"list"`
	}
	f := func(text, part string) {
		t.Helper()
		err := Decode([]byte(text), new(outer))
		if (err == nil) != (part == "") || err != nil && !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
	f(`{"x": 1, "list": [{"a": "b"}, {"a": "X"}]}`, "")
	f(`{"x": 1, "X": 2}`, "X: there is no such field; write x")
	f(`{"x": 1, "x": 2}`, "twice")
	f(`{"list": [{"a": "1", "a": "2"}]}`, "twice")
	f(`{"y": 1}`, "y")
	f(`{"x": 1} {"x": 2}`, "after the end")
	f(`{"x": "1"}`, `x: "1" is a text, because of the quotes; write 1`)
	f(`{"x": 1.5}`, `x: "1.5" is not a whole number; write a whole number`)
	f(`{"x": {}}`, "x: is a group of fields; write a whole number")
	f(`{"list": [{"a": true}]}`, `list[0].a: "true" is true or false, not a text`)
	f(`[]`, "is a list; write fields")
	f(`"text"`, `is the text "text"; write fields`)
	f(`7`, "is a number; write fields")
	f(`{"x": 1`, "ends in the middle")
	f(``, "ends in the middle")
	f(`{"x": nul}`, "write valid JSON")
	f(strings.Repeat("[", 100), "nested")
	f(`{"list": null}`, "")
	var got outer
	if err := Decode([]byte(`{"x": 7, "list": [{"a": "z"}]}`), &got); err != nil || !reflect.DeepEqual(got, outer{7, []inner{{"z"}}}) {
		t.Errorf("%+v %v", got, err)
	}
}

// A network is the same however it is written: one set at run time takes the place of
// the file's, and of itself.
func TestNetworksByAnyName(t *testing.T) {
	spec := base()
	spec.Identity.Client = "address"
	network := func(address, rate string) policy.QuotaRuleSpec {
		return policy.QuotaRuleSpec{Rule: quota.Rule{Address: quota.Match(address)}, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: rate}}
	}
	q := *spec.Gates["api"].Quota
	q.Rules = append(q.Rules, network("2001:db8::/32", "5/h"))
	spec.Gates["api"] = policy.GateSpec{Quota: &q}
	d := newDesk(t, newFile(t, inTemp(t)), spec)
	for _, r := range []policy.QuotaRuleSpec{network("2001:DB8::/32", "7/h"), network("2001:db8:0::/32", "8/h")} {
		d.must(Change{Ops: []Op{{Gate: "api", Set: &r}}, By: "tester"})
	}
	gives := map[string]string{}
	for _, v := range d.List("api").Rules {
		if v.InForce {
			gives[v.Matches] += v.Gives
		}
	}
	if gives["address=2001:db8::/32"] != "8/h" {
		t.Errorf("%v, want what was set last", gives)
	}
	if log := d.log.String(); len(d.policy.Gate("api").Quota().Rules()) != 3 {
		t.Errorf("%d rules in force, want 3:\n%s", len(d.policy.Gate("api").Quota().Rules()), log)
	}
}

// What a rule gives is said with its bursts, whether they are written or not.
func TestInFull(t *testing.T) {
	for want, r := range map[string]policy.QuotaRuleSpec{
		"10/s burst 10":             {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/s"}},
		"5/s burst 500":             {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5/s", Burst: 500}},
		"5/s burst 50":              {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5/s burst 50"}},
		"1/10s burst 1":             {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/10s"}},
		"5000 a day":                {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5000 a day"}},
		"9/s burst 9, 5/h burst 20": {QuotaLimitSpec: policy.QuotaLimitSpec{Limits: []string{"9/s", "5/h burst 20"}}},
		"exempt":                    {Rule: quota.Rule{Exempt: true}, QuotaLimitSpec: policy.QuotaLimitSpec{Limits: []string{"9/s", "5/h"}}},
		"blocked":                   {Rule: quota.Rule{Blocked: true}},
	} {
		if got := FullTerms(&r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A step tells what the file gives, under whatever name it has the rule, and what holds
// when its rule is taken back.
func TestStepsTellOfTheFile(t *testing.T) {
	spec := base()
	spec.Gates["api"].Quota.Rules[0].Rate, spec.Gates["api"].Quota.Rules[0].Burst = "5/s", 500
	d := newDesk(t, newFile(t, inTemp(t)), spec)
	f := func(gives, file string, c Change) {
		t.Helper()
		for _, c.ValidateOnly = range []bool{true, false} {
			res := d.must(c)
			if s := res.Steps[0]; len(res.Steps) != 1 || s.Gives != gives || s.FileGives != file {
				t.Errorf("%+v, want %q of the file's %q", res.Steps, gives, file)
			}
		}
		if file != "" && !strings.Contains(d.log.String(), `file_gives="`+file+`"`) {
			t.Errorf("no %q in\n%s", file, d.log)
		}
	}
	f("10/s burst 10", "5/s burst 500", set("api", "alice", "10/s"))
	f("1/s burst 1", "10/h burst 10", set("api", "*", "1/s"))
	f("1/s burst 1", "", set("api", "bob", "1/s"))
	f("5/s burst 500", "5/s burst 500", Change{Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: "alice"}}}})
	f("", "", Change{Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: "bob"}}}})
}
