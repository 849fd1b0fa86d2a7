"""Transactions that run again when another connection has overtaken them: the code that the `run` of all drivers shares."""

import contextlib
import random
import sqlite3
import time

SQLITE_BUSY = 5

#: How often a transaction may lose to others. After that it begins with the write lock.
CONFLICTS = 5

#: The longest pause before the second attempt, in seconds. Each later pause may be twice as long as the one before.
PAUSE = 0.002


class Attempt:
    """One attempt at a transaction: the pause before it, and the statement that begins it."""

    def __init__(self, number):
        self.takes_lock = number == CONFLICTS
        self.begin = "BEGIN IMMEDIATE" if self.takes_lock else "BEGIN"
        self.pause = random.uniform(0, PAUSE * 2 ** (number - 1)) if number else 0

    def may_run_again(self, error):
        """Whether the driver's error says that the transaction has lost to another one, and another attempt is left."""
        return not self.takes_lock and _is_busy(error)


def attempts():
    """The attempts at one transaction. The last one holds the write lock from its beginning, and cannot lose."""
    return (Attempt(number) for number in range(CONFLICTS + 1))


def _is_busy(error):
    """For sqlite3, and for apsw, whose errors have `extendedresult`."""
    code = getattr(error, "sqlite_errorcode", getattr(error, "extendedresult", None))
    if code is None:  # sqlite3 before Python 3.11 gives only SQLite's text
        return isinstance(error, sqlite3.OperationalError) and str(error).startswith("database is locked")
    return code & 0xFF == SQLITE_BUSY


@contextlib.contextmanager
def explicit_transactions(conn):
    """Keeps sqlite3 from opening transactions itself. Commits the transaction that ``autocommit=False`` keeps open."""
    opens_its_own = getattr(conn, "autocommit", None) is False
    if opens_its_own:
        conn.autocommit = True
    try:
        yield
    finally:
        if opens_its_own:
            conn.autocommit = False


def run(conn, work):
    """Runs ``work(conn)`` as a transaction, commits it, and returns what `work` returns.

    If the transaction loses to another connection (``SQLITE_BUSY``, ``SQLITE_BUSY_SNAPSHOT``), it is rolled back, and `work`
    runs again after a short random pause. After five conflicts the transaction begins with ``BEGIN IMMEDIATE`` and can no
    longer lose. On any other error it is rolled back, and the error is raised. If ``COMMIT`` raised that error, the
    transaction may be committed or not.

    `work` may run several times, so it should change nothing but the database. It must not commit or roll back, and so must
    not call sqlite3's ``executescript``, which commits. `conn` is a connection of sqlite3 or apsw without an open
    transaction. With ``autocommit=False``, pending changes are committed first.
    """
    with explicit_transactions(conn):
        for attempt in attempts():
            time.sleep(attempt.pause)
            conn.execute(attempt.begin)
            try:
                result = work(conn)
                conn.execute("COMMIT")
                return result
            except BaseException as error:
                if conn.in_transaction:
                    conn.execute("ROLLBACK")
                if not attempt.may_run_again(error):
                    raise
