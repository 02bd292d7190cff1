package jsontree

import (
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/fault"
)

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"{\"user\":\"\xff\xfe\"}":                     "not UTF-8",
		`{"user":"\ud800"}`:                           "line 1: has half of a surrogate pair",
		`{"user":"\udc00\ud800"}`:                     "half of a surrogate pair",
		`{"\ud800x":1}`:                               "half of a surrogate pair",
		`["` + `\ud83d\ude00\ud83d` + `"]`:            "half of a surrogate pair",
		"[" + strings.Repeat("1,", mostValues) + "1]": "at most 250000",
		`["\ud83d\ude00", "\\ud800", "\ufffd"]`:       "",
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
