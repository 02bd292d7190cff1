package server_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/server"
)

// A gateway in front of a server of one's own, for as long as a context lives.
func Example() {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "hello from behind the gate")
	}))
	defer upstream.Close()

	cfg, err := config.ForUpstream(upstream.URL, "127.0.0.1:0", 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	cfg.Admin.Address = config.Off
	cfg.Shutdown.LameDuck = 0
	srv, err := server.New(cfg, server.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()

	res, err := http.Get("http://" + srv.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	fmt.Printf("%s: %s\n", res.Status, body)
	for name, gate := range srv.Policy().Gates() {
		s := gate.Snapshot()
		fmt.Printf("gate %s: limit %d, admitted %d\n", name, s.Limit, s.Admitted)
	}

	stop()
	fmt.Println("stopped:", <-ended)
	// Output:
	// 200 OK: hello from behind the gate
	// gate upstream: limit 20, admitted 1
	// stopped: <nil>
}
