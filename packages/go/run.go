package duralite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math/rand"
	"time"

	"github.com/mattn/go-sqlite3"
)

const (
	// conflicts is how often a transaction may lose to others before it takes the write lock when it begins.
	conflicts = 5
	// pause is the longest one before the second attempt. Each one after it may be twice as long.
	pause = 2 * time.Millisecond
)

// Run runs work as a transaction on a connection of its own, and commits it.
//
// If the transaction loses to another connection (SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT), it is rolled back and work runs
// again after a short random pause. After five conflicts it begins with BEGIN IMMEDIATE and cannot lose any more. Every
// other error rolls back and is returned, also one of COMMIT that leaves open whether the transaction is committed.
//
// Work may run several times, so it should change nothing but the database. It returns SQLite's errors as they are, or
// wrapped with %w; it uses no connection but the one that it is given, and neither commits nor rolls back.
func Run(ctx context.Context, db *sql.DB, work func(context.Context, *sql.Conn) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for attempt := 0; attempt < conflicts; attempt++ {
		err := try(ctx, conn, "BEGIN", work)
		if !isBusy(err) {
			return err
		}
		select {
		case <-time.After(time.Duration(rand.Int63n(int64(pause << attempt)))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return try(ctx, conn, "BEGIN IMMEDIATE", work)
}

// try runs work once. Afterwards no transaction is open, also if work panics; where that fails the connection is given up.
func try(ctx context.Context, conn *sql.Conn, begin string, work func(context.Context, *sql.Conn) error) error {
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		return err
	}
	defer conn.Raw(func(raw any) error { return rollBack(raw.(*sqlite3.SQLiteConn)) })
	if err := work(ctx, conn); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// A commit that is interrupted would be in doubt.
	_, err := conn.ExecContext(context.WithoutCancel(ctx), "COMMIT")
	return err
}

// rollBack ends a transaction if one is open.
func rollBack(conn *sqlite3.SQLiteConn) error {
	if conn.AutoCommit() {
		return nil
	}
	if _, err := conn.Exec("ROLLBACK", nil); err != nil {
		return driver.ErrBadConn
	}
	return nil
}

func isBusy(err error) bool {
	var failure sqlite3.Error
	return errors.As(err, &failure) && failure.Code == sqlite3.ErrBusy
}
