package config

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
)

// docs returns the comments of the fields of all structs that the file is made of, by the names of
// the package, the type and the field: the sentences of the schema and of the reference.
func docs(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, dir := range []string{".", "../../../policy", "../../../quota", "../../../control", "../../../shed"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("no source in %s: %v", dir, err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if s, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						for _, name := range f.Names {
							docs[parsed.Name.Name+"."+spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
						}
					}
				}
				return false
			})
		}
	}
	return docs
}

// schema is the part of JSON Schema 2020-12 that the file needs.
type schema struct {
	Schema      string             `json:"$schema,omitempty"`
	ID          string             `json:"$id,omitempty"`
	Ref         string             `json:"$ref,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        any                `json:"type,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Pattern     string             `json:"pattern,omitempty"`
	Minimum     *float64           `json:"minimum,omitempty"`
	Maximum     *float64           `json:"maximum,omitempty"`
	Default     any                `json:"default,omitempty"`
	Examples    []any              `json:"examples,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	MinItems    int                `json:"minItems,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Names       *schema            `json:"propertyNames,omitempty"`
	AnyOf       []*schema          `json:"anyOf,omitempty"`
	Other       any                `json:"additionalProperties,omitempty"` // false or a schema
	Defs        map[string]*schema `json:"$defs,omitempty"`
}

// makeSchema returns the JSON schema (2020-12) of the file, made from the types, tags and comments
// that the decoder goes by. It knows form only: whether a gate or a file exists, and what the
// policy's compiler objects to, only Parse can say.
func makeSchema(t *testing.T) ([]byte, error) {
	s := schemer{defs: map[string]*schema{}, docs: docs(t)}
	s.of(reflect.TypeFor[Config](), setting.Field{})
	root := s.defs["Config"]
	delete(s.defs, "Config")
	root.Schema = "https://json-schema.org/draft/2020-12/schema"
	root.ID = SchemaID
	root.Title = "weir gateway configuration"
	root.Defs = s.defs
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(root)
	return b.Bytes(), err
}

// schemer collects the structs it meets as definitions.
type schemer struct {
	defs map[string]*schema
	docs map[string]string
}

// variable is a pattern for values from the environment, which may be anything.
const variable = `[$][{]`

func (s *schemer) of(t reflect.Type, f setting.Field) *schema {
	if f.Short != "" {
		return s.short(t, f)
	}
	switch {
	case t == reflect.TypeFor[policy.Duration]():
		return durationSchema(f)
	case t.Kind() == reflect.Pointer:
		return s.of(t.Elem(), f)
	case t.Kind() == reflect.Struct:
		s.define(t)
		return &schema{Ref: "#/$defs/" + t.Name()}
	case t.Kind() == reflect.Map:
		m := &schema{Type: "object", Other: s.of(t.Elem(), setting.Field{Min: f.Min, Max: f.Max})}
		if f.Plain() {
			m.Names = &schema{Pattern: setting.NamePattern}
		}
		return m
	case t.Kind() == reflect.Slice:
		list := &schema{Type: "array", Items: s.of(t.Elem(), setting.Field{Min: f.Min, Max: f.Max})}
		if f.Required {
			list.MinItems = 1
		}
		return list
	case t.Kind() == reflect.Bool:
		return &schema{Type: []string{"boolean", "string"}, Pattern: variable}
	case t.Kind() == reflect.String && len(f.Enum) > 0:
		return &schema{AnyOf: []*schema{{Type: "string", Enum: f.Enum}, {Type: "string", Pattern: variable}}}
	case t.Kind() == reflect.String:
		return &schema{Type: "string"}
	}
	n := &schema{Type: []string{"integer", "string"}, Pattern: variable, Minimum: limitOf(t, f.Min), Maximum: limitOf(t, f.Max)}
	if t.Kind() == reflect.Float64 {
		n.Type = []string{"number", "string"}
	}
	if f.MinusOne != "" {
		n.Minimum = new(-1.0) // the decoder agrees: the least of such fields is 0
	}
	return n
}

// short lets a group through, and the scalars that stand for it.
func (s *schemer) short(t reflect.Type, f setting.Field) *schema {
	key, words := f.Short, slices.Sorted(maps.Keys(f.ShortFor))
	f.Short = ""
	any := &schema{AnyOf: []*schema{s.of(t, f)}}
	if len(words) > 0 {
		any.AnyOf = append(any.AnyOf, &schema{Type: "string", Enum: words})
	}
	fields := setting.Fields(element(t))
	in := fields[slices.IndexFunc(fields, func(f setting.Field) bool { return f.Key == key })]
	any.AnyOf = append(any.AnyOf, s.of(in.Type, in))
	return any
}

// durationSchema lets a text with a unit through, and the numbers that need none.
func durationSchema(f setting.Field) *schema {
	d := &schema{Type: []string{"string", "integer"}, Pattern: setting.DurationPattern + "|" + variable, Minimum: new(0.0), Maximum: new(0.0)}
	if f.MinusOne != "" {
		d.Minimum = new(-1.0)
	}
	return d
}

func limitOf(t reflect.Type, text string) *float64 {
	if x, ok := setting.Bound(t, text); ok {
		return &x
	}
	return nil
}

func (s *schemer) define(t reflect.Type) {
	if s.defs[t.Name()] != nil {
		return
	}
	def := &schema{Type: "object", Properties: map[string]*schema{}, Other: false}
	s.defs[t.Name()] = def
	for _, f := range fieldsOf(t) {
		for _, in := range fieldsOf(element(f.Type)) {
			if slices.Contains(f.Lift, in.Key) {
				p := s.of(in.Type, in)
				p.Description = "Short for " + f.Key + ": {" + in.Key + ": ...}."
				def.Properties[in.Key] = p
			}
		}
		p := s.of(f.Type, f)
		p.Description = describe(s.docs, &f)
		p.Default = value(f.Default)
		if f.Example != "" {
			p.Examples = []any{value(f.Example)}
		}
		def.Properties[f.Key] = p
		if f.Required {
			def.Required = append(def.Required, f.Key)
		}
	}
}

// fieldsOf is setting.Fields, and knows what signals can read in the gateway: a policy in Go may have others.
func fieldsOf(t reflect.Type) []setting.Field {
	if t == nil {
		return nil
	}
	fields := slices.Clone(setting.Fields(t))
	for i := range fields {
		if f := &fields[i]; f.Owner == reflect.TypeFor[policy.SignalSpec]() && f.Key == "read" {
			f.Enum = append(policy.SignalKinds(), kafkaLag)
		}
	}
	return fields
}

// describe is the sentence of a field, with the meaning of -1.
func describe(docs map[string]string, f *setting.Field) string {
	doc := docs[f.Owner.String()+"."+f.Go]
	if f.MinusOne == "" {
		return doc
	}
	return doc + " -1: " + f.MinusOne + "."
}

// value reads a default or an example of the table; nil for none.
func value(text string) any {
	if text == "" {
		return nil
	}
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		return strconv.Quote(text)
	}
	return v
}
