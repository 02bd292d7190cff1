package main

import (
	"context"
	"encoding/json"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Results go from the processor straight to the API server that has asked, over gRPC: one call, of one
// method, with some results. The message is a BytesValue with JSON in it, and the service is registered by
// hand. So the example needs no protoc, and no generated code that would be longer than itself.
//
// Nobody depends on a delivery. One that fails is forgotten: the API server asks the store.

const deliverMethod = "/linearizer.Results/Deliver"

// delivery is one result on its way back.
type delivery struct {
	Token  string `json:"token"`
	Result result `json:"result"`
}

// Bounds of what a processor keeps for API servers that do not answer.
const (
	maxLanes      = 64   // API servers with a connection
	laneLen       = 1024 // results that wait for one of them
	perCall       = 256  // results of a call
	callTimeout   = time.Second
	laneIdle      = time.Minute
	maxDeliveries = 1 << 20 // bytes of a call, for the receiver
)

// courier delivers results. Records say where to, so the number of addresses is bounded.
type courier struct {
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu      sync.Mutex
	lanes   map[string]chan delivery // by the API server's address
	dropped int                      // results that were not delivered
}

func newCourier() *courier {
	c := &courier{lanes: map[string]chan delivery{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// deliver sends results on their way. It never waits.
func (c *courier) deliver(entries []entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		origin := e.record.Origin
		if origin == "" || c.ctx.Err() != nil {
			continue
		}
		lane, ok := c.lanes[origin]
		if !ok {
			if lane = c.openLocked(origin); lane == nil {
				c.dropped++
				continue
			}
		}
		select {
		case lane <- delivery{e.record.Token, e.result}:
		default:
			c.dropped++
		}
	}
}

// openLocked begins a lane to an address, nil if there are too many or it is none.
func (c *courier) openLocked(origin string) chan delivery {
	if _, _, err := net.SplitHostPort(origin); err != nil || len(c.lanes) >= maxLanes {
		return nil
	}
	// Not encrypted, and to whatever address a record names: whoever can write the topic is trusted.
	conn, err := grpc.NewClient("passthrough:///"+origin, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil
	}
	lane := make(chan delivery, laneLen)
	c.lanes[origin] = lane
	c.ended.Go(func() {
		defer conn.Close()
		c.drain(origin, conn, lane)
	})
	return lane
}

// drain delivers what is in a lane, until the lane is idle.
func (c *courier) drain(origin string, conn *grpc.ClientConn, lane chan delivery) {
	idle := time.NewTicker(laneIdle)
	defer idle.Stop()
	var some []delivery
	for used := true; ; {
		select {
		case d := <-lane:
			used = true
			for some = append(some[:0], d); len(some) < perCall && len(lane) > 0; {
				some = append(some, <-lane)
			}
			c.call(conn, some)
		case <-idle.C:
			if !used && c.closeIdle(origin, lane) {
				return
			}
			used = false
		case <-c.ctx.Done():
			return
		}
	}
}

// closeIdle ends a lane, unless something has come into it meanwhile.
func (c *courier) closeIdle(origin string, lane chan delivery) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(lane) > 0 {
		return false
	}
	delete(c.lanes, origin)
	return true
}

func (c *courier) call(conn *grpc.ClientConn, some []delivery) {
	body, err := json.Marshal(some)
	if err != nil {
		return // results are numbers and text: there is none that JSON cannot carry
	}
	ctx, cancel := context.WithTimeout(c.ctx, callTimeout)
	defer cancel()
	if err := conn.Invoke(ctx, deliverMethod, wrapperspb.Bytes(body), &emptypb.Empty{}); err != nil {
		c.mu.Lock()
		c.dropped += len(some)
		c.mu.Unlock()
	}
}

// close drops what is under way. It returns how many results were not delivered, all in all.
func (c *courier) close() int {
	c.cancel()
	c.ended.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// receiver is the other side: it gets the results.
type receiver interface{ receive([]delivery) }

// serveResults is a gRPC server that hands results to a receiver. Whoever can connect can deliver a result,
// so it listens where the processors are and nobody else.
func serveResults(l net.Listener, to receiver) *grpc.Server {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxDeliveries), grpc.MaxConcurrentStreams(64))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "linearizer.Results",
		HandlerType: (*receiver)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Deliver", Handler: handleDeliver}},
	}, to)
	go func() { _ = s.Serve(l) }() // it ends with Stop
	return s
}

func handleDeliver(to any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var body wrapperspb.BytesValue
	if err := decode(&body); err != nil {
		return nil, err
	}
	var some []delivery
	if err := json.Unmarshal(body.Value, &some); err != nil {
		return nil, err
	}
	to.(receiver).receive(some)
	return &emptypb.Empty{}, nil
}
