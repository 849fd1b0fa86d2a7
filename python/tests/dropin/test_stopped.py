"""Processes that are stopped (SIGSTOP, `docker pause`), and that continue later or never."""

import fcntl
import os
import random
import signal
import time
import unittest

from . import harness
from .harness import beyond_stock, each

WRITER = """
conn = connect(sys.argv[1])
say("open")
stop = threading.Event()
threading.Thread(target=lambda: (hear(), stop.set()), daemon=True).start()
n = 0
while not stop.is_set():
    insert(conn, sys.argv[2], 1, first=n, pad=bytes(n % 3000))
    n += 1
conn.close()
os._exit(0)
"""

#: Prints the number of rows.
READ = """
def read(conn):
    try:
        say("rows", rows(conn))
    except Exception as error:
        # A writer was stopped while it changed the header of the wal-index, and SQLite has tried for ten seconds.
        if "locking protocol" not in str(error):
            raise
        say("rows", "refused")
"""

READER = READ + """
conn = connect(sys.argv[1], wal=False)
say("open")
while hear():
    read(conn)
conn.close()
"""

NEW_READER = READ + """
read(connect(sys.argv[1], wal=False))
"""

#: Tries one insert, with a busy timeout, each time that it is told to.
CAREFUL = """
conn = connect(sys.argv[1], timeout=0.3)
say("open")
n = 0
while hear():
    what, error = attempt(insert, conn, sys.argv[2], 1, n)
    n += 1
    say("tried", what, error)
conn.close()
"""


class StoppedCase(harness.Case):
    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("DROPIN_SEED", time.time_ns() % 1_000_000))
        self.random = random.Random(self.seed)
        self.rounds = 12
        self.refused = 0

    def run(self, result=None):
        failures = len(result.failures) + len(result.errors) if result else 0
        super().run(result)
        if result and len(result.failures) + len(result.errors) > failures:
            print(f"{self.id()}: DROPIN_SEED={self.seed}")

    def steady(self, text, *arguments):
        program = self.start(text, self.path, *arguments)
        program.expect("open")
        return program

    def read_at_least(self, reader, known):
        """The rows that a reader finds. It may sometimes be refused, as with stock SQLite."""
        self.count_at_least(reader.expect("rows")[0], known)

    def count_at_least(self, count, known):
        if count == "refused":
            self.refused += 1
            self.assertLess(self.refused, 4, "readers are refused")
        else:
            self.assertGreaterEqual(int(count), known)

    def stopped_rounds(self, writer, while_stopped):
        for _ in range(self.rounds):
            time.sleep(self.random.uniform(0.001, 0.03))
            writer.kill(signal.SIGSTOP)
            while_stopped()
            writer.kill(signal.SIGCONT)


class Stopped(StoppedCase):
    def scenario_writer_and_readers_go_on(self):
        self.create()
        writer = self.steady(WRITER, "writer")
        readers = [self.steady(READER) for _ in range(2)]

        def read():
            known = len(self.acked)
            for reader in readers:
                reader.tell()
                self.read_at_least(reader, known)

        self.stopped_rounds(writer, read)
        writer.tell()
        for program in (*readers, writer):
            program.finish()
        self.check(exact=self.acked)

    def scenario_writer_and_another_is_not_held_up(self):
        # The other writer gets the lock, or SQLITE_BUSY after its timeout.
        self.create()
        writer = self.steady(WRITER, "writer")
        careful = self.steady(CAREFUL, "careful")

        def write():
            careful.tell()
            careful.expect("tried")

        self.stopped_rounds(writer, write)
        writer.tell()
        for program in (careful, writer):
            program.finish()
        self.check(exact=self.acked)

    def scenario_writers_of_a_group(self):
        # Several writers commit together, and one of them is stopped, perhaps the leader, which writes for all.
        # Readers continue. When the stopped writer continues, so do all others.
        self.create()
        writers = [self.steady(WRITER, f"writer{i}") for i in range(4)]
        reader = self.steady(READER)

        def read():
            known = len(self.acked)
            reader.tell()
            self.read_at_least(reader, known)

        for _ in range(self.rounds):
            self.rounds, rounds = 1, self.rounds
            self.stopped_rounds(self.random.choice(writers), read)
            self.rounds = rounds
        for writer in writers:
            writer.tell()
        for program in (reader, *writers):
            program.finish()
        self.check(exact=self.acked)

    def scenario_writer_and_new_processes_open(self):
        self.create()
        writer = self.steady(WRITER, "writer")
        self.rounds = 4

        def open_and_read():
            known = len(self.acked)
            (line,) = self.run_program(NEW_READER, self.path)
            self.count_at_least(line[1], known)

        self.stopped_rounds(writer, open_and_read)
        writer.tell()
        writer.finish()
        self.check(exact=self.acked)

    def scenario_writer_is_killed_while_stopped(self):
        self.create()
        for turn in range(4):
            writer = self.steady(WRITER, f"writer{turn}")
            reader = self.steady(READER)
            time.sleep(self.random.uniform(0.01, 0.05))
            writer.kill(signal.SIGSTOP)
            reader.tell()
            self.read_at_least(reader, 0)
            writer.kill()
            self.run_program("own(sys.argv[1], sys.argv[2], 5)", self.path, f"next{turn}")
            reader.finish()
        self.assertTrue(self.acked)
        self.check(clean=True)

    @each("idle", "reading", "opening")
    def scenario_bystander(self, state):
        program = """
            conn = connect(sys.argv[1], wal=False)
            if sys.argv[2] != "opening":
                rows(conn)
            if sys.argv[2] == "reading":
                conn.execute("BEGIN")
                rows(conn)
            say("open")
            hear()
            say("rows", rows(conn))
            conn.close()
        """
        writer = """
            for turn in range(3):
                conn = connect(sys.argv[1], timeout=0.3)
                insert(conn, sys.argv[2] + str(turn), 30, pad=bytes(500))
                attempt(lambda: conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
                insert(conn, sys.argv[2] + str(turn), 5, first=30)
                conn.close()
        """
        self.create(rows=10)
        bystander = self.steady(program, state)
        bystander.kill(signal.SIGSTOP)
        for turn in range(2):
            self.run_program(writer, self.path, f"turn{turn}.")
        self.contents()
        bystander.kill(signal.SIGCONT)
        bystander.tell()
        expected = 10 if state == "reading" else len(self.acked)
        self.assertEqual(bystander.expect("rows"), [str(expected)])
        bystander.finish()
        self.check(exact=self.acked)

    def scenario_checkpointing_process(self):
        program = WRITER.replace("n += 1", 'n += 1; attempt(lambda: conn.execute("PRAGMA wal_checkpoint").fetchall())')
        self.create()
        writer = self.steady(program, "writer")
        reader = self.steady(READER)

        def read():
            known = len(self.acked)
            reader.tell()
            self.read_at_least(reader, known)

        self.stopped_rounds(writer, read)
        writer.tell()
        for one in (reader, writer):
            one.finish()
        self.check(exact=self.acked)


class WhileAttaching(harness.Case):
    """Another process has been stopped while it opened the log of a killed process. It holds the lock for opening."""

    def hold(self):
        self.create_and_kill()
        found = [*self.directory.glob("*-duralite-*-shm"), *self.log_dir.glob("*-duralite-*-shm")]
        self.assertEqual(len(found), 1)
        self.held = [path.open("rb+") for path in found]
        for file in self.held:
            self.addCleanup(file.close)
            fcntl.flock(file, fcntl.LOCK_EX)

    def release(self):
        for file in self.held:
            file.close()

    @beyond_stock("nothing is held that stock would wait for")
    def scenario_an_opener_has_its_busy_timeout(self):
        program = """
            what, error = attempt(lambda: rows(connect(sys.argv[1], timeout=0.3, wal=False)))
            say(what, error)
        """
        self.hold()
        (line,) = self.run_program(program, self.path)
        self.assertEqual(line[0], "error", line)
        self.assertIn("locked", line)
        self.release()
        self.check(exact=self.acked)

    @beyond_stock("nothing is held that stock would wait for")
    def scenario_an_opener_that_gets_signals(self):
        # The handlers do not let system calls restart; Python's handlers do not either.
        program = """
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            say("begins")
            found = rows(connect(sys.argv[1], wal=False))
            signal.setitimer(signal.ITIMER_REAL, 0)
            say("rows", found)
        """
        self.hold()
        opener = self.start(program, self.path)
        opener.expect("begins")
        time.sleep(0.5)
        self.release()
        self.assertEqual(opener.expect("rows"), ["20"])
        opener.finish()
        self.check(exact=self.acked)


if __name__ == "__main__":
    unittest.main()
