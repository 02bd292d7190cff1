package live

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Bounds of a load, so that a slip of the keyboard is no attack.
const (
	mostRate = 25_000 // requests a second
	mostOpen = 4096   // connections
	mostSend = 2_000_000
)

// VoidAbove is the share of requests that left late, or not at all, above which
// a run is void.
const VoidAbove = 0.02

// lateShare is how far behind its time a request may leave, as a share of its
// client's patience. Timers are a millisecond late as it is.
const lateShare = 0.05

func lateAfter(patience time.Duration) time.Duration {
	return max(2*time.Millisecond, time.Duration(lateShare*float64(patience)))
}

// Answer is what became of a request.
type Answer uint8

// The answers.
const (
	Unsent  Answer = iota // never left: too many were open
	OK                    // what was wanted, in time
	Refused               // told to come back later
	Failed                // another status, or a broken connection
	GaveUp                // nothing within its client's patience
)

// Record is one request, from its birth on.
type Record struct {
	Due     time.Duration // since the load's start
	Work    time.Duration
	Heavy   bool // one of the few with much work, where there are two kinds
	Answer  Answer
	Late    bool          // left too late
	Calls   uint8         // of a task that were answered in time
	Latency time.Duration // since Due
}

// Phase is a stretch of load at one mean rate.
type Phase struct {
	Load  float64 // as a share of the capacity
	For   time.Duration
	Scale float64 // of the capacity that is left; 0 is all
}

// Load is an open-loop load with Poisson arrivals.
type Load struct {
	Addr     string
	Phases   []Phase
	Capacity float64 // requests a second
	Patience time.Duration
	Mean     time.Duration // work of a request; 0: none
	Heads    []string      // what requests begin with, in turn; nil: that they are for /
	Dist     string        // of work: "" exponential, bimodal, lognormal
	Seed     uint64

	// Again gives each phase the same random numbers, so that two phases of one
	// load have the same requests at the same times.
	Again bool
	// Calls makes each request a task of so many, one after the other as long as all
	// goes well. Those after the first begin with Later and have a work of their own;
	// each has its client's whole patience.
	Calls int
	Later string
}

func (l *Load) random() (arrivals, works *rand.Rand) {
	return rand.New(rand.NewPCG(l.Seed, 1)), rand.New(rand.NewPCG(l.Seed, 2))
}

// draw returns all requests of the load.
func (l *Load) draw() []Record {
	arrivals, works := l.random()
	var all []Record
	var begin float64
	for _, p := range l.Phases {
		if l.Again {
			arrivals, works = l.random()
		}
		rate, end := min(p.Load*l.Capacity, mostRate), begin+p.For.Seconds()
		for at := begin; rate > 0 && len(all) < mostSend; {
			at += arrivals.ExpFloat64() / rate
			if at >= end {
				break
			}
			work, heavy := drawWork(works, l.Dist)
			r := Record{Due: time.Duration(at * float64(time.Second)), Heavy: heavy}
			if l.Mean > 0 {
				r.Work = max(time.Microsecond, time.Duration(work*float64(l.Mean)))
			}
			all = append(all, r)
		}
		begin = end
	}
	return all
}

// Two kinds of work: one request in a hundred is fifty times the others.
const (
	heavyShare = 0.01
	heavyTimes = 50
)

// drawWork returns the work of a request; its mean is 1.
func drawWork(random *rand.Rand, dist string) (work float64, heavy bool) {
	switch dist {
	case "bimodal":
		heavy = random.Float64() < heavyShare
		work = 1 / (1 + heavyShare*(heavyTimes-1))
		if heavy {
			work *= heavyTimes
		}
		return work, heavy
	case "lognormal":
		const sigma = 1.0
		return math.Exp(sigma*random.NormFloat64() - sigma*sigma/2), false
	}
	return random.ExpFloat64(), false
}

// run sends the requests at their times and returns them with what became of
// them. epoch is when the first phase begins.
func (l *Load) run(ctx context.Context, epoch time.Time) []Record {
	c := &clients{load: l, heads: l.heads(), epoch: epoch, late: lateAfter(l.Patience), all: l.draw()}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range c.all {
		if wait := time.Until(epoch.Add(c.all[i].Due)); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				c.finish()
				return c.all[:i]
			}
		}
		c.send(i)
	}
	c.finish()
	return c.all
}

// heads is never empty.
func (l *Load) heads() []string {
	if len(l.Heads) == 0 {
		return []string{head("/", "")}
	}
	return l.Heads
}

// clients are those that send: one connection each, one request at a time.
type clients struct {
	load  *Load
	heads []string
	epoch time.Time
	late  time.Duration
	all   []Record

	mu   sync.Mutex
	idle []*client
	open int
	busy sync.WaitGroup // requests under way
	ends sync.WaitGroup // clients
}

// client sends what it is given.
type client struct {
	next chan int
	conn conn
}

// send gives request i to a client: the one that was busy last, or a new one.
func (c *clients) send(i int) {
	c.busy.Add(1)
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		one := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		one.next <- i
		return
	}
	if c.open >= mostOpen {
		c.mu.Unlock()
		c.busy.Done() // it stays Unsent
		return
	}
	c.open++
	c.mu.Unlock()
	one := &client{next: make(chan int, 1)}
	one.next <- i
	c.ends.Go(func() { c.work(one) })
}

func (c *clients) work(one *client) {
	defer one.conn.close()
	for i := range one.next {
		c.task(&one.conn, i)
		c.mu.Lock()
		c.idle = append(c.idle, one)
		c.mu.Unlock()
		c.busy.Done()
	}
}

// task makes the calls of request i.
func (c *clients) task(conn *conn, i int) {
	r, l := &c.all[i], c.load
	due := c.epoch.Add(r.Due)
	r.Late = time.Since(due) > c.late
	begin, head, work := due, c.heads[i%len(c.heads)], r.Work
	for {
		r.Answer = conn.roundTrip(l.Addr, head, work, begin.Add(l.Patience))
		now := time.Now()
		r.Latency = now.Sub(due)
		if r.Answer == OK && now.Sub(begin) > l.Patience {
			r.Answer = GaveUp
		}
		if r.Answer != OK {
			return
		}
		if r.Calls++; int(r.Calls) >= l.Calls {
			return
		}
		begin, head, work = now, l.Later, l.laterWork(i, int(r.Calls))
	}
}

// laterWork is the work of a call after the first.
func (l *Load) laterWork(i, call int) time.Duration {
	random := rand.New(rand.NewPCG(l.Seed, uint64(3+i*l.Calls+call)))
	work, _ := drawWork(random, l.Dist)
	return max(time.Microsecond, time.Duration(work*float64(l.Mean)))
}

// finish waits for the answers and closes all connections.
func (c *clients) finish() {
	c.busy.Wait()
	for _, one := range c.idle {
		close(one.next)
	}
	c.ends.Wait()
}

// conn is a client's connection. It does as little as a client can, because one
// core has to offer twenty thousand requests a second, and leaves as a killed
// browser does: by a reset.
type conn struct {
	net.Conn
	buf [4096]byte
	req []byte
}

// roundTrip sends a request with that head, of so much work, and waits for its answer until the
// time given. The connection stays open if it can be used again.
func (c *conn) roundTrip(addr, head string, work time.Duration, until time.Time) Answer {
	if c.Conn == nil {
		dialer := net.Dialer{Deadline: until}
		dialed, err := dialer.Dial("tcp", addr)
		if err != nil {
			return why(err)
		}
		_ = dialed.(*net.TCPConn).SetLinger(0) // else thousands of ports stay in TIME_WAIT
		c.Conn = dialed
	}
	status, again, err := c.exchange(head, work, until)
	if err != nil || !again {
		c.close()
	}
	switch {
	case err != nil:
		return why(err)
	case status == 429, status == 503:
		return Refused
	case status < 400:
		return OK
	}
	return Failed
}

func why(err error) Answer {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return GaveUp
	}
	return Failed
}

func (c *conn) close() {
	if c.Conn != nil {
		_ = c.Conn.Close() // a reset: there is nothing to lose
		c.Conn = nil
	}
}

// exchange writes the request and reads the answer. again reports whether the
// connection can be used for another.
func (c *conn) exchange(head string, work time.Duration, until time.Time) (status int, again bool, err error) {
	if err := c.SetDeadline(until); err != nil {
		return 0, false, err
	}
	c.req = append(append(c.req[:0], head...), workHeader+": "...)
	c.req = strconv.AppendInt(c.req, work.Microseconds(), 10)
	c.req = append(c.req, "\r\n\r\n"...)
	if _, err := c.Write(c.req); err != nil {
		return 0, false, err
	}
	have, end := 0, -1
	for end < 0 {
		got, err := c.Read(c.buf[have:])
		if err != nil {
			return 0, false, err
		}
		have += got
		if end = bytes.Index(c.buf[:have], headerEnd); end < 0 && have == len(c.buf) {
			return 0, false, errTooLong
		}
	}
	status, length, again, err := parseHead(c.buf[:end+2])
	if err != nil {
		return 0, false, err
	}
	for left := end + len(headerEnd) + length - have; left > 0; {
		got, err := c.Read(c.buf[:min(left, len(c.buf))])
		if err != nil {
			return 0, false, err
		}
		left -= got
	}
	return status, again, nil
}

var (
	headerEnd  = []byte("\r\n\r\n")
	errTooLong = errors.New("an answer with more than 4096 bytes of header")
	errHead    = errors.New("not the head of an HTTP answer that this client understands")
)

// parseHead reads the status, the length of the body and whether the connection
// stays open from an answer's head.
func parseHead(head []byte) (status, length int, again bool, err error) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, 0, false, errHead
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, 0, false, errHead
	}
	length, again = -1, true
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, 0, false, errHead
			}
		case bytes.EqualFold(name, []byte("Connection")):
			again = !bytes.EqualFold(value, []byte("close"))
		}
	}
	if length < 0 { // its end is that of the connection, or it is in chunks
		return status, 0, false, nil
	}
	return status, length, again, nil
}

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
