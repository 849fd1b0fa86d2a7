package org.duralite;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** A transaction that runs again when another connection has overtaken it. */
public final class Transaction {
    private static final int SQLITE_BUSY = 5;

    /** How often a transaction may lose to others. After that it begins with the write lock. */
    private static final int CONFLICTS = 5;

    /** The longest pause before the second attempt. Each later pause may be twice as long as the one before. */
    private static final long PAUSE_NANOS = 2_000_000;

    private Transaction() {}

    /** The statements of a transaction. */
    @FunctionalInterface
    public interface Work<T, E extends Exception> {
        /** Called once per attempt, so it should change nothing but the database. It must not commit or roll back. */
        T run(Connection connection) throws SQLException, E;
    }

    /**
     * Runs the work as a transaction, commits it, and returns what the work returns.
     *
     * <p>If the transaction loses to another connection (SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT), it is rolled back, and the work
     * runs again after a short random pause. After five conflicts the transaction begins with BEGIN IMMEDIATE and can no longer
     * lose. On any other failure it is rolled back, and the failure is thrown. If COMMIT failed so, the transaction may be
     * committed or not.
     *
     * @param connection in auto-commit mode, and so without a transaction; it stays in that mode while the work runs
     */
    public static <T, E extends Exception> T run(Connection connection, Work<T, E> work) throws SQLException, E {
        if (!connection.getAutoCommit()) throw new SQLException("the connection is not in auto-commit mode");
        for (int conflicts = 0; conflicts < CONFLICTS; conflicts++) {
            try {
                return attempt(connection, "BEGIN", work);
            } catch (SQLException failure) {
                if ((failure.getErrorCode() & 0xFF) != SQLITE_BUSY) throw failure;
                pause(PAUSE_NANOS << conflicts, failure);
            }
        }
        return attempt(connection, "BEGIN IMMEDIATE", work);
    }

    private static <T, E extends Exception> T attempt(Connection connection, String begin, Work<T, E> work)
            throws SQLException, E {
        try (Statement statement = connection.createStatement()) {
            statement.execute(begin);
            try {
                T result = work.run(connection);
                statement.execute("COMMIT");
                return result;
            } catch (Throwable failure) {
                rollBack(statement, failure);
                throw failure;
            }
        }
    }

    /** If COMMIT fails with BUSY_SNAPSHOT, SQLite itself has rolled back, and ROLLBACK finds no transaction. */
    private static void rollBack(Statement statement, Throwable failure) {
        try {
            statement.execute("ROLLBACK");
        } catch (SQLException none) {
            failure.addSuppressed(none);
        }
    }

    private static void pause(long longest, SQLException failure) throws SQLException {
        try {
            TimeUnit.NANOSECONDS.sleep(ThreadLocalRandom.current().nextLong(longest));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw failure;
        }
    }
}
