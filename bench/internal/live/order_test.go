package live

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/loadgen"
)

// rowOf finds a row of part three.
func rowOf(t *testing.T, id string) *orderRow {
	t.Helper()
	for _, row := range orderRows() {
		if row.id == id {
			return &row
		}
	}
	t.Fatalf("no row %s", id)
	return nil
}

// A class is judged by what came of it while all were there, beside what it had
// alone, and by its share of what was answered.
func TestOrderFigures(t *testing.T) {
	row := rowOf(t, "S14")
	o := orderRun{row: row, capacity: 1, times: orderTimes{warm: time.Second, stage: 4 * time.Second, alone: 5 * time.Second, tail: time.Second}}
	for i := range row.classes {
		alone := []record{{Due: 2 * time.Second, Answer: loadgen.OK, Latency: ms(10), Calls: 1}}
		crowd := []record{
			{Due: 5500 * time.Millisecond, Answer: loadgen.OK, Latency: ms(500), Calls: 1}, // everybody has just come: not judged
			{Due: 7 * time.Second, Answer: loadgen.Refused, Latency: ms(1)},
			{Due: 8 * time.Second, Answer: loadgen.GaveUp, Latency: ms(30)},
		}
		for range i + 1 {
			crowd = append(crowd, record{Due: 9 * time.Second, Answer: loadgen.OK, Latency: ms(20), Calls: 1})
		}
		tail := record{Due: 10500 * time.Millisecond, Answer: loadgen.OK, Latency: ms(900), Calls: 1} // nobody comes after it: not judged
		o.records = append(o.records, append(append(alone, crowd...), tail))
	}
	f := o.figures()
	one := f[0] // one of six answers, and a seventh is its share
	if one.Sent != 3 || one.Served != 1./3 || one.Refused != 1./3 || one.P99 != 30 || one.Alone != 10 || one.Goodput != 1.5 {
		t.Errorf("%+v", one)
	}
	for i, want := range []float64{1./6*7 - 1, 1./3*7/2 - 1, 1 - 1./2*7/4} {
		if off := f[i].OffShare; math.Abs(off-want) > 1e-9 {
			t.Errorf("class %d is off its share by %v, want %v", i, off, want)
		}
	}
	out := outcome{records: o.records, marks: make([]mark, 2)}
	trial := trial{phases: []phase{{For: 11 * time.Second}}}
	if why := trial.void([]outcome{out}); why != "" {
		t.Errorf("void: %s", why)
	}
	o.records[0][0].Late = true
	if why := trial.void([]outcome{out}); !strings.Contains(why, "sends late") {
		t.Errorf("a send in twenty was late: %q", why)
	}
}

// Tasks count when all of their calls were answered, and no more of them can be done
// than the capacity allows.
func TestTaskFigures(t *testing.T) {
	o := orderRun{row: rowOf(t, "S15"), capacity: 4, times: orderTimes{warm: time.Second, stage: 4 * time.Second, tail: 4 * time.Second}}
	var records []record
	for i := range 8 { // two a second: for twice the capacity
		records = append(records, record{Due: time.Second + time.Duration(i)*500*time.Millisecond, Answer: loadgen.Refused, Calls: uint8(i % 4)})
	}
	for i := range 3 {
		records[i].Answer, records[i].Calls = loadgen.OK, 4
	}
	o.records = [][]record{records}
	f := o.figures()[0]
	if f.Tasks != 0.75 || f.Served != 3./8 || f.Alone != 0 { // of four that the capacity allows
		t.Errorf("%+v", f)
	}
	if want := (12. + 3 + 0 + 1 + 2 + 3) / 16; f.Goodput != want {
		t.Errorf("goodput %v, want %v: calls of tasks that failed are answers too", f.Goodput, want)
	}
	o.records[0] = records[:2]
	if f := o.figures()[0]; f.Tasks != 1 {
		t.Errorf("%+v: all that were due were done", f)
	}
}

// The slack is what the foreground leaves, by the work that was done, and when.
func TestSlack(t *testing.T) {
	row := rowOf(t, "S21")
	second := time.Second
	o := orderRun{row: row, capacity: 200, times: orderTimes{warm: second, stage: 2 * second, alone: 3 * second, tail: second}}
	o.records = [][]record{
		{{Due: 4100 * time.Millisecond, Answer: loadgen.OK, Latency: second, Work: 5 * second}, {Due: 5 * second, Answer: loadgen.Refused, Work: 9 * second}},
		{
			{Due: 3500 * time.Millisecond, Answer: loadgen.OK, Latency: second, Work: 6 * second}, // from before, done in it
			{Due: 5 * second, Answer: loadgen.OK, Latency: second / 2, Work: 6 * second},
			{Due: 5 * second, Answer: loadgen.GaveUp, Latency: second / 2, Work: 9 * second},
			{Due: 5900 * time.Millisecond, Answer: loadgen.OK, Latency: second, Work: 7 * second}, // done too late to count
		},
	}
	f := o.figures()
	if want := 12. / 15; math.Abs(f[1].Slack-want) > 1e-9 { // ten workers for 2 s, less 5
		t.Errorf("slack %v, want %v", f[1].Slack, want)
	}
	if f[0].Slack != 0 || f[1].Tasks != 0 || f[1].Nested != nil {
		t.Errorf("%+v", f)
	}
}

// What is no work for the backend is no goodput.
func TestIdleFigures(t *testing.T) {
	o := orderRun{row: rowOf(t, "S22"), capacity: 1, times: orderTimes{stage: 2 * time.Second}}
	o.records = [][]record{{{Answer: loadgen.OK, Calls: 1}}, {{Answer: loadgen.OK, Calls: 1}}}
	if f := o.figures()[0]; f.Goodput != 0.5 || f.Served != 1 {
		t.Errorf("%+v", f)
	}
}

// Of nested calls each round has to be right: a median would hide a deadlock.
func TestNestedFigures(t *testing.T) {
	o := orderRun{row: rowOf(t, "S23"), capacity: 2, times: orderTimes{stage: 4 * time.Second}, nested: Nested{Calls: 5, Stuck: 1, Behind: 2}}
	o.records = [][]record{{{Answer: loadgen.OK, Calls: 1}, {Due: time.Second, Answer: loadgen.OK, Calls: 1}, {Due: 2 * time.Second, Answer: loadgen.OK, Calls: 1}, {Due: 3 * time.Second, Answer: loadgen.Refused}}}
	f := o.figures()[0]
	if f.Tasks != 0.75 || f.Goodput != 0.75 || f.Nested.Stuck != 1 || f.Nested.Behind != 2 {
		t.Errorf("%+v of %+v", f, f.Nested)
	}
	r := newResults(Plan{})
	r.orderCell("S23", guardWeir, "outer").Rounds = []orderFigures{{Nested: &Nested{}, Tasks: 1}, {Nested: &Nested{}, Tasks: 1}, {Nested: &Nested{Stuck: 1}, Tasks: 1}}
	r.judge()
	report := r.Markdown()
	if want := "stuck 1 ≤ 0 ✗; behind 0 ≤ 0 ✓; tasks 1 ≥ 0.9 ✓"; !strings.Contains(report, want) {
		t.Errorf("no %q in\n%s", want, report)
	}
}

func TestOrderReport(t *testing.T) {
	r := newResults(Plan{Pace: 1})
	r.orderCell("S12", guardWeir, "critical").Void = 1
	r.orderCell("S12", guardFixed, "critical").Rounds = []orderFigures{{Served: 1, P99: 110, Alone: 100}}
	r.orderCell("S14", guardFixed, "two").Rounds = []orderFigures{{OffShare: 0.01}}
	r.orderCell("S21", guardFixed, "batch").Rounds = []orderFigures{{Slack: 0.9}}
	r.orderCell("S22", guardUntold, "health").Rounds = []orderFigures{{Served: 0.5, P99: 30}, {Served: 0.1, P99: 50}, {Served: 0.2, P99: 40}}
	r.judge()
	report := r.Markdown()
	for _, want := range []string{
		"| S12 | weir | critical | void |", "S12, critical of weir (1)",
		"| S12 | fixed | critical | 1.0000 | 0.0 | 110 | 100 | 0.00 |  | served 1 ≥ 1 ✓; p99/alone 1.1 ≤ 1.2 ✓ |",
		"| S22 | weir, not told | health | 0.2000 (0.1000–0.5000) | 0.0 | 40 (30–50) |  |", "served 0.2 ≥ 1 ✗; p99 ms 40 ≤ 20 ✗ |",
		"| share error 0.010 | share error 0.01 ≤ 0.03 ✓ |", "| slack 0.900 | slack 0.9 ≥ 0.8 ✓ |",
		"# Who goes first, on real servers", "3 rounds at pace 1)",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in\n%s", want, report)
		}
	}
	if strings.Contains(report, "- S15:") {
		t.Error("the report speaks of a row that was not measured")
	}
}

func TestWantsOrder(t *testing.T) {
	p := Plan{Rows: []string{"S23", "S12"}}
	var wanted []string
	for _, row := range orderRows() {
		if p.wantsOrder(&row) {
			wanted = append(wanted, row.id)
		}
	}
	if got := strings.Join(wanted, ", "); got != "S12, S23, S23 one slot, S23 gateway" {
		t.Error(got)
	}
}

// A handler that calls the gate it has passed goes by its own slot if the context says
// so, and stands before itself if not: with one slot nothing ever comes of it.
func TestNestedInside(t *testing.T) {
	for _, told := range []string{nestedTold, nestedUntold} {
		c := &child{epoch: time.Now(), backend: newTimed(lawOne)}
		h, err := c.guarded(&role{Nested: told, Guard: Guard{Name: told, Kind: "fixed", Limit: 1, MaxWait: ms(20)}})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(t.Context())
		r.Header.Set(workHeader, "100")
		h.ServeHTTP(w, r)
		got, want, status := c.stats().Nested, Nested{Calls: 1}, http.StatusOK
		if told == nestedUntold {
			want, status = Nested{Calls: 1, Behind: 1, Stuck: 1}, http.StatusServiceUnavailable
		}
		got.P99 = 0
		if got != want || w.Code != status {
			t.Errorf("%s: %+v and status %d, want %+v and %d: %s", told, got, w.Code, want, status, w.Body)
		}
	}
}

// By way of a gateway a nested call is a request like any other: what is answered
// anything but 200 is stuck.
func TestNestedOutside(t *testing.T) {
	statuses := []int{http.StatusOK, http.StatusServiceUnavailable}
	var inner http.Handler
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != innerPath || r.Header.Get("X-Priority") != "high" {
			t.Errorf("%s of priority %q came", r.URL, r.Header.Get("X-Priority"))
		}
		status := statuses[0]
		if statuses = statuses[1:]; status != http.StatusOK {
			w.WriteHeader(status)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer gateway.Close()
	c := &child{epoch: time.Now(), backend: newTimed(lawOne), limits: new(limits)}
	inner = c.bare(&role{Nested: gateway.URL})
	for _, want := range []int{http.StatusOK, http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set(workHeader, "100")
		inner.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("status %d, want %d: %s", w.Code, want, w.Body)
		}
	}
	if got := c.stats(); got.Nested.Calls != 2 || got.Nested.Stuck != 1 || got.Nested.P99 <= 0 || got.Done != 3 {
		t.Errorf("%+v", got)
	}
}

// A gateway before a backend has an upstream, and one that an Envoy asks has none.
func TestOrderConfig(t *testing.T) {
	before := orderConfig(guardFixed, &lawPool200, "127.0.0.1:1", "127.0.0.1:2", "http://127.0.0.1:3")
	asked := orderConfig(guardAsked, &lawPool200, "127.0.0.1:1", "127.0.0.1:2", "")
	want := `listeners: [{address: "127.0.0.1:1"}]
admin: {address: "127.0.0.1:2"}
identity: {tenant: header:X-Tenant, priority: header:X-Priority}
upstreams: {app: {targets: ["http://127.0.0.1:3"]}}
gates: {all: {limit: {limit: 10, queue: {weights: {tenants: {two: 2, four: 4}}}}}}
routes:
  - {match: [/healthz], gates: [all], upstream: app, exempt: true}
  - {match: [/inner], gates: [all], upstream: app, timeout: 1s, exempt: true}
  - {match: [/], gates: [all], upstream: app, timeout: 1s}
`
	if before != want {
		t.Errorf("got\n%s\nwant\n%s", before, want)
	}
	want = strings.NewReplacer("upstreams: {app: {targets: [\"http://127.0.0.1:3\"]}}\n", "", ", upstream: app", "",
		`{address: "127.0.0.1:1"}`, `{address: "127.0.0.1:1", serve: [ext_proc]}`, "limit: 10, ", "").Replace(want)
	if asked != want {
		t.Errorf("got\n%s\nwant\n%s", asked, want)
	}
}
