package quotas

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

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
// one has no rules. The error begins with the name and the line.
func decode(name string, data []byte) (*document, error) {
	d := &document{}
	if len(data) == 0 {
		return d, nil
	}
	if len(data) > maxBytes {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, maxBytes)
	}
	at := func(offset int64, err error) error { return fmt.Errorf("%s:%d: %w", name, line(data, offset), err) }
	fields, offsets, err := members(data)
	if err != nil {
		return nil, at(offsets[""], err)
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		switch key {
		case "weir_quotas":
			err = json.Unmarshal(fields[key], &d.Format)
		case "revision":
			err = json.Unmarshal(fields[key], &d.Revision)
		case "rules":
			var offset int64
			if d.Rules, offset, err = decodeRules(fields[key]); err != nil {
				return nil, at(offsets[key]+offset, err)
			}
		default:
			err = fmt.Errorf("%.40q is not known; weir_quotas, revision and rules are", key)
		}
		if err != nil {
			return nil, at(offsets[key], err)
		}
	}
	if d.Format != format {
		return nil, at(0, fmt.Errorf("is no file of rules of this version: weir_quotas is %d, not %d", d.Format, format))
	}
	return d, nil
}

// members returns the values of an object, and where each begins. After an error,
// the place of it is under "".
func members(data []byte) (fields map[string]json.RawMessage, offsets map[string]int64, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	fields, offsets = map[string]json.RawMessage{}, map[string]int64{}
	fail := func(err error) (map[string]json.RawMessage, map[string]int64, error) {
		return nil, map[string]int64{"": place(dec, err)}, err
	}
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return fail(cmpError(err, "is no JSON object"))
	}
	for dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return fail(cmpError(err, "has a key that is no text"))
		}
		if _, twice := fields[key]; twice {
			return fail(fmt.Errorf("%.40q stands here twice", key))
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return fail(err)
		}
		fields[key], offsets[key] = raw, dec.InputOffset()-int64(len(raw))
	}
	if _, err := dec.Token(); err != nil {
		return fail(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fail(errors.New("something follows the end"))
	}
	return fields, offsets, nil
}

// decodeRules reads the rules; after an error, offset is its place.
func decodeRules(data []byte) (rules []Rule, offset int64, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return nil, 0, cmpError(err, "rules is no list")
	}
	seen := map[identity]bool{}
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, place(dec, err), err
		}
		offset = dec.InputOffset() - int64(len(raw))
		var r Rule
		if err := Strict(raw, &r); err != nil {
			return nil, offset, err
		}
		if err := r.check(); err != nil {
			return nil, offset, fmt.Errorf("the rule %.100s %w", Matches(&r.QuotaRuleSpec), err)
		}
		id := r.identity()
		if seen[id] {
			return nil, offset, fmt.Errorf("gate %.60s has two rules for %.100s; leave one out", r.Gate, id.Pattern)
		}
		seen[id] = true
		if rules = append(rules, r); len(rules) > MaxRules {
			return nil, offset, fmt.Errorf("more than %d rules", MaxRules)
		}
	}
	return rules, 0, nil
}

// place is where an error of a decoder lies.
func place(dec *json.Decoder, err error) int64 {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return syntax.Offset
	}
	return dec.InputOffset()
}

func cmpError(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}

// line returns the line of a place in a text, from 1.
func line(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), int64(len(data)))], []byte("\n"))
}

// Rule is a rule of the quota of one gate, with when and by whom it was set. It has no name
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
		return faultf("add gate:", "names no gate")
	case r.Name != "":
		return faultf("leave it out, a rule set at run time is called by what it matches", "has a name")
	case r.Exempt && r.Blocked:
		return faultf("leave one of them out", "is exempt and blocked")
	case (r.Exempt || r.Blocked) && limited:
		return faultf("leave one of them out", "has a limit, but is exempt or blocked")
	case !r.Exempt && !r.Blocked && !limited:
		return faultf("give a rate such as 10/s, exempt or blocked", "gives no limit")
	}
	_, err := r.Rule()
	return err
}
