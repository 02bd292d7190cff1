package main

import (
	"context"
	"errors"
	"time"
)

// Of overdue results: the longest time between two questions about one, and how many are asked in a round.
const (
	askAtMost   = 10 * time.Second
	askTogether = 256
	// askForLost is how many questions come before a record that the processors are past counts as lost. After Kafka
	// itself has lost records, a new one may stand where another was applied, until the processors have gone back.
	askForLost = 6
)

// askForOverdue asks the store for results that have not come, until ctx ends. A delivery may be lost, with
// its processor or on its way.
func (a *api) askForOverdue(ctx context.Context) {
	again := time.NewTicker(a.cfg.overdue / 4)
	defer again.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case now := <-again.C:
			err := a.askRound(ctx, now)
			if err == nil {
				failures = 0
				continue
			}
			if failures++; failures == 1 && ctx.Err() == nil {
				a.cfg.log.Warn("the store cannot be asked for overdue results; trying again", "error", err)
			}
			_ = wait(ctx, retryAfter(failures))
		}
	}
}

// askRound asks for some of those that are due by now.
func (a *api) askRound(ctx context.Context, now time.Time) error {
	for token, req := range a.overdue(now) {
		res, ok, err := a.find(ctx, &req)
		if err != nil {
			return err
		}
		if ok {
			a.finish(token, res, res.outcome())
		}
	}
	return nil
}

// overdue returns copies of the requests to ask for, and says when they are due again.
func (a *api) overdue(now time.Time) map[string]request {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := map[string]request{}
	for token, req := range a.waiting {
		if len(due) == askTogether {
			break
		}
		if req.ask.After(now) {
			continue
		}
		req.ask = now.Add(min(a.cfg.overdue<<min(req.asked, 10), askAtMost))
		req.asked++
		due[token] = *req
	}
	return due
}

// find looks for what became of a request, also of one that will never have a result.
func (a *api) find(ctx context.Context, req *request) (result, bool, error) {
	if req.offset < 0 {
		return result{}, false, nil // its promise comes first, and ends it if it fails
	}
	s, err := settledOf(ctx, a.cfg.store.db, req.database, req.id)
	if err != nil {
		return result{}, false, err
	}
	if s != nil {
		return s.again(req.digest), true, nil
	}
	res, ok, err := a.cfg.store.passed(ctx, req.partition, req.offset)
	if err != nil || !ok || res.Status != lost {
		return res, ok, err
	}
	if req.asked < askForLost {
		return result{}, false, nil
	}
	// The two questions are no single moment: the result may have come in between.
	if s, err = settledOf(ctx, a.cfg.store.db, req.database, req.id); err != nil {
		return result{}, false, err
	}
	if s != nil {
		return s.again(req.digest), true, nil
	}
	return a.gone(ctx, res)
}

// gone says that a record is lost, unless its offset is of another topic than the store's: the topic may have been made anew
// before this server published its first record. ok is false while Kafka does not say which topic it has.
func (a *api) gone(ctx context.Context, lost result) (_ result, ok bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	switch err := tie(ctx, a.client, a.cfg.store, a.cfg.log); {
	case errors.Is(err, errOtherTopic):
		return result{Status: unpublished, Reason: clip(err.Error())}, true, nil
	case err != nil:
		return result{}, false, nil
	}
	return lost, true, nil
}
