package quotas

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
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
		return nil, fmt.Errorf("the rules take %d bytes, at most %d; delete some", b.Len(), maxBytes)
	}
	return b.Bytes(), nil
}

// decode reads a document that encode has written, and perhaps a person has edited. An empty
// one has no rules. Each fault has the name and the line.
func decode(name string, data []byte) (*document, error) {
	d := &document{}
	if len(data) == 0 {
		return d, nil
	}
	if len(data) > maxBytes {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, maxBytes)
	}
	faults := &fault.List{File: name}
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
	seen := map[identity]int{}
	for i := range d.Rules {
		r, at := &d.Rules[i], fault.Path{"rules"}.Index(i)
		if err := r.check(); err != nil {
			faults.AddError(at, err)
			continue
		}
		if first, ok := seen[r.identity()]; ok {
			faults.Add(at, fmt.Sprintf("matches the same as rules[%d], %.100s", first, r.Pattern()), "leave one of them out")
			continue
		}
		seen[r.identity()] = i
	}
	return d, faults.Err("")
}

// Decode decodes JSON strictly: a key that is unknown or written twice is a fault.
func Decode(data []byte, into any) error {
	var faults fault.List
	decodeInto(into, data, &faults)
	return faults.Err("")
}

func decodeInto(into any, data []byte, faults *fault.List) {
	if n := setting.ParseJSON(data, faults); n != nil {
		setting.Decode(n, into, faults)
	}
}

// Rule is a rule of the quota of one gate. It also says when and by whom it was set. It has no name
// of its own: if it overrides a rule of the file, it has that name.
type Rule struct {
	Gate string `json:"gate"`
	policy.QuotaRuleSpec
	SetAt time.Time `json:"set_at,omitzero"`
	SetBy string    `json:"set_by,omitempty"`
}

// Matches returns what a rule matches, as in "user=alice,client=*".
func Matches(r *policy.QuotaRuleSpec) string { return r.Pattern().String() }

// Terms returns what a rule gives, as it was written: "100/s burst 200, 1000/h",
// "exempt" or "blocked".
func Terms(r *policy.QuotaRuleSpec) string {
	switch {
	case r.Exempt:
		return "exempt"
	case r.Blocked:
		return "blocked"
	}
	words := slices.Clone(r.Limits)
	if r.Rate != "" {
		words = append(words, r.Rate)
	}
	if r.Burst != 0 && len(words) > 0 {
		words[len(words)-1] += " burst " + strconv.FormatFloat(r.Burst, 'f', -1, 64)
	}
	return strings.Join(words, ", ")
}

// FullTerms is Terms with every burst, also the default. A change replaces a rule as a whole,
// so this shows when a burst went with it.
func FullTerms(r *policy.QuotaRuleSpec) string {
	limits, err := r.Parse()
	if err != nil || r.Exempt || r.Blocked {
		return Terms(r)
	}
	words := slices.Clone(r.Limits)
	if r.Rate != "" {
		words = append([]string{r.Rate}, words...)
	}
	for i, l := range limits {
		if l.Calendar.Period == 0 && !strings.Contains(words[i], "burst") {
			words[i] += " burst " + strconv.FormatFloat(l.Burst, 'f', -1, 64)
		}
	}
	return strings.Join(words, ", ")
}

// check returns what is wrong with a rule under any configuration. A [Plan] finds what is
// wrong with it under one.
func (r *Rule) check() error {
	limited := r.Rate != "" || r.Burst != 0 || len(r.Limits) > 0
	switch {
	case r.Gate == "":
		return fault.New("names no gate", "add gate:")
	case r.Name != "":
		return fault.New("has a name", "leave it out, a rule set at run time is called by what it matches")
	case r.Exempt && r.Blocked:
		return fault.New("is exempt and blocked", "leave one of them out")
	case (r.Exempt || r.Blocked) && limited:
		return fault.New("has a limit, but is exempt or blocked", "leave one of them out")
	case !r.Exempt && !r.Blocked && !limited:
		return fault.New("gives no limit", "give a rate such as 10/s, exempt or blocked")
	}
	_, err := r.Rule()
	return err
}
