"""The Python package, in whichever Python runs these tests: with enable_load_extension or without it."""

import ctypes.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
from pathlib import Path
from unittest import mock

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "python" / "src"))

import duralite  # noqa: E402

HAS_LOADER = hasattr(sqlite3.Connection, "enable_load_extension")


def properties(conn):
    """The lines of PRAGMA duralite, as a dictionary."""
    (text,) = conn.execute("PRAGMA duralite").fetchone()
    return dict(line.split("\t", 1) for line in text.splitlines())


def run_python(program, *arguments, **environment):
    """Runs a program in a fresh process of the same Python."""
    variables = {**os.environ, "PYTHONPATH": str(PROJECT / "python" / "src"), **environment}
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.run(command, env=variables, text=True, capture_output=True, timeout=60)


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix="duralite-python-"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.pool = Path(tempfile.mkdtemp(prefix="duralite-python-", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, self.pool)
        self.path = self.directory / "app.db"

    def connect(self, path=None, **settings):
        settings = {"journal": "nvwal", "nvram": "emulate", "nvram_dir": self.pool, **settings}
        conn = duralite.connect(path or self.path, isolation_level=None, **settings)
        self.addCleanup(conn.close)
        conn.execute("PRAGMA journal_mode=WAL")
        return conn


class Registration(Case):
    def test_register_makes_the_vfs_known_and_leaves_the_default_alone(self):
        duralite.register()
        duralite.register()
        conn = sqlite3.connect(f"file:{self.path}?vfs=duralite&journal=off", uri=True)
        conn.execute("CREATE TABLE t (a)")
        conn.close()
        plain = sqlite3.connect(self.path)
        self.assertIsNone(plain.execute("PRAGMA duralite").fetchone())
        plain.close()

    def test_register_from_many_threads(self):
        program = """
            import sqlite3, threading, duralite
            threads = [threading.Thread(target=duralite.register) for _ in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            sqlite3.connect("file::memory:?vfs=duralite", uri=True).execute("SELECT 1")
        """
        result = run_python(program)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_auto_extension_is_gone_after_register(self):
        # If the extension stayed registered, each later open would run its entry point again.
        program = """
            import ctypes, duralite
            duralite._register_by_auto_extension()
            library = ctypes.CDLL(duralite.loadable_path())
            entry = ctypes.cast(library.sqlite3_duralite_auto, ctypes.c_void_p)
            print(duralite._sqlite_library().sqlite3_cancel_auto_extension(entry))
        """
        result = run_python(program)
        self.assertEqual((result.stdout.strip(), result.stderr), ("0", ""))

    def test_auto_extension_works_in_every_python(self):
        program = """
            import sqlite3, sys, duralite
            duralite._register_by_auto_extension()
            conn = sqlite3.connect(f"file:{sys.argv[1]}?vfs=duralite&journal=off", uri=True)
            print(conn.execute("PRAGMA duralite").fetchone()[0].split()[0])
        """
        result = run_python(program, self.path)
        self.assertEqual((result.stdout.strip(), result.stderr), ("version", ""))

    @unittest.skipUnless(HAS_LOADER, "this Python has no enable_load_extension")
    def test_load_registers_through_a_connection_and_locks_the_loader_again(self):
        program = """
            import sqlite3, duralite
            first = sqlite3.connect(":memory:")
            duralite.load(first)
            sqlite3.connect("file::memory:?vfs=duralite", uri=True).execute("SELECT 1")
            try:
                first.load_extension(duralite.loadable_path())
            except sqlite3.OperationalError as error:
                print(error)
        """
        result = run_python(program)
        self.assertEqual((result.stdout.strip(), result.stderr), ("not authorized", ""))

    @unittest.skipIf(HAS_LOADER, "this Python has enable_load_extension")
    def test_load_without_a_loader_says_so(self):
        conn = sqlite3.connect(":memory:")
        self.addCleanup(conn.close)
        with self.assertRaises(AttributeError):
            duralite.load(conn)


class Library(Case):
    def test_a_library_named_and_not_there_is_an_error_that_names_it(self):
        with mock.patch.dict(os.environ, DURALITE_LIBRARY=str(self.directory / "none.so")):
            with self.assertRaisesRegex(duralite.LibraryNotFound, "none.so.*DURALITE_LIBRARY"):
                duralite.loadable_path()

    def test_a_library_named_wins(self):
        other = self.directory / "other.so"
        other.touch()
        with mock.patch.dict(os.environ, DURALITE_LIBRARY=str(other)):
            self.assertEqual(duralite.loadable_path(), str(other))

    def test_a_library_named_is_no_unknown_setting(self):
        program = """
            import sys, duralite
            duralite.connect(sys.argv[1]).execute("CREATE TABLE t (a)")
        """
        result = run_python(program, self.path, DURALITE_LIBRARY=duralite.loadable_path())
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_the_package_directory_comes_before_the_source_tree(self):
        package = self.directory / "duralite"
        package.mkdir()
        library = package / duralite.LIBRARY_NAME
        library.touch()
        with mock.patch.object(duralite, "__file__", str(package / "__init__.py")):
            with mock.patch.dict(os.environ):
                os.environ.pop("DURALITE_LIBRARY", None)
                self.assertEqual(duralite.loadable_path(), str(library))
                library.unlink()
                with self.assertRaisesRegex(duralite.LibraryNotFound, "make build"):
                    duralite.loadable_path()

    def test_a_library_that_is_none_is_an_error_and_not_a_crash(self):
        wrong = self.directory / "wrong.so"
        wrong.write_bytes(b"not a library")
        result = run_python("import duralite; duralite.register()", DURALITE_LIBRARY=str(wrong))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("wrong.so", result.stderr)


class Connect(Case):
    def test_commits_go_into_the_log_and_come_back_as_a_plain_file(self):
        conn = self.connect()
        conn.execute("CREATE TABLE t (a)")
        conn.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(100)])
        found = properties(conn)
        self.assertEqual((found["engine"], found["guarantee"]), ("nvwal", "process-crash"))
        self.assertGreaterEqual(int(found["commits"]), 100)
        conn.close()
        self.assertEqual(list(self.pool.iterdir()), [])
        plain = sqlite3.connect(self.path)
        self.addCleanup(plain.close)
        self.assertEqual(plain.execute("SELECT count(*) FROM t").fetchone(), (100,))
        self.assertEqual(plain.execute("PRAGMA integrity_check").fetchone(), ("ok",))

    def test_inv01_a_live_database_is_refused_by_plain_sqlite(self):
        conn = self.connect()
        conn.execute("CREATE TABLE t (a)")
        plain = sqlite3.connect(self.path)
        self.addCleanup(plain.close)
        with self.assertRaisesRegex(sqlite3.DatabaseError, "not a database"):
            plain.execute("SELECT count(*) FROM t").fetchone()

    def test_inv07_a_killed_process_leaves_every_acknowledged_row(self):
        program = """
            import os, signal, sys, duralite
            path, pool = sys.argv[1:]
            conn = duralite.connect(path, journal="nvwal", nvram="emulate", nvram_dir=pool, isolation_level=None)
            conn.execute("PRAGMA journal_mode=WAL")
            conn.execute("CREATE TABLE t (a)")
            for i in range(500):
                conn.execute("INSERT INTO t VALUES (?)", (i,))
            os.kill(os.getpid(), signal.SIGKILL)
        """
        result = run_python(program, self.path, self.pool)
        self.assertEqual(result.returncode, -9, result.stderr)
        conn = self.connect()
        self.assertEqual(conn.execute("SELECT count(*), max(a) FROM t").fetchone(), (500, 499))

    def test_two_threads_share_a_database(self):
        self.connect().execute("CREATE TABLE t (a)")

        def insert():
            mine = self.connect(timeout=30, check_same_thread=False)
            for i in range(200):
                mine.execute("INSERT INTO t VALUES (?)", (i,))

        threads = [threading.Thread(target=insert) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.connect().execute("SELECT count(*) FROM t").fetchone(), (400,))

    def test_names_with_special_characters(self):
        for name in ("a b.db", "50%25.db", "what?journal=off.db", "a#b.db", "a&vfs=unix.db", "ü.db", "a//b.db"):
            with self.subTest(name):
                (self.directory / name).parent.mkdir(exist_ok=True)
                conn = self.connect(self.directory / name)
                conn.execute("CREATE TABLE t (a)")
                self.assertEqual(properties(conn)["engine"], "nvwal")
                conn.close()
                self.assertTrue((self.directory / name).is_file())

    def test_names_that_are_not_utf8(self):
        name = os.fsencode(self.directory) + b"/\xff.db"
        conn = self.connect(name, journal="off")
        conn.execute("CREATE TABLE t (a)")
        conn.close()
        self.assertTrue(os.path.isfile(name))

    def test_one_call_is_enough(self):
        conn = duralite.connect(self.path)
        self.addCleanup(conn.close)
        self.assertEqual(conn.execute("PRAGMA journal_mode").fetchone(), ("wal",))
        conn.execute("CREATE TABLE t (a)")
        self.assertEqual(properties(conn)["state"], "active")
        self.assertEqual(conn.execute("PRAGMA duralite_strict").fetchone(), ("on",))
        plain = duralite.connect(self.directory / "plain.db", wal=False)
        self.addCleanup(plain.close)
        plain.execute("CREATE TABLE t (a)")
        self.assertEqual(plain.execute("PRAGMA journal_mode").fetchone(), ("delete",))

    def test_wal_mode_that_cannot_be_had_is_an_error(self):
        holder = sqlite3.connect(self.path, isolation_level=None)
        self.addCleanup(holder.close)
        holder.execute("CREATE TABLE t (a)")
        holder.execute("BEGIN EXCLUSIVE")
        with self.assertRaisesRegex(sqlite3.OperationalError, "locked|stays in journal mode"):
            duralite.connect(self.path, timeout=0.05)

    @unittest.skipUnless(sys.version_info >= (3, 12), "there is no autocommit before")
    def test_connections_that_begin_transactions_by_themselves(self):
        conn = duralite.connect(self.path, autocommit=False)
        self.addCleanup(conn.close)
        conn.execute("CREATE TABLE t (a)")
        conn.commit()
        self.assertEqual(conn.execute("PRAGMA journal_mode").fetchone(), ("wal",))

    def test_memory_databases(self):
        conn = duralite.connect(":memory:")
        self.addCleanup(conn.close)
        conn.execute("CREATE TABLE t (a)")
        self.assertFalse(os.path.exists(":memory:"))

    def test_booleans_and_sqlites_own_parameters(self):
        self.connect(diff=False).execute("CREATE TABLE t (a)")
        # This connection is closed at the end of the test. Until then the database is in use.
        self.assertEqual(self.connect(diff=False).execute("PRAGMA duralite_diff").fetchone(), ("off",))
        readonly = duralite.connect(self.path, mode="ro", nvram="emulate", nvram_dir=self.pool)
        self.addCleanup(readonly.close)
        with self.assertRaisesRegex(sqlite3.OperationalError, "readonly"):
            readonly.execute("INSERT INTO t VALUES (1)")

    def test_unknown_settings_and_values_are_refused(self):
        for settings in ({"sync": "sometimes"}, {"journal": "tape"}, {"nvram": "/nowhere"}, {"nvram_speed": 1}):
            with self.subTest(settings), self.assertRaises(sqlite3.OperationalError):
                self.connect(**settings)
            self.assertFalse(self.path.exists())

    def test_a_refusal_says_why(self):
        for settings, reason in (
            ({"journal": "nvwal", "nvram": "/nowhere"}, "nvram=/nowhere is not a directory"),
            ({"durabilty": "normal"}, r"unknown URI parameter durabilty; did you mean durability\?"),
        ):
            with self.subTest(settings):
                with self.assertRaisesRegex(sqlite3.OperationalError, f"unable to open.*: {reason}") as caught:
                    duralite.connect(self.path, **settings)
                if sys.version_info >= (3, 11):
                    self.assertEqual(caught.exception.sqlite_errorcode, sqlite3.SQLITE_CANTOPEN)
                self.assertRegex(duralite.last_error(), f"^{reason}")
        # If SQLite itself refuses, the exception has no reason of Duralite's.
        with self.assertRaises(sqlite3.OperationalError) as caught:
            duralite.connect(self.directory / "no" / "app.db", journal="off")
        self.assertEqual(str(caught.exception), "unable to open database file")

    def test_a_statement_or_commit_that_is_refused_says_why(self):
        why = "attempt to write a readonly database: strict=on refuses to write to .*app.db"
        plain = sqlite3.connect(self.path)
        plain.execute("CREATE TABLE t (a)")
        plain.close()
        insert = "INSERT INTO t VALUES (1)"

        def by_with(conn):
            with conn:
                conn.execute(insert)

        for use in (
            lambda conn: conn.execute(insert),
            lambda conn: conn.executemany("INSERT INTO t VALUES (?)", [(1,)]),
            lambda conn: conn.executescript(insert),
            lambda conn: conn.cursor().execute(insert),
            lambda conn: (conn.execute("BEGIN EXCLUSIVE"), conn.execute(insert), conn.commit()),
            lambda conn: (conn.execute("BEGIN EXCLUSIVE"), by_with(conn)),
        ):
            conn = duralite.connect(self.path, wal=False, strict=True)
            with self.assertRaisesRegex(sqlite3.OperationalError, why) as caught:
                use(conn)
            if sys.version_info >= (3, 11):
                self.assertEqual(caught.exception.sqlite_errorcode, sqlite3.SQLITE_READONLY)
            # The text of an unrelated error has no such reason.
            with self.assertRaises(sqlite3.OperationalError) as caught:
                conn.execute("SELECT missing")
            self.assertEqual(str(caught.exception), "no such column: missing")
            self.assertEqual(conn.execute("SELECT count(*) FROM t").fetchone(), (0,))
            conn.close()

    def test_the_connection_is_an_ordinary_one(self):
        conn = self.connect()
        self.assertIsInstance(conn, sqlite3.Connection)
        self.assertIs(type(conn.cursor()), duralite.Cursor)
        self.assertIs(type(conn.cursor(sqlite3.Cursor)), sqlite3.Cursor)
        conn.row_factory = sqlite3.Row
        self.assertEqual(conn.execute("SELECT 1 AS a").fetchone()["a"], 1)
        own = type("Own", (sqlite3.Connection,), {})
        other = duralite.connect(self.directory / "other.db", factory=own)
        self.addCleanup(other.close)
        self.assertIs(type(other), own)

    def test_strict_refuses_plain_sqlite(self):
        with self.assertRaisesRegex(sqlite3.OperationalError, "strict=on refuses .*app.db.*: journal=off"):
            duralite.connect(self.path, strict=True, journal="off")
        self.assertFalse(self.path.exists())
        conn = duralite.connect(self.path, wal=False, strict=True, isolation_level=None)
        self.addCleanup(conn.close)
        with self.assertRaisesRegex(sqlite3.OperationalError, "readonly database: .*app.db: it is not in WAL mode"):
            conn.execute("CREATE TABLE t (a)")
        self.assertEqual(conn.execute("PRAGMA journal_mode=WAL").fetchone(), ("wal",))
        conn.execute("CREATE TABLE t (a)")
        self.assertEqual(properties(conn)["engine"], "waldio")

    def test_strict_for_a_process_refuses_what_goes_past_the_library(self):
        program = """
            import sqlite3, sys, duralite
            duralite.register()
            try:
                sqlite3.connect(sys.argv[1])
            except sqlite3.Error as error:
                print(type(error).__name__, "not through Duralite" in str(error) + duralite.last_error())
            sqlite3.connect(f"file:{sys.argv[1]}?strict=off", uri=True).execute("CREATE TABLE t (a)")
            conn = duralite.connect(sys.argv[1], isolation_level=None)
            conn.execute("PRAGMA journal_mode=WAL")
            conn.execute("INSERT INTO t VALUES (1)")
            print(conn.execute("SELECT a FROM t").fetchone())
        """
        result = run_python(program, self.path, DURALITE_STRICT="on")
        self.assertEqual((result.stdout.splitlines(), result.stderr), (["OperationalError True", "(1,)"], ""))

    @unittest.skipUnless(HAS_LOADER, "this Python has no enable_load_extension")
    def test_strict_refuses_a_load_through_a_database_that_is_open(self):
        program = """
            import sqlite3, sys, duralite
            conn = sqlite3.connect(sys.argv[1])
            try:
                duralite.load(conn)
            except sqlite3.OperationalError as error:
                print("app.db is open through the VFS unix" in str(error))
            duralite.load(sqlite3.connect(":memory:"))
            sqlite3.connect("file::memory:?vfs=duralite", uri=True).execute("SELECT 1")
        """
        result = run_python(program, self.path, DURALITE_STRICT="1")
        self.assertEqual((result.stdout.strip(), result.stderr), ("True", ""))

    def test_the_reason_is_a_function_in_sql_on_every_connection(self):
        program = """
            import sqlite3, threading, duralite
            before = sqlite3.connect(":memory:")
            duralite.register()
            after = sqlite3.connect(":memory:", check_same_thread=False)
            ask = "SELECT duralite_last_error()"
            print(after.execute(ask).fetchone(), duralite.last_error())
            try:
                duralite.connect("x.db", jornal="off")
            except sqlite3.OperationalError:
                print(after.execute(ask).fetchone()[0] == duralite.last_error(), duralite.last_error())
            other = lambda: print(after.execute(ask).fetchone()[0])
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        """
        reason = "unknown URI parameter jornal; did you mean journal?"
        result = run_python(program)
        expected = ["(None,) None", f"True {reason}", reason]
        self.assertEqual((result.stdout.splitlines(), result.stderr), (expected, ""))

    def test_status_and_log_are_rows(self):
        conn = self.connect()
        conn.execute("CREATE TABLE t (a)")
        before = conn.execute("SELECT max(position) FROM duralite_log").fetchone()[0]
        with conn:
            conn.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(3)])
        rows = conn.execute("SELECT position, durable, pages FROM duralite_log WHERE position > ?", (before,)).fetchall()
        self.assertEqual([row[1] for row in rows], [1] * 3)
        self.assertEqual({page for row in rows for page in json.loads(row[2])}, {2})
        status = dict(conn.execute("SELECT name, value FROM duralite"))
        self.assertEqual({name: str(value) for name, value in status.items()}.keys(), properties(conn).keys())
        (text,) = conn.execute("SELECT duralite_json('main')").fetchone()
        self.assertEqual(json.loads(text)["commits"], status["commits"])
        with self.assertRaisesRegex(sqlite3.OperationalError, "no such schema: other"):
            conn.execute("SELECT * FROM duralite_log('other')")
        plain = sqlite3.connect(self.directory / "plain.db")
        self.addCleanup(plain.close)
        state = plain.execute("SELECT value FROM duralite WHERE name = 'state'").fetchone()[0]
        self.assertEqual(state, "off: opened through the VFS unix, not through Duralite")

    def test_inv14_a_child_is_refused_the_status_of_what_it_inherits(self):
        program = """
            import json, os, sqlite3, sys, duralite
            settings = dict(journal="nvwal", nvram="emulate", nvram_dir=sys.argv[2])
            conn = duralite.connect(sys.argv[1], **settings)
            conn.execute("CREATE TABLE t (a)")
            conn.commit()
            if os.fork() == 0:
                for ask in "SELECT duralite_json()", "SELECT name FROM duralite", "SELECT number FROM duralite_log":
                    try:
                        print(conn.execute(ask).fetchall())
                    except sqlite3.OperationalError as error:
                        print("opened before a fork" in f"{error} {duralite.last_error()}")
                own = duralite.connect(sys.argv[1], **settings)
                print(own.execute("SELECT number FROM duralite_log").fetchall())
                own.close()
                sys.stdout.flush()
                os._exit(0)
            os.wait()
            print(json.loads(conn.execute("SELECT duralite_json()").fetchone()[0])["state"])
            conn.close()
        """
        result = run_python(program, self.path, self.pool)
        self.assertEqual((result.stdout.splitlines(), result.stderr), (["True"] * 3 + ["[(1,)]", "active"], ""))

    def test_two_copies_of_sqlite_each_have_the_functions_and_tables(self):
        found = ctypes.util.find_library("sqlite3")
        places = [Path(place) / found for place in ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")]
        library = next((place for place in places if place.exists()), None) if found else None
        if library is None:
            self.skipTest("no second SQLite on this machine")
        copy = self.directory / "copy-of-sqlite.so"
        shutil.copy(library, copy)
        program = """
            import ctypes, os, sqlite3, sys, duralite
            try:
                duralite.connect("x.db", jornal="off")
            except sqlite3.OperationalError:
                pass
            copy = ctypes.CDLL(sys.argv[1], mode=os.RTLD_LOCAL | os.RTLD_DEEPBIND)
            copy.sqlite3_auto_extension(ctypes.cast(duralite._library.sqlite3_duralite_auto, ctypes.c_void_p))
            seen = []
            row = ctypes.CFUNCTYPE(
                ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_void_p
            )(lambda _, columns, texts, names: seen.append(texts[0].decode()) or 0)
            handle = ctypes.c_void_p()
            for name in (b":memory:", b"file:y.db?vfs=duralite&nvrm=emulate", b":memory:"):
                copy.sqlite3_open_v2(name, ctypes.byref(handle), 0x46, None)
                copy.sqlite3_exec(handle, b"SELECT duralite_last_error()", row, None, None)
                copy.sqlite3_exec(handle, b"SELECT value || duralite_json() FROM duralite WHERE name = 'state'", row, None, None)
                copy.sqlite3_close(handle)
            ours = sqlite3.connect(":memory:").execute("SELECT duralite_last_error()").fetchone()
            print(seen[0], seen[-2], *ours, seen[1].startswith("off: it has no file{"), seen[1] == seen[-1], sep="\\n")
        """
        result = run_python(program, copy)
        jornal, nvrm = ("unknown URI parameter %s; did you mean %s?" % pair for pair in (("jornal", "journal"), ("nvrm", "nvram")))
        self.assertEqual((result.stdout.splitlines(), result.stderr), ([jornal, nvrm, nvrm, "True", "True"], ""))


if __name__ == "__main__":
    unittest.main()
