package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/shed"
)

// The words of the mechanisms, the defaults first.
var (
	keyWords = []string{"tenant", "user", "client", "route"}
	blinds   = []string{"open", "keep"}
)

// byLatency are the controllers that learn from service times, of which one key
// shows too few.
var byLatency = []string{"knee", "aimd", "vegas", "gradient2"}

// mostKeys is the most keys that a gate can know at a time.
const mostKeys = 16_777_215

// checkEach checks a limit for each key.
func (c *compiler) checkEach(at place, g *GateSpec) {
	e := g.Each
	if g.Limit == nil {
		c.add(at, "there is no limit for each key", "write limit: {limit: 20} beside it")
		return
	}
	c.checkWord(at.at("by"), "key", e.By, keyWords)
	c.checkOverrides(at.at("overrides"), e.Overrides)
	c.checkIdleWeights(at[:len(at)-1].at("limit", "queue", "weights"), e.by(), &g.Limit.Queue.Weights)
	if e.Own {
		c.checkOwn(at, e)
		return
	}
	if e.MaxKeys < 0 || e.MaxKeys > mostKeys {
		c.add(at.at("max_keys"), fmt.Sprintf("%d is out of range", e.MaxKeys), fmt.Sprintf("write from 1 to %d", mostKeys))
	}
	limitAt := at[:len(at)-1].at("limit")
	if k, ok := g.Limit.kind(); ok && slices.Contains(byLatency, k.word) {
		c.add(limitAt.at("controller"), "the controller "+k.word+" learns from latencies, and one key shows too few",
			"write limit: with the slots of each key, or one of probe, lag, drain, resource, or own: true beside by: for a controller each")
	}
}

// checkIdleWeights refuses weights of those of whom each has a pool of its own:
// nobody else waits there.
func (c *compiler) checkIdleWeights(at place, by string, w *WeightsSpec) {
	for who, weights := range map[string]map[string]float64{"user": w.Users, "tenant": w.Tenants} {
		if who == by && len(weights) > 0 {
			c.add(at.at(who+"s"), "mean nothing where each "+who+" has a pool of its own", "write each: overrides:, or leave them out")
		}
	}
}

// mostScale is the most times the limit of the others that a key can have.
const mostScale = 1_000_000

func (c *compiler) checkOverrides(at place, overrides map[string]OverrideSpec) {
	if len(overrides) > mostWeights {
		c.add(at, fmt.Sprintf("%d keys", len(overrides)), fmt.Sprintf("write at most %d", mostWeights))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(overrides)) {
		switch o, at := overrides[key], at.at(key); {
		case o.Limit != 0 && o.Scale != 0:
			c.add(at, "has both a limit and a scale", "leave one of them out")
		case o.Limit == 0 && o.Scale == 0:
			c.add(at, "changes nothing", "write limit: 50, or scale: 2 for twice the limit of the others")
		case o.Limit < 0 || o.Limit > maxLimit:
			c.add(at.at("limit"), fmt.Sprintf("%d is out of range", o.Limit), fmt.Sprintf("write from 1 to %d slots", maxLimit))
		case !(o.Scale >= 0 && o.Scale <= mostScale):
			c.add(at.at("scale"), fmt.Sprintf("%g is out of range", o.Scale), fmt.Sprintf("write a number above 0 and at most %d", mostScale))
		}
	}
}

// checkShed checks a gate that sheds: what can be said better here, then what the
// mechanism itself has to say.
func (c *compiler) checkShed(at place, s *ShedSpec) {
	c.checkPressure(at, s)
	for i, name := range s.Signals {
		at := at.at("signals").index(i)
		if slices.Contains(s.Signals[:i], name) {
			c.add(at, fmt.Sprintf("%q is in the list already", name), "leave one of them out")
			continue
		}
		c.checkSignalName(at, name)
	}
	if len(s.Signals) > 0 && c.opts.Now != nil && c.opts.Readings == nil {
		c.add(at.at("signals"), "signals are read from this machine in its own time, and there is none on virtual time",
			"write load_of: or wait_of:, or hand in Options.Readings")
	}
	c.checkWord(at.at("blind"), "word for blind", s.Blind, blinds)
	if s.Cursor != nil && s.Thresholds != (ThresholdsSpec{}) {
		c.add(at.at("thresholds"), "mean nothing beside a cursor", "leave one of the two out")
	}
	c.askShed(at, s)
}

// checkPressure checks that there is one thing to go by, and that a gate which is
// one has a limit.
func (c *compiler) checkPressure(at place, s *ShedSpec) {
	given := 0
	for _, is := range []bool{len(s.Signals) > 0, s.LoadOf != "", s.WaitOf != ""} {
		if is {
			given++
		}
	}
	switch {
	case given == 0:
		c.add(at, "there is no pressure to go by", "write signals: [cpu, memory], or wait_of: or load_of: and the name of a gate with a limit")
	case given > 1:
		c.add(at, "there are several pressures to go by", "write one of signals, load_of and wait_of")
	}
	c.checkPressing(at.at("load_of"), s.LoadOf)
	c.checkPressing(at.at("wait_of"), s.WaitOf)
	switch {
	case s.Wait < 0:
		c.add(at.at("wait"), fmt.Sprintf("%v is negative", time.Duration(s.Wait)), "write the longest wait that is wanted, such as 20ms")
	case s.Wait > 0 && s.WaitOf == "":
		c.add(at.at("wait"), "means nothing without wait_of", "write wait_of: and the name of a gate with a limit, or leave it out")
	}
}

// checkPressing checks that the gate has one limit, to be loaded.
func (c *compiler) checkPressing(at place, name string) {
	if g, ok := c.spec.Gates[name]; name == "" || ok && g.hasOneLimit() {
		return
	}
	var known []string
	for _, name := range slices.Sorted(maps.Keys(c.spec.Gates)) {
		if g := c.spec.Gates[name]; g.hasOneLimit() {
			known = append(known, name)
		}
	}
	c.add(at, fmt.Sprintf("%q is no gate with one limit", name), suggest(name, known, "gates with a limit"))
}

func (g *GateSpec) hasOneLimit() bool { return g.Limit != nil && g.Each == nil && !g.isPair() }

// askShed makes a shedder of the settings, which starts nothing on virtual time.
// Its errors begin with the name of a field: "Thresholds.High 0.5: must not be".
func (c *compiler) askShed(at place, s *ShedSpec) {
	cfg := s.config()
	cfg.Pressure = func() (float64, bool) { return 0, false }
	cfg.Now = func() time.Duration { return 0 }
	m, err := shed.New(cfg)
	if err == nil {
		m.Close()
		return
	}
	for _, e := range leaves(err) {
		name, rest, _ := strings.Cut(e.Error(), " ")
		value, must, ok := strings.Cut(rest, ": ")
		if !ok {
			c.add(at, e.Error(), "")
			continue
		}
		keys := strings.Split(name, ".")
		for i, key := range keys {
			keys[i] = snake(key)
		}
		c.add(at.at(keys...), value+" will not do", inKeys(must))
	}
}

// retirement is how long after the last policy somebody may still be waiting at a
// gate, and a little more for work on its way to it.
func (g *GateSpec) retirement() time.Duration {
	if g.Quota != nil && g.Quota.Queue.Len > 0 {
		room := QueueSpec{MaxWait: g.Quota.Queue.MaxWait} // by default both wait for 2 s
		return room.retirement()
	}
	if g.Limit == nil {
		return time.Second
	}
	return g.Limit.Queue.retirement()
}

// sources lists the signals that a gate needs.
func (g *GateSpec) sources() []string {
	switch {
	case g.Shed != nil:
		return g.Shed.Signals
	case g.Limit != nil:
		return g.Limit.sources()
	}
	return nil
}
