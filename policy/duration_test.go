package policy

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	pattern := regexp.MustCompile(DurationPattern)
	tests := []struct {
		json string
		want Duration
		err  string // part of the error; "" for none
	}{
		{`"250ms"`, Duration(250 * time.Millisecond), ""},
		{`"1m30s"`, Duration(90 * time.Second), ""},
		{`"1.5h"`, Duration(90 * time.Minute), ""},
		{`"0"`, 0, ""},
		{`0`, 0, ""},
		{`"-1"`, NoDuration, ""},
		{`-1`, NoDuration, ""},
		{`null`, 0, ""},
		{`"-5s"`, Duration(-5 * time.Second), ""}, // for Compile to refuse where it makes no sense
		{`250`, 0, "250 has no unit; write 250ms, 250s or 250m"},
		{`"250"`, 0, "250 has no unit"},
		{`"1 s"`, 0, `"1 s" is no duration`},
		{`"soon"`, 0, `"soon" is no duration; write a number with a unit`},
		{`""`, 0, "is no duration"},
		{`true`, 0, "is no duration"},
		{`{}`, 0, "is no duration"},
	}
	for _, tt := range tests {
		var d Duration
		err := json.Unmarshal([]byte(tt.json), &d)
		if d != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, %v; want %v, %q", tt.json, d, err, tt.want, tt.err)
		}
		text := strings.Trim(tt.json, `"`)
		if ok := pattern.MatchString(text); ok != (tt.err == "") && tt.json != "null" && tt.want >= NoDuration {
			t.Errorf("the pattern takes %s: %t", text, ok)
		}
	}
}

func TestDurationRoundTrip(t *testing.T) {
	for _, d := range []Duration{0, NoDuration, Duration(time.Nanosecond), Duration(1500 * time.Microsecond), Duration(time.Hour)} {
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var back Duration
		if err := json.Unmarshal(text, &back); err != nil || back != d {
			t.Errorf("%v was written %s and read %v: %v", d, text, back, err)
		}
		if !regexp.MustCompile(DurationPattern).MatchString(d.String()) {
			t.Errorf("%v does not match the pattern for schemas", d)
		}
	}
}

func TestWords(t *testing.T) {
	for _, m := range Modes() {
		if got := m.level().mode(); got != m {
			t.Errorf("mode %q turns into %q", m, got)
		}
	}
	if m := Mode("").level().mode(); m != Enforce {
		t.Errorf("the empty mode is %q", m)
	}
	// Every word that is offered compiles.
	for _, controller := range Controllers() {
		for _, order := range Orders() {
			compile(t, limitSpec(with(controller, LimitSpec{Limit: 25, Queue: QueueSpec{Order: order}})), Options{})
		}
	}
}
