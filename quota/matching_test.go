package quota

import (
	"slices"
	"testing"

	"github.com/weir-go/weir"
)

// The rules that match come in the order in which each would count without those before
// it: taking away the first makes the second the one that counts.
func TestMatching(t *testing.T) {
	rules := append(kafka(), Rule{Name: "banned", User: Named("userB"), Address: Named("10.0.0.0/8"), Blocked: true}, Rule{Name: "all", Limits: samples(1)})
	identify := func(w weir.Work) Identity {
		return Identity{User: w.User, Client: w.Client, Address: "10.1.2.3"}
	}
	w := weir.Work{User: "userB", Client: "client1"}
	want := []string{"user=userB,client=client1", "user=userB,client=*", "banned", "user=userB", "user=*,client=*", "user=*", "client=client1", "client=*", "all"}
	for i := range want {
		q, err := New(Config{Name: "q", Rules: rules, Identify: identify})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range q.Matching(w) {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, want[i:]) {
			t.Fatalf("without the first %d: %q, want %q", i, got, want[i:])
		}
		if counts, _ := q.Key(w); counts != got[0] {
			t.Errorf("%q counts, the first is %q", counts, got[0])
		}
		rules = slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return r.title() == got[0] })
	}
	q, err := New(Config{Name: "q", Rules: []Rule{{User: Named("x"), Blocked: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := q.Matching(w); got != nil {
		t.Errorf("none matches: %v", got)
	}
}
