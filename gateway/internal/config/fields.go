package config

import (
	"reflect"
	"strings"
)

// field is what the file format knows of one key beyond its Go type. The decoder
// enforces required, enum, least and most; the schema and the reference guide
// print all of it.
type field struct {
	doc      string
	def      string // default as one would write it; empty: none
	example  string // a value that is right, as flow YAML
	form     string // what a text looks like, in words
	enum     []string
	least    string // smallest value allowed, as one would write it
	most     string
	minusOne string // what -1 means, where it is allowed
	required bool
	anyName  bool // keys of a map that are words of others, such as tenants
}

// orMinusOne ends the remedy of a value that is too small.
func (f field) orMinusOne() string {
	if f.minusOne == "" {
		return ""
	}
	return ", or -1: " + f.minusOne
}

// sample is a value to show in a message.
func (f field) sample() string {
	switch {
	case f.example != "":
		return f.example
	case f.def != "":
		return f.def
	}
	return "..."
}

// key is a field of a struct as the file sees it.
type key struct {
	name  string
	index []int // for reflect.Value.FieldByIndex
	typ   reflect.Type
	field
}

type fieldList []key

// fieldsOf lists the keys of a struct in their order; embedded structs are
// spread out.
func fieldsOf(t reflect.Type) fieldList {
	var list fieldList
	for sf := range t.Fields() {
		if sf.Anonymous {
			for _, k := range fieldsOf(sf.Type) {
				k.index = append([]int{sf.Index[0]}, k.index...)
				list = append(list, k)
			}
			continue
		}
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		list = append(list, key{name: name, index: sf.Index, typ: sf.Type, field: fields[t.Name()+"."+name]})
	}
	return list
}

// holders names the groups in l that have a key called name.
func (l fieldList) holders(name string) []string {
	var in []string
	for _, k := range l {
		t := k.typ
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			continue
		}
		if _, ok := fieldsOf(t).find(name); ok {
			in = append(in, k.name)
		}
	}
	return in
}

func (l fieldList) find(name string) (key, bool) {
	for _, k := range l {
		if k.name == name {
			return k, true
		}
	}
	return key{}, false
}

func (l fieldList) names() []string {
	names := make([]string, len(l))
	for i, k := range l {
		names[i] = k.name
	}
	return names
}
