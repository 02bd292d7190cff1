package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir/internal/loadgen"
)

// rig is API servers and processors of this process, on a broker.
type rig struct {
	o      options
	apis   []*api
	gates  []*admission
	stores []*store
	ends   []func() error // in reverse
}

// openRig starts everything. Without -kafka there is a broker in this process, with a store that is removed.
func openRig(ctx context.Context, o options, apis, processors int) (_ *rig, err error) {
	r := &rig{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.o.kafka == "" {
		broker, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return nil, err
		}
		r.atEnd(func() error { broker.Close(); return nil })
		r.o.kafka = broker.ListenAddrs()[0]
	}
	if r.o.store == "" && o.kafka == "" || r.o.fresh {
		folder, err := os.MkdirTemp("", "linearizer-")
		if err != nil {
			return nil, err
		}
		r.atEnd(func() error { return os.RemoveAll(folder) })
		r.o.store = filepath.Join(folder, "store.db")
	}
	if err := r.o.prepare(ctx); err != nil {
		return nil, err
	}
	for range processors {
		if err := r.startProcessor(ctx); err != nil {
			return nil, err
		}
	}
	for range apis {
		if err := r.startAPI(ctx); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *rig) atEnd(end func() error) { r.ends = append(r.ends, end) }

func (r *rig) open(ctx context.Context, connections int) (*store, error) {
	s, err := openStore(ctx, r.o.path(), connections)
	if err == nil {
		r.stores = append(r.stores, s)
		r.atEnd(s.close)
	}
	return s, err
}

func (r *rig) startProcessor(ctx context.Context) error {
	s, err := r.open(ctx, writers)
	if err != nil {
		return err
	}
	p, err := newProcessor(ctx, processorConfig{brokers: r.o.brokers(), store: s, work: r.o.work, log: r.o.log})
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- p.run(working) }()
	r.atEnd(func() error {
		stop()
		err := <-done
		p.close()
		return err
	})
	return nil
}

func (r *rig) startAPI(ctx context.Context) error {
	s, err := r.open(ctx, readers)
	if err != nil {
		return err
	}
	log := r.o.log.With("api", len(r.apis)+1)
	gate, err := openAdmission(r.o.admission, r.o.brokers(), log)
	if err != nil {
		return err
	}
	r.atEnd(func() error { gate.close(); return nil })
	a, err := startAPI(ctx, apiConfig{brokers: r.o.brokers(), store: s, gate: gate, addr: r.o.listen, results: "127.0.0.1:0", patience: r.o.patience, log: log})
	if err != nil {
		return err
	}
	r.atEnd(a.close)
	r.apis, r.gates = append(r.apis, a), append(r.gates, gate)
	return nil
}

// close ends everything, in reverse.
func (r *rig) close() error {
	var all error
	for len(r.ends) > 0 {
		last := len(r.ends) - 1
		all = errors.Join(all, r.ends[last]())
		r.ends = r.ends[:last]
	}
	return all
}

// evenly names so many databases, of which each partition has as many as any other, or one more.
func evenly(databases int, partitions int) (names []string) {
	byKey := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	of := make([]int, partitions)
	for i := 0; len(names) < databases; i++ {
		name := fmt.Sprintf("db%02d", i)
		if p := byKey.Partition(&kgo.Record{Key: []byte(name)}, partitions); of[p] <= len(names)/partitions {
			of[p]++
			names = append(names, name)
		}
	}
	return names
}

// clients returns a function that sends one batch of one event, to a database drawn by chance. It takes the API
// servers in turn. closeIdle closes the connections.
func (r *rig) clients(databases []string, patience time.Duration) (send func(context.Context) loadgen.Answer, closeIdle func()) {
	transport := &http.Transport{MaxIdleConnsPerHost: loadgen.MaxOpen}
	client := &http.Client{Transport: transport}
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	var count atomic.Uint64
	return func(ctx context.Context) loadgen.Answer {
		n := count.Add(1)
		a := r.apis[int(n)%len(r.apis)]
		url := fmt.Sprintf("http://%s/v1/databases/%s/batches", a.addr, databases[rand.IntN(len(databases))])
		body := fmt.Sprintf(`{"id":"%s.%d","events":[{"type":"tick","data":%d}]}`, run, n, n)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
		if err != nil {
			return loadgen.Failed
		}
		req.Header.Set("Prefer", "wait="+strconv.Itoa(int(patience/time.Second)))
		resp, err := client.Do(req)
		if err != nil {
			if ctx.Err() != nil {
				return loadgen.GaveUp
			}
			return loadgen.Failed
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be used again
		switch resp.StatusCode {
		case http.StatusCreated:
			return loadgen.OK
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			return loadgen.Refused
		case http.StatusAccepted:
			return loadgen.GaveUp
		}
		return loadgen.Failed
	}, transport.CloseIdleConnections
}

// watched is how the system looks at one moment.
type watched struct {
	at      time.Duration
	lag     float64
	slots   float64 // of a database
	applied float64 // records, in all
}

// watch looks every second, until done, and tells each what it has seen.
func (r *rig) watch(ctx context.Context, done <-chan struct{}, each func(watched)) {
	begun := time.Now()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-again.C:
		}
		at := time.Since(begun)
		if w, err := r.look(ctx); err == nil { // what cannot be told is left out of the account, never 0
			w.at = at
			each(w)
		}
	}
}

// look is how the system looks now.
func (r *rig) look(ctx context.Context) (w watched, err error) {
	w.slots = float64(r.gates[0].Snapshot().Limit)
	if w.lag, err = r.gates[0].lag.Read(ctx); err != nil {
		return w, err
	}
	err = r.stores[0].db.QueryRowContext(ctx, "SELECT coalesce(sum(next), 0) FROM partitions").Scan(&w.applied)
	return w, err
}
