"""Processes that fork while they have a database open."""

import signal
import unittest

from . import harness
from .harness import beyond_stock, each

#: Takes the WRITE lock at once, or says that it cannot.
OTHER = """
conn = connect(sys.argv[1], timeout=float(sys.argv[2]), wal=False)
what, error = attempt(conn.execute, "BEGIN IMMEDIATE")
if what == "ok":
    conn.execute("INSERT INTO t VALUES ('other', ?, NULL)", (int(time.monotonic() * 1e6),))
    conn.execute("COMMIT")
say(what, "" if what == "ok" else error)
"""


class ForkCase(harness.Case):
    def other_writes(self, timeout=10):
        """Checks that a new process can write."""
        lines = self.run_program(OTHER, self.path, timeout)
        self.assertEqual(lines[0][0], "ok", f"another process cannot write: {lines}")

    def other_is_refused(self):
        """Checks that some process holds the WRITE lock."""
        lines = self.run_program(OTHER, self.path, 0)
        self.assertEqual(lines[0][0], "error", "another process got the WRITE lock while a transaction was open")
        self.assertIn("locked", lines[0])


class OwnConnections(ForkCase):
    """Children that do not touch the inherited connection, and open their own."""

    @each(1, 2, 8)
    def scenario_children_insert(self, children):
        program = """
            path, count = sys.argv[1], int(sys.argv[2])
            conn = create(path)
            pids = [fork(own, path, f"child{i}", 40) for i in range(count)]
            insert(conn, "parent", 40)
            join(*pids)
            insert(conn, "parent", 5, first=40)
            say("rows", rows(conn))
            conn.close()
        """
        (line,) = self.run_program(program, self.path, children)
        self.assertEqual(line, ["rows", str(45 + 40 * children)])
        self.assertEqual(len(self.check()), 45 + 40 * children)

    @each(2, 8)
    def scenario_idle_parent(self, children):
        program = """
            path, count = sys.argv[1], int(sys.argv[2])
            conn = create(path)
            insert(conn, "parent", 3)
            pids = [fork(own, path, f"child{i}", 40) for i in range(count)]
            join(*pids)
            say("rows", rows(conn))
            conn.close()
        """
        (line,) = self.run_program(program, self.path, children)
        self.assertEqual(line, ["rows", str(3 + 40 * children)])
        self.check()

    def scenario_pool(self):
        program = """
            def work(i):
                conn = connect(sys.argv[1])
                insert(conn, f"task{i}", 10)
                conn.close()
                return i

            conn = create(sys.argv[1])
            insert(conn, "parent", 10)
            with multiprocessing.get_context("fork").Pool(8) as pool:
                say("tasks", len(pool.map(work, range(24), chunksize=1)))
                pool.close()
                pool.join()
            insert(conn, "parent", 10, first=10)
            conn.close()
        """
        self.assertEqual(self.run_program(program, self.path), [["tasks", "24"]])
        self.assertEqual(len(self.check()), 260)

    def scenario_preforking_server(self):
        # A worker opens its connection at its first request and keeps it. Workers end and are replaced.
        program = """
            path = sys.argv[1]
            conn = create(path)
            insert(conn, "master", 5)

            def worker(name):
                mine = connect(path)
                for n in range(0, 30, 10):
                    insert(mine, name, 10, first=n)

            pids = [fork(worker, f"w{i}") for i in range(4)]
            for i in range(4, 12):
                join(pids.pop(0))
                rows(conn)
                pids.append(fork(worker, f"w{i}"))
            join(*pids)
            say("rows", rows(conn))
            conn.close()
        """
        (line,) = self.run_program(program, self.path)
        self.assertEqual(line, ["rows", "365"])
        self.check()

    def scenario_grandchildren(self):
        program = """
            path = sys.argv[1]
            conn = create(path)

            def level(depth):
                mine = connect(path)
                insert(mine, f"depth{depth}a", 20)
                if depth < 4:
                    join(fork(level, depth + 1), fork(own, path, f"side{depth}", 20))
                insert(mine, f"depth{depth}b", 20)

            level(0)
            insert(conn, "parent", 20)
            conn.close()
        """
        self.run_program(program, self.path)
        self.assertEqual(len(self.check()), 300)

    def scenario_attached_temp_and_exclusive_elsewhere(self):
        program = """
            path, second = sys.argv[1], sys.argv[1] + "2"
            conn = create(path)
            create(second).close()
            conn.execute("ATTACH ? AS b", (uri(second),))
            conn.execute("PRAGMA b.journal_mode=WAL")
            conn.execute("CREATE TEMP TABLE scratch (a)")
            conn.execute("INSERT INTO scratch VALUES (1)")

            def child(i):
                mine = connect(path)
                mine.execute("ATTACH ? AS b", (uri(second),))
                for n in range(20):
                    mine.execute("BEGIN IMMEDIATE")
                    mine.execute("INSERT INTO main.t VALUES (?, ?, NULL)", (f"child{i}", n))
                    mine.execute("INSERT INTO b.t VALUES (?, ?, NULL)", (f"child{i}", n))
                    mine.execute("COMMIT")
                    ack(f"child{i}", n)
                mine.close()

            pids = [fork(child, i) for i in range(3)]
            for n in range(20):
                conn.execute("INSERT INTO scratch VALUES (?)", (n,))
                conn.execute("INSERT INTO b.t VALUES ('parent', ?, NULL)", (n,))
            join(*pids)
            say("rows", rows(conn, "scratch"), rows(conn, "b.t"), rows(conn, "main.t"))
            conn.close()
        """
        (line,) = self.run_program(program, self.path)
        self.assertEqual(line, ["rows", "21", "80", "60"])
        self.check()
        self.assertEqual(len(self.contents(str(self.path) + "2")), 80)
        self.assert_clean()

    @beyond_stock("the parent's last close does not see its children's locks, and takes their log away")
    def scenario_checkpoints_and_last_closes(self):
        program = """
            path = sys.argv[1]
            create(path).close()
            for turn in range(6):
                conn = connect(path)
                insert(conn, "parent", 5, first=5 * turn)
                pids = [fork(own, path, f"child{turn}.{i}", 10) for i in range(2)]
                conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                conn.close()
                join(*pids)
        """
        self.run_program(program, self.path)
        self.assertEqual(len(self.check()), 150)


class Inherited(ForkCase):
    """Children that use, close or drop the connection that they inherited."""

    ENDS = {
        "close": "conn.close()",
        "collect": "del conn, cursor; gc.collect()",
        "rollback": "conn.rollback(); attempt(conn.execute, 'ROLLBACK')",
        "finalize": "cursor.close(); gc.collect()",
        "exit": "sys.exit(0)",
        "commit": "attempt(conn.execute, 'COMMIT'); conn.close()",
    }

    @each("close", "collect", "rollback", "finalize", "exit")
    def scenario_parents_transaction_outlives_a_child(self, end):
        program = """
            path = sys.argv[1]
            conn = create(path)
            insert(conn, "before", 10)
            cursor = conn.execute("SELECT n FROM t")
            cursor.fetchone()
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("INSERT INTO t VALUES ('parent', 0, NULL)")
            pid = os.fork()
            if not pid:
                os.close(0)
                END
                os._exit(0)
            join(pid)
            say("ready")
            hear()
            conn.execute("INSERT INTO t VALUES ('parent', 1, NULL)")
            conn.execute("COMMIT")
            ack("parent", 0)
            ack("parent", 1)
            insert(conn, "after", 10)
            conn.close()
        """
        program = program.replace("END", self.ENDS[end])
        parent = self.start(program, self.path)
        parent.expect("ready")
        self.other_is_refused()
        parent.tell()
        parent.finish()
        self.assertEqual(len(self.check()), 22)

    @beyond_stock("a child of stock SQLite clears the index entries of the parent's spilled pages")
    @each("close", "rollback")
    def scenario_parents_spilled_transaction_outlives_a_child(self, end):
        program = """
            conn = create(sys.argv[1])
            cursor = None
            conn.execute("PRAGMA cache_size=5")
            conn.execute("BEGIN IMMEDIATE")
            for n in range(200):
                conn.execute("INSERT INTO t VALUES ('big', ?, ?)", (n, os.urandom(3000)))
            pid = os.fork()
            if not pid:
                END
                os._exit(0)
            join(pid)
            conn.execute("COMMIT")
            for n in range(200):
                ack("big", n)
            insert(conn, "after", 10)
            conn.close()
        """
        self.run_program(program.replace("END", self.ENDS[end]), self.path)
        self.assertEqual(len(self.check()), 210)

    @each("close", "collect", "finalize", "exit")
    def scenario_parents_snapshot_outlives_a_child(self, end):
        program = """
            conn = create(sys.argv[1])
            insert(conn, "before", 50)
            conn.execute("BEGIN")
            cursor = conn.execute("SELECT n FROM t ORDER BY n")
            cursor.fetchone()
            pid = os.fork()
            if not pid:
                os.close(0)
                END
                os._exit(0)
            join(pid)
            say("ready")
            hear()
            say("rest", len(cursor.fetchall()), rows(conn))
            conn.execute("COMMIT")
            say("rows", rows(conn))
            conn.close()
        """
        writer = """
            conn = connect(sys.argv[1], timeout=1)
            for turn in range(10):
                conn.execute("UPDATE t SET pad = randomblob(500)")
                insert(conn, f"other{turn}", 20)
                conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                attempt(conn.execute, "PRAGMA wal_checkpoint(RESTART)") if turn == 5 else None
            conn.close()
        """
        parent = self.start(program.replace("END", self.ENDS[end]), self.path)
        parent.expect("ready")
        self.run_program(writer, self.path)
        parent.tell()
        self.assertEqual(parent.expect("rest"), ["49", "50"])
        self.assertEqual(parent.expect("rows"), ["250"])
        parent.finish()
        self.check()

    @each("close", "collect", "exit")
    def scenario_children_that_close_everything(self, end):
        # Each child closes the inherited connection, and works with its own.
        program = """
            path = sys.argv[1]
            conn = create(path)
            cursor = conn.execute("SELECT 1")
            for i in range(6):
                pid = os.fork()
                if not pid:
                    if "END" == "exit":
                        mine = connect(path)
                        insert(mine, f"child{i}", 10)
                        sys.exit(0)
                    mine = connect(path) if i % 2 else None
                    if "END" == "close":
                        conn.close()
                    else:
                        del conn, cursor
                        gc.collect()
                    mine = mine or connect(path)
                    insert(mine, f"child{i}", 10)
                    mine.close()
                    os._exit(0)
                insert(conn, "parent", 10, first=10 * i)
                join(pid)
            say("rows", rows(conn))
            conn.close()
        """
        (line,) = self.run_program(program.replace("END", end), self.path)
        self.assertEqual(line, ["rows", "120"])
        self.check()

    @each("select", "insert", "begin", "checkpoint", "journal_mode", "attach")
    def scenario_use_in_a_child(self, use):
        # The use has the same effect as on stock, or it fails with one of SQLite's errors.
        program = """
            path, use = sys.argv[1:]
            conn = create(path)
            insert(conn, "before", 10)
            pid = os.fork()
            if not pid:
                if use == "select":
                    what, value = attempt(rows, conn)
                    assert what == "error" or value == 10, value
                elif use == "insert":
                    what, value = attempt(insert, conn, "child", 10)
                elif use == "begin":
                    what, value = attempt(conn.execute, "BEGIN IMMEDIATE")
                    attempt(conn.execute, "INSERT INTO t VALUES ('lost', 1, NULL)")
                elif use == "checkpoint":
                    what, value = attempt(conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall)
                elif use == "journal_mode":
                    what, value = attempt(conn.execute, "PRAGMA journal_mode=DELETE")
                else:
                    what, value = attempt(conn.execute, "ATTACH ? AS b", (uri(path),))
                say(what)
                os._exit(0)
            join(pid)
            insert(conn, "parent", 20)
            pid = fork(own, path, "later", 10)
            join(pid)
            say("rows", rows(conn))
            conn.close()
        """
        # A PRAGMA that fails raises in execute.
        program = program.replace(
            'attempt(conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall)',
            'attempt(lambda: conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())',
        )
        child, line = self.run_program(program, self.path, use)
        self.assertIn(child[0], ("ok", "error"))
        self.assertEqual(int(line[1]), len(self.acked))
        self.check(exact=self.acked)

    def scenario_pool_of_connections(self):
        # A web framework's pool, made before the fork. The children discard it and make their own.
        program = """
            path = sys.argv[1]
            create(path).close()
            pool = [connect(path) for _ in range(5)]
            for conn in pool:
                rows(conn)

            def child(name):
                global pool
                pool = None
                gc.collect()
                mine = [connect(path) for _ in range(3)]
                for n in range(30):
                    insert(mine[n % 3], name, 1, first=n)

            pids = [fork(child, f"child{i}") for i in range(4)]
            for n in range(50):
                insert(pool[n % 5], "parent", 1, first=n)
            join(*pids)
            say("rows", rows(pool[0]))
        """
        (line,) = self.run_program(program, self.path)
        self.assertEqual(line, ["rows", "170"])
        self.check()


class Exclusive(ForkCase):
    def scenario_exclusive_parent_keeps_its_lock(self):
        program = """
            path = sys.argv[1]
            conn = connect(path, wal=False)
            conn.execute("PRAGMA locking_mode=EXCLUSIVE")
            conn.execute("PRAGMA journal_mode=WAL")
            conn.execute(TABLE)
            insert(conn, "parent", 10)

            def child():
                what, error = attempt(own, path, "child", 10, timeout=0)
                assert what == "error", "a child got in beside an exclusive connection"

            join(fork(child))
            join(fork(conn.close))
            say("ready")
            hear()
            insert(conn, "parent", 10, first=10)
            conn.close()
            join(fork(own, path, "later", 10))
        """
        parent = self.start(program, self.path)
        parent.expect("ready")
        lines = self.run_program(
            "say(*attempt(lambda: rows(connect(sys.argv[1], timeout=0, wal=False))))", self.path
        )
        self.assertEqual(lines[0][0], "error", "another process got in beside an exclusive connection")
        parent.tell()
        parent.finish()
        self.assertEqual(len(self.check()), 30)


if __name__ == "__main__":
    unittest.main()
