package throttle

import (
	"strconv"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// Config configures a [Throttle]. The zero value of a field means its default.
type Config struct {
	// Name is the gate's name in rejections, metrics and logs.
	Name string

	// Window is how far back results count. From 1 s to 1 h, default 30 s. They are kept in 100
	// bins. A longer window forgets an outage later; a shorter one throttles on fewer results.
	Window time.Duration `default:"30s" min:"1s" max:"1h"`
	// K is how many requests are sent at most for each that is accepted. From 1 to 100, default 2. With 2, an
	// overloaded server refuses one request for each that it accepts. With less, the server has less to refuse,
	// and the throttle notices later that the server has recovered.
	K float64 `default:"2" min:"1" max:"100"`
	// Padding makes few requests count less. After one that was refused, the next is refused here with a probability of
	// 1/(1+Padding), and after eight with 8/(8+Padding). From 1 to 1,000, default 8. It also keeps that probability
	// below 1, so some are always sent.
	Padding float64 `default:"8" min:"1" max:"1000"`

	// MinTimeout is how much time a deadline must leave to work for its time-out to count as a refusal. A local
	// refusal of work with less time does not count either. Up to 1 h, default 0: each counts. Set it to what the
	// server usually needs if callers bring deadlines that it cannot meet.
	MinTimeout time.Duration `min:"0s" max:"1h"`

	// Hooks are called as things happen: Admitted, Rejected and Done.
	Hooks weir.Hooks

	// Random replaces the source of random numbers from 0 up to 1. nil means math/rand/v2. It
	// must be safe for concurrent use.
	Random func() float64
	// Now replaces the clock, for virtual time: it returns the time since the gate's epoch, for
	// which a Work.Deadline has [weir.VirtualEpoch]. Leave it nil outside simulators.
	Now func() time.Duration
}

// BudgetConfig configures a [Budget]. The zero value of a field means its default.
type BudgetConfig struct {
	// Ratio is how many retries there may be for each request that was sent, first attempts only. Above 0,
	// at most 1, default 0.1. With it attempts are at most 1.1 times the requests. A
	// retry counts when it is decided. So where servers ask for waits longer than Window, those of several windows may come together.
	Ratio float64 `default:"0.1" min:"0.000001" max:"1"`
	// Floor is how many retries a minute there may be, however few requests there are. Default 10, at most a
	// million; -1 means none. Each window may have at least one. Without a floor, a client with five requests a
	// minute could never retry.
	Floor int `default:"10" min:"0" max:"1000000" minus1:"none"`
	// Window is how far back requests and retries count. From 1 s to 1 h, default 30 s.
	Window time.Duration `default:"30s" min:"1s" max:"1h"`
}

// AttemptsConfig configures [Attempts]. The zero value of a field means its default.
type AttemptsConfig struct {
	// Share is the part of the refusals for overload above which retries are common. Above 0, at most 1; with
	// 1, retries are never common. Default 0.1. Clients whose budget is a tenth of the requests stay below it,
	// because their retries are an eleventh of all attempts. Clients with larger budgets need a larger Share.
	// With a budget of a fifth, the default of proxies, a sixth of the attempts are retries.
	Share float64 `default:"0.1" min:"0.000001" max:"1"`
}

// Retry says when a call is tried again. The zero value of a field means its default.
//
// Retry is data: it decides, and neither waits nor counts. [Caller] does that.
type Retry struct {
	// Attempts is how many attempts a call may have, the first included. From 1, which means no retries, to 10.
	// Default 3. Three are enough if failures are independent: at one failure in ten, one call in a thousand
	// fails three times. If failures have a common cause, more attempts only add load.
	Attempts int `default:"3" min:"1" max:"10"`
	// Backoff is the longest wait before the second attempt. It doubles with each further attempt, up to
	// MaxBackoff. The wait is random, uniform between 0 and that value. From 1 ms to 1 min, default 100 ms.
	Backoff time.Duration `default:"100ms" min:"1ms" max:"1m"`
	// MaxBackoff bounds the doubling. From 1 ms to 1 h, default 10 s.
	MaxBackoff time.Duration `default:"10s" min:"1ms" max:"1h"`
	// QuotaBackoff and MaxQuotaBackoff replace Backoff and MaxBackoff if the caller has used up a quota, such
	// as after a 429. With shorter ones, a call waits less for a quota than for an overloaded server. The
	// ranges are those of Backoff and MaxBackoff. Default: Backoff and MaxBackoff, because a server with a
	// quota mostly names the time.
	QuotaBackoff    time.Duration `min:"1ms" max:"1m"`
	MaxQuotaBackoff time.Duration `min:"1ms" max:"1h"`
	// MaxTold bounds the wait that a server asks for. If it asks for a longer wait, the call ends. From 1 ms to
	// 1 h, default 60 s.
	MaxTold time.Duration `default:"60s" min:"1ms" max:"1h"`
}

// BreakerConfig configures a [Breaker]. The zero value of a field means its default.
type BreakerConfig struct {
	// Name is the gate's name in rejections, metrics and logs.
	Name string

	// Window is how far back results count while the breaker is closed. From 1 s to 1 h, default
	// 10 s.
	Window time.Duration `default:"10s" min:"1s" max:"1h"`
	// Rate is the share of failures in the window at which the breaker opens.
	// Above 0, at most 1, default 0.5.
	Rate float64 `default:"0.5" min:"0.000001" max:"1"`
	// Least is how many results the window needs before Rate counts. From 1 to a million,
	// default 20.
	Least int `default:"20" min:"1" max:"1000000"`
	// Run is how many failures in a row open the breaker, whatever the rate. Default 0: no
	// such rule. At most a million.
	Run int `min:"0" max:"1000000"`

	// Open is how long the breaker refuses everything before it admits probes. From 1 ms to 1 h, default 5 s.
	// It is also how long probes may hold all places while none of them ends. After that, other probes get the
	// places.
	Open time.Duration `default:"5s" min:"1ms" max:"1h"`
	// Probes is how many probes may be in flight. The breaker closes when that many have succeeded in a row.
	// From 1 to 1,000, default 3.
	Probes int `default:"3" min:"1" max:"1000"`

	// MinTimeout is how much time a deadline must leave to work for its time-out to count as a failure. Up to 1 h,
	// default 0: each counts.
	MinTimeout time.Duration `min:"0s" max:"1h"`

	// Hooks are called as things happen: Admitted, Rejected, Done, and LimitChanged when the state
	// changes. The limit there is 0 for open, Probes for half-open, and -1 for closed: no limit. Two changes at
	// once may be told in the wrong order: [Breaker.State] is right.
	Hooks weir.Hooks

	// Now replaces the clock, for virtual time, as in [Config].
	Now func() time.Duration
}

// CallerConfig configures a [Caller]. The zero value is fine.
type CallerConfig struct {
	// Name is the name of the gates in rejections, metrics and logs. A colon and the target
	// follow it.
	Name string

	// Guard says what stands before each target. Default [GuardThrottle].
	Guard Guard
	// Throttle and Breaker are the settings of the guards. The Caller sets their Name, Hooks, Random and Now.
	// Settings of the one that Guard does not name are an error.
	Throttle Config
	Breaker  BreakerConfig

	// Budget bounds the retries to each target, and Retry those of each call.
	Budget BudgetConfig
	Retry  Retry

	// Limit, if not nil, is the client's own limit, behind the guards. All targets share it. A *limit.Limiter
	// bounds how many calls of this process are in flight.
	Limit weir.Gate

	// Targets is how many targets are kept. When there are more, the least recently called target is evicted
	// with its statistics. From 1 to 1,000,000, default 1,000. A target with a throttle takes about 10 KB.
	// Targets whose names have the same first 300 bytes are one.
	Targets int `default:"1000" min:"1" max:"1000000"`

	// Hooks are the hooks of the guards.
	Hooks weir.Hooks
	// Random and Now replace the source of random numbers and the clock, as in [Config].
	Random func() float64
	Now    func() time.Duration
}

// Guard says what stands before a target.
type Guard uint8

// The guards.
const (
	// GuardThrottle is a [Throttle]: it refuses a part of the work, no more than it must.
	GuardThrottle Guard = iota
	// GuardBreaker is a [Breaker]: it refuses all work for a while.
	GuardBreaker
	// NoGuard refuses nothing.
	NoGuard
)

func (c Config) complete() (Config, error) {
	var f fault.List
	setting.Complete(&c, &f)
	return c, f.Err("throttle: gate " + strconv.Quote(c.Name))
}

func (c BreakerConfig) complete() (BreakerConfig, error) {
	var f fault.List
	setting.Complete(&c, &f)
	return c, f.Err("throttle: breaker " + strconv.Quote(c.Name))
}

func (c BudgetConfig) complete() (BudgetConfig, error) {
	var f fault.List
	setting.Complete(&c, &f)
	return c, f.Err("throttle: budget")
}

func (c AttemptsConfig) complete() (AttemptsConfig, error) {
	var f fault.List
	setting.Complete(&c, &f)
	return c, f.Err("throttle: attempts")
}

// complete returns all settings of a Caller with their defaults, or one error with every setting out of range.
func (c CallerConfig) complete() (CallerConfig, error) {
	var f fault.List
	t, b := &c.Throttle, &c.Breaker
	throttles := c.Guard == GuardThrottle || t.Window == 0 && t.K == 0 && t.Padding == 0 && t.MinTimeout == 0
	breaks := c.Guard == GuardBreaker || b.Window == 0 && b.Rate == 0 && b.Least == 0 && b.Run == 0 && b.Open == 0 && b.Probes == 0 && b.MinTimeout == 0
	setting.Complete(&c, &f)
	f.Check(breaks, fault.Path{"Guard"}, c.Guard, "must be GuardBreaker, or the settings of Breaker have no effect")
	f.Check(throttles, fault.Path{"Guard"}, c.Guard, "must be GuardThrottle, or the settings of Throttle have no effect")
	f.Check(c.Guard <= NoGuard, fault.Path{"Guard"}, c.Guard, "must be GuardThrottle, GuardBreaker or NoGuard")
	at := fault.Path{"Retry", "MaxBackoff"}
	f.Check(f.Wrong(at) || c.Retry.MaxBackoff >= c.Retry.Backoff, at, c.Retry.MaxBackoff,
		"must not be below Backoff, which is %v", c.Retry.Backoff)
	first, most := c.Retry.backoffs(true)
	at = fault.Path{"Retry", "MaxQuotaBackoff"}
	f.Check(f.Wrong(at) || most >= first || first == c.Retry.Backoff && most == c.Retry.MaxBackoff, at, most,
		"must not be below QuotaBackoff, which is %v", first)
	return c, f.Err("throttle: caller " + strconv.Quote(c.Name))
}
