package weirgrpc_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirgrpc"
)

// A server refuses calls beyond its limit, and says why.
func Example() {
	api := weir.Must(limit.New(limit.Config{Name: "api", Limit: 50}))
	guard := weirgrpc.New(api)
	server := grpc.NewServer(guard.ServerOptions()...)
	testgrpc.RegisterTestServiceServer(server, testgrpc.UnimplementedTestServiceServer{}) // yours

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(l)
	defer server.Stop()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()

	guard.Drain(nil) // as at the end of the process
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, new(testgrpc.SimpleRequest))
	fmt.Println(status.Code(err))
	// Output: Unavailable
}

func ExampleStatus() {
	st := weirgrpc.Status(&weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Value: 256, Limit: 256, RetryAfter: time.Second, Retryable: true})
	fmt.Println(st.Code(), st.Message())
	// Output: Unavailable weir: gate "api" refused: the wait room is full (256 of 256); retry after 1s
}

func ExampleClassify() {
	fmt.Println(weirgrpc.Classify(status.Error(codes.ResourceExhausted, "busy")))
	fmt.Println(weirgrpc.Classify(status.Error(codes.NotFound, "none")))
	// Output:
	// overload
	// ok
}

// This client spares a server that refuses calls, and retries where that is safe.
func ExampleClient() {
	client := &weirgrpc.Client{
		Work: func(_ context.Context, method string, w *weir.Work) {
			if method == "/shop.Reports/Monthly" {
				w.Priority = weir.Background
			}
		},
	}
	conn, err := grpc.NewClient("dns:///shop.internal:50051", append(client.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Println(conn.CanonicalTarget())
	// Output: dns:///shop.internal:50051
}
