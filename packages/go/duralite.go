// Package duralite makes durable SQLite commits fast for programs that use github.com/mattn/go-sqlite3.
//
// Importing it registers the driver "sqlite3-duralite" with database/sql. The driver opens databases in WAL mode with
// synchronous=FULL, and fails where plain SQLite would have to serve a database. It takes the data source names of
// go-sqlite3. Duralite's settings are parameters in such a name: "app.db?journal=nvwal&nvram=/mnt/pmem".
package duralite

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mattn/go-sqlite3"
)

// DriverName is the name for sql.Open.
const DriverName = "sqlite3-duralite"

func init() {
	sql.Register(DriverName, &Driver{})
}

// Driver opens databases through Duralite.
type Driver struct{}

var load = sync.OnceValue(loadLibrary)

// Open opens a connection. If Duralite refuses, the error's text has the reason.
func (*Driver) Open(name string) (driver.Conn, error) {
	if err := load(); err != nil {
		return nil, err
	}
	dsn, err := dataSource(name)
	if err != nil {
		return nil, err
	}
	before := LastError()
	conn, err := (&sqlite3.SQLiteDriver{}).Open(dsn)
	if err != nil {
		if reason := LastError(); reason != "" && reason != before {
			err = fmt.Errorf("%w: %s", err, reason)
		}
		return nil, err
	}
	return conn, nil
}

// LastError returns the reason of Duralite's last refusal in this process, or "" if there was none.
func LastError() string {
	if load() != nil {
		return ""
	}
	conn, err := (&sqlite3.SQLiteDriver{}).Open(":memory:")
	if err != nil {
		return ""
	}
	defer conn.Close()
	rows, err := conn.(*sqlite3.SQLiteConn).Query("SELECT coalesce(duralite_last_error(), '')", nil)
	if err != nil {
		return ""
	}
	defer rows.Close()
	row := make([]driver.Value, 1)
	if rows.Next(row) != nil {
		return ""
	}
	reason, _ := row[0].(string)
	return reason
}

// dataSource adds Duralite's parameters to a data source name. The name of a database in memory, which has no log, stays
// unchanged.
func dataSource(name string) (string, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(name, "file:"), "?")
	if !strings.HasPrefix(name, "file:") {
		path = (&url.URL{Path: path}).EscapedPath()
	}
	settings, err := url.ParseQuery(query)
	if err != nil {
		return "", fmt.Errorf("duralite: %q is no data source name: %w", name, err)
	}
	if path == "" || path == ":memory:" || settings.Get("mode") == "memory" {
		return name, nil
	}
	readOnly := settings.Get("mode") == "ro" || settings.Has("immutable") || settings.Get("journal") == "off"
	defaults := [][2]string{{"vfs", "duralite"}}
	if !readOnly {
		defaults = append(defaults, [][2]string{{"strict", "on"}, {"_journal_mode", "WAL"}, {"_synchronous", "FULL"}}...)
	}
	for _, setting := range defaults {
		if !settings.Has(setting[0]) {
			settings.Set(setting[0], setting[1])
		}
	}
	return "file:" + path + "?" + settings.Encode(), nil
}

// loadLibrary loads the library in this package into go-sqlite3's SQLite. The library is written into a directory that
// nobody else may enter, and is removed after loading. If DURALITE_LIBRARY is set in the environment, it names the library
// to load instead.
func loadLibrary() (err error) {
	library := os.Getenv("DURALITE_LIBRARY")
	if library == "" {
		directory, err := os.MkdirTemp("", "duralite")
		if err != nil {
			return fmt.Errorf("duralite: %w", err)
		}
		defer os.RemoveAll(directory)
		library = filepath.Join(directory, "libduralite.so")
		if err := os.WriteFile(library, embedded, 0o500); err != nil {
			return fmt.Errorf("duralite: %w", err)
		}
	}
	conn, err := (&sqlite3.SQLiteDriver{Extensions: []string{library}}).Open(":memory:")
	if err != nil {
		return fmt.Errorf("duralite: cannot load the library: %w", err)
	}
	return conn.Close()
}
