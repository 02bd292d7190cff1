package policy

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// Decode reads JSON strictly into the value that into points to, and reports
// everything that does not fit at once, as a *Faults with the path and the line
// of each: unknown fields (with the nearest known one), fields given twice,
// values of the wrong type, and text that is no JSON. Unlike encoding/json it
// takes field names letter by letter. It is meant for files that people write:
// scenario files, policies. It knows structs, maps with string keys, slices,
// pointers, strings, numbers, booleans and types with UnmarshalText.
func Decode(data []byte, into any) error {
	d := &decoder{data: data, json: json.NewDecoder(bytes.NewReader(data))}
	d.json.UseNumber()
	if d.value(nil, reflect.ValueOf(into).Elem()) {
		d.end()
	}
	return d.err()
}

// decoder walks JSON tokens and a value's type side by side. Its methods report
// false when the text itself is broken, so that nothing after it makes sense.
type decoder struct {
	collector
	data []byte
	json *json.Decoder
}

func (d *decoder) fault(at place, problem, instead string) {
	d.add(at, problem, instead)
	offset := min(int(d.json.InputOffset()), len(d.data))
	d.faults[len(d.faults)-1].Line = 1 + bytes.Count(d.data[:offset], []byte("\n"))
}

func (d *decoder) broken(at place, err error) bool {
	problem := err.Error()
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		problem = "the text ends in the middle"
	}
	d.fault(at, problem, "write valid JSON")
	return false
}

func (d *decoder) end() {
	if _, err := d.json.Token(); err != io.EOF {
		d.fault(nil, "there is more text after the end of the value", "write one JSON value")
	}
}

func (d *decoder) value(at place, v reflect.Value) bool {
	t, err := d.json.Token()
	if err != nil {
		return d.broken(at, err)
	}
	return d.token(at, v, t)
}

var textType = reflect.TypeFor[encoding.TextUnmarshaler]()

// token decodes the value that begins with t.
func (d *decoder) token(at place, v reflect.Value, t json.Token) bool {
	if t == nil { // null leaves everything as it is
		return true
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return d.token(at, v.Elem(), t)
	}
	if v.Kind() != reflect.Pointer && reflect.PointerTo(v.Type()).Implements(textType) {
		if text, ok := scalarText(t); ok {
			if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
				problem, instead, _ := strings.Cut(err.Error(), "; ")
				d.fault(at, problem, instead)
			}
			return true
		}
		if v.Kind() != reflect.Struct || t != json.Delim('{') { // a name, or the thing in full
			return d.mismatch(at, v, t)
		}
	}
	switch {
	case t == json.Delim('{') && v.Kind() == reflect.Struct:
		return d.object(at, v)
	case t == json.Delim('{') && v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
		return d.dictionary(at, v)
	case t == json.Delim('[') && v.Kind() == reflect.Slice:
		return d.list(at, v)
	}
	if !setScalar(v, t) {
		return d.mismatch(at, v, t)
	}
	return true
}

func scalarText(t json.Token) (string, bool) {
	switch t := t.(type) {
	case string:
		return t, true
	case json.Number:
		return t.String(), true
	}
	return "", false
}

// setScalar sets v from a token if the token fits.
func setScalar(v reflect.Value, t json.Token) bool {
	switch t := t.(type) {
	case string:
		if v.Kind() == reflect.String {
			v.SetString(t)
			return true
		}
	case bool:
		if v.Kind() == reflect.Bool {
			v.SetBool(t)
			return true
		}
	case json.Number:
		return setNumber(v, t.String())
	}
	return false
}

func setNumber(v reflect.Value, text string) bool {
	switch {
	case v.CanInt():
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err == nil {
			v.SetInt(n)
		}
		return err == nil
	case v.CanUint():
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err == nil {
			v.SetUint(n)
		}
		return err == nil
	case v.CanFloat():
		n, err := strconv.ParseFloat(text, v.Type().Bits())
		if err == nil {
			v.SetFloat(n)
		}
		return err == nil
	}
	return false
}

func (d *decoder) object(at place, v reflect.Value) bool {
	fields := jsonFields(v.Type())
	return d.members(at, func(key string) bool {
		index, ok := fields[key]
		if !ok {
			d.fault(at.at(key), "there is no such field", suggest(key, sortedKeys(fields), "fields"))
			return d.skip(at)
		}
		return d.value(at.at(key), v.FieldByIndex(index))
	})
}

func (d *decoder) dictionary(at place, v reflect.Value) bool {
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	return d.members(at, func(key string) bool {
		element := reflect.New(v.Type().Elem()).Elem()
		ok := d.value(at.at(key), element)
		v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), element)
		return ok
	})
}

// members calls member for each key of the object that has begun.
func (d *decoder) members(at place, member func(key string) bool) bool {
	seen := map[string]bool{}
	for d.json.More() {
		t, err := d.json.Token()
		if err != nil {
			return d.broken(at, err)
		}
		key, _ := t.(string)
		if seen[key] {
			d.fault(at.at(key), "the field is given twice", "write it once")
		}
		seen[key] = true
		if !member(key) {
			return false
		}
	}
	return d.close(at)
}

func (d *decoder) list(at place, v reflect.Value) bool {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for i := 0; d.json.More(); i++ {
		element := reflect.New(v.Type().Elem()).Elem()
		if !d.value(at.index(i), element) {
			return false
		}
		v.Set(reflect.Append(v, element))
	}
	return d.close(at)
}

// close reads the closing brace or bracket.
func (d *decoder) close(at place) bool {
	if _, err := d.json.Token(); err != nil {
		return d.broken(at, err)
	}
	return true
}

// skip passes over one whole value.
func (d *decoder) skip(at place) bool {
	var raw json.RawMessage
	if err := d.json.Decode(&raw); err != nil {
		return d.broken(at, err)
	}
	return true
}

// mismatch reports a value of the wrong type, and passes over the rest of it.
func (d *decoder) mismatch(at place, v reflect.Value, t json.Token) bool {
	d.fault(at, fmt.Sprintf("%s is not %s", tokenName(t), kindName(v)), "write "+kindName(v))
	if delim, ok := t.(json.Delim); !ok || delim == ']' || delim == '}' {
		return true
	}
	for depth := 1; depth > 0; {
		t, err := d.json.Token()
		if err != nil {
			return d.broken(at, err)
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
	return true
}
