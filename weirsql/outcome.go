package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/weir-go/weir"
)

// Classify maps the error of a statement to an Outcome. ctx is the caller's own context. The first line
// that fits holds:
//
//	nil, in time                                         OK
//	ctx is cancelled                                     Abandoned
//	ctx is past its deadline, with an answer or without  Overload
//	a Rejection                                          as weir.Classify
//	sql.ErrNoRows                                        OK
//	SQLSTATE 53xxx      too few resources, connections   Overload
//	         57P03      the server cannot connect now    Overload
//	         55P03      a lock was not available         Overload
//	         57014      cancelled, as by a time-out      Overload
//	         25P04      the transaction took too long    Overload
//	         40001, 40P01  serialization, deadlock       Failed
//	         02, 0A, 21, 22, 23, 42, 44, P0  a plain "no"  OK
//	         any other                                   Failed
//	driver.ErrBadConn                                    Failed
//	anything else                                        as weir.Classify
//
// So nil can be Overload: an answer that comes after its deadline is of no use to its caller. A transaction that has been
// committed is OK, however late.
//
// An error has an SQLSTATE if the error, or one that it wraps, has a method SQLState() string. Errors of pgx
// and lib/pq have it.
//
// Transactions that hinder each other are Failed, not Overload. The default limiter counts good answers, so it
// finds the limit at which transactions still commit. If they counted as Overload, one contended row would cut
// a limit of AIMD to its minimum.
//
// A plain "no" is a mistake of the caller, or an answer such as that a key exists already. The database did its
// work, and the time that it took is a fair sample.
func Classify(ctx context.Context, err error) weir.Outcome {
	if o, ok := classifyCommon(ctx, err); ok {
		return o
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return classifyState(state.SQLState())
	}
	return classifyOther(err)
}

// classifyCommon decides what does not depend on the database.
func classifyCommon(ctx context.Context, err error) (weir.Outcome, bool) {
	late, cancelled := state(ctx)
	switch {
	case err == nil && !late:
		return weir.OK, true
	case cancelled:
		return weir.Abandoned, true
	case late:
		return weir.Overload, true
	case errors.Is(err, weir.ErrRejected):
		return weir.Classify(err), true
	case errors.Is(err, sql.ErrNoRows):
		return weir.OK, true
	}
	return weir.NoSample, false
}

// state reports how ctx has ended, if it has. On a busy machine the timer of a deadline can fire late, so state
// compares the deadline with the clock. If a caller cancels after its answer, the answer was in time.
func state(ctx context.Context) (late, cancelled bool) {
	if err := ctx.Err(); err != nil {
		return err != context.Canceled, err == context.Canceled
	}
	by, ok := ctx.Deadline()
	return ok && !time.Now().Before(by), false
}

// classifyOther decides about errors that have no number of a database. A broken connection is no sign of
// overload, whatever else the error wraps.
func classifyOther(err error) weir.Outcome {
	if errors.Is(err, driver.ErrBadConn) {
		return weir.Failed
	}
	return weir.Classify(err)
}

// classifyState decides by an SQLSTATE: five characters, the first two of which are its class.
func classifyState(state string) weir.Outcome {
	if len(state) != 5 {
		return weir.Failed
	}
	switch state {
	case "57P03", "55P03", "57014", "25P04":
		return weir.Overload
	}
	switch state[:2] {
	case "53":
		return weir.Overload
	case "00", "01", "02", "0A", "21", "22", "23", "42", "44", "P0":
		return weir.OK
	}
	return weir.Failed
}

// ClassifyMySQL returns a function that does what [Classify] does for MySQL and MariaDB, whose errors have
// numbers. number returns the number of an error, and false if it has none. With go-sql-driver/mysql:
//
//	weirsql.ClassifyMySQL(func(err error) (uint16, bool) {
//		var e *mysql.MySQLError
//		if !errors.As(err, &e) {
//			return 0, false
//		}
//		return e.Number, true
//	})
//
// The numbers that it knows:
//
//	1040, 1203, 1226  too many connections, or too much of one user  Overload
//	1021, 1037, 1038, 1041, 1135, 1206  no disk, memory or thread    Overload
//	1205, 3572        waited too long for a lock, or would have to   Overload
//	1317, 1969, 3024  interrupted, or past the statement's time      Overload
//	3168              the server is not available now                Overload
//	1022, 1048, 1054, 1062, 1064, 1066, 1136, 1146, 1242, 1264,
//	1292, 1305, 1364, 1366, 1406, 1451, 1452, 1644, 1690, 3819,
//	4025              a plain "no"                                   OK
//	any other, such as 1213 (deadlock) and 1020 (row changed)        Failed
func ClassifyMySQL(number func(error) (uint16, bool)) func(ctx context.Context, err error) weir.Outcome {
	return func(ctx context.Context, err error) weir.Outcome {
		if o, ok := classifyCommon(ctx, err); ok {
			return o
		}
		if n, ok := number(err); ok {
			return classifyNumber(n)
		}
		return classifyOther(err)
	}
}

func classifyNumber(n uint16) weir.Outcome {
	switch n {
	case 1040, 1203, 1226, 1021, 1037, 1038, 1041, 1135, 1206, 1205, 3572, 1317, 1969, 3024, 3168:
		return weir.Overload
	case 1022, 1048, 1054, 1062, 1064, 1066, 1136, 1146, 1242, 1264, 1292, 1305, 1364, 1366, 1406, 1451, 1452, 1644, 1690, 3819, 4025:
		return weir.OK
	}
	return weir.Failed
}
