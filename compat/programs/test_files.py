"""What people and programs do to database files: remove, copy, rename, restore, read only."""

import os
import shutil
import sqlite3
import subprocess
import threading
from pathlib import Path

from common import KILLED, ProgramTest, connect, insert


class Files(ProgramTest):
    def kill_a_writer(self, rows=20):
        code, _ = self.python(KILLED, self.path, str(rows))
        self.assertEqual(code, -9)

    def make(self, path):
        conn = connect(path)
        conn.execute("CREATE TABLE t(who, number)")
        conn.close()

    def test_opened_again_after_a_kill(self):
        self.kill_a_writer()
        self.assert_holds(20)

    def test_rm_and_start_over_after_a_kill(self):
        self.kill_a_writer()
        subprocess.run("rm -f app.db*", shell=True, cwd=self.folder.name, check=True)
        self.make(self.path)
        insert(self.path, "new", 5)
        self.assert_holds(5)

    def test_rm_of_the_file_alone_while_it_is_open(self):
        conn = connect(self.path)
        conn.execute("INSERT INTO t VALUES ('old', 0)")
        os.remove(self.path)
        for suffix in ("-wal", "-shm"):
            Path(self.path + suffix).unlink(missing_ok=True)
        self.make(self.path)
        insert(self.path, "new", 5)
        conn.close()
        self.assert_holds(5)

    def test_made_and_removed_many_times(self):
        for number in range(20):
            path = str(Path(self.folder.name) / "again.db")
            conn = connect(path)
            conn.execute("CREATE TABLE t(who, number)")
            conn.execute("INSERT INTO t VALUES (?, ?)", ("x", number))
            # Every other time before it is closed, as test suites do.
            if number % 2:
                os.remove(path)
                conn.close()
            else:
                conn.close()
                os.remove(path)
            for suffix in ("-wal", "-shm"):
                Path(path + suffix).unlink(missing_ok=True)
        self.assertEqual([name for name in os.listdir(self.folder.name) if not name.startswith("app.db")], [])

    def test_a_backup_restored_by_rename(self):
        insert(self.path, "before", 10)
        backup = self.path + ".bak"
        source, target = connect(self.path), connect(backup)
        source.backup(target)
        source.close()
        target.close()
        insert(self.path, "lost", 7)
        os.replace(backup, self.path)
        insert(self.path, "after", 3)
        self.assert_holds(13)

    def test_a_backup_restored_by_copying_over_it(self):
        insert(self.path, "before", 10)
        shutil.copy(self.path, self.path + ".bak")
        insert(self.path, "lost", 7)
        shutil.copy(self.path + ".bak", self.path)
        insert(self.path, "after", 3)
        self.assert_holds(13)

    def test_the_folder_copied_after_a_kill(self):
        self.kill_a_writer()
        copy = self.folder.name + "-copy"
        self.addCleanup(shutil.rmtree, copy, ignore_errors=True)
        subprocess.run(["cp", "-a", self.folder.name, copy], check=True)
        self.assert_holds(20, str(Path(copy) / "app.db"))
        self.assert_holds(20)

    def test_the_folder_renamed_after_a_kill(self):
        self.kill_a_writer()
        moved = self.folder.name + "-moved"
        self.addCleanup(shutil.rmtree, moved, ignore_errors=True)
        os.rename(self.folder.name, moved)
        os.mkdir(self.folder.name)
        self.assert_holds(20, str(Path(moved) / "app.db"))

    def test_renamed_with_its_companions_after_a_kill(self):
        self.kill_a_writer()
        for name in os.listdir(self.folder.name):
            new = name.replace("app.db", "other.db")
            os.rename(Path(self.folder.name) / name, Path(self.folder.name) / new)
        self.assert_holds(20, str(Path(self.folder.name) / "other.db"))

    def test_two_names_one_after_the_other(self):
        other = str(Path(self.folder.name) / "other.db")
        os.link(self.path, other)
        for path in (self.path, other, self.path):
            insert(path, path, 5)
        self.assert_holds(15)

    def test_a_symbolic_link_beside_the_file(self):
        link = str(Path(self.folder.name) / "link.db")
        os.symlink("app.db", link)
        one, two = connect(self.path), connect(link)
        for number in range(10):
            one.execute("INSERT INTO t VALUES ('one', ?)", (number,))
            two.execute("INSERT INTO t VALUES ('two', ?)", (number,))
        one.close()
        two.close()
        self.assert_holds(20)

    def test_a_reader_comes_first(self):
        insert(self.path, "before", 3)
        reader = connect(f"file:{self.path}?mode=ro", uri=True)
        self.assertEqual(reader.execute("SELECT count(*) FROM t").fetchone(), (3,))
        insert(self.path, "while it reads", 4)
        self.assertEqual(reader.execute("SELECT count(*) FROM t").fetchone(), (7,))
        reader.close()
        self.assert_holds(7)

    def test_a_reader_of_a_database_that_was_killed(self):
        self.kill_a_writer()
        reader = connect(f"file:{self.path}?mode=ro", uri=True)
        self.assertEqual(reader.execute("SELECT count(*) FROM t").fetchone(), (20,))
        reader.close()

    def test_exclusive_mode_over_what_a_kill_left(self):
        self.kill_a_writer()
        conn = connect(self.path)
        conn.execute("PRAGMA locking_mode=EXCLUSIVE")
        self.assertEqual(conn.execute("SELECT count(*) FROM t").fetchone(), (20,))
        conn.execute("INSERT INTO t VALUES ('exclusive', 0)")
        conn.close()
        self.assert_holds(21)

    def test_many_open_at_once_and_wait(self):
        failures = []

        def work(number):
            try:
                for _ in range(25):
                    insert(self.path, number)
            except sqlite3.Error as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        self.assertEqual(failures, [])
        self.assert_holds(200)

    def test_vacuum_into_and_open(self):
        insert(self.path, "before", 10)
        other = str(Path(self.folder.name) / "into.db")
        conn = connect(self.path)
        conn.execute("VACUUM INTO ?", (other,))
        conn.close()
        insert(other, "there", 2)
        self.assert_holds(12, other)

    def test_nothing_is_left_beside_a_closed_database(self):
        insert(self.path, "x", 10)
        self.assertEqual(os.listdir(self.folder.name), ["app.db"])

    def test_journal_modes_in_turn(self):
        conn = connect(self.path)
        for mode in ("delete", "wal", "truncate", "wal", "persist", "wal", "memory", "wal"):
            self.assertEqual(conn.execute(f"PRAGMA journal_mode={mode}").fetchone(), (mode,))
            conn.execute("INSERT INTO t VALUES (?, 0)", (mode,))
        conn.close()
        self.assert_holds(8)
