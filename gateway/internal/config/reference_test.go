package config

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const (
	guideFile  = "../../../docs/guides/config.md"
	schemaFile = "../../../docs/config.schema.json"

	keysBegin = "<!-- The tables below are written by go test ./internal/config -update. -->\n"
)

// TestSchemaFile holds the schema in the docs against the types.
func TestSchemaFile(t *testing.T) {
	got, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	compare(t, schemaFile, string(got))
}

// TestGuide holds the tables of the guide against the types.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile(guideFile)
	if err != nil {
		t.Fatal(err)
	}
	before, _, ok := strings.Cut(string(guide), keysBegin)
	if !ok {
		t.Fatalf("%s has lost the line %q", guideFile, keysBegin)
	}
	compare(t, guideFile, before+keysBegin+reference())
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	if updating() {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(file); err != nil || got != string(want) {
		t.Errorf("%s is out of date (%v); run go test ./internal/config -update", file, err)
	}
}

// reference writes a table for each group of fields.
func reference() string {
	var b strings.Builder
	section := func(title string, t reflect.Type) {
		fmt.Fprintf(&b, "\n## %s\n\n| key | what it is | default | allowed |\n| --- | --- | --- | --- |\n", title)
		for _, k := range fieldsOf(t) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.name, cell(k.describeAll()), code(k.def), cell(k.allowed()))
		}
	}
	section("The file", reflect.TypeFor[Config]())
	for _, s := range []struct {
		title string
		in    reflect.Type
		key   string
	}{
		{"`listeners:` each", reflect.TypeFor[Config](), "listeners"},
		{"`listeners: tls:`", reflect.TypeFor[Listener](), "tls"},
		{"`listeners: connections:`", reflect.TypeFor[Listener](), "connections"},
		{"`upstreams: NAME:`", reflect.TypeFor[Config](), "upstreams"},
		{"`upstreams: NAME: eject:`", reflect.TypeFor[Upstream](), "eject"},
		{"`identity:`", reflect.TypeFor[Config](), "identity"},
		{"`deadline:`", reflect.TypeFor[Config](), "deadline"},
		{"`gates: NAME:`", reflect.TypeFor[Config](), "gates"},
		{"`gates: NAME: each:`", reflect.TypeFor[Config](), "gates.each"},
		{"`gates: NAME: each: overrides: KEY:`", reflect.TypeFor[Config](), "gates.each.overrides"},
		{"`gates: NAME: shed:`", reflect.TypeFor[Config](), "gates.shed"},
		{"`gates: NAME: shed: thresholds:`", reflect.TypeFor[Config](), "gates.shed.thresholds"},
		{"`gates: NAME: shed: cursor:`", reflect.TypeFor[Config](), "gates.shed.cursor"},
		{"`gates: NAME: quota:`", reflect.TypeFor[Config](), "gates.quota"},
		{"`gates: NAME: quota: queue:`", reflect.TypeFor[Config](), "gates.quota.queue"},
		{"`gates: NAME: quota: rules:` each", reflect.TypeFor[Config](), "gates.quota.rules"},
		{"`limit:` of a gate or an upstream", reflect.TypeFor[Upstream](), "limit"},
		{"`limit: queue:`", reflect.TypeFor[Upstream](), "limit.queue"},
		{"`limit: queue: weights:`", reflect.TypeFor[Upstream](), "limit.queue.weights"},
		{"`limit: vegas:`", reflect.TypeFor[Upstream](), "limit.vegas"},
		{"`limit: gradient2:`", reflect.TypeFor[Upstream](), "limit.gradient2"},
		{"`limit: probe:`", reflect.TypeFor[Upstream](), "limit.probe"},
		{"`limit: lag:`", reflect.TypeFor[Upstream](), "limit.lag"},
		{"`limit: drain:`", reflect.TypeFor[Upstream](), "limit.drain"},
		{"`limit: resource:`", reflect.TypeFor[Upstream](), "limit.resource"},
		{"`signals: NAME:`", reflect.TypeFor[Config](), "signals"},
		{"`stores: NAME:`", reflect.TypeFor[Config](), "stores"},
		{"`stores: NAME: sentinel:`", reflect.TypeFor[Config](), "stores.sentinel"},
		{"`stores: NAME: tls:`", reflect.TypeFor[Config](), "stores.tls"},
		{"`stores: NAME: lease:`", reflect.TypeFor[Config](), "stores.lease"},
		{"`routes:` each", reflect.TypeFor[Config](), "routes"},
		{"`quotas:`", reflect.TypeFor[Config](), "quotas"},
		{"`admin:`", reflect.TypeFor[Config](), "admin"},
		{"`metrics:`", reflect.TypeFor[Config](), "metrics"},
		{"`streams:`", reflect.TypeFor[Config](), "streams"},
		{"`state:`", reflect.TypeFor[Config](), "state"},
		{"`shutdown:`", reflect.TypeFor[Config](), "shutdown"},
		{"`log:`", reflect.TypeFor[Config](), "log"},
	} {
		t := s.in
		for name := range strings.SplitSeq(s.key, ".") {
			k, _ := fieldsOf(t).find(name)
			t = element(k.typ)
		}
		section(s.title, t)
	}
	return b.String()
}

// element is the struct that a field holds, holds many of, or points to; nil if
// there is none in it.
func element(t reflect.Type) reflect.Type {
	for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, t.Kind()) {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

// allowed says in words what the decoder lets through.
func (k key) allowed() string {
	var parts []string
	if k.required {
		parts = append(parts, "required")
	}
	switch {
	case len(k.enum) > 0:
		parts = append(parts, strings.Join(k.enum, ", "))
	case k.typ == durationType:
		parts = append(parts, "a duration")
	case element(k.typ) != nil:
		parts = append(parts, "fields, below")
	default:
		parts = append(parts, strings.TrimSuffix(kind(k.typ, k.field), " (lines that begin with -)"))
	}
	if k.least != "" && k.least != "0s" && k.least != "0" {
		parts = append(parts, "at least "+k.least)
	}
	if k.most != "" {
		parts = append(parts, "at most "+k.most)
	}
	return strings.Join(parts, "; ")
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// TestFields holds the table of fields against the types, both ways, and its own
// values against the decoder.
func TestFields(t *testing.T) {
	left := map[string]bool{}
	for name := range fields {
		left[name] = true
	}
	var visit func(reflect.Type)
	seen := map[reflect.Type]bool{}
	visit = func(typ reflect.Type) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		for _, k := range fieldsOf(typ) {
			if k.doc == "" {
				t.Errorf("%s.%s has no entry in fields_table.go", typ.Name(), k.name)
			}
			checkField(t, k)
			if in := element(k.typ); in != nil {
				visit(in)
			}
		}
		embedded(typ, func(t reflect.Type) {
			for _, k := range fieldsOf(t) {
				delete(left, t.Name()+"."+k.name)
			}
		})
	}
	visit(reflect.TypeFor[Config]())
	for name := range left {
		t.Errorf("%s is in fields_table.go, but no such field exists", name)
	}
}

// embedded calls visit for a type and the structs it embeds.
func embedded(t reflect.Type, visit func(reflect.Type)) {
	visit(t)
	for f := range t.Fields() {
		if f.Anonymous {
			embedded(f.Type, visit)
		}
	}
}

// checkField checks that bounds can be read, and that default and example are
// what the decoder takes.
func checkField(t *testing.T, k key) {
	t.Helper()
	for _, text := range []string{k.least, k.most} {
		if _, ok := bound(k.typ, text); text != "" && !ok {
			t.Errorf("%s: the bound %q cannot be read", k.name, text)
		}
	}
	for _, text := range []string{k.def, k.example} {
		if text == "" {
			continue
		}
		root, faults := parseYAML("table", []byte("v: "+text+"\n"))
		if len(faults) > 0 {
			t.Errorf("%s: %q is no YAML: %v", k.name, text, faults[0])
			continue
		}
		d := newDecoder("table")
		d.value(k.name, root.Content[1], reflect.New(k.typ).Elem(), k.field)
		for _, f := range d.faults {
			t.Errorf("%s: %q is refused: %v", k.name, text, f)
		}
	}
}
