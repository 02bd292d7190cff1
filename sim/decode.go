package sim

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"sort"
	"strconv"
	"strings"
)

// decodeStrict reads data into target and finds every unknown field and every
// value of the wrong kind, where encoding/json stops at the first.
func decodeStrict(data []byte, target any, f *faultList) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		f.add("", "not JSON: %s", describe(err, data))
		return
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		f.add("", "something follows the end of the scenario; a file holds one JSON object")
		return
	}
	before := len(*f)
	checkTree(tree, reflect.TypeOf(target).Elem(), "", f)
	if len(*f) > before {
		return
	}
	if err := json.Unmarshal(data, target); err != nil {
		f.add("", "%v", err)
	}
}

// describe adds the line to a syntax error.
func describe(err error, data []byte) string {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		line := 1 + bytes.Count(data[:min(int(syntax.Offset), len(data))], []byte("\n"))
		return "line " + strconv.Itoa(line) + ": " + err.Error()
	}
	return err.Error()
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	backendRefType  = reflect.TypeFor[BackendRef]()
	policyRefType   = reflect.TypeFor[PolicyRef]()
)

// checkTree compares decoded JSON with the type it is meant for.
func checkTree(v any, t reflect.Type, path string, f *faultList) {
	if v == nil {
		return // null leaves a field at its default
	}
	_, isObject := v.(map[string]any)
	switch {
	case t == backendRefType && isObject:
		checkTree(v, reflect.TypeFor[Backend](), path, f)
		return
	case t == policyRefType && isObject:
		checkTree(v, reflect.TypeFor[PolicyRef]().Field(1).Type, path, f)
		return
	case reflect.PointerTo(t).Implements(jsonUnmarshaler), reflect.PointerTo(t).Implements(textUnmarshaler):
		checkByDecoding(v, t, path, f)
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		checkTree(v, t.Elem(), path, f)
	case reflect.Struct:
		checkObject(v, t, path, f)
	case reflect.Slice:
		checkList(v, t, path, f)
	case reflect.Map:
		checkMap(v, t, path, f)
	default:
		checkByDecoding(v, t, path, f)
	}
}

func checkByDecoding(v any, t reflect.Type, path string, f *faultList) {
	data, err := json.Marshal(v)
	if err != nil {
		f.add(path, "%v", err)
		return
	}
	err = json.Unmarshal(data, reflect.New(t).Interface())
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType):
		f.add(path, "%s: must be %s", data, kindName(t))
	case err != nil:
		f.add(path, "%v", err)
	}
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number, 0 or more"
	case reflect.Float64:
		return "a number"
	}
	return "a " + t.Name()
}

func checkObject(v any, t reflect.Type, path string, f *faultList) {
	object, ok := v.(map[string]any)
	if !ok {
		f.add(path, "must be an object {…}")
		return
	}
	fields := map[string]reflect.Type{}
	jsonFields(t, fields)
	for _, key := range sortedKeys(object) {
		if field, known := fields[key]; known {
			checkTree(object[key], field, path+"."+key, f)
			continue
		}
		f.add(path+"."+key, "unknown field; known here: %s", strings.Join(sortedKeys(fields), ", "))
	}
}

// jsonFields gathers the names encoding/json knows a struct's fields by.
func jsonFields(t reflect.Type, fields map[string]reflect.Type) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
		case name == "" && field.Anonymous && field.Type.Kind() == reflect.Struct:
			jsonFields(field.Type, fields)
		case name == "":
			fields[field.Name] = field.Type
		default:
			fields[name] = field.Type
		}
	}
}

func checkList(v any, t reflect.Type, path string, f *faultList) {
	list, ok := v.([]any)
	if !ok {
		f.add(path, "must be a list […]")
		return
	}
	for i, e := range list {
		checkTree(e, t.Elem(), index(path, i), f)
	}
}

func checkMap(v any, t reflect.Type, path string, f *faultList) {
	object, ok := v.(map[string]any)
	if !ok {
		f.add(path, "must be an object {…}")
		return
	}
	for _, key := range sortedKeys(object) {
		checkTree(object[key], t.Elem(), path+"."+key, f)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
