"""Transactions that run again when another connection has overtaken them: what `run` of each driver shares."""

import contextlib
import random
import sqlite3
import time

SQLITE_BUSY = 5

#: How often a transaction may lose to others before it takes the write lock when it begins.
CONFLICTS = 5

#: The longest pause before the second attempt, in seconds. Each one after it may be twice as long.
PAUSE = 0.002


class Attempt:
    """One attempt at a transaction: how long to wait before it, and the statement that begins it."""

    def __init__(self, number):
        self.takes_lock = number == CONFLICTS
        self.begin = "BEGIN IMMEDIATE" if self.takes_lock else "BEGIN"
        self.pause = random.uniform(0, PAUSE * 2 ** (number - 1)) if number else 0

    def may_run_again(self, error):
        """Whether the driver's error says that the transaction has lost to another one, and there is another attempt."""
        return not self.takes_lock and _is_busy(error)


def attempts():
    """The attempts at one transaction. The last one holds the write lock from its beginning, and cannot lose."""
    return (Attempt(number) for number in range(CONFLICTS + 1))


def _is_busy(error):
    """For sqlite3, and for apsw, whose errors have `extendedresult`."""
    code = getattr(error, "sqlite_errorcode", getattr(error, "extendedresult", None))
    if code is None:  # sqlite3 before Python 3.11 has only SQLite's text
        return isinstance(error, sqlite3.OperationalError) and str(error).startswith("database is locked")
    return code & 0xFF == SQLITE_BUSY


@contextlib.contextmanager
def explicit_transactions(conn):
    """Meanwhile sqlite3 opens no transaction of its own. One that is open, with ``autocommit=False``, is committed."""
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

    If the transaction loses to another connection (``SQLITE_BUSY``, ``SQLITE_BUSY_SNAPSHOT``), it is rolled back and `work`
    runs again after a short random pause. After five conflicts it begins with ``BEGIN IMMEDIATE`` and cannot lose any more.
    Every other error rolls back and is raised, also one of ``COMMIT`` that leaves open whether the transaction is committed.

    `work` may run several times, so it should change nothing but the database. It must not commit or roll back, and
    sqlite3's ``executescript`` commits. `conn` is a connection of sqlite3 or apsw with no transaction open; what is pending
    on a connection with ``autocommit=False`` is committed before.
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
