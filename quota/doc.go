// Package quota limits what is used up: requests a second, tokens of a language
// model, bytes, partitions. A limit.Limiter counts slots that come back when work
// is done; here tokens come back with time.
//
//	gate, err := quota.New(quota.Config{
//		Name: "api",
//		Rules: []quota.Rule{
//			{User: quota.Every, Windows: []quota.Window{quota.Per(10, time.Second), quota.Per(1000, time.Hour)}},
//			{User: quota.Named("batch"), Windows: []quota.Window{quota.Per(2, time.Second)}},
//		},
//	})
//	...
//	p, err := gate.Admit(ctx, weir.Work{User: "alice"})
//	if err != nil {
//		return err // a *weir.Rejection: which rule, how much, when to come back
//	}
//	defer p.Done(weir.NoSample)
//
// # The bucket
//
// A bucket holds up to Burst tokens and starts full. Rate tokens a second come back,
// or Burst at the start of each hour, day, week or month of a [Calendar]. So in any
// time no more than Burst plus what comes back is let through.
//
// By default work is let through iff there are as many tokens as it costs, which
// for work that costs one is the generic cell rate algorithm. With Config.Debt it
// is let through iff there is no debt, whatever it costs, and the bucket may go
// below zero: the rule of Kafka's controller mutation quota (KIP-599). Nothing is
// ever too large then, and the mean rate is held all the same. Where Kafka's code
// has gaps, this is what happens here: buckets start full on any clock; a clock
// that steps back brings no tokens, and time counts from there; who is refused is
// told at least a millisecond; waits do not overflow; a rate of 0 is refused; a
// debt is never forgotten because its owner is idle.
//
// # Refusals are honest
//
// RetryAfter is when the same work would be let through if nobody else came, in
// whole milliseconds, rounded up. Of several windows all are charged or none, and
// the one to wait longest for speaks. Work that costs more than a burst is refused
// with ReasonTooLarge: coming back does not help.
//
// # What work really costs
//
// Permit.SetCost settles it when it is known, as often as it is learned better: what
// was too much goes back, what was too little is charged, into debt if need be.
// Cancel, for work that never started, gives all back. Done gives back nothing.
//
// # Rules
//
// One [Rule] applies to a piece of work: the one that matches most exactly, by
// Kafka's order of precedence; see [Rule]. It also says whose bucket it is. Quotas
// that are to apply together are several windows of a rule, or several gates in a
// weir.All, which gives back what an earlier one took when a later one refuses.
//
// [Quota.Reconfigure] changes rules while the gate runs. Buckets keep their tokens
// and debts: they do not know their limit, each decision brings it along.
//
// # Keys that many invent
//
// [Memory] keeps a bucket in up to 40 bytes. One that is full again says nothing that
// a new one does not, and is forgotten when there is no place; others never are. At
// MemoryConfig.MaxKeys newcomers share one bucket with the limit of one, so a flood
// of invented keys gets what one key gets, and nobody sheds a debt by being pushed
// out. Other newcomers suffer with the flood until then: a key should be something
// that a client has proved, or its network address.
//
// # When not to use it
//
// A quota protects contracts, not backends: ten requests a second may be too many
// for a backend that is ill, and too few for one that idles. Put a limit.Limiter
// behind it. A quota in memory is one process's: several of them let through
// several times as much; use a [Store] that they share. And a quota by a name that
// clients choose limits nobody.
package quota
