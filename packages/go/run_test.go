package duralite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

const (
	read = "SELECT a FROM t"
	add  = "UPDATE t SET a = a + 1"
)

var ctx = context.Background()

func open(t *testing.T, path string) *sql.DB {
	db, err := sql.Open(DriverName, path+"?concurrent=on&_busy_timeout=0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func total(t *testing.T, db *sql.DB) (value int) {
	if err := db.QueryRow(read).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

// database returns a pool with one connection, and a second pool whose connections overtake it.
func database(t *testing.T) (db, rival *sql.DB) {
	path := filepath.Join(t.TempDir(), "app.db")
	db, rival = open(t, path), open(t, path)
	db.SetMaxOpenConns(1)
	if _, err := rival.Exec("CREATE TABLE t (a); INSERT INTO t VALUES (0)"); err != nil {
		t.Fatal(err)
	}
	return db, rival
}

func TestTheSettingIsAParameter(t *testing.T) {
	db, _ := database(t)
	var value string
	if err := db.QueryRow("PRAGMA duralite_concurrent").Scan(&value); err != nil || value != "on" {
		t.Fatal(value, err)
	}
}

func TestATransactionRunsAgainUntilItIsNotOvertaken(t *testing.T) {
	for _, times := range []int{0, 2, conflicts} {
		db, rival := database(t)
		attempts := 0
		err := Run(ctx, db, func(ctx context.Context, conn *sql.Conn) error {
			attempts++
			var value int
			if err := conn.QueryRowContext(ctx, read).Scan(&value); err != nil {
				return err
			}
			if attempts <= times {
				if _, err := rival.Exec(add); err != nil {
					return err
				}
			}
			if attempts > conflicts {
				if _, err := rival.Exec(add); !isBusy(err) {
					t.Error("the last attempt does not hold the lock:", err)
				}
			}
			_, err := conn.ExecContext(ctx, "UPDATE t SET a = ?", value+1)
			return err
		})
		if err != nil || attempts != times+1 || total(t, db) != times+1 {
			t.Error(times, attempts, total(t, db), err)
		}
	}
}

func TestAnotherErrorRollsBackAndIsReturnedAtOnce(t *testing.T) {
	db, _ := database(t)
	mine, attempts := errors.New("mine"), 0
	err := Run(ctx, db, func(ctx context.Context, conn *sql.Conn) error {
		attempts++
		conn.ExecContext(ctx, add)
		return mine
	})
	if err != mine || attempts != 1 || total(t, db) != 0 {
		t.Error(err, attempts, total(t, db))
	}
}

func TestAPanicRollsBack(t *testing.T) {
	db, _ := database(t)
	func() {
		defer func() { recover() }()
		Run(ctx, db, func(ctx context.Context, conn *sql.Conn) error {
			conn.ExecContext(ctx, add)
			panic("mine")
		})
	}()
	if err := Run(ctx, db, func(context.Context, *sql.Conn) error { return nil }); err != nil || total(t, db) != 0 {
		t.Error(err, total(t, db))
	}
}

func TestAContextThatIsOverRollsBack(t *testing.T) {
	db, _ := database(t)
	ctx, cancel := context.WithCancel(ctx)
	err := Run(ctx, db, func(ctx context.Context, conn *sql.Conn) error {
		conn.ExecContext(ctx, add)
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || total(t, db) != 0 {
		t.Error(err, total(t, db))
	}
}

func TestTheReasonOfAConflictCanBeAsked(t *testing.T) {
	db, rival := database(t)
	told := ""
	err := Run(ctx, db, func(ctx context.Context, conn *sql.Conn) error {
		if told = LastError(); told != "" {
			return nil
		}
		conn.ExecContext(ctx, add)
		_, err := rival.Exec(add)
		return err
	})
	if err != nil || !strings.Contains(told, "has changed page") {
		t.Error(told, err)
	}
}
