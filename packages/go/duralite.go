// Package duralite makes durable SQLite commits fast for programs that use github.com/mattn/go-sqlite3.
//
// Importing it registers the driver "sqlite3-duralite" with database/sql. What the driver opens is in WAL mode with
// synchronous=FULL, and what would end as plain SQLite is an error. A data source name is what go-sqlite3 takes; Duralite's
// settings are parameters of it too: "app.db?journal=nvwal&nvram=/mnt/pmem".
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

// Open opens a connection; an error has Duralite's reason in its text.
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

// LastError says why Duralite refused last in this process; "" if it never did.
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

// dataSource adds what makes a data source name one of Duralite's. What has no log stays as it is.
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

// loadLibrary loads the library that is in this package into go-sqlite3's SQLite, from a directory that nobody else may
// enter and that is gone afterwards. DURALITE_LIBRARY in the environment names another one.
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
