package weirpgx

import (
	"context"
	"errors"
	"regexp"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/weirsql"
)

// classify is [weirsql.Classify], but for mistakes of the caller that pgx finds. They would cut the limit of a database that
// is well. A result that cannot be scanned is OK: the server has answered. What cannot be sent is NoSample. Most of that
// would be OK if the server found it, but here nothing was executed, and the time that it took says nothing.
func classify(ctx context.Context, err error) weir.Outcome {
	o := weirsql.Classify(ctx, err)
	switch {
	case o == weir.Failed && (errors.As(err, new(pgx.ScanArgError)) || says(err, badResults)):
		return weir.OK
	case o == weir.Failed && says(err, badArguments), o == weir.Overload && ctx.Err() == nil && uncopiable(err):
		return weir.NoSample
	}
	return o
}

// badResults matches the errors of pgx for results that do not fit what they are scanned into, if the error has no type.
var badResults = regexp.MustCompile(`^(number of field descriptions must equal number of destinations, |cannot scan into \*pgtype\.DriverBytes )`)

// badArguments matches the errors of pgx for arguments that it cannot send: they have no type. If another version of pgx has
// other words, they are Failed.
var badArguments = regexp.MustCompile(`^(failed to encode args\[\d+\]: |unable to encode |expected \d+ arguments, got \d+$|mismatched param and argument count$|insufficient arguments$|unused argument: \d+$|rewrite query failed: )`)

// says reports whether pgx gives that mistake as the reason. For a batch, another error is around that.
func says(err error, mistake *regexp.Regexp) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if mistake.MatchString(err.Error()) {
			return true
		}
	}
	return false
}

// badRow matches what pgx tells the server when it breaks a copy off. The server calls that cancelled, in its own language.
var badRow = regexp.MustCompile(`: (unable to encode |expected \d+ values, got \d+ values$)`)

// uncopiable reports whether pgx cannot send a row of a copy.
func uncopiable(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.Code == "57014" && badRow.MatchString(answer.Message)
}
