package quota

import "testing"

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
