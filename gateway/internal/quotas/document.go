package quotas

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/policy"
)

// Kept is rules as they were read from where they are kept.
type Kept struct {
	store   Store // nil: nowhere
	doc     *document
	tag     string
	trouble error // why they could not be read
	read    time.Time
}

// Read reads the rules in a store, which is from then on in the hands of the Kept; nil
// has none.
//
// A document that is broken is an error, which names its line, unless startBroken is set:
// to begin without a rule that blocks somebody would be worse than not to begin. A store
// that cannot be reached is an error too, for the same reason. After an error the store
// is closed.
func Read(ctx context.Context, store Store, startBroken bool) (*Kept, error) {
	k := &Kept{store: store, doc: &document{}, tag: tag(nil), read: time.Now()}
	if store == nil {
		return k, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	doc, tagged, err := fetch(ctx, store, k.doc, k.tag)
	switch {
	case err == nil:
		k.doc, k.tag = doc, tagged
		return k, nil
	case !startBroken:
		_ = store.Close() // there is an error already
		return nil, fmt.Errorf("quotas set at run time cannot be read: %w; mend it, or begin with the configuration's alone by quotas: {start_broken: true}", err)
	}
	k.trouble, k.read = err, time.Time{}
	return k, nil
}

// ReadFile reads the rules in a file which a gateway may have open: it is never seen half
// written. One that does not exist has none.
func ReadFile(ctx context.Context, name string) (*Kept, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	k := &Kept{doc: &document{}, tag: tag(nil), read: time.Now()}
	k.doc, k.tag, err = fetch(ctx, &File{name: name}, k.doc, k.tag)
	return k, err
}

// fetch reads a store. What has the tag of what is known is not decoded again.
func fetch(ctx context.Context, store Store, known *document, knownAs string) (*document, string, error) {
	data, err := store.Read(ctx)
	if err != nil {
		return nil, "", &unreadable{err}
	}
	tagged := tag(data)
	if tagged == knownAs {
		return known, tagged, nil
	}
	doc, err := decode(store.Name(), data)
	return doc, tagged, err
}

// unreadable is the error of a store that did not hand out its document.
type unreadable struct{ error }

func (u *unreadable) Unwrap() error { return u.error }

// Len returns how many rules there are.
func (k *Kept) Len() int { return len(k.doc.Rules) }

// Close lets go of the store.
func (k *Kept) Close() error {
	if k == nil || k.store == nil {
		return nil
	}
	return k.store.Close()
}

// Plan returns what becomes of the rules under a configuration. place says where in the
// file a field of a gate's quota stands, such as rules[0]. [Book.Adopt] takes them up
// with where they are kept, in the place of those that it has.
func (k *Kept) Plan(spec policy.Spec, place func(gate, field string) string) *Plan {
	p := newPlan(spec, place, k.doc)
	p.kept = k
	return p
}

// Bounds of what is kept.
const (
	MaxRules = 10_000
	maxBytes = 8 << 20
)

// document is all rules as a store keeps them.
type document struct {
	Format   int    `json:"weir_quotas"`
	Revision uint64 `json:"revision"` // one more with each change, so that no two are the same
	Rules    []Rule `json:"rules"`
}

// format is the version of the form in which rules are kept.
const format = 1

// tag is what stands for a document in conditions: an entity tag without its quotes.
func tag(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// encode writes a document with one rule a line, so that a fault can be found by its
// line and a difference be read.
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

// decode reads what encode has written, and what a person has made of it. Nothing at
// all is no rules. The error begins with the name and the line.
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
		if err := r.sound(); err != nil {
			return nil, offset, fmt.Errorf("the rule %.100s %w", Matches(&r.QuotaRuleSpec), err)
		}
		id := identityOf(r.Gate, &r.QuotaRuleSpec)
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

// Rule is a rule of the quota of one gate, with when and by whom it was set. It has no
// name of its own: where it takes the place of a rule of the file, it is called as
// that one is.
type Rule struct {
	Gate string `json:"gate"`
	policy.QuotaRuleSpec
	SetAt time.Time `json:"set_at,omitzero"`
	SetBy string    `json:"set_by,omitempty"`
}

// Matches returns what a rule matches, as in "user=alice,client=*".
func Matches(r *policy.QuotaRuleSpec) string { return r.Pattern().String() }

// Gives returns what a rule gives, as it was written: "100/s burst 200, 1000/h",
// "exempt" or "blocked".
func Gives(r *policy.QuotaRuleSpec) string {
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

// InFull is Gives with each burst, also where the rule leaves it to be the default: a rule
// is replaced as a whole, and that its burst went with it is to be seen.
func InFull(r *policy.QuotaRuleSpec) string {
	limits, err := r.Parse()
	if err != nil || r.Exempt || r.Blocked {
		return Gives(r)
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

// sound reports what is wrong with a rule whatever the configuration: what no
// configuration can be the reason for. The rest is found by fitting it to one.
func (r *Rule) sound() error {
	limited := r.Rate != "" || r.Burst != 0 || len(r.Limits) > 0
	switch {
	case r.Gate == "":
		return errors.New("names no gate; add gate:")
	case r.Name != "":
		return errors.New("has a name; leave it out, a rule set at run time is called by what it matches")
	case r.Exempt && r.Blocked:
		return errors.New("is exempt and blocked; leave one of them out")
	case (r.Exempt || r.Blocked) && limited:
		return errors.New("has a limit, but is exempt or blocked; leave one of them out")
	case !r.Exempt && !r.Blocked && !limited:
		return errors.New("gives no limit; give a rate such as 10/s, exempt or blocked")
	}
	_, err := r.Rule()
	return err
}
