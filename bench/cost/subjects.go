package cost

import (
	"context"
)

// fixed is admit and done of a limit that nobody moves, one slot at a time.
func fixed() Group {
	return Group{
		Name:  "admit + done, fixed limit",
		Floor: Subject{Name: "pair of compare-and-swaps", New: ready(casPair)},
		Peers: []Subject{
			{Name: "weir TryAdmit", Goal: Goal{Ratio: 1.5, Shared: 1.3}, New: weirLoop(size, nil, tryAdmit)},
			{Name: "weir TryAdmit, eight held", New: weirLoop(size, nil, tryAdmitHolding)},
			{Name: "weir Admit", Goal: Goal{Ratio: 2}, New: weirLoop(size, nil, admit(context.Background()))},
			{Name: "weir Admit, cancellable context", Goal: Goal{Ratio: 2}, New: cancellable(size, nil, admit)},
			{Name: "weir Admit, priority, user, tenant", New: weirLoop(size, nil, admitWork(context.Background(), named))},
			{Name: "sync.Mutex and a count", New: ready(mutex)},
			{Name: "buffered channel", New: ready(channel)},
			{Name: "x/sync semaphore TryAcquire", New: ready(semaphoreTry)},
			{Name: "x/sync semaphore Acquire", New: ready(semaphoreAcquire)},
			{Name: "failsafe-go adaptive limiter", New: ready(failsafeTry), Parks: true},
		},
	}
}

// sampled is the same for a limit that learns from latency.
func sampled() Group {
	return Group{
		Name:  "admit + done with a latency sample",
		Floor: Subject{Name: "two clock reads and the pair", New: ready(clockedCASPair)},
		Peers: []Subject{
			{Name: "weir TryAdmit, AIMD", Goal: Goal{Ratio: 1.4}, New: weirLoop(0, aimd, tryAdmit)},
			{Name: "weir Admit, AIMD", New: weirLoop(0, aimd, admit(context.Background()))},
			{Name: "failsafe-go adaptive limiter", New: ready(failsafeTry), Parks: true},
		},
	}
}

// refusal is being told no, with gate, reason and time to come back.
func refusal() Group {
	return Group{
		Name:  "refusal",
		Floor: Subject{Name: "counter alone", New: ready(refusedCount)},
		Peers: []Subject{
			{Name: "weir TryAdmit", Goal: Goal{Extra: 30}, New: weirFull(refusedTry)},
			{Name: "weir Admit, no wait room", Goal: Goal{Extra: 30}, New: weirFull(refusedAdmit)},
			{Name: "full channel", New: ready(fullChannel)},
			{Name: "x/sync semaphore TryAcquire", New: ready(semaphoreFull)},
			{Name: "failsafe-go adaptive limiter", New: ready(failsafeFull), Parks: true},
		},
	}
}

// handoff is passing the only slot from one goroutine to the next.
func handoff() Group {
	return Group{
		Name:  "hand-off to a waiter",
		Pair:  true,
		Floor: Subject{Name: "channel under select with a context", New: channelHandoff},
		Peers: []Subject{
			{Name: "weir Admit, cancellable context", Goal: Goal{Ratio: 1.2}, New: cancellable(1, nil, passOn)},
			{Name: "weir Admit", New: weirLoop(1, nil, passOn(context.Background()))},
			{Name: "weir Admit, priority, user, tenant", New: weirLoop(1, nil, passOnWork(context.Background(), named))},
			{Name: "x/sync semaphore Acquire", New: ready(semaphoreHandoff)},
			{Name: "failsafe-go adaptive limiter, queueing", New: ready(failsafeHandoff)},
		},
	}
}
