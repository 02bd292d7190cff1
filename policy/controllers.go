package policy

import (
	"reflect"
	"slices"

	"github.com/weir-go/weir/control"
)

// kind is what a policy knows of a controller: which settings of a LimitSpec mean
// something to it, and how it is made of them. The group of settings that is
// called like the controller is always its own.
type kind struct {
	word     string
	keys     []string
	min, max int64 // the defaults of its bounds; 0 if its limit does not move
	heeds    bool  // it goes by the gate's signals itself
	make     func(*LimitSpec) (control.Controller, error)
}

// The settings that controllers share.
var (
	boundKeys  = []string{"min", "max"}
	windowKeys = []string{"min", "max", "take", "percentile", "backoff", "window", "min_samples"}
)

// kinds are the controllers, the default first.
var kinds = []kind{
	{word: "knee", keys: boundKeys, min: 2, max: 10_000, make: (*LimitSpec).knee},
	{word: "fixed", make: (*LimitSpec).fixed},
	{word: "aimd", keys: append([]string{"threshold"}, windowKeys...), min: 1, max: 1000, make: (*LimitSpec).aimd},
	{word: "vegas", keys: windowKeys, min: 1, max: 1000, make: (*LimitSpec).vegas},
	{word: "gradient2", keys: windowKeys, min: 20, max: 200, make: (*LimitSpec).gradient2},
	{word: "probe", keys: boundKeys, min: 4, max: 128, make: (*LimitSpec).probe},
	{word: "lag", keys: boundKeys, min: 10, max: 1000, make: (*LimitSpec).lag},
	{word: "drain", keys: boundKeys, min: 10, max: 1000, make: (*LimitSpec).drain},
	{word: "resource", keys: append([]string{"window", "backoff"}, boundKeys...), min: 1, max: 1000, heeds: true, make: (*LimitSpec).resource},
}

// Controllers returns the words for LimitSpec.Controller. The first is the
// default where there is no limit to keep; fixed is where there is one.
func Controllers() []string {
	words := make([]string, len(kinds))
	for i, k := range kinds {
		words[i] = k.word
	}
	return words
}

// kind returns what is known of the controller that the spec names, or that it
// means by naming none; false if the word is not known.
func (l *LimitSpec) kind() (kind, bool) {
	word := l.Controller
	switch {
	case word == "" && l.Limit != 0:
		word = "fixed"
	case word == "":
		word = kinds[0].word
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.word == word })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

// takes reports whether a setting means something to the controller.
func (k *kind) takes(key string) bool { return key == k.word || slices.Contains(k.keys, key) }

// bounds returns the least and the largest limit.
func (k *kind) bounds(l *LimitSpec) (low, high int64) {
	return orDefault(l.Min, k.min), orDefault(l.Max, k.max)
}

// given lists the settings that depend on the controller and that the spec gives,
// by their keys.
func (l *LimitSpec) given() []string {
	var keys []string
	v := reflect.ValueOf(l).Elem()
	for i := range v.NumField() {
		switch key := jsonKey(v.Type().Field(i)); key {
		case "controller", "limit", "queue", "signals", "exempt", "count", "refuse_oversize":
		default:
			if !v.Field(i).IsZero() {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// ceiling is the highest limit a gate can ever have, 0 if the spec does not say.
func (l *LimitSpec) ceiling() int64 {
	k, ok := l.kind()
	if !ok || k.word == "fixed" {
		return l.Limit
	}
	_, high := k.bounds(l)
	return high
}
