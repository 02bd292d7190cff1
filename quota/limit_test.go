package quota

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	berlin := place(t, "Europe/Berlin")
	for _, c := range []struct {
		limit Limit
		want  Limit
		text  string
	}{
		{Per(10, time.Second), Limit{Rate: 10, Burst: 10}, "10/s, burst 10"},
		{Per(30, time.Minute), Limit{Rate: .5, Burst: 30}, "30/min, burst 30"},
		{Per(.5, time.Minute), Limit{Rate: .5 / 60, Burst: 1}, "30/h, burst 1"},
		{Per(1000, time.Hour), Limit{Rate: 1000. / 3600, Burst: 1000}, "1000/h, burst 1000"},
		{Per(1000, 24*time.Hour), Limit{Rate: 1000. / 86400, Burst: 1000}, "1000/24h, burst 1000"},
		{Per(2.5, time.Second), Limit{Rate: 2.5, Burst: 2.5}, "150/min, burst 2.5"},
		{Per(1, 7*time.Second), Limit{Rate: 1. / 7, Burst: 1}, "8.57143/min, burst 1"},
		{Per(math.Pi, time.Second), Limit{Rate: math.Pi, Burst: math.Pi}, "3.14159/s, burst 3.14159"},
		{Per(1234567, time.Hour), Limit{Rate: 1234567. / 3600, Burst: 1234567}, "1234567/h, burst 1234567"},
		{Per(1e15, time.Second), Limit{Rate: 1e15, Burst: 1e15}, "1000000000000000/s, burst 1000000000000000"},
		{Samples(10, 11, time.Second), Limit{Rate: 10, Burst: 110}, "10/s, burst 110"},
		{Each(1000, Day, nil), Limit{Burst: 1000, Calendar: Calendar{Period: Day}}, "1000 a day, UTC"},
		{Each(5, Month, berlin), Limit{Burst: 5, Calendar: Calendar{Month, berlin}}, "5 a month, Europe/Berlin"},
	} {
		if c.limit != c.want || c.limit.String() != c.text {
			t.Errorf("%v: %#v, want %q, %#v", c.limit, c.limit, c.text, c.want)
		}
		if err := c.limit.Validate(); err != nil || !c.limit.valid() {
			t.Errorf("%v: %v", c.limit, err)
		}
	}
}

func TestBadLimits(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		limit Limit
		want  string
	}{
		{Limit{}, "Burst 0: must be above 0"},
		{Limit{Rate: 0, Burst: 1}, "Rate 0: must be from 1e-09 to 1e+15"},
		{Limit{Rate: -1, Burst: 1}, "Rate -1"},
		{Limit{Rate: nan, Burst: 1}, "Rate NaN"},
		{Limit{Rate: inf, Burst: 1}, "Rate +Inf"},
		{Limit{Rate: 1e300, Burst: 1}, "Rate 1e+300"},
		{Limit{Rate: 1e-300, Burst: 1}, "Rate 1e-300"},
		{Limit{Rate: 1, Burst: -1}, "Burst -1"},
		{Limit{Rate: 1, Burst: nan}, "Burst NaN"},
		{Limit{Rate: 1, Burst: inf}, "Burst +Inf"},
		{Limit{Rate: 1, Burst: 1e300}, "Burst 1e+300"},
		{Limit{Rate: 1, Burst: 1, Calendar: Calendar{Period: Day}}, "leave it 0"},
		{Limit{Burst: 1, Calendar: Calendar{Period: 9}}, "Calendar.Period 9: must be"},
		{Limit{Rate: 1, Burst: 1, Calendar: Calendar{In: time.UTC}}, "only used with a Period"},
		{Per(10, 0), "Rate +Inf"},
		{Per(nan, time.Second), "Rate NaN"},
		{Samples(10, 0, time.Second), "Burst 0"},
	} {
		err := c.limit.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) || c.limit.valid() {
			t.Errorf("%#v: %v, want %q", c.limit, err, c.want)
		}
	}
}

func TestBadTakes(t *testing.T) {
	good := []Limit{Per(1, time.Second)}
	for _, c := range []struct {
		take Take
		want string
	}{
		{Take{Limits: good, Cost: -1}, "Cost -1: must not be negative"},
		{Take{Limits: good, Mode: 9}, "Mode 9"},
		{Take{}, "Limits: there are 0, must be from 1 to 8"},
		{Take{Limits: make([]Limit, 9)}, "there are 9"},
		{Take{Limits: []Limit{good[0], {}}}, "Limits[1].Burst 0: must be above 0 and at most 1e+15\nLimits[1].Rate 0"},
	} {
		if err := c.take.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.take, err, c.want)
		}
	}
	if err := (&Take{Limits: good, Cost: math.MaxInt64}).Validate(); err != nil {
		t.Error(err)
	}
}
