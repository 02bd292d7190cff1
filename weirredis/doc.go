// Package weirredis keeps the buckets of package quota on a Redis or Valkey server,
// so that several gateways or services share one quota.
//
//	store, err := weirredis.New(weirredis.Config{URL: "redis://quotas.internal:6379"})
//	if err != nil {
//		return err
//	}
//	defer store.Close()
//	r, err := store.Decide(ctx, &quota.Request{
//		Key:    "user=alice",
//		Windows: []quota.Window{quota.Per(10, time.Second), quota.Per(1000, time.Hour)},
//		Cost:   1,
//	})
//
// # A decision
//
// Each is one script on the server, for all windows of one key: it reads the
// server's clock, brings the buckets up to date, and charges all of them or none.
// No process's own clock is part of it, so processes whose clocks differ share a
// quota exactly. A clock of the server that steps back credits nothing, and time
// counts on from where it is; one that steps forward credits the time it skipped,
// at most a full bucket.
//
// Calendars are told to the script as the starts of a few periods around now, by
// the process's time zones; which of them it is in, the server's clock says. If the
// two are three periods apart, the decision fails.
//
// Tokens and the time they were counted at are stored, in microseconds, and never a
// rate: a rate that changes keeps tokens and debts, and holds from the last decision
// that was written down, which is any that charged, and of refusals one a second. A
// key goes by itself after twice the time that its buckets need to be full again.
//
// # When the server is slow or gone
//
// A decision takes at most [Config.Deadline], 50 ms by default. Then the error is
// an [*Error], and whoever asked lets the work in, refuses it, or goes by a bucket
// of its own. A script that was sent is never sent again, for it may have charged:
// [Error.Charged] says which those are. Three failures in a row, and nothing is
// sent but one probe at a time, at growing and jittered intervals of up to 1.5 s;
// all other decisions fail at once. Of a cluster, this is so for each sixteenth of
// the keys: one node that is gone takes only its own with it. At most
// [Config.MaxInFlight] decisions are under way (of a cluster, four times as many), each
// with one goroutine, whether or not somebody still waits for them. Whoever is alone in
// asking a server that stands alone needs none: it has a connection of its own.
//
// # The server
//
// Redis 6.0 or newer, or Valkey, alone, with Sentinel, or as a cluster. Its
// maxmemory-policy must be noeviction: under any other it drops buckets when memory
// is short, and a bucket that is dropped comes back full, so such a server is
// refused. The user needs the keys that begin with [Config.Prefix], and
//
//	+eval +evalsha +get +set +pttl +time +info +ping +hello +client|setname
//
// and of a cluster +cluster|slots +cluster|shards +asking, behind Sentinel +role, for a
// DB other than 0 +select. Sentinels have users of their own: see [Sentinel].
//
// What replication loses in a failover is lost here too: a replica that is promoted
// has not seen the last charges, so for the time of its lag more is let through.
package weirredis
