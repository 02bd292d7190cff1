package weirsql

import (
	"strings"
	"unicode"
)

// IsWrite reports whether a query may change something in any database, judged by its text. A read begins with
// SELECT or a similar word. It has no word such as INSERT or FOR, and calls only well-known functions. IsWrite
// is not a parser: in doubt, and for a text longer than 16 KiB, it returns true.
//
// It takes t.bump for a column. PostgreSQL can also call a function bump so, with a row of t. Such a call that writes
// needs [WithWork].
func IsWrite(query string) bool { return !onlyReads(query) }

// longestScan bounds the text that is scanned, in bytes. A longer text counts as a write.
const longestScan = 16 << 10

// onlyReads reports whether a query certainly changes nothing.
func onlyReads(query string) bool {
	if len(query) > longestScan {
		return false
	}
	s := scanner{rest: query}
	first, afterCharacter := true, false // afterCharacter: the word before is CHARACTER
	continues := false                   // the token before ends no statement, so a name follows
	for {
		switch s.next() {
		case tokenEnd:
			return !first
		case tokenDoubt:
			return false
		case tokenOther:
			continues = strings.IndexByte(continuing, s.sign) >= 0
			continue
		}
		word := s.lower()
		switch {
		case first && !opensRead(word):
			return false
		case changes(word):
			return false
		case second[string(word)] && !s.qualified && !continues && s.commands() && !(afterCharacter && string(word) == "set"): // of a type
			return false
		case alone[string(word)] && !s.qualified && !continues && s.ends():
			return false
		case s.called() && (s.qualified || !harmless[string(word)]):
			return false
		}
		first, afterCharacter = false, string(word) == "character"
		continues = !s.qualified && continuesAfter(word)
	}
}

// opensRead reports whether statements that begin with the word may be reads.
func opensRead(word []byte) bool {
	switch string(word) {
	case "select", "with", "values", "table", "show", "explain", "describe", "desc":
		return true
	}
	return false
}

// changes reports whether a statement with this word may be more than a read. SELECT … FOR UPDATE takes locks,
// and SELECT … INTO makes a table. EXPLAIN ANALYZE runs the statement, and s.NEXTVAL advances a sequence in
// some databases.
func changes(word []byte) bool {
	switch string(word) {
	case "insert", "update", "delete", "merge", "replace", "into", "for", "lock", "call", "do", "copy",
		"truncate", "create", "drop", "alter", "grant", "execute", "analyze", "analyse", "nextval":
		return true
	}
	return false
}

// second are words that begin a second statement of T-SQL, which follows without a semicolon. Elsewhere they are names of
// columns.
var second = setOf("exec", "revoke", "deny", "set", "backup", "restore", "kill", "disable", "enable", "receive", "writetext",
	"updatetext", "dbcc", "reconfigure", "shutdown", "commit", "rollback", "save")

// alone are those of them that need nothing after them.
var alone = setOf("shutdown", "commit", "rollback")

// continuing are the signs after which no statement ends. A star is none of them, because SELECT * may end.
const continuing = ",=<>+-/%|&^"

// continuesAfter reports whether no statement ends with the word. T-SQL has reserved these, so they are no names there.
func continuesAfter(word []byte) bool {
	switch string(word) {
	case "select", "by", "as":
		return true
	}
	return false
}

// clause are words that may follow the name of a column. T-SQL has reserved them, so they are no names of procedures.
var clause = setOf("from", "as", "is", "in", "not", "and", "or", "like", "between", "asc", "desc", "where", "group",
	"having", "order", "union", "join", "left", "right", "inner", "cross", "on", "when", "then", "else", "end")

// harmless are words that may stand before a parenthesis: keywords, which call nothing, and functions that
// change nothing.
var harmless = setOf(
	"in", "exists", "any", "all", "some", "and", "or", "not", "on", "where", "select", "from", "join", "as", "over",
	"filter", "by", "having", "union", "except", "intersect", "when", "then", "else", "between", "like", "ilike",
	"using", "values", "limit", "offset", "distinct", "array", "row", "lateral", "materialized", "is", "explain",
	"count", "sum", "min", "max", "avg", "coalesce", "nullif", "greatest", "least", "lower", "upper", "length",
	"char_length", "substring", "substr", "trim", "ltrim", "rtrim", "abs", "round", "floor", "ceil", "ceiling", "mod",
	"now", "date", "date_trunc", "extract", "to_char", "to_timestamp", "concat", "cast", "convert", "row_number",
	"rank", "dense_rank", "lag", "lead", "first_value", "last_value", "array_agg", "string_agg", "group_concat",
	"json_agg", "jsonb_agg", "json_build_object", "jsonb_build_object", "bool_and", "bool_or", "unnest",
	"generate_series", "varchar", "char", "decimal", "numeric", "timestamp", "time",
)

func setOf(words ...string) map[string]bool {
	set := make(map[string]bool, len(words))
	for _, w := range words {
		set[w] = true
	}
	return set
}

// token is what a scanner has found.
type token uint8

const (
	tokenEnd   token = iota
	tokenWord        // a name or keyword without quotes
	tokenOther       // a literal, a quoted name, an operator
	tokenDoubt       // something that databases read in different ways
)

// scanner splits a statement into tokens, as far as databases agree on them.
type scanner struct {
	rest      string
	word      string
	qualified bool // a dot stands before the word, and no number before the dot
	number    bool // the last token was one, and a dot follows
	sign      byte // the last token, if it is a single sign; else 0
	buf       [32]byte
}

// next moves to the next token.
func (s *scanner) next() token {
	dot, number := false, s.number
	s.number, s.sign = false, 0
	for len(s.rest) > 0 {
		switch c := s.rest[0]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v':
			s.rest = s.rest[1:]
		case strings.HasPrefix(s.rest, "--"):
			if !s.lineComment() {
				return tokenDoubt
			}
		case c == '[': // quotes a name in some databases
			return tokenDoubt
		case strings.HasPrefix(s.rest, "/*"):
			if !s.comment() {
				return tokenDoubt
			}
		case c == '.':
			s.rest, dot = s.rest[1:], true
		case inWord(c) && (c < '0' || c > '9'):
			s.qualified = dot && !number
			return s.plainWord()
		default:
			return s.other(c)
		}
	}
	return tokenEnd
}

// plainWord moves to a word. It is in doubt if a dollar follows, as in x$1, which many read as one name. So it is with
// Oracle's quotes, as in q'!it's!', and with blanks outside of ASCII: some databases end the word there.
func (s *scanner) plainWord() token {
	n, all := 0, byte(0)
	for n < len(s.rest) && inWord(s.rest[n]) {
		all |= s.rest[n]
		n++
	}
	s.word, s.rest = s.rest[:n], s.rest[n:]
	switch {
	case all >= 0x80 && strings.ContainsFunc(s.word, unicode.IsSpace), strings.HasPrefix(s.rest, "$"):
		return tokenDoubt
	case strings.HasPrefix(s.rest, "'") && (strings.EqualFold(s.word, "q") || strings.EqualFold(s.word, "nq")):
		return tokenDoubt
	}
	return tokenWord
}

// other skips a token that is not a word.
func (s *scanner) other(c byte) token {
	switch c {
	case '\'', '"', '`':
		return s.quoted(c)
	case '#', '\\', '@':
		return tokenDoubt // a comment, an operator or a variable
	case '$':
		if len(s.rest) < 2 || s.rest[1] < '0' || s.rest[1] > '9' {
			return tokenDoubt // a quote of PostgreSQL
		}
	case ';':
		s.rest = s.rest[1:]
		if s.next() == tokenEnd {
			return tokenEnd
		}
		return tokenDoubt // a second statement
	}
	if c >= '0' && c <= '9' {
		return s.skipNumber()
	}
	s.rest, s.sign = s.rest[1:], c
	return tokenOther
}

// skipNumber skips a number. If a word follows without a space, as in LIMIT 1FOR UPDATE, some databases read a
// number and a word. Others read one name. A parenthesis calls a function: 1e(2) in MySQL, and f$1() in many.
func (s *scanner) skipNumber() token {
	n := 1
	for n < len(s.rest) && inWord(s.rest[n]) {
		n++
	}
	text := s.rest[:n]
	s.rest = s.rest[n:]
	digits := "0123456789_"
	if len(text) > 1 && text[0] == '0' && strings.IndexByte("xXoObB", text[1]) >= 0 {
		text, digits = text[2:], "0123456789_abcdefABCDEF"
	}
	text = strings.TrimLeft(text, digits)
	if text != "" && (text[0] == 'e' || text[0] == 'E') { // a sign may follow, and is a token of its own
		text = strings.TrimLeft(text[1:], digits)
	}
	if text != "" || s.called() || strings.HasPrefix(s.rest, "$") { // 1$1 is a name in MySQL
		return tokenDoubt
	}
	s.number = strings.HasPrefix(s.rest, ".")
	return tokenOther
}

// quoted skips a literal or a name in quotes. A backslash in it means something to some databases only.
func (s *scanner) quoted(quote byte) token {
	for i := 1; i < len(s.rest); i++ {
		switch s.rest[i] {
		case '\\':
			return tokenDoubt
		case quote:
			s.rest = s.rest[i+1:]
			if quote != '\'' && s.called() {
				return tokenDoubt // a function
			}
			return tokenOther
		}
	}
	return tokenDoubt
}

// comment skips a comment. It returns false for a comment that some databases execute or nest.
func (s *scanner) comment() bool {
	text := s.rest[2:]
	for i := 0; i+1 < len(text); i++ {
		switch {
		case i == 0 && (text[0] == '!' || text[0] == 'M'), text[i] == '/' && text[i+1] == '*':
			return false
		case text[i] == '*' && text[i+1] == '/':
			s.rest = text[i+2:]
			return true
		}
	}
	return false
}

// lineComment skips a comment up to the end of the line. It returns false where databases disagree: MySQL needs
// a space after the dashes, and in PostgreSQL a carriage return ends the comment.
func (s *scanner) lineComment() bool {
	line, rest, _ := strings.Cut(s.rest[2:], "\n")
	if line != "" && line[0] != ' ' && line[0] != '\t' && line[0] != '\r' || strings.Contains(strings.TrimSuffix(line, "\r"), "\r") {
		return false
	}
	s.rest = rest
	return true
}

// ahead returns what follows blanks and comments. ok is false where databases disagree on a comment.
func (s *scanner) ahead() (rest string, ok bool) {
	look := scanner{rest: s.rest}
	for {
		look.rest = strings.TrimLeft(look.rest, " \t\n\r\f\v")
		switch {
		case strings.HasPrefix(look.rest, "--"):
			if !look.lineComment() {
				return "", false
			}
		case strings.HasPrefix(look.rest, "/*"):
			if !look.comment() {
				return "", false
			}
		default:
			return look.rest, true
		}
	}
}

// called reports whether a parenthesis follows.
func (s *scanner) called() bool {
	rest, ok := s.ahead()
	return !ok || strings.HasPrefix(rest, "(")
}

// ends reports whether nothing follows.
func (s *scanner) ends() bool {
	rest, ok := s.ahead()
	return !ok || rest == "" || rest[0] == ';'
}

// commands reports whether the word begins a statement rather than being a name: whether it is followed by a word
// that belongs to no clause, by quotes or by a variable.
func (s *scanner) commands() bool {
	rest, ok := s.ahead()
	switch {
	case !ok:
		return true
	case rest == "":
		return false
	case inWord(rest[0]):
		look := scanner{rest: rest}
		look.next()
		return !clause[string(look.lower())]
	}
	return strings.IndexByte("'\"`[@#$\\", rest[0]) >= 0
}

// lower returns the beginning of the word in lower case. No known word is as long.
func (s *scanner) lower() []byte {
	n := copy(s.buf[:], s.word)
	for i, c := range s.buf[:n] {
		if c >= 'A' && c <= 'Z' {
			s.buf[i] = c + 'a' - 'A'
		}
	}
	return s.buf[:n]
}

func inWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80
}
