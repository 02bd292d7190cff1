package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"

	"github.com/weir-go/weir/policy"
	"go.yaml.in/yaml/v3"
)

// SchemaID is the name of the schema. Editors take it from a comment in the file:
//
//	# yaml-language-server: $schema=...
const SchemaID = "https://raw.githubusercontent.com/weir-go/weir/main/docs/config.schema.json"

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
	Other       any                `json:"additionalProperties,omitempty"` // false or a schema
	Defs        map[string]*schema `json:"$defs,omitempty"`
}

// Schema returns the JSON schema (2020-12) of the file, made from the same types
// and the same table the decoder uses. It knows form only: whether a gate or a
// file exists, and what the policy's compiler objects to, only Parse can say.
func Schema() ([]byte, error) {
	s := schemer{defs: map[string]*schema{}}
	s.of(reflect.TypeFor[Config](), field{})
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
type schemer struct{ defs map[string]*schema }

func (s *schemer) of(t reflect.Type, f field) *schema {
	switch {
	case t == durationType:
		return durationSchema(f)
	case t.Kind() == reflect.Pointer:
		return s.of(t.Elem(), f)
	case t.Kind() == reflect.Struct:
		s.define(t)
		return &schema{Ref: "#/$defs/" + t.Name()}
	case t.Kind() == reflect.Map:
		m := &schema{Type: "object", Other: s.of(t.Elem(), field{})}
		if !f.anyName {
			m.Names = &schema{Pattern: goodName.String()}
		}
		return m
	case t.Kind() == reflect.Slice:
		list := &schema{Type: "array", Items: s.of(t.Elem(), field{})}
		if f.required {
			list.MinItems = 1
		}
		return list
	case t.Kind() == reflect.Bool:
		return &schema{Type: "boolean"}
	case t.Kind() == reflect.String:
		return &schema{Type: "string", Enum: f.enum}
	}
	n := &schema{Type: "integer", Minimum: limitOf(t, f.least), Maximum: limitOf(t, f.most)}
	if t.Kind() == reflect.Float64 {
		n.Type = "number"
	}
	if f.minusOne != "" {
		n.Minimum = new(-1.0) // the decoder agrees: the least of such fields is 0
	}
	return n
}

// durationSchema lets a text with a unit through, and the numbers that need none.
func durationSchema(f field) *schema {
	d := &schema{Type: []string{"string", "integer"}, Pattern: policy.DurationPattern, Minimum: new(0.0), Maximum: new(0.0)}
	if f.minusOne != "" {
		d.Minimum = new(-1.0)
	}
	return d
}

func limitOf(t reflect.Type, text string) *float64 {
	if x, ok := bound(t, text); ok {
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
	for _, k := range fieldsOf(t) {
		p := s.of(k.typ, k.field)
		p.Description = k.describeAll()
		p.Default = value(k.def)
		if k.example != "" {
			p.Examples = []any{value(k.example)}
		}
		def.Properties[k.name] = p
		if k.required {
			def.Required = append(def.Required, k.name)
		}
	}
}

// describeAll is the text of a field with the meaning of -1.
func (k key) describeAll() string {
	if k.minusOne == "" {
		return k.doc
	}
	return k.doc + " -1: " + k.minusOne + "."
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
