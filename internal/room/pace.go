package room

import "time"

// Pace is what the room has to know of the gate's speed to tell a standing queue
// from a burst.
type Pace struct {
	// Interval is how long a queue is watched before it is judged.
	Interval time.Duration
	// Service is how long work takes once it has a slot; 0 while that is unknown.
	Service time.Duration
	// Keep is how many may wait at most while a queue stands; 0 means as many as
	// there are places.
	Keep int
}

// A queue that stands is cut to keep waiters: so many that near the capacity, at
// a load of .95, chance alone exceeds them once in 500 requests, and so few that
// they are soon served when the load falls back. It is a number and no time, for
// what chance does to a queue is a matter of numbers, whatever the gate's speed.
// A queue is watched for as long as that many take, and for CoDel's interval at
// least.
const (
	keep        = 64
	minInterval = 100 * time.Millisecond
	maxInterval = 10 * time.Second
)

// PaceAt is the pace of a gate whose slots come back at a rate, in units a second,
// and whose work takes so long. While the rate is not known, 0, a queue that stands
// keeps all its places: nobody is displaced on a guess.
func PaceAt(rate float64, service time.Duration) Pace {
	if rate == 0 {
		return Pace{Interval: minInterval, Service: service}
	}
	interval := maxInterval
	if s := keep / rate; s < maxInterval.Seconds() {
		interval = max(minInterval, time.Duration(s*float64(time.Second)))
	}
	return Pace{Interval: interval, Service: service, Keep: keep}
}
