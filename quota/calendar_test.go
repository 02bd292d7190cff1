package quota

import (
	"testing"
	"time"
	_ "time/tzdata"
)

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
	p := newPail(false, Each(1000, Day, berlin))
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
	p := newPail(true, Each(100, Month, nil))
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
