package config

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
)

// TestElsewhere: a word of another product is no field here, and what a message tells to write is one.
func TestElsewhere(t *testing.T) {
	types := map[string]reflect.Type{
		"": reflect.TypeFor[Config](), "route": reflect.TypeFor[Route](), "upstream": reflect.TypeFor[Upstream](), "listener": reflect.TypeFor[Listener](), "tls": reflect.TypeFor[TLS](),
		"identity": reflect.TypeFor[policy.IdentitySpec](), "admin": reflect.TypeFor[Admin](), "gate": reflect.TypeFor[policy.GateSpec](), "limit": reflect.TypeFor[policy.LimitSpec](),
		"quota": reflect.TypeFor[policy.QuotaSpec](), "rule": reflect.TypeFor[policy.QuotaRuleSpec](), "passive_health": reflect.TypeFor[Eject](),
		"metrics": reflect.TypeFor[Metrics](), "kafka": reflect.TypeFor[Kafka](), "listen": reflect.TypeFor[KafkaListen](), "nodes": reflect.TypeFor[KafkaNodes](), "quotas": reflect.TypeFor[KafkaQuotas](), "sasl": reflect.TypeFor[SASL](),
	}
	keys := func(group string) (all []string) {
		for _, f := range setting.Fields(types[group]) {
			all = append(append(all, f.Key), f.Lift...)
		}
		return all
	}
	var anywhere []string
	for group := range types {
		anywhere = append(anywhere, keys(group)...)
	}
	told := regexp.MustCompile(`\b(?:write|and|or) ([a-z_]+):`)
	for group, words := range elsewhere {
		if types[group] == nil {
			t.Errorf("no type for the group %q", group)
			continue
		}
		for word, instead := range words {
			if word != strings.ToLower(word) || strings.ContainsAny(word, "-_. ") {
				t.Errorf("%s: %q is never looked for", group, word)
			}
			if slices.ContainsFunc(keys(group), func(key string) bool { return strings.ReplaceAll(key, "_", "") == word }) {
				t.Errorf("%s: %s is a field", group, word)
			}
			for _, m := range told.FindAllStringSubmatch(instead, -1) {
				if !slices.Contains(anywhere, m[1]) {
					t.Errorf("%s: %s: there is no field %s to %s", group, word, m[1], instead)
				}
			}
		}
	}
}

func TestGroupOf(t *testing.T) {
	for path, want := range map[string]string{
		"": "", "routes [0]": "route", "upstreams app": "upstream", "upstreams app passive_health": "passive_health", "upstreams app limit": "limit", "listeners [3]": "listener",
		"listeners [3] tls": "tls", "gates api": "gate", "gates api limit": "limit", "gates api quota": "quota", "gates api quota rules [2]": "rule", "identity": "identity", "gates admin": "gate", "kafka main": "kafka", "kafka main listen": "listen", "kafka main quotas": "quotas",
	} {
		if got := groupOf(fault.Path(strings.Fields(path))); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
