"""Programs that people run: the sqlite3 shell from cron, backups, rotation, pools of connections, containers."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
import unittest

from . import harness
from .harness import SOURCE, beyond_stock, each

STEADY = """
conn = connect(sys.argv[1], timeout=10)
conn.execute(TABLE)
say("open", rows(conn))
n = 0
while hear():
    insert(conn, sys.argv[2], 10, first=n)
    n += 10
    say("rows", rows(conn))
conn.close()
"""

BUSY = """
conn = connect(sys.argv[1])
conn.execute(TABLE)
say("open")
stop = threading.Event()
threading.Thread(target=lambda: (hear(), stop.set()), daemon=True).start()
n = 0
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0
while not stop.wait(pause):
    insert(conn, sys.argv[2], 1, first=n)
    n += 1
conn.close()
os._exit(0)
"""

#: Prints the path at which the package finds the library.
LIBRARY = 'import duralite; print(duralite.loadable_path())'


class ProgramCase(harness.Case):
    def steady(self, path, name, **options):
        program = self.start(STEADY, path, name, **options)
        program.expect("open")
        return program

    def go(self, program):
        program.tell()
        return int(program.expect("rows")[0])


@unittest.skipUnless(shutil.which("sqlite3"), "there is no sqlite3 shell")
class Shell(ProgramCase):
    def shell(self, *lines, path=None):
        """What the sqlite3 shell prints for these lines on the engine under test."""
        path = path or self.path
        begin = [".timeout 20000"]
        if self.engine == "stock":
            begin.append(f".open {path}")
        else:
            library = subprocess.run(
                ["/usr/bin/env", "python3", "-c", LIBRARY],
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
                text=True,
                capture_output=True,
                check=True,
            ).stdout.strip()
            nvram = f"&journal={self.engine}&nvram=emulate&nvram_dir={self.log_dir}"
            if self.engine == "scratchpad":
                nvram += "&scratchpad=emulate&home=emulate"
            more = nvram if self.is_in_memory else ""
            begin += [f".load {library}", f".open file:{path}?vfs=duralite{more}"]
        begin.append(".timeout 20000")
        script = "\n".join([*begin, *lines]) + "\n"
        found = subprocess.run(
            ["sqlite3", "-batch", "-bail", "-init", "/dev/null"], input=script, text=True, capture_output=True, timeout=60
        )
        self.assertEqual((found.returncode, found.stderr), (0, ""), lines)
        return found.stdout.split()

    def scenario_cron_beside_an_application(self):
        app = self.start(BUSY, self.path, "app")
        app.expect("open")
        for n in range(8):
            self.shell(f"INSERT INTO t VALUES ('cron', {n}, NULL);")
            self.acked.add(("cron", n))
        self.assertEqual(self.shell("SELECT count(*) FROM t WHERE who = 'cron';"), ["8"])
        app.tell()
        app.finish()
        self.check(exact=self.acked)

    def scenario_cron_alone(self):
        self.create()
        for n in range(5):
            self.shell(f"INSERT INTO t VALUES ('cron', {n}, NULL);")
            self.acked.add(("cron", n))
            self.assert_clean()
        self.check(exact=self.acked)

    @each("backup", "vacuum_into", "dump")
    def scenario_backup_beside_a_writer(self, how):
        # SQLite's backup starts again when another process has committed, so it has to finish between two commits.
        app = self.start(BUSY, self.path, "app", "0.02")
        app.expect("open")
        time.sleep(0.1)
        copy = self.base / "copy.db"
        for _ in range(3):
            copy.unlink(missing_ok=True)
            known = set(self.acked)
            if how == "backup":
                self.shell(f".backup {copy}")
            elif how == "vacuum_into":
                self.shell(f"VACUUM INTO '{copy}';")
            else:
                script = self.base / "dump.sql"
                self.shell(f".output {script}", ".dump")
                with sqlite3.connect(copy) as conn:
                    conn.executescript(script.read_text())
                conn.close()
            with sqlite3.connect(copy) as conn:
                found = set(conn.execute("SELECT who, n FROM t"))
                self.assertEqual(conn.execute("PRAGMA integrity_check").fetchone(), ("ok",))
            conn.close()
            self.assertLessEqual(known, found)
            self.assertEqual({n for _, n in found}, set(range(len(found))), "not a prefix of the commits")
        app.tell()
        app.finish()
        self.check(exact=self.acked)

    def scenario_restore_into_an_open_database(self):
        self.create()
        app = self.steady(self.path, "app")
        self.go(app)
        copy = self.base / "copy.db"
        self.shell(f".backup {copy}")
        saved = set(self.acked)
        self.go(app)
        self.shell(f".restore {copy}")
        self.acked = set(saved)
        app.tell()
        self.assertEqual(app.expect("rows"), ["20"])
        app.finish()
        self.check(exact=self.acked)


class Rotation(ProgramCase):
    @beyond_stock("a connection whose file was renamed leaves its log under the old name, for the new database to delete")
    @each(1, 3)
    def scenario_rename_then_reopen(self, turns):
        # app.db becomes app.db.1 while it is open. The application closes it and creates a new app.db.
        expected = {}
        for turn in range(turns):
            app = self.steady(self.path, f"turn{turn}")
            self.go(app)
            rotated = self.directory / f"app.db.{turn}"
            self.path.rename(rotated)
            self.go(app)
            app.finish()
            expected[rotated] = {(f"turn{turn}", n) for n in range(20)}
        app = self.steady(self.path, "last")
        self.go(app)
        app.finish()
        for path, found in expected.items():
            self.assertEqual(self.contents(path, engine="stock"), found)
        self.check(exact={("last", n) for n in range(10)})

    @beyond_stock("the new database would get the log of the old one, which is still in use")
    def scenario_new_one_before_the_old_is_closed(self):
        old = self.steady(self.path, "old")
        self.go(old)
        rotated = self.directory / "app.db.1"
        self.path.rename(rotated)
        new = self.steady(self.path, "new")
        self.assertEqual(self.go(new), 10)
        self.assertEqual(self.go(old), 20)
        self.assertEqual(self.go(new), 20)
        old.finish()
        self.go(new)
        new.finish()
        self.assertEqual(self.contents(rotated, engine="stock"), {("old", n) for n in range(20)})
        self.check(exact={("new", n) for n in range(30)})
        self.assertEqual(sorted(os.listdir(self.directory)), ["app.db", "app.db.1"])

    @beyond_stock("each of two databases would find the other's log under its name")
    def scenario_two_databases_change_places_while_open(self):
        other = self.directory / "other.db"
        one, two = self.steady(self.path, "one"), self.steady(other, "two")
        self.go(one)
        self.go(two)
        between = self.directory / "between"
        self.path.rename(between)
        other.rename(self.path)
        between.rename(other)
        self.go(one)
        self.go(two)
        three = self.steady(self.path, "three")
        self.assertEqual(self.go(three), 30)
        one.kill()
        two.kill()
        three.kill()
        self.assertEqual({who for who, _ in self.contents(other)}, {"one"})
        self.assertEqual({who for who, _ in self.contents(self.path)}, {"two", "three"})
        found = self.contents(other) | self.contents(self.path)
        self.assertEqual(found, self.acked)


class Pools(ProgramCase):
    def scenario_pool_of_connections(self):
        program = """
            import queue, random
            path, seed = sys.argv[1], int(sys.argv[2])
            create(path).close()
            pool = queue.Queue()
            for _ in range(4):
                pool.put(connect(path, threads=True))
            failures = []

            def request(name):
                chance = random.Random(f"{seed}{name}")
                try:
                    for n in range(40):
                        conn = pool.get()
                        kind = chance.random()
                        conn.execute("BEGIN IMMEDIATE" if kind < 0.7 else "BEGIN")
                        rows(conn)
                        if kind < 0.7:
                            conn.execute("INSERT INTO t VALUES (?, ?, ?)", (name, n, bytes(chance.randrange(3000))))
                        if kind < 0.5:
                            conn.execute("COMMIT")
                            ack(name, n)
                        else:
                            conn.execute("ROLLBACK")
                        if chance.random() < 0.1:
                            conn.close()
                            conn = connect(path, threads=True)
                        pool.put(conn)
                except BaseException as error:
                    failures.append(error)
                    raise

            threads = [threading.Thread(target=request, args=(f"r{i}",)) for i in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            assert not failures, failures
            while not pool.empty():
                pool.get().close()
        """
        programs = [self.start(program, self.path, 7)]
        for one in programs:
            one.finish()
        self.check(exact=self.acked)

    def scenario_exit_while_threads_commit(self):
        program = """
            path = sys.argv[1]
            create(path).close()

            def work(name):
                conn = connect(path)
                for n in range(1000000):
                    insert(conn, name, 1, first=n)

            for i in range(4):
                threading.Thread(target=work, args=(f"w{i}",), daemon=True).start()
            time.sleep(0.3)
            os._exit(0)
        """
        for _ in range(2):
            self.run_program(program, self.path)
            self.check()
            self.acked.clear()
            self.path.unlink()

    @each(1, 2)
    def scenario_processes_killed_at_any_moment(self, writers):
        # Processes open, write and close. Each is killed at some point, while others continue.
        program = """
            for n in range(1000000):
                conn = connect(sys.argv[1])
                insert(conn, sys.argv[2], 3, first=3 * n)
                conn.close()
        """
        seed = int(os.environ.get("DROPIN_SEED", 20))
        chance = random.Random(seed)
        self.create()
        others = [self.start(BUSY, self.path, f"steady{i}") for i in range(writers - 1)]
        for other in others:
            other.expect("open")
        for turn in range(10):
            victim = self.start(program, self.path, f"victim{turn}")
            deadline = time.monotonic() + harness.PATIENCE
            while ("victim%d" % turn, 0) not in self.acked:
                self.assertLess(time.monotonic(), deadline, f"seed {seed}: nothing is written")
                self.assertIsNone(victim.process.poll(), victim.failed("ended"))
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.02))
            victim.kill()
            victim.reader.join()
        for other in others:
            other.tell()
            other.finish()
        self.check()


@unittest.skipUnless(os.geteuid() == 0, "only root makes namespaces")
class Containers(ProgramCase):
    """Programs in process namespaces of their own, as in containers that share a volume."""

    CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

    def setUp(self):
        super().setUp()
        if subprocess.run([*self.CONTAINER, "true"], capture_output=True).returncode:
            self.skipTest("no namespaces here")

    def kill(self, container):
        """Kills the container and everything in it."""
        container.kill()
        container.reader.join(harness.PATIENCE)

    def scenario_two_at_once(self):
        one = self.steady(self.path, "one", interpreter=self.CONTAINER)
        two = self.steady(self.path, "two", interpreter=self.CONTAINER)
        host = self.steady(self.path, "host")
        for turn in range(1, 5):
            self.assertEqual(self.go(one), 30 * turn - 20)
            self.assertEqual(self.go(two), 30 * turn - 10)
            self.assertEqual(self.go(host), 30 * turn)
        self.kill(one)
        self.go(two)
        third = self.steady(self.path, "three", interpreter=self.CONTAINER)
        self.go(third)
        self.go(host)
        for program in (two, third, host):
            program.finish()
        self.check(exact=self.acked)

    def scenario_busy_at_once(self):
        programs = [self.start(BUSY, self.path, f"c{i}", interpreter=self.CONTAINER) for i in range(3)]
        programs.append(self.start(BUSY, self.path, "host"))
        for program in programs:
            program.expect("open")
        for turn in range(4):
            time.sleep(0.1)
            self.kill(programs[turn % 2])
            programs[turn % 2] = self.start(BUSY, self.path, f"again{turn}", interpreter=self.CONTAINER)
            programs[turn % 2].expect("open")
        for program in programs:
            program.tell()
            program.finish()
        self.check()

    def scenario_restarted_with_the_same_process_number(self):
        # Each container's process is number 1. The locks that it held when it was killed must not pass to its successor.
        held = STEADY.replace("conn.close()", "conn.execute('BEGIN IMMEDIATE'); say('held'); time.sleep(100)")
        for turn in range(4):
            program = self.start(held, self.path, f"turn{turn}", interpreter=self.CONTAINER)
            self.assertEqual(program.expect("open"), [str(10 * turn)])
            self.go(program)
            program.process.stdin.close()
            program.expect("held")
            self.kill(program)
        self.check(exact=self.acked)

    @beyond_stock("stock keeps nothing in /dev/shm")
    def scenario_private_shared_memory(self):
        # Two containers share the volume, but not /dev/shm. With emulated memory the second one cannot see the log: it is
        # refused, and must do no harm.
        self.log_dir = "/dev/shm"
        private = (*self.CONTAINER, "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh")
        self.addCleanup(self._remove_from_shm)
        one = self.steady(self.path, "one")
        self.go(one)
        text = 'say(*attempt(lambda: insert(connect(sys.argv[1], timeout=1), "two", 5)))'
        (line,) = self.run_program(text, self.path, interpreter=private)
        if self.is_in_memory:
            self.assertEqual(line[0], "error", line)
        else:
            self.assertEqual(line[0], "ok", line)
        self.assertEqual(self.go(one), len(self.acked))
        one.finish()
        self.assertEqual(self.contents(engine="stock"), self.acked)
        self.assertEqual(os.listdir(self.directory), ["app.db"])

    def _remove_from_shm(self):
        # Removes only what a failed test left of this very database, whose id no other has.
        for name in os.listdir("/dev/shm"):
            path = os.path.join("/dev/shm", name)
            try:
                with open(path, "rb") as file:
                    if os.fsencode(self.path) in file.read(1 << 16):
                        os.unlink(path)
            except OSError:
                pass


class Reboots(ProgramCase):
    def scenario_index_and_segments_are_gone(self):
        # All processes are killed, and the shared memory is removed.
        programs = [self.steady(self.path, f"w{i}") for i in range(3)]
        for program in programs:
            self.go(program)
        for program in programs:
            program.kill()
        for directory in (self.directory, self.log_dir):
            for name in os.listdir(directory):
                if name.endswith("shm"):
                    os.unlink(os.path.join(directory, name))
        self.check(exact=self.acked)

    @beyond_stock("stock has no log outside the directory")
    def scenario_emulated_memory_is_gone(self):
        # The documented loss: the open is refused with a reason. To go back to the last checkpoint, the user must ask for
        # it by name.
        if not self.is_in_memory:
            self.skipTest("waldio keeps nothing in memory alone")
        self.create(rows=5)
        self.run_program("conn = connect(sys.argv[1]); insert(conn, 'gone', 5); die()", self.path, code=-9)
        for name in os.listdir(self.log_dir):
            (self.log_dir / name).unlink()
        program = self.start("say(*attempt(lambda: rows(connect(sys.argv[1], wal=False))))", self.path)
        (line,) = program.finish()
        self.assertEqual(line[0], "error", "commits are lost without a word")


if __name__ == "__main__":
    unittest.main()
