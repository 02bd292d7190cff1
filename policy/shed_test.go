package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// A gate that sheds goes by the load of another, also after a reload, and refuses
// the lowest first.
func TestShedByLoad(t *testing.T) {
	var now time.Duration
	spec := Spec{
		Gates:  map[string]GateSpec{"front": {Shed: &ShedSpec{LoadOf: "db"}}, "db": fixed(100)},
		Routes: []RouteSpec{{Name: "r", Gates: []string{"front", "db"}}},
	}
	p := compile(t, spec, Options{Now: func() time.Duration { return now }})
	gate := p.Route("r").Gate().(weir.TryAdmitter)
	classes := []weir.Priority{weir.Background, weir.Normal, weir.High, weir.Critical}
	passes := func() string {
		var b strings.Builder
		now += time.Second
		p.Step()
		for _, class := range classes {
			if permit, err := gate.TryAdmit(weir.Work{Priority: class, User: "u"}); err == nil {
				b.WriteString(class.String() + " ")
				permit.Cancel()
			} else if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonShed || r.Gate != "front" {
				t.Errorf("%v: %v", class, err)
			}
		}
		return b.String()
	}
	for _, tt := range []struct {
		hold int
		want string
	}{
		{0, "background normal high critical "}, {74, "background normal high critical "}, {1, "normal high critical "},
		{15, "high critical "}, {5, "critical "}, {5, ""},
	} {
		held(t, p.Gate("db"), weir.Work{}, tt.hold)
		if got := passes(); got != tt.want {
			t.Errorf("with %d in flight: %q, want %q", p.Gate("db").Snapshot().InFlight, got, tt.want)
		}
	}
	if s := p.Gate("front").Snapshot(); s.Kind != "shed" || s.Rejected[weir.ReasonShed] == 0 || s.Name != "front" {
		t.Errorf("%+v", s)
	}
}

// A gate that sheds by the wait at another looks at what a newcomer is expected to
// wait there.
func TestShedByWait(t *testing.T) {
	var now time.Duration
	p := compile(t, Spec{Gates: map[string]GateSpec{
		"front": {Shed: &ShedSpec{WaitOf: "db", Wait: Duration(50 * time.Millisecond)}},
		"other": {Shed: &ShedSpec{WaitOf: "db", Wait: Duration(time.Hour)}},
		"db":    {Limit: &LimitSpec{Limit: 1, Queue: QueueSpec{Order: "fifo", MaxWait: NoDuration}}},
	}}, Options{Now: func() time.Duration { return now }})
	db := p.Gate("db")
	var next weir.Permit // that which is served last so far
	wake := func(granted weir.Permit, err error) {
		if err == nil {
			next = granted
		}
	}
	next = admit(t, db)
	for range 200 { // the slot comes back every 10 ms, and 100 wait for it
		for range 100 - db.Snapshot().Waiting {
			if _, _, err := db.Arrive(weir.Work{}, wake); err != weir.ErrWaiting {
				t.Fatal(err)
			}
		}
		now += 10 * time.Millisecond
		p.Step()
		next.Done(weir.OK)
	}
	if s := db.Snapshot(); s.Wait < 500*time.Millisecond {
		t.Fatalf("a newcomer waits %v", s.Wait)
	}
	if _, err := p.Gate("front").TryAdmit(weir.Work{Priority: weir.Critical}); err == nil {
		t.Error("the wait is not heeded")
	}
	if _, err := p.Gate("other").TryAdmit(weir.Work{}); err != nil {
		t.Errorf("a wait that is wanted: %v", err)
	}
}
