// Package quota limits what is used up: requests a second, tokens of a language
// model, bytes, partitions. A limit.Limiter counts slots that come back when work
// is done; here tokens come back with time.
//
//	gate, err := quota.New(quota.Config{
//		Name: "api",
//		Rules: []quota.Rule{
//			{User: quota.Every, Windows: []quota.Window{quota.Per(10, time.Second), quota.Per(1000, time.Hour)}},
//			{User: "batch", Windows: []quota.Window{quota.Per(2, time.Second)}},
//		},
//	})
//	...
//	p, err := gate.Admit(ctx, weir.Work{User: "alice"})
//	if err != nil {
//		return err // a *weir.Rejection: which rule, how much, when to come back
//	}
//	defer p.Done(weir.NoSample)
//
// In the plain cases gate.Allow(work) and gate.Wait(ctx, work) do, as in
// golang.org/x/time/rate.
//
// # The bucket
//
// A bucket has up to Burst tokens and starts full. Rate tokens a second come back,
// or Burst at the start of each hour, day, week or month of a [Calendar]. So in any
// time no more than Burst plus what comes back is admitted.
//
// By default work is admitted if there are as many tokens as it costs. For work that
// costs one, that is the generic cell rate algorithm. With Config.Debt it is admitted
// if there is no debt, whatever it costs, and the bucket may go below zero. This is the
// rule of Kafka's controller mutation quota (KIP-599). Then nothing is ever too large,
// and the mean rate holds all the same.
//
// Where Kafka's code has gaps, this package does the following. Buckets start full on
// any clock. A clock that steps back brings no tokens, and time counts on from there.
// The shortest wait is a millisecond, and waits do not overflow. A rate of 0 is an error.
// A debt is never forgotten because its owner is idle.
//
// # Refusals are honest
//
// RetryAfter is when the same work would be admitted if nobody else came, in whole
// milliseconds, rounded up. If there are several windows, all are charged or none, and
// the refusal is about the one with the longest wait. Work that costs more than a burst
// is refused with ReasonTooLarge: coming back does not help.
//
// # What work really costs
//
// Permit.SetCost corrects the cost when it is known, as often as it is known better. It
// refunds what was too much and charges what was too little, into debt if need be.
// Cancel, for work that never started, refunds everything. Done refunds nothing.
//
// # Rules
//
// One [Rule] applies to a piece of work: the most exact one that matches, by Kafka's
// order of precedence. It also says whose bucket is charged. Quotas that apply together
// are several windows of a rule, or several gates in a weir.All. A weir.All refunds an
// earlier gate when a later one refuses.
//
// [Quota.Reconfigure] changes rules while the gate runs. Buckets keep their tokens and
// debts: they do not know their windows, each decision brings them.
//
// # Keys that many invent
//
// [Memory] keeps a bucket in up to 40 bytes. A bucket that is full again says nothing
// that a new one does not. So it is forgotten if there is no place; others never are. At
// MemoryConfig.MaxKeys new keys share one bucket with the windows of one. So a flood of
// invented keys gets what one key gets, and nobody loses a debt by being pushed out.
// Other new keys suffer with the flood until then. So a key should be something that a
// client has proved, or its network address.
//
// # When not to use it
//
// A quota protects contracts, not backends. Ten requests a second may be too many for
// a backend that is ill, and too few for one that idles. Put a limit.Limiter behind
// it. A quota in memory is one process's: several processes admit several times as
// much; use a [Store] that they share. And a quota by a name that clients choose
// limits nobody.
package quota
