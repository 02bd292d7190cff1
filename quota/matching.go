package quota

import "github.com/weir-go/weir"

// Matching returns the rules that match w, each with its title as the Name: the one that
// counts first, and then each that would count without those before it. Their Limits are
// shared: do not write to them. It asks no store.
func (q *Quota) Matching(w weir.Work) []Rule {
	set := q.settings.Load()
	id := set.identify(w)
	var all []Rule
	for i := range set.rules.shapes {
		r := set.rules.shapes[i].find(&id)
		if r == nil {
			continue
		}
		rule := set.rules.list[r.at]
		rule.Name = r.title
		all = append(all, rule)
	}
	return all
}
