"""Read-only connections, users who may only read, and users who share a group."""

import os
import unittest

from . import harness
from .harness import beyond_stock, each

READER = """
conn = connect(sys.argv[1], wal=False, mode="ro")
say("rows", rows(conn))
while hear():
    say("rows", rows(conn))
conn.close()
"""

WRITER = """
conn = connect(sys.argv[1], timeout=5)
conn.execute(TABLE)
say("open")
n = 0
while hear():
    insert(conn, sys.argv[2], 10, first=n)
    n += 10
    say("rows", rows(conn))
conn.close()
"""

#: Begins a read transaction, and reads again each time that it is told to.
SNAPSHOT = """
conn = connect(sys.argv[1], wal=False, mode="ro")
conn.execute("BEGIN")
say("sum", *conn.execute("SELECT count(*), total(n), total(length(pad)) FROM t").fetchone())
while hear():
    say("sum", *conn.execute("SELECT count(*), total(n), total(length(pad)) FROM t").fetchone())
conn.execute("COMMIT")
say("rows", rows(conn))
conn.close()
"""

CHURN = """
conn = connect(sys.argv[1], timeout=5)
for turn in range(8):
    insert(conn, f"churn{turn}", 10, pad=bytes(1000))
    conn.execute("UPDATE t SET pad = randomblob(300 + ?)", (turn,))
    attempt(lambda: conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())
conn.close()
"""


def become(uid, groups=()):
    """The beginning of a program that runs as another user."""
    return f"os.setgroups({list(groups)!r}); os.setgid({groups[0] if groups else uid}); os.setuid({uid})\n"


class ReadOnlyConnections(harness.Case):
    def steady(self, text, *arguments, word, **options):
        program = self.start(text, self.path, *arguments, **options)
        return program, program.expect(word)

    def ask(self, program):
        program.tell()
        return int(program.expect("rows")[0])

    def scenario_before_the_writer(self):
        self.create(rows=5)
        reader, (count,) = self.steady(READER, word="rows")
        self.assertEqual(count, "5")
        writer, _ = self.steady(WRITER, "writer", word="open")
        for turn in range(1, 4):
            self.assertEqual(self.ask(writer), 5 + 10 * turn)
            self.assertEqual(self.ask(reader), 5 + 10 * turn)
        writer.finish()
        self.assertEqual(self.ask(reader), 35)
        again, _ = self.steady(WRITER, "again", word="open")
        self.ask(again)
        self.assertEqual(self.ask(reader), 45)
        reader.finish()
        again.finish()
        self.check(exact=self.acked)

    def scenario_after_the_writer(self):
        self.create(rows=5)
        writer, _ = self.steady(WRITER, "writer", word="open")
        self.ask(writer)
        reader, (count,) = self.steady(READER, word="rows")
        self.assertEqual(count, "15")
        self.ask(writer)
        self.assertEqual(self.ask(reader), 25)
        writer.kill()
        self.assertEqual(self.ask(reader), 25)
        second, _ = self.steady(WRITER, "second", word="open")
        self.ask(second)
        self.assertEqual(self.ask(reader), 35)
        second.finish()
        reader.finish()
        self.check(exact=self.acked)

    def scenario_many_readers_first(self):
        self.create(rows=5)
        readers = [self.steady(READER, word="rows")[0] for _ in range(4)]
        writers = [self.steady(WRITER, f"writer{i}", word="open")[0] for i in range(2)]
        for writer in writers:
            self.ask(writer)
        for reader in readers:
            self.assertEqual(self.ask(reader), 25)
        readers[0].kill()
        writers[0].kill()
        self.ask(writers[1])
        for program in (*readers[1:], writers[1]):
            program.finish()
        self.check(exact=self.acked)

    @each("before", "after")
    def scenario_snapshot_is_stable(self, order):
        self.create(rows=50)
        if order == "after":
            idle, _ = self.steady(WRITER, "idle", word="open")
        reader, first = self.steady(SNAPSHOT, word="sum")
        for _ in range(2):
            self.run_program(CHURN.replace("churn{turn}", "c" + str(len(self.acked)) + "x{turn}"), self.path)
            reader.tell()
            self.assertEqual(reader.expect("sum"), first)
        reader.process.stdin.close()
        self.assertEqual(reader.expect("rows"), [str(len(self.acked))])
        reader.finish()
        if order == "after":
            idle.finish()
        self.check(exact=self.acked)

    def scenario_in_the_writers_process(self):
        program = """
            path = sys.argv[1]
            reader = connect(path, wal=False, mode="ro")
            say("rows", rows(reader))
            writer = connect(path, timeout=2)
            insert(writer, "writer", 10)
            say("rows", rows(reader))
            reader.close()
            insert(writer, "writer", 10, first=10)
            reader = connect(path, wal=False, mode="ro")
            writer.close()
            say("rows", rows(reader))
            reader.close()
        """
        self.create(rows=5)
        found = self.run_program(program, self.path)
        self.assertEqual(found, [["rows", "5"], ["rows", "15"], ["rows", "25"]])
        self.check(exact=self.acked)

    def scenario_is_refused_to_write(self):
        self.create(rows=5)
        program = """
            conn = connect(sys.argv[1], wal=False, mode="ro")
            what, error = attempt(insert, conn, "never", 1)
            say(what, error)
            conn.close()
        """
        (line,) = self.run_program(program, self.path)
        self.assertEqual(line[0], "error")
        self.assertIn("readonly", line)
        self.check(exact=self.acked)


@unittest.skipUnless(os.geteuid() == 0, "only root can become other users")
class Users(harness.Case):
    def shared(self, mode, group=None, directory_mode=0o755):
        """A closed database with these access rights."""
        self.create(rows=5)
        os.chmod(self.path, mode)
        os.chmod(self.directory, directory_mode)
        if group:
            os.chown(self.path, 0, group)
            os.chown(self.directory, 0, group)

    def go(self, program):
        program.tell()
        return int(program.expect("rows")[0])

    def steady(self, text, *arguments, word, user=""):
        program = self.start(user + text, self.path, *arguments)
        return program, program.expect(word)

    def scenario_may_only_read_a_live_database(self):
        self.shared(0o644)
        writer, _ = self.steady(WRITER, "writer", word="open")
        self.assertEqual(self.go(writer), 15)
        reader, (count,) = self.steady(READER, word="rows", user=become(65534))
        self.assertEqual(count, "15")
        for turn in range(2, 5):
            self.assertEqual(self.go(writer), 5 + 10 * turn)
            self.assertEqual(self.go(reader), 5 + 10 * turn)
        self.run_program(CHURN, self.path)
        self.assertEqual(self.go(reader), len(self.acked))
        reader.finish()
        writer.finish()
        self.check(exact=self.acked)

    def scenario_may_only_read_and_keeps_a_snapshot(self):
        self.shared(0o644)
        writer, _ = self.steady(WRITER, "writer", word="open")
        self.go(writer)
        reader, first = self.steady(SNAPSHOT, word="sum", user=become(65534))
        for turn in range(3):
            self.run_program(CHURN.replace("churn{", f"churn{turn}x{{"), self.path)
            reader.tell()
            self.assertEqual(reader.expect("sum"), first)
        reader.finish()
        writer.finish()
        self.check(exact=self.acked)

    @each("default", "ro")
    def scenario_may_only_read_a_crashed_database(self, mode):
        self.shared(0o644)
        self.run_program("conn = connect(sys.argv[1]); insert(conn, 'log', 20); die()", self.path, code=-9)
        named = 'mode="ro"' if mode == "ro" else ""
        text = become(65534) + f'conn = connect(sys.argv[1], wal=False, {named}); say("rows", rows(conn))'
        self.assertEqual(self.run_program(text, self.path), [["rows", "25"]])
        self.check(exact=self.acked)

    @beyond_stock("stock needs the right to make its index, and says so")
    def scenario_may_only_read_a_closed_database(self):
        self.shared(0o644)
        text = become(65534) + 'conn = connect(sys.argv[1], wal=False); say(*attempt(rows, conn))'
        (line,) = self.run_program(text, self.path)
        self.assertTrue(line[0] == "error" or line == ["ok", "5"], line)
        self.check(exact=self.acked)

    def scenario_may_not_even_read(self):
        self.shared(0o600)
        writer, _ = self.steady(WRITER, "writer", word="open")
        self.go(writer)
        text = become(65534) + 'say(*attempt(lambda: rows(connect(sys.argv[1], wal=False))))'
        (line,) = self.run_program(text, self.path)
        self.assertEqual(line[0], "error")
        for root, _, names in os.walk(self.base):
            for name in names:
                path = os.path.join(root, name)
                self.assertEqual(os.stat(path).st_mode & 0o077, 0, f"{name} is open to others")
        writer.finish()
        self.check(exact=self.acked)

    @harness.known_limit("who may only read is served by stock SQLite where nobody has the database open")
    def scenario_reader_before_the_writer(self):
        self.shared(0o644, directory_mode=0o1777)
        reader, (count,) = self.steady(READER, word="rows", user=become(65534))
        self.assertEqual(count, "5")
        writer, _ = self.steady(WRITER, "writer", word="open")
        self.assertEqual(self.go(writer), 15)
        self.assertEqual(self.go(reader), 15)
        reader.finish()
        writer.finish()
        self.check(exact=self.acked)

    ORDERS = {
        "ab": (become(3001, [4000]), become(3002, [4000])),
        "root_first": ("", become(3001, [4000])),
        "root_last": (become(3001, [4000]), ""),
        "supplementary": (become(3001, [3001, 4000]), become(3002, [3002, 4000])),
    }

    @each(*ORDERS)
    def scenario_group_at_once(self, order):
        first, second = self.ORDERS[order]
        self.shared(0o664, group=4000, directory_mode=0o2775)
        one, _ = self.steady(WRITER, "one", word="open", user=first)
        self.go(one)
        two, _ = self.steady(WRITER, "two", word="open", user=second)
        for turn in range(1, 4):
            self.assertEqual(self.go(two), 5 + 20 * turn)
            self.assertEqual(self.go(one), 15 + 20 * turn)
        one.finish()
        self.go(two)
        two.finish()
        self.check(exact=self.acked)

    @each(*ORDERS)
    def scenario_group_after_a_kill(self, order):
        first, second = self.ORDERS[order]
        self.shared(0o664, group=4000, directory_mode=0o2775)
        for turn, user in enumerate((first, second, first)):
            program, _ = self.steady(WRITER, f"turn{turn}", word="open", user=user)
            self.assertEqual(self.go(program), 15 + 10 * turn)
            program.kill()
        self.check(exact=self.acked)

    @each("ab", "root_first", "root_last")
    def scenario_world_writable(self, order):
        first, second = self.ORDERS[order]
        self.shared(0o666, directory_mode=0o1777)
        one, _ = self.steady(WRITER, "one", word="open", user=first.replace("4000", "3001"))
        self.go(one)
        two, _ = self.steady(WRITER, "two", word="open", user=second.replace("4000", "3002"))
        self.assertEqual(self.go(two), 25)
        self.assertEqual(self.go(one), 35)
        two.kill()
        self.go(one)
        one.finish()
        self.check(exact=self.acked)

    def scenario_root_works_on_somebodys_database(self):
        # Somebody runs sudo sqlite3 app.db, while the service runs as its own user.
        os.chown(self.directory, 3001, 3001)
        user = become(3001)
        self.run_program(user + "conn = create(sys.argv[1]); insert(conn, 'service', 10); die()", self.path, code=-9)
        self.run_program("conn = connect(sys.argv[1]); insert(conn, 'root', 10); die()", self.path, code=-9)
        self.run_program(user + "conn = connect(sys.argv[1]); insert(conn, 'again', 10); conn.close()", self.path)
        self.assertEqual(os.stat(self.path).st_uid, 3001)
        self.check(exact=self.acked)


if __name__ == "__main__":
    unittest.main()
