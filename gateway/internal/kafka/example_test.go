package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/kafka"
)

// quiet is an accept.Log.
type quiet struct{}

func (quiet) ConnectionRefused(*weir.Rejection, netip.AddrPort, bool) {}
func (quiet) CertificateRefused(string, string, net.Addr, error)      {}
func (quiet) AuthorityExpired(string, string)                         {}
func (quiet) CertificateExpired(string, time.Time)                    {}

// A client that knows only the gateway finds the node of a cluster.
func Example() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cluster.Close()
	k := config.Kafka{Bootstrap: cluster.ListenAddrs(), Nodes: &config.KafkaNodes{Ports: freePort(), Advertise: "localhost"}}
	k.Listen = new(config.KafkaListen)
	k.Listen.SetDefaults()
	k.Listen.Address = "127.0.0.1:0"
	conns, err := accept.Open(accept.Options{Config: k.Listen.Listener(k.Listen.Address), Log: quiet{}, Bare: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	gateway, err := kafka.New(kafka.Options{
		Cluster: "orders", Config: k, Conns: conns, Logger: slog.New(slog.DiscardHandler),
		Open: func(address string, in *accept.Listener) (*accept.Listener, error) {
			return accept.Open(accept.Options{Config: k.Listen.Listener(address), Log: quiet{}, Bare: true, With: conns, Share: in})
		},
		Failed: func(broker, failure string, err error) { fmt.Println(broker, failure, err) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	go gateway.Serve(conns)

	client, err := kgo.NewClient(kgo.SeedBrokers(conns.Addr().String()))
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := kmsg.NewPtrMetadataRequest().RequestWith(context.Background(), client)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(answer.Brokers), "node at", answer.Brokers[0].Host)
	client.Close()
	_ = conns.Close()
	fmt.Println(gateway.Close())
	// Output:
	// 1 node at localhost
	// <nil>
}

// freePort is a range of one port that is free now.
func freePort() string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err.Error()
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	return fmt.Sprintf("%d-%d", port, port)
}
