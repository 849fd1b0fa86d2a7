"""Databases with several names, with new names, and with names that another file takes over."""

import os
import shutil
import sqlite3
import unittest

from . import harness
from .harness import beyond_stock, each

#: Opens, says "open", and inserts ten rows each time that it is told to.
STEADY = """
conn = create(sys.argv[1])
say("open")
n = 0
while hear():
    insert(conn, sys.argv[2], 10, first=n)
    n += 10
    say("rows", rows(conn))
conn.close()
"""

#: Opens, inserts and closes at once.
QUICK = "own(sys.argv[1], sys.argv[2], int(sys.argv[3]))"

#: A database made by stock SQLite, with rows of its own.
BACKUP = """
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute(TABLE)
conn.executemany("INSERT INTO t VALUES ('backup', ?, randomblob(100))", [(n,) for n in range(50)])
conn.close()
"""
BACKUPS_ROWS = {("backup", n) for n in range(50)}


class PathCase(harness.Case):
    def steady(self, path, name):
        program = self.start(STEADY, path, name)
        program.expect("open")
        return program

    def go(self, program):
        program.tell()
        return int(program.expect("rows")[0])

    def all_files(self):
        return sorted(harness.left_in(self.directory)) + sorted(harness.left_in(self.log_dir))


class SeveralNames(PathCase):
    @beyond_stock("SQLite finds its log by the path, so each name has its own")
    def scenario_hard_link_with_two_writers(self):
        self.create()
        link = self.directory / "link.db"
        os.link(self.path, link)
        one, two = self.steady(self.path, "one"), self.steady(link, "two")
        for turn in range(1, 6):
            self.assertEqual(self.go(one), 20 * turn - 10)
            self.assertEqual(self.go(two), 20 * turn)
        one.finish()
        self.assertEqual(self.go(two), 110)
        two.finish()
        self.assertEqual(len(self.check(clean=False)), 110)
        self.assertEqual(self.contents(link, engine="stock"), self.acked)
        self.assertEqual(self.all_files(), ["app.db", "link.db"])

    @beyond_stock("SQLite finds its log by the path, so each name has its own")
    def scenario_hard_link_with_busy_writers(self):
        self.create()
        link = self.directory / "link.db"
        os.link(self.path, link)
        programs = [self.start(QUICK, path, f"w{i}", 100) for i, path in enumerate((self.path, link) * 2)]
        for program in programs:
            program.finish()
        self.check(exact=self.acked, clean=False)
        self.assertEqual(len(self.acked), 400)
        self.assertEqual(self.all_files(), ["app.db", "link.db"])

    @beyond_stock("SQLite finds its log by the path, so the other name has none")
    def scenario_hard_link_opened_after_a_kill(self):
        self.create_and_kill()
        link = self.directory / "link.db"
        os.link(self.path, link)
        self.assertEqual(self.contents(link), self.acked)
        self.check()
        self.assertEqual(self.all_files(), ["app.db", "link.db"])

    @each("file", "directory")
    def scenario_symlink(self, what):
        if what == "file":
            link = self.directory / "link.db"
            link.symlink_to(self.path)
        else:
            (self.base / "alias").symlink_to(self.directory)
            link = self.base / "alias" / "app.db"
        one, two = self.steady(self.path, "one"), self.steady(link, "two")
        for turn in range(1, 4):
            self.go(one)
            self.assertEqual(self.go(two), 20 * turn)
        one.kill()
        self.go(two)
        two.kill()
        self.contents(link)
        self.check(exact=self.acked)

    @beyond_stock("stock leaves a log of each name, and each belongs to another directory")
    def scenario_bind_mount(self):
        if os.geteuid() != 0:
            self.skipTest("only root mounts")
        other = self.base / "mounted"
        other.mkdir()
        self.create()
        run = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"']
        inside = self.start(STEADY, other / "app.db", "inside", interpreter=(*run, self.directory, other))
        try:
            inside.expect("open")
        except harness.Failed as failed:
            if "mount" in str(failed):
                self.skipTest("mounting is not permitted here")
            raise
        outside = self.steady(self.path, "outside")
        for turn in range(1, 4):
            self.go(inside)
            self.assertEqual(self.go(outside), 20 * turn)
        inside.finish()
        self.go(outside)
        outside.finish()
        self.check(exact=self.acked)


class Renamed(PathCase):
    @beyond_stock("the log keeps the old name, and the new one is read without it")
    @each("file", "directory")
    def scenario_while_open(self, what):
        old = self.steady(self.path, "old")
        self.go(old)
        if what == "file":
            path = self.directory / "new.db"
            self.path.rename(path)
        else:
            path = self.base / "moved" / "app.db"
            self.directory.rename(path.parent)
        new = self.steady(path, "new")
        for turn in range(1, 4):
            self.assertEqual(self.go(new), 20 * turn)
            self.assertEqual(self.go(old), 20 * turn + 10)
        old.finish()
        self.go(new)
        new.finish()
        self.assertEqual(self.contents(path, engine="stock"), self.acked)
        self.assertEqual(os.listdir(path.parent), [path.name])
        self.assertEqual(harness.left_in(self.log_dir), [])

    @beyond_stock("the log keeps the old name, and is never found again")
    def scenario_while_open_and_killed(self):
        old = self.steady(self.path, "old")
        self.go(old)
        path = self.directory / "new.db"
        self.path.rename(path)
        self.go(old)
        old.kill()
        self.assertEqual(self.contents(path), self.acked)
        self.assertEqual(self.all_files(), ["new.db"])

    def scenario_directory_after_a_kill(self):
        log_dir = self.directory / "nvram"
        log_dir.mkdir()
        self.create_and_kill(log_dir=log_dir)
        moved = self.base / "moved"
        self.directory.rename(moved)
        self.assertEqual(self.contents(moved / "app.db", log_dir=moved / "nvram"), self.acked)
        self.assertEqual(sorted(os.listdir(moved)), ["app.db", "nvram"])

    def scenario_all_files_after_a_kill(self):
        # As users do: mv app.db new.db, and each file beside it in the same way.
        self.create_and_kill()
        for name in os.listdir(self.directory):
            if not name.startswith("app.db"):
                self.fail(f"{name} does not show to which database it belongs")
            (self.directory / name).rename(self.directory / name.replace("app.db", "new.db"))
        self.assertEqual(self.contents(self.directory / "new.db"), self.acked)
        self.assertEqual(self.all_files(), ["new.db"])


class Unlinked(PathCase):
    def scenario_while_open(self):
        program = self.steady(self.path, "old")
        self.go(program)
        self.path.unlink()
        self.assertEqual(self.go(program), 20)
        program.finish()
        self.assert_nothing_left()

    def assert_nothing_left(self):
        if self.engine != "stock":  # It continues to work, but leaves its log behind.
            self.assertEqual(self.all_files(), [])

    def scenario_while_two_have_it_open(self):
        one, two = self.steady(self.path, "one"), self.steady(self.path, "two")
        self.go(one)
        self.path.unlink()
        self.go(two)
        self.assertEqual(self.go(one), 30)
        one.finish()
        self.assertEqual(self.go(two), 40)
        two.finish()
        self.assert_nothing_left()

    @beyond_stock("the new database would get the old one's log and index")
    @each("old_closes_first", "new_closes_first", "old_is_killed")
    def scenario_and_made_anew_while_open(self, order):
        old = self.steady(self.path, "old")
        self.go(old)
        self.path.unlink()
        self.acked.clear()
        new = self.steady(self.path, "new")
        self.assertEqual(self.go(new), 10)
        self.assertEqual(self.go(old), 20)
        self.assertEqual(self.go(new), 20)
        if order == "old_is_killed":
            old.kill()
            self.go(new)
            new.finish()
        else:
            first, second = (old, new) if order == "old_closes_first" else (new, old)
            first.finish()
            self.go(second)
            second.finish()
        expected = {row for row in self.acked if row[0] == "new"}
        self.check(exact=expected, clean=order != "old_is_killed")

    @each("all", "database_only", "kept_shm")
    def scenario_after_a_kill(self, what):
        self.create_and_kill()
        self.acked.clear()
        for name in os.listdir(self.directory):
            if what == "all" or name == "app.db" or (what == "kept_shm" and not name.endswith("shm")):
                if name.startswith("app.db"):
                    (self.directory / name).unlink()
        new = self.steady(self.path, "new")
        self.assertEqual(self.go(new), 10)
        new.finish()
        self.check(exact=self.acked, clean=False)
        second = self.steady(self.path, "second")
        second.finish()
        # A log may stay although its database is gone. Its name shows whose it was, and it is in nobody's way.
        self.assertIn("app.db", self.all_files())
        if what == "all" and not self.is_in_memory:
            self.assertEqual(self.all_files(), ["app.db"])

    def scenario_many_times_over(self):
        # As in a test suite: each test kills its process, removes the files, and starts again.
        for turn in range(5):
            self.create_and_kill(rows=5)
            for name in os.listdir(self.directory):
                if name.startswith("app.db"):
                    (self.directory / name).unlink()
        self.acked.clear()
        self.create(rows=5)
        self.check(exact=self.acked, clean=False)

    def scenario_directory_removed_while_open(self):
        program = self.steady(self.path, "old")
        self.go(program)
        shutil.rmtree(self.directory)
        self.go(program)
        program.finish(None)
        self.directory.mkdir()
        self.acked.clear()
        self.create(rows=5)
        self.check(exact=self.acked, clean=False)


class Replaced(PathCase):
    def backup(self):
        path = self.base / "backup.db"
        self.run_program(BACKUP, path)
        return path

    def put(self, how, backup):
        if how == "rename":
            os.rename(backup, self.path)
        elif how == "cp":  # In place: the inode and its birth time stay.
            with open(backup, "rb") as source, open(self.path, "wb") as target:
                shutil.copyfileobj(source, target)
        elif how == "copy":
            shutil.copy2(backup, self.path)

    def use(self):
        """Checks that the backup's content is there, can be written, and ends as a plain file."""
        new = self.steady(self.path, "new")
        self.assertEqual(self.go(new), 60)
        new.finish()
        self.check(exact=BACKUPS_ROWS | self.acked, clean=False)

    @each("rename", "cp", "copy")
    def scenario_when_closed(self, how):
        self.create(rows=5)
        self.acked.clear()
        self.put(how, self.backup())
        self.use()
        self.assert_clean()

    @each("rename", "cp", "copy")
    def scenario_after_a_kill_with_all_files_removed(self, how):
        self.create_and_kill()
        self.acked.clear()
        for name in os.listdir(self.directory):
            if name.startswith("app.db") and (name != "app.db" or how == "rename"):
                (self.directory / name).unlink()
        self.put(how, self.backup())
        self.use()

    @beyond_stock("stock writes the old log over the backup")
    @each("rename", "cp", "copy")
    def scenario_after_a_kill(self, how):
        self.create_and_kill()
        self.acked.clear()
        self.put(how, self.backup())
        self.use()

    @beyond_stock("the new database would get the old one's log and index")
    def scenario_by_rename_while_open(self):
        old = self.steady(self.path, "old")
        self.go(old)
        self.acked.clear()
        self.put("rename", self.backup())
        new = self.steady(self.path, "new")
        self.assertEqual(self.go(new), 60)
        self.go(old)
        self.assertEqual(self.go(new), 70)
        old.finish()
        self.go(new)
        new.finish()
        self.check(exact=BACKUPS_ROWS | {row for row in self.acked if row[0] == "new"})

    @each("backup_api", "vacuum_into")
    def scenario_by_its_own_backup_after_a_kill(self, how):
        program = """
            path, copy, how = sys.argv[1:]
            conn = create(path)
            insert(conn, "kept", 30)
            if how == "backup_api":
                target = sqlite3.connect(copy)
                conn.backup(target)
                target.close()
            else:
                conn.execute("VACUUM INTO ?", (copy,))
            say("saved")
            hear()
            conn.execute("INSERT INTO t VALUES ('later', 1, NULL)")
            hear()
        """
        copy = self.base / "copy.db"
        running = self.start(program, self.path, copy, how)
        running.expect("saved")
        running.tell()
        running.kill()
        for name in os.listdir(self.directory):
            if name.startswith("app.db"):
                (self.directory / name).unlink()
        shutil.copy(copy, self.path)
        self.check(exact=self.acked, clean=False)
        more = self.steady(self.path, "more")
        self.assertEqual(self.go(more), 40)
        more.finish()
        self.check(exact=self.acked, clean=False)


class Names(PathCase):
    ODD = {
        "spaces": "a b  c.db",
        "percent": "50%25%.db",
        "question": "what?journal=off.db",
        "hash": "a#b.db",
        "unicode": "ünï-日本.db",
        "quotes": "it's \"one\";$(x).db",
        "dash": "-app.db",
        "no_suffix": "database",
        "dots": "..app.db.",
        "like_a_log": "app.db-duralite",
        "like_a_wal": "x.db-wal",
        "newline_like": "a\tb.db",
        "long_230": "n" * 227 + ".db",
        "longest": "n" * 244 + ".db",
    }

    @each(*ODD)
    def scenario_odd(self, what):
        path = self.directory / self.ODD[what]
        one, two = self.steady(path, "one"), self.steady(path, "two")
        self.go(one)
        self.assertEqual(self.go(two), 20)
        one.kill()
        two.kill()
        self.assertEqual(self.contents(path), self.acked)
        self.assertEqual(self.all_files(), [path.name])
        self.assertEqual(self.contents(path, engine="stock"), self.acked)

    def scenario_like_each_other(self):
        # Some of these names are the beginning of another one. All databases are open at once.
        names = ["app", "app.db", "app.db-duralite.db", "app.db2", "app.db-2"]
        programs = [self.steady(self.directory / name, f"w{i}") for i, name in enumerate(names)]
        for program in programs:
            self.assertEqual(self.go(program), 10)
        for program in programs[::2]:
            program.kill()
        for program in programs[1::2]:
            program.finish()
        for i, name in enumerate(names):
            self.assertEqual({who for who, _ in self.contents(self.directory / name)}, {f"w{i}"})
        self.assertEqual(self.all_files(), sorted(names))

    def scenario_deep(self):
        # SQLite limits the whole path, including the suffixes that it adds, to 512 bytes.
        directory = self.directory
        while len(os.fsencode(directory)) < 400:
            directory = directory / ("d" * 40)
        directory.mkdir(parents=True)
        path = directory / ("n" * (495 - len(os.fsencode(directory)) - 1))
        program = self.steady(path, "deep")
        self.go(program)
        program.kill()
        self.assertEqual(self.contents(path), self.acked)
        self.assertEqual(os.listdir(directory), [path.name])

    def scenario_relative_and_chdir(self):
        program = """
            os.chdir(sys.argv[1])
            vfs = uri("x").partition("?")[2]
            relative = sqlite3.connect(f"file:app.db?{vfs}", uri=True, isolation_level=None)
            relative.execute("PRAGMA journal_mode=WAL")
            relative.execute(TABLE)
            insert(relative, "relative", 10)
            os.chdir("/")
            absolute = connect(os.path.join(sys.argv[1], "app.db"))
            insert(absolute, "absolute", 10)
            insert(relative, "relative", 10, first=10)
            os.chdir(sys.argv[1])
            dotted = sqlite3.connect(f"file:./sub/../app.db?{vfs}", uri=True, isolation_level=None)
            insert(dotted, "dotted", 10)
            os.chdir("/")
            say("rows", rows(relative), rows(absolute), rows(dotted))
            relative.close()
            dotted.close()
            insert(absolute, "absolute", 10, first=10)
            absolute.close()
        """
        (self.directory / "sub").mkdir()
        self.assertEqual(self.run_program(program, self.directory), [["rows", "40", "40", "40"]])
        self.check(exact=self.acked)

    @each(1, 3)
    def scenario_beside_an_open_database(self, writers):
        programs = [self.steady(self.path, f"w{i}") for i in range(writers)]
        for program in programs:
            self.go(program)
        strangers = [
            name
            for name in self.all_files()
            if not name.startswith(("app.db-duralite", *("app.db" + suffix for suffix in harness.SQLITES)))
            and name != "app.db"
        ]
        self.assertEqual(strangers, [], "a person cannot see what these belong to")
        for program in programs:
            program.finish()
        self.assertEqual(self.all_files(), ["app.db"])
        self.check(exact=self.acked)
        with sqlite3.connect(self.path) as conn:
            self.assertEqual(conn.execute("PRAGMA integrity_check").fetchone(), ("ok",))
        conn.close()

    def scenario_beside_a_killed_database(self):
        self.create_and_kill()
        for name in self.all_files():
            self.assertTrue(name.startswith("app.db"), name)
        self.check(exact=self.acked)


class CalledLikeALog(PathCase):
    def scenario_a_database_keeps_its_locks_when_a_neighbour_is_opened(self):
        program = """
            conn = connect(sys.argv[1], wal=False)
            conn.execute(TABLE)
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("INSERT INTO t VALUES ('base', 0, '')")
            neighbour = create(sys.argv[2])
            say("locked")
            hear()
            conn.execute("COMMIT")
            ack("base", 0)
            conn.close()
            neighbour.close()
        """
        path = self.directory / "bench-duralite"
        live = self.start(program, path, self.directory / "neighbour.db")
        self.ends_as_the_only_writer(live, path)
        self.assertEqual(self.contents(path), self.acked)


class DeletedWhileOpen(PathCase):
    LIVE = """
    conn = create(sys.argv[1])
    insert(conn, "live", 5)
    say("open")
    hear()
    insert(conn, "live", 5, first=5)
    conn.close()
    """

    def delete(self, pattern):
        found = [*self.directory.glob(pattern), *self.log_dir.glob(pattern)]
        self.assertEqual(len(found), 1, found)
        found[0].unlink()

    @beyond_stock("another process makes a new one, and two write at once")
    def scenario_shared_memory(self):
        # Another process cannot join in. It must learn so within its busy timeout, not after two seconds for each
        # attempt.
        other = """
            begun = time.monotonic()
            what, error = attempt(lambda: rows(connect(sys.argv[1], timeout=0.3, wal=False)))
            say(what, time.monotonic() - begun, error)
        """
        live = self.start(self.LIVE, self.path)
        live.expect("open")
        self.delete("*-shm")
        (line,) = self.run_program(other, self.path)
        self.assertEqual(line[0], "error")
        self.assertLess(float(line[1]), 10)
        live.tell()
        live.finish()
        self.check(exact=self.acked)

    @beyond_stock("it goes on in a file without a name, and may lose what it commits")
    def scenario_log(self):
        live = self.start(self.LIVE, self.path)
        live.expect("open")
        self.delete("app.db-duralite" if self.engine == "waldio" else "*-duralite-" + "?" * 32)
        live.tell()
        live.finish()
        self.check(exact=self.acked)


if __name__ == "__main__":
    unittest.main()
