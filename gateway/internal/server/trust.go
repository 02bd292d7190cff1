package server

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/weir/policy"
)

// trust says whose headers are believed, and which headers it is about. It
// follows the rules of the policy's identities.
type trust struct {
	networks []netip.Prefix
	claims   []string // headers that identities are read from, canonical
}

// loopback is trusted unless the configuration says otherwise.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// newTrust reads a spec that policy.Compile has accepted.
func newTrust(id policy.IdentitySpec) *trust {
	t := &trust{networks: loopback}
	if len(id.Trusted) > 0 {
		t.networks = nil
	}
	for _, network := range id.Trusted {
		if p, err := netip.ParsePrefix(network); err == nil {
			t.networks = append(t.networks, p.Masked())
		}
	}
	for _, source := range []string{id.Tenant, id.User, id.Client, id.Priority} {
		name, ok := strings.CutPrefix(source, "header:")
		name = http.CanonicalHeaderKey(name)
		if ok && name != "Host" && !slices.Contains(t.claims, name) {
			t.claims = append(t.claims, name)
		}
	}
	return t
}

// peer reports whether r comes from a trusted network.
func (t *trust) peer(r *http.Request) bool {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr := ap.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(t.networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}
