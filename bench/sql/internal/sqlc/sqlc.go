// Package sqlc has queries that sqlc turns into Go: for database/sql, for the same with emit_prepared_queries, and
// for pgx. The tests of bench/sql pass weir's pools to that code.
package sqlc

import _ "embed"

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate

// Schema makes the table of the queries.
//
//go:embed schema.sql
var Schema string
