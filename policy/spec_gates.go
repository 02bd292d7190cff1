package policy

import "time"

// EachSpec makes the limit of a gate one for each key instead of one for all: each
// tenant, or database, has a pool of its own. See package keyed for what that is
// good for, and when a gate that is fair between tenants is better.
//
// The controller, if there is one, sizes all pools alike. It goes by readings (lag,
// drain, resource) or by throughput (probe). Those that learn from latencies see too little of one
// key. Work waits for its own key: priorities, Shares and Weights count among those
// that wait for the same one, and Queue.Len is for all keys together.
//
// With Own each key has a limiter of its own instead, with a controller of its own:
// any of them. That is for hundreds of keys, not for millions.
type EachSpec struct {
	// By says whose pool it is: tenant (default), user, client, or route.
	By string `json:"by,omitempty"`
	// Own gives each key a limiter of its own: what it carries is found out, or
	// fixed, for it alone. Queue.Len is for all of them together, and one may take
	// a quarter of it. What was learned is remembered of evicted keys (see
	// keyed.Limiters), but not saved over a restart.
	Own bool `json:"own,omitempty"`
	// MaxKeys bounds the keys that are known at a time. 0 means
	// keyed.DefaultMaxKeys (65,536), with Own DefaultOwnKeys (1024), of which each
	// takes up to OwnKeyBytes.
	MaxKeys int `json:"max_keys,omitempty"`
	// Overrides are keys with a limit of their own.
	Overrides map[string]OverrideSpec `json:"overrides,omitempty"`
}

// OverrideSpec is the limit of one key: either a number, or how many times the
// limit of the others, of which there is none with Own.
type OverrideSpec struct {
	Limit int64   `json:"limit,omitempty"`
	Scale float64 `json:"scale,omitempty"`
}

// ShedSpec is a gate that refuses by priority, the lowest first, as a pressure
// rises. Nothing waits in it and nothing is held, so it stands before the gate with
// the limit. See package shed.
type ShedSpec struct {
	// Signals are those whose pressure counts, the highest of them. LoadOf and
	// WaitOf name a gate with a limit instead: its pressure is what is in flight and
	// waiting over its limit, or what a newcomer is expected to wait there over Wait
	// (default DefaultShedWait, 20ms). One of the three is required. The load is at 1
	// whenever all slots are taken, so before a gate where work may wait it needs
	// thresholds above 1.
	Signals []string `json:"signals,omitempty"`
	LoadOf  string   `json:"load_of,omitempty"`
	WaitOf  string   `json:"wait_of,omitempty"`
	Wait    Duration `json:"wait,omitempty"`
	// Thresholds are the pressures from which each priority is refused.
	Thresholds ThresholdsSpec `json:"thresholds,omitzero"`
	// Cursor finds the priority, and within it the share of users, that is let
	// through, instead of thresholds.
	Cursor *CursorSpec `json:"cursor,omitempty"`
	// Interval is the time between two readings (default 10ms), Hold how long the
	// last one stands in while there is none (default ten intervals, at least 1s). Blind says what holds
	// after that: open (default) lets everything through, keep leaves it as it is.
	Interval Duration `json:"interval,omitempty"`
	Hold     Duration `json:"hold,omitempty"`
	Blind    string   `json:"blind,omitempty"`
	// Resalt is how long users keep their place in the order in which users of one
	// priority are refused. Default 1h; -1 means for ever.
	Resalt Duration `json:"resalt,omitempty"`
}

// DefaultShedWait is [ShedSpec].Wait where it is left out: DAGOR's.
const DefaultShedWait = Duration(20 * time.Millisecond)

// ThresholdsSpec are the pressures from which each priority is refused. Defaults:
// 0.75, 0.90, 0.95 and 1, where everything is.
type ThresholdsSpec struct {
	Background float64 `json:"background,omitempty"`
	Normal     float64 `json:"normal,omitempty"`
	High       float64 `json:"high,omitempty"`
	Critical   float64 `json:"critical,omitempty"`
}

// CursorSpec is the way of DAGOR; see shed.Cursor for the fields and their
// defaults.
type CursorSpec struct {
	Window   Duration `json:"window,omitempty"`
	Requests int      `json:"requests,omitempty"`
	Overload float64  `json:"overload,omitempty"`
	Alpha    float64  `json:"alpha,omitempty"`
	Beta     float64  `json:"beta,omitempty"`
	MaxCut   float64  `json:"max_cut,omitempty"`
	MaxGrow  float64  `json:"max_grow,omitempty"`
	Plain    bool     `json:"plain,omitempty"`
}
