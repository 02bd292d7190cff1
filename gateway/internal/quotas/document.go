package quotas

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/jsontree"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Bounds of a document.
const (
	MaxRules = 10_000
	maxBytes = 8 << 20
)

// document is all rules as a store keeps them.
type document struct {
	Format   int    `json:"weir_quotas"`
	Revision uint64 `json:"revision"` // grows with each change, so that no two are the same
	Rules    []Rule `json:"rules"`

	at map[identity]int // where in Rules
}

// identity is what a rule is known by: two with the same are one rule.
type identity struct {
	gate string
	quota.Pattern
}

func (r *Rule) identity() identity { return identity{r.Gate, r.Pattern()} }

// newDocument returns a document. A rule of list that names no gate is left out.
func newDocument(revision uint64, list []Rule) *document {
	d := &document{Format: format, Revision: revision, at: make(map[identity]int, len(list))}
	for i := range list {
		if list[i].Gate != "" {
			d.put(list[i])
		}
	}
	return d
}

// find returns a rule, nil if there is none.
func (d *document) find(id identity) *Rule {
	if i, ok := d.at[id]; ok {
		return &d.Rules[i]
	}
	return nil
}

// put adds r, or replaces the rule that matches the same. It reports whether there was one.
func (d *document) put(r Rule) (was bool) {
	id := r.identity()
	i, was := d.at[id]
	if was {
		d.Rules[i] = r
		return true
	}
	d.at[id] = len(d.Rules)
	d.Rules = append(d.Rules, r)
	return false
}

// remove removes a rule and reports whether there was one. Its place stays, without a gate,
// until newDocument.
func (d *document) remove(id identity) bool {
	i, ok := d.at[id]
	if ok {
		d.Rules[i] = Rule{}
		delete(d.at, id)
	}
	return ok
}

// clear removes all rules of a gate and returns them in order.
func (d *document) clear(gate string) (was []Rule) {
	for _, r := range d.Rules {
		if r.Gate == gate && gate != "" {
			was = append(was, r)
			d.remove(r.identity())
		}
	}
	return was
}

// lost returns the rules that another document does not have as they are here.
func (d *document) lost(other *document) (rules []*Rule) {
	for i := range d.Rules {
		if r := &d.Rules[i]; !r.same(other.find(r.identity())) {
			rules = append(rules, r)
		}
	}
	return rules
}

// format is the version of the form in which rules are kept.
const format = 1

// tag is the entity tag of a document, without quotes.
func tag(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// encode writes a document with one rule a line, for people who look for a fault or a
// difference.
func (d *document) encode() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n  \"weir_quotas\": %d,\n  \"revision\": %d,\n  \"rules\": [", format, d.Revision)
	for i := range d.Rules {
		line, err := json.Marshal(&d.Rules[i])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n    ")
		b.Write(line)
	}
	b.WriteString("\n  ]\n}\n")
	if b.Len() > maxBytes {
		return nil, fmt.Errorf("the rules take %d bytes, and may take %d; delete some", b.Len(), maxBytes)
	}
	return b.Bytes(), nil
}

// decode reads a document that encode has written, and perhaps a person has edited. An empty
// one has no rules. Each fault has the name and the line.
func decode(name string, data []byte) (*document, error) {
	if len(data) == 0 {
		return newDocument(0, nil), nil
	}
	if len(data) > maxBytes {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, maxBytes)
	}
	d, faults := &document{at: map[identity]int{}}, &fault.List{File: name}
	decodeInto(d, data, faults)
	if faults.Len() > 0 {
		return nil, faults.Err("")
	}
	if d.Format != format {
		faults.Add(fault.Path{"weir_quotas"}, fmt.Sprintf("%d is not the version of this gateway", d.Format), fmt.Sprintf("write %d, if the rules below are of that version", format))
	}
	if len(d.Rules) > MaxRules {
		faults.Add(fault.Path{"rules"}, fmt.Sprintf("more than %d rules", MaxRules), "delete some")
	}
	for i := range d.Rules {
		r, at := &d.Rules[i], fault.Path{"rules"}.Index(i)
		id := r.identity()
		switch first, ok := d.at[id]; {
		case r.Gate == "":
			faults.Add(at, "names no gate", "add gate:")
		case r.Name != "":
			faults.Add(at, errNamed.Problem, errNamed.Instead)
		case ok:
			faults.Add(at, fmt.Sprintf("matches the same as rules[%d], %.100s", first, id.Pattern), "leave one of them out")
		default:
			faults.AddError(at, r.Check())
		}
		d.at[id] = i
	}
	return d, faults.Err("")
}

// errNamed is the fault of a rule with a name.
var errNamed = fault.Fault{Problem: "has a name", Instead: "leave it out, a rule set at run time is called by what it matches"}

// Decode decodes JSON strictly: a key that is unknown or written twice is a fault.
func Decode(data []byte, into any) error {
	var faults fault.List
	decodeInto(into, data, &faults)
	return faults.Err("")
}

func decodeInto(into any, data []byte, faults *fault.List) {
	if n := jsontree.Parse(data, faults); n != nil {
		setting.Decode(n, into, faults)
	}
}

// Rule is a rule of the quota of one gate. It also says when and by whom it was set. It has no name
// of its own: if it overrides a rule of the file, it has that name.
type Rule struct {
	Gate string `json:"gate"`
	policy.QuotaRuleSpec
	// Asked is the limit that was asked for in a protocol that knows greater and smaller ones than a rule may have. 0 is the
	// rule's own.
	Asked float64   `json:"asked,omitempty"`
	SetAt time.Time `json:"set_at,omitzero"`
	SetBy string    `json:"set_by,omitempty"`
}

// same reports whether another rule gives the same, whoever set it. nil is no rule.
func (r *Rule) same(other *Rule) bool {
	return other != nil && r.Asked == other.Asked && reflect.DeepEqual(r.QuotaRuleSpec, other.QuotaRuleSpec)
}

// Terms returns what a rule gives, as it was written: "100/s burst 200", "100/s, 1000/h",
// "exempt" or "blocked".
func Terms(r *policy.QuotaRuleSpec) string { return strings.Join(terms(r), ", ") }

func terms(r *policy.QuotaRuleSpec) []string {
	switch {
	case r.Exempt:
		return []string{"exempt"}
	case r.Blocked:
		return []string{"blocked"}
	}
	words := slices.Clone(r.Limits)
	if r.Rate != "" {
		words = append([]string{r.Rate}, words...)
	}
	if r.Burst != 0 && len(words) > 0 {
		words[0] += burst(r.Burst)
	}
	return words
}

func burst(tokens float64) string { return " burst " + strconv.FormatFloat(tokens, 'f', -1, 64) }

// FullTerms is Terms with every burst, also the default. A change replaces a rule as a whole,
// so this shows when a burst went with it.
func FullTerms(r *policy.QuotaRuleSpec) string {
	words := terms(r)
	windows, _ := r.Parse() // none if a limit cannot be read
	for i, w := range windows {
		if !r.Exempt && !r.Blocked && w.Calendar.Period == 0 && !strings.Contains(words[i], "burst") {
			words[i] += burst(w.Burst)
		}
	}
	return strings.Join(words, ", ")
}
