//go:build integration

package integration

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/weir-go/weir/internal/testbed/kafka"
)

// Everybody's clients work through the gateway, with quotas in force: Kafka's tools and its admin client, librdkafka by kcat and
// confluent-kafka, kafka-python, franz-go. None of them connects to a broker.
func TestClientsOfKafka(t *testing.T) {
	t.Parallel()
	server := startKafka(t, kafka.Config{Users: map[string]string{"user": "secret"}}) // there are ACLs then
	addr := startKafkaGateway(t, `
gates:
  topics:
    quota:
      rate: 1000/s
      burst: 10000
      by: [client]
      debt: true
      rules:
        - {client: java, rate: 2/s, burst: 10}
        - {client: old, rate: 2/s, burst: 10}
  in: {quota: {rate: 1000000000/s, by: [user, client]}}
  out: {quota: {rate: 1000000000/s, by: [user, client]}}
runtime_quotas: {file: quotas.json}
`, &behind{brokers: []string{server.Addr}, advertise: "localhost", quotas: "mutations: topics, produce: in, fetch: out"}).addr
	onlyGateways(t, kafka.Cluster{server})
	client := kafkaClient(t, kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("orders"))
	for _, topic := range []string{"orders", "kcat"} {
		if resp := createTopic(t, client, topic, 3); resp.Topics[0].ErrorCode != 0 {
			t.Fatalf("%s: %v", topic, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
		}
	}
	const records = 300
	for range records {
		client.Produce(t.Context(), kgo.StringRecord("one of many"), nil)
	}
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}

	t.Run("all", func(t *testing.T) { // it ends when they have
		t.Run("Kafka's tools", func(t *testing.T) {
			t.Parallel()
			useTools(t, server, addr)
		})
		t.Run("tools that verify", func(t *testing.T) {
			t.Parallel()
			useVerifiable(t, server, addr)
		})
		t.Run("Java's admin client", func(t *testing.T) {
			t.Parallel()
			isPatientInJava(t, server, addr)
		})
		t.Run("franz-go as of Kafka 2.6", func(t *testing.T) {
			t.Parallel()
			isDelayedAsOfOld(t, addr)
		})
		t.Run("kcat", func(t *testing.T) {
			t.Parallel()
			kcat(t, addr, records)
		})
		for _, script := range []string{"confluent", "kafka_python"} {
			t.Run(script, func(t *testing.T) {
				t.Parallel()
				pythonClient(t, script, addr, records)
			})
		}
	})
}

// kafkaTools are the tools in Kafka's jars: what is done with each, and what it says then.
var kafkaTools = []kafkaTool{
	{"kafka-topics", []toolStep{
		{"org.apache.kafka.tools.TopicCommand --bootstrap-server GATEWAY --create --topic topics --partitions 2", "Created topic topics"},
		{"org.apache.kafka.tools.TopicCommand --bootstrap-server GATEWAY --describe --topic topics", "PartitionCount: 2"},
		{"org.apache.kafka.tools.TopicCommand --bootstrap-server GATEWAY --alter --topic topics --partitions 5", ""},
		{"org.apache.kafka.tools.TopicCommand --bootstrap-server GATEWAY --describe --topic topics", "PartitionCount: 5"},
		{"org.apache.kafka.tools.TopicCommand --bootstrap-server GATEWAY --delete --topic topics", ""},
	}},
	{"kafka-configs", []toolStep{
		{"kafka.admin.ConfigCommand --bootstrap-server GATEWAY --alter --entity-type topics --entity-name orders --add-config retention.ms=86400000", "Completed updating config for topic orders"},
		{"kafka.admin.ConfigCommand --bootstrap-server GATEWAY --alter --entity-type users --entity-name user1 --entity-type clients --entity-name clientA " +
			"--add-config controller_mutation_rate=10,producer_byte_rate=10485760,request_percentage=50", "Completed updating config for user user1"},
		{"kafka.admin.ConfigCommand --bootstrap-server GATEWAY --describe --entity-type users --entity-name user1 --entity-type clients --entity-name clientA",
			"controller_mutation_rate=10.0.*request_percentage=50.0|request_percentage=50.0.*controller_mutation_rate=10.0"},
	}},
	{"kafka-acls", []toolStep{
		{"org.apache.kafka.tools.AclCommand --bootstrap-server GATEWAY --add --allow-principal User:user --operation Read --topic orders", "Adding ACLs"},
		{"org.apache.kafka.tools.AclCommand --bootstrap-server GATEWAY --list --topic orders", "principal=User:user, host=\\*, operation=READ"},
		{"org.apache.kafka.tools.AclCommand --bootstrap-server GATEWAY --remove --force --allow-principal User:user --operation Read --topic orders", ""},
	}},
	{"kafka-consumer-groups of the protocol classic", []toolStep{
		{"org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server GATEWAY --topic orders --from-beginning --max-messages 100 --group classic --command-property group.protocol=classic", "^([^\n]*\n){100}$"},
		{"org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server GATEWAY --describe --offsets --group classic", "classic +orders +2"},
		{"org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server GATEWAY --delete --group classic", "successful"},
	}},
	{"kafka-consumer-groups of the protocol consumer", []toolStep{
		{"org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server GATEWAY --topic orders --from-beginning --max-messages 100 --group consumer --command-property group.protocol=consumer", "^([^\n]*\n){100}$"},
		{"org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server GATEWAY --reset-offsets --to-earliest --execute --all-topics --group consumer", "consumer +orders +0 +0"},
		{"org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server GATEWAY --list --type", "consumer +Consumer"},
	}},
	{"kafka-console-share-consumer", []toolStep{
		{"kafka.admin.ConfigCommand --bootstrap-server GATEWAY --alter --entity-type groups --entity-name share --add-config share.auto.offset.reset=earliest", "Completed updating config for group share"},
		{"kafka.admin.ConfigCommand --bootstrap-server GATEWAY --describe --entity-type groups --entity-name share", "share.auto.offset.reset=earliest"},
		{"org.apache.kafka.tools.consumer.ConsoleShareConsumer --bootstrap-server GATEWAY --topic orders --group share --max-messages 100", "^([^\n]*\n){100}$"},
		{"org.apache.kafka.tools.consumer.group.ShareGroupCommand --bootstrap-server GATEWAY --describe --group share", "share +orders"},
	}},
	{"kafka-producer-perf-test", []toolStep{
		{"org.apache.kafka.tools.ProducerPerformance --topic orders --num-records 5000 --record-size 100 --throughput -1 --producer-props bootstrap.servers=GATEWAY acks=0", "5000 records sent"},
		{"org.apache.kafka.tools.ProducerPerformance --topic orders --num-records 5000 --record-size 100 --throughput -1 --producer-props bootstrap.servers=GATEWAY acks=all compression.type=zstd", "5000 records sent"},
		{"org.apache.kafka.tools.ProducerPerformance --topic orders --num-records 5000 --record-size 100 --throughput -1 --transactional-id perf --transaction-duration-ms 100 --producer-props bootstrap.servers=GATEWAY", "5000 records sent"},
		{"org.apache.kafka.tools.TransactionsCommand --bootstrap-server GATEWAY list", "perf"},
	}},
	{"kafka-metadata-quorum", []toolStep{
		{"org.apache.kafka.tools.MetadataQuorumCommand --bootstrap-server GATEWAY describe --status", "CurrentVoters: +\\[.*1"},
		{"org.apache.kafka.tools.MetadataQuorumCommand --bootstrap-server GATEWAY describe --replication", "Leader"},
	}},
}

var verifiable = kafkaTool{"kafka-verifiable-producer and -consumer", []toolStep{
	{"org.apache.kafka.tools.VerifiableProducer --bootstrap-server GATEWAY --topic orders --max-messages 100", `"sent":100,"acked":100`},
	{"org.apache.kafka.tools.VerifiableConsumer --bootstrap-server GATEWAY --topic orders --group-id verifiable --max-messages 100 --reset-policy earliest", `"name":"offsets_committed"`},
}}

type kafkaTool struct {
	name  string
	steps []toolStep
}

type toolStep struct{ command, says string }

// question is what a command has that only reads. Its answer may lag: the controller answers to a change, and brokers learn of it a
// moment later.
var question = regexp.MustCompile(" (--)?(describe|list)( |$)")

// lines are the commands of all steps for [tools]: questions with what they should say.
func (k kafkaTool) lines(addr string) (all []string) {
	for _, step := range k.steps {
		line := strings.ReplaceAll(step.command, "GATEWAY", addr)
		if question.MatchString(line) {
			line += "\n" + step.says
		}
		all = append(all, line)
	}
	return all
}

// check holds what is said against what should be.
func (k kafkaTool) check(t *testing.T, said []string) {
	t.Helper()
	t.Run(k.name, func(t *testing.T) {
		for i, step := range k.steps {
			if strings.Contains(said[i], failed) || !regexp.MustCompile(step.says).MatchString(said[i]) {
				t.Errorf("%s says nothing like %q:\n%s", step.command, step.says, said[i])
			}
		}
	})
}

// useTools takes all steps of tools that can share a Java machine. To start one costs more than what they do.
func useTools(t *testing.T, server *kafka.Server, addr string) {
	t.Helper()
	var lines []string
	for _, k := range kafkaTools {
		lines = append(lines, k.lines(addr)...)
	}
	said := tools(t, server, lines)
	for _, k := range kafkaTools {
		k.check(t, said[:len(k.steps)])
		said = said[len(k.steps):]
	}
}

// useVerifiable takes the steps of tools that say the last when their Java machine ends.
func useVerifiable(t *testing.T, server *kafka.Server, addr string) {
	t.Helper()
	var said []string
	for _, line := range verifiable.lines(addr) {
		class, args, _ := strings.Cut(line, " ")
		said = append(said, tool(t, server, class, strings.Fields(args)...))
	}
	verifiable.check(t, said)
}

// isPatientInJava shows Java's admin client below a quota: refused where it does not try again, and served where it does.
func isPatientInJava(t *testing.T, server *kafka.Server, addr string) {
	t.Helper()
	source, err := filepath.Abs(filepath.Join("testdata", "kafka", "AdminClient.java"))
	if err != nil {
		t.Fatal(err)
	}
	out := tool(t, server, source, addr, "java") // Java runs a source as it does a class

	const owed = 8000 // milliseconds: 16 partitions, of which two a second come back
	const refusal = "ThrottlingQuotaExceededException"
	last := 0
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		var step, result string
		var after, told int
		if _, err := fmt.Sscan(line, &step, &after, &result, &told); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		switch late := after >= owed; step {
		case "refused":
			if !late && (result != refusal || told > owed || told < owed-after) {
				t.Errorf("%s: and %d ms are owed", line, owed)
			}
		case "late": // the wait that is left is told, when its second has passed
			if !late && (result != refusal || told > owed) {
				t.Errorf("%s: and %d ms are owed", line, owed)
			}
		case "retried":
			if result != "ok" || after < owed {
				t.Errorf("%s: and %d ms are owed", line, owed)
			}
		default:
			if result != "ok" || after < last {
				t.Error(line)
			}
		}
		last = after
	}
	if n := strings.Count(out, "\n"); n != 6 {
		t.Errorf("%d steps: %s", n, out)
	}
}

// isDelayedAsOfOld shows that a client which does not know the error of a quota is served, and told to wait.
func isDelayedAsOfOld(t *testing.T, addr string) {
	t.Helper()
	client := kafkaClient(t, kgo.SeedBrokers(addr), kgo.ClientID("old"), kgo.MaxVersions(kversion.V2_6_0()))
	began := time.Now()
	createTopic(t, client, "old", 18)
	resp := createTopic(t, client, "older", 2)
	const owed = 5 * time.Second // 10 partitions
	told := time.Duration(resp.ThrottleMillis) * time.Millisecond
	if passed := time.Since(began); resp.Topics[0].ErrorCode != 0 || told > owed || told < owed-passed {
		t.Errorf("after %v: %v, %v to wait", passed, kerr.ErrorForCode(resp.Topics[0].ErrorCode), told)
	}
}

// pythonClient fills and reads a topic with a client in Python.
func pythonClient(t *testing.T, script, addr string, records int) {
	t.Helper()
	python := filepath.Join(filepath.Dir(part(t, "gunicorn")), "..", "venv", "bin", "python")
	out, err := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "kafka", script+".py"), addr, script, strconv.Itoa(records)).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "True\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// kcat lists, fills and reads a topic, alone and as a group. By itself it waits for brokers for 5 s only.
func kcat(t *testing.T, addr string, records int) {
	t.Helper()
	run := func(in string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), part(t, "kcat"), append([]string{"-b", addr, "-m", "60", "-X", "broker.address.family=v4"}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		said := new(tail)
		cmd.Stderr = said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("kcat %v: %v\n%s", args, err, said)
		}
		return string(out)
	}
	if out := run("", "-L"); !strings.Contains(out, "at localhost:") || strings.Contains(out, "127.0.0.1") && !strings.Contains(out, addr) {
		t.Errorf("kcat -L: %s", out)
	}
	run(strings.Repeat("one of many\n", records), "-P", "-t", "kcat", "-z", "gzip")
	for _, args := range [][]string{{"-C", "-t", "kcat", "-o", "beginning"}, {"-X", "auto.offset.reset=earliest", "-G", "kcat", "kcat"}} {
		if out := run("", append([]string{"-e", "-q", "-c", strconv.Itoa(records)}, args...)...); strings.Count(out, "one of many\n") != records {
			t.Errorf("kcat %v reads %d of %d", args, strings.Count(out, "one of many\n"), records)
		}
	}
}
