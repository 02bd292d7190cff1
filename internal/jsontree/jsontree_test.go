package jsontree

import (
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/fault"
)

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"{\"user\":\"\xff\xfe\"}":                                         "line 1: the text has bytes that are not UTF-8",
		`{"user":"\ud800"}`:                                               "line 1: user: a text has half of a surrogate pair",
		`{"user":"\udc00\ud800"}`:                                         "half of a surrogate pair",
		`{"a":[1,{"\ud800x":1}]}`:                                         "line 1: a[1]: a text has half of a surrogate pair",
		`["` + `\ud83d\ude00\ud83d` + `"]`:                                "half of a surrogate pair",
		"[" + strings.Repeat("1,", mostValues) + "1]":                     "[249999]: is value number 250001; write at most 250000",
		`{"a":` + strings.Repeat("[", 33) + strings.Repeat("]", 33) + "}": "line 1: a" + strings.Repeat("[0]", 32) + ": is nested more than 32 levels deep",
		`["\ud83d\ude00", "\\ud800", "\ufffd"]`:                           "",
	} {
		var faults fault.List
		Parse([]byte(text), &faults)
		got := ""
		if err := faults.Err(""); err != nil {
			got = err.Error()
		}
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%.40q: %q, want %q", text, got, want)
		}
	}
}
