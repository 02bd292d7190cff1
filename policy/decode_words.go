package policy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

func tokenName(t json.Token) string {
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return "an object"
		}
		return "a list"
	case string:
		if len(t) > 40 {
			return "a text"
		}
		return strconv.Quote(t)
	}
	return fmt.Sprint(t)
}

func kindName(v reflect.Value) string {
	switch {
	case v.Type() == reflect.TypeFor[Duration]():
		return "a duration such as \"250ms\""
	case v.CanInt(), v.CanUint():
		return "a whole number"
	case v.CanFloat():
		return "a number"
	}
	switch v.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a text in quotes"
}

// jsonFields maps the names in a struct's json tags to its fields, those of
// embedded structs included.
func jsonFields(t reflect.Type) map[string][]int {
	fields := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() || (f.Anonymous && name == ""):
			continue
		case name == "":
			name = f.Name
		}
		fields[name] = f.Index
	}
	return fields
}

func sortedKeys(m map[string][]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
