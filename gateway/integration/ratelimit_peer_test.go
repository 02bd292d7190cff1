//go:build integration

package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ratelimitModule returns the directory of envoyproxy/ratelimit's module, with its examples.
func ratelimitModule(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("../../.cache/bin/ratelimit"); err != nil && os.Getenv("CI") == "" {
		t.Skip("there is no envoyproxy/ratelimit in .cache/bin: make parts builds it")
	}
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/ratelimit")
	cmd.Dir, cmd.Env = "../../internal/tools/ratelimit", append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// ratelimitFiles are configurations of the module by name. Those of faulty are refused by it.
func ratelimitFiles(t *testing.T) (good, faulty map[string]string) {
	t.Helper()
	dir := ratelimitModule(t)
	good, faulty = map[string]string{}, map[string]string{}
	bad := []string{"bad_limit_unit", "bad_yaml", "duplicate_key", "empty_domain", "empty_key", "misspelled_key", "misspelled_key2", "non_map_list", "non_string_key", "replaces_empty", "replaces_self", "unlimited_with_unit"}
	for _, pattern := range []string{"examples/ratelimit/config/*.yaml", "test/config/*.yaml", "test/integration/runtime/current/ratelimit/config/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimSuffix(filepath.Base(file), ".yaml")
			if slices.Contains(bad, name) {
				faulty[name] = string(text)
			} else {
				good[fmt.Sprint(len(good), "-", name)] = string(text)
			}
		}
	}
	if len(good) < 10 || len(faulty) != len(bad) {
		t.Fatalf("%d good and %d faulty configurations in %s", len(good), len(faulty), dir)
	}
	return good, faulty
}

// What envoyproxy/ratelimit refuses, weir check refuses, with the line.
func TestRatelimitFaults(t *testing.T) {
	t.Parallel()
	_, faulty := ratelimitFiles(t)
	for name, text := range faulty {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, name+".yaml"), []byte(text))
		config := filepath.Join(dir, "weir.yaml")
		writeFile(t, config, fmt.Appendf(nil, "listeners: [{address: \"127.0.0.1:1\", serve: [ratelimit]}]\nroutes: []\nrate_limit_service: {files: [%s.yaml]}\n", name))
		out, err := exec.Command(binary, "check", config).CombinedOutput()
		if err == nil || !strings.Contains(string(out), name+".yaml:") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// both are envoyproxy/ratelimit and weir, with the same limits on one Redis.
type both struct{ there, here rls.RateLimitServiceClient }

func startBoth(t *testing.T, text string) both {
	t.Helper()
	redis := freeAddr(t)
	startRedis(t, redis)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "ratelimit", "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "ratelimit", "config", "limits.yaml")
	writeFile(t, file, []byte(text))
	writeFile(t, filepath.Join(root, "password"), []byte("hunter2"))
	g := startListening(t, "http", "serve: [ratelimit]", fmt.Sprintf("stores: {shared: {redis: \"redis://%s\", password_file: %s, timeout: 10s}}\nrate_limit_service: {files: [%s], store: shared, on_store_error: closed}\nroutes: []\n",
		redis, filepath.Join(root, "password"), file))
	addr := freeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(part(t, "ratelimit"))
	cmd.Env = append(os.Environ(), "USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=error", "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis, "REDIS_AUTH=hunter2",
		"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "GRPC_HOST="+host, "GRPC_PORT="+port,
		"HOST=127.0.0.1", "PORT="+portOf(freeAddr(t)), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+portOf(freeAddr(t)))
	launch(t, addr, root, cmd)
	client := func(addr string) rls.RateLimitServiceClient {
		c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return rls.NewRateLimitServiceClient(c)
	}
	return both{client(addr), client(g.addr)}
}

// differs asks both the same, and says in what their answers differ beyond the list in
// docs/howto/from-envoyproxy-ratelimit.md: when a limit is free again is never compared, and what is
// left is only with left.
func (b both) differs(ctx context.Context, r *rls.RateLimitRequest, left bool) string {
	there, err := b.there.ShouldRateLimit(ctx, r)
	if err != nil {
		return "there: " + err.Error()
	}
	here, err := b.here.ShouldRateLimit(ctx, r)
	if err != nil {
		return "here: " + err.Error()
	}
	short := func(res *rls.RateLimitResponse) string {
		words := []string{res.OverallCode.String()}
		for _, s := range res.Statuses {
			word := s.Code.String()
			if l := s.CurrentLimit; l != nil {
				word += fmt.Sprintf(" %s %d/%s", l.Name, l.RequestsPerUnit, l.Unit)
			}
			if left {
				word += fmt.Sprint(" left ", s.LimitRemaining)
			}
			words = append(words, word)
		}
		return strings.Join(words, "; ")
	}
	if a, b := short(there), short(here); a != b {
		return fmt.Sprintf("there %s, here %s", a, b)
	}
	return ""
}

// written is a descriptor of a configuration.
type written struct {
	Key, Value  string
	Descriptors []written
	RateLimit   *struct {
		N int `yaml:"requests_per_unit"`
	} `yaml:"rate_limit"`
}

// paths calls do with descriptors that lead to each of list, and somewhat beside, and with the limit
// there.
func paths(list []written, before string, do func(descriptor string, limit int, blocked bool)) {
	for i, d := range list {
		values := []string{d.Value}
		if begin, wild := strings.CutSuffix(d.Value, "*"); d.Value == "" || wild {
			values = []string{fmt.Sprint(begin, "some", i), begin}
		}
		for _, v := range values {
			at := before + d.Key + "=" + v
			limit := 0
			if d.RateLimit != nil {
				limit = d.RateLimit.N
			}
			do(at, limit, d.RateLimit != nil && limit == 0)
			do(at+",beside=1", 0, false)
			do(before+d.Key+"="+v+"x", 0, false)
			paths(d.Descriptors, at+",", do)
		}
	}
	do(before+"nothing=1", 0, false)
}

func descriptorOf(text string, hits int) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(uint64(hits))}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// The configurations of envoyproxy/ratelimit give the same answers there and here, where nothing is
// on the list of differences: on buckets and windows that nobody has used, so no clock decides.
func TestRatelimitAnswers(t *testing.T) {
	t.Parallel()
	good, _ := ratelimitFiles(t)
	asked := 0
	for name, text := range good {
		var f struct {
			Domain      string
			Descriptors []written
		}
		if err := yaml.Unmarshal([]byte(text), &f); err != nil {
			t.Fatal(err)
		}
		if len(f.Descriptors) == 0 {
			continue
		}
		b := startBoth(t, text)
		ask := func(what string, descriptors ...*common.RateLimitDescriptor) {
			asked++
			if diff := b.differs(t.Context(), &rls.RateLimitRequest{Domain: f.Domain, Descriptors: descriptors}, true); diff != "" {
				t.Errorf("%s, %s: %s", name, what, diff)
			}
		}
		full := map[string]int{}
		paths(f.Descriptors, "", func(descriptor string, limit int, blocked bool) {
			hits := 0
			if blocked { // hits of 0 pass there, which is on the list
				hits = 1
			}
			ask(descriptor, descriptorOf(descriptor, hits))
			full[descriptor] = max(limit, full[descriptor])
		})
		ask("an unknown domain's", descriptorOf("a=b", 1))
		for descriptor, limit := range full {
			if limit > 0 && !strings.Contains(text, "share_threshold") { // several share those
				ask(fmt.Sprint("all of ", descriptor), descriptorOf(descriptor, limit))
			}
		}
	}
	if asked < 200 {
		t.Errorf("only %d requests were compared", asked)
	}
}

// Limits that replace others, and refusals of fresh buckets.
func TestRatelimitReplaces(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(ratelimitModule(t), "examples/ratelimit/config/example.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	b := startBoth(t, string(text))
	for _, list := range [][]string{
		{"category=account", "foo=1,bar=bkthomps"},
		{"category=account", "source_cluster=proxy,destination_cluster=fake", "foo=2,bar=bkthomps"},
		{"source_cluster=proxy,destination_cluster=override", "foo=3,bar=banned"},
		{"qux=1", "foo=4,bay=1", "foo=4"},
	} {
		r := &rls.RateLimitRequest{Domain: "rl"}
		for _, d := range list {
			r.Descriptors = append(r.Descriptors, descriptorOf(d, 0))
		}
		if diff := b.differs(t.Context(), r, true); diff != "" {
			t.Errorf("%v: %s", list, diff)
		}
	}
	for _, descriptor := range []string{"foo=5,bar=1", "foo=6,baz=shady", "unspec=7"} {
		r := &rls.RateLimitRequest{Domain: "rl", Descriptors: []*common.RateLimitDescriptor{descriptorOf(descriptor, 1000)}}
		if diff := b.differs(t.Context(), r, false); diff != "" {
			t.Errorf("a thousand of %s: %s", descriptor, diff)
		}
	}
	// What is on the list: a refusal counts there, and takes nothing here.
	r := &rls.RateLimitRequest{Domain: "rl", Descriptors: []*common.RateLimitDescriptor{descriptorOf("unspec=8", 3)}}
	for name, left := range map[string]uint32{"there": 0, "here": 2} {
		c := map[string]rls.RateLimitServiceClient{"there": b.there, "here": b.here}[name]
		if res, err := c.ShouldRateLimit(t.Context(), r); err != nil || res.OverallCode != rls.RateLimitResponse_OVER_LIMIT || res.Statuses[0].LimitRemaining != left {
			t.Errorf("%s: %v %v, want %d left", name, res, err, left)
		}
	}
}
