package live

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// batch is a closed loop: so many clients that always have more to do, each with one
// request at a time.
type batch struct {
	addr     string
	head     string
	clients  int
	patience time.Duration
	mean     time.Duration // work of a request
	seed     uint64
}

// batchPause is the mean time that a client of a batch rests after anything but an
// answer in time.
const batchPause = 100 * time.Millisecond

// run keeps the clients busy for so long from begin on, and returns their requests in
// the order in which they were sent, with the times since epoch.
func (b *batch) run(ctx context.Context, epoch time.Time, begin, length time.Duration) []Record {
	ctx, cancel := context.WithDeadline(ctx, epoch.Add(begin+length))
	defer cancel()
	if pause(ctx, time.Until(epoch.Add(begin))) != nil {
		return nil
	}
	each := make([][]Record, b.clients)
	var all sync.WaitGroup
	for i := range each {
		all.Go(func() { each[i] = b.client(ctx, epoch, uint64(i)) })
	}
	all.Wait()
	records := slices.Concat(each...)
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.Due, b.Due) })
	return records
}

// client sends one request after the other until ctx is done.
func (b *batch) client(ctx context.Context, epoch time.Time, index uint64) (records []Record) {
	random := rand.New(rand.NewPCG(b.seed, 3+index))
	var c conn
	defer c.close()
	rest := random.Float64() // not all at the same time
	for pause(ctx, time.Duration(2*rest*float64(batchPause))) == nil {
		for ctx.Err() == nil {
			work, _ := drawWork(random, "")
			r := Record{Due: time.Since(epoch), Work: max(time.Microsecond, time.Duration(work*float64(b.mean)))}
			r.Answer = c.roundTrip(b.addr, b.head, r.Work, epoch.Add(r.Due+b.patience))
			r.Latency = time.Since(epoch) - r.Due
			if r.Answer == OK {
				r.Calls = 1
			}
			records = append(records, r)
			if r.Answer != OK {
				break
			}
		}
		rest = random.Float64()
	}
	return records
}
