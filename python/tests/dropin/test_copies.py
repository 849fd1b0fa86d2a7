"""Copies of a database's directory, and of the database file alone."""

import os
import shutil
import subprocess
import unittest
from pathlib import Path

from . import harness
from .harness import beyond_stock, each

INSERT = "conn = create(sys.argv[1]); insert(conn, sys.argv[2], 20); conn.close()"

#: Reports the outcome of an open and a read.
LOOK = """
def look():
    conn = connect(sys.argv[1], wal=False)
    found = conn.execute("SELECT who, n FROM t").fetchall()
    assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    conn.close()
    return len(found)

say(*attempt(look))
"""


class CopyCase(harness.Case):
    """The emulated memory is in the directory too, so a copy of the directory is complete."""

    def setUp(self):
        super().setUp()
        self.log_dir = self.directory / "nvram"
        self.log_dir.mkdir()

    def copy(self, how, name="copy"):
        target = self.base / name
        if how == "cp":
            subprocess.run(["cp", "-a", self.directory, target], check=True)
        elif how == "tar":
            archive = self.base / f"{name}.tar"
            subprocess.run(["tar", "-cf", archive, "-C", self.directory, "."], check=True)
            target.mkdir()
            subprocess.run(["tar", "-xf", archive, "-C", target], check=True)
        else:
            shutil.copytree(self.directory, target)
        return target

    def whole(self, directory, expected):
        """Checks that this copy has these rows, can be written, and ends as a plain file."""
        path, log_dir = directory / "app.db", directory / "nvram"
        self.assertEqual(self.contents(path, log_dir=log_dir), expected)
        self.run_program(INSERT, path, directory.name, log_dir=log_dir)
        more = {(directory.name, n) for n in range(20)}
        self.assertEqual(self.contents(path, engine="stock"), expected | more)
        self.assertEqual(sorted(os.listdir(directory)), ["app.db", "nvram"])
        self.assertEqual(harness.left_in(log_dir), [])


class WholeDirectory(CopyCase):
    @each("cp", "tar", "copytree")
    def scenario_copy_then_original(self, how):
        self.create_and_kill()
        expected = set(self.acked)
        copy = self.copy(how)
        self.whole(copy, expected)
        self.whole(self.directory, expected)

    @each("cp", "tar")
    def scenario_original_then_copy(self, how):
        self.create_and_kill()
        expected = set(self.acked)
        copy = self.copy(how)
        self.whole(self.directory, expected)
        self.whole(copy, expected)

    @each("cp", "tar", "copytree")
    def scenario_original_removed(self, how):
        self.create_and_kill()
        copy = self.copy(how)
        shutil.rmtree(self.directory)
        self.whole(copy, self.acked)

    def scenario_copy_moved_back_to_the_originals_place(self):
        self.create_and_kill()
        copy = self.copy("tar")
        shutil.rmtree(self.directory)
        copy.rename(self.directory)
        self.whole(self.directory, self.acked)

    def scenario_copies_of_copies(self):
        self.create_and_kill()
        expected = set(self.acked)
        first = self.copy("cp", "first")
        self.directory, kept = first, self.directory
        second = self.copy("tar", "second")
        for directory in (second, kept, first):
            self.whole(directory, expected)

    @each("wal_too", "shm_not")
    def scenario_copy_and_original_in_use_at_once(self, files):
        program = """
            conn = create(sys.argv[1])
            say("open", rows(conn))
            while hear():
                insert(conn, sys.argv[2], 5, first=int(time.monotonic() * 1e6))
                say("rows", rows(conn))
            conn.close()
        """
        self.create_and_kill()
        copy = self.copy("cp")
        if files == "shm_not":
            for name in [*copy.rglob("*shm"), *copy.rglob("*.lock")]:
                name.unlink()
        running = [
            self.start(program, directory / "app.db", name, log_dir=directory / "nvram")
            for directory, name in ((copy, "copy"), (self.directory, "original"))
        ]
        for one in running:
            self.assertEqual(one.expect("open"), ["20"])
        for turn in range(1, 4):
            for one in running:
                one.tell()
                self.assertEqual(one.expect("rows"), [str(20 + 5 * turn)])
        running[0].kill()
        running[1].finish()
        self.assertEqual({who for who, _ in self.contents(self.path)}, {"base", "original"})
        found = self.contents(copy / "app.db", log_dir=copy / "nvram")
        self.assertEqual({who for who, _ in found}, {"base", "copy"})

    @beyond_stock("a copy that is made file by file may be torn; only that it is refused or right is asked")
    def scenario_copy_of_a_live_directory(self):
        program = """
            conn = create(sys.argv[1])
            insert(conn, "base", 50)
            say("ready")
            hear()
            insert(conn, "base", 50, first=50)
            conn.close()
        """
        live = self.start(program, self.path)
        live.expect("ready")
        expected = set(self.acked)
        copy = self.copy("cp")
        (line,) = self.run_program(LOOK, copy / "app.db", log_dir=copy / "nvram")
        self.assertTrue(line[0] == "error" or int(line[1]) == len(expected), line)
        live.tell()
        live.finish()
        self.check(exact=self.acked)


class DatabaseAlone(CopyCase):
    def look(self, path, log_dir=None):
        program = self.start(LOOK, path, log_dir=log_dir)
        (line,) = program.finish()
        program.errors.seek(0)
        return line, program.errors.read().decode()

    @beyond_stock("it is silently stale")
    @each("elsewhere", "beside", "in_a_fresh_directory")
    def scenario_copied_after_a_kill(self, where):
        self.create(rows=5)
        self.create_and_kill(rows=0)
        self.run_program("conn = connect(sys.argv[1]); insert(conn, 'log', 20); die()", self.path, code=-9)
        target = self.directory if where == "beside" else self.base / "elsewhere"
        target.mkdir(exist_ok=True)
        log_dir = target / "log_dir" if where == "in_a_fresh_directory" else None
        if log_dir:
            log_dir.mkdir()
        path = Path(shutil.copy2(self.path, target / "copy.db"))
        line, reason = self.look(path, log_dir)
        if line[0] == "ok":
            self.assertEqual(int(line[1]), len(self.acked), "it is silently stale")
        else:
            self.assertIn("log", reason, "refused without a reason")
        # The copy did no harm to the original.
        self.check(exact=self.acked)

    @beyond_stock("it is silently stale")
    def scenario_copied_while_open(self):
        program = """
            conn = create(sys.argv[1])
            insert(conn, "base", 50)
            say("ready")
            hear()
            insert(conn, "base", 50, first=50)
            conn.close()
        """
        live = self.start(program, self.path)
        live.expect("ready")
        path = Path(shutil.copy2(self.path, self.base / "copy.db"))
        line, reason = self.look(path)
        if line[0] == "ok":
            self.assertEqual(int(line[1]), 50, "it is silently stale")
        else:
            self.assertIn("log", reason, "refused without a reason")
        live.tell()
        live.finish()
        self.check(exact=self.acked)

    def scenario_copied_when_closed(self):
        self.create(rows=20)
        path = Path(shutil.copy2(self.path, self.base / "copy.db"))
        self.run_program(INSERT, path, "copy")
        self.assertEqual({who for who, _ in self.contents(path)}, {"base", "copy"})
        self.assertEqual({who for who, _ in self.contents()}, {"base"})

    @each("checkpointed_copy", "copy_after_close")
    def scenario_copied_and_put_back(self, when):
        # cp app.db saved.db; work goes on; kill; rm app.db*; cp saved.db app.db.
        self.create(rows=20)
        saved = Path(shutil.copy2(self.path, self.base / "saved.db"))
        expected = set(self.acked)
        self.run_program("conn = connect(sys.argv[1]); insert(conn, 'lost', 20); die()", self.path, code=-9)
        for name in os.listdir(self.directory):
            if name.startswith("app.db"):
                (self.directory / name).unlink()
        if when == "checkpointed_copy":
            shutil.copy2(saved, self.path)
        else:
            saved.rename(self.path)
        self.assertEqual(self.contents(), expected)
        self.acked = set(expected)
        self.run_program(INSERT, self.path, "new")
        self.check(exact=self.acked, clean=False)

    @beyond_stock("it is silently stale")
    @each("renamed", "out_of_sight")
    def scenario_copied_while_the_original_is(self, what):
        # The log is in a directory of its own, in which a log of the copy would be too.
        self.log_dir = self.base / "logs"
        self.log_dir.mkdir()
        named = {"DURALITE_LOG_DIR": str(self.log_dir)} if self.engine == "waldio" else {}
        self.create_and_kill(**named)
        expected = set(self.acked)
        away = self.base / "away"
        self.directory.rename(away)
        copy = self.base / "copy"
        copy.mkdir()
        path = Path(shutil.copy2(away / "app.db", copy / "app.db"))
        program = self.start(LOOK, path, **named)
        (line,) = program.finish()
        self.assertEqual(line[0], "error", "it has the log of its original")
        if what == "out_of_sight":
            away.rename(self.directory)
            away = self.directory
        self.check(away / "app.db", exact=expected, **named)


class CopyOpenedBesideItsOriginal(CopyCase):
    def scenario_the_locks_of_the_original_stay(self):
        # If the process closes any descriptor of a file, it loses all of its POSIX locks on that file.
        program = """
            conn = create(sys.argv[1])
            insert(conn, "base", 3)
            shutil.copytree(os.path.dirname(sys.argv[1]), sys.argv[2])
            assert conn.execute("PRAGMA journal_mode=DELETE").fetchone()[0] == "delete"
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("INSERT INTO t VALUES ('base', 3, '')")
            log_dir = {"nvram_dir": sys.argv[2] + "/nvram"} if IS_IN_MEMORY else {}
            copy = connect(os.path.join(sys.argv[2], "app.db"), wal=False, **log_dir)
            assert rows(copy) == 3
            say("locked")
            hear()
            conn.execute("COMMIT")
            ack("base", 3)
            conn.close()
            copy.close()
        """
        live = self.start(program, self.path, self.base / "copy")
        self.ends_as_the_only_writer(live, self.path)
        self.assertEqual(self.contents(), self.acked)
        self.assertEqual(harness.left_in(self.log_dir), [])


if __name__ == "__main__":
    unittest.main()
