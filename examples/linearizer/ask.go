package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// What an API server asks the store.

// Of overdue results: the longest time between two questions about one, and how many are asked in a round.
const (
	askAtMost   = 10 * time.Second
	askTogether = 256
	// askForLost is how many questions come before a record that the processors are past counts as lost. When Kafka itself
	// has lost records, it stands where another was applied, until the processors have gone back.
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
	if s, err = settledOf(ctx, a.cfg.store.db, req.database, req.id); err != nil || s == nil {
		return res, err == nil, err
	}
	return s.again(req.digest), true, nil
}

// getBatch answers with the result of a batch, which stays.
func (a *api) getBatch(w http.ResponseWriter, r *http.Request) {
	s, err := settledOf(r.Context(), a.cfg.store.db, r.PathValue("db"), r.PathValue("id"))
	switch {
	case err != nil:
		a.storeFailed(w, r, err)
	case s == nil:
		w.Header().Set("Retry-After", "1")
		answerProblem(w, http.StatusNotFound, "no result", "no batch of this id has been applied to this database, or none yet")
	default:
		answerJSON(w, http.StatusOK, s.result)
	}
}

// Bounds of an answer: events, and about how many bytes of them.
const (
	mostEvents = 1000
	mostBytes  = 1 << 20
)

// getEvents answers with the log of a database: events from a revision on, and where to go on.
func (a *api) getEvents(w http.ResponseWriter, r *http.Request) {
	from, err := numberOf(r, "from", 1)
	if err != nil {
		answerProblem(w, http.StatusBadRequest, "not a revision", err.Error())
		return
	}
	events, err := a.cfg.store.log(r.Context(), r.PathValue("db"), from, mostEvents, mostBytes)
	if err != nil {
		a.storeFailed(w, r, err)
		return
	}
	next := from
	if len(events) > 0 {
		next = events[len(events)-1].Revision + 1
	}
	answerJSON(w, http.StatusOK, map[string]any{"events": append([]logged{}, events...), "next": next})
}

func numberOf(r *http.Request, name string, otherwise int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s is a revision, from 1", name)
	}
	return n, nil
}

func (a *api) storeFailed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		a.cfg.log.Error("the store cannot be read", "error", err)
	}
	w.Header().Set("Retry-After", "1")
	answerProblem(w, http.StatusServiceUnavailable, "the store does not answer", "ask again")
}

// getStatus shows what an operator wants to see.
func (a *api) getStatus(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	waiting := len(a.waiting)
	a.mu.Unlock()
	shown := map[string]any{"waiting": waiting}
	if g, ok := a.cfg.gate.(shower); ok {
		shown["admission"] = g.status()
	}
	answerJSON(w, http.StatusOK, shown)
}

// getMetrics is for Prometheus.
func (a *api) getMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	if g, ok := a.cfg.gate.(meter); ok {
		_ = g.WriteMetrics(w) // an error means that the client has gone
	}
}

// close stops taking requests, gives those under way a moment, and ends.
func (a *api) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := a.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = a.http.Close()
	}
	a.stop()
	a.stopped.Wait()
	a.grpc.Stop()
	a.bodies.Close()
	a.client.Close() // promises that are open end with an error, and so do their permits
	return err
}
