package weirkafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
	"github.com/weir-go/weir/weirkafka"
)

// An API in front of a consumer: the further the group is behind, the fewer requests are admitted. The cluster
// of this example does not exist, so the lag is unknown, and the limit stays.
func Example() {
	lag, err := weirkafka.NewLag(weirkafka.LagConfig{
		Brokers: []string{"127.0.0.1:1"}, Group: "indexer", Topics: []string{"documents"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lag.Close()
	poller, err := signal.NewPoller(signal.Config{Watches: []signal.Watch{{Signal: lag, Interval: 5 * time.Second}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer poller.Close()
	line, err := control.NewLagMap(control.LagMapConfig{Signal: lag.Name(), Target: 10_000, Critical: 100_000, Min: 10, Max: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	gate, err := limit.New(limit.Config{Controller: line, Signals: poller})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer gate.Close()

	permit, rejection := gate.Admit(context.Background(), weir.Work{Op: "POST /documents"})
	if rejection != nil {
		fmt.Println(rejection)
		return
	}
	defer permit.Done(weir.OK) // once the indexer has applied it
	fmt.Println(gate.Snapshot().Limit)
	// Output: 1000
}

// A record that the cluster never acknowledges is given up, and its permit comes back.
func ExampleProducer() {
	gate := weir.Must(limit.New(limit.Config{Name: "documents", Limit: 100}))
	defer gate.Close()
	client := weir.Must(kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.RecordDeliveryTimeout(time.Second)))
	defer client.Close()
	producer := &weirkafka.Producer{Client: client, Gate: gate}

	err := producer.ProduceSync(context.Background(), &kgo.Record{Topic: "documents", Value: []byte("...")})
	fmt.Println(weirkafka.Classify(err), gate.Snapshot().InFlight)
	// Output: overload 0
}

// Three lines give an HTTP handler back-pressure from a lag. The cluster of this example does not exist, so the
// lag is unknown, and the capacity stays.
func ExampleAdmission() {
	batches := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated) // once the processor has applied the batch
	})

	lag := weir.Must(weirkafka.NewLag(weirkafka.LagConfig{Brokers: []string{"127.0.0.1:1"}, Group: "processor", Topics: []string{"batches"}}))
	gate := weir.Must(weirkafka.NewAdmission(weirkafka.AdmissionConfig{Lag: lag, Logger: slog.New(slog.DiscardHandler)}))
	handler := weirhttp.Middleware(gate, weirhttp.WithWork(func(r *http.Request, w *weir.Work) { w.Tenant = r.PathValue("db") }))(batches)

	defer lag.Close()
	defer gate.Close()
	mux := http.NewServeMux()
	mux.Handle("POST /v1/databases/{db}/batches", handler)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest("POST", "/v1/databases/orders/batches", nil))
	orders, _ := gate.Database("orders")
	fmt.Println(answer.Code, orders.Key, orders.Admitted, orders.Limit)
	// Output: 201 orders 1 1000
}
