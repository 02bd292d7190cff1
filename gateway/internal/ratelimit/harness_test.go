package ratelimit_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/ratelimit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// load reads files, and returns what is wrong with them, a line for each fault.
func load(files map[string]string) (ratelimit.Limits, string) {
	limits := ratelimit.Limits{}
	var errs []string
	var check []func()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		root, faults := config.ParseDocument(name, []byte(files[name]))
		if root != nil {
			limits.Add(name, root, faults)
		}
		check = append(check, func() {
			if err := faults.Err(""); err != nil {
				errs = append(errs, err.Error())
			}
		})
	}
	limits.Compile()
	for _, c := range check {
		c()
	}
	return limits, strings.Join(errs, "\n")
}

// bench is a service under test. Its clock stands still unless it is moved.
type bench struct {
	*ratelimit.Service
	found  ratelimit.Found // but for gate and domain
	policy *policy.Policy
	now    time.Duration
	method grpc.MethodDesc
	ctx    context.Context // of the calls; nil: none
	// gone is a domain that is not found any more, and goesNext one that is found once more.
	gone, goesNext string
}

// RegisterService implements [grpc.ServiceRegistrar].
func (b *bench) RegisterService(d *grpc.ServiceDesc, _ any) { b.method = d.Methods[0] }

func newBench(t *testing.T, files map[string]string, spec policy.Spec, stores map[string]quota.Store) *bench {
	t.Helper()
	return newBenchThat(t, "closed", files, spec, stores)
}

// newOpenBench is newBench with on_store_error open.
func newOpenBench(t *testing.T, files map[string]string, stores map[string]quota.Store) *bench {
	t.Helper()
	return newBenchThat(t, "open", files, policy.Spec{}, stores)
}

func newBenchThat(t *testing.T, onStoreError string, files map[string]string, spec policy.Spec, stores map[string]quota.Store) *bench {
	t.Helper()
	limits, faults := load(files)
	if faults != "" {
		t.Fatal(faults)
	}
	b := &bench{}
	store := ""
	for name := range stores {
		store = name
	}
	spec.Gates = limits.Gates(spec.Gates, store, map[bool]string{true: onStoreError}[store != ""], "")
	var err error
	b.policy, err = policy.Compile(spec, policy.Options{Now: func() time.Duration { return b.now }, Stores: stores})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.policy.Close)
	b.Service = ratelimit.New(func(domain string) ratelimit.Found {
		f := b.found
		if domain == b.gone {
			return f
		}
		if domain == b.goesNext {
			b.gone = domain
		}
		f.Gate, f.Domain = b.policy.Gate(domain), limits[domain]
		return f
	})
	b.Register(b)
	return b
}

// ask sends a request and returns the answer, both as protobuf has them.
func (b *bench) ask(t *testing.T, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	t.Helper()
	data, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b.send(t, data)
}

func (b *bench) send(t *testing.T, data []byte) (*rls.RateLimitResponse, error) {
	t.Helper()
	ctx := b.ctx
	if ctx == nil {
		ctx = t.Context()
	}
	out, err := b.method.Handler(b.Service, ctx, func(in any) error {
		return in.(interface{ ReadWire([]byte) error }).ReadWire(data)
	}, nil)
	if err != nil {
		return nil, err
	}
	var res rls.RateLimitResponse
	if err := proto.Unmarshal(out.(interface{ AppendWire([]byte) []byte }).AppendWire(nil), &res); err != nil {
		t.Fatal(err)
	}
	return &res, nil
}

// about is a request about descriptors, each as in "a=b,c=d".
func about(domain string, descriptors ...string) *rls.RateLimitRequest {
	r := &rls.RateLimitRequest{Domain: domain}
	for _, d := range descriptors {
		one := &common.RateLimitDescriptor{}
		for pair := range strings.SplitSeq(d, ",") {
			key, value, _ := strings.Cut(pair, "=")
			one.Entries = append(one.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		r.Descriptors = append(r.Descriptors, one)
	}
	return r
}

// hits sets hits_addend of the first descriptor.
func hits(r *rls.RateLimitRequest, n uint64, back bool) *rls.RateLimitRequest {
	r.Descriptors[0].HitsAddend, r.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(n), back
	return r
}

// told is an answer in short: the code, and for each status its code, its limit, what remains and
// when it is full or free again.
func told(r *rls.RateLimitResponse, err error) string {
	if err != nil {
		return err.Error()
	}
	words := []string{r.OverallCode.String()}
	for _, s := range r.Statuses {
		word := s.Code.String()
		if l := s.CurrentLimit; l != nil {
			word += fmt.Sprintf(" %s%d/%s", l.Name, l.RequestsPerUnit, l.Unit)
		}
		if s.LimitRemaining > 0 {
			word += fmt.Sprintf(" left %d", s.LimitRemaining)
		}
		if s.DurationUntilReset != nil {
			word += fmt.Sprintf(" in %v", s.DurationUntilReset.AsDuration())
		}
		words = append(words, word)
	}
	return strings.Join(words, "; ")
}

// node is a descriptor of a file: a key, perhaps a value, perhaps a limit, and those below.
type node struct {
	key, value string
	limit      int // 0: none; -1: unlimited
	below      []*node
}

// grow returns random siblings of few keys and values, so that many are less exact than others.
func grow(r *rand.Rand, depth int, limits *int) (siblings []*node) {
	seen := map[[2]string]bool{}
	for range 1 + r.IntN(4) {
		n := &node{key: string("ab"[r.IntN(2)]), value: []string{"", "x", "xy", "xyz", "x*", "xy*", "*", "z"}[r.IntN(8)]}
		if seen[[2]string{n.key, n.value}] {
			continue
		}
		seen[[2]string{n.key, n.value}] = true
		switch r.IntN(12) {
		case 0, 1, 2, 3:
		case 4:
			n.limit = -1
		default:
			*limits++
			n.limit = 1000 + *limits
		}
		if depth > 1 && r.IntN(3) > 0 {
			n.below = grow(r, depth-1, limits)
		}
		siblings = append(siblings, n)
	}
	return siblings
}

// write writes siblings as a file has them.
func (n *node) write(b *strings.Builder, indent string) {
	fmt.Fprintf(b, "%s- key: %s\n", indent, n.key)
	if n.value != "" {
		fmt.Fprintf(b, "%s  value: %q\n", indent, n.value)
	}
	if n.limit < 0 {
		fmt.Fprintf(b, "%s  rate_limit: {unlimited: true}\n", indent)
	} else if n.limit > 0 {
		fmt.Fprintf(b, "%s  rate_limit: {unit: second, requests_per_unit: %d}\n", indent, n.limit)
	}
	if len(n.below) > 0 {
		fmt.Fprintf(b, "%s  descriptors:\n", indent)
		for _, m := range n.below {
			m.write(b, indent+"    ")
		}
	}
}

// limitOf is the lookup of envoyproxy/ratelimit. At each level an exact value goes before the first wildcard, and that before
// the key alone. There is no way back.
func limitOf(siblings []*node, entries [][2]string) int {
	for i, e := range entries {
		find := func(matches func(n *node) bool) *node {
			for _, n := range siblings {
				if n.key == e[0] && matches(n) {
					return n
				}
			}
			return nil
		}
		next := cmp.Or(find(func(n *node) bool { return n.value != "" && n.value == e[1] }),
			find(func(n *node) bool {
				begin, wild := strings.CutSuffix(n.value, "*")
				return wild && strings.HasPrefix(e[1], begin)
			}),
			find(func(n *node) bool { return n.value == "" }))
		switch {
		case next == nil:
			return 0
		case i == len(entries)-1:
			return next.limit
		}
		siblings = next.below
	}
	return 0
}
