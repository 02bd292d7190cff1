package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/testbed/cores"
	"github.com/weir-go/weir/internal/testbed/kafka"
)

// Topics.
const (
	written, read = "written", "read"
	partitions    = 3
	stored        = 256 << 20 // bytes of records in read, about
)

// site is a broker, and what may stand before it.
type site struct {
	*bench
	broker *kafka.Server
	direct way // without TLS

	shared     bool // by all processes: the cores
	folder     string
	cert, key  string // files
	roots      *tls.Config
	test, core int // of the relay, of broker and client
}

// way is how a client reaches the broker.
type way struct {
	*rig.Process // of the relay, nil for none
	name, addr   string
	tls          *tls.Config // nil for plain TCP
	fixed        bool        // addr is dialled whatever address an answer names
}

// newSite starts the broker, and fills the topic that is read.
func newSite(ctx context.Context, b *bench, shared bool) (_ *site, err error) {
	s := &site{bench: b, shared: shared}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.folder, err = os.MkdirTemp("", "weir-bench"); err != nil {
		return nil, err
	}
	certificate, err := s.certify()
	if err != nil {
		return nil, err
	}
	if err := s.pin(); err != nil {
		return nil, err
	}
	jars, err := kafka.Find()
	if err != nil {
		return nil, err
	}
	s.broker, err = kafka.Start(ctx, kafka.Config{Jars: jars, Ports: &rig.Ports, Certificate: certificate, Java: b.java, Settings: []string{
		"listener.security.protocol.map=PLAIN:PLAINTEXT,WITHIN:PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT",
		"log.retention.check.interval.ms=500", "log.segment.delete.delay.ms=500", "log.initial.task.delay.ms=500",
	}})
	if err != nil {
		return nil, err
	}
	s.direct = way{name: "direct", addr: s.broker.Addr}
	return s, s.fill(ctx)
}

// pin leaves a core to the relay. What is started later by this process stays on the other one, unless it says otherwise.
func (s *site) pin() (err error) {
	if s.shared {
		return nil
	}
	if s.test, s.core, err = cores.Pair(); err != nil {
		return err
	}
	runtime.GOMAXPROCS(1)
	return cores.PinSelf(s.core)
}

// layout says who shares the cores.
func (s *site) layout() string {
	switch {
	case s.shared:
		return "relay, broker and client share all cores"
	case s.test == s.core:
		return "one core for everything"
	}
	return "a core for the relay, one for broker and client together"
}

func (s *site) close() error {
	var err error
	if s.broker != nil {
		err = s.broker.Stop()
	}
	return errors.Join(err, os.RemoveAll(s.folder))
}

// fill makes the topics, and writes what is read.
func (s *site) fill(ctx context.Context) error {
	client, err := s.direct.client(kgo.DefaultProduceTopic(read))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := makeTopics(ctx, client); err != nil {
		return err
	}
	_, err = produce(ctx, client, func(sent int64) bool { return sent < stored })
	return err
}

// makeTopics makes the topic that is written, which is soon forgotten, and the one that is read.
func makeTopics(ctx context.Context, client *kgo.Client) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range []string{written, read} {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
		if name == written {
			topic.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "segment.bytes", Value: kmsg.StringPtr("33554432")}, {Name: "retention.bytes", Value: kmsg.StringPtr("67108864")}}
		}
		req.Topics = append(req.Topics, topic)
	}
	made, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, t := range made.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return fmt.Errorf("topic %s: %w", t.Topic, err)
		}
	}
	return nil
}

// client returns a client of Kafka that goes this way.
func (w *way) client(opts ...kgo.Opt) (*kgo.Client, error) {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if w.fixed {
			addr = w.addr
		}
		if w.tls != nil {
			return (&tls.Dialer{Config: w.tls}).DialContext(ctx, network, addr)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	return kgo.NewClient(append(opts, kgo.SeedBrokers(w.addr), kgo.Dialer(dial), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
}

// start starts a relay on its core, and returns when it accepts connections.
func (s *site) start(w *way, begin func() (*rig.Process, error)) (err error) {
	launch := func() error {
		w.Process, err = begin()
		return err
	}
	if s.shared {
		return launch()
	}
	return cores.Pinned(s.test, launch)
}

// throughWeir starts the gateway.
func (s *site) throughWeir(ctx context.Context, withTLS bool) (w way, err error) {
	first, err1 := nodePorts(1)
	bootstrap, err2 := rig.Ports.Addr()
	if err := errors.Join(err1, err2); err != nil {
		return w, err
	}
	w = way{name: "weir", addr: bootstrap}
	listen := fmt.Sprintf("address: %q", bootstrap)
	if withTLS {
		w.tls = s.roots
		listen += fmt.Sprintf(", tls: {cert: %q, key: %q}", s.cert, s.key)
	}
	file := fmt.Sprintf("admin: {address: off}\nkafka:\n  bench:\n    bootstrap: [%q]\n    listen: {%s, max_connections: 10000}\n    nodes: {ports: %d-%d, advertise: 127.0.0.1}\n",
		s.broker.Addr, listen, first-1, first)
	return w, s.start(&w, func() (*rig.Process, error) { return rig.StartWeir(ctx, s.weir, bootstrap, file) })
}

// throughNginx starts nginx, as one process that relays TCP.
func (s *site) throughNginx(ctx context.Context, withTLS bool) (w way, err error) {
	program, err1 := filepath.Abs(s.nginx)
	addr, err2 := rig.Ports.Addr()
	if err := errors.Join(err1, err2); err != nil {
		return w, err
	}
	w = way{name: "nginx", addr: addr, fixed: true}
	listen := addr
	if withTLS {
		w.tls = s.roots
		listen += fmt.Sprintf(" ssl;\n    ssl_certificate %s;\n    ssl_certificate_key %s", s.cert, s.key)
	}
	file := filepath.Join(s.folder, fmt.Sprintf("nginx-%d.conf", port(addr)))
	conf := fmt.Sprintf(`load_module %s;
daemon off;
master_process off;
error_log stderr;
pid %s.pid;
worker_rlimit_nofile 20000;
events { worker_connections 20000; }
stream {
  server {
    listen %s;
    proxy_pass %s;
    proxy_timeout 1h;
  }
}
`, filepath.Join(filepath.Dir(program), "ngx_stream_module.so"), file, listen, s.broker.Addr)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return w, err
	}
	return w, s.start(&w, func() (*rig.Process, error) { return rig.StartListening(ctx, addr, program, "-c", file) })
}

// cpu is the CPU time that the relay has used so far.
func (w *way) cpu() time.Duration {
	if w.Process == nil {
		return 0
	}
	return w.Usage().CPU
}

// certify writes a certificate for the loopback address and its key into files, and returns both.
func (s *site) certify() ([]byte, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err1 := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	pkcs8, err2 := x509.MarshalPKCS8PrivateKey(private)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	cert, key := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	s.cert, s.key = filepath.Join(s.folder, "cert.pem"), filepath.Join(s.folder, "key.pem")
	s.roots = &tls.Config{RootCAs: x509.NewCertPool()}
	s.roots.RootCAs.AppendCertsFromPEM(cert)
	return append(key, cert...), errors.Join(os.WriteFile(s.cert, cert, 0o600), os.WriteFile(s.key, key, 0o600))
}

// nodePorts finds free ports, one after the other, for the nodes from 1 on.
func nodePorts(nodes int) (first int, err error) {
	for found := 0; found < nodes; {
		addr, err := rig.Ports.Addr()
		if err != nil {
			return 0, err
		}
		if found == 0 || port(addr) != first+found {
			first, found = port(addr), 0
		}
		found++
	}
	return first, nil
}

func port(addr string) int {
	_, p, _ := net.SplitHostPort(addr) // it is one of rig.Ports
	n, _ := strconv.Atoi(p)
	return n
}
