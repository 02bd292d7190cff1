// Package pgxsql is what sqlc makes of the queries of bench/sql/internal/sqlc for pgx.
package pgxsql
