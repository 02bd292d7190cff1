package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/hist"
	"github.com/weir-go/weir/internal/loadgen"
)

// stand is an Envoy before a service, with a port for each subject.
type stand struct {
	subjects  []*subject
	processes []*rig.Process
	service   net.Listener
}

// subject is a port of the Envoy, and the figures of each turn, in µs.
type subject struct {
	name, addr      string
	rates, p50, p99 []float64
}

// start starts the processors, the service and the Envoy.
func (p *plan) start(ctx context.Context) (_ *stand, err error) {
	s := new(stand)
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.service, err = rig.StartUpstream(); err != nil {
		return nil, err
	}
	var e rig.Envoy
	e.Cluster("service", s.service.Addr().String(), false)
	for _, name := range []string{none, empty, weir} {
		addr, err := rig.Ports.Addr()
		if err != nil {
			return nil, err
		}
		filter := ""
		if name != none {
			process, at, err := p.startProcessor(ctx, name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			s.processes = append(s.processes, process)
			filter = rig.EnvoyAsks(name)
			e.Cluster(name, at, true)
		}
		e.Listen(name, addr, filter)
		s.subjects = append(s.subjects, &subject{name: name, addr: addr})
	}
	process, err := e.Start(ctx, p.envoy, s.subjects[0].addr)
	if err != nil {
		return nil, err
	}
	s.processes = append(s.processes, process)
	for _, sub := range s.subjects {
		if err := sub.work(ctx, p.clients, p.turn/2); err != nil { // connections, caches, heap
			return nil, fmt.Errorf("%s: %w", sub.name, err)
		}
		sub.rates, sub.p50, sub.p99 = nil, nil, nil
	}
	return s, nil
}

func (s *stand) stop() {
	for i := len(s.processes) - 1; i >= 0; i-- {
		s.processes[i].Stop()
	}
	if s.service != nil {
		_ = s.service.Close()
	}
}

// work lets each client ask without a pause for d, and adds the figures.
func (s *subject) work(ctx context.Context, clients int, d time.Duration) error {
	timed, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	took := hist.New(7)
	begin := time.Now()
	err := loadgen.Closed(timed, clients, func(int) (func() error, func()) {
		conn, mine := new(rig.Conn), hist.New(7)
		return func() error {
				at := time.Now()
				if a := conn.RoundTrip(s.addr, call, at.Add(d+10*time.Second)); a != loadgen.OK {
					return errors.New("a request was not answered with 200")
				}
				mine.Record(time.Since(at))
				return nil
			}, func() {
				conn.Close()
				mu.Lock()
				defer mu.Unlock()
				took.Add(&mine)
			}
	})
	span := time.Since(begin)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	if took.Count() == 0 {
		return fmt.Errorf("not one answer in %v", span)
	}
	s.rates = append(s.rates, float64(took.Count())/span.Seconds())
	s.p50 = append(s.p50, float64(took.Quantile(0.5))/float64(time.Microsecond))
	s.p99 = append(s.p99, float64(took.Quantile(0.99))/float64(time.Microsecond))
	return nil
}

var call = []byte("GET / HTTP/1.1\r\nHost: bench\r\n\r\n")
