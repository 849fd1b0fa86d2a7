"""Processes with few descriptors or little memory, processes whose calls are interrupted, and processes that give
up rights."""

import os
import signal
import unittest

from . import harness
from .harness import each


class Limits(harness.Case):
    @each("before the database is opened", "before it is first used")
    def scenario_standard_files_are_closed(self, when):
        # A daemon without descriptors 0 to 2. Its output must not land in a database or a log.
        program = """
            out = os.dup(1)
            os.set_inheritable(out, False)
            high = os.dup2(out, 200)
            os.close(out)
            def detach():
                for fd in (0, 1, 2):
                    os.close(fd)
            if sys.argv[2] == "before it is first used":
                create(sys.argv[1]).close()
                conn = connect(sys.argv[1], wal=False)
                detach()
                # Opening another one would fill the gaps.
                conn.execute("SELECT * FROM t").fetchall()
            else:
                detach()
                conn = create(sys.argv[1])
            other = connect(sys.argv[1])
            for n in range(20):
                (conn, other)[n % 2].execute("INSERT INTO t VALUES ('daemon', ?, NULL)", (n,))
                for fd in (0, 1, 2):
                    try:
                        os.write(fd, b"garbage from a daemon " * 100)
                    except OSError:
                        pass
                os.write(200, f"ack daemon {n}\\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        """
        self.start(program, self.path, when).finish(-signal.SIGKILL)
        self.check(exact=self.acked)

    def scenario_child_closes_all_descriptors(self):
        # As daemons and subprocess helpers do after a fork.
        program = """
            conn = create(sys.argv[1])
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("INSERT INTO t VALUES ('parent', 0, NULL)")
            join(fork(os.closerange, 3, 1024))
            say("ready")
            hear()
            conn.execute("COMMIT")
            ack("parent", 0)
            insert(conn, "parent", 10, first=1)
            conn.close()
        """
        parent = self.start(program, self.path)
        parent.expect("ready")
        (line,) = self.run_program(
            "say(*attempt(connect(sys.argv[1], timeout=0, wal=False).execute, 'BEGIN IMMEDIATE'))", self.path
        )
        self.assertEqual(line[0], "error", "the transaction's lock is gone")
        parent.tell()
        parent.finish()
        self.check(exact=self.acked)

    @each(20, 60)
    def scenario_many_connections_and_few_descriptors(self, connections):
        # On stock, three descriptors per connection are ample.
        program = """
            import resource
            count = int(sys.argv[2])
            limit = 3 * count + 24
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            conns = [create(sys.argv[1]) for _ in range(count)]
            for n, conn in enumerate(conns):
                insert(conn, "many", 1, first=n)
            [conn.close() for conn in conns]
        """
        self.run_program(program, self.path, connections)
        self.check(exact=self.acked)

    def scenario_out_of_descriptors(self):
        # Opens fail, but the open connections continue to work.
        program = """
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            conns, failed = [create(sys.argv[1])], 0
            spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]
            while failed < 5:
                what, conn = attempt(connect, sys.argv[1], timeout=1)
                if what == "ok":
                    conns.append(conn)
                    what, error = attempt(insert, conn, "more", 1, len(conns))
                failed += what == "error"
                assert len(conns) < 200
            insert(conns[0], "first", 10)
            [os.close(fd) for fd in spare]
            late = connect(sys.argv[1])
            insert(late, "late", 10)
            late.close()
            [conn.close() for conn in conns]
        """
        self.run_program(program, self.path)
        self.check(exact=self.acked)

    def scenario_little_address_space(self):
        program = """
            import resource
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            limit = used + (192 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            conns = [create(sys.argv[1]) for _ in range(5)]
            for n, conn in enumerate(conns):
                insert(conn, f"c{n}", 20, pad=bytes(3000))
            [conn.close() for conn in conns]
        """
        self.run_program(program, self.path)
        self.check(exact=self.acked)

    def scenario_small_files(self):
        # As with ulimit -f: no file may grow beyond 12 MiB. Stock's log stays far smaller.
        program = """
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 20, 12 << 20))
            conn = create(sys.argv[1])
            for turn in range(10):
                insert(conn, f"turn{turn}", 30, pad=bytes(10000))
            conn.close()
        """
        self.run_program(program, self.path)
        self.check(exact=self.acked)

    def scenario_interrupted_calls(self):
        # The handler of a timer interrupts system calls, a thousand times a second. No connection here waits for a
        # lock: SQLite counts the sleeps for which it asked, not the time that they really took.
        program = """
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.siginterrupt(signal.SIGALRM, True)
            conn = create(sys.argv[1])
            other = connect(sys.argv[1])
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            for turn in range(15):
                insert(conn, f"a{turn}", 20, pad=bytes(2000))
                insert(other, f"b{turn}", 20)
                conn.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                third = connect(sys.argv[1])
                insert(third, f"c{turn}", 5)
                third.close()
            other.close()
            conn.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
        """
        self.run_program(program, self.path)
        self.assertEqual(len(self.acked), 15 * 45)
        self.check(exact=self.acked)

    @unittest.skipUnless(os.geteuid() == 0, "only root can give up rights")
    @each("open", "killed")
    def scenario_rights_are_given_up(self, end):
        # A daemon opens its database as root, and then becomes the user who owns the database.
        program = """
            conn = create(sys.argv[1])
            insert(conn, "root", 10)
            os.setgroups([])
            os.setgid(3001)
            os.setuid(3001)
            insert(conn, "user", 10)
            second = connect(sys.argv[1])
            insert(second, "second", 10)
            conn.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
            insert(conn, "user", 10, first=10)
            if sys.argv[2] == "killed":
                die()
            second.close()
            conn.close()
        """
        self.create(rows=1)
        for path in (self.directory, self.path):
            os.chown(path, 3001, 3001)
        self.run_program(program, self.path, end, code=-9 if end == "killed" else 0)
        user = "os.setgroups([]); os.setgid(3001); os.setuid(3001)\n"
        self.run_program(user + "own(sys.argv[1], 'next', 10)", self.path)
        self.check(exact=self.acked)

    @unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
    @each("file", "directory")
    def scenario_made_read_only_while_closed(self, what):
        # A user opens the database while it must not be written. Later it may be written again.
        self.create(rows=5)
        target = self.path if what == "file" else self.directory
        mode = target.stat().st_mode
        os.chmod(self.path, 0o666)
        os.chmod(target, 0o444 if what == "file" else 0o555)
        user = "os.setgroups([]); os.setgid(3001); os.setuid(3001)\n"
        body = """
def work():
    conn = connect(sys.argv[1], wal=False, timeout=1)
    conn.execute("INSERT INTO t VALUES ('user', 1, NULL)")
    ack("user", 1)
    conn.close()

say(*attempt(work))
"""
        self.run_program(user + body, self.path)
        os.chmod(target, mode)
        os.chmod(self.path, 0o644)
        self.run_program("own(sys.argv[1], 'root', 10)", self.path)
        self.check(exact=self.acked)


if __name__ == "__main__":
    unittest.main()
