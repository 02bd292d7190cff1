package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/policy"
)

// Dist is a distribution of service times: how much work a request is, in
// seconds of service when it is alone.
type Dist struct {
	// Dist is constant, exponential, erlang, lognormal or bimodal.
	Dist string `json:"dist"`
	// Mean of all but bimodal, which has its modes.
	Mean policy.Duration `json:"mean,omitempty"`
	// K is the number of stages of erlang: 1 is exponential, more is more
	// regular. At least 1.
	K int `json:"k,omitempty"`
	// CV is the coefficient of variation of lognormal: the standard deviation
	// over the mean. More than 0.
	CV float64 `json:"cv,omitempty"`
	// Modes are the values of bimodal with their weights, two or more.
	Modes []Mode `json:"modes,omitempty"`
}

// Mode is one value of a distribution with a few of them.
type Mode struct {
	// Weight is the share of requests, relative to the other modes'.
	Weight float64 `json:"weight"`
	// Time is the service time.
	Time policy.Duration `json:"time"`
}

func (d *Dist) validate(f *faultList, path string) {
	if d.Dist != "bimodal" {
		f.check(d.Mean > 0, path+".mean", "%v: must be more than 0, like \"10ms\"", time.Duration(d.Mean))
	}
	f.check(d.K == 0 || d.Dist == "erlang", path+".k", "only for erlang, not for %q", d.Dist)
	f.check(d.CV == 0 || d.Dist == "lognormal", path+".cv", "only for lognormal, not for %q", d.Dist)
	f.check(len(d.Modes) == 0 || d.Dist == "bimodal", path+".modes", "only for bimodal, not for %q", d.Dist)
	switch d.Dist {
	case "constant", "exponential":
	case "erlang":
		f.check(d.K >= 1 && d.K <= 1000, path+".k", "%d: must be from 1 to 1000", d.K)
	case "lognormal":
		f.check(d.CV > 0 && d.CV <= 100, path+".cv", "%v: must be more than 0 and at most 100", d.CV)
	case "bimodal":
		f.check(d.Mean == 0, path+".mean", "the modes have their own")
		f.check(len(d.Modes) > 0, path+".modes", "needs at least one {weight, time}")
		for i, m := range d.Modes {
			at := index(path+".modes", i)
			f.check(m.Weight > 0 && m.Weight <= 1e9, at+".weight", "%v: must be more than 0", m.Weight)
			f.check(m.Time > 0, at+".time", "%v: must be more than 0", time.Duration(m.Time))
		}
	default:
		f.add(path+".dist", "%q: must be constant, exponential, erlang, lognormal or bimodal", d.Dist)
	}
}

// mean returns the mean in seconds.
func (d *Dist) mean() float64 {
	if d.Dist != "bimodal" {
		return time.Duration(d.Mean).Seconds()
	}
	var weights, sum float64
	for _, m := range d.Modes {
		weights += m.Weight
		sum += m.Weight * time.Duration(m.Time).Seconds()
	}
	return sum / weights
}

// sampler returns a function that draws from the distribution, in seconds.
func (d *Dist) sampler() func(*rand.Rand) float64 {
	mean := d.mean()
	switch d.Dist {
	case "exponential":
		return func(r *rand.Rand) float64 { return mean * r.ExpFloat64() }
	case "erlang":
		stage := mean / float64(d.K)
		return func(r *rand.Rand) float64 {
			var sum float64
			for range d.K {
				sum += r.ExpFloat64()
			}
			return stage * sum
		}
	case "lognormal":
		sigma2 := math.Log1p(d.CV * d.CV)
		mu, sigma := math.Log(mean)-sigma2/2, math.Sqrt(sigma2)
		return func(r *rand.Rand) float64 { return math.Exp(mu + float64(sigma*r.NormFloat64())) }
	case "bimodal":
		return d.modeSampler()
	}
	return func(*rand.Rand) float64 { return mean }
}

func (d *Dist) modeSampler() func(*rand.Rand) float64 {
	var total float64
	for _, m := range d.Modes {
		total += m.Weight
	}
	return func(r *rand.Rand) float64 {
		u := r.Float64() * total
		for _, m := range d.Modes[:len(d.Modes)-1] {
			if u -= m.Weight; u < 0 {
				return time.Duration(m.Time).Seconds()
			}
		}
		return time.Duration(d.Modes[len(d.Modes)-1].Time).Seconds()
	}
}
