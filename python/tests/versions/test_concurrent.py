"""Concurrent transactions of this SQLite, beside those of the system's SQLite in other processes, and one connection without
the setting."""

import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from . import sqlite
from .sqlite import ENGINES, NUMBER, OK, Connection, Error

BUSY = 5
ACCOUNTS = 40
TRANSFERS = 60
BUSY_TIMEOUT = "PRAGMA busy_timeout=60000"
#: The first SQLite that tells an extension which databases are attached.
TELLS_DATABASES = 3039000
IN_FORCE = {"off": "off", "upgrade": "upgrade", "on": "on" if NUMBER >= TELLS_DATABASES else "upgrade"}


def transaction(conn, work):
    """Runs ``work`` as a transaction, and again each time that it is overtaken. Returns how often it was."""
    overtaken = 0
    while True:
        try:
            conn.run("BEGIN")
            work()
            conn.run("COMMIT")
            return overtaken
        except Error as error:
            if error.code & 0xFF != BUSY:
                raise
            overtaken += 1
            if not conn.is_autocommit():
                conn.run("ROLLBACK")


def transfers(conn, worker, seed):
    """Moves money between accounts, in transactions that read before they write. Returns how often they were overtaken."""
    choose = random.Random(seed)
    overtaken = 0
    for number in range(TRANSFERS):
        source, target = choose.sample(range(ACCOUNTS), 2)

        def work():
            balance = {k: int(conn.value(f"SELECT v FROM account WHERE k={k}")) for k in (source, target)}
            conn.run(f"UPDATE account SET v={balance[source] - 1} WHERE k={source}")
            conn.run(f"UPDATE account SET v={balance[target] + 1} WHERE k={target}")
            conn.run(f"INSERT INTO entry VALUES({worker * TRANSFERS + number}, {source}, {target})")

        overtaken += transaction(conn, work)
    return overtaken


def work(path, parameters, worker, seed):
    """The work of one process."""
    with Connection(":memory:") as boot:
        boot.load()
        with Connection(path, parameters) as conn:
            conn.run(BUSY_TIMEOUT)
            transfers(conn, int(worker), int(seed))


class Concurrent(unittest.TestCase):
    """Calls the test with each engine."""

    @classmethod
    def setUpClass(cls):
        cls.boot = Connection(":memory:")
        cls.boot.load()

    @classmethod
    def tearDownClass(cls):
        cls.boot.close()

    def make(self, directory, engine):
        path = Path(directory) / "app.db"
        parameters = f"vfs=duralite&engine={engine}{ENGINES[engine]}"
        with Connection(path, parameters) as conn:
            conn.run("PRAGMA journal_mode=WAL")
            conn.run("CREATE TABLE account(k INTEGER PRIMARY KEY, v INTEGER, pad TEXT)")
            conn.run("CREATE TABLE entry(n INTEGER PRIMARY KEY, source, target)")
            for k in range(ACCOUNTS):
                conn.run(f"INSERT INTO account VALUES({k}, 100, hex(zeroblob(900)))")
        return path, parameters

    def test_the_value_in_force(self):
        for engine in ENGINES:
            for asked, found in IN_FORCE.items():
                with self.subTest(engine=engine, asked=asked), tempfile.TemporaryDirectory() as directory:
                    path, parameters = self.make(directory, engine)
                    with Connection(path, f"{parameters}&concurrent={asked}") as conn:
                        conn.run("SELECT * FROM account")
                        self.assertEqual(conn.value("SELECT value FROM duralite WHERE name='concurrent'"), found)

    def test_inv59_processes_with_this_and_the_systems_sqlite(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        for engine in ENGINES:
            with self.subTest(engine=engine, seed=seed), tempfile.TemporaryDirectory() as directory:
                path, parameters = self.make(directory, engine)
                libraries = [sqlite.LIBRARY, "libsqlite3.so.0", sqlite.LIBRARY, "libsqlite3.so.0"]
                values = ["on", "on", "off", "upgrade"]
                processes = [
                    subprocess.Popen(
                        [sys.executable, "-m", "versions.test_concurrent", path, f"{parameters}&concurrent={value}",
                         str(worker), str(seed + worker)],
                        env={**os.environ, "SQLITE_LIBRARY": library},
                    )
                    for worker, (library, value) in enumerate(zip(libraries, values, strict=True))
                ]
                self.assertEqual([process.wait() for process in processes], [OK] * len(processes))
                with Connection(path, f"{parameters}&concurrent=on") as conn:
                    self.assertEqual(conn.value("PRAGMA integrity_check"), "ok")
                    self.assertEqual(int(conn.value("SELECT count(*) FROM entry")), len(values) * TRANSFERS)
                    # The balance of each account must fit its entries.
                    wrong = conn.run(
                        "SELECT k, v FROM account WHERE v != 100 + (SELECT count(*) FROM entry WHERE target = k)"
                        " - (SELECT count(*) FROM entry WHERE source = k)"
                    )
                    self.assertEqual(wrong, [])

    def test_inv60_a_transaction_that_has_read_goes_on_to_write(self):
        for engine in ENGINES:
            with self.subTest(engine=engine), tempfile.TemporaryDirectory() as directory:
                path, parameters = self.make(directory, engine)
                with (
                    Connection(path, f"{parameters}&concurrent=upgrade") as reader,
                    Connection(path, parameters) as other,
                ):
                    reader.run("BEGIN")
                    reader.value("SELECT v FROM account WHERE k=1")
                    other.run("UPDATE account SET v=7 WHERE k=39")
                    reader.run("UPDATE account SET v=8 WHERE k=1")
                    self.assertEqual(int(reader.value("SELECT v FROM account WHERE k=39")), 7)
                    reader.run("COMMIT")
                    reader.run("BEGIN")
                    reader.value("SELECT v FROM account WHERE k=1")
                    other.run("UPDATE account SET v=9 WHERE k=1")
                    with self.assertRaises(Error) as refused:
                        reader.run("UPDATE account SET v=10 WHERE k=1")
                    self.assertEqual(refused.exception.code & 0xFF, BUSY)
                    reader.run("ROLLBACK")
                    self.assertEqual(int(reader.value("SELECT v FROM account WHERE k=1")), 9)
                    self.assertEqual(reader.value("PRAGMA integrity_check"), "ok")


class Savepoints(unittest.TestCase):
    def test_a_commit_after_a_rollback_of_frames_that_were_written_twice_is_no_error(self):
        # Before 3.50.2 SQLite recomputes checksums from such a frame on, when the transaction is committed already.
        for concurrent in IN_FORCE:
            for rows in (20, 58, 80):
                with self.subTest(concurrent=concurrent, rows=rows), tempfile.TemporaryDirectory() as directory:
                    with Connection(":memory:") as boot:
                        boot.load()
                    parameters = f"vfs=duralite&concurrent={concurrent}"
                    with Connection(Path(directory) / "s.db", parameters) as conn:
                        for sql in (
                            "PRAGMA page_size=512",
                            "PRAGMA journal_mode=WAL",
                            "CREATE TABLE t(k INTEGER PRIMARY KEY)",
                            "CREATE TABLE u(k INTEGER PRIMARY KEY, v)",
                            "PRAGMA cache_size=1",
                            "BEGIN",
                            "INSERT INTO t VALUES(1)",
                            "SAVEPOINT s",
                            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60) "
                            f"INSERT INTO u SELECT i, zeroblob(200) FROM n WHERE i < {rows}",
                            *3 * [f"UPDATE u SET v=randomblob(200) WHERE k > {rows // 2}"],
                            "ROLLBACK TO s",
                            "RELEASE s",
                            "COMMIT",
                        ):
                            conn.run(sql)
                        self.assertEqual(conn.value("SELECT count(*) FROM t"), "1")
                        self.assertEqual(conn.value("PRAGMA integrity_check"), "ok")


if __name__ == "__main__":
    work(*sys.argv[1:])
