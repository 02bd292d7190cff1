//go:build unix

// Package kafka starts an Apache Kafka of its own: for tests, benchmarks and examples. Each broker is one
// process, broker and controller (KRaft), with a folder of its own and free ports of a loopback
// address. What brokers keep for themselves has a copy on each.
package kafka

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/process"
)

// Config says which broker to start.
type Config struct {
	// Jars is the folder with Kafka's jars. make parts fills .cache/kafka.
	Jars string
	// Ports are those to choose from. Processes that run side by side use different ranges.
	Ports *freeport.Range
	// Users, if there are any, may log in at Server.SASL with PLAIN or SCRAM: names and passwords, of
	// letters and digits. OAUTHBEARER takes tokens there that nobody has signed. All have no rights but
	// those that ACLs give them. Clients of Server.Addr, who do not log in, may do everything.
	Users map[string]string
	// Certificate, if there is one, is what the broker shows at Server.TLS, where Users log in with
	// SCRAM. It is a key in PKCS #8 and its certificates, in PEM.
	Certificate []byte
	// Settings are name=value, after those that every such broker has. It makes no topics by itself.
	Settings []string
	// Java are flags of the broker's Java machine, after those that every such broker has.
	Java []string
}

// Server is a broker that was started.
type Server struct {
	// ID is the broker's: 1, or in a [Cluster] one more than its place.
	ID int
	// Addr is where clients connect, host:port. No password, no TLS.
	Addr string
	// SASL is where Config.Users log in; empty without any.
	SASL string
	// TLS is where they do so with TLS and SCRAM-SHA-256 or -512; empty without a Config.Certificate.
	TLS string

	cfg     Config
	folder  string
	within  string // where brokers talk to each other
	control string // where controllers do
	process *process.Process
}

// Cluster is brokers that were started as one, in the order of their ids.
type Cluster []*Server

// Find returns the folder with the jars that make parts has fetched. It looks for .cache/kafka in the
// folder where the program runs and in those around it.
func Find() (string, error) {
	jar := process.Find(".cache/kafka/kafka_*.jar")
	if jar == "" {
		return "", errors.New("there is no Kafka in .cache/kafka: make parts fetches it, with Java 17 and Maven")
	}
	return filepath.Dir(jar), nil
}

// Start starts a broker and returns when it is in its own answer about who the brokers are. The broker
// outlives ctx.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	c, err := StartCluster(ctx, 1, cfg)
	if err != nil {
		return nil, err
	}
	return c[0], nil
}

// StartCluster is Start for several brokers. Each has a loopback address of its own, from 127.0.0.1 on,
// which the system has to have: Linux has all of 127.0.0.0/8.
func StartCluster(ctx context.Context, brokers int, cfg Config) (_ Cluster, err error) {
	var c Cluster
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	for id := 1; id <= brokers; id++ {
		s := &Server{ID: id, cfg: cfg}
		if s.folder, err = os.MkdirTemp("", "weir-kafka-"); err != nil {
			return nil, err
		}
		c = append(c, s)
		if err := s.findPorts(); err != nil {
			return nil, err
		}
	}
	cluster := drawn()
	for _, s := range c {
		if err := s.configure(c); err != nil {
			return nil, err
		}
		if err := s.format(ctx, cluster); err != nil {
			return nil, err
		}
	}
	return c, c.each(func(s *Server) error { return s.launch(ctx) })
}

// drawn is an identifier that nobody else has.
func drawn() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	id[0] &= 0x7f           // or one in 64 would begin with a hyphen, which the tool takes for a flag
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// checkpoints are what Kafka's tool has written for brokers of this process, by their users. A Java machine for each broker
// would cost a second, and write the same.
var checkpoints struct {
	sync.Mutex
	of map[string][]byte
}

// format prepares the disk of a new broker: as the tool does it, with an identifier of the broker's own.
func (s *Server) format(ctx context.Context, cluster string) error {
	data := filepath.Join(s.folder, "data")
	file := filepath.Join(data, "bootstrap.checkpoint")
	checkpoints.Lock()
	defer checkpoints.Unlock()
	key := fmt.Sprint(s.cfg.Jars, s.cfg.Users)
	text, known := checkpoints.of[key]
	if !known {
		args := []string{"format", "-t", cluster, "-c", s.file()}
		for name, password := range s.cfg.Users {
			for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
				args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, name, password))
			}
		}
		out, err := s.Tool(ctx, "kafka.tools.StorageTool", args...)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		if text, err = os.ReadFile(file); err != nil {
			return err
		}
		if checkpoints.of == nil {
			checkpoints.of = map[string][]byte{}
		}
		checkpoints.of[key] = text
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	own := fmt.Appendf(nil, "version=1\ncluster.id=%s\nnode.id=%d\ndirectory.id=%s\n", cluster, s.ID, drawn())
	return errors.Join(os.WriteFile(filepath.Join(data, "meta.properties"), own, 0o600), os.WriteFile(file, text, 0o600))
}

// each does something with all brokers at once.
func (c Cluster) each(do func(*Server) error) error {
	errs := make([]error, len(c))
	var all sync.WaitGroup
	for i, s := range c {
		all.Go(func() { errs[i] = do(s) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Stop ends all brokers, and removes their folders. Those of a cluster are killed: one that ends by itself waits for the
// others, which are ending too.
func (c Cluster) Stop() error {
	return c.each(func(s *Server) error {
		if s.process != nil && len(c) > 1 {
			s.process.End = os.Kill
		}
		return s.Stop()
	})
}

// findPorts finds an address for each listener.
func (s *Server) findPorts() error {
	for _, to := range []*string{&s.Addr, &s.within, &s.control, &s.SASL, &s.TLS} {
		if to == &s.SASL && len(s.cfg.Users) == 0 || to == &s.TLS && len(s.cfg.Certificate) == 0 {
			continue
		}
		addr, err := s.cfg.Ports.Addr()
		if err != nil {
			return err
		}
		_, port, _ := net.SplitHostPort(addr) // it is one
		*to = fmt.Sprintf("127.0.0.%d:%s", s.ID, port)
	}
	return nil
}

// configure writes the file of a broker of a cluster.
func (s *Server) configure(c Cluster) error {
	voters := make([]string, len(c))
	for i, v := range c {
		voters[i] = fmt.Sprintf("%d@%s", v.ID, v.control)
	}
	copies, inSync := strconv.Itoa(len(c)), strconv.Itoa(max(len(c)-1, 1))
	listeners := "PLAIN://" + s.Addr + ",WITHIN://" + s.within
	lines := []string{
		"process.roles=broker,controller",
		"node.id=" + strconv.Itoa(s.ID),
		"controller.quorum.voters=" + strings.Join(voters, ","),
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=WITHIN",
		"log.dirs=" + filepath.Join(s.folder, "data"),
		"auto.create.topics.enable=false",
		"offsets.topic.num.partitions=1", "offsets.topic.replication.factor=" + copies,
		"transaction.state.log.num.partitions=1", "transaction.state.log.replication.factor=" + copies, "transaction.state.log.min.isr=" + inSync,
		"share.coordinator.state.topic.num.partitions=1", "share.coordinator.state.topic.replication.factor=" + copies, "share.coordinator.state.topic.min.isr=" + inSync,
		"group.initial.rebalance.delay.ms=0",
		"log.cleaner.enable=false",
		"metadata.max.idle.interval.ms=0", // no empty records in between: they are a third of what an idle broker computes, or more
	}
	if len(c) > 1 {
		// A busy machine makes a broker late, not dead. One that is alone, and was killed, would wait as long for itself.
		lines = append(lines, "broker.session.timeout.ms=60000")
	}
	if s.SASL != "" {
		listeners += ",SASL://" + s.SASL
		var users strings.Builder
		for name, password := range s.cfg.Users {
			fmt.Fprintf(&users, " user_%s=\"%s\"", name, password)
		}
		lines = append(lines,
			"listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
			"listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required"+users.String()+";",
			"listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
			"listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
			"listener.name.sasl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
			"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users=User:ANONYMOUS")
	}
	if s.TLS != "" {
		listeners += ",TLS://" + s.TLS
		if err := os.WriteFile(s.certificate(), s.cfg.Certificate, 0o600); err != nil {
			return err
		}
		lines = append(lines,
			"listener.name.tls.ssl.keystore.type=PEM", "listener.name.tls.ssl.keystore.location="+s.certificate(),
			"listener.name.tls.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
			"listener.name.tls.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
			"listener.name.tls.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;")
	}
	lines = append(lines,
		"listeners="+listeners+",CONTROLLER://"+s.control,
		"advertised.listeners="+listeners,
		"listener.security.protocol.map=PLAIN:PLAINTEXT,WITHIN:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL,CONTROLLER:PLAINTEXT")
	lines = append(lines, s.cfg.Settings...)
	return os.WriteFile(s.file(), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

func (s *Server) file() string { return filepath.Join(s.folder, "server.properties") }

func (s *Server) certificate() string { return filepath.Join(s.folder, "broker.pem") }

// Command is one of Kafka's own tools, such as org.apache.kafka.tools.TopicCommand, ready to run. It warns of nothing, and
// starts fast rather than runs fast.
func (s *Server) Command(ctx context.Context, class string, args ...string) *exec.Cmd {
	return s.java(ctx, "256m", nil, class, args...)
}

func (s *Server) java(ctx context.Context, heap string, flags []string, class string, args ...string) *exec.Cmd {
	all := slices.Concat([]string{"-cp", filepath.Join(s.cfg.Jars, "*"), "-Xmx" + heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error"}, s.archive(), flags, []string{class}, args)
	cmd := exec.CommandContext(ctx, "java", all...)
	cmd.Dir = s.folder
	return cmd
}

// archive has the flags for what make parts has kept of the classes, which halves what a start costs. A Java that it is
// not for starts without it, and would say so among what a tool prints.
func (s *Server) archive() []string {
	file := filepath.Join(s.cfg.Jars, "classes.jsa")
	if _, err := os.Stat(file); err != nil {
		return nil
	}
	return []string{"-XX:SharedArchiveFile=" + file, "-Xlog:disable"}
}

func (s *Server) launch(ctx context.Context) error {
	// Not by the context: Stop ends it, after whoever uses it.
	p, err := process.Start("Kafka", s.java(context.WithoutCancel(ctx), "512m", s.cfg.Java, "kafka.Kafka", s.file()))
	if err != nil {
		return err
	}
	s.process = p
	return p.Until(ctx, "name itself as a broker at "+s.Addr, func() bool {
		all, err := brokers(s.Addr)
		return err == nil && slices.Contains(all, s.ID)
	})
}

// Tool runs a [Server.Command], and returns what it prints.
func (s *Server) Tool(ctx context.Context, class string, args ...string) (string, error) {
	cmd := s.Command(ctx, class, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", class, strings.Join(args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return string(out), nil
}

// Pid is the identifier of the broker's process.
func (s *Server) Pid() int { return s.process.Pid() }

// Alive is an error if the broker has ended.
func (s *Server) Alive() error { return s.process.Alive() }

// Restart ends the broker, and starts it anew with the same addresses and data.
func (s *Server) Restart(ctx context.Context) error {
	s.process.Stop()
	return s.launch(ctx)
}

// Move is Restart with another address for clients, host:port.
func (s *Server) Move(ctx context.Context, addr string) error {
	s.process.Stop()
	text, err := os.ReadFile(s.file())
	if err != nil {
		return err
	}
	text = bytes.ReplaceAll(text, []byte("PLAIN://"+s.Addr), []byte("PLAIN://"+addr))
	if err := os.WriteFile(s.file(), text, 0o600); err != nil {
		return err
	}
	s.Addr = addr
	return s.launch(ctx)
}

// Lose kills the broker, takes the records of a partition from an offset on, and starts it anew. So does a machine whose
// disk had not got them when its power went. The partition has one segment, and no batch goes over the offset.
func (s *Server) Lose(ctx context.Context, topic string, partition int32, offset int64) error {
	s.process.End = os.Kill
	s.process.Stop()
	log := filepath.Join(s.folder, "data", fmt.Sprintf("%s-%d", topic, partition), fmt.Sprintf("%020d.log", 0))
	records, err := os.ReadFile(log)
	if err != nil {
		return err
	}
	const head = 12 // of a batch: the offset of its first record, and how many bytes follow
	at := 0
	for at+head <= len(records) && int64(binary.BigEndian.Uint64(records[at:])) < offset {
		at += head + int(binary.BigEndian.Uint32(records[at+8:]))
	}
	if at >= len(records) {
		return fmt.Errorf("%s-%d has nothing at offset %d", topic, partition, offset)
	}
	if err := os.Truncate(log, int64(at)); err != nil {
		return err
	}
	return s.launch(ctx)
}

// Stop ends the broker, and removes its folder.
func (s *Server) Stop() error {
	s.process.Stop()
	return os.RemoveAll(s.folder)
}

// brokers asks the broker at addr for the ids of all brokers: Metadata, version 4, about no topic.
func brokers(addr string) (ids []int, err error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	const correlation = 7
	ask := binary.BigEndian.AppendUint16(nil, 3) // Metadata
	ask = binary.BigEndian.AppendUint16(ask, 4)
	ask = binary.BigEndian.AppendUint32(ask, correlation)
	ask = binary.BigEndian.AppendUint16(ask, 0) // the client has no name
	ask = binary.BigEndian.AppendUint32(ask, 0) // no topic
	ask = append(ask, 0)                        // and none is to be made
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(ask))), ask...)); err != nil {
		return nil, err
	}
	var head struct{ Size, Correlation, Throttled, Brokers int32 }
	if err := binary.Read(c, binary.BigEndian, &head); err != nil {
		return nil, err
	}
	if head.Correlation != correlation {
		return nil, fmt.Errorf("an answer to request %d, not %d", head.Correlation, correlation)
	}
	for range head.Brokers {
		var id, port int32
		var host, rack int16 // their lengths
		if err := errors.Join(binary.Read(c, binary.BigEndian, &id), binary.Read(c, binary.BigEndian, &host)); err != nil {
			return nil, err
		}
		if _, err := io.CopyN(io.Discard, c, int64(host)); err != nil {
			return nil, err
		}
		if err := errors.Join(binary.Read(c, binary.BigEndian, &port), binary.Read(c, binary.BigEndian, &rack)); err != nil {
			return nil, err
		}
		if _, err := io.CopyN(io.Discard, c, int64(max(rack, 0))); err != nil {
			return nil, err
		}
		ids = append(ids, int(id))
	}
	return ids, nil
}
