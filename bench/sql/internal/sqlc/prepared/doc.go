// Package prepared is what sqlc makes of the queries of bench/sql/internal/sqlc for database/sql, with statements that are prepared once.
package prepared
