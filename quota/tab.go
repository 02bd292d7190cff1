package quota

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir"
)

// AdmitAhead is AdmitIn in Permissive mode that does not wait for a store elsewhere. What one
// bucket is charged in 20 ms is one decision of the store. So there are at most 50 of them a
// second for each bucket, however much is charged. The Answer says what is known here: what the
// store said last, less what has been charged since. Of a bucket that nobody has asked about it
// is taken that it is full. [Quota.Owed] knows better once the store has answered.
//
// After a failure of the store, Config.OnStoreError holds for what comes next. What the store
// did not take is charged to the buckets of this process, or not at all. With a [Memory] it is
// AdmitIn.
func (q *Quota) AdmitAhead(ctx context.Context, w weir.Work) (weir.Permit, Answer, error) {
	if !q.tabs.enabledFor(q) {
		return q.AdmitIn(ctx, Permissive, w)
	}
	set := q.settings.Load()
	var c bill
	refused := q.match(ctx, set, &w, &c, true)
	if refused != nil {
		return weir.Permit{}, Answer{Rule: refused.Rule, Key: refused.Bucket}, q.front.Refuse(&w, refused)
	}
	if c.free {
		q.front.Admitted(&w, 0)
		return weir.Permit{}, c.freeAnswer(), nil
	}
	a := Answer{Rule: c.rule.title, Windows: c.rule.Windows, Cost: c.cost}
	var known bool
	if a.Decision, refused, known = q.tabs.charge(q, &c, float64(c.cost)); !known {
		a.Decision, refused = q.charge(ctx, set, &w, &c, Permissive, 0)
	}
	if refused != nil {
		a.Key = refused.Bucket
		return weir.Permit{}, a, q.front.Refuse(&w, refused)
	}
	a.Key = c.key
	p := q.issue(&c)
	q.front.Admitted(&w, 0)
	return p, a, nil
}

// Owed returns how long the bucket of w takes to pay back what it owes, as far as this process
// knows. It is 0 if nothing is owed, or nothing is counted. It never waits: a store elsewhere
// that has said nothing of the bucket for a second is asked meanwhile. The cost of w does not
// matter.
func (q *Quota) Owed(w weir.Work) time.Duration {
	ctx, set := context.Background(), q.settings.Load()
	var c bill
	if q.match(ctx, set, &w, &c, false) != nil || c.free {
		return 0
	}
	c.cost = 0
	var d Decision
	if q.memory != nil {
		d, _ = q.charge(ctx, set, &w, &c, Permissive, 0)
	} else if q.tabs.enabledFor(q) {
		d, _, _ = q.tabs.charge(q, &c, 0)
	}
	return d.Wait
}

// tab is the account that a process keeps of one bucket of a store elsewhere. It has what the
// store said last, what has been charged since, and what the store has not been told. It has no
// clock and asks nobody.
type tab struct {
	rule *rule         // of the last charge
	used time.Duration // when that was

	opened bool          // there is a bucket
	window int           // the one that binds
	bucket bucket        // what is in it, less what has been charged since
	until  time.Duration // when the store said that no window owes anything any more
	said   bool          // by the store, and not only taken for full
	at     time.Duration // when it was said

	untold float64 // charged and not told; negative: to be given back
	wanted bool    // somebody wants to know what is there
	under  bool    // a question is under way
	begun  int     // the number of the last question
	asked  time.Duration

	where   decider
	first   int             // the number of the first question that it has decided, without a break
	refused *weir.Rejection // the store failed, and nothing else decides
	telling bool            // a goroutine tells the store
}

// decider is who decided the last question about a tab.
type decider uint8

const (
	inStore decider = iota
	inFallback
	nowhere // the store failed, and nothing was charged
)

const (
	// tabPace is the least time between two questions about a bucket.
	tabPace = 20 * time.Millisecond
	// tabFresh is how long what a store said needs no other question.
	tabFresh = time.Second
)

// charge adds to the account, or only looks if tokens are 0.
func (t *tab) charge(r *rule, tokens float64, at moment) (Decision, *weir.Rejection) {
	t.rule, t.used = r, at.now
	t.window = min(t.window, len(r.Windows)-1) // a change may have left fewer
	t.wanted = t.wanted || !t.said || at.now-t.at >= tabFresh
	w := &r.Windows[t.window]
	if t.refused != nil && at.now-t.asked < tabFresh {
		return Decision{}, t.refused
	}
	t.untold = min(max(t.untold+tokens, -MaxTokens), MaxTokens)
	if t.where == nowhere {
		return Decision{OK: true, Window: t.window, Remaining: w.Burst}, nil
	}
	if !t.opened {
		t.opened, t.bucket = true, full(w, at)
	}
	t.bucket.refill(w, at)
	t.bucket.charge(w, tokens)
	d := Decision{OK: true, Window: t.window, Remaining: t.bucket.tokens}
	d.Wait = max(w.wait(t.bucket.lacks(w, 0, true), at), roundUp(t.until-at.now), 0)
	return d, nil
}

// due returns how long it is until the store may be asked. ok is false if there is nothing to ask.
func (t *tab) due(now time.Duration) (wait time.Duration, ok bool) {
	if t.under || t.untold == 0 && !t.wanted {
		return 0, false
	}
	if t.begun == 0 {
		return 0, true
	}
	return max(t.asked+tabPace-now, 0), true
}

// begin takes what the store is told now.
func (t *tab) begin(now time.Duration) (tokens float64) {
	tokens = t.untold
	t.untold, t.wanted, t.under, t.asked = 0, false, true, now
	t.begun++
	return tokens
}

// answered takes note of what was decided about a question. refused is why nothing was.
func (t *tab) answered(d Decision, where decider, refused *weir.Rejection, at moment) {
	if where != t.where {
		t.first = t.begun
	}
	t.under, t.where, t.refused = false, where, refused
	if where == nowhere {
		t.opened, t.said, t.until, t.untold = false, false, 0, 0
		t.begun++ // what was charged meanwhile was for the next question, which does not tell it
		return
	}
	t.opened, t.said, t.at, t.until = true, true, at.now, at.now+min(d.Wait, Never-at.now)
	t.window = min(d.Window, len(t.rule.Windows)-1)
	w := &t.rule.Windows[t.window]
	t.bucket = bucket{d.Remaining, at.by(w)}
	t.bucket.charge(w, t.untold)
}

// has reports whether a charge was made where the account is now, by the number of the question that tells it.
func (t *tab) has(question int) bool { return t.where != nowhere && question >= t.first }

// gaveBack takes note that tokens have been given back.
func (t *tab) gaveBack() { t.under = false }

// idle reports whether nothing would be lost with t: nothing is to be told, and nothing is owed.
func (t *tab) idle(at moment) bool {
	if t.under || t.untold != 0 || t.wanted || at.now-t.used < tabFresh || t.until > at.now {
		return false
	}
	b := t.bucket
	b.refill(&t.rule.Windows[t.window], at)
	return b.tokens >= 0
}

// tabs are the accounts of a gate whose store is elsewhere.
type tabs struct {
	mu     sync.Mutex
	epoch  time.Time
	byKey  map[string]*tab
	next   int           // how many there are when idle ones are looked for again
	looked time.Duration // when they were

	closed  bool
	ended   chan struct{} // closed with it
	tellers sync.WaitGroup
}

const (
	// maxTabs bounds the accounts of a gate. About other buckets the store is asked each time.
	maxTabs = 10_000
	// fewTabs are kept without looking for idle ones.
	fewTabs = 64
)

// enabledFor reports whether accounts are kept: a store in the process needs none, and a gate on virtual time has no timer.
func (ts *tabs) enabledFor(q *Quota) bool { return q.memory == nil && q.front.Timed() }

func (ts *tabs) moment() moment {
	passed := time.Since(ts.epoch)
	return moment{passed, passed, ts.epoch}
}

// charge charges the account of a bucket, or looks at it if tokens are 0, and has the store asked. known is false if there
// is no place for an account.
func (ts *tabs) charge(q *Quota, c *bill, tokens float64) (d Decision, refused *weir.Rejection, known bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.findOrAdd(c.key)
	if t == nil {
		return d, nil, false
	}
	d, refused = t.charge(c.rule, tokens, ts.moment())
	c.tab, c.ahead = t, t.begun+1
	ts.startTelling(q, c.key, t)
	return d, refused, true
}

// adjust gives tokens of an earlier charge back, or charges more if they are negative. It does nothing if the charge was not
// made where the account is now. It returns false if the account is closed or was dropped; then c says where the charge was made.
func (ts *tabs) adjust(q *Quota, c *bill, tokens float64) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := c.tab
	if !t.has(c.ahead) {
		return true
	}
	if ts.closed || ts.byKey[c.key] != t {
		c.fallback = t.where == inFallback
		return false
	}
	_, _ = t.charge(t.rule, -tokens, ts.moment())
	ts.startTelling(q, c.key, t)
	return true
}

// findOrAdd returns the account of a bucket, a new one if need be; nil if there is no place. The caller holds mu.
func (ts *tabs) findOrAdd(key string) *tab {
	if ts.closed {
		return nil
	}
	if t := ts.byKey[key]; t != nil {
		return t
	}
	if ts.byKey == nil {
		ts.epoch, ts.byKey, ts.ended, ts.next = time.Now(), map[string]*tab{}, make(chan struct{}), fewTabs
	}
	at := ts.moment()
	if len(ts.byKey) >= ts.next && (ts.next < maxTabs || at.now-ts.looked >= tabFresh) {
		for k, t := range ts.byKey {
			if t.idle(at) {
				delete(ts.byKey, k)
			}
		}
		ts.looked, ts.next = at.now, min(max(2*len(ts.byKey), fewTabs), maxTabs)
	}
	if len(ts.byKey) >= maxTabs {
		return nil
	}
	t := &tab{}
	ts.byKey[key] = t
	return t
}

// forget drops the account of a bucket that has been filled.
func (ts *tabs) forget(key string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.byKey[key]; t != nil {
		t.untold, t.until, t.opened, t.said = 0, 0, false, false
	}
}

// startTelling begins to tell the store, unless that is under way. The caller holds mu.
func (ts *tabs) startTelling(q *Quota, key string, t *tab) {
	if _, ok := t.due(0); !ok || t.telling {
		return
	}
	t.telling = true
	ts.tellers.Go(func() { ts.tell(q, key, t) })
}

// tell tells the store what it has to know of an account, until that is all.
func (ts *tabs) tell(q *Quota, key string, t *tab) {
	for {
		ts.mu.Lock()
		wait, ok := t.due(ts.moment().now)
		if ts.closed {
			wait = 0
		}
		if !ok {
			t.telling = false
			ts.mu.Unlock()
			return
		}
		if wait > 0 {
			ts.mu.Unlock()
			pause := time.NewTimer(wait)
			select {
			case <-pause.C:
			case <-ts.ended:
			}
			pause.Stop()
			continue
		}
		c, tokens, where := bill{rule: t.rule, key: key}, t.begin(ts.moment().now), t.where
		ts.mu.Unlock()
		if tokens < 0 {
			c.fallback = where == inFallback // as what was charged
			q.adjust(&c, -tokens)
			ts.mu.Lock()
			t.gaveBack()
			ts.mu.Unlock()
			continue
		}
		c.cost = int64(tokens)
		d, refused := q.charge(context.Background(), q.settings.Load(), &weir.Work{}, &c, Permissive, 0)
		switch {
		case c.fallback:
			where = inFallback
		case c.free || refused != nil:
			where = nowhere
		default:
			where = inStore
		}
		ts.mu.Lock()
		t.answered(d, where, refused, ts.moment())
		ts.mu.Unlock()
	}
}

// close tells the store the rest.
func (ts *tabs) close() {
	ts.mu.Lock()
	if !ts.closed {
		ts.closed = true
		if ts.ended != nil {
			close(ts.ended)
		}
	}
	ts.mu.Unlock()
	ts.tellers.Wait()
}
