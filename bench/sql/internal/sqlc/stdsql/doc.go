// Package stdsql is what sqlc makes of the queries of bench/sql/internal/sqlc for database/sql.
package stdsql
