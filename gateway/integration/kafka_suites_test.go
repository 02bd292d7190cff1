//go:build integration && suites

package integration

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testbed/kafka"
)

// franz-go's own tests, at a broker and through the gateway: as they are, with connections that break every second, and with TLS and
// quotas in force. Who logs in does so with SCRAM. What fails at the broker as well is not the gateway's. make test-kafka-suites runs them.
func TestFranzGoSuites(t *testing.T) {
	t.Run("plain", func(t *testing.T) { franzGoTwice(t, false, nil) })
	// Those of its tests that break connections.
	t.Run("chaos", func(t *testing.T) { franzGoTwice(t, false, []string{"-run=Group"}, "KGO_TEST_CHAOS=1") })
	// One test dials by itself, which franz-go refuses beside settings of TLS.
	t.Run("TLS and quotas", func(t *testing.T) { franzGoTwice(t, true, []string{"-skip=^TestIssue769$"}) })
}

// franzGoTwice runs franz-go's tests at a broker, and through a gateway before it. Now and then a broker of Kafka 4.2 deadlocks in a share
// group: SharePartition and DelayedShareFetch take their locks in either order. Then it accepts no connection any more, and what it
// leaves unanswered is nobody else's fault. So those runs count for nothing, and the next have another broker.
func franzGoTwice(t *testing.T, guards bool, args []string, env ...string) {
	for try := range 4 {
		cluster := startKafka(t, kafka.Config{Users: map[string]string{"reader": "secret"}})
		open := &behind{name: "open", brokers: []string{cluster.Addr}}
		login := &behind{name: "login", brokers: []string{cluster.SASL}, user: "reader", password: "secret"}
		guarded := slices.Clone(env)
		if guards {
			cert := newCertificate(t, t.TempDir(), 1)
			open.cert, open.quotas = cert, "mutations: topics, produce: in, fetch: out"
			guarded = append(guarded, "KGO_TEST_TLS=ca:"+cert.cert)
		}
		startKafkaGateway(t, `
gates:
  topics: {quota: {rate: 1000000/s, by: [user, client], debt: true}}
  in: {quota: {rate: 1000000000/s, by: [user, client]}}
  out: {quota: {rate: 1000000000/s, by: [user, client]}}
`, open, login)

		bare := franzGo(t, append(env, "KGO_SEEDS="+cluster.Addr, "KGO_TEST_SCRAM_SEEDS="+cluster.SASL), args)
		through := franzGo(t, append(guarded, "KGO_SEEDS="+open.addr, "KGO_TEST_SCRAM_SEEDS="+login.addr), args)
		if !deadlocked(t, cluster) {
			through.compare(t, bare)
			return
		}
		t.Logf("try %d counts for nothing: the broker has deadlocked", try+1)
	}
	t.Error("each of four brokers has deadlocked, so nothing is known about the gateway")
}

// deadlocked asks the JDK whether threads of a broker wait for each other.
func deadlocked(t *testing.T, broker *kafka.Server) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "jstack", strconv.Itoa(broker.Pid())).CombinedOutput()
	if err != nil {
		t.Fatalf("jstack: %v; scripts/parts kafka-suites fetches what it needs\n%.2000s", err, out)
	}
	_, deadlock, found := strings.Cut(string(out), "Java-level deadlock")
	if found {
		t.Logf("jstack: %.4000s", deadlock)
	}
	return found
}

// franzGo runs franz-go's tests, from the module cache.
func franzGo(t *testing.T, env, args []string) *suite {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"test", "-json", "-count=1", "-timeout=10m"}, args, []string{"github.com/twmb/franz-go/pkg/kgo"})...)
	cmd.Env = slices.Concat(os.Environ(), []string{"KGO_TEST_RF=1", "KGO_TEST_RECORDS=20000", "KGO_TEST_SCRAM=reader:secret", "KGO_LOG_LEVEL=none"}, env)
	cmd.WaitDelay = time.Minute
	var out, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &trouble
	began := time.Now()
	err := cmd.Run() // the failures stand in its output
	s := &suite{results: map[string]string{}, output: map[string]string{}, took: time.Since(began)}
	for lines := json.NewDecoder(&out); ; {
		var line struct{ Action, Test, Output string }
		if err := lines.Decode(&line); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch line.Action {
		case "output", "build-output":
			s.output[line.Test] += line.Output
		case "pass", "fail", "skip":
			if line.Test != "" {
				s.results[line.Test] = line.Action
			}
		}
	}
	if len(s.results) == 0 {
		t.Fatalf("%v; no test ran:\n%s%s", err, trouble.String(), s.output[""])
	}
	return s
}

// Kafka's own tests, with a gateway before the brokers that each starts. Those that fail run at the brokers too: what fails there as well is
// not the gateway's.
func TestKafkaSuites(t *testing.T) {
	jars, err := filepath.Abs(filepath.Join("..", "..", ".cache", "kafka-suites"))
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob(filepath.Join("testdata", "kafka", "suites", "*.java"))
	if err != nil {
		t.Fatal(err)
	}
	classes := t.TempDir()
	compile := exec.CommandContext(t.Context(), "javac", append([]string{"-nowarn", "-d", classes, "-cp", filepath.Join(jars, "*")}, sources...)...)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("javac: %v; scripts/parts kafka-suites fetches what it needs\n%s", err, out)
	}
	path := classes + ":" + filepath.Join(jars, "*")
	for _, class := range []struct{ name, of string }{
		{"Transactions", "kafka.api.TransactionsTest"},
		{"ProducerSend", "kafka.api.PlaintextProducerSendTest"},
		{"Consumer", "kafka.api.PlaintextConsumerTest"},
		{"AdminIntegration", "kafka.api.PlaintextAdminIntegrationTest"},
		{"SaslPlain", "kafka.api.SaslPlainSslEndToEndAuthorizationTest"},
		{"SaslScram", "kafka.api.SaslScramSslEndToEndAuthorizationTest"},
		{"SaslOAuthBearer", "kafka.api.SaslOAuthBearerSslEndToEndAuthorizationTest"},
		{"DelegationToken", "kafka.api.DelegationTokenEndToEndAuthorizationTest"},
		{"ClientQuotas", "org.apache.kafka.server.quota.ClientQuotasRequestTest"},
	} {
		t.Run(class.name, func(t *testing.T) {
			guarded := junit(t, path, "BehindGateway$"+class.name)
			if guarded.count("fail") > 0 {
				guarded.compare(t, junit(t, path, class.of))
			} else {
				t.Logf("%d tests pass in %v, %d are skipped", guarded.count("pass"), guarded.took.Round(time.Second), guarded.count("skip"))
			}
		})
	}
}

// junit runs the tests of a class of Java.
func junit(t *testing.T, path, class string) *suite {
	t.Helper()
	folder := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "java", "-cp", path, "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		"-Dweir="+binary, "-Dweir.log="+filepath.Join(folder, "weir.log"), "org.junit.platform.console.ConsoleLauncher", "execute",
		"--config=junit.jupiter.extensions.autodetection.enabled=true", "--exclude-methodname=.*BadIP.*", // they connect to other networks
		"--select-class="+class, "--reports-dir="+folder, "--details=none")
	cmd.WaitDelay = time.Minute
	began := time.Now()
	out, err := cmd.CombinedOutput() // the failures stand in its report
	s := &suite{results: map[string]string{}, output: map[string]string{}, took: time.Since(began)}
	text, reportErr := os.ReadFile(filepath.Join(folder, "TEST-junit-jupiter.xml"))
	if reportErr != nil {
		t.Fatalf("%v; %v\n%.8000s", err, reportErr, out)
	}
	var report struct {
		Tests []struct {
			Name    string    `xml:"name,attr"`
			Failure string    `xml:"failure"`
			Error   string    `xml:"error"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	for _, test := range report.Tests {
		switch s.output[test.Name] = test.Failure + test.Error; {
		case s.output[test.Name] != "":
			s.results[test.Name] = "fail"
		case test.Skipped != nil:
			s.results[test.Name] = "skip"
		default:
			s.results[test.Name] = "pass"
		}
	}
	if len(s.results) == 0 {
		t.Fatalf("%v; no test ran:\n%.8000s", err, out)
	}
	return s
}

// suite is what came of the tests of others.
type suite struct {
	results map[string]string // pass, fail or skip
	output  map[string]string
	took    time.Duration
}

func (s *suite) count(result string) (n int) {
	for _, r := range s.results {
		if r == result {
			n++
		}
	}
	return n
}

// failsRightly are tests of others that pass at the brokers and not behind the gateway, and why that is right.
var failsRightly = map[string]string{
	"testAbortTransaction":     "it sends WriteTxnMarkers, which brokers send to each other and the gateway lets nobody send",
	"testAlterIpQuotasRequest": "it looks for the quota inside the broker, and the gateway keeps it",
}

// compare fails for each test that does not do behind the gateway what it does without.
func (s *suite) compare(t *testing.T, bare *suite) {
	t.Helper()
	t.Logf("%d tests pass in %v, %d fail, %d are skipped; without the gateway %d in %v, %d and %d", s.count("pass"), s.took.Round(time.Second), s.count("fail"), s.count("skip"),
		bare.count("pass"), bare.took.Round(time.Second), bare.count("fail"), bare.count("skip"))
	if bare.count("pass") == 0 {
		t.Error("no test passes without the gateway, so something that they need is missing")
	}
	for _, test := range slices.Sorted(maps.Keys(bare.results)) {
		known := ""
		for name, why := range failsRightly {
			if strings.HasPrefix(test, name+"(") {
				known = why
			}
		}
		switch was, is := bare.results[test], s.results[test]; {
		case known != "" && is == "pass":
			t.Errorf("%s passes; take it out of failsRightly", test)
		case known != "" && is == "fail":
			t.Logf("%s fails: %s", test, known)
		case is == was && is == "fail":
			t.Logf("%s fails without the gateway as well: %.300s", test, bare.output[test])
		case is != was && was == "fail":
			t.Logf("%s fails without the gateway, and passes behind it", test)
		case is == "":
			t.Errorf("%s does not run", test)
		case is != was:
			t.Errorf("%s: %s, without the gateway %s\n%.8000s", test, is, was, s.output[test])
		}
	}
}
