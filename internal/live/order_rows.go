package live

import (
	"fmt"
	"time"
)

// orderRow is a scenario of part three: classes of clients before one gate, of which
// some must not suffer from the others. It is run with those alone, and then with
// all.
type orderRow struct {
	id, about string
	classes   []class
}

// class is one class of clients: a load of its own.
type class struct {
	name  string
	heads []string // of its requests, see [Load]
	alone float64  // load while only some are there, as a share of the capacity
	load  float64  // while all are there
	idle  bool     // its requests are no work for the backend
	goals []orderGoal
	// weight is that of its tenant, where the row is about shares.
	weight float64
}

// orderGoal is a figure of a class with a bound.
type orderGoal struct {
	what  string
	value func(*OrderFigures) float64
	most  bool // the bound is an upper one
	bound float64
}

func served(f *OrderFigures) float64   { return f.Served }
func p99(f *OrderFigures) float64      { return f.P99 }
func ofAlone(f *OrderFigures) float64  { return f.P99 / max(1e-3, f.Alone) }
func offShare(f *OrderFigures) float64 { return f.OffShare }

// head is the beginning of a request to a path, up to the headers that the client
// adds itself.
func head(path, headers string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: live\r\n" + headers
}

func ofTenant(name string) string { return head("/", "X-Tenant: "+name+"\r\n") }

func ofPriority(word string) string { return head("/", "X-Priority: "+word+"\r\n") }

// victims are the tenants that share half of the capacity.
const victims = 100

func orderRows() []orderRow {
	all := func(bound float64) orderGoal { return orderGoal{what: "served", value: served, bound: bound} }
	slower := func(bound float64) orderGoal {
		return orderGoal{what: "p99/alone", value: ofAlone, most: true, bound: bound}
	}
	off := []orderGoal{{what: "share error", value: offShare, most: true, bound: 0.03}}
	var small []string
	for i := range victims {
		small = append(small, ofTenant(fmt.Sprint("t", i)))
	}
	return []orderRow{
		{id: "S12", about: "critical work of .6 of the capacity, and other work of twelve times it", classes: []class{
			{name: "critical", heads: []string{ofPriority("critical")}, alone: 0.6, load: 0.6, goals: []orderGoal{all(0.9999), slower(1.2)}},
			{name: "bulk", heads: []string{ofPriority("normal")}, load: 12},
		}},
		{id: "S13", about: "a hundred tenants of .005 of the capacity each, and one of ten times it", classes: []class{
			{name: "victims", heads: small, alone: 0.5, load: 0.5, goals: []orderGoal{all(0.9999), slower(1.5)}},
			{name: "aggressor", heads: []string{ofTenant("big")}, load: 10},
		}},
		{id: "S14", about: "weights 1, 2 and 4; the first sends seven times as much as the others", classes: []class{
			{name: "one", heads: []string{ofTenant("one")}, load: 10.5, weight: 1, goals: off},
			{name: "two", heads: []string{ofTenant("two")}, load: 1.5, weight: 2, goals: off},
			{name: "four", heads: []string{ofTenant("four")}, load: 1.5, weight: 4, goals: off},
		}},
		{id: "S22", about: "health checks, exempt, beside ten times the capacity", classes: []class{
			{name: "health", heads: []string{head("/healthz", "")}, alone: 0.1, load: 0.1, idle: true,
				goals: []orderGoal{all(1), {what: "p99 ms", value: p99, most: true, bound: 20}}},
			{name: "bulk", heads: []string{head("/", "")}, load: 10},
		}},
	}
}

// The stretches of a run of part three, at pace 1: to warm up, to be measured.
const (
	orderWarm  = 3 * time.Second
	orderStage = 10 * time.Second
)

// orderLength is how long a run of part three takes.
func (p *Plan) orderLength() time.Duration { return 2 * p.turn(orderWarm+orderStage) }

// The guards of part three: the gateway told who asks, with the default limiter and
// with the backend's best concurrency, and the gateway as it is.
const guardUntold = "weir, not told"

var orderGuards = []string{guardWeir, guardFixed, guardUntold}

// orderPatience is how long clients wait in part three.
const orderPatience = time.Second

// lawPool200 is the backend of part three: 200 requests a second.
var lawPool200 = Law{Name: "pool-200", Kind: "pool", Service: 50 * time.Millisecond, Workers: 10}

// orderConfig is the gateway's file for a guard of part three.
func orderConfig(guard, addr, admin, upstream string) string {
	limit, identity, exempt := "{}", "", ""
	if guard == guardFixed {
		n, _ := lawPool200.best()
		limit = fmt.Sprintf("{limit: %d, queue: {weights: {tenants: {two: 2, four: 4}}}}", n)
	}
	if guard == guardWeir {
		limit = "{queue: {weights: {tenants: {two: 2, four: 4}}}}"
	}
	if guard != guardUntold {
		identity, exempt = "identity: {tenant: header:X-Tenant, priority: header:X-Priority}\n", ", exempt: true"
	}
	return fmt.Sprintf(`listeners: [{address: "%s"}]
admin: {address: "%s"}
%supstreams: {app: {targets: ["%s"]}}
gates: {all: {limit: %s}}
routes:
  - {match: [/healthz], gates: [all], upstream: app%s}
  - {match: [/], gates: [all], upstream: app, timeout: %s}
`, addr, admin, identity, upstream, limit, exempt, orderPatience)
}
