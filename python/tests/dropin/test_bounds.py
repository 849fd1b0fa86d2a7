"""The size of the log under load and after it, and full disks."""

import os
import subprocess
import time
import unittest
from pathlib import Path

from . import harness
from .harness import each

SECONDS = float(os.environ.get("DROPIN_SECONDS", "6"))
MIB = 1 << 20

#: Sixteen writers in four processes, each with its own connection, for some seconds.
LOAD = """
seconds, threads = float(sys.argv[3]), int(sys.argv[4])

def work(name):
    conn = connect(sys.argv[1], threads=True)
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        conn.execute("INSERT OR REPLACE INTO t VALUES (?, ?, randomblob(1200))", (name, n % 50))
        if n < 50:
            ack(name, n)
        n += 1
    conn.close()
    return n

done = []
running = [threading.Thread(target=lambda i=i: done.append(work(f"{sys.argv[2]}.{i}"))) for i in range(threads)]
[thread.start() for thread in running]
[thread.join() for thread in running]
say("commits", sum(done))
"""


class BoundsCase(harness.Case):
    #: How large a log of `ppl` may be; such a log keeps the space of its sectors.
    log_limit = "40m"

    def environment(self, log_dir=None, **more):
        limit = {"DURALITE_LOG_LIMIT": self.log_limit} if self.engine == "ppl" else {}
        return super().environment(log_dir, **{**limit, **more})

    def log_bytes(self):
        """The bytes that the log occupies on disk: all files except the database."""
        total = 0
        for directory in (self.directory, self.log_dir):
            for entry in os.scandir(directory):
                if entry.name != "app.db" and not entry.name.startswith("ballast"):
                    try:
                        total += entry.stat().st_blocks * 512
                    except FileNotFoundError:
                        pass
        return total


class UnderLoad(BoundsCase):
    def scenario_sixteen_writers(self):
        self.create()
        seconds = 2 if self.engine == "stock" else SECONDS
        programs = [self.start(LOAD, self.path, f"p{i}", seconds, 4) for i in range(4)]
        peak = 0
        while any(program.process.poll() is None for program in programs):
            peak = max(peak, self.log_bytes())
            time.sleep(0.05)
        commits = sum(int(program.finish()[0][1]) for program in programs)
        self.assertLess(peak, 48 * MIB if self.engine == "ppl" else 40 * MIB, f"the log's size after {commits} commits; stock's stays at 4 MiB")
        self.check(exact=self.acked)

    def scenario_writers_and_a_reader_that_comes_back(self):
        # Some reader is always reading, but no read lasts for ever.
        reader = """
            conn = connect(sys.argv[1], wal=False)
            end = time.monotonic() + float(sys.argv[2])
            while time.monotonic() < end:
                conn.execute("BEGIN")
                rows(conn)
                time.sleep(0.01)
                conn.execute("COMMIT")
            conn.close()
        """
        self.create()
        seconds = 2 if self.engine == "stock" else SECONDS / 2
        readers = [self.start(reader, self.path, seconds) for _ in range(3)]
        programs = [self.start(LOAD, self.path, f"p{i}", seconds, 2) for i in range(2)] + readers
        # How far the log grows under this load depends on the machine, with stock SQLite too.
        for program in programs:
            program.finish()
        self.check(exact=self.acked)

    @each("truncate", "journal_size_limit")
    def scenario_log_shrinks(self, how):
        program = """
            conn = create(sys.argv[1])
            if sys.argv[2] == "journal_size_limit":
                conn.execute("PRAGMA journal_size_limit=1048576").fetchone()
            conn.execute("BEGIN")
            for n in range(20000):
                conn.execute("INSERT INTO t VALUES ('big', ?, randomblob(1000))", (n,))
            conn.execute("COMMIT")
            for n in range(20000):
                ack("big", n)
            say("big")
            hear()
            kind = "TRUNCATE" if sys.argv[2] == "truncate" else "RESTART"
            busy, *_ = conn.execute(f"PRAGMA wal_checkpoint({kind})").fetchone()
            assert not busy
            if kind == "RESTART":
                insert(conn, "small", 5)
            say("small")
            hear()
            insert(conn, "after", 20)
            conn.close()
        """
        running = self.start(program, self.path, how)
        running.expect("big")
        big = self.log_bytes()
        running.tell()
        running.expect("small")
        small = self.log_bytes()
        running.tell()
        running.finish()
        self.assertGreater(big, 15 * MIB)
        if self.engine in ("ppl", "scratchpad"):
            # A region keeps the space that its logs had.
            self.assertLessEqual(small, big)
        else:
            self.assertLess(small, 6 * MIB, f"the log's size; it was {big}")
        self.check(exact=self.acked)

    def scenario_large_transaction(self):
        # A transaction larger than any cache, then an index and VACUUM: all of it goes through the log.
        program = """
            conn = create(sys.argv[1])
            conn.execute("PRAGMA cache_size=100")
            conn.execute("WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < 29999)"
                         " INSERT INTO t SELECT 'big', n, randomblob(1500) FROM c")
            conn.execute("CREATE INDEX i ON t (pad)")
            conn.execute("DELETE FROM t WHERE n >= 15000")
            conn.execute("VACUUM")
            say("rows", rows(conn))
            conn.close()
        """
        # A whole transaction has to fit into the log.
        lines = self.run_program(program, self.path, DURALITE_LOG_LIMIT="1g")
        self.assertEqual(lines, [["rows", "15000"]])
        self.check(exact={("big", n) for n in range(15000)})


class SmallLog(BoundsCase):
    """Programs that need more than a log may take."""

    log_limit = "1m"

    def scenario_pinned_by_a_reader(self):
        program = """
            conn = create(sys.argv[1])
            insert(conn, "base", 20)
            reader = connect(sys.argv[1], wal=False)
            reader.execute("BEGIN")
            assert rows(reader) == 20
            n, full = 0, False
            while n < 200 and not full:
                what, error = attempt(conn.execute, "INSERT INTO t VALUES ('fill', ?, randomblob(20000))", (n,))
                full = what != "ok"
                if full:
                    assert error.sqlite_errorcode == 13, error
                else:
                    ack("fill", n)
                    n += 1
            assert rows(reader) == 20
            assert rows(conn) == 20 + n
            reader.execute("COMMIT")
            conn.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            insert(conn, "after", 50, pad=bytes(20000))
            assert reader.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            say("full", full)
            reader.close()
            conn.close()
        """
        (line,) = self.run_program(program, self.path)
        self.assertEqual(line, ["full", str(self.engine == "ppl")])
        self.check(exact=self.acked)

    def scenario_transactions_that_do_not_fit(self):
        program = """
            conn = create(sys.argv[1])
            insert(conn, "base", 20)
            for turn in range(3):
                large = "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < 3000)" \
                    " INSERT OR REPLACE INTO t SELECT 'large', n, randomblob(2000) FROM c"
                conn.execute("BEGIN")
                what, error = attempt(conn.execute, large)
                if what == "ok":
                    conn.execute("ROLLBACK")
                else:
                    assert error.sqlite_errorcode == 13, error
                    attempt(conn.execute, "ROLLBACK")
                insert(conn, f"small{turn}", 20)
                conn.execute("PRAGMA wal_checkpoint").fetchone()
            assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            conn.close()
        """
        self.run_program(program, self.path)
        self.check(exact=self.acked)

    def scenario_writers_that_checkpoint_all_the_time(self):
        writer = """
            conn = connect(sys.argv[1], wal=False)
            conn.execute("PRAGMA wal_autocheckpoint=20").fetchone()
            for n in range(300):
                conn.execute("INSERT INTO t VALUES (?, ?, randomblob(3000))", (sys.argv[2], n))
                ack(sys.argv[2], n)
                conn.execute("UPDATE t SET pad = randomblob(1500) WHERE who = ? AND n < 5", (sys.argv[2],))
            conn.close()
        """
        self.create(DURALITE_LOG_LIMIT="4m")
        programs = [self.start(writer, self.path, f"p{i}", DURALITE_LOG_LIMIT="4m") for i in range(2)]
        for program in programs:
            program.finish()
        self.check(exact=self.acked)


@unittest.skipUnless(os.geteuid() == 0, "only root can mount a small file system")
class FullDisk(BoundsCase):
    # When the log is drained, the database has to fit on the same disk.
    log_limit = "4m"
    FILL = """
path = sys.argv[1]
conn = create(path)
insert(conn, "base", 20)
n, full = 0, 0
while full < 3:
    what, error = attempt(conn.execute, "INSERT INTO t VALUES ('fill', ?, randomblob(20000))", (n,))
    if what == "ok":
        ack("fill", n)
        n += 1
    else:
        conn.rollback()
        say("error", error.sqlite_errorcode, error)
        full += 1
    assert n < 10000
say("rows", rows(conn))
hear()
insert(conn, "after", 20)
say("rows", rows(conn))
conn.close()
"""

    def mount(self, kind):
        """Mounts a file system of 20 MiB for the database. A ballast file on it can be removed, and is large enough for a
        log."""
        self.directory = self.base / "small"
        self.directory.mkdir()
        if kind == "tmpfs":
            command = ["mount", "-t", "tmpfs", "-o", "size=20m", "none", self.directory]
        else:
            image = self.base / "image"
            with open(image, "wb") as file:
                file.truncate(28 * MIB)
            if subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True).returncode:
                self.skipTest("mkfs.ext4 does not work here")
            command = ["mount", "-o", "loop", image, self.directory]
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode:
            self.skipTest(f"no mounting here: {mounted.stderr}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.directory], check=True)
        self.path = self.directory / "app.db"
        if self.is_in_memory:
            self.log_dir = self.directory / "nvram"
            self.log_dir.mkdir()
        with open(self.directory / "ballast", "wb") as file:
            file.write(bytes(7 * MIB))

    def use_up(self):
        """Fills the file system to the last byte."""
        with open(self.directory / "filler", "wb", buffering=0) as file:
            for size in (65536, 4096, 512):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    pass

    @each("tmpfs", "ext4")
    def scenario_while_writing(self, kind):
        self.mount(kind)
        program = self.start(self.FILL, self.path)
        for _ in range(3):
            code, *message = program.expect("error")
            self.assertEqual((code, message[:4]), ("13", ["database", "or", "disk", "is"]))
        self.assertEqual(program.expect("rows"), [str(len(self.acked))])
        (self.directory / "ballast").unlink()
        program.tell()
        self.assertEqual(program.expect("rows"), [str(len(self.acked))])
        program.finish()
        self.check(exact=self.acked)

    @each("tmpfs", "ext4")
    def scenario_and_killed(self, kind):
        self.mount(kind)
        program = self.start(self.FILL, self.path)
        for _ in range(3):
            program.expect("error")
        program.expect("rows")
        program.kill()
        (self.directory / "ballast").unlink()
        self.check(exact=self.acked)

    @each("tmpfs", "ext4")
    def scenario_and_closed(self, kind):
        # The last close has no space for its checkpoint either, so the rows stay in the log.
        self.mount(kind)
        program = self.start(self.FILL.split("hear()")[0] + "conn.close()", self.path)
        program.finish()
        (self.directory / "ballast").unlink()
        self.check(exact=self.acked)

    @each("tmpfs", "ext4")
    def scenario_when_it_is_opened(self, kind):
        self.mount(kind)
        self.create(rows=20)
        self.use_up()
        program = """
            def work():
                conn = connect(sys.argv[1], timeout=1)
                insert(conn, "tight", 1)
                conn.close()

            what, error = attempt(work)
            say(what, getattr(error, "sqlite_errorcode", 0), error)
        """
        (line,) = self.run_program(program, self.path)
        if line[0] == "error" and self.engine != "stock":
            self.assertEqual(line[1], "13", line)
        (self.directory / "filler").unlink()
        (self.directory / "ballast").unlink()
        self.run_program("own(sys.argv[1], 'after', 10)", self.path)
        self.check(exact=self.acked)

    @each("tmpfs", "ext4")
    def scenario_after_a_kill(self, kind):
        self.mount(kind)
        self.create_and_kill()
        self.use_up()
        self.run_program("say(*attempt(lambda: rows(connect(sys.argv[1], wal=False, timeout=1))))", self.path)
        (self.directory / "filler").unlink()
        (self.directory / "ballast").unlink()
        self.check(exact=self.acked)


if __name__ == "__main__":
    unittest.main()
