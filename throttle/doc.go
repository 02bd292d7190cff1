// Package throttle is the caller's side of admission control: with it, a client does not make an overload
// worse. The client refuses locally what the server would refuse anyway. It retries only if a retry is safe,
// can help, and is within a budget.
//
//	caller := weir.Must(throttle.NewCaller(throttle.CallerConfig{Name: "shop"}))
//	err := caller.Do(ctx, "payments", weir.Work{}, false, pay)
//
// For HTTP, weirhttp.Transport does this for every request of an http.Client. For gRPC, weirgrpc.Client does it
// for every call of a connection.
//
// # The parts
//
// All calls of a process share a [Caller]. Each target has a budget and a guard of its own. The client's own limit is
// one for all targets. The parts stand in this order, outermost first:
//
//		the call → Retry → Budget → Throttle or Breaker → the client's own limit → an attempt
//
//	  - [Retry] decides whether an attempt is followed by another one, and after which wait.
//	  - [Budget] bounds the retries of all calls to the target to a tenth of the requests sent, and a few more.
//	  - [Throttle] is a gate that refuses a part of the attempts, as large as it has to be.
//	  - [Breaker] is a gate that refuses all of them for a while.
//
// Each can be used alone. None of them starts a goroutine or needs to be closed.
//
// # Why both a throttle and a budget
//
// Retries multiply the load exactly when it is too high already. While everything fails, three attempts for
// each call triple the load, and three such layers multiply it by 27. With the budget the factor is 1.1,
// however many calls fail. But first attempts alone can be too many, and each refusal costs the server
// something. The throttle bounds all attempts, to about K times what the server accepts.
//
// # When a retry is safe
//
// A retry is safe if the work has not begun. That is so if a gate of weir refused it, or if no connection was
// made. It is safe, too, if the caller says that the work may be done twice. Otherwise there is no retry. There
// is none either if the server says that a retry is useless, or if the wait does not fit the deadline.
//
// # What a throttle cannot do
//
// A throttle learns from answers. A process with few requests learns slowly: after two
// failures alone it refuses a fifth, after eight a half. In a full outage it sends a few requests a window. So it needs some
// seconds to see that the server has recovered, and up to a minute until it sends all requests. A shorter window
// is quicker, and throttles on fewer results.
//
// A throttle knows a target by its name. If many servers have one name and one of them is overloaded, the
// throttle refuses work for all of them.
package throttle
