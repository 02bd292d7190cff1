package policy

import (
	"slices"
	"time"

	"github.com/weir-go/weir/control"
)

// kind is what a policy knows of a controller: the settings of a LimitSpec that
// mean something to it, and how it is made of them.
type kind struct {
	word     string
	keys     []string // beside limit
	min, max int64    // the defaults of its bounds; 0 if its limit does not move
	make     func(*LimitSpec) (control.Controller, error)
}

// kinds are the controllers, the default first.
var kinds = []kind{
	{"knee", []string{"min", "max"}, 1, 10_000, func(l *LimitSpec) (control.Controller, error) {
		return made(control.NewKnee(l.knee()))
	}},
	{"fixed", nil, 0, 0, func(l *LimitSpec) (control.Controller, error) {
		return control.Fixed(l.Limit), nil
	}},
	{"aimd", []string{"min", "max", "threshold", "percentile", "backoff", "window", "min_samples"}, 1, 1000,
		func(l *LimitSpec) (control.Controller, error) { return made(control.NewAIMD(l.aimd())) }},
}

// made keeps a nil pointer from becoming a controller that is not nil.
func made[C control.Controller](c C, err error) (control.Controller, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
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

// ceiling is the highest limit a gate can ever have, 0 if the spec does not say.
func (l *LimitSpec) ceiling() int64 {
	k, ok := l.kind()
	if !ok || k.word == "fixed" {
		return l.Limit
	}
	return orDefault(l.Max, k.max)
}

// knee returns the settings of a Knee controller.
func (l *LimitSpec) knee() control.KneeConfig {
	return control.KneeConfig{Initial: l.Limit, Min: l.Min, Max: l.Max}
}

// aimd returns the settings of an AIMD controller.
func (l *LimitSpec) aimd() control.AIMDConfig {
	return control.AIMDConfig{
		Initial:    l.Limit,
		Min:        l.Min,
		Max:        l.Max,
		Threshold:  time.Duration(l.Threshold),
		Percentile: l.Percentile,
		Backoff:    l.Backoff,
		Window:     time.Duration(l.Window),
		MinSamples: l.MinSamples,
	}
}
