// Package weirpgx puts a weir gate in front of a pgxpool.Pool.
//
//	cfg, err := pgxpool.ParseConfig("postgres://app@db.internal/app?pool_max_conns=64")
//	if err != nil {
//		return err
//	}
//	db, err := weirpgx.Open(ctx, cfg, limit.Config{Name: "db"}) // finds the best limit for the database
//	if err != nil {
//		return err
//	}
//	defer db.Close()
//
// A [Pool] has the methods of a pgxpool.Pool that start work, and returns pgx's own types. So code from sqlc,
// and other code that calls pgx's usual methods, can use it as it is. Only Acquire returns a [Conn], which has
// all of a pgxpool.Conn. [Pool.InConn] replaces AcquireFunc, and [Pool.Unguarded] has the rest.
//
// # What a slot is held for
//
// Work that waits in the gate holds no connection, and work that is refused never had one. One piece of work
// holds one slot until its connection is back in the pool:
//
//	Exec, CopyFrom   until they return
//	Query            until the rows are closed: by Close, by a Next or Scan that fails, by the last row
//	QueryRow         until Scan has returned
//	SendBatch        until the results are closed; if the batch began a transaction, until that ends
//	Begin, BeginTx   until Commit or Rollback; its statements never ask
//	Acquire          until Release or Hijack; its statements never ask
//
// Where the pool closes the connection or has an AfterRelease, the slot is free before that is done. New work may
// then wait for the connection, for a moment in the pool.
//
// Rows that are never closed keep their slot and their connection. So do transactions that never end, and
// connections that are never released. The option FindLeaks of a limiter finds and names them.
//
// # Calls within calls
//
// A query on the pool inside a transaction takes a second slot, and its caller holds one already. If all
// holders of a slot want a second one, all are blocked until a wait ends. [Pool.InTx] and [Pool.InConn] give
// their function a context that carries the slot. So a call on the same gate takes no second slot. It still
// takes a second connection: one for exempt work, or one for which it waits in the pool. Prefer the transaction
// itself.
//
// # What the gate learns
//
// A query gives its sample when its first row arrives. So a caller that reads rows slowly holds a slot but
// gives no slow sample. All other work is sampled at its end. A transaction counts from Begin to its end, with
// its caller's pauses: the connection is in use all that time. Acquire gives no sample, because how long
// somebody keeps a connection says nothing about the database.
//
// [weirsql.Classify], or the function of [WithClassify], turns the error into the outcome. A transaction that
// is rolled back has the outcome of its last failed statement. If no statement failed and its context has not
// ended, it is OK. Mistakes of the caller that pgx finds count for nothing against the database. What
// it cannot send, such as an argument that is too large for its type, is NoSample. A result that cannot be scanned is OK.
//
// # Reads and writes
//
// Exec, CopyFrom, Acquire and transactions that are not read only are marked as writes ([weir.Work.Write]).
// [weirsql.IsWrite] judges queries and the statements of a batch by their text: in doubt they are writes.
// [WithWork] can correct that, and say who asks. One gate for both is the default. Use separate pools
// (keyed.ReadWrite) only with control.ProbePair or with fixed sizes. Two default limiters before one database
// take slots from each other.
//
// # Deadlines
//
// The deadline of a context is that of the work. The gate refuses at once what would have to wait too long to be
// done by then, but for the first in line. A transaction has to end by the deadline of the context of its Begin. The context of Acquire bounds
// the wait only, and the gate is told no deadline but that of the request that a handler serves ([weir.WithReceived]).
// Work that has to wait is refused, too, if it has less time left than most work takes.
//
// # Contexts that end
//
// By default pgx closes a connection whose context ends, and cancels the statement in the background. Under
// overload, with many time-outs, many more backends then work than there are slots, and each time-out needs a
// new connection. With [Open] the connection and its slot are held until the server has ended the statement. No
// connection is closed:
//
//   - A statement may go on for 20 ms more. Most statements end by themselves in that time, and count as late.
//   - Then the server is asked to stop the statement, and again each half second. Mostly the server says that
//     it did, and the connection can be used at once.
//   - If the server does not say so, the cancel may arrive late and stop the next statement. So the connection
//     rests for 100 ms. pgconn.CancelRequestContextWatcherHandler rests after each cancel. With an lc_messages
//     that is not English the server is not understood, and the connection rests each time, too.
//   - A transaction is rolled back although its context has ended. pgx would close the connection. If the
//     context of Commit has ended before, Commit rolls back, too, and its error says so. On a connection of
//     Acquire, commit and rollback are pgx's own.
//   - After [CancelPatience] the connection is closed all the same.
//
// A connection that waits for notifications is idle, and its server ignores cancels. So WaitForNotification returns
// [CancelPatience] after the end of its context, and so does ReceiveMessage of a pgconn.PgConn. Make connections
// for LISTEN without CancelRequests, for instance with pgx.Connect.
//
// A cancel that is later than 100 ms stops the next statement, with SQLSTATE 57014. This happened on a server
// that had hardly any processor time. For a pool that is made elsewhere, [CancelRequests] does all this except
// the rollback, and [New] adds the rollback.
//
// The error of a statement that was cancelled so has both: that of the context, and the server's with SQLSTATE 57014.
// Below a [Conn] and under database/sql it is the server's alone. A statement may also have less time than its
// context: see [WithBudget].
//
// # The size of the pool
//
// pgx's default is 4 connections, or one for each processor if that is more. No limiter can admit more than
// that. Set MaxConns to what the database can spare for this process. The limiter finds how many of them to
// use. Its ceiling is MaxConns less the places for exempt work: see [Open].
//
// Nobody should have to wait in the pool, where neither priority nor deadline counts. A Pool looks now and
// then. When work finds no free connection, it writes one line to the log. If the pool is also used past the
// gate, [PoolWait] is a signal of such waits.
package weirpgx
