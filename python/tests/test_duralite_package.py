"""How the package changes a whole process, the versions that it reports, and how its wheel is packed."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_duralite import PROJECT, Case, duralite, run_python  # noqa: E402


class Enable(Case):
    def test_a_database_outside_wal_mode_can_be_read_and_is_refused_at_the_first_write(self):
        plain = sqlite3.connect(self.path)
        plain.execute("CREATE TABLE t (a)")
        plain.close()
        program = """
            import sqlite3, sys, duralite
            duralite.enable()
            conn = sqlite3.connect(sys.argv[1])
            print(conn.execute("SELECT count(*) FROM t").fetchone())
            try:
                conn.execute("INSERT INTO t VALUES (1)")
            except sqlite3.OperationalError as error:
                print(error, "not in WAL mode" in duralite.last_error())
            conn.rollback()
            conn.execute("PRAGMA journal_mode=WAL")
            conn.execute("INSERT INTO t VALUES (1)")
            print("state\\tactive" in conn.execute("PRAGMA duralite").fetchone()[0])
        """
        result = run_python(program, self.path)
        expected = ["(0,)", "attempt to write a readonly database True", "True"]
        self.assertEqual((result.stdout.splitlines(), result.stderr), (expected, ""))

    def test_wal_mode_is_set_as_files_are_opened_until_it_is_called_off(self):
        program = """
            import os, sqlite3, sys, duralite
            os.chdir(sys.argv[1])
            duralite.enable(wal=True)
            duralite.enable(wal=True, strict=False)
            mode = lambda name, **more: sqlite3.connect(name, **more).execute("PRAGMA journal_mode").fetchone()[0]
            print(mode("app.db"), mode(":memory:"), mode("file:app.db?mode=ro", uri=True))
            duralite.enable(strict=False)
            print(mode("other.db"))
        """
        result = run_python(program, self.directory)
        self.assertEqual((result.stdout.splitlines(), result.stderr), (["wal memory wal", "delete"], ""))

    def test_settings_hold_for_every_open_and_wrong_ones_fail_it(self):
        program = """
            import sqlite3, sys, duralite
            duralite.enable(wal=True, durability="normal")
            print(sqlite3.connect(sys.argv[1]).execute("PRAGMA duralite_durability").fetchone()[0])
            duralite.enable(jornal="off")
            try:
                sqlite3.connect(sys.argv[1])
            except sqlite3.OperationalError:
                print(duralite.last_error())
        """
        result = run_python(program, self.path)
        self.assertEqual(result.stderr, "")
        self.assertRegex(result.stdout, "normal\n.*DURALITE_JORNAL.*DURALITE_JOURNAL")

    def test_a_missing_library_is_an_error(self):
        result = run_python("import duralite; duralite.enable()", DURALITE_LIBRARY="/none.so")
        self.assertEqual(result.returncode, 1)
        self.assertIn("LibraryNotFound", result.stderr)


class Version(unittest.TestCase):
    def test_package_library_and_source_have_one_version(self):
        (source,) = re.findall(r'^version = "(.*)"$', (PROJECT / "Cargo.toml").read_text(), re.MULTILINE)
        self.assertEqual(duralite.__version__, source)
        self.assertEqual(duralite.library_version().split(" ")[0], source)


@unittest.skipUnless(sys.version_info >= (3, 11), "wheel.py reads TOML, as Python does since 3.11")
class Wheel(unittest.TestCase):
    def pack(self, directory, umask):
        directory.mkdir()
        with mock.patch.dict(os.environ, SOURCE_DATE_EPOCH="1700000000"):
            command = [sys.executable, PROJECT / "python/wheel.py", duralite.loadable_path(), "linux_x86_64", directory]
            made = subprocess.run(
                command, check=True, text=True, stdout=subprocess.PIPE, preexec_fn=lambda: os.umask(umask)
            )
        return Path(made.stdout.strip())

    def test_the_same_files_give_the_same_bytes_and_nothing_of_the_package_is_left_out(self):
        directory = Path(tempfile.mkdtemp(prefix="duralite-wheel-"))
        self.addCleanup(shutil.rmtree, directory)
        first, second = self.pack(directory / "1", 0o022), self.pack(directory / "2", 0o077)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        source = PROJECT / "python/src"
        modules = {str(path.relative_to(source)) for path in source.rglob("*.py")}
        with zipfile.ZipFile(first) as archive:
            names = archive.namelist()
            self.assertLessEqual(modules | {"duralite/libduralite.so"}, set(names))
            record = archive.read(names[-1]).decode().splitlines()
        self.assertEqual([line.split(",")[0] for line in record], names)


if __name__ == "__main__":
    unittest.main()
