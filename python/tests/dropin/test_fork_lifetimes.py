"""Forked processes that outlive each other, threads, daemons, and forks of which no handler learns."""

import os
import platform
import signal
import unittest

from .harness import beyond_stock, each
from .test_fork import ForkCase

LINGER = """
def linger():
    # Lives on and touches nothing, until its input ends.
    os.read(0, 1)
"""


class ParentDies(ForkCase):
    @each("idle", "reading", "writing", "spilled", "exclusive")
    def scenario_killed_parent_leaves_no_lock_in_a_child(self, state):
        program = LINGER + """
path, state = sys.argv[1:]
conn = connect(path, wal=False)
if state == "exclusive":
    conn.execute("PRAGMA locking_mode=EXCLUSIVE")
conn.execute("PRAGMA journal_mode=WAL")
conn.execute(TABLE)
insert(conn, "before", 10)
if state == "reading":
    cursor = conn.execute("SELECT n FROM t")
    cursor.fetchone()
elif state in ("writing", "spilled"):
    conn.execute("PRAGMA cache_size=5")
    conn.execute("BEGIN IMMEDIATE")
    for n in range(100 if state == "spilled" else 1):
        conn.execute("INSERT INTO t VALUES ('never', ?, ?)", (n, os.urandom(2000)))
pid = fork(linger)
say("child", pid)
hear()
"""
        parent = self.start(program, self.path, state)
        (child,) = parent.expect("child")
        parent.kill()
        self.other_writes()
        self.assertTrue(_alive(child), "the child did not outlive its parent")
        found = self.contents()
        self.assertNotIn("never", {who for who, _ in found})
        os.kill(int(child), signal.SIGKILL)
        self.check()

    @each("close", "exit", "leave")
    def scenario_a_child_lingers_after_the_parents_end(self, end):
        program = LINGER + """
conn = create(sys.argv[1])
insert(conn, "before", 10)
say("child", fork(linger))
{"close": conn.close, "exit": lambda: sys.exit(0), "leave": lambda: os._exit(0)}[sys.argv[2]]()
"""
        parent = self.start(program, self.path, end)
        (child,) = parent.expect("child")
        parent.wait()
        self.other_writes()
        self.check()  # This closes last, so that stock can read the database.
        self.assertTrue(_alive(child), "the child did not outlive its parent")

    @beyond_stock("the own connection of a child has no locks that others see once the parent is gone")
    @each("close", "exit", "leave", "kill")
    def scenario_own_connection_goes_on_after_the_parents_end(self, end):
        program = """
            path, end = sys.argv[1:]
            conn = create(path)
            insert(conn, "before", 10)

            def child():
                mine = connect(path)
                insert(mine, "child", 20)
                say("ready")
                os.read(0, 1)
                insert(mine, "child", 20, first=20)
                mine.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                say("second")
                os.read(0, 1)
                insert(mine, "child", 20, first=40)
                mine.close()
                say("done")

            fork(child)
            while not os.path.exists(path + ".go"):
                time.sleep(0.01)
            {"close": lambda: (conn.close(), os._exit(0)), "exit": lambda: sys.exit(0),
             "leave": lambda: os._exit(0), "kill": die}[end]()
        """
        parent = self.start(program, self.path, end)
        parent.expect("ready")
        open(f"{self.path}.go", "w").close()
        parent.wait(-9 if end == "kill" else 0)
        self.other_writes()  # It opens later, and closes last except for the child.
        parent.process.stdin.write(b"x")
        parent.process.stdin.flush()
        parent.expect("second")
        self.other_writes()
        self.contents()
        parent.process.stdin.write(b"x")
        parent.process.stdin.flush()
        parent.expect("done")
        self.assertEqual(len(self.check()), 72)

    def scenario_everybody_is_killed(self):
        program = """
            path = sys.argv[1]
            conn = create(path)

            def child(name):
                mine = connect(path)
                for n in range(100000):
                    insert(mine, name, 1, first=n)
                    if n == 30:
                        say("busy")

            for i in range(3):
                fork(child, f"child{i}")
            child("parent")
        """
        parent = self.start(program, self.path)
        for _ in range(4):
            parent.expect("busy")
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait(-9)
        parent.reader.join()
        self.assertGreaterEqual(len(self.check()), 124)


class Daemons(ForkCase):
    @each("exit", "leave")
    def scenario_double_fork(self, end):
        # Daemonises as usual: forks, starts a new session, forks again, closes the standard files. The
        # database is open all the time.
        program = """
            path, end = sys.argv[1:]
            conn = create(path)
            insert(conn, "before", 10)
            leave = sys.exit if end == "exit" else os._exit
            if os.fork():
                leave(0)
            os.setpgid(0, os.getpgid(0))
            if os.fork():
                leave(0)
            os.chdir("/")
            conn = None
            gc.collect()
            conn = connect(path)
            insert(conn, "daemon", 50)
            conn.close()
            say("done")
        """
        daemon = self.start(program, self.path, end)
        daemon.expect("done")
        daemon.finish()
        self.assertEqual(len(self.check()), 60)

    @each("closed", "inherited")
    def scenario_subprocess(self, descriptors):
        # With vfork and exec, the child becomes another program at once.
        program = """
            path, close_fds = sys.argv[1], sys.argv[2] == "closed"
            conn = create(path)
            insert(conn, "before", 10)
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("INSERT INTO t VALUES ('parent', 0, NULL)")
            for _ in range(20):
                subprocess.run(["/bin/true"], close_fds=close_fds, check=True)
            say("ready")
            hear()
            conn.execute("COMMIT")
            ack("parent", 0)
            code = "from dropin.program import *; own(sys.argv[1], sys.argv[2], 20)"
            runs = [subprocess.Popen([sys.executable, "-c", code, path, f"sub{i}"], close_fds=close_fds)
                    for i in range(3)]
            insert(conn, "during", 20)
            for run in runs:
                assert run.wait() == 0
            say("rows", rows(conn))
            conn.close()
        """
        parent = self.start(program, self.path, descriptors)
        parent.expect("ready")
        self.other_is_refused()
        parent.tell()
        self.assertEqual(parent.expect("rows"), ["91"])
        parent.finish()
        self.check()

    @each("idle", "writing")
    def scenario_subprocess_outlives_a_killed_parent(self, state):
        program = """
            conn = create(sys.argv[1])
            insert(conn, "before", 10)
            if sys.argv[2] == "writing":
                conn.execute("BEGIN IMMEDIATE")
                conn.execute("INSERT INTO t VALUES ('never', 0, NULL)")
            run = subprocess.Popen(["/bin/sleep", "100"], close_fds=False)
            say("child", run.pid)
            hear()
        """
        parent = self.start(program, self.path, state)
        (child,) = parent.expect("child")
        parent.kill()
        self.other_writes()
        self.check()
        self.assertTrue(_alive(child))


class Threads(ForkCase):
    @each("leave", "subprocess")
    def scenario_forks_beside_a_committing_thread(self, child):
        program = """
            path, kind = sys.argv[1:]
            create(path).close()
            stop = threading.Event()

            def commit(name):
                conn = connect(path)
                n = 0
                while not stop.is_set():
                    insert(conn, name, 1, first=n)
                    n += 1
                conn.close()

            threads = [threading.Thread(target=commit, args=(f"thread{i}",)) for i in range(2)]
            [thread.start() for thread in threads]
            for _ in range(40):
                if kind == "leave":
                    join(fork(lambda: None))
                else:
                    subprocess.run(["/bin/true"], check=True, close_fds=False)
            stop.set()
            [thread.join() for thread in threads]
        """
        self.run_program(program, self.path, child)
        self.check(exact=self.acked)

    @each("same", "other")
    def scenario_children_beside_a_committing_thread(self, file):
        # SQLite's own mutexes may be locked at the moment of a fork. A child that needs one hangs, with stock
        # too. It is killed and counted. Whatever it acknowledged has to be there.
        program = """
            path, mine = sys.argv[1], sys.argv[1] if sys.argv[2] == "same" else sys.argv[1] + "2"
            create(path).close()
            create(mine).close()
            stop = threading.Event()

            def commit():
                conn = connect(path)
                n = 0
                while not stop.is_set():
                    insert(conn, "thread", 1, first=n)
                    n += 1
                conn.close()

            thread = threading.Thread(target=commit)
            thread.start()
            pids = []
            for i in range(12):
                pids.append(fork(own, mine, f"child{i}", 5))
                time.sleep(0.02)
            deadline, hung = time.monotonic() + 6, 0
            for pid in pids:
                while not (found := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
                    time.sleep(0.01)
                if not found[0]:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    hung += 1
                elif found[1]:
                    say("child", os.waitstatus_to_exitcode(found[1]))
            stop.set()
            thread.join()
            say("hung", hung)
        """
        (line,) = self.run_program(program, self.path, file)
        self.assertLess(int(line[1]), 12, "every child hangs")
        if file == "same":
            self.check(exact=self.acked)
        else:
            found = self.contents() | self.contents(f"{self.path}2")
            self.assertEqual(found, self.acked)
            self.assert_clean()


@unittest.skipUnless(platform.machine() == "x86_64", "the numbers of the system calls are those of x86-64")
class RawClone(ForkCase):
    """Processes made without the C library's fork: no handler runs in them."""

    RAW = """
libc = ctypes.PyDLL(None, use_errno=True)

def raw_fork(function, *arguments):
    sys.stdout.flush()
    pid = libc.syscall(57) if sys.argv[2] == "fork" else libc.syscall(56, signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        code = 1
        try:
            function(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid
"""

    @each("fork", "clone")
    def scenario_own_connections(self, call):
        program = self.RAW + """
path = sys.argv[1]
conn = create(path)
insert(conn, "before", 10)
pids = [raw_fork(own, path, f"child{i}", 30) for i in range(3)]
insert(conn, "parent", 30)
join(*pids)
join(raw_fork(own, path, "later", 10))
say("rows", rows(conn))
conn.close()
"""
        (line,) = self.run_program(program, self.path, call)
        self.assertEqual(line, ["rows", "140"])
        self.check()

    @each("fork", "clone")
    def scenario_inherited_connection_is_closed(self, call):
        program = self.RAW + """
conn = create(sys.argv[1])
insert(conn, "before", 10)
conn.execute("BEGIN IMMEDIATE")
conn.execute("INSERT INTO t VALUES ('parent', 0, NULL)")
join(raw_fork(conn.close), raw_fork(conn.rollback))
say("ready")
hear()
conn.execute("COMMIT")
ack("parent", 0)
insert(conn, "after", 10)
conn.close()
"""
        parent = self.start(program, self.path, call)
        parent.expect("ready")
        self.other_is_refused()
        parent.tell()
        parent.finish()
        self.assertEqual(len(self.check()), 21)

    @each("fork", "clone")
    def scenario_inherited_connection_is_used(self, call):
        program = self.RAW + """
conn = create(sys.argv[1])
insert(conn, "before", 10)

def use():
    what, value = attempt(insert, conn, "child", 10)
    say(what, value)
    attempt(conn.close)

join(raw_fork(use))
insert(conn, "after", 10)
conn.close()
"""
        (line,) = self.run_program(program, self.path, call)
        self.assertIn(line[0], ("ok", "error"))
        self.check(exact=self.acked)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(") ", 1)[1][0] not in "ZX"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    unittest.main()
