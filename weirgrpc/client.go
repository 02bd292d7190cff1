package weirgrpc

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
	"github.com/weir-go/weir/throttle"
	"github.com/weir-go/weir/weirhttp"
)

// A [Client] tells servers about a call in these metadata. The deadline is gRPC's own.
var (
	priorityKey = strings.ToLower(weirhttp.PriorityHeader)
	attemptKey  = strings.ToLower(weirhttp.AttemptHeader)
)

// Client makes the calls of a gRPC client. With it, the calls do not make an overload worse. It is to gRPC what
// [weirhttp.Transport] is to HTTP, and its fields have the same names. The zero value is ready to use. Set the
// fields before the first call, and share one Client, or at least one Caller, between all connections of a
// process:
//
//	client := new(weirgrpc.Client)
//	conn, err := grpc.NewClient(target, append(client.DialOptions(), credentials)...)
//
// Each call is a call of a [throttle.Caller]. If this process refuses a call, the error wraps a
// [*weir.Rejection], and has the status of [Status]. A call is tried again if that is safe, can help and is
// within the budget. The error of the last attempt is returned. If it is the refusal of a weir gate, it is
// marked: whoever gets it next knows that this process had begun its own work.
//
// A slot of the client's own limit is held until the call or its stream has ended. It is not held during a
// back-off. The sample of a stream is taken with its first answer. So do not use a limit that learns for
// streams that the client keeps open.
//
// # What is tried again
//
// A unary call may be tried again. So may a call that streams answers, until the application has seen the first
// answer. A call that streams requests keeps no request, so it is tried again only if it could not be opened.
// A [grpc.OnFinish] of the application runs once for each attempt. An interceptor further in must make one call at
// a time: of two, the failure of one would be taken for that of both.
//
// The Caller learns nothing from a call that never ends. Give each call a deadline: the time for all attempts
// together. A unary call that ends at its deadline counts as refused, see MinTimeout of [throttle.Config]. A stream of
// answers that ends so counts as nothing, because many wait for events that do not come.
type Client struct {
	// Caller decides about the calls. nil means a Caller with the default settings.
	Caller *throttle.Caller

	// Target returns the name of the service that a call is for. nil means the target of its connection.
	Target func(method string, conn *grpc.ClientConn) string
	// Work describes a call as work, for instance by its priority. nil changes nothing. Op is the method.
	// Priority, exemption and deadline come from the context's scope (see [weir.WithPriority]). In a handler,
	// the scope is that of the request that the handler serves. Work can lower the priority, but not raise it
	// above that of the scope or of that request.
	Work func(ctx context.Context, method string, w *weir.Work)
	// Safe reports whether a call may be done twice. With nil, the method's idempotency_level in its .proto
	// file decides.
	Safe func(ctx context.Context, method string) bool

	// Quiet leaves out the metadata with the priority and the attempt. Use it for servers of others. The
	// deadline is sent all the same.
	Quiet bool
	// Refused, if not nil, is called when a call is refused before it started. It gets the address that
	// refused, for instance to choose another one next time. The address is empty if no connection was made.
	Refused func(ctx context.Context, method, address string)

	once     sync.Once
	fallback *throttle.Caller
}

// DialOptions returns the options for a connection whose calls go through the client. They are an interceptor
// for unary calls and one for streams, chained after those of earlier options. They also turn off the retries
// that a service config asks grpc-go for. Such retries happen below all interceptors, where no budget counts
// them: with both, three attempts would be nine. grpc-go still resends a call that no server has seen.
func (c *Client) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream), grpc.WithDisableRetry(),
	}
}

// unary is a [grpc.UnaryClientInterceptor].
func (c *Client) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	o, cancel := c.begin(ctx, method, conn)
	defer cancel()
	defer o.call.End()
	for {
		p, err := o.admit()
		if err != nil {
			return err
		}
		answer, err := o.attempt(p, func(ctx context.Context, more ...grpc.CallOption) error {
			return invoke(ctx, method, req, reply, conn, append(opts[:len(opts):len(opts)], more...)...)
		})
		if err == nil {
			return nil
		}
		if again, err := o.again(answer, err); !again {
			return err
		}
	}
}

// outgoing is a call with all its attempts.
type outgoing struct {
	client *Client
	method string
	ctx    context.Context
	work   weir.Work
	came   bool  // the call is made in the handler of a request
	lower  bool  // Work has lowered the priority of the context's scope to Normal
	before error // that of the attempt before
	call   throttle.Call
}

// begin starts a call. cancel ends the context of its attempts.
func (c *Client) begin(ctx context.Context, method string, conn *grpc.ClientConn) (o *outgoing, cancel context.CancelFunc) {
	o = &outgoing{client: c, method: method, ctx: ctx, work: weir.Work{Op: method}}
	w := &o.work
	w.Deadline, _ = ctx.Deadline()
	w.Inherit(ctx)
	_, _, o.came = weir.Received(ctx)
	if latest, scope := w.Deadline, w.Priority; c.Work != nil {
		c.Work(ctx, method, w)
		attempt.Bound(ctx, w, latest)
		o.lower = w.Priority == weir.Normal && scope > weir.Normal
	}
	cancel = func() {}
	if at, ok := ctx.Deadline(); !w.Deadline.IsZero() && (!ok || w.Deadline.Before(at)) {
		o.ctx, cancel = context.WithDeadline(ctx, w.Deadline)
	}
	safe := c.Safe
	if safe == nil {
		safe = declaredSafe
	}
	o.call = c.caller().Start(c.target(method, conn), w.Deadline, safe(ctx, method))
	return o, cancel
}

func (c *Client) caller() *throttle.Caller {
	if c.Caller != nil {
		return c.Caller
	}
	c.once.Do(func() { c.fallback, _ = throttle.NewCaller(throttle.CallerConfig{}) }) // the defaults are valid
	return c.fallback
}

func (c *Client) target(method string, conn *grpc.ClientConn) string {
	switch {
	case c.Target != nil:
		return c.Target(method, conn)
	case conn == nil:
		return ""
	}
	return conn.CanonicalTarget()
}

// declaredSafe reports whether the method's .proto file says that it may be done twice.
func declaredSafe(_ context.Context, method string) bool {
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return false
	}
	options, ok := d.Options().(*descriptorpb.MethodOptions)
	return ok && options.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
}

// admit asks the gates for the present attempt.
func (o *outgoing) admit() (weir.Permit, error) {
	o.work.Attempt = o.call.Attempt()
	ctx := o.ctx
	if o.lower { // Normal alone names no priority
		ctx = weir.WithPriority(ctx, weir.Normal)
	}
	p, err := o.call.Gate().Admit(ctx, o.work)
	if err != nil && o.before != nil {
		err = fmt.Errorf("%w; attempt %d: %w", err, o.work.Attempt, o.before)
	}
	if err != nil {
		return weir.Permit{}, ownRefusal(err)
	}
	return p, nil
}

// attempt makes a unary attempt, and gives the permit back.
func (o *outgoing) attempt(p weir.Permit, invoke func(context.Context, ...grpc.CallOption) error) (throttle.Answer, error) {
	defer p.Done(weir.NoSample) // counts only after a panic; otherwise the permit is done already
	var trailer metadata.MD
	var server peer.Peer
	finished := false // an interceptor further in may drop these options, and answer by itself
	o.call.Sent()
	err := invoke(o.attemptContext(), grpc.Trailer(&trailer), grpc.Peer(&server), grpc.OnFinish(func(error) { finished = true }))
	if err == nil {
		p.Done(weir.OK)
		return throttle.Answer{}, nil
	}
	answer := o.answer(err, trailer, &server, !finished || server.Addr != nil)
	p.Done(answer.Outcome)
	return answer, err
}

// answer returns the Answer to an attempt, and calls Refused. opened is false only if it is certain that no
// stream to a server was opened.
func (o *outgoing) answer(err error, trailer metadata.MD, server *peer.Peer, opened bool) throttle.Answer {
	a := answerTo(err, trailer, opened)
	switch o.ctx.Err() {
	case context.Canceled:
		a.Outcome = weir.Abandoned
	case context.DeadlineExceeded:
		a.Outcome = weir.Overload
	}
	if o.client.Refused != nil && a.Unstarted {
		address := ""
		if server.Addr != nil {
			address = server.Addr.String()
		}
		o.client.Refused(o.ctx, o.method, address)
	}
	return a
}

// again waits for the next attempt. If there is none, it returns the final error of the call.
func (o *outgoing) again(a throttle.Answer, err error) (bool, error) {
	if o.ctx.Err() != nil {
		return false, passedOn(err)
	}
	wait, stop := o.call.Decide(a)
	if stop != throttle.Again {
		return false, passedOn(err)
	}
	o.before = err
	if err := o.call.Wait(o.ctx, wait); err != nil {
		return false, status.FromContextError(err).Err()
	}
	return true, nil
}

// attemptContext returns the context of the present attempt, with the metadata for the server.
func (o *outgoing) attemptContext() context.Context {
	if o.client.Quiet {
		return o.ctx
	}
	ranked := o.came || o.work.Priority != weir.Normal
	md, ok := metadata.FromOutgoingContext(o.ctx) // a copy
	if _, handles := metadata.FromIncomingContext(o.ctx); handles && len(md[priorityKey]) > 0 {
		ranked = true // or a stranger's priority, which a proxy passes on, would become that of this process
	}
	switch {
	case !ok && !ranked && o.work.Attempt == 0:
		return o.ctx
	case !ok:
		md = metadata.MD{}
	}
	for _, name := range attempt.Headers { // or the number of a stranger would become that of this process
		delete(md, name.Lower)
	}
	if o.work.Attempt > 0 {
		md[attemptKey] = []string{strconv.Itoa(o.work.Attempt)}
	}
	if ranked {
		md[priorityKey] = []string{weir.PriorityOf(o.work.Priority.Class()).String()}
	}
	return metadata.NewOutgoingContext(o.ctx, md)
}
