package sdk

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"modernc.org/sqlite"
)

// What the file header of SQLite says, by byte offset ("Database File Format",
// sqlite.org). Only what decides between the refusals below is read here.
const (
	headerBytes  = 100
	magic        = "SQLite format 3\x00"
	atPageSize   = 16
	atWrite      = 18 // format versions: 1 journal, 2 write-ahead log
	atRead       = 19
	atChanges    = 24
	atPages      = 28 // holds if the change counter is the one at atPagesValid
	atSchema     = 44 // schema format, 1 to 4
	atPagesValid = 92
)

// Primary result codes of SQLite that have a better message than SQLite's.
const (
	codeBusy     = 5
	codeLocked   = 6
	codeReadOnly = 8
	codeCorrupt  = 11
	codeNotADB   = 26
)

// maxValueBytes bounds one value of a row: recordings hold compressed blobs, but
// an expression in a hostile schema must not make one of a gigabyte.
const (
	limitLength   = 0 // SQLITE_LIMIT_LENGTH
	maxValueBytes = 1 << 28
)

// checkHeader refuses a file that cannot be read as what it claims to be, before
// any of it is interpreted. It returns whether the database uses a write-ahead log.
func checkHeader(path string) (wal bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%s: want a regular file", path)
	}
	h := make([]byte, headerBytes)
	n, _ := f.ReadAt(h, 0)
	if n < len(magic) || string(h[:len(magic)]) != magic {
		return false, fmt.Errorf("%s: not an SQLite database, as a recording is: it has %d bytes and starts with %.16q", path, info.Size(), h[:min(n, 16)])
	}
	if n < headerBytes {
		return false, fmt.Errorf("%s: truncated: %d bytes, the header of an SQLite database alone has %d", path, n, headerBytes)
	}
	if h[atWrite] > 2 || h[atRead] > 2 || binary.BigEndian.Uint32(h[atSchema:]) > 4 {
		return false, fmt.Errorf("%s: a newer SQLite file format (write %d, read %d, schema %d), want at most 2, 2 and 4", path, h[atWrite], h[atRead], binary.BigEndian.Uint32(h[atSchema:]))
	}
	page := int64(binary.BigEndian.Uint16(h[atPageSize:]))
	if page == 1 { // 65,536 does not fit in two bytes
		page = 1 << 16
	}
	if page < 512 || page&(page-1) != 0 {
		return false, fmt.Errorf("%s: damaged: pages of %d bytes, want a power of two from 512 to 65536", path, page)
	}
	pages := int64(binary.BigEndian.Uint32(h[atPages:]))
	known := binary.BigEndian.Uint32(h[atChanges:]) == binary.BigEndian.Uint32(h[atPagesValid:])
	if known && pages*page > info.Size() {
		return false, fmt.Errorf("%s: truncated: its header claims %d pages of %d bytes, the file has %d bytes", path, pages, page, info.Size())
	}
	return h[atWrite] == 2 || h[atRead] == 2, nil
}

// database is an open recording: one connection inside one read transaction, so
// that all tables are of the same moment.
type database struct {
	path    string
	pool    *sql.DB
	conn    *sql.Conn
	columns map[string]map[string]bool // of each ordinary table, names in lower case
	tables  []string                   // their names as they are spelled, in order of creation
	report  *report
}

// open opens a recording without writing to it or beside it. A file that somebody
// is writing is refused. The caller closes the database.
func open(ctx context.Context, path string, r *report) (*database, error) {
	wal, err := checkHeader(path)
	if err != nil {
		return nil, err
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	query := "mode=ro&_error_rc=1&_defensive=1&_dqs=0&_busy_timeout=0"
	if wal {
		// Joining a write-ahead log creates files beside the database. A recording
		// that was closed has none, and then nothing can change under the reader.
		if info, err := os.Stat(path + "-wal"); err == nil && info.Size() > 0 {
			return nil, fmt.Errorf("%s: locked, or not closed by its writer: %s-wal holds changes that are not in it yet", path, path)
		}
		query += "&immutable=1"
	}
	name := url.URL{Scheme: "file", Path: absolute, RawQuery: query}
	pool, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, explain(path, err)
	}
	d := &database{path: path, pool: pool, report: r}
	if err := d.begin(ctx); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *database) close() {
	if d.conn != nil {
		d.conn.Close()
	}
	d.pool.Close()
}

// begin hardens the connection, takes the read lock, and checks the structure of
// the whole file: a tree with a page that is used twice can make a few kilobytes
// look like billions of rows.
func (d *database) begin(ctx context.Context) error {
	var err error
	if d.conn, err = d.pool.Conn(ctx); err != nil {
		return explain(d.path, err)
	}
	if _, err := sqlite.Limit(d.conn, limitLength, maxValueBytes); err != nil {
		return explain(d.path, err)
	}
	for _, statement := range []string{
		"PRAGMA query_only=1", "PRAGMA trusted_schema=0", "PRAGMA cell_size_check=1", "PRAGMA mmap_size=0",
		"PRAGMA temp_store=2",               // memory
		"PRAGMA ignore_check_constraints=1", // they are expressions of whoever wrote the file
		"BEGIN",
	} {
		if _, err := d.conn.ExecContext(ctx, statement); err != nil {
			return explain(d.path, err)
		}
	}
	var verdict string
	if err := d.conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return explain(d.path, err)
	}
	if verdict != "ok" {
		return fmt.Errorf("%s: damaged: %s", d.path, oneLine(verdict))
	}
	return d.readSchema(ctx)
}

// maxTables bounds how many tables are looked at.
const maxTables = 4096

// readSchema lists the ordinary tables. A view or a virtual table under a name of
// the recording is not one: reading it would run whatever it is defined as.
func (d *database) readSchema(ctx context.Context) error {
	d.columns = map[string]map[string]bool{}
	rows, err := d.conn.QueryContext(ctx, "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c"+
		" WHERE t.type = 'table' AND t.rootpage > 0 AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY t.rowid, c.cid")
	if err != nil {
		return explain(d.path, err)
	}
	defer rows.Close()
	for rows.Next() {
		var table, column string
		if err := rows.Scan(&table, &column); err != nil {
			return explain(d.path, err)
		}
		key := strings.ToLower(table)
		if d.columns[key] == nil {
			if len(d.tables) == maxTables {
				return fmt.Errorf("%s: more than %d tables, a recording has a few dozen", d.path, maxTables)
			}
			d.columns[key] = map[string]bool{}
			d.tables = append(d.tables, table)
		}
		d.columns[key][strings.ToLower(column)] = true
	}
	if err := rows.Err(); err != nil {
		return explain(d.path, err)
	}
	return nil
}

// has reports whether a table has a column, or exists if column is empty.
func (d *database) has(table, column string) bool {
	c, ok := d.columns[strings.ToLower(table)]
	return ok && (column == "" || c[strings.ToLower(column)])
}

// missing is the value of a column that the table does not have.
type missing struct{}

// scan calls row with the wanted columns of every row of a table, in the order in
// which they are stored, and refuses a table of more than limit rows. A table or
// column that is not there is reported as missing; without the table, or without
// any of the columns, row is not called. where may be empty.
func (d *database) scan(ctx context.Context, table string, columns []string, where string, limit int, row func([]any)) error {
	if !d.has(table, "") {
		d.report.missing("table " + table)
		return nil
	}
	values, targets := make([]any, len(columns)), make([]any, 0, len(columns))
	var names []string
	for i, c := range columns {
		if !d.has(table, c) {
			d.report.missing("column " + table + "." + c)
			values[i] = missing{}
			continue
		}
		names = append(names, quoteName(c))
		targets = append(targets, &values[i])
	}
	if len(names) == 0 {
		return nil
	}
	// An index may disagree with its table in a damaged file, so none is used.
	text := "SELECT " + strings.Join(names, ", ") + " FROM " + quoteName(table) + " NOT INDEXED" + where + fmt.Sprintf(" LIMIT %d", limit+1)
	rows, err := d.conn.QueryContext(ctx, text)
	if err != nil {
		return explain(d.path, err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		if n == limit {
			return fmt.Errorf("%s: table %s has more than %d rows, no recording of a model does", d.path, table, limit)
		}
		if err := rows.Scan(targets...); err != nil {
			return explain(d.path, err)
		}
		row(values)
	}
	if err := rows.Err(); err != nil {
		return explain(d.path, err)
	}
	return nil
}

func quoteName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// explain names the file, and what is wrong in terms of a recording.
func explain(path string, err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) {
		switch e.Code() & 0xFF {
		case codeBusy, codeLocked:
			return fmt.Errorf("%s: locked by another process that is writing it (%s)", path, oneLine(e.Error()))
		case codeReadOnly:
			return fmt.Errorf("%s: not closed by its writer: %s-journal holds what is left to undo (%s)", path, path, oneLine(e.Error()))
		case codeNotADB, codeCorrupt:
			return fmt.Errorf("%s: damaged: %s", path, oneLine(e.Error()))
		}
	}
	return fmt.Errorf("%s: %s", path, oneLine(err.Error()))
}

// maxName is the longest name that is kept, in bytes.
const maxName = 4096

// oneLine makes text of a file fit for a line on a terminal.
func oneLine(s string) string {
	s = s[:min(len(s), maxName)]
	clean := func(r rune) rune {
		if r < ' ' || r == 0x7F || r == utf8.RuneError || r >= 0x80 && r < 0xA0 {
			return '?'
		}
		return r
	}
	return strings.Map(clean, s)
}
