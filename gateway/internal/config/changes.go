package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// mostChanges bounds what Changes lists; more is a number.
const mostChanges = 50

// Changes lists what c says other than before, a line for each setting, as in
// "gates.api.limit.limit: 24 (was 20)". Neither a password in a URL is shown, nor what came from a variable.
// Certificates and tokens that have other contents under the same name are no change.
func (c *Config) Changes(before *Config) []string {
	d := differences{hide: func(text string) string { return c.env.hideIn(before.env.hideIn(text)) }}
	d.compare("", document(before), document(c))
	d.compare("rate_limit_service", before.domainRules(), c.domainRules())
	if n := len(d.list) - mostChanges; n > 0 {
		d.list = append(d.list[:mostChanges], fmt.Sprintf("and %d more", n))
	}
	return d.list
}

// document is a configuration as maps, lists and values.
func document(c *Config) any {
	var doc any
	data, err := json.Marshal(c)
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber() // a number is written as it was
		err = dec.Decode(&doc)
	}
	if err != nil {
		return err.Error() // of no configuration that was decoded
	}
	return doc
}

type differences struct {
	list []string
	hide func(text string) string
}

// compare adds what differs below a path. A value that is not there is nil.
func (d *differences) compare(path string, was, now any) {
	if reflect.DeepEqual(was, now) {
		return
	}
	a, b := parts(was), parts(now)
	if a != nil && b != nil {
		d.compareParts(path, a, b)
		return
	}
	old, line := d.shown(was), d.shown(now)
	switch {
	case was == nil && line == "":
		line = "new"
	case now == nil && old == "":
		line = "gone"
	default:
		line = fmt.Sprintf("%s (was %s)", cmp.Or(line, "not set"), cmp.Or(old, "not set"))
	}
	d.list = append(d.list, path+": "+line)
}

func (d *differences) compareParts(path string, was, now map[string]any) {
	keys := maps.Clone(was)
	maps.Copy(keys, now)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		at := path + "." + key
		if name, ok := strings.CutPrefix(key, "["); ok {
			at = path + "[" + d.hide(strings.TrimSuffix(name, "]")) + "]"
		} else if path == "" {
			at = key
		}
		d.compare(at, was[key], now[key])
	}
}

// parts returns the fields of a map. Of a list of maps they are its elements by name,
// because a new element moves those behind it. They are nil for all else.
func parts(v any) map[string]any {
	list, ok := v.([]any)
	if !ok {
		fields, _ := v.(map[string]any)
		return fields
	}
	elements := make(map[string]any, len(list))
	for i, e := range list {
		fields, ok := e.(map[string]any)
		if !ok {
			return nil
		}
		key := "[" + nameOf(fields, i) + "]"
		if _, twice := elements[key]; twice {
			key = fmt.Sprintf("[%d]", i)
		}
		elements[key] = e
	}
	return elements
}

// nameOf is how an element of a list is known: by its name, address or first pattern.
func nameOf(fields map[string]any, i int) string {
	for _, key := range []string{"name", "address", "match"} {
		v := fields[key]
		if list, ok := v.([]any); ok && len(list) > 0 {
			v = list[0]
		}
		if text, ok := v.(string); ok {
			return text
		}
	}
	return strconv.Itoa(i)
}

// longest bounds a value in a line, in characters.
const longest = 80

// shown is a value as a line has it. Maps are not shown: their fields would be lines.
func (d *differences) shown(v any) string {
	text := fmt.Sprint(v)
	switch v := v.(type) {
	case nil, map[string]any:
		return ""
	case []any:
		words := make([]string, len(v))
		for i, e := range v {
			words[i] = d.shown(e)
		}
		text = "[" + strings.Join(words, ", ") + "]"
	case string:
		if u, err := url.Parse(v); err == nil && u.User != nil {
			text = u.Redacted()
		}
		if text == "" {
			text = `""`
		}
	}
	text = d.hide(text)
	if chars := []rune(text); len(chars) > longest {
		text = string(chars[:longest-1]) + "…"
	}
	return text
}
