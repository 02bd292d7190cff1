// Package weirgrpc puts a weir gate in front of the handlers of a gRPC server. For a client, it puts a throttle
// and a budget for retries in front of each call.
//
//	api := weir.Must(limit.New(limit.Config{Name: "api", Limit: 50}))
//	guard := weirgrpc.New(api)
//	server := grpc.NewServer(guard.ServerOptions()...)
//
// Calls beyond the limit wait in the gate's room. A call that cannot wait is answered with a status, whose
// details say why, and when to come back (see [Status]). The gate can also come from a policy file, with
// routes, identities and priorities: see [WithPolicy].
//
// # What a slot is held for
//
// The permit of a unary call is given back when its handler returns, panics, or ends its goroutine. A call
// whose client has left keeps its slot for as long as its handler works: until then, the backend is busy.
// [Classify] turns the handler's error into the outcome, except:
//
//	the client left before the handler returned   Abandoned, whatever is answered
//	the call's deadline passed                     Overload
//	the handler panics                             Failed
//
// Panics are passed on, not recovered.
//
// A handler may return the refusal of a gate further in as it came. The client gets the status of that refusal, too,
// and its trailer.
//
// # Streams
//
// How long a stream lasts says nothing about the backend, so it is never a latency. A call that streams its
// answers gives its sample with the first answer. A call that streams its requests gives no sample, even if it
// ends with an error: such calls end with an error when their client is done.
//
// A long stream gives its slot back after the grace time of [weirhttp.Streams], and gets a place in that
// bounded pool instead. The grace time runs from the first answer. For calls that stream their requests it runs
// from the start, because such calls wait for the client. If there is no place, the stream keeps its slot. With
// [WithMessages] each message of such a call is a piece of work by itself.
//
// # Who asks
//
// A policy reads metadata as it reads the headers of HTTP: tenant, user and priority from trusted peers only.
// gRPC's own retries send the number of attempts in one more header. So a policy with admissions:
// header:grpc-previous-rpc-attempts and demote_after: 1 makes retries background work. The deadline is the
// call's own.
//
// # Housekeeping
//
// Calls of the health service, of reflection and of channelz are exempt. They take no slot, under
// the gate's cap of exempt work. Health/Watch never ends, so from its start it has a place in a pool of
// 4,096, apart from the streams.
//
// # Refusal before the message
//
// gRPC reads the message of a unary call before any interceptor runs. [Guard.Tap] decides when the headers of a
// call have arrived. So a flood of large messages is refused unread.
//
// # Clients
//
// [Client] is the other side: with it, the calls of a connection do not make an overload worse.
//
// # Draining
//
// [Guard.Drain] refuses new calls, once the health service has said NOT_SERVING.
package weirgrpc
