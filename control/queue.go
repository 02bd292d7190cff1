package control

import (
	"math"
	"time"
)

// HealthyQueue returns how much may wait before a backend that finishes rate
// pieces of work a second, if each is to be finished within patience of its
// arrival: rate × patience, rounded down, 0 if that is nothing. It is the rule
// that Klaviyo gives for its metrics service: at 1 a second and 4 s it is 4, at
// half the rate 2. (The fifth, of which the article says that it waits 5 s, waits
// 4 and would be finished after 5.)
//
// It is for choosing the size of a wait room by hand. It assumes that the rate
// stays; where it falls, what waits already is too much.
func HealthyQueue(rate float64, patience time.Duration) int64 {
	return int64(within(math.Floor(rate*patience.Seconds()), 0, math.MaxInt32))
}
