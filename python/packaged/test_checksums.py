"""SQLite's own cksumvfs above the wheel, in apsw, which contains that VFS."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = """
import ctypes
import os
import sys
from pathlib import Path

import apsw

import duralite

path, who, what = sys.argv[1:]
loader = apsw.Connection(":memory:")
loader.enable_load_extension(True)
if who == "ours":
    loader.load_extension(duralite.loadable_path())
loader.load_extension(str(Path(apsw.__file__).parent / "sqlite_extra_binaries" / "cksumvfs.so"))
conn = apsw.Connection(path)
conn.set_busy_timeout(5000)
if what == "make":
    reserved = ctypes.c_int(8)
    conn.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
    conn.execute("PRAGMA journal_mode=WAL; CREATE TABLE t(a)").fetchall()
elif what == "die":
    conn.execute("PRAGMA wal_autocheckpoint=20")
    for _ in range(50):
        conn.execute("INSERT INTO t VALUES(randomblob(900))")
    os.kill(os.getpid(), 9)
else:
    # Each page that is read is checked.
    print(conn.execute("PRAGMA integrity_check").get, conn.execute("SELECT count(*) FROM t").get)
conn.close()
"""
ENGINES = {
    "waldio": {},
    "nvwal": {"DURALITE_NVRAM": "emulate"},
    "scratchpad": {"DURALITE_SCRATCHPAD": "emulate", "DURALITE_HOME": "emulate"},
}


class Checksums(unittest.TestCase):
    def test_every_page_has_its_checksum_whoever_dies(self):
        for engine, settings in ENGINES.items():
            with self.subTest(engine), tempfile.TemporaryDirectory() as directory:
                path = str(Path(directory) / "app.db")
                environment = {**os.environ, "DURALITE_MAKE_DEFAULT": "1", "DURALITE_JOURNAL": engine, **settings}

                def run(who, what, path=path, environment=environment):
                    program = [sys.executable, "-c", PROGRAM, path, who, what]
                    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)

                result = run("stock", "make")
                self.assertEqual(result.returncode, 0, result.stderr)
                for number, dies in enumerate(("ours", "stock", "ours", "stock"), start=1):
                    result = run(dies, "die")
                    self.assertEqual(result.returncode, -9, result.stderr)
                    for who in ("ours", "stock"):
                        result = run(who, "read")
                        self.assertEqual(result.stdout, f"ok {50 * number}\n", (dies, who, result.stderr))


if __name__ == "__main__":
    unittest.main()
