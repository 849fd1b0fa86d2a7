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
	// conflicts is how often a transaction may lose to others. After that it begins with the write lock.
	conflicts = 5
	// pause is the longest pause before the second attempt. Each later pause may be twice as long as the one before.
	pause = 2 * time.Millisecond
)

// Run runs work as a transaction on a connection from the pool, and commits it.
//
// If the transaction loses to another connection (SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT), it is rolled back, and work runs
// again after a short random pause. After five conflicts the transaction begins with BEGIN IMMEDIATE and can no longer
// lose. On any other error it is rolled back, and the error is returned. If COMMIT returned that error, the transaction
// may be committed or not.
//
// Work may run several times, so it should change nothing but the database. It must return SQLite's errors unchanged or
// wrapped with %w, use only the connection that it is given, and neither commit nor roll back.
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

// try runs work once. When it returns, no transaction is open, even if work panics. If a rollback fails, the connection is
// closed.
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
	// If a commit were interrupted, nobody would know whether it took effect.
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
