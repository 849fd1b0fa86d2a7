"""The setting `concurrent` with sqlite3, and transactions that run again after they were overtaken."""

import os
import sqlite3
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_duralite import Case, duralite  # noqa: E402

from duralite import _retry  # noqa: E402

ATTEMPTS = _retry.CONFLICTS + 1
READ = "SELECT a FROM t"
ADD = "UPDATE t SET a = a + 1"


class Concurrent(Case):
    def setUp(self):
        super().setUp()
        self.rival = self.open(isolation_level=None, timeout=0)
        self.rival.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (0)")

    def open(self, concurrent="on", **arguments):
        conn = duralite.connect(self.path, concurrent=concurrent, **arguments)
        self.addCleanup(conn.close)
        return conn

    def total(self):
        return self.rival.execute(READ).fetchone()[0]

    def overtaken(self, times):
        """Work that another connection overtakes in its first attempts. Returns the number of the attempt."""
        seen = []

        def work(conn):
            seen.append(conn)
            conn.execute(READ).fetchall()
            if len(seen) <= times:
                self.rival.execute(ADD)
            conn.execute(ADD)
            return len(seen)

        return work


class Setting(Concurrent):
    def test_each_value_can_be_given(self):
        for value in ("off", "upgrade", "on"):
            conn = self.open(value)
            self.assertEqual(conn.execute("PRAGMA duralite_concurrent").fetchone(), (value,))

    def test_the_environment_is_the_default(self):
        with mock.patch.dict(os.environ, DURALITE_CONCURRENT="upgrade"):
            conn = duralite.connect(self.path)
            self.addCleanup(conn.close)
        self.assertEqual(conn.execute("PRAGMA duralite_concurrent").fetchone(), ("upgrade",))

    def test_another_value_is_refused(self):
        with self.assertRaisesRegex(sqlite3.OperationalError, "off, upgrade or on"):
            self.open("maybe")


class Run(Concurrent):
    def test_it_runs_again_until_it_is_not_overtaken(self):
        for times in (0, 1, ATTEMPTS - 1):
            with self.subTest(times):
                before = self.total()
                self.assertEqual(duralite.run(self.open(), self.overtaken(times)), times + 1)
                self.assertEqual(self.total(), before + times + 1)

    def test_it_runs_again_whatever_the_setting_is(self):
        for setting in ("off", "upgrade", "on"):
            with self.subTest(setting):
                self.assertEqual(duralite.run(self.open(setting), self.overtaken(2)), 3)

    def test_the_last_attempt_holds_the_lock(self):
        seen = []

        def work(conn):
            seen.append(True)
            if len(seen) == ATTEMPTS:
                with self.assertRaisesRegex(sqlite3.OperationalError, "database is locked"):
                    self.rival.execute(ADD)
            conn.execute(READ).fetchall()
            if len(seen) < ATTEMPTS:
                self.rival.execute(ADD)
            conn.execute(ADD)

        duralite.run(self.open(), work)
        self.assertEqual((len(seen), self.total()), (ATTEMPTS, ATTEMPTS))

    def test_every_way_of_sqlite3_to_begin_transactions(self):
        ways = [{"isolation_level": level} for level in (None, "", "IMMEDIATE")]
        if sys.version_info >= (3, 12):
            ways += [{"autocommit": True}, {"autocommit": False}]
        for way in ways:
            with self.subTest(way):
                conn = self.open(**way)
                self.assertEqual(duralite.run(conn, self.overtaken(2)), 3)
                self.assertEqual({name: getattr(conn, name) for name in way}, way)

    @unittest.skipIf(sys.version_info < (3, 12), "autocommit is new in 3.12")
    def test_what_is_pending_is_committed_before(self):
        conn = self.open(autocommit=False)
        conn.execute(ADD)
        self.assertEqual(duralite.run(conn, self.overtaken(1)), 2)
        self.assertEqual(self.total(), 3)

    @unittest.skipIf(sys.version_info < (3, 12), "autocommit is new in 3.12")
    def test_a_connection_that_begins_by_itself_goes_on_after_a_conflict(self):
        conn = self.open(autocommit=False)
        conn.execute(ADD)
        self.rival.execute(ADD)
        with self.assertRaisesRegex(sqlite3.OperationalError, "database is locked"):
            conn.commit()
        conn.rollback()
        conn.execute(ADD)
        conn.commit()
        self.assertEqual(self.total(), 2)

    def test_another_error_rolls_back_and_is_raised_at_once(self):
        for error in (ValueError, KeyboardInterrupt, sqlite3.IntegrityError, sqlite3.OperationalError):
            seen = []

            def work(conn):
                seen.append(True)
                conn.execute(ADD)
                raise error("mine")

            conn = self.open()
            with self.subTest(error), self.assertRaisesRegex(error, "mine"):
                duralite.run(conn, work)
            self.assertEqual((len(seen), conn.in_transaction, self.total()), (1, False, 0))

    def test_a_commit_in_doubt_is_not_run_again(self):
        class Failing(duralite.Connection):
            def execute(self, sql, *arguments):
                if sql == "COMMIT":
                    super().execute(sql)
                    raise sqlite3.OperationalError("disk I/O error")
                return super().execute(sql, *arguments)

        conn = self.open(factory=Failing)
        with self.assertRaisesRegex(sqlite3.OperationalError, "disk I/O"):
            duralite.run(conn, self.overtaken(0))
        self.assertEqual(self.total(), 1)

    def test_the_lock_that_cannot_be_had_is_an_error(self):
        self.rival.execute("BEGIN IMMEDIATE")
        with self.assertRaisesRegex(sqlite3.OperationalError, "database is locked"):
            duralite.run(self.open("off", timeout=0), lambda conn: conn.execute(ADD))
        self.rival.execute("ROLLBACK")
        self.assertEqual(self.total(), 0)

    def test_an_open_transaction_stays_as_it_is(self):
        conn = self.open()
        conn.execute("BEGIN")
        conn.execute(ADD)
        with self.assertRaisesRegex(sqlite3.OperationalError, "within a transaction"):
            duralite.run(conn, self.overtaken(0))
        conn.commit()
        self.assertEqual(self.total(), 1)

    def test_no_increment_is_lost(self):
        threads, each = 4, 25

        def add_all():
            conn = duralite.connect(self.path, concurrent="on")
            for _ in range(each):
                duralite.run(conn, lambda conn: conn.execute(ADD))
            conn.close()

        running = [threading.Thread(target=add_all) for _ in range(threads)]
        [thread.start() for thread in running]
        [thread.join() for thread in running]
        self.assertEqual(self.total(), threads * each)


if __name__ == "__main__":
    unittest.main()
