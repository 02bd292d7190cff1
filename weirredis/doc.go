// Package weirredis keeps the buckets of package quota on a Redis or Valkey server.
// So several gateways or services can share one quota.
//
//	store, err := weirredis.New(weirredis.Config{URL: "redis://quotas.internal:6379"})
//	if err != nil {
//		return err
//	}
//	defer store.Close()
//	r, err := store.Decide(ctx, &quota.Request{
//		Key:     "user=alice",
//		Windows: []quota.Window{quota.Per(10, time.Second), quota.Per(1000, time.Hour)},
//		Cost:    1,
//	})
//
// # A decision
//
// Each decision is one script on the server, for all windows of one key. It reads the
// server's clock, brings the buckets up to date, and charges all of them or none. No
// process's own clock is part of it, so processes whose clocks differ share a quota exactly.
// If the server's clock steps back, no tokens come back, and time counts on from there. If it
// steps forward, tokens come back for the time it skipped, at most a full bucket.
//
// For calendars the script learns the starts of a few periods around now, by the process's
// time zones. The server's clock says which of them it is in. If the two clocks are three
// periods apart, the decision fails.
//
// The server keeps tokens and the time they were counted at, in microseconds, and never a
// rate. So a rate that changes leaves tokens and debts as they are. The new rate holds from
// the last decision that was written. Every charge is written, and one refusal a second. A key expires after
// twice the time that its buckets need to be full again.
//
// # When the server is slow or gone
//
// A decision takes at most [Config.Deadline], 50 ms by default. Then the error is an
// [*Error], and the gate does what its OnStoreError says. A script that was sent is never
// sent again, because it may have charged: see [Error.Charged]. After three failures in a
// row all decisions fail at once, and nothing is sent but one probe at a time. The probes
// come at growing and random intervals of up to 1.5 s. In a cluster, this holds for each
// sixteenth of the keys. A node that is gone affects only its own keys.
//
// At most [Config.MaxInFlight] decisions are under way (in a cluster, four times as
// many). Each has one goroutine, whether or not somebody still waits for it. A lone
// caller of a server that stands alone needs none: it has a connection of its own.
//
// # The server
//
// Redis 6.0 or newer, or Valkey: alone, with Sentinel, or as a cluster. Its
// maxmemory-policy must be noeviction. Under any other it drops buckets when memory is
// short, and a dropped bucket comes back full. So such a server is refused. The user
// needs the keys that begin with [Config.Prefix], and
//
//	+eval +evalsha +get +set +pttl +time +info +ping +hello +client|setname
//
// and of a cluster +cluster|slots +cluster|shards +asking, behind Sentinel +role, for a
// DB other than 0 +select. Sentinels have users of their own: see [Sentinel].
//
// Charges that replication loses in a failover are lost here too. A replica that is
// promoted has not seen the last charges, so more is admitted for the time of its lag.
package weirredis
