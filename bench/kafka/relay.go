package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/internal/hist"
)

const (
	recordLen = 1000
	smallLen  = 100
)

// play is one use of a way: a figure, and how much work it was.
type play struct {
	name string
	verb string
	unit string // of work, by which the relay's CPU time is divided
	goal kit.Goal
	less bool // the goal is about the difference to direct, not the ratio
	run  func(u *user, ctx context.Context, turn time.Duration) (figure, work float64, err error)
}

var plays = []play{
	{name: "produce, MB/s", verb: "%.0f", unit: "MB", goal: kit.Goal{What: "over direct", Bound: 0.9}, run: (*user).produce},
	{name: "consume, MB/s", verb: "%.0f", unit: "MB", goal: kit.Goal{What: "over direct", Bound: 0.85}, run: (*user).consume},
	{name: "round trip, acks=1, p50 µs", verb: "%.0f", unit: "request", goal: kit.Goal{What: "more than direct, µs", Bound: 100, AtMost: true}, less: true, run: (*user).roundTrips},
}

// plain measures the ways beside each other without TLS, and tls with it.
func (b *bench) plain(ctx context.Context, s *site) error { return s.compare(ctx, false) }
func (b *bench) tls(ctx context.Context, s *site) error   { return s.compare(ctx, true) }

func (s *site) compare(ctx context.Context, withTLS bool) error {
	users, err := s.users(ctx, withTLS)
	defer func() {
		for _, u := range users {
			u.close()
		}
	}()
	if err != nil {
		return err
	}
	for round := -1; round < s.rounds; round++ { // the first is for connections, caches and heaps
		for p := range plays {
			for _, u := range kit.Turned(users, max(round, 0)) {
				if err := u.turn(ctx, p, s.turn); err != nil {
					return fmt.Errorf("%s, %s in round %d of %d: %w", u.name, plays[p].name, round+1, s.rounds, err)
				}
			}
		}
		if round < 0 {
			for _, u := range users {
				clear(u.figures[:])
			}
		}
	}
	if withTLS {
		s.print("TLS, which the broker ends where there is no relay; "+s.layout(), report(users, false))
	} else {
		s.print("Plain TCP; "+s.layout(), report(users, true))
	}
	return nil
}

// users are a client on each way; direct is the first, and the gateway the last.
func (s *site) users(ctx context.Context, withTLS bool) (users []*user, err error) {
	direct := s.direct
	if withTLS {
		direct.addr, direct.tls = s.broker.TLS, s.roots
	}
	for _, begin := range []func(context.Context, bool) (way, error){
		func(context.Context, bool) (way, error) { return direct, nil }, s.throughNginx, s.throughWeir,
	} {
		w, err := begin(ctx, withTLS)
		if err != nil {
			return users, fmt.Errorf("%s: %w", w.name, err)
		}
		u := &user{way: w}
		users = append(users, u)
		if u.bulk, err = w.client(kgo.DefaultProduceTopic(written)); err != nil {
			return users, err
		}
		if u.small, err = w.client(kgo.DefaultProduceTopic(written), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()), kgo.ProducerLinger(0),
			kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
			return users, err
		}
	}
	return users, nil
}

func report(users []*user, judged bool) kit.Table {
	table := kit.Table{{"", "way", "", "relay's CPU time", "over direct", "over nginx", "goal"}}
	direct, nginx := users[0], users[1]
	for i, p := range plays {
		for _, u := range users {
			f := &u.figures[i]
			row := []string{p.name, u.name, text(p.verb, f.values), "", "", "", ""}
			if u != direct {
				row[3] = text("%.1f", f.cpu) + " µs/" + p.unit
				row[4] = text("%.2f", kit.Over(f.values, direct.figures[i].values))
			}
			if u != direct && u != nginx {
				row[5] = text("%.2f", kit.Over(f.values, nginx.figures[i].values))
				if judged {
					v := p.goal.Judge(kit.SpreadOf(p.judged(f.values, direct.figures[i].values)))
					row[6] = v.String() + ", from " + kit.Text(v.Spread, "%.3g")
				}
			}
			table = append(table, row)
		}
	}
	return table
}

// judged is what the goal is about.
func (p *play) judged(values, direct []float64) []float64 {
	if !p.less {
		return kit.Over(values, direct)
	}
	more := make([]float64, len(values))
	for i, v := range values {
		more[i] = v - direct[i]
	}
	return more
}

// user is clients that go one way, and their figures.
type user struct {
	way
	bulk, small *kgo.Client
	figures     [3]figures // of plays
}

type figures struct{ values, cpu []float64 }

func (u *user) close() {
	for _, c := range []*kgo.Client{u.bulk, u.small} {
		if c != nil {
			c.Close()
		}
	}
	if u.Process != nil {
		u.Stop()
	}
}

// turn plays one of plays, and adds its figures.
func (u *user) turn(ctx context.Context, p int, length time.Duration) error {
	before := u.cpu()
	figure, work, err := plays[p].run(u, ctx, length)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	f := &u.figures[p]
	f.values, f.cpu = append(f.values, figure), append(f.cpu, float64(u.cpu()-before)/float64(time.Microsecond)/work)
	return nil
}

// produce produces at full speed, with franz-go's defaults.
func (u *user) produce(ctx context.Context, length time.Duration) (perSecond, megabytes float64, err error) {
	begin := time.Now()
	n, err := produce(ctx, u.bulk, func(int64) bool { return time.Since(begin) < length })
	megabytes = float64(n) / 1e6
	return megabytes / time.Since(begin).Seconds(), megabytes, err
}

// produce sends records while more says so, waits until all are stored, and returns their bytes.
func produce(ctx context.Context, client *kgo.Client, more func(sent int64) bool) (bytes int64, err error) {
	value := make([]byte, recordLen)
	var failed atomic.Pointer[error]
	for more(bytes) && failed.Load() == nil && ctx.Err() == nil {
		bytes += recordLen
		client.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return 0, err
	}
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return bytes, nil
}

// consume reads the stored topic from its beginning, again and again. The clock starts when the first records are there.
func (u *user) consume(ctx context.Context, length time.Duration) (perSecond, megabytes float64, err error) {
	var bytes, before int64
	var took time.Duration
	for took < length {
		n, first, d, err := u.readAll(ctx, length-took)
		if err != nil {
			return 0, 0, err
		}
		bytes, before, took = bytes+n, before+first, took+d
	}
	return float64(bytes) / 1e6 / took.Seconds(), float64(bytes+before) / 1e6, nil
}

// readAll reads the topic once, or for as long as is given.
func (u *user) readAll(ctx context.Context, length time.Duration) (bytes, first int64, took time.Duration, err error) {
	client, err := u.client(kgo.ConsumeTopics(read), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return 0, 0, 0, err
	}
	defer client.Close()
	var begin time.Time
	for first+bytes < stored && took < length {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return 0, 0, 0, err
		}
		n := int64(fetches.NumRecords()) * recordLen
		if begin.IsZero() {
			begin, first = time.Now(), n
			continue
		}
		bytes += n
		took = time.Since(begin)
	}
	return bytes, first, took, nil
}

// roundTrips produces one small record after the other.
func (u *user) roundTrips(ctx context.Context, length time.Duration) (p50, requests float64, err error) {
	took, value := hist.New(7), make([]byte, smallLen)
	for begin := time.Now(); time.Since(begin) < length; {
		at := time.Now()
		if err := u.small.ProduceSync(ctx, &kgo.Record{Value: value}).FirstErr(); err != nil {
			return 0, 0, err
		}
		took.Record(time.Since(at))
	}
	return float64(took.Quantile(0.5)) / float64(time.Microsecond), float64(took.Count()), nil
}
