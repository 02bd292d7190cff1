package limit

import (
	"context"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

// inVain counts a newcomer that has to wait and sets until when it may. It
// refuses it at once where its turn would come too late: when what is in front of
// it takes longer, at the rate at which slots come back, than it may wait, or
// leaves it less than the median service time before its deadline.
//
// Who is first in line is never refused by an estimate: somebody should be there
// when a slot comes back. Nor is anybody while the rate is unknown.
func (l *Limiter) inVain(now time.Duration, until bounds, place *waiter) *weir.Rejection {
	rate, median := l.drain.current(now), l.service.Median()
	l.room.SetPace(room.PaceAt(rate, median))
	l.room.Knock(now, &place.Waiter)
	place.until(now, until, median)
	if rate == 0 || l.room.Len() == 0 {
		return nil
	}
	ahead := l.room.Ahead(&place.Waiter)
	wait := turn(ahead, place, rate)
	switch {
	case ahead == 0 && !l.room.NewestFirst(): // first in line in its own right
		return nil
	case until.allow(now, wait, median):
		return nil
	case l.room.Turn(&place.Waiter) && until.allow(now, turn(l.room.Ahead(&place.Waiter), place, rate), median):
		return nil
	}
	r := &weir.Rejection{Gate: l.name, Reason: weir.ReasonQueueTimeout, Retryable: true,
		Value: wait.Seconds(), Limit: (until.patience - now).Seconds(), RetryAfter: l.wait(), Signal: l.signal}
	if wait <= until.patience-now {
		r.Reason, r.Cause = weir.ReasonDeadline, context.DeadlineExceeded
		r.Value, r.Limit = (wait + median).Seconds(), (until.deadline - now).Seconds()
	}
	return r
}

// turn estimates after what time it would be place's turn, with so many units
// served before it.
func turn(ahead int64, place *waiter, rate float64) time.Duration {
	return seconds((float64(ahead) + float64(place.Units)) / rate)
}

// allow reports whether there is time for a wait, and for the service after it.
func (b *bounds) allow(now, wait, service time.Duration) bool {
	return wait <= b.patience-now && wait <= b.deadline-now-service
}

// until sets when w leaves the room: when it has waited as long as it may, or
// when less than the median service time is left before its deadline, for work
// that would probably be done too late is not worth a slot. Where less is left
// from the outset it may try until the deadline itself.
func (w *waiter) until(now time.Duration, b bounds, median time.Duration) {
	w.Expires, w.outOf = b.patience, weir.ReasonQueueTimeout
	last := b.deadline
	if last != room.Never && last-median > now {
		last -= median
	}
	if last < w.Expires {
		w.Expires, w.outOf = last, weir.ReasonDeadline
	}
}

// seconds is a duration, cut to what fits with room to spare.
func seconds(s float64) time.Duration {
	const most = 1 << 30
	return time.Duration(min(s, most) * float64(time.Second))
}
