package sim

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/weir-go/weir/policy"
)

// in tells the wait rooms of a policy.
func (f *Fair) in(spec policy.Spec) policy.Spec {
	if f.Users == nil && f.Tenants == nil && f.Shares == nil && !f.ByTime {
		return spec
	}
	spec.Gates = maps.Clone(spec.Gates)
	for name, g := range spec.Gates {
		if g.Limit == nil {
			continue
		}
		l := *g.Limit
		l.Queue.Shares = f.Shares
		l.Queue.Weights = policy.WeightsSpec{Users: f.Users, Tenants: f.Tenants}
		l.Queue.ByTime = f.ByTime
		g.Limit = &l
		spec.Gates[name] = g
	}
	return spec
}

// maxMin divides capacity between demands by weight: nobody gets more than it
// asks for, and what somebody leaves goes to the others by their weights.
func maxMin(capacity float64, demands, weights []float64) []float64 {
	order := make([]int, len(demands))
	var left float64 // of the weights
	for i := range order {
		order[i] = i
		left += weights[i]
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(demands[i]/weights[i], demands[j]/weights[j]) })
	shares := make([]float64, len(demands))
	for _, i := range order {
		shares[i] = math.Min(demands[i], capacity*weights[i]/left)
		capacity -= shares[i]
		left -= weights[i]
	}
	return shares
}

// claim is one tenant of one user: what it asked for and what it got.
type claim struct {
	user, tenant string
	asked, given float64
}

// shareErrors are by how much of its ideal share the user, and the tenant, who is
// farthest from it is off. The ideal is max-min fair by weight: what was given out
// is divided between users, and what each user gets between its tenants.
func shareErrors(claims []claim, fair *Fair) (ofUsers, ofTenants float64) {
	weight := func(list map[string]float64, name string) float64 {
		if w, ok := list[name]; ok {
			return w
		}
		return 1
	}
	off := func(given, ideal float64) float64 { return share(math.Abs(given-ideal), ideal) }
	var users []string
	tenants := map[string][]claim{}
	var all float64
	for _, c := range merged(claims) {
		if tenants[c.user] == nil {
			users = append(users, c.user)
		}
		tenants[c.user] = append(tenants[c.user], c)
		all += c.given
	}
	var demands, weights []float64
	for _, u := range users {
		var sum float64
		for _, c := range tenants[u] {
			sum += c.asked
		}
		demands, weights = append(demands, sum), append(weights, weight(fair.Users, u))
	}
	for i, ideal := range maxMin(all, demands, weights) {
		list := tenants[users[i]]
		var inner, innerWeights []float64
		var given float64
		for _, c := range list {
			given += c.given
			inner, innerWeights = append(inner, c.asked), append(innerWeights, weight(fair.Tenants, c.tenant))
		}
		ofUsers = math.Max(ofUsers, off(given, ideal))
		for j, ideal := range maxMin(ideal, inner, innerWeights) {
			ofTenants = math.Max(ofTenants, off(list[j].given, ideal))
		}
	}
	return ofUsers, ofTenants
}

// merged adds up the claims of each tenant, which may come from several classes.
func merged(claims []claim) []claim {
	var list []claim
	at := map[[2]string]int{}
	for _, c := range claims {
		key := [2]string{c.user, c.tenant}
		i, known := at[key]
		if !known {
			at[key] = len(list)
			list = append(list, c)
			continue
		}
		list[i].asked += c.asked
		list[i].given += c.given
	}
	return list
}

// jain is Jain's index of some values, 1 where all are alike: (Σx)²/(n·Σx²).
func jain(values []float64) float64 {
	var sum, squares float64
	for _, v := range values {
		sum += v
		squares += float64(v * v)
	}
	return share(sum*sum, float64(len(values))*squares)
}
