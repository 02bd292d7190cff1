// Package weir is admission control. It decides for every piece of work: start
// now, wait, or be refused with a true answer about when to come back. A
// service should admit no more than it can carry. Then it keeps doing all the
// work it can, even under several times that load.
//
// # Gate, work, permit
//
// A [Gate] answers "may this start?". There are three mechanisms, and a package for
// each. Package limit bounds the work in flight. Its slots come back, and a
// controller can find out how many there should be. Package quota bounds the work
// in a time: its tokens come back by the clock. Package shed refuses by priority
// while a service is overloaded. Package keyed gives each tenant or database a
// limit of its own.
//
// The work asks with a [Work]: who, how important, how much, until when. The
// answer is a [Permit], to be given back, or a [*Rejection]. The Rejection says
// which gate refused, why, the value against the limit, and when to come back.
//
//	p, err := gate.Admit(ctx, weir.Work{Op: "GET /cart", User: "alice"})
//	if err != nil {
//		return err // a *weir.Rejection
//	}
//	defer p.Done(weir.NoSample) // covers panics; a no-op after the next Done
//	err = serve()
//	p.Done(weir.Classify(err))
//
// [Do] is these lines in one call. [All] joins gates, all or nothing. A plain rate
// limit needs neither: quota.Quota has Allow and Wait.
//
// # Sample and Done are two acts
//
// A controller learns from how long the backend took. A slot is free when the
// backend has nothing left to do. With a slow client these are far apart. Then
// call [Permit.Sample] when the backend has answered, and [Permit.Done] when
// the slot is free again. Done alone does both.
//
// # Who goes first, and who need not ask
//
// [Work] says how important it is (Priority), who is responsible for it (User), and
// for which customer it is (Tenant). Gates with a wait room serve in that order:
// package limit says how.
// Two kinds of work take no slot. Work marked Exempt is counted and bounded apart. A
// call from within a permit of the same gate rides on that permit ([WithPermit]).
// Otherwise it would wait for its own caller.
//
// # For authors of gates
//
// Package slot makes permits that are safe to give back twice, [NewPermit] hands them
// out, and [Nested] finds those that a context carries. Users of gates need none of them.
//
// # When not to use it
//
// A gate protects what one process can see. A limit on concurrency is local by
// nature: it measures a local queue. It is no contract about requests a minute: that
// is a quota, which several processes can share through package weirredis. And no
// gate helps a service that is slow without load.
package weir
