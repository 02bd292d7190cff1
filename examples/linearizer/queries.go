package main

import (
	"fmt"
	"net/http"
	"strconv"
)

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

// getStatus answers with what an operator wants to see.
func (a *api) getStatus(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	awaited := len(a.waiting)
	a.mu.Unlock()
	shown := map[string]any{"awaiting_results": awaited} // those that wait for a slot are below admission
	if g, ok := a.cfg.gate.(watchable); ok {
		shown["admission"] = g.status()
	}
	answerJSON(w, http.StatusOK, shown)
}

// getMetrics is for Prometheus.
func (a *api) getMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	if g, ok := a.cfg.gate.(watchable); ok {
		_ = g.WriteMetrics(w) // an error means that the client has gone
	}
}
