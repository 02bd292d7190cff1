package server

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// nowhere is an address at which nobody listens.
func nowhere(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// storeConfig is a gateway with a quota of two whose store is at that address.
func storeConfig(t *testing.T, upstream, address, onError string) *config.Config {
	t.Helper()
	q := slowly(2)
	q.Store, q.OnStoreError = "shared", onError
	cfg := quotaConfig(t, upstream, map[string]policy.GateSpec{"api": {Quota: q}}, "api")
	cfg.Stores = map[string]config.Store{"shared": {Redis: "redis://" + address}}
	return cfg
}

// A gateway whose store is gone starts all the same, does what on_store_error says, and
// shows it.
func TestStoreGone(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	for onError, want := range map[string]string{"": "200 200 429", "local": "200 200 429", "open": "200 200 200", "closed": "503 503 503"} {
		g := start(t, storeConfig(t, up.URL, nowhere(t), onError), Options{})
		var got []string
		for range 3 {
			resp, _ := get(t, g.url)
			got = append(got, resp.Status[:3])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("on_store_error %q: answers %v, want %s", onError, got, want)
		}
		look := g.Look()
		if len(look.Stores) != 1 || !look.Stores[0].Down || look.Stores[0].Why == "" || look.Stores[0].Failed["down"] == 0 {
			t.Errorf("stores %+v", look.Stores)
		}
		for _, gate := range look.Gates {
			if q := gate.Quota; gate.Kind == "quota" && (q == nil || q.StoreErrors != 3 || q.Buckets != nil || q.Rules != 1) {
				t.Errorf("quota %+v", q)
			}
		}
		if !strings.Contains(g.log.String(), "a store of quotas does not answer") {
			t.Error("the log does not say so")
		}
	}
}

// A store lives on over reloads, and is closed when it is not in the configuration any
// more; one with other settings is another.
func TestStoreReloaded(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	cfg := storeConfig(t, up.URL, nowhere(t), "local")
	next := cfg
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return next, nil }})
	first := g.state.Load().stores["shared"]
	get(t, g.url)

	reload := func(want bool) {
		t.Helper()
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
		if same := g.state.Load().stores["shared"] == first; same != want {
			t.Errorf("the same store: %v, want %v", same, want)
		}
	}
	reload(true)
	if f := g.Policy().Gate("api").Quota().Faults(); f.StoreErrors != 1 {
		t.Errorf("%+v: the gate was not adopted", f)
	}
	faulty := *cfg
	faulty.Stores = map[string]config.Store{"shared": cfg.Stores["shared"], "other": {Redis: "redis://127.0.0.1", Secret: config.Secret{PasswordEnv: "WEIR_TEST_UNSET"}}}
	next = &faulty
	if err := g.Reload(); err == nil || !strings.Contains(err.Error(), "stores.other: the environment has no variable WEIR_TEST_UNSET") {
		t.Errorf("%v", err)
	}
	moved := *cfg
	moved.Stores = map[string]config.Store{"shared": {Redis: "redis://" + nowhere(t)}}
	next = &moved
	reload(false)
	if err := g.stop(); err != nil {
		t.Error(err)
	}
}
