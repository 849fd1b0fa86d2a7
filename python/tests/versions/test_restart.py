"""The log starts over while another connection is about to checkpoint: SQLite before 3.51.3 loses commits if it
does."""

import tempfile
import threading
import unittest
from pathlib import Path

from .sqlite import ENGINES, HAS_RESET_BUG, VERSION, Connection

COMMITS = 30


def survivors(parameters):
    """Acknowledges `COMMITS` commits. Returns how many of their rows are there after all connections have been
    closed."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "app.db"
        writer = Connection(path, parameters)
        writer.run("PRAGMA journal_mode=WAL")
        writer.run("PRAGMA wal_autocheckpoint=0")
        writer.run("CREATE TABLE t(x)")
        checkpointer = Connection(path, parameters)
        checkpointer.run("SELECT * FROM t")
        # The frames that the coming checkpoint will know of. All of them are home already, and they are more than the
        # frames that follow.
        for _ in range(2 * COMMITS):
            writer.run("INSERT INTO t VALUES('before')")
        writer.run("PRAGMA wal_checkpoint(PASSIVE)")
        insert = "INSERT INTO t VALUES('acknowledged')"
        happened = []

        def overtake():
            happened.append(writer.run(insert))

        checkpointer.before_checkpoints(overtake)
        checkpointer.run("PRAGMA wal_checkpoint(PASSIVE)")
        assert happened, "the checkpoint was not held"
        for _ in range(COMMITS - 1):
            writer.run(insert)
        # The checkpoint believes that frames are home which are not.
        writer.run("PRAGMA wal_checkpoint(TRUNCATE)")
        writer.close()
        checkpointer.close()
        with Connection(path, parameters) as reader:
            assert reader.value("PRAGMA integrity_check") == "ok"
            return int(reader.value("SELECT count(*) FROM t WHERE x = 'acknowledged'"))


def restarts(parameters, wanted, most_commits):
    """Returns how often the log has started over, and after how many commits, while one connection checkpoints without
    a pause."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "app.db"
        writer = Connection(path, parameters)
        # A connection that finds the wal-index half written takes the WRITE lock for a moment, with stock SQLite too.
        writer.run("PRAGMA busy_timeout=10000")
        writer.run("PRAGMA journal_mode=WAL")
        writer.run("CREATE TABLE t(x)")
        ended = threading.Event()
        seen = 0

        def checkpoint():
            nonlocal seen
            frames = 0
            with Connection(path, parameters) as checkpointer:
                while not ended.is_set():
                    before, frames = frames, int(checkpointer.run("PRAGMA wal_checkpoint(PASSIVE)")[0][1])
                    seen += frames < before

        thread = threading.Thread(target=checkpoint)
        thread.start()
        commits = 0
        try:
            while seen < wanted and commits < most_commits:
                writer.run("INSERT INTO t VALUES('x')")
                commits += 1
        finally:
            ended.set()
            thread.join()
        writer.close()
        return seen, commits


class Restart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Connection("", "mode=memory") as connection:
            connection.load()

    def test_control_stock_loses_commits(self):
        left = survivors("vfs=unix")
        print(f"SQLite {VERSION}: stock keeps {left} of {COMMITS}")
        if HAS_RESET_BUG:
            self.assertLess(left, COMMITS, "the schedule does not provoke the fault")
        else:
            self.assertEqual(left, COMMITS)

    def test_inv45_no_engine_loses_one(self):
        for engine, settings in ENGINES.items():
            with self.subTest(engine=engine):
                self.assertEqual(survivors(f"vfs=duralite&journal={engine}{settings}"), COMMITS)

    def test_inv45_checkpoints_without_end_do_not_keep_the_log_from_starting_over(self):
        wanted = 5
        for engine in ("waldio", "nvwal"):
            with self.subTest(engine=engine):
                seen, commits = restarts(f"vfs=duralite&journal={engine}{ENGINES[engine]}", wanted, 60_000)
                print(f"SQLite {VERSION}, {engine}: {seen} times in {commits} commits")
                self.assertGreaterEqual(seen, wanted)


if __name__ == "__main__":
    unittest.main()
