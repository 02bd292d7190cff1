package envoy

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/status"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirgrpc"
	"github.com/weir-go/weir/weirhttp"
)

// page is a ResponseWriter that keeps what is written.
type page struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (p *page) Header() http.Header { return p.header }

// WriteHeader implements [http.ResponseWriter].
func (p *page) WriteHeader(status int) { p.status = status }

// Write implements [http.ResponseWriter].
func (p *page) Write(b []byte) (int, error) { return p.body.Write(b) }

// immediate returns the page as Envoy is to send it.
func (p *page) immediate(details string) *immediate {
	i := &immediate{status: p.status, body: p.body.Bytes(), details: details}
	p.header.Del("Content-Length") // Envoy's own
	for _, name := range slices.Sorted(maps.Keys(p.header)) {
		for _, value := range p.header[name] {
			i.headers = append(i.headers, field{strings.ToLower(name), value})
		}
	}
	return i
}

// refusal returns the answer to a request that a gate has refused.
func (x *exchange) refusal(rej *weir.Rejection) *immediate {
	details := "weir_" + rej.Reason.String()
	if !x.grpc {
		p := page{header: make(http.Header)}
		r := &http.Request{Method: x.view.Method}
		x.Quotas.SetHeaders(p.header, x.Work, rej)
		var work *weir.Work
		if x.Policy != nil && x.Policy.TrustedView(&x.view) {
			work = &x.Work
		}
		weirhttp.WriteRejectionTo(&p, r, rej, work)
		return p.immediate(details)
	}
	i := answerCall(weirgrpc.Status(rej), weirhttp.Status(rej), details)
	if ms, ok := weirgrpc.Pushback(rej); ok {
		i.headers = append(i.headers, field{weirgrpc.PushbackHeader, ms})
	}
	return i
}

// problem returns the answer to a request that cannot be judged.
func (x *exchange) problem(code int, detail string) *immediate {
	const details = "weir_problem"
	if x.grpc {
		return answerCall(proxy.ProblemStatus(code, detail), code, details)
	}
	p := page{header: make(http.Header)}
	new(proxy.Call).WriteProblem(&p, code, detail)
	return p.immediate(details)
}

// answerCall returns a status as Envoy is to send it.
func answerCall(st *grpcstatus.Status, httpStatus int, details string) *immediate {
	i := &immediate{status: httpStatus, grpc: true, code: uint32(st.Code()), body: []byte(st.Message()), details: details}
	if full, err := proto.Marshal(st.Proto()); err == nil { // an error is text that is not UTF-8
		i.headers = append(i.headers, field{statusDetails, base64.RawStdEncoding.EncodeToString(full)})
	}
	return i
}

// The headers of gRPC that say how a call has ended.
const (
	statusHeader  = "grpc-status"
	statusDetails = "grpc-status-details-bin"
)

// serviceTimeHeader is what Envoy's router adds to the answers of a service, unless suppress_envoy_headers is set.
const serviceTimeHeader = "x-envoy-upstream-service-time"

// outcome returns what the headers of an answer say. A stream of gRPC that has begun is OK: how it
// ends is no matter of the time until then.
func outcome(answer fields, code int, grpc bool) weir.Outcome {
	if answer.get("x-envoy-ratelimited") != "" {
		return weir.NoSample // Envoy's own rate limit filter has refused, and the service saw nothing
	}
	text := answer.get(statusHeader)
	if !grpc || text == "" {
		return weir.ClassifyHTTP(code)
	}
	n, ok := decimal(text)
	if !ok {
		return weir.Failed
	}
	return weirgrpc.ClassifyStatus(withDetails(n, answer.get(statusDetails)))
}

// withDetails returns a status of gRPC with its details, if they can be read.
func withDetails(code int, details string) *grpcstatus.Status {
	full := new(status.Status)
	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(details, "="))
	if err != nil || proto.Unmarshal(raw, full) != nil {
		full.Reset()
	}
	full.Code = int32(code)
	return grpcstatus.FromProto(full)
}

// forward returns what the policy changes in the headers of a request.
func (x *exchange) forward() mutation {
	p := x.Policy
	before := headerOf(x.header)
	after := maps.Clone(before)
	if !p.TrustedView(&x.view) {
		proxy.NewClaims(p.IdentityHeaders()).Remove(after)
	}
	p.ForwardView(after, &x.view, &x.Work, x.arrived)
	return difference(before, after)
}

// Bounds of Envoy's for headers, by default. It checks them again when a processor has changed the headers. Beyond
// them it answers 500, and ends the stream as if the client had left.
const (
	envoyHeaders = 100
	envoyBytes   = 60 << 10
)

const (
	mostAdded = 3       // by forward: a priority, a deadline and a count of admissions
	spare     = 1 << 10 // bytes: more than these take, and more than what Envoy itself adds before
	digits    = 16      // bytes: by these a deadline may be longer when forward is called again
)

// crams reports whether the request would have too many headers for Envoy, or too large ones, after what forward
// changes.
func (x *exchange) crams() bool {
	n, size := len(x.header), x.header.size()
	if n+mostAdded <= x.mostHeaders() && size+spare <= envoyBytes {
		return false // the usual case, for little
	}
	change := x.forward()
	return change.overfills(x.header, x.mostHeaders())
}

func (x *exchange) mostHeaders() int { return cmp.Or(x.bounds.MaxHeaders, envoyHeaders) }

// overfills reports whether headers are beyond Envoy's bounds after a change. If they are clearly too large before,
// this Envoy has another bound.
func (m *mutation) overfills(all fields, most int) bool {
	if len(m.set)+len(m.remove) == 0 {
		return false
	}
	before := all.size()
	n, size := len(all)+len(m.set), before+m.set.size()+digits
	for _, f := range all {
		if slices.Contains(m.remove, f.name) || m.set.has(f.name) {
			n--
			size -= len(f.name) + len(f.value)
		}
	}
	return n > most || size > envoyBytes && before <= envoyBytes+spare
}

// headerOf returns fields under their canonical names, without the pseudo headers.
func headerOf(all fields) http.Header {
	h := make(http.Header, len(all))
	for _, f := range all {
		if f.name != "" && f.name[0] != ':' {
			name := http.CanonicalHeaderKey(f.name)
			h[name] = append(h[name], f.value)
		}
	}
	return h
}

// settle tells the gates what the answer has cost, and returns what changes in its headers.
func (x *exchange) settle(answer fields) mutation {
	if len(x.Quotas) == 0 && !x.Route.Settles() {
		return mutation{}
	}
	before := headerOf(answer)
	after := maps.Clone(before)
	x.readCost(after)
	x.Quotas.SetHeaders(after, x.Work, nil)
	change := difference(before, after)
	most := min(x.mostHeaders(), envoyHeaders) // of clusters, which have a setting of their own
	if change.overfills(answer, most) {
		change.set = nil // what is left of a quota is good to know, and no reason to fail an answer
	}
	if change.overfills(answer, most) {
		return mutation{}
	}
	return change
}

// settleLate is settle for the trailers of the answer. They count if its headers have said nothing.
func (x *exchange) settleLate(trailers fields) mutation {
	if !x.Route.Settles() {
		return mutation{}
	}
	before := headerOf(trailers)
	after := maps.Clone(before)
	x.readCost(after)
	return difference(before, after)
}

// readCost tells the gates the cost that headers or trailers say, unless it is known. It removes what says it.
func (x *exchange) readCost(h http.Header) {
	units, ok, bad := x.Route.Settle(h)
	if ok && !x.costed {
		x.Policy.SetCost(x.permit.SetCost, units)
		x.costed = true
	}
	if bad {
		x.unsettled()
	}
}

// unsettled counts an answer whose cost is missing or cannot be read, once.
func (x *exchange) unsettled() {
	if !x.miscost {
		x.miscost = true
		x.Route.Unsettled()
	}
}

// difference returns what turns one header into another.
func difference(before, after http.Header) (m mutation) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if !slices.Equal(before[name], after[name]) {
			for _, value := range after[name] {
				m.set = append(m.set, field{strings.ToLower(name), value})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[name]; !ok {
			m.remove = append(m.remove, strings.ToLower(name))
		}
	}
	return m
}

// header are the headers of a request, as a policy reads them.
type header fields

// Values implements [policy.Header].
func (h header) Values(name policy.HeaderName) (values []string) {
	for i := range h {
		if h[i].name == name.Lower {
			values = append(values, h[i].value)
		}
	}
	return values
}

// Host implements [policy.Header].
func (h header) Host() string { return fields(h).get(":authority") }

// codeOf returns the status of an answer in HTTP, 0 for none.
func codeOf(answer fields) int {
	n, err := strconv.Atoi(answer.get(":status"))
	if err != nil || n < 100 || n > 599 {
		return 0
	}
	return n
}
