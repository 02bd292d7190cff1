package live

import (
	"fmt"
	"time"
)

// The guards of part three: the gateway told who asks, with the default limiter and
// with the backend's best concurrency, and the gateway as it is. Where work is
// nested, also the best concurrency and not told, and with nested calls that are not
// exempt but high.
const (
	guardUntold      = "weir, not told"
	guardFixedUntold = "fixed, not told"
	guardHigh        = "fixed, by priority"
)

var orderGuards = []string{guardWeir, guardFixed, guardUntold}

// orderPatience is how long clients wait in part three.
const orderPatience = time.Second

// The backends of part three: 200 requests a second, and one at a time, 100 a second.
var (
	lawPool200 = Law{Name: "pool-200", Kind: "pool", Service: 50 * time.Millisecond, Workers: 10}
	lawOne     = Law{Name: "one-100", Kind: "pool", Service: 10 * time.Millisecond, Workers: 1}
)

// orderConfig is the gateway's file for a guard of part three.
func orderConfig(guard string, law *Law, addr, admin, upstream string) string {
	limit, identity, inner, health := "{}", "", "", ""
	switch guard {
	case guardFixed, guardHigh:
		n, _ := law.best()
		limit = fmt.Sprintf("{limit: %d, queue: {weights: {tenants: {two: 2, four: 4}}}}", n)
	case guardWeir:
		limit = "{queue: {weights: {tenants: {two: 2, four: 4}}}}"
	}
	if guard != guardUntold {
		identity, health = "identity: {tenant: header:X-Tenant, priority: header:X-Priority}\n", ", exempt: true"
		if guard != guardHigh {
			inner = ", exempt: true"
		}
	}
	return fmt.Sprintf(`listeners: [{address: "%s"}]
admin: {address: "%s"}
%supstreams: {app: {targets: ["%s"]}}
gates: {all: {limit: %s}}
routes:
  - {match: [/healthz], gates: [all], upstream: app%s}
  - {match: [%s], gates: [all], upstream: app, timeout: %s%s}
  - {match: [/], gates: [all], upstream: app, timeout: %s}
`, addr, admin, identity, upstream, limit, health, innerPath, orderPatience, inner, orderPatience)
}

// libraryRole is the server for a guard of a row of part three that has its gate
// inside.
func libraryRole(row *orderRow, guard string) role {
	r := role{Kind: "server", Procs: 1, Law: row.law, Guard: Guard{Name: guard, Kind: "knee"}, Nested: nestedTold}
	if guard == guardFixed || guard == guardFixedUntold {
		n, _ := row.law.best()
		r.Guard.Kind, r.Guard.Limit = "fixed", int64(n)
	}
	if guard == guardUntold || guard == guardFixedUntold {
		r.Nested = nestedUntold
	}
	return r
}
