// Package weirpgx puts a weir gate in front of a pgxpool.Pool.
//
//	cfg, err := pgxpool.ParseConfig("postgres://app@db.internal/app?pool_max_conns=64")
//	if err != nil {
//		return err
//	}
//	db, err := weirpgx.Open(ctx, cfg, limit.Config{Name: "db"}) // finds how many at once suit the database
//	if err != nil {
//		return err
//	}
//	defer db.Close()
//
// A [Pool] has those methods of a pgxpool.Pool that start work, and returns pgx's own types. So code that sqlc has
// generated, and whatever else wants pgx's usual methods, takes it as it is. Only Acquire returns a [Conn], which
// has all of a pgxpool.Conn. [Pool.InConn] stands for AcquireFunc, and [Pool.Unguarded] has the rest.
//
// # What a slot is held for
//
// Whoever waits in the gate holds no connection, and whoever is refused never had one. One piece of
// work holds one slot until its connection is back in the pool:
//
//	Exec, CopyFrom   until they return
//	Query            until the rows are closed: by Close, by a Next or Scan that fails, by the last row
//	QueryRow         until Scan has returned
//	SendBatch        until the results are closed; if the batch began a transaction, until that ends
//	Begin, BeginTx   until Commit or Rollback; its statements never ask
//	Acquire          until Release or Hijack; its statements never ask
//
// What is never closed, ended or released keeps its slot as it keeps its connection. The option
// FindLeaks of a limiter finds and names it.
//
// # Calls within calls
//
// A query on the pool inside a transaction takes a second slot, and its caller holds one already. If
// all who hold one want a second, nobody moves until a wait ends. [Pool.InTx] and [Pool.InConn] give
// their function a context that carries the slot, so a call on the same gate takes no second one. It
// still takes a second connection: one of those for exempt work, or it waits in the pool. Better use
// the transaction itself.
//
// # What the gate learns
//
// A query gives its sample when its first row is there. So a caller that reads rows slowly holds a
// slot but is no slow sample. All else is sampled at its end. A transaction counts from Begin to its
// end, with what its caller does in between: the connection is in use all that time. Acquire gives
// no sample, because how long somebody keeps a connection says nothing about the database.
//
// The outcome is what [weirsql.Classify] says of the error, or the function of [WithClassify]. A transaction that is rolled back counts
// by its last statement that failed; without one it is as good as any other.
//
// # Reads and writes
//
// Exec, CopyFrom, Acquire and transactions that are not read only are marked as writes ([weir.Work.Write]).
// Queries, and what is in a batch, are judged by their text, as [weirsql.IsWrite] does: in doubt they
// are writes, too. [WithWork] can correct that, and say who asks. One gate for both is the default.
// Use pools for each (keyed.ReadWrite) only with control.ProbePair or with fixed sizes: two default
// limiters before one database take from each other.
//
// # Contexts that end
//
// By default pgx closes a connection whose context ends, and cancels the statement in the background.
// Under overload a storm of time-outs then leaves many more backends at work than there are slots, and a
// new connection for each. With [Open] the connection and its slot are held until the server has ended the
// statement, and nothing is closed:
//
//   - A statement may go on for 20 ms more. Most end by themselves in that time, and count as late.
//   - Then the server is told to stop it, and again each half second. Mostly it says that it did, and the connection is of use at once.
//   - Where it does not say so the cancel may come late, and would stop the next statement. So the connection rests for
//     100 ms. pgconn.CancelRequestContextWatcherHandler rests so after each cancel. An lc_messages that is not English
//     is not understood, and brings that back.
//   - A transaction is rolled back although its context has ended. pgx would close the connection. Commit rolls back, too, if its
//     context has ended before, and its error says so. In a connection of Acquire both are pgx's own.
//   - After [CancelPatience] the connection is closed all the same.
//
// A cancel that is later than 100 ms stops the next statement, with SQLSTATE 57014. That was seen on a server that
// had hardly any processor time. For a pool that is made elsewhere, [CancelRequests] does all this but the rollback,
// which [New] does.
//
// A statement may also have less time than its context: see [WithBudget].
//
// # The size of the pool
//
// pgx's default of 4 connections, or one for each processor, is a guess that no limiter can pass. Set
// MaxConns to what the database can spare for this process. The limiter finds how many of them to use.
// Its ceiling is MaxConns less the places for exempt work: see [Open].
//
// Nobody should have to wait in the pool, where neither priority nor deadline counts. A Pool
// looks now and then, and says so once in the log when somebody finds no connection free. Where others
// share the pool, [PoolWait] is a signal of it.
package weirpgx
