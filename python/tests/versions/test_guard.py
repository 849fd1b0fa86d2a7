"""Stock SQLite and the guard: what it refuses under the guard, and what a connection that met the guard can do after it was
lifted."""

import contextlib
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from .sqlite import ENGINES, NOTADB, OPEN_READONLY, Connection, Error

#: The kinds of guards: the engine, the journal mode, and bytes 18 and 19 of the database.
GUARDS = [(engine, "WAL", b"\x02\xd7") for engine in ENGINES] + [("scratchpad", "DELETE", b"\x01\xd8")]


def versions_of(path, raised=None):
    """    Returns bytes 18 and 19 of a database, and first sets byte 18 if asked to. Another process does it: if this
    process closed the file, its connections would lose their locks on it."""
    program = (
        "import sys; file = open(sys.argv[1], 'r+b', buffering=0); file.seek(18)\n"
        "if sys.argv[2]: file.write(bytes([int(sys.argv[2])])); file.seek(18)\n"
        "print(file.read(2).hex())"
    )
    command = [sys.executable, "-c", program, str(path), str(raised or "")]
    return bytes.fromhex(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class Guard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Connection("", "mode=memory") as connection:
            connection.load()

    def refused(self, connection, sql):
        with self.assertRaises(Error) as caught:
            connection.run(sql)
        self.assertEqual(caught.exception.code, NOTADB)

    def each(self, check):
        """Checks each guard: on a database, with the connection that raised the guard, and with the parameters of that
        connection."""
        for engine, mode, versions in GUARDS:
            with self.subTest(engine=engine, mode=mode), contextlib.ExitStack() as stack:
                path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "app.db"
                parameters = f"vfs=duralite&journal={engine}{ENGINES[engine]}"
                connection = stack.enter_context(Connection(path, parameters))
                connection.run(f"PRAGMA journal_mode={mode}")
                connection.run("CREATE TABLE t(x)")
                connection.run("CREATE TABLE another(x)")
                self.assertEqual(versions_of(path), versions)
                check(path, connection, parameters)

    def test_inv01_readers_and_writers_are_refused(self):
        def check(path, _ours, _parameters):
            for parameters in ("vfs=unix", "vfs=unix&mode=ro", "vfs=unix&immutable=1"):
                with Connection(path, parameters) as stock:
                    self.refused(stock, "SELECT * FROM t")
            with Connection(path, "vfs=unix", OPEN_READONLY) as stock:
                self.refused(stock, "SELECT * FROM t")

        self.each(check)

    def test_a_connection_that_has_met_the_guard_writes_when_it_is_gone(self):
        def check(path, ours, _parameters):
            with Connection(path, "vfs=unix") as stock:
                self.refused(stock, "SELECT * FROM t")
                self.refused(stock, "INSERT INTO t VALUES('lost')")
                ours.run("CREATE TABLE later(x)")
                ours.close()
                self.assertLess(versions_of(path)[1], 3)
                stock.run("INSERT INTO t VALUES('stock')")
                self.assertEqual(stock.run("SELECT x FROM t"), [["stock"]])

        self.each(check)

    def test_inv01_a_guard_of_earlier_builds_is_one_and_is_lifted(self):
        def check(path, ours, parameters):
            ours.run("INSERT INTO t VALUES('ours')")
            raised = versions_of(path)[1]
            self.assertEqual(versions_of(path, raised), bytes([raised, raised]))
            with Connection(path, "vfs=unix") as stock:
                self.refused(stock, "SELECT * FROM t")
            with Connection(path, parameters) as second:
                second.run("INSERT INTO t VALUES('second')")
            ours.close()
            with Connection(path, "vfs=unix") as stock:
                self.assertEqual(stock.run("SELECT x FROM t"), [["ours"], ["second"]])
                self.assertEqual(stock.value("PRAGMA integrity_check"), "ok")

        self.each(check)


if __name__ == "__main__":
    unittest.main()
