// Package weirgrpc puts a weir gate in front of the handlers of a gRPC server. Under a client it puts
// a throttle and a budget for retries.
//
//	api := weir.Must(limit.New(limit.Config{Name: "api", Limit: 50}))
//	guard := weirgrpc.New(api)
//	server := grpc.NewServer(guard.ServerOptions()...)
//
// Calls beyond the limit wait in the gate's room. Those that cannot wait are answered with a status
// whose details say why, and when to come back (see [Status]). The gate can come out of a policy
// file instead, with routes, identities and priorities: see [WithPolicy].
//
// # What a slot is held for
//
// The permit of a unary call is given back when its handler returns, panics, or ends its goroutine.
// A call whose client has left keeps its slot for as long as its handler works: the backend has
// work to do until then. The outcome is what [Classify] says of the handler's error, except:
//
//	the client left before the handler returned   Abandoned, whatever is answered
//	the call's deadline passed                     Overload
//	the handler panics                             Failed
//
// Panics are passed on, not recovered.
//
// # Streams
//
// How long a stream lives says nothing about the backend, so it is never a latency. A call that
// streams its answers gives its sample with the first of them. A call that streams its requests
// gives none, also if it ends with an error: such calls end so when their client is done.
//
// A stream that lasts gives its slot back after the grace time of [weirhttp.Streams], and has a
// place in that bounded pool instead. The time runs from the first answer. For calls that stream
// their requests it runs from the start, because the client takes its time. Without a place the
// stream keeps its slot. With [WithMessages] each message of such a call is a piece of work by
// itself.
//
// # Who asks
//
// A policy reads metadata as it reads the headers of HTTP: tenant, user and priority from trusted
// peers only. The number of attempts that gRPC's own retries send is one more header. So a policy
// with admissions: header:grpc-previous-rpc-attempts and demote_after: 1 makes retries background
// work. The deadline is the call's own.
//
// # Housekeeping
//
// Calls of the health service, of reflection and of channelz are exempt. They take no slot, under
// the gate's cap of exempt work. Health/Watch never ends, so it has a place among the streams from
// its start.
//
// # Refusal before the message
//
// gRPC reads the message of a unary call before any interceptor runs. [Guard.Tap] decides when the
// headers of a call have come. A flood of large messages is then refused unread.
//
// # Clients
//
// [Client] is the other side: it makes the calls of a connection so that they do not make an overload
// worse.
//
// # Draining
//
// [Guard.Drain] refuses new calls, once the health service has said NOT_SERVING.
package weirgrpc
