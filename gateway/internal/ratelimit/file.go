package ratelimit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// file is a file of envoyproxy/ratelimit as it is written.
type file struct {
	Domain      string       `json:"domain" example:"api" required:"true"`
	Descriptors []descriptor `json:"descriptors,omitempty"`
}

// descriptor is a key, with one value or all, and what belongs to it.
type descriptor struct {
	Key            string       `json:"key" example:"database" required:"true"`
	Value          string       `json:"value,omitempty"`
	RateLimit      *rateLimit   `json:"rate_limit,omitempty"`
	Descriptors    []descriptor `json:"descriptors,omitempty"`
	ShadowMode     bool         `json:"shadow_mode,omitempty"`
	QuotaMode      bool         `json:"quota_mode,omitempty"`
	DetailedMetric bool         `json:"detailed_metric,omitempty"`
	ValueToMetric  bool         `json:"value_to_metric,omitempty"`
	ShareThreshold bool         `json:"share_threshold,omitempty"`
	Metadata       string       `json:"metadata,omitempty"` // as JSON: see tidy
}

// rateLimit is the limit of a descriptor.
type rateLimit struct {
	Unit            string     `json:"unit,omitempty" example:"second"`
	RequestsPerUnit int64      `json:"requests_per_unit,omitempty" min:"0" max:"4294967295"`
	Unlimited       bool       `json:"unlimited,omitempty"`
	Name            string     `json:"name,omitempty"`
	Replaces        []replaced `json:"replaces,omitempty"`
}

type replaced struct {
	Name string `json:"name" example:"other" required:"true"`
}

// unit is a unit of time of a limit.
type unit struct {
	name    string
	number  uint64 // in the protocol
	seconds int64
	rate    string // in a rule
}

// units are those of the protocol, the shortest first. A month has 30 days, a year 365.
var units = []unit{
	{"second", 1, 1, "s"}, {"minute", 2, 60, "min"}, {"hour", 3, 3600, "h"}, {"day", 4, 24 * 3600, "24h"},
	{"week", 7, 7 * 24 * 3600, "168h"}, {"month", 5, 30 * 24 * 3600, "720h"}, {"year", 6, 365 * 24 * 3600, "8760h"},
}

// Limits are the domains of some files, by name.
type Limits map[string]*Domain

// Domain is the limits of one domain. Its rules are those of the quota of a gate with its name.
type Domain struct {
	// Rules are those of the quota. Places says where each was written, as in limits.yaml:12.
	Rules  []policy.QuotaRuleSpec
	Places []string

	top      []entry
	limits   map[quota.Pattern]*limit // by what the rule matches
	replaces bool                     // some limit does
}

// Faulty reports whether a file of the domain has a fault. What its rules say is not to be relied on then.
func (d *Domain) Faulty() bool {
	return slices.ContainsFunc(d.top, func(e entry) bool { return e.from.Len() > 0 })
}

// Says returns what the files say of a rule beside its rate, as in "shadow_mode, name n"; empty if
// nothing.
func (d *Domain) Says(rule quota.Pattern) string {
	l := d.limits[rule]
	if l == nil {
		return ""
	}
	var all []string
	for _, s := range []struct {
		given bool
		text  string
	}{
		{l.shadow, "shadow_mode"}, {l.quota, "quota_mode"}, {l.name != "", "name " + l.name},
		{len(l.replaces) > 0, "replaces " + strings.Join(l.replaces, " ")}, {l.metadata != nil, "metadata " + l.metadata.String()},
	} {
		if s.given {
			all = append(all, s.text)
		}
	}
	return strings.Join(all, ", ")
}

// limit is what a rule does not say of a limit in a file.
type limit struct {
	name      string
	replaces  []string
	shadow    bool // count what would be refused, and refuse nothing
	quota     bool // the same, and tell Envoy in its metadata
	unlimited bool
	unit      uint64           // in the protocol
	detailed  bool             // metrics by all values
	byValue   []bool           // metrics by the value of this pair
	metadata  *structpb.Struct // for Envoy while there are tokens
}

// entry is a descriptor, and where it was written.
type entry struct {
	*descriptor
	from *source
	at   fault.Path
}

// source is a file, and what is wrong with it.
type source struct {
	*fault.List
	name string
}

// Add reads a file: root is its tree, and faults know where everything in it stands. What is wrong
// is added to faults. [Limits.Compile] checks the rest.
func (l Limits) Add(name string, root *setting.Node, faults *fault.List) {
	tidy(root)
	var f file
	before := faults.Len()
	setting.Decode(root, &f, faults)
	if f.Domain == "" {
		if faults.Len() == before {
			faults.Add(fault.Path{"domain"}, "is empty", "write the domain that Envoy asks with")
		}
		return
	}
	if len(f.Domain) > longestDomain || !utf8.ValidString(f.Domain) || strings.ContainsFunc(f.Domain, unicode.IsControl) {
		faults.Add(fault.Path{"domain"}, fmt.Sprintf("the domain %.60q is not a name of a gate", f.Domain), fmt.Sprintf("write at most %d bytes that can be printed", longestDomain))
		return
	}
	if l[f.Domain] == nil {
		l[f.Domain] = &Domain{limits: map[quota.Pattern]*limit{}}
	}
	from := &source{faults, name}
	l[f.Domain].top = append(l[f.Domain].top, entries(from, fault.Path{}, f.Descriptors)...)
}

// longestDomain bounds names of gates in bytes.
const longestDomain = 256

func entries(from *source, at fault.Path, list []descriptor) []entry {
	all := make([]entry, len(list))
	for i := range list {
		all[i] = entry{&list[i], from, at.At("descriptors").Index(i)}
	}
	return all
}

// Compile makes the rules of all domains, when all files have been added. It adds what is wrong to
// the faults of the files.
func (l Limits) Compile() {
	for _, name := range l.Names() {
		d := l[name]
		d.level(nil, d.top, true)
		for _, limit := range d.limits {
			d.replaces = d.replaces || len(limit.replaces) > 0
		}
		d.cycles()
	}
}

// texts are the keys whose values are texts, however they look.
var texts = []string{"domain", "key", "value", "unit", "name"}

// tidy makes a tree what the service of these files takes it for. A key without a value is left
// out, and numbers may be texts. Metadata is anything; it becomes a text of JSON.
func tidy(n *setting.Node) {
	n.Members = slices.DeleteFunc(n.Members, func(m setting.Member) bool { return m.Value.Kind == setting.Null })
	for i := range n.Members {
		m := &n.Members[i]
		if slices.Contains(texts, m.Key) && (m.Value.Kind == setting.Number || m.Value.Kind == setting.Bool) {
			m.Value.Kind = setting.Text
		}
		if m.Key == "metadata" && m.Value.Kind == setting.Group {
			text, _ := json.Marshal(plain(m.Value)) // maps, lists and scalars
			m.Value = &setting.Node{Kind: setting.Text, Place: m.Value.Place, Text: string(text)}
		}
		tidy(m.Value)
	}
	for _, item := range n.Items {
		tidy(item)
	}
}

// plain returns a tree as values of Go.
func plain(n *setting.Node) any {
	switch n.Kind {
	case setting.Group:
		all := make(map[string]any, len(n.Members))
		for _, m := range n.Members {
			all[m.Key] = plain(m.Value)
		}
		return all
	case setting.List:
		all := make([]any, len(n.Items))
		for i, item := range n.Items {
			all[i] = plain(item)
		}
		return all
	case setting.Number:
		if f, err := strconv.ParseFloat(n.Text, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f
		}
	case setting.Bool:
		return n.Text == "true"
	case setting.Null:
		return nil
	}
	return n.Text
}

// step is a descriptor on the way to a limit.
type step struct {
	pair    string // as a rule names it
	byValue bool
}

// level reads the descriptors that follow after some steps. Without live they can never match, and
// are only checked.
func (d *Domain) level(way []step, list []entry, live bool) {
	type keyed struct{ key, value string }
	seen, wide := map[keyed]*entry{}, []entry{}
	for _, e := range list {
		if e.Value == "" || strings.HasSuffix(e.Value, "*") {
			wide = append(wide, e)
		}
	}
	for i := range list {
		e := &list[i]
		id := keyed{e.Key, e.Value}
		if !e.valid() {
			continue
		}
		if first := seen[id]; first != nil {
			problem := "has the same key and value as " + first.at.String()
			if first.from != e.from {
				problem += " in " + first.from.name
			}
			e.from.Add(e.at, problem, "leave one of them out")
			continue
		}
		seen[id] = e
		on := append(slices.Clone(way), step{e.pair(), e.ValueToMetric})
		matches := live && !hidden(wide, e)
		if e.RateLimit != nil {
			d.limit(on, e, matches)
		}
		d.level(on, entries(e.from, e.at, e.Descriptors), matches)
		if matches {
			d.shadow(on, e, wide)
		}
	}
}

// valid checks a descriptor, without what is below it.
func (d *entry) valid() bool {
	r, at := d.from, d.at
	n := r.Len()
	switch value, wild := strings.CutSuffix(d.Value, "*"); {
	case d.Key == "":
		if !r.Has(at.At("key")) {
			r.Add(at.At("key"), "is empty", "write the key that Envoy sends")
		}
	case strings.HasSuffix(d.Key, "*"):
		r.Add(at.At("key"), "has a wildcard, which only a value may have", "write the whole key, and value: \"begin*\"")
	case d.ShareThreshold && !wild:
		r.Add(at.At("share_threshold"), fmt.Sprintf("the value %.60q has no wildcard, so there is nothing to share", d.Value), "end the value with *, or leave share_threshold out")
	case wild && len(value) > 200:
		r.Add(at.At("value"), fmt.Sprintf("has %d bytes before its wildcard", len(value)), "write at most 200")
	}
	return r.Len() == n && d.Key != ""
}

// pair returns the descriptor as a rule names it.
func (d *descriptor) pair() string {
	value, wild := strings.CutSuffix(d.Value, "*")
	text := string(quota.AppendPair(nil, d.Key, value))
	switch {
	case d.Value == "" || wild && !d.ShareThreshold:
		return text + "*"
	case wild:
		return text + "**"
	}
	return text
}

// covers reports whether every value that o matches is one that d, a wildcard or a key alone, matches.
func (d *descriptor) covers(o *descriptor) bool {
	value, wild := strings.CutSuffix(d.Value, "*")
	return d.Key == o.Key && (d.Value == "" || wild && strings.HasPrefix(o.Value, value))
}

// hidden reports whether a wildcard takes everything that d, a wildcard or a key alone, could match.
// Wildcards are tried in their order, and a key alone after them.
func hidden(wide []entry, d *entry) bool {
	if d.Value != "" && !strings.HasSuffix(d.Value, "*") {
		return false
	}
	for _, e := range wide {
		switch {
		case e.descriptor == d.descriptor && d.Value != "":
			return false
		case e.Key == d.Key && (d.Value == "" && e.Value == "*" || d.Value != "" && e.Value != "" && e.covers(d.descriptor)):
			return true
		}
	}
	return false
}

// limit makes the rule of a descriptor with a limit.
func (d *Domain) limit(way []step, e *entry, live bool) {
	r, given, at := e.from, e.RateLimit, e.at.At("rate_limit")
	l := &limit{name: given.Name, shadow: e.ShadowMode, quota: e.QuotaMode, unlimited: given.Unlimited, detailed: e.DetailedMetric}
	if e.Metadata != "" {
		l.metadata = new(structpb.Struct)
		if err := l.metadata.UnmarshalJSON([]byte(e.Metadata)); err != nil {
			r.Add(e.at.At("metadata"), "is not a group of fields", "write {name: value}")
		}
	}
	if slices.ContainsFunc(way, func(s step) bool { return s.byValue }) {
		for _, s := range way {
			l.byValue = append(l.byValue, s.byValue)
		}
	}
	for i, other := range given.Replaces {
		at := at.At("replaces").Index(i).At("name")
		switch {
		case other.Name == "":
			if !r.Has(at) {
				r.Add(at, "is empty", "write the name of another limit")
			}
		case other.Name == given.Name:
			r.Add(at, "is the limit itself", "write the name of another limit")
		default:
			l.replaces = append(l.replaces, other.Name)
		}
	}
	var rule policy.QuotaRuleSpec
	u := slices.IndexFunc(units, func(u unit) bool { return strings.EqualFold(u.name, given.Unit) })
	switch {
	case given.Unlimited && u >= 0:
		r.Add(at.At("unit"), "means nothing where there is no limit", "leave out unit, or unlimited")
	case given.Unlimited:
		rule.Exempt = true
	case u < 0:
		r.Add(at.At("unit"), fmt.Sprintf("%.60q is not a unit of time", given.Unit), "write second, minute, hour, day, week, month or year")
		return
	case given.RequestsPerUnit == 0:
		rule.Blocked, l.unit = true, units[u].number
	default:
		rule.Rate = fmt.Sprintf("%d/%s", given.RequestsPerUnit, units[u].rate)
	}
	if live {
		d.rule(e, at, pattern(way), rule, l)
	}
}

func pattern(way []step) string {
	pairs := make([]string, len(way))
	for i, s := range way {
		pairs[i] = s.pair
	}
	return strings.Join(pairs, ",")
}

// rule adds a rule. l is nil for one that stands for no limit.
func (d *Domain) rule(e *entry, at fault.Path, pattern string, rule policy.QuotaRuleSpec, l *limit) {
	rule.Descriptor = quota.Named(pattern)
	if err := quota.CheckDescriptor(string(rule.Descriptor)); err != nil {
		e.from.Add(at, err.Error(), "")
		return
	}
	d.Rules = append(d.Rules, rule)
	d.Places = append(d.Places, fmt.Sprintf("%s:%d", e.from.name, e.from.Where(at).Line))
	if l != nil {
		d.limits[rule.Pattern()] = l
	}
}

// shadow adds the rules that keep work at a descriptor, once it matches, from less exact ones
// beside it. A rule of a quota does not hide more than what it matches itself.
func (d *Domain) shadow(way []step, e *entry, wide []entry) {
	ends, goesOn := false, false
	for _, o := range wide {
		if o.descriptor != e.descriptor && o.covers(e.descriptor) && !hidden(wide, &o) {
			ends, goesOn = ends || o.RateLimit != nil, goesOn || o.deep()
		}
	}
	none := policy.QuotaRuleSpec{Rule: quota.Rule{Exempt: true}}
	if ends && e.RateLimit == nil {
		d.rule(e, e.at, pattern(way), none, nil)
	}
	if goesOn {
		d.rule(e, e.at, pattern(way)+",**", none, nil)
	}
}

// deep reports whether there are limits below the descriptor.
func (d *descriptor) deep() bool {
	return slices.ContainsFunc(d.Descriptors, func(d descriptor) bool { return d.RateLimit != nil || d.deep() })
}

// cycles finds limits that replace each other: where both match, none would count.
func (d *Domain) cycles() {
	replaces := map[string][]string{}
	for _, l := range d.limits {
		if l.name != "" {
			replaces[l.name] = append(replaces[l.name], l.replaces...)
		}
	}
	done := map[string]bool{}
	var on []string
	var follow func(name string) []string
	follow = func(name string) []string {
		if i := slices.Index(on, name); i >= 0 {
			return append(slices.Clone(on[i:]), name)
		}
		if done[name] {
			return nil
		}
		done[name] = true
		on = append(on, name)
		for _, next := range replaces[name] {
			if cycle := follow(next); cycle != nil {
				return cycle
			}
		}
		on = on[:len(on)-1]
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(replaces)) {
		if on = nil; !done[name] {
			if cycle := follow(name); cycle != nil {
				d.top[0].from.Add(fault.Path{"descriptors"}, "limits replace each other, so none of them would count: "+strings.Join(cycle, " replaces "), "leave one of the replaces out")
				return
			}
		}
	}
}

// Gates returns gates with those of the domains. store and onError are where all of them keep their
// buckets, as in a file.
func (l Limits) Gates(gates map[string]policy.GateSpec, store, onError string, mode policy.Mode) map[string]policy.GateSpec {
	all := maps.Clone(gates)
	if all == nil {
		all = make(map[string]policy.GateSpec)
	}
	if store == "" {
		onError = ""
	}
	for name, d := range l {
		if len(d.Rules) == 0 {
			continue
		}
		all[name] = policy.GateSpec{Mode: mode, Quota: &policy.QuotaSpec{Rules: d.Rules, Store: store, OnStoreError: onError}}
	}
	return all
}

// Names returns the names of the domains, in order.
func (l Limits) Names() []string { return slices.SortedFunc(maps.Keys(l), cmp.Compare[string]) }
