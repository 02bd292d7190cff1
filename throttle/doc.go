// Package throttle is the caller's side of admission control: a client that does not make an overload
// worse. It refuses locally what a server would refuse anyway, and it retries only where a retry is
// safe, can help, and is paid for.
//
//	caller := weir.Must(throttle.NewCaller(throttle.CallerConfig{Name: "shop"}))
//	err := caller.Do(ctx, "payments", weir.Work{}, false, pay)
//
// For HTTP, weirhttp.Transport does this for every request of an http.Client. For gRPC, weirgrpc.Client
// does so for every call of a connection.
//
// # The parts
//
// A [Caller] is what all calls of a process share. It has the parts below for each target, in one
// order, outermost first:
//
//		the call → Retry → Budget → Throttle or Breaker → the client's own limit → an attempt
//
//	  - [Retry] decides whether an attempt is followed by another one, and after which wait.
//	  - [Budget] bounds the retries of all calls together to a tenth of the requests.
//	  - [Throttle] is a gate that refuses a part of the attempts, as large as it has to be.
//	  - [Breaker] is a gate that refuses all of them for a while.
//
// Each can be used alone. None of them starts a goroutine or needs to be closed.
//
// # Why both a throttle and a budget
//
// Retries multiply load exactly when there is too much of it. Three attempts for each call are three
// times the load while everything fails, and three layers that do so are 27 times. The budget makes
// that 1.1 times, however many calls fail. But first attempts alone can be too much, and a refusal
// costs the server something. The throttle bounds both: to about K times what the server takes.
//
// # When a retry is safe
//
// A retry is safe if the work has not begun. That is so if a gate of weir refused it, or if no
// connection was made. It is safe, too, if the caller says that the work may be done twice. Otherwise
// there is none. A server that says that it is no use ends the call, and so does a wait that does
// not fit the deadline.
//
// # What a throttle cannot do
//
// It learns from answers. A process with few requests learns slowly: fewer than Padding in the window
// are judged hardly at all. In a full outage it sends a few requests a window. So it takes some seconds
// until it sees that the server is well again, and half a minute until all requests are sent. A shorter
// window is quicker, and throttles on fewer results.
//
// It knows a target by its name. Where a name stands for many servers of which one is overloaded, it
// refuses work for all of them.
package throttle
