package quota

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
)

// descriptorRules are rules by their descriptors, each with a limit of its own.
func descriptorRules(patterns ...string) (list []Rule) {
	for i, p := range patterns {
		list = append(list, Rule{Descriptor: Match(p), Windows: []Window{Per(float64(i+1), time.Second)}})
	}
	return list
}

// Which rule counts for a descriptor, and whose bucket it names.
func TestDescriptors(t *testing.T) {
	table := mustCompile(t, descriptorRules(
		"db=users", "db=*", "db=us**", "db=users,plan=free", "db=users,plan=*", "db=x,**", "db=**,plan=gold", "path=/a/*", "path=/a/b/*", "a=1,b=2", "a=*,b=*", "user=%2A",
		"both=x**", "both=x*",
	))
	for _, c := range []struct{ descriptor, rule, key string }{
		{"db=users", "descriptor=db=users", "q/descriptor=db=users"},
		{"db=usual", "descriptor=db=us**", "q/descriptor=db=us**"},
		{"db=orders", "descriptor=db=*", "q/descriptor=db=orders"},
		{"db=", "descriptor=db=*", "q/descriptor=db="},
		{"db=users,plan=free", "descriptor=db=users,plan=free", "q/descriptor=db=users,plan=free"},
		{"db=users,plan=silver", "descriptor=db=users,plan=*", "q/descriptor=db=users,plan=silver"},
		{"db=orders,plan=gold", "descriptor=db=**,plan=gold", "q/descriptor=db=**,plan=gold"},
		{"db=orders,plan=silver", "", ""},
		{"db=x", "descriptor=db=*", "q/descriptor=db=x"},
		{"db=x,plan=gold", "descriptor=db=x,**", "q/descriptor=db=x,**"},
		{"db=x,any=1,more=2", "descriptor=db=x,**", "q/descriptor=db=x,**"},
		{"path=/a/b/c", "descriptor=path=/a/b/*", "q/descriptor=path=%2Fa%2Fb%2Fc"},
		{"path=/a/c", "descriptor=path=/a/*", "q/descriptor=path=%2Fa%2Fc"},
		{"path=/b", "", ""},
		{"a=1,b=2", "descriptor=a=1,b=2", "q/descriptor=a=1,b=2"},
		{"a=1,b=3", "descriptor=a=*,b=*", "q/descriptor=a=1,b=3"}, // back from a=1
		{"b=2,a=1", "", ""},
		{"a=1", "", ""},
		{"user=*", "", ""}, // no descriptor is written so
		{"user=%2A", "descriptor=user=%2A", "q/descriptor=user=%252A"},
		{"both=xy", "descriptor=both=x*", "q/descriptor=both=xy"}, // before the one whose values share a bucket
		{"nonsense", "", ""},
		{"", "", ""},
	} {
		id := Identity{Descriptor: c.descriptor}
		rule, key := "", ""
		if r := table.find(&id); r != nil {
			rule, key = r.title, string(r.appendKey(nil, &id))
		}
		if rule != c.rule || key != c.key {
			t.Errorf("%q: rule %q with bucket %q, want %q with %q", c.descriptor, rule, key, c.rule, c.key)
		}
	}
}

// A rule may name a descriptor beside other parts, and each descriptor may have a bucket.
func TestDescriptorsBesideOtherParts(t *testing.T) {
	list := descriptorRules("db=users", "db=*", "*")
	list[0].User, list[1].User = Named("alice"), Every
	table := mustCompile(t, list)
	for _, c := range []struct{ user, descriptor, key string }{
		{"alice", "db=users", "q/user=alice/descriptor=db=users"},
		{"alice", "db=orders", "q/user=alice/descriptor=db=orders"},
		{"bob", "db=users", "q/user=bob/descriptor=db=users"},
		{"bob", "x=1", "q/descriptor=x=1"},
		{"bob", "", "q/descriptor="},
	} {
		id := Identity{User: c.user, Descriptor: c.descriptor}
		r := table.find(&id)
		if r == nil {
			t.Fatalf("%+v: no rule matches", c)
		}
		if key := string(r.appendKey(nil, &id)); key != c.key {
			t.Errorf("%+v: bucket %q", c, key)
		}
	}
}

func TestFaultsOfDescriptors(t *testing.T) {
	for pattern, want := range map[string]string{
		"db":                                   "is not a pair",
		"=users":                               "is not a pair",
		"db=a*b":                               "not at its end",
		"d*=a":                                 "not at its end",
		"db=***":                               "not at its end",
		"db=100%":                              "%25",
		"db=%zz":                               "%25",
		"db=a,":                                "is not a pair",
		"db=" + strings.Repeat("a", 201) + "*": "at most 200",
		strings.Repeat("a=1,", 16) + "a=1":     "at most 16",
	} {
		var f fault.List
		compileRules("q", descriptorRules(pattern), true, &f)
		if err := f.Err(""); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Rules[0].Descriptor") {
			t.Errorf("%.40q: %v, want %q", pattern, err, want)
		}
	}
	var f fault.List
	compileRules("q", descriptorRules("db=a%2c%3D", "db=a%2C="), true, &f)
	if err := f.Err(""); err == nil || !strings.Contains(err.Error(), "matches the same as rule") {
		t.Errorf("two spellings of one descriptor: %v", err)
	}
}

func TestParseDescriptor(t *testing.T) {
	for text, want := range map[string]string{
		"a=b,c=d": "a=b,c=d", "a=b=c": "a=b%3Dc", "a=%2c": "a=%2C", "a=": "a=", "a= b/c": "a= b/c",
	} {
		got, err := ParseDescriptor(text)
		if got != want || err != nil {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
		if again, err := ParseDescriptor(got); again != got || err != nil {
			t.Errorf("%q, read again, is %q, %v", got, again, err)
		}
	}
	for _, text := range []string{"", "a", "a=*", "a=b*", "a=b,**", "**"} {
		if got, err := ParseDescriptor(text); err == nil {
			t.Errorf("%q is %q", text, got)
		}
	}
}

// Whatever keys and values are, two lists of pairs are the same descriptor only if they are the
// same, a descriptor is bounded, and a rule that names it matches it and nothing else.
func FuzzAppendPair(f *testing.F) {
	f.Add("db", "users", "plan", "free")
	f.Add("a", "b,c=d", "e%", "*\xff\x00é")
	f.Add("k", strings.Repeat("x", 257), "k", strings.Repeat("x", 300)+"\xff")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		one, two := string(AppendPair(nil, k1, v1)), string(AppendPair(AppendPair(nil, k1, v1), k2, v2))
		if len(two) > 4*3*(longestWord+hashDigits) {
			t.Fatalf("%d bytes", len(two))
		}
		if !utf8.ValidString(two) || strings.Count(two, ",") != 1 || strings.Count(two, "=") != 2 {
			t.Fatalf("%q", two)
		}
		if swapped := string(AppendPair(AppendPair(nil, v1, k1), v2, k2)); swapped == two && (k1 != v1 || k2 != v2) {
			t.Fatalf("%q is two descriptors", two)
		}
		if k1 == "" || k2 == "" {
			return
		}
		if again, err := ParseDescriptor(two); again != two || err != nil {
			t.Fatalf("%q, read again, is %q, %v", two, again, err)
		}
		table := mustCompile(t, []Rule{{Descriptor: Named(two), Blocked: true}})
		if table.find(&Identity{Descriptor: two}) == nil || table.find(&Identity{Descriptor: one}) != nil {
			t.Fatalf("the rule for %q matches something else", two)
		}
	})
}

// Up to 256 bytes a word is kept as it is.
func TestLongestWord(t *testing.T) {
	for size, kept := range map[int]bool{longestWord: true, longestWord + 1: false} {
		word := strings.Repeat("x", size)
		if got := string(AppendPair(nil, word, word)); (got == word+"="+word) != kept {
			t.Errorf("%d bytes become %d", size, len(got))
		}
	}
}

// A rule for a beginning matches values too long to be kept.
func TestLongValues(t *testing.T) {
	long := strings.Repeat("é", 1<<19)
	table := mustCompile(t, descriptorRules("path="+long[:200]+"*", "path="+long))
	for value, rule := range map[string]int{long: 1, long + "x": 0, long[:300]: 0} {
		id := Identity{Descriptor: string(AppendPair(nil, "path", value))}
		r := table.find(&id)
		if r == nil || r.Windows[0] != table.rules[rule].Windows[0] {
			t.Fatalf("a value of %d bytes: rule %+v", len(value), r)
		}
		if key := r.appendKey(nil, &id); len(key) > longestKey {
			t.Errorf("a value of %d bytes: a key of %d", len(value), len(key))
		}
	}
}

// Explain lists all rules for a descriptor, and says why the first counts.
func TestExplainDescriptors(t *testing.T) {
	q, err := New(Config{Name: "q", Rules: descriptorRules("db=*", "db=users", "db=u**", "other=1", "*")})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range q.Explain(weir.Work{Descriptor: "db=users"}) {
		got = append(got, m.Name+": "+m.Why)
	}
	want := "[descriptor=db=users: its descriptor is more exact than that of descriptor=db=u** descriptor=db=u**:  descriptor=db=*:  descriptor=*: ]"
	if fmt.Sprint(got) != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// A decision about a descriptor allocates nothing, as any other.
func TestDescriptorsAllocateNothing(t *testing.T) {
	q, err := New(Config{Name: "q", Rules: []Rule{{Descriptor: "db=users,plan=*", Windows: []Window{Per(1e9, time.Second)}}}})
	if err != nil {
		t.Fatal(err)
	}
	w := weir.Work{Descriptor: "db=users,plan=free"}
	if n := testing.AllocsPerRun(100, func() {
		if a, err := q.Charge(context.Background(), w); err != nil || a.Free {
			t.Fatal(a, err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
