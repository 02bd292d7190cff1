// Package explain says what a gateway would do with a request, without doing it. It shows the route
// of the request, its identity, and the decision of each gate on the way. It takes no token and no
// slot, and nothing counts it.
package explain

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/quota"
)

// Ask is a request that is only asked about.
type Ask struct {
	Method string // default GET
	Host   string
	Path   string // with a query, if any; default /
	// From is the address that it comes from. Default 127.0.0.1.
	From   string
	Header []string // each "Name: value"
	// User, Client, Tenant and Priority replace what the policy reads from the request, where
	// they are not empty.
	User, Client, Tenant, Priority string
	// Descriptor is asked about in place of a request, as in database=users,plan=free. Domain names the
	// gate that Envoy would ask; empty: all whose rules look at descriptors.
	Descriptor, Domain string
	// Kafka is a cluster whose client asks, in place of a request of HTTP. API is what it asks, such as CreateTopics, in a Version
	// (default: the newest that clients are offered). User is ANONYMOUS by default.
	Kafka, API, Version string
	// Cost is what it costs; 0: as the route says.
	Cost int64
}

// Values returns the Ask as a query. It leaves out what is empty.
func (a *Ask) Values() url.Values {
	v := url.Values{}
	for name, p := range a.fields() {
		if *p != "" {
			v.Set(name, *p)
		}
	}
	if len(a.Header) > 0 {
		v["header"] = a.Header
	}
	if a.Cost != 0 {
		v.Set("cost", strconv.FormatInt(a.Cost, 10))
	}
	return v
}

// Parse is the inverse of Values.
func Parse(v url.Values) (a Ask, err error) {
	fields := a.fields()
	for name, values := range v {
		switch p := fields[name]; {
		case name == "header":
			a.Header = values
		case len(values) != 1:
			return a, fmt.Errorf("%s is given %d times; write it once", name, len(values))
		case p != nil:
			*p = values[0]
		case name == "cost":
			if a.Cost, err = strconv.ParseInt(values[0], 10, 64); err != nil {
				return a, fmt.Errorf("cost %q is not a whole number", values[0])
			}
		default:
			return a, fmt.Errorf("%q says nothing about a request; write path, method, host, from, header, user, client, tenant, priority, cost, descriptor, domain, kafka, api or version", name)
		}
	}
	return a, nil
}

// fields are those that are texts, by their names in a query.
func (a *Ask) fields() map[string]*string {
	return map[string]*string{
		"method": &a.Method, "host": &a.Host, "path": &a.Path, "from": &a.From,
		"user": &a.User, "client": &a.Client, "tenant": &a.Tenant, "priority": &a.Priority,
		"descriptor": &a.Descriptor, "domain": &a.Domain, "kafka": &a.Kafka, "api": &a.API, "version": &a.Version,
	}
}

// request returns the request that is asked about.
func (a *Ask) request() (*http.Request, error) {
	method, path, from := cmp.Or(a.Method, http.MethodGet), cmp.Or(a.Path, "/"), cmp.Or(a.From, "127.0.0.1")
	addr, err := netip.ParseAddr(from)
	if err != nil {
		return nil, fmt.Errorf("from %q is not an address; write for instance 192.0.2.7", from)
	}
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("path %q does not begin with /; write /%s", path, path)
	}
	u, err := url.ParseRequestURI(path)
	if err != nil || strings.ContainsFunc(path, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		return nil, fmt.Errorf("path %q cannot be the path of a request; escape what is not printable, and spaces as %%20", path)
	}
	r, err := http.NewRequest(strings.ToUpper(method), "/", nil)
	if err != nil {
		return nil, fmt.Errorf("method %q cannot be the method of a request; write for instance GET", method)
	}
	r.URL, r.Host, r.RemoteAddr = u, proxy.SentHost(a.Host), netip.AddrPortFrom(addr, 1).String()
	for _, line := range a.Header {
		name, value, ok := strings.Cut(line, ":")
		if name = textproto.TrimString(name); !ok || name == "" {
			return nil, fmt.Errorf("header %q is not a name, a colon and a value; write it as in %q", line, "X-User: alice")
		}
		r.Header.Add(name, textproto.TrimString(value))
	}
	return r, nil
}

// override replaces what the policy has read from the request by what the Ask says.
func (a *Ask) override(w *weir.Work) error {
	w.User, w.Client, w.Tenant = cmp.Or(a.User, w.User), cmp.Or(a.Client, w.Client), cmp.Or(a.Tenant, w.Tenant)
	if a.Priority != "" {
		p, ok := weir.ParsePriority(a.Priority)
		if !ok {
			return fmt.Errorf("priority %q is unknown; write background, normal, high or critical", a.Priority)
		}
		w.Priority = p
	}
	if a.Cost < 0 {
		return fmt.Errorf("cost %d is negative; write how much the request takes", a.Cost)
	}
	if a.Cost > quota.MaxTokens {
		return fmt.Errorf("cost %d is more than the gateway counts; write at most %d", a.Cost, int64(quota.MaxTokens))
	}
	if a.Cost > 0 {
		w.Cost = a.Cost
	}
	return nil
}
