package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Duration is a time.Duration that is written as people write it: 250ms, 1m30s.
// Where a field says that -1 is allowed, it is written -1, without a unit, and
// read as one nanosecond below zero.
type Duration time.Duration

// NoDuration is what -1 in a file means: "never wait" or "no bound", whichever
// the field says.
const NoDuration Duration = -1

// DurationPattern is a regular expression for the written form, for schemas.
const DurationPattern = `^(-1|0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*)$`

// String returns the written form: 250ms, 1m30s, 0s, or -1.
func (d Duration) String() string {
	if d == NoDuration {
		return "-1"
	}
	return time.Duration(d).String()
}

// MarshalText writes the form that UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads 250ms, 1m30s, 0 or -1. Any other number needs a unit.
func (d *Duration) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "-1" {
		*d = NoDuration
		return nil
	}
	v, err := time.ParseDuration(s)
	if err == nil {
		*d = Duration(v)
		return nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return fmt.Errorf("%s has no unit; write %sms, %ss or %sm", s, s, s, s)
	}
	return fmt.Errorf("%q is no duration; write a number with a unit, such as 250ms, 2s or 1m30s", s)
}

// UnmarshalJSON reads the string form, and the bare numbers 0 and -1.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if data = bytes.TrimSpace(data); bytes.Equal(data, []byte("null")) {
		return nil
	}
	if len(data) > 0 && data[0] != '"' {
		return d.UnmarshalText(data)
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	return d.UnmarshalText([]byte(s))
}
