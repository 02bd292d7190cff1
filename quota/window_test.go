package quota

import (
	"math"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"
)

func TestLimits(t *testing.T) {
	berlin := place(t, "Europe/Berlin")
	for _, c := range []struct {
		limit Window
		want  Window
		text  string
	}{
		{Per(10, time.Second), Window{Rate: 10, Burst: 10}, "10/s, burst 10"},
		{Per(30, time.Minute), Window{Rate: 0.5, Burst: 30}, "30/min, burst 30"},
		{Per(0.5, time.Minute), Window{Rate: 0.5 / 60, Burst: 1}, "30/h, burst 1"},
		{Per(1000, time.Hour), Window{Rate: 1000. / 3600, Burst: 1000}, "1000/h, burst 1000"},
		{Per(1000, 24*time.Hour), Window{Rate: 1000. / 86400, Burst: 1000}, "1000/24h, burst 1000"},
		{Per(2.5, time.Second), Window{Rate: 2.5, Burst: 2.5}, "150/min, burst 2.5"},
		{Per(1, 7*time.Second), Window{Rate: 1. / 7, Burst: 1}, "8.57143/min, burst 1"},
		{Per(math.Pi, time.Second), Window{Rate: math.Pi, Burst: math.Pi}, "3.14159/s, burst 3.14159"},
		{Per(1234567, time.Hour), Window{Rate: 1234567. / 3600, Burst: 1234567}, "1234567/h, burst 1234567"},
		{Per(1e15, time.Second), Window{Rate: 1e15, Burst: 1e15}, "1000000000000000/s, burst 1000000000000000"},
		{Samples(10, 11, time.Second), Window{Rate: 10, Burst: 110}, "10/s, burst 110"},
		{PerCalendar(1000, Day, nil), Window{Burst: 1000, Calendar: Calendar{Period: Day}}, "1000 a day, UTC"},
		{PerCalendar(5, Month, berlin), Window{Burst: 5, Calendar: Calendar{Month, berlin}}, "5 a month, Europe/Berlin"},
	} {
		if c.limit != c.want || c.limit.String() != c.text {
			t.Errorf("%v: %#v, want %q, %#v", c.limit, c.limit, c.text, c.want)
		}
		if err := c.limit.Check(); err != nil || !c.limit.valid() {
			t.Errorf("%v: %v", c.limit, err)
		}
	}
}

func TestBadLimits(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		limit Window
		want  string
	}{
		{Window{}, "Burst: 0 will not do; must be above 0"},
		{Window{Rate: 0, Burst: 1}, "Rate: 0 will not do; must be from 1e-09 to 1e+15"},
		{Window{Rate: -1, Burst: 1}, "Rate: -1"},
		{Window{Rate: nan, Burst: 1}, "Rate: NaN"},
		{Window{Rate: inf, Burst: 1}, "Rate: +Inf"},
		{Window{Rate: 1e300, Burst: 1}, "Rate: 1e+300"},
		{Window{Rate: 1e-300, Burst: 1}, "Rate: 1e-300"},
		{Window{Rate: 1, Burst: -1}, "Burst: -1"},
		{Window{Rate: 1, Burst: nan}, "Burst: NaN"},
		{Window{Rate: 1, Burst: inf}, "Burst: +Inf"},
		{Window{Rate: 1, Burst: 1e300}, "Burst: 1e+300"},
		{Window{Rate: 1, Burst: 1, Calendar: Calendar{Period: Day}}, "leave it 0"},
		{Window{Burst: 1, Calendar: Calendar{Period: 9}}, "Calendar.Period: period(9) will not do; must be"},
		{Window{Rate: 1, Burst: 1, Calendar: Calendar{In: time.UTC}}, "only used with a Period"},
		{Per(10, 0), "Rate: +Inf"},
		{Per(nan, time.Second), "Rate: NaN"},
		{Samples(10, 0, time.Second), "Burst: 0"},
	} {
		err := c.limit.Check()
		if err == nil || !strings.Contains(err.Error(), c.want) || c.limit.valid() {
			t.Errorf("%#v: %v, want %q", c.limit, err, c.want)
		}
	}
}

func TestBadTakes(t *testing.T) {
	good := []Window{Per(1, time.Second)}
	for _, c := range []struct {
		take Request
		want string
	}{
		{Request{Windows: good, Cost: -1}, "Cost: -1 will not do; must not be negative"},
		{Request{Windows: good, Mode: 9}, "Mode: mode(9) will not do"},
		{Request{}, "Windows: there are 0; give from 1 to 8"},
		{Request{Windows: make([]Window, 9)}, "there are 9"},
		{Request{Windows: []Window{good[0], {}}}, "Windows[1].Burst: 0 will not do; must be above 0 and at most 1e+15\n\tWindows[1].Rate: 0"},
	} {
		if err := c.take.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.take, err, c.want)
		}
	}
	if err := (&Request{Windows: good, Cost: math.MaxInt64}).Check(); err != nil {
		t.Error(err)
	}
}

func place(t *testing.T, name string) *time.Location {
	t.Helper()
	in, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func parse(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestPeriods(t *testing.T) {
	for _, c := range []struct {
		name, in   string
		period     Period
		at         string
		start, end string
	}{
		{"an hour", "UTC", Hour, "2026-11-21T20:17:56Z", "2026-11-21T20:00:00Z", "2026-11-21T21:00:00Z"},
		{"an hour half an hour off", "Asia/Kolkata", Hour, "2026-11-21T20:17:56+05:30", "2026-11-21T20:00:00+05:30", "2026-11-21T21:00:00+05:30"},
		{"a week", "UTC", Week, "2026-11-22T23:59:59Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"a month", "Europe/Berlin", Month, "2026-10-31T23:30:00Z", "2026-11-01T00:00:00+01:00", "2026-12-01T00:00:00+01:00"},
		{"the last month of a year", "UTC", Month, "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"a day of 23 hours", "Europe/Berlin", Day, "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"a day of 25 hours", "Europe/Berlin", Day, "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"an hour that comes twice, first", "Europe/Berlin", Hour, "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"},
		{"an hour that comes twice, then", "Europe/Berlin", Hour, "2026-10-25T02:30:00+01:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"},
		{"a midnight that comes twice", "America/Havana", Day, "2025-11-02T12:00:00-05:00", "2025-11-02T00:00:00-04:00", "2025-11-03T00:00:00-05:00"},
		{"no midnight", "America/Sao_Paulo", Day, "2018-11-04T12:00:00-02:00", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		{"the day before a day that never was", "Pacific/Apia", Day, "2011-12-29T12:00:00-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"half an hour back", "Australia/Lord_Howe", Hour, "2026-04-05T01:40:00+10:30", "2026-04-05T01:30:00+10:30", "2026-04-05T02:00:00+10:30"},
	} {
		t.Run(c.name, func(t *testing.T) {
			start, end := Calendar{c.period, place(t, c.in)}.Current(parse(t, c.at))
			if !start.Equal(parse(t, c.start)) || !end.Equal(parse(t, c.end)) {
				t.Errorf("%v to %v, want %s to %s", start, end, c.start, c.end)
			}
		})
	}
}

// Periods follow each other without a gap, whatever is done to the clocks.
func TestPeriodsFollowEachOther(t *testing.T) {
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Australia/Lord_Howe",
		"Pacific/Apia", "Africa/Cairo", "Asia/Tehran", "Pacific/Kwajalein", "Asia/Kathmandu", "America/St_Johns"} {
		for _, period := range []Period{Hour, Day, Week, Month} {
			c := Calendar{period, place(t, name)}
			for at := time.Date(2005, 1, 1, 0, 7, 0, 0, time.UTC); at.Year() < 2020; at = at.Add(157*time.Hour + 13*time.Minute) {
				followed(t, c, at)
			}
		}
	}
}

func followed(t *testing.T, c Calendar, at time.Time) {
	t.Helper()
	start, end := c.Current(at)
	if start.After(at) || !end.After(at) {
		t.Fatalf("%v: %v is not in %v to %v", c, at, start, end)
	}
	for _, in := range []time.Time{start, end.Add(-1)} {
		if s, e := c.Current(in); !s.Equal(start) || !e.Equal(end) {
			t.Fatalf("%v: %v is in %v to %v, but %v in %v to %v", c, at, start, end, in, s, e)
		}
	}
	if s, _ := c.Current(end); !s.Equal(end) {
		t.Fatalf("%v: %v to %v is followed by what began at %v", c, start, end, s)
	}
	if c.passed(start, end.Add(-1)) != 0 {
		t.Fatalf("%v: a period begins within %v to %v", c, start, end)
	}
	if n := c.passed(start, end); n != 1 && c.In.String() != "Pacific/Apia" && c.In.String() != "Pacific/Kwajalein" {
		t.Fatalf("%v: from %v to %v %v periods begin, want 1", c, start, end, n)
	}
}

func TestCalendarBucket(t *testing.T) {
	berlin := place(t, "Europe/Berlin")
	p := newPail(false, PerCalendar(1000, Day, berlin))
	p.at.epoch = parse(t, "2026-10-24T22:00:00+02:00") // two hours before a day of 25
	p.play(t, []step{
		{0, 1000, true, 0, 0},
		{0, 1, false, 2 * time.Hour, 0},
		{2*time.Hour - ms, 1, false, ms, 0},
		{ms, 1000, true, 0, 0},
		{0, 1, false, 25 * time.Hour, 0},
		{40 * 24 * time.Hour, 1, true, 0, 999},
		{0, 1001, false, Never, 999},
	})
}

// A debt is paid back from what the next periods bring.
func TestCalendarDebt(t *testing.T) {
	p := newPail(true, PerCalendar(100, Month, nil))
	p.at.epoch = parse(t, "2026-01-15T00:00:00Z")
	p.play(t, []step{
		{0, 350, true, 0, -250},
		{0, 1, false, (17 + 28 + 31) * 24 * time.Hour, -250},
		{(17 + 28) * 24 * time.Hour, 1, false, 31 * 24 * time.Hour, -50},
		{31 * 24 * time.Hour, 1, true, 0, 49},
	})
	p.take(1e15)
	if r := p.take(1); r.OK || r.Wait != Never {
		t.Errorf("a debt for ever: %+v", r)
	}
}

// How many periods begin where clocks are moved by half an hour, or not on the hour.
func TestPeriodsBegun(t *testing.T) {
	for _, c := range []struct {
		in       string
		period   Period
		from, to string
		want     float64
	}{
		// 02:00 comes half an hour after 01:30, which comes twice.
		{"Australia/Lord_Howe", Hour, "2026-04-05T01:10:00+11:00", "2026-04-05T01:40:00+10:30", 1},
		{"Australia/Lord_Howe", Hour, "2026-04-05T01:40:00+10:30", "2026-04-05T02:10:00+10:30", 1},
		{"Australia/Lord_Howe", Hour, "2026-04-05T01:10:00+11:00", "2026-04-05T02:10:00+10:30", 2},
		{"Australia/Lord_Howe", Hour, "2026-04-05T00:59:00+11:00", "2026-04-05T03:00:00+10:30", 4},
		// There is no 02:00, and 02:30 comes in its place.
		{"Australia/Lord_Howe", Hour, "2026-10-04T01:59:00+10:30", "2026-10-04T02:30:00+11:00", 1},
		{"Australia/Lord_Howe", Hour, "2026-10-04T01:59:00+10:30", "2026-10-04T03:00:00+11:00", 2},
		// A minute after midnight it is an hour ago again, and yesterday.
		{"America/St_Johns", Day, "2010-11-07T00:00:30-02:30", "2010-11-06T23:30:00-03:30", 0},
		{"America/St_Johns", Hour, "2010-11-07T00:00:30-02:30", "2010-11-06T23:30:00-03:30", 1},
	} {
		if got := (Calendar{c.period, place(t, c.in)}).passed(parse(t, c.from), parse(t, c.to)); got != c.want {
			t.Errorf("%s: from %s to %s %v %vs begin, want %v", c.in, c.from, c.to, got, c.period, c.want)
		}
	}
	start, end := Calendar{Hour, place(t, "America/St_Johns")}.Current(parse(t, "2010-11-07T00:00:30-02:30"))
	if from, to := parse(t, "2010-11-07T00:00:00-02:30"), parse(t, "2010-11-07T00:01:00-02:30"); !start.Equal(from) || !end.Equal(to) {
		t.Errorf("an hour of a minute: %v to %v, want %v to %v", start, end, from, to)
	}
}
