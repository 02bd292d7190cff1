package policy

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/quota"
)

func TestParseLimit(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("no time zones here: ", err)
	}
	for text, want := range map[string]quota.Window{
		"10/s":                      {Rate: 10, Burst: 10},
		" 10 / s ":                  {Rate: 10, Burst: 10},
		"10/s burst 20":             {Rate: 10, Burst: 20},
		"10/s, burst 20":            {Rate: 10, Burst: 20},
		"0.5/s":                     {Rate: 0.5, Burst: 1},
		"30/min":                    {Rate: 0.5, Burst: 30},
		"30/m":                      {Rate: 0.5, Burst: 30},
		"3600/h":                    {Rate: 1, Burst: 3600},
		"5/10s":                     {Rate: 0.5, Burst: 5},
		"5/10ms":                    {Rate: 500, Burst: 5},
		"86400/24h":                 {Rate: 1, Burst: 86400},
		"1000/h":                    {Rate: 1000. / 3600, Burst: 1000},
		"1000/24h":                  {Rate: 1000. / 86400, Burst: 1000},
		"1234567/h burst 7654321":   {Rate: 1234567. / 3600, Burst: 7654321},
		"1e6/s":                     {Rate: 1e6, Burst: 1e6},
		"5000 a day":                quota.PerCalendar(5000, quota.Day, nil),
		"5000 a day, UTC":           quota.PerCalendar(5000, quota.Day, nil),
		"5000 a month":              quota.PerCalendar(5000, quota.Month, nil),
		"5000 a week Europe/Berlin": quota.PerCalendar(5000, quota.Week, berlin),
	} {
		got, err := ParseLimit(text)
		if want.Calendar.In != nil && got.Calendar.In != nil && got.Calendar.In.String() == want.Calendar.In.String() {
			want.Calendar.In = got.Calendar.In
		}
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
		if again, err := ParseLimit(got.String()); err != nil || again != got {
			t.Errorf("%q is printed as %q, which is read as %+v, %v", text, got, again, err)
		}
	}
	for text, want := range map[string]string{
		"": "is not a limit; write for instance", "10": "is not a limit", "ten/s": "is not a number; write", "10MB/s": `"10MB" is not a number; write 10485760/s`, "1.5 KiB/s": "write 1536/s", "0/s": "is not above 0", "-1/s": "is not above 0",
		"NaN/s": "is not a number", "Inf/s": "is not a number", "1e300/s": "is out of range", "0x10/s": "is not a number", "1e-300/s": "is out of range",
		"10/fortnight": "is not a unit of time", "10/0s": "is not a unit", "10/day": "write 10/24h", "10/d": "10 a day", "10/month": "write 10/720h", "1/ms": `"ms" is not a unit of time; write 1000/s`, "2 per millisecond": "write 2000/s", "1.001/ms": "write 1001/s", "1ms": "is not a limit; write for instance",
		"10/s burst 0": "is not above 0", "10/s burst x": "is not a number", "10 a year": "is not a period", "10 a day Nowhere/Here": "is not a time zone",
		"10 a day Local":                `"Local" is not a time zone that is known here; write one such as Europe/Berlin`,
		strings.Repeat("9", 200) + "/s": "bytes are too many for a limit",
	} {
		if _, err := ParseLimit(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%q: %v, want %q and a remedy", text, err, want)
		}
	}
}

func FuzzParseLimit(f *testing.F) {
	for _, text := range []string{"10/s burst 20", "5000 a day Europe/Berlin", "1e300/1ns", "1 a a", "/", "1/9999999h burst .1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLimit(text)
		if err != nil {
			return
		}
		if err := l.Check(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if again, _ := ParseLimit(text); again != l {
			t.Errorf("%q is %+v and %+v", text, l, again)
		}
	})
}

func TestDuration(t *testing.T) {
	pattern := regexp.MustCompile(setting.DurationPattern)
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
		{`"1 s"`, 0, `"1 s" has a space; write 1s`},
		{`"2d"`, 0, `"2d" is in days; write 48h`},
		{`"1 day"`, 0, `"1 day" is not a duration`},
		{`"99999999h"`, 0, `"99999999h" is too long; write at most 2562047h`},
		{`"2562047h"`, Duration(2562047 * time.Hour), ""},
		{`"soon"`, 0, `"soon" is not a duration; write a number with a unit`},
		{`""`, 0, "is not a duration"},
		{`true`, 0, "is not a duration"},
		{`{}`, 0, "is not a duration"},
	}
	for _, tt := range tests {
		var d Duration
		err := json.Unmarshal([]byte(tt.json), &d)
		if d != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, %v; want %v, %q", tt.json, d, err, tt.want, tt.err)
		}
		text := strings.Trim(tt.json, `"`)
		if ok := pattern.MatchString(text); ok != (tt.err == "" || strings.Contains(tt.err, "too long")) && tt.json != "null" && tt.want >= NoDuration {
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
		if !regexp.MustCompile(setting.DurationPattern).MatchString(d.String()) {
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
		for _, order := range []string{"adaptive", "fifo", "lifo", "edf"} {
			compile(t, limitSpec(with(controller, LimitSpec{Limit: 25, Queue: QueueSpec{Order: order}})), Options{})
		}
	}
}
