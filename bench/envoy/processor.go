package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-go/weir/bench/internal/rig"
)

// The processors.
const (
	none  = "none"
	empty = "empty"
	weir  = "weir"
)

// nothing is the empty processor.
type nothing struct {
	extproc.UnimplementedExternalProcessorServer
}

// Process implements the service: each message gets an empty one of its kind.
func (nothing) Process(s extproc.ExternalProcessor_ProcessServer) error {
	for {
		m, err := s.Recv()
		if err != nil {
			return nil
		}
		answer := new(extproc.ProcessingResponse)
		switch m.Request.(type) {
		case *extproc.ProcessingRequest_RequestHeaders:
			answer.Response = &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: new(extproc.HeadersResponse)}
		case *extproc.ProcessingRequest_ResponseHeaders:
			answer.Response = &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: new(extproc.HeadersResponse)}
		case *extproc.ProcessingRequest_ResponseTrailers:
			answer.Response = &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: new(extproc.TrailersResponse)}
		default:
			return fmt.Errorf("a message of another phase: %T", m.Request)
		}
		if err := s.Send(answer); err != nil {
			return nil
		}
	}
}

func serveEmpty(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	extproc.RegisterExternalProcessorServer(server, nothing{})
	return server.Serve(l)
}

// weirFile is the file of weir: one gate with a fixed limit above all that comes. So what is
// measured is the way to it.
const weirFile = `listeners: [{address: "%s", serve: [ext_proc]}]
admin: {address: off}
gates: {all: {limit: {limit: 10000}}}
routes: [{match: [/], gates: [all]}]
shutdown: {lame_duck: 0s}
`

// startProcessor starts a processor on one core.
func (p *plan) startProcessor(ctx context.Context, name string) (*rig.Process, string, error) {
	addr, err := rig.Ports.Addr()
	if err != nil {
		return nil, "", err
	}
	if name == weir {
		process, err := rig.StartWeir(ctx, p.weir, addr, fmt.Sprintf(weirFile, addr))
		return process, addr, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	process, err := rig.StartListening(ctx, addr, self, "-serve", addr)
	return process, addr, err
}

// request is the message with the headers of a usual request.
func request() (*extproc.ProcessingRequest, error) {
	h := &core.HeaderMap{}
	for _, f := range [][2]string{
		{":method", "GET"}, {":scheme", "https"}, {":authority", "shop.example"}, {":path", "/v1/orders?page=2"},
		{"user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"},
		{"accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}, {"accept-language", "en-US,en;q=0.5"},
		{"accept-encoding", "gzip, deflate, br"}, {"cookie", "session=" + strings.Repeat("0123456789abcdef", 8)},
		{"x-forwarded-for", "203.0.113.7"}, {"x-forwarded-proto", "https"}, {"x-request-id", "5b9d9f0e-7b1c-4a57-8e4e-0f6b1d0c2a11"},
		{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	} {
		h.Headers = append(h.Headers, &core.HeaderValue{Key: f[0], RawValue: []byte(f[1])})
	}
	attributes, err := structpb.NewStruct(map[string]any{"source.address": "203.0.113.7:4444"})
	return &extproc.ProcessingRequest{
		Request:    &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: h, EndOfStream: true}},
		Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": attributes},
	}, err
}

// hold opens the streams of held requests at a processor, and returns what one takes, in KB.
func (p *plan) hold(ctx context.Context, name string) (float64, error) {
	process, addr, err := p.startProcessor(ctx, name)
	if err != nil {
		return 0, err
	}
	defer process.Stop()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := extproc.NewExternalProcessorClient(conn)
	if err := openStreams(ctx, client, 10); err != nil { // what the first need is no matter of the others
		return 0, err
	}
	before := resident(process.Pid())
	if err := openStreams(ctx, client, p.held); err != nil {
		return 0, err
	}
	after := resident(process.Pid())
	if before == 0 || after <= before {
		return 0, fmt.Errorf("the memory of a process cannot be read here: %d bytes before, %d after", before, after)
	}
	return float64(after-before) / float64(p.held) / 1000, nil
}

// openStreams opens so many streams, and returns when the request of each is let in.
func openStreams(ctx context.Context, client extproc.ExternalProcessorClient, n int) error {
	message, err := request()
	if err != nil {
		return err
	}
	failed := make(chan error, n)
	var all sync.WaitGroup
	for range n {
		s, err := client.Process(ctx)
		if err != nil {
			return err
		}
		if err := s.Send(message); err != nil {
			return err
		}
		all.Go(func() {
			if m, err := s.Recv(); err != nil || m.GetRequestHeaders() == nil {
				failed <- fmt.Errorf("answered by %v, %v", m, err)
			}
		})
	}
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// resident returns the resident bytes of a process, 0 if they cannot be read.
func resident(pid int) uint64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(status), "VmRSS:")
	if !ok {
		return 0
	}
	kb, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
	return kb << 10
}
