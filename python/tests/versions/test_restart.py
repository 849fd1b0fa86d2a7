"""The log starts over while another connection is about to checkpoint: SQLite before 3.51.3 loses commits then."""

import tempfile
import threading
import unittest
from pathlib import Path

from .sqlite import ENGINES, HAS_RESET_BUG, VERSION, Connection

COMMITS = 30


def survivors(parameters):
    """Of so many acknowledged commits, how many rows are there after all connections have been closed."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "app.db"
        writer = Connection(path, parameters)
        writer.run("PRAGMA journal_mode=WAL")
        writer.run("PRAGMA wal_autocheckpoint=0")
        writer.run("CREATE TABLE t(x)")
        checkpointer = Connection(path, parameters)
        checkpointer.run("SELECT * FROM t")
        # What the checkpoint to come will know of: all of it is home already, in more frames than will follow.
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
        # It takes for home what is not.
        writer.run("PRAGMA wal_checkpoint(TRUNCATE)")
        writer.close()
        checkpointer.close()
        with Connection(path, parameters) as reader:
            assert reader.value("PRAGMA integrity_check") == "ok"
            return int(reader.value("SELECT count(*) FROM t WHERE x = 'acknowledged'"))


def longest_log(parameters, commits):
    """The most frames that the log has had, while one connection checkpoints without end beside a writer."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "app.db"
        writer = Connection(path, parameters)
        writer.run("PRAGMA journal_mode=WAL")
        writer.run("CREATE TABLE t(x)")
        ended = threading.Event()
        longest = 0

        def checkpoint():
            nonlocal longest
            with Connection(path, parameters) as checkpointer:
                while not ended.is_set():
                    frames = int(checkpointer.run("PRAGMA wal_checkpoint(PASSIVE)")[0][1])
                    longest = max(longest, frames)

        thread = threading.Thread(target=checkpoint)
        thread.start()
        try:
            for _ in range(commits):
                writer.run("INSERT INTO t VALUES('x')")
        finally:
            ended.set()
            thread.join()
        writer.close()
        return longest


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
        commits = 12000
        for engine in ("waldio", "nvwal"):
            with self.subTest(engine=engine):
                longest = longest_log(f"vfs=duralite&journal={engine}{ENGINES[engine]}", commits)
                print(f"SQLite {VERSION}, {engine}: at most {longest} frames of {commits} commits")
                self.assertLess(longest, commits // 2)


if __name__ == "__main__":
    unittest.main()
