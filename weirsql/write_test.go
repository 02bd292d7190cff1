package weirsql

import (
	"database/sql"
	"strings"
	"testing"
)

func TestIsWrite(t *testing.T) {
	tests := []struct {
		call call
		want bool
	}{
		{call{method: methodPing}, false},
		{call{method: methodConn}, true},
		{call{method: methodBegin}, true},
		{call{method: methodBegin, opts: &sql.TxOptions{}}, true},
		{call{method: methodBegin, opts: &sql.TxOptions{ReadOnly: true}}, false},
		{call{method: methodExec, query: "SELECT 1"}, true},
		{call{method: methodPrepare, query: "SELECT 1"}, false},
		{call{method: methodQuery, query: "INSERT INTO t VALUES (1) RETURNING id"}, true},
		{call{method: "?"}, true},
	}
	for _, tt := range tests {
		if got := tt.call.isWrite(); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.call, got, tt.want)
		}
	}
}

func TestOnlyReads(t *testing.T) {
	reads := []string{
		"SELECT 1",
		"  select * from t where id = $1;  ",
		"SELECT count(*), max(a) FROM t WHERE b IN (1, 2) AND c = 'for update'",
		"-- why\nSELECT a FROM t",
		"/* why */ SELECT a FROM t -- and this",
		"(SELECT a FROM t) UNION ALL (SELECT a FROM u)",
		"VALUES (1), (2)",
		"TABLE t",
		"SHOW server_version",
		"EXPLAIN SELECT a FROM t",
		"WITH x AS (SELECT a FROM t) SELECT * FROM x",
		`SELECT "insert" FROM t`,
		"SELECT `update` FROM t",
		"SELECT t.a FROM s.t",
		"SELECT 1.5e3 + 2E-3 + .5 + 1e+3 + 1_000 + 0xFf + 0b01 + 0o17 + a FROM t LIMIT 1",
		"SELECT COALESCE (a, 0) FROM t",
		"SELECT 'it''s'",
		"SELECT a - (b / (c)) FROM t",
		"SELECT a FROM t WHERE b=$1 AND c IN ($2, $3) AND d = ANY($4) LIMIT $5",
		"SELECT offset_, reset, settings, executed, backups FROM t WHERE a = 2 AND (b = 1) OR (c = 3)",
		"SELECT a FROM t\nWHERE b = $1 -- whose\n  AND c IN ('new', 'paid')",
		"SELECT a FROM t -- these\nWHERE b IN (1) LIMIT 10 /* page */ OFFSET (2)",
		"SELECT e.set, e.reps FROM exercises e ORDER BY e.set",
		"SELECT allow, deny FROM acl WHERE deny = $1 AND backup IS NULL ORDER BY set DESC",
		"SELECT backup, restore AS r, exec FROM hosts WHERE kill > 1 AND enable",
		"SELECT CAST(a AS CHAR CHARACTER SET utf8mb4)",
		"SHOW CHARACTER SET",
		"SELECT commit, save FROM builds WHERE commit = $1 AND rollback IS NULL",
		"SELECT b.commit FROM builds b ORDER BY b.commit",
		"SELECT id FROM builds ORDER BY commit",
		"SELECT id FROM builds ORDER BY id DESC, commit",
		"SELECT id FROM builds ORDER BY commit LIMIT 5",
		"SELECT id FROM builds WHERE sha = commit",
		"SELECT id FROM builds WHERE sha <> /* not */ commit;",
		"SELECT id FROM builds WHERE a = b + rollback GROUP BY rollback HAVING NOT b",
		"SELECT id, commit sha FROM builds",
		"SELECT commit sha FROM builds",
		"SELECT max(sha) AS commit",
		"SELECT größe, q, nq FROM t WHERE a = N'x'",
		"SELECT a FROM t WHERE b = 'two\u00a0words'",
	}
	for _, q := range reads {
		if !onlyReads(q) {
			t.Errorf("%q is a read", q)
		}
	}
	writes := []string{
		"", "  ", ";", "--", "1", "(",
		"SELECT 1 --c\r, nextval('s')", // a carriage return ends a comment in PostgreSQL
		"SELECT 1--f()",                // two minuses in MySQL
		"SELECT nextval\v('s')",
		"SELECT [f](1)",
		"INSERT INTO t VALUES (1)",
		"UPDATE t SET a = 1",
		"WITH x AS (INSERT INTO t VALUES (1) RETURNING a) SELECT * FROM x",
		"SELECT a FROM t FOR UPDATE",
		"SELECT a FROM t\nfor no key update",
		"SELECT a FROM t FOR SHARE",
		"SELECT a INTO u FROM t",
		"SELECT nextval('s')",
		"SELECT s.nextval FROM dual",
		"SELECT f (1)",
		"SELECT f/**/(1)",
		"SELECT s.count(*)",
		"SELECT s . count(*)",
		`SELECT "count"(*)`,
		"SELECT 1; DELETE FROM t",
		"SELECT 1; SELECT 2",
		"EXPLAIN ANALYZE DELETE FROM t",
		"SELECT a FROM t LOCK IN SHARE MODE",
		"SELECT a FROM t LIMIT 1FOR SHARE", // PostgreSQL up to 14 reads two words
		"SELECT 1INTO u FROM t",
		"SELECT 0x1FINTO u FROM t",
		"SELECT 1e5INTO u FROM t",
		"SELECT 1.5INTO u FROM t",
		"SELECT a FROM t LIMIT $1FOR SHARE",
		"CALL f()",
		"SET a = 1",
		"SELECT f$1()", // a name with a dollar
		"SELECT f$$()",
		"SELECT a FROM t WHERE f$1(b) = 2",
		"SELECT s.f$()",
		"SELECT x$1.count(7)",
		"SELECT 1$1.count(7)",
		"SELECT 1e(2)", // a function of MySQL
		"SELECT 0x(2)",
		"SELECT 1e (2)",
		"SELECT 12(3)",
		"SELECT 1 EXEC dbo.purge", // a second statement of T-SQL
		"select 1 exec purge",
		"SELECT 1.EXEC purge",
		"SELECT 1. FROM s.count(*)", // a function of somebody's
		`SELECT 1. FROM "t" s.count(*)`,
		"SELECT 1 EXEC limit",
		"SELECT 1 character EXEC purge",
		"SELECT a FROM t EXEC 'purge'",
		"SELECT 1 EXEC @p",
		"SELECT 1 EXEC /* now */ purge",
		"SELECT 1 DISABLE TRIGGER t ON u",
		"SELECT 1 KILL 53",
		"SELECT 1 -- (\n f(2)",
		"SELECT 1 REVOKE SELECT ON t FROM u",
		"SELECT 1 DENY SELECT ON t TO u",
		"SELECT 1 SET IDENTITY_INSERT t ON",
		"SELECT 1 BACKUP DATABASE d TO DISK = 'x'",
		"SELECT 1 RESTORE DATABASE d FROM DISK = 'x'",
		"SELECT 1 SHUTDOWN",
		"SELECT a FROM t SHUTDOWN WITH NOWAIT",
		"SELECT 1 COMMIT",
		"SELECT 1 commit; ",
		"SELECT 1 ROLLBACK -- all",
		"SELECT 1 ROLLBACK TRAN",
		"SELECT 1 SAVE TRAN a",
		"SELECT * COMMIT",
		"SELECT 1. COMMIT",
		"SELECT a, b COMMIT",
		"SELECT a FROM t WHERE b = 'x' COMMIT",
		"SELECT a FROM t WHERE b = $1 COMMIT",
		"SELECT a FROM t WHERE b = (1) COMMIT",
		`SELECT a FROM t WHERE b = "c" COMMIT`,
		"SELECT a FROM t WHERE b = 1.COMMIT",
		"SELECT t.by COMMIT",
		"SELECT q'!'!', purge(1), q'!'!' FROM dual", // quotes of Oracle
		"SELECT Nq'('(', purge(1), nQ')')' FROM dual",
		"SELECT 1 FROM t\u00a0DELETE\u00a0FROM t", // blanks to SQL Server and Oracle
		"SELECT 1 FROM t\u3000DELETE FROM t",
		`SELECT '\'' , f(1) , '`,
		"SELECT $$ ' $$, f(1)",
		"SELECT 'open",
		"SELECT /* open",
		"SELECT /*! f(1) */ 1",
		"SELECT /* /* */ 1",
		"SELECT 1 # f()",
		"SELECT @a := 1",
		"EXPLAIN (ANALYZE) SELECT 1",
		"SELECT " + strings.Repeat("x", 40) + "(1)",
		"SELECT '" + strings.Repeat("x", longestScan) + "'",
	}
	for _, q := range writes {
		if onlyReads(q) {
			t.Errorf("%q may be a write", q)
		}
	}
}

// For any text, the scan ends and does not panic. A text with a word of a write, outside of quotes and
// comments, is not a read.
func FuzzOnlyReads(f *testing.F) {
	for _, q := range []string{"SELECT 1", "WITH x AS (SELECT 'a') SELECT * FROM x", `SELECT "a"`, "a.b/*", "$1$"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, q string) {
		plain := !strings.ContainsAny(q, "'\"`$") && !strings.Contains(q, "--") && !strings.Contains(q, "/*")
		if onlyReads(q) && plain && strings.Contains(" "+strings.ToLower(q)+" ", " delete ") {
			t.Errorf("%q passes for a read", q)
		}
	})
}
