package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-go/weir/policy"
)

var durationType = reflect.TypeFor[policy.Duration]()

// scalar decodes a string, boolean, number or duration and holds it against the
// bounds of its field.
func (d *decoder) scalar(path string, n *yaml.Node, v reflect.Value, f field) {
	if n.Kind != yaml.ScalarNode {
		d.mistyped(path, n, v.Type(), f)
		return
	}
	problem, remedy := setScalar(v, n, f)
	if problem == "" {
		problem, remedy = outOfBounds(v, f)
	}
	if problem != "" {
		d.faultAt(n, path, remedy, "%s", problem)
	}
}

// setScalar sets v from the text of n. It returns what is wrong, if anything.
// Numbers are read here and not by the YAML library, which takes 010 for 8.
func setScalar(v reflect.Value, n *yaml.Node, f field) (problem, remedy string) {
	text := n.Value
	plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	remedy = "write " + describe(v.Type(), f)
	switch {
	case v.Type() == durationType:
		dur, problem, remedy := parseDuration(text)
		if problem == "" {
			v.SetInt(int64(dur))
		}
		return problem, remedy
	case v.Kind() == reflect.String:
		return setString(v, n, f)
	case v.Kind() == reflect.Bool:
		if !plain || (text != "true" && text != "false") {
			return fmt.Sprintf("%s is neither true nor false", quote(text)), "write true or false"
		}
		v.SetBool(text == "true")
	case v.CanInt():
		i, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, v.Type().Bits())
		if err != nil || !plain {
			return fmt.Sprintf("%s is no whole number", quote(text)), remedy
		}
		v.SetInt(i)
	case v.CanFloat():
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !plain || math.IsNaN(x) || math.IsInf(x, 0) || strings.ContainsAny(text, "xXpP") {
			return fmt.Sprintf("%s is no number", quote(text)), remedy
		}
		v.SetFloat(x)
	}
	return "", ""
}

func setString(v reflect.Value, n *yaml.Node, f field) (problem, remedy string) {
	if n.ShortTag() == "!!str" {
		v.SetString(n.Value)
		return "", ""
	}
	remedy = "write it in quotes: " + quote(n.Value)
	if f.form != "" {
		remedy = "write " + describe(v.Type(), f)
	}
	return fmt.Sprintf("%s is %s, not a text", quote(n.Value), describeNode(n)), remedy
}

// parseDuration reads 250ms, 1m30s, 0 and -1, and knows what people write instead.
func parseDuration(text string) (d policy.Duration, problem, remedy string) {
	if d.UnmarshalText([]byte(text)) == nil {
		return d, "", ""
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, quote(text) + " has no unit", fmt.Sprintf("write %ss for seconds or %sms for milliseconds", clip(text), clip(text))
	}
	if squeezed := strings.ReplaceAll(text, " ", ""); squeezed != text && d.UnmarshalText([]byte(squeezed)) == nil {
		return 0, quote(text) + " has a space in it", "write " + squeezed
	}
	if digits, ok := strings.CutSuffix(text, "d"); ok {
		if days, err := strconv.Atoi(digits); err == nil && 0 < days && days < 10_000 {
			return 0, "days are no unit here", fmt.Sprintf("write %dh", 24*days)
		}
	}
	return 0, quote(text) + " is no duration", "write for instance 250ms, 10s or 1m30s"
}

// outOfBounds holds a decoded value against what fields.go allows.
func outOfBounds(v reflect.Value, f field) (problem, remedy string) {
	if len(f.enum) > 0 && !slices.Contains(f.enum, v.String()) {
		remedy = "write one of: " + strings.Join(f.enum, ", ")
		if best, ok := nearest(v.String(), f.enum); ok {
			remedy = "write " + best
		}
		return fmt.Sprintf("%s is not known", quote(v.String())), remedy
	}
	if f.minusOne != "" && v.CanInt() && v.Int() == -1 {
		return "", ""
	}
	if low, ok := bound(v.Type(), f.least); ok && number(v) < low {
		return fmt.Sprintf("is %s, too small", shown(v)), "write at least " + f.least + f.orMinusOne()
	}
	if high, ok := bound(v.Type(), f.most); ok && number(v) > high {
		return fmt.Sprintf("is %s, too large", shown(v)), "write at most " + f.most
	}
	return "", ""
}

// bound reads a limit of fields.go in the unit of t; false if there is none.
func bound(t reflect.Type, text string) (float64, bool) {
	if text == "" {
		return 0, false
	}
	if t == durationType {
		d, err := time.ParseDuration(text)
		return float64(d), err == nil
	}
	x, err := strconv.ParseFloat(text, 64)
	return x, err == nil
}

func number(v reflect.Value) float64 {
	if v.CanFloat() {
		return v.Float()
	}
	if v.CanInt() {
		return float64(v.Int())
	}
	return 0
}

func shown(v reflect.Value) string {
	return fmt.Sprint(v.Interface()) // a duration prints as it is written
}
