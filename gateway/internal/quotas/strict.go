package quotas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Strict decodes JSON into v. Package json takes much that is likely a mistake, and
// for a quota a mistake is a limit that somebody does not have: here a key that is
// not known, one in capitals, one that stands twice, and what follows the end are
// errors.
func Strict(data []byte, v any) error {
	if err := keys(json.NewDecoder(bytes.NewReader(data))); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return plain(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the end of the JSON value")
	}
	return nil
}

// plain is an error without the words of package json, and of Go.
func plain(err error) error {
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	var moment *time.ParseError
	switch {
	case errors.As(err, &wrong):
		kind, _, _ := strings.Cut(wrong.Value, " ") // as in number 1.5
		text := fmt.Sprintf("%s does not belong here; write %s", wordOf(kind), wordOf(wrong.Type.Kind().String()))
		if wrong.Field != "" {
			text = fmt.Sprintf("%.80s: %s", wrong.Field, text)
		}
		return errors.New(text)
	case errors.As(err, &syntax):
		return fmt.Errorf("is no JSON, at byte %d: %w", syntax.Offset, err)
	case errors.As(err, &moment):
		return fmt.Errorf("%.60q is no time; write one as in \"2026-01-02T15:04:05Z\"", moment.Value)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON ends too early")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// wordOf calls a kind of value as JSON does, whether it is known by Go's word or by that
// of package json.
func wordOf(kind string) string {
	switch kind {
	case "struct", "map", "object":
		return "an object"
	case "slice", "array":
		return "a list"
	case "string":
		return "a string"
	case "bool":
		return "true or false"
	case "int", "int64", "uint64":
		return "a whole number"
	}
	return "a number"
}

// level is an object or a list that a decoder is in.
type level struct {
	object bool
	key    bool // the next text is a key
	seen   map[string]bool
}

// deepest is how far JSON may be nested here: nothing that is read has so many levels.
const deepest = 32

// keys walks over a value and objects to keys.
func keys(dec *json.Decoder) error {
	var in []level
	for {
		t, err := dec.Token()
		if err != nil {
			return plain(err)
		}
		top := len(in) - 1
		switch d := t.(type) {
		case json.Delim:
			switch d {
			case '{', '[':
				if top == deepest {
					return fmt.Errorf("is nested more than %d levels deep", deepest)
				}
				in = append(in, level{object: d == '{', key: d == '{', seen: map[string]bool{}})
				continue
			}
			in = in[:top]
			top--
		case string:
			if top < 0 || !in[top].key {
				break
			}
			if d != strings.ToLower(d) {
				return fmt.Errorf("%.40q is not known; keys are written in small letters", d)
			}
			if in[top].seen[d] {
				return fmt.Errorf("%.40q stands twice in one object", d)
			}
			in[top].seen[d], in[top].key = true, false
			continue
		}
		if top < 0 {
			return nil
		}
		in[top].key = in[top].object
	}
}
