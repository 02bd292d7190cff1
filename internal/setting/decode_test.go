package setting_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/jsontree"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
)

func decode(text string, into any) error {
	var faults fault.List
	if root := jsontree.Parse([]byte(text), &faults); root != nil {
		setting.Decode(root, into, &faults)
	}
	return faults.Err("")
}

func TestDecodeTakesEmbeddedStructs(t *testing.T) {
	type scenario struct {
		Seed uint64 `json:"seed"`
		policy.Spec
		On     bool    `json:"on"`
		Hidden int     `json:"-"`
		Factor float32 `json:"factor"`
	}
	var s scenario
	if err := decode(`{"seed": 7, "routes": [{"name": "r"}], "on": true, "factor": 1.5}`, &s); err != nil {
		t.Fatal(err)
	}
	if s.Seed != 7 || len(s.Routes) != 1 || !s.On || s.Factor != 1.5 {
		t.Errorf("got %+v", s)
	}
	err := decode(`{"seed": -7, "hidden": 1, "on": "yes"}`, &s)
	var faults *fault.Faults
	if !errors.As(err, &faults) || len(faults.List) != 3 {
		t.Errorf("got %v", err)
	}
}

// A key and a word of an earlier version are read as those of today, and noted.
func TestDecodeOldNames(t *testing.T) {
	type group struct {
		Key string `json:"key" was:"before" renamed:"off=none,on=all"`
	}
	for text, want := range map[string]string{`{"key": "all"}`: "", `{"before": "all"}`: "before key", `{"before": "on"}`: "before key key all"} {
		var faults fault.List
		var g group
		setting.Decode(jsontree.Parse([]byte(text), &faults), &g, &faults)
		var noted []string
		for _, f := range faults.Notes() {
			noted = append(noted, f.Path.String(), strings.TrimPrefix(f.Instead, "write "))
		}
		if got := strings.Join(noted, " "); g.Key != "all" || got != want || faults.Len() > 0 {
			t.Errorf("%s: %q, notes %q, want %q", text, g.Key, got, want)
		}
	}
	if err := decode(`{"before": "on", "key": "all"}`, new(group)); err == nil || !strings.Contains(err.Error(), "before: is the old name of key, which is written too; leave before out") {
		t.Errorf("both names: %v", err)
	}
}

// A value of the wrong kind is told by what it was meant to be.
func TestDecodeGuesses(t *testing.T) {
	type item struct {
		Hosts []string `json:"hosts" required:"true"`
		Make  string   `json:"make" enum:"count,off" meant:"true=count,false=off"`
	}
	type document struct {
		Items map[string]item `json:"items" example:"{a: {hosts: [x]}}"`
		One   struct {
			Name  string `json:"name"`
			Itens string `json:"itens"`
		} `json:"one"`
	}
	for text, want := range map[string]string{
		`{"items": {"hosts": ["x"], "make": "off"}}`:       "items: has fields where a name belongs; write a name above them, as in items: {a: {hosts: [x]}}",
		`{"items": {"hosts": {"hosts": ["x"]}}}`:           "",
		`{"items": {"a": {"hosts": "x, y:1"}}}`:            `items.a.hosts: is the text "x, y:1"; write a list: [x, "y:1"]`,
		`{"items": {"a": {"hosts": ["x"], "make": true}}}`: `items.a.make: "true" is not known; write count`,
		`{"name": "b c"}`:       `name: there is no such field; write it below one, as one: {name: "b c"}`,
		`{"name": ["b"]}`:       "name: there is no such field; write it below one",
		`{"itens": {"a": "b"}}`: "itens: there is no such field; write items, or write it below one",
		`{"itens": ["b"]}`:      "itens: there is no such field; write it below one",
	} {
		err := decode(text, new(document))
		if err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A JSON document ends with its value, and its names are the program's own affair.
func TestDecodeJSON(t *testing.T) {
	var spec policy.Spec
	if err := decode(`{"gates": {"api.v1": {"limit": {"limit": 5}}}} `+"\n", &spec); err != nil {
		t.Error(err)
	}
	for _, end := range []string{",,,::", "{}", "x", `"`} {
		if err := decode(`{"gates": {}}`+end, &spec); err == nil {
			t.Errorf("%q after the end is accepted", end)
		}
	}
}

// scalars has a field of each kind of scalar, without bounds and with them.
type scalars struct {
	Limit int64            `json:"limit" example:"20"`
	Tall  uint8            `json:"tall"`
	Ratio float64          `json:"ratio"`
	On    bool             `json:"on"`
	Size  int64            `json:"size" min:"2" max:"10"`
	Share float64          `json:"share" min:"0" max:"1"`
	Wait  time.Duration    `json:"wait" min:"1s" max:"1m"`
	Least int64            `json:"least" min:"1" minus1:"no bound"`
	Kind  string           `json:"kind" enum:"one,two"`
	Sizes []int64          `json:"sizes" min:"2" max:"10"`
	Named map[string]int64 `json:"named" min:"2" max:"10"`
}

// same fails the test if err is not want. No error is the empty text.
func same(t *testing.T, of string, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got = strings.TrimPrefix(got, "1 fault\n\t"); got != want {
		t.Errorf("%s: %q, want %q", of, got, want)
	}
}

func TestScalars(t *testing.T) {
	tests := []struct {
		key  string
		kind setting.Kind
		text string
		want string
	}{
		{"limit", setting.Number, "5", ""},
		{"limit", setting.Number, "5_000", ""},
		{"limit", setting.Text, "5", `limit: "5" is a text, because of the quotes; write 5`},
		{"limit", setting.Number, "1.5", `limit: "1.5" is not a whole number; write a whole number, such as 20`},
		{"tall", setting.Number, "255", ""},
		{"tall", setting.Number, "256", `tall: "256" is not a whole number; write a whole number`},
		{"tall", setting.Number, "-1", `tall: "-1" is below 0; write a whole number`},
		{"tall", setting.Text, "-abc", `tall: "-abc" is not a whole number; write a whole number`},
		{"tall", setting.Text, "5", `tall: "5" is a text, because of the quotes; write 5`},
		{"on", setting.Bool, "true", ""},
		{"on", setting.Text, "true", `on: "true" is a text, because of the quotes; write true`},
		{"ratio", setting.Number, "16.5", ""},
		{"ratio", setting.Number, "1e3", ""},
		{"ratio", setting.Text, "16.5", `ratio: "16.5" is a text, because of the quotes; write 16.5`},
		{"ratio", setting.Number, "0x1p4", `ratio: "0x1p4" is not a number; write a number`},
		{"ratio", setting.Number, "0X1P4", `ratio: "0X1P4" is not a number; write a number`},
		{"ratio", setting.Number, "inf", `ratio: "inf" is not a number; write a number`},
		{"ratio", setting.Number, "-Inf", `ratio: "-Inf" is not a number; write a number`},
		{"ratio", setting.Number, "nan", `ratio: "nan" is not a number; write a number`},
		{"wait", setting.Text, "5s", ""},
		{"wait", setting.Number, "5", `wait: 5 has no unit; write 5ms, 5s or 5m`},
	}
	for _, tt := range tests {
		var faults fault.List
		root := &setting.Node{Kind: setting.Group, Members: []setting.Member{{Key: tt.key, Value: &setting.Node{Kind: tt.kind, Text: tt.text}}}}
		setting.Decode(root, new(scalars), &faults)
		same(t, tt.key+": "+tt.text, faults.Err(""), tt.want)
	}
}

// A bound belongs to what is allowed, in a document, in its items and under its names alike.
func TestBounds(t *testing.T) {
	tests := map[string]string{
		`"size": 1`:            "size: is 1, too small; write at least 2",
		`"size": 2`:            "",
		`"size": 10`:           "",
		`"size": 11`:           "size: is 11, too large; write at most 10",
		`"share": 0`:           "",
		`"share": 1`:           "",
		`"share": -0.1`:        "share: is -0.1, too small; write at least 0",
		`"share": 5`:           "share: is 5, too large; write at most 1, or 0.05 for 5 %",
		`"wait": "999ms"`:      "wait: is 999ms, too small; write at least 1s",
		`"wait": "1s"`:         "",
		`"wait": "1m"`:         "",
		`"wait": "61s"`:        "wait: is 1m1s, too large; write at most 1m",
		`"least": -1`:          "",
		`"least": 0`:           "least: is 0, too small; write at least 1, or -1: no bound",
		`"least": -2`:          "least: is -2, too small; write at least 1, or -1: no bound",
		`"kind": "two"`:        "",
		`"kind": "three"`:      `kind: "three" is not known; write one of one, two`,
		`"sizes": [2, 10, 11]`: "sizes[2]: is 11, too large; write at most 10",
		`"sizes": [1, 2]`:      "sizes[0]: is 1, too small; write at least 2",
		`"named": {"a": 2}`:    "",
		`"named": {"a": 0}`:    "named.a: is 0, too small; write at least 2",
	}
	for text, want := range tests {
		var s scalars
		same(t, text, withoutPlaces(decode("{"+text+"}", &s)), want)
	}
}

// withoutPlaces takes the lines and columns out of an error.
func withoutPlaces(err error) error {
	var faults *fault.Faults
	if !errors.As(err, &faults) {
		return err
	}
	var list fault.List
	for _, f := range faults.List {
		f.Place = fault.Place{}
		list.AddFault(f)
	}
	return list.Err("")
}

// What a program writes has the same bounds. A zero is a setting that was left out, but not one
// that has a name of its own.
func TestCheck(t *testing.T) {
	inf := math.Inf(1)
	tests := []struct {
		s    scalars
		want string
	}{
		{scalars{}, ""},
		{scalars{Size: 2, Share: 1, Wait: time.Minute, Least: -1, Kind: "one"}, ""},
		{scalars{Size: 1}, "size: is 1, too small; write at least 2"},
		{scalars{Size: 11}, "size: is 11, too large; write at most 10"},
		{scalars{Ratio: inf}, "ratio: is +Inf; write a number that is finite"},
		{scalars{Ratio: -inf}, "ratio: is -Inf; write a number that is finite"},
		{scalars{Ratio: math.NaN()}, "ratio: NaN is not a number; write a number"},
		{scalars{Share: inf}, "share: is +Inf, too large; write at most 1"},
		{scalars{Named: map[string]int64{"a": 2, "b": 10}}, ""},
		{scalars{Named: map[string]int64{"a": 0}}, "named.a: is 0, too small; write at least 2"},
		{scalars{Named: map[string]int64{"a": 1}}, "named.a: is 1, too small; write at least 2"},
	}
	for _, tt := range tests {
		var faults fault.List
		setting.Check(nil, tt.s, &faults)
		same(t, fmt.Sprintf("%+v", tt.s), faults.Err(""), tt.want)
	}
}

func TestComplete(t *testing.T) {
	type config struct {
		Size  int64 `default:"5" min:"2" max:"10"`
		Ratio float64
	}
	tests := []struct {
		cfg  config
		size int64
		want string
	}{
		{config{}, 5, ""},
		{config{Size: 2, Ratio: -1}, 2, ""},
		{config{Size: 10}, 10, ""},
		{config{Size: 1}, 1, "Size: is 1, too small; write at least 2"},
		{config{Size: 11}, 11, "Size: is 11, too large; write at most 10"},
		{config{Ratio: math.Inf(1)}, 5, "Ratio: is +Inf; write a number that is finite"},
		{config{Ratio: math.Inf(-1)}, 5, "Ratio: is -Inf; write a number that is finite"},
		{config{Ratio: math.NaN()}, 5, "Ratio: NaN is not a number; write a number"},
	}
	for _, tt := range tests {
		var faults fault.List
		cfg := tt.cfg
		setting.Complete(&cfg, &faults)
		same(t, fmt.Sprintf("%+v", tt.cfg), faults.Err(""), tt.want)
		if cfg.Size != tt.size {
			t.Errorf("%+v: size %d, want %d", tt.cfg, cfg.Size, tt.size)
		}
	}
}

// A required setting is missing if it is neither there nor meant by another key.
func TestRequired(t *testing.T) {
	type group struct {
		Limit int64 `json:"limit" required:"true" example:"20"`
	}
	for text, want := range map[string]string{
		`{"limit": 0}`: "",
		`{"limit": 7}`: "",
		`{}`:           "limit: is missing; add limit: 20",
		`{"limti": 7}`: "limti: there is no such field; write limit",
	} {
		same(t, text, withoutPlaces(decode(text, new(group))), want)
	}
}
