package config

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
)

const (
	guideFile  = "../../../docs/reference/config.md"
	schemaFile = "../../../docs/config.schema.json"

	fieldsBelow = "fields, below"
	keysBegin   = "<!-- The tables below are written by make docs. -->\n"
)

// TestSchemaFile holds the schema in the docs against the types.
func TestSchemaFile(t *testing.T) {
	got, err := makeSchema(t)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, schemaFile, string(got))
	compare(t, "schema.json", string(got)) // which weir schema prints
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
	compare(t, guideFile, before+keysBegin+reference(t, docs(t)))
}

// TestStarterListsControllerSettings holds the lists in the full starter against the types.
func TestStarterListsControllerSettings(t *testing.T) {
	for _, group := range setting.Fields(reflect.TypeFor[policy.LimitSpec]()) {
		if !slices.Contains(policy.Controllers(), group.Key) {
			continue
		}
		_, list, _ := strings.Cut(string(FullStarter), "\n      # "+group.Key+": ")
		list, _, _ = strings.Cut(list, "\n")
		listed := strings.Fields(strings.ReplaceAll(list, ":", ""))
		var keys []string
		for _, f := range setting.Fields(group.Type) {
			keys = append(keys, f.Key)
		}
		slices.Sort(keys)
		slices.Sort(listed)
		if !slices.Equal(listed, keys) {
			t.Errorf("%s: the starter lists %v, want %v", group.Key, listed, keys)
		}
	}
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	if updating() {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is out of date; run make docs", file)
	}
}

// reference writes a table for each group of fields, and fails if a group has none.
func reference(t *testing.T, docs map[string]string) string {
	t.Helper()
	var b strings.Builder
	has, wants := map[reflect.Type]bool{}, map[reflect.Type]string{}
	section := func(title string, in reflect.Type) {
		has[in] = true
		fmt.Fprintf(&b, "\n## %s\n\n| key | what it is | default | allowed |\n| --- | --- | --- | --- |\n", title)
		for _, f := range fieldsOf(in) {
			if strings.Contains(allowed(&f), fieldsBelow) {
				wants[element(f.Type)] = title + " " + f.Key
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Key, cell(describe(docs, &f)), code(f.Default), cell(allowed(&f)))
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
		{"`upstreams: NAME: passive_health:`", reflect.TypeFor[Upstream](), "passive_health"},
		{"`upstreams: NAME: health_check:`", reflect.TypeFor[Upstream](), "health_check"},
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
		{"`kafka: NAME:`", reflect.TypeFor[Config](), "kafka"},
		{"`kafka: NAME: tls:`", reflect.TypeFor[Config](), "kafka.tls"},
		{"`kafka: NAME: sasl:`", reflect.TypeFor[Config](), "kafka.sasl"},
		{"`kafka: NAME: listen:`", reflect.TypeFor[Config](), "kafka.listen"},
		{"`kafka: NAME: nodes:`", reflect.TypeFor[Config](), "kafka.nodes"},
		{"`kafka: NAME: quotas:`", reflect.TypeFor[Config](), "kafka.quotas"},
		{"`stores: NAME:`", reflect.TypeFor[Config](), "stores"},
		{"`stores: NAME: sentinel:`", reflect.TypeFor[Config](), "stores.sentinel"},
		{"`stores: NAME: tls:`", reflect.TypeFor[Config](), "stores.tls"},
		{"`stores: NAME: lease:`", reflect.TypeFor[Config](), "stores.lease"},
		{"`rate_limit_service:`", reflect.TypeFor[Config](), "rate_limit_service"},
		{"`routes:` each", reflect.TypeFor[Config](), "routes"},
		{"`runtime_quotas:`", reflect.TypeFor[Config](), "runtime_quotas"},
		{"`admin:`", reflect.TypeFor[Config](), "admin"},
		{"`metrics:`", reflect.TypeFor[Config](), "metrics"},
		{"`streams:`", reflect.TypeFor[Config](), "streams"},
		{"`state:`", reflect.TypeFor[Config](), "state"},
		{"`shutdown:`", reflect.TypeFor[Config](), "shutdown"},
		{"`log:`", reflect.TypeFor[Config](), "log"},
		{"`access_log:`", reflect.TypeFor[Config](), "access_log"},
		{"`tracing:`", reflect.TypeFor[Config](), "tracing"},
	} {
		t := s.in
		for name := range strings.SplitSeq(s.key, ".") {
			fields := setting.Fields(t)
			t = element(fields[slices.IndexFunc(fields, func(f setting.Field) bool { return f.Key == name })].Type)
		}
		section(s.title, t)
	}
	for in, where := range wants {
		if !has[in] {
			t.Errorf("%s: the guide has no section for its fields", where)
		}
	}
	b.WriteString("\n## Old names\n\nThese are read until 1.0. `weir check` notes each with its line.\n\n| was | is |\n| --- | --- |\n")
	for _, row := range oldNames() {
		b.WriteString(row)
	}
	return b.String()
}

// oldNames returns a row of a table for each key and each word of an earlier version.
func oldNames() (rows []string) {
	seen := map[reflect.Type]bool{}
	var visit func(t reflect.Type, at string)
	visit = func(t reflect.Type, at string) {
		if seen[t] {
			return
		}
		seen[t] = true
		for _, f := range setting.Fields(t) {
			if f.Was != "" {
				rows = append(rows, fmt.Sprintf("| `%s%s:` | `%s:` |\n", at, f.Was, f.Key))
			}
			for _, word := range slices.Sorted(maps.Keys(f.Renamed)) {
				rows = append(rows, fmt.Sprintf("| `%s%s: %s` | `%s: %s` |\n", at, f.Key, word, f.Key, f.Renamed[word]))
			}
			if in := element(f.Type); in != nil {
				name := ""
				if f.Type.Kind() == reflect.Map {
					name = "NAME: "
				}
				visit(in, at+f.Key+": "+name)
			}
		}
	}
	visit(reflect.TypeFor[Config](), "")
	return rows
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
func allowed(f *setting.Field) string {
	var parts []string
	if f.Required {
		parts = append(parts, "required")
	}
	switch {
	case len(f.Enum) > 0:
		parts = append(parts, strings.Join(f.Enum, ", "))
	case f.Type == reflect.TypeFor[policy.Duration]():
		parts = append(parts, "a duration")
	case element(f.Type) != nil:
		parts = append(parts, fieldsBelow)
		if f.Short != "" {
			parts = append(parts, "or "+strings.Join(append(slices.Sorted(maps.Keys(f.ShortFor)), "its "+f.Short), " or "))
		}
	default:
		parts = append(parts, f.Words())
	}
	if f.Min != "" && f.Min != "0s" && f.Min != "0" {
		parts = append(parts, "at least "+f.Min)
	}
	if f.Max != "" {
		parts = append(parts, "at most "+f.Max)
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

// TestFields holds the tags and comments of all fields against the decoder.
func TestFields(t *testing.T) {
	docs := docs(t)
	seen := map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		for _, f := range setting.Fields(typ) {
			if docs[f.Owner.String()+"."+f.Go] == "" {
				t.Errorf("%s.%s has no comment", f.Owner, f.Go)
			}
			checkField(t, f)
			if in := element(f.Type); in != nil {
				visit(in)
			}
		}
	}
	visit(reflect.TypeFor[Config]())
}

// checkField checks that bounds can be read, and that default and example are
// what the decoder takes.
func checkField(t *testing.T, f setting.Field) {
	t.Helper()
	of := f.Type
	if of.Kind() == reflect.Map || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	for _, text := range []string{f.Min, f.Max} {
		if _, ok := setting.Bound(of, text); text != "" && !ok {
			t.Errorf("%s: the bound %q cannot be read", f.Key, text)
		}
	}
	for _, text := range []string{f.Default, f.Example} {
		if text == "" {
			continue
		}
		faults := fault.List{File: "tag"}
		root := parseText([]byte(f.Key+": "+text+"\n"), &faults, nil)
		if root != nil {
			one := reflect.StructOf([]reflect.StructField{{Name: f.Go, Type: f.Type, Tag: f.Tag}})
			setting.Decode(root, reflect.New(one).Interface(), &faults)
		}
		for _, fault := range faults.All() {
			t.Errorf("%s: %q is refused: %v", f.Key, text, fault)
		}
	}
}
