package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// stateError is an error of a database, as drivers return it.
type stateError string

func (e stateError) Error() string    { return "SQLSTATE " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// numberError is an error of MySQL: its number is a field.
type numberError struct{ number uint16 }

func (e *numberError) Error() string { return fmt.Sprint("Error ", e.number) }

// untimed is a context whose deadline has passed, and whose timer has not run yet.
type untimed struct{ context.Context }

func (untimed) Deadline() (time.Time, bool) { return time.Unix(0, 0), true }

func TestClassify(t *testing.T) {
	lives := context.Background()
	cancelled, cancel := context.WithCancel(lives)
	cancel()
	late, cancelLate := context.WithDeadline(lives, time.Unix(0, 0))
	defer cancelLate()
	rejected := func(r weir.Reason) error { return &weir.Rejection{Gate: "db", Reason: r} }
	tests := []struct {
		name string
		ctx  context.Context
		err  error
		want weir.Outcome
	}{
		{"no error", lives, nil, weir.OK},
		{"no error, and the caller leaves now", cancelled, nil, weir.OK},
		{"no error, after the caller's deadline", late, nil, weir.Overload},
		{"no error, and the timer of the deadline is late", untimed{lives}, nil, weir.Overload},
		{"an error, and the timer of the deadline is late", untimed{lives}, stateError("57014"), weir.Overload},
		{"no rows, after the caller's deadline", untimed{lives}, sql.ErrNoRows, weir.Overload},
		{"cancelled by the caller", cancelled, stateError("57014"), weir.Abandoned},
		{"cancelled, connection closed for that", cancelled, driver.ErrBadConn, weir.Abandoned},
		{"past the caller's deadline", late, stateError("57014"), weir.Overload},
		{"past it, connection closed for that", late, driver.ErrBadConn, weir.Overload},
		{"past it, with a failure of its own", late, stateError("40001"), weir.Overload},
		{"cancelled by somebody else", lives, context.Canceled, weir.Abandoned},
		{"deadline of somebody else", lives, context.DeadlineExceeded, weir.Overload},
		{"no rows", lives, sql.ErrNoRows, weir.OK},
		{"no rows, wrapped", lives, fmt.Errorf("user 7: %w", sql.ErrNoRows), weir.OK},
		{"too many connections", lives, stateError("53300"), weir.Overload},
		{"too many connections, wrapped", lives, fmt.Errorf("connect: %w", stateError("53300")), weir.Overload},
		{"one of several", lives, errors.Join(errors.New("host a"), stateError("53300")), weir.Overload},
		{"out of memory", lives, stateError("53200"), weir.Overload},
		{"starting up", lives, stateError("57P03"), weir.Overload},
		{"no lock", lives, stateError("55P03"), weir.Overload},
		{"time-out of the statement", lives, stateError("57014"), weir.Overload},
		{"time-out of the transaction", lives, stateError("25P04"), weir.Overload},
		{"serialization", lives, stateError("40001"), weir.Failed},
		{"deadlock", lives, stateError("40P01"), weir.Failed},
		{"shut down by an operator", lives, stateError("57P01"), weir.Failed},
		{"in a failed transaction", lives, stateError("25P02"), weir.Failed},
		{"key exists", lives, stateError("23505"), weir.OK},
		{"bad value", lives, stateError("22P02"), weir.OK},
		{"syntax", lives, stateError("42601"), weir.OK},
		{"several rows where one is wanted", lives, stateError("21000"), weir.OK},
		{"not supported", lives, stateError("0A000"), weir.OK},
		{"raised by a function", lives, stateError("P0001"), weir.OK},
		{"internal", lives, stateError("XX000"), weir.Failed},
		{"empty state", lives, stateError(""), weir.Failed},
		{"short state", lives, stateError("5"), weir.Failed},
		{"long state", lives, stateError("533000"), weir.Failed},
		{"broken connection", lives, driver.ErrBadConn, weir.Failed},
		{"broken by a time-out", lives, errors.Join(driver.ErrBadConn, os.ErrDeadlineExceeded), weir.Failed},
		{"time-out of the network", lives, os.ErrDeadlineExceeded, weir.Overload},
		{"refused by a gate", lives, rejected(weir.ReasonQueueFull), weir.Overload},
		{"a gate that closes", lives, rejected(weir.ReasonDraining), weir.Failed},
		{"unknown", lives, errors.New("?"), weir.Failed},
	}
	for _, tt := range tests {
		if got := Classify(tt.ctx, tt.err); got != tt.want {
			t.Errorf("%s (%v): %v, want %v", tt.name, tt.err, got, tt.want)
		}
	}
}

func TestClassifyMySQL(t *testing.T) {
	classify := ClassifyMySQL(func(err error) (uint16, bool) {
		var e *numberError
		if !errors.As(err, &e) {
			return 0, false
		}
		return e.number, true
	})
	lives := context.Background()
	cancelled, cancel := context.WithCancel(lives)
	cancel()
	tests := []struct {
		name string
		ctx  context.Context
		err  error
		want weir.Outcome
	}{
		{"no error", lives, nil, weir.OK},
		{"no error, after the caller's deadline", untimed{lives}, nil, weir.Overload},
		{"cancelled by the caller", cancelled, &numberError{1317}, weir.Abandoned},
		{"no rows", lives, sql.ErrNoRows, weir.OK},
		{"too many connections", lives, &numberError{1040}, weir.Overload},
		{"of one user", lives, fmt.Errorf("connect: %w", &numberError{1203}), weir.Overload},
		{"waited for a lock", lives, &numberError{1205}, weir.Overload},
		{"would wait for a lock", lives, &numberError{3572}, weir.Overload},
		{"past the time of a statement", lives, &numberError{3024}, weir.Overload},
		{"the same of MariaDB", lives, &numberError{1969}, weir.Overload},
		{"killed", lives, &numberError{1317}, weir.Overload},
		{"deadlock", lives, &numberError{1213}, weir.Failed},
		{"key exists", lives, &numberError{1062}, weir.OK},
		{"an alias twice", lives, &numberError{1066}, weir.OK},
		{"columns and values differ in number", lives, &numberError{1136}, weir.OK},
		{"several rows where one is wanted", lives, &numberError{1242}, weir.OK},
		{"no such function", lives, &numberError{1305}, weir.OK},
		{"no value and no default", lives, &numberError{1364}, weir.OK},
		{"out of range in an expression", lives, &numberError{1690}, weir.OK},
		{"shut down", lives, &numberError{1053}, weir.Failed},
		{"zero", lives, &numberError{0}, weir.Failed},
		{"broken connection", lives, driver.ErrBadConn, weir.Failed},
		{"time-out of the network", lives, os.ErrDeadlineExceeded, weir.Overload},
		{"unknown", lives, errors.New("?"), weir.Failed},
	}
	for _, tt := range tests {
		if got := classify(tt.ctx, tt.err); got != tt.want {
			t.Errorf("%s (%v): %v, want %v", tt.name, tt.err, got, tt.want)
		}
	}
}
