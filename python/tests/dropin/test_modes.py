"""Locking modes, journal modes, checkpoints, VACUUM, backups, several files, and what crashes leave."""

import os
import random
import unittest

from . import harness
from .harness import beyond_stock, each

STEADY = """
conn = connect(sys.argv[1], timeout=2, wal=False)
conn.execute(TABLE)
rows(conn)
say("open")
n = 0
while hear():
    insert(conn, sys.argv[2], 5, first=n)
    n += 5
    say("rows", rows(conn))
conn.close()
"""

#: Modes in which a journal without content stays beside a closed database.
KEEP_A_JOURNAL = ("persist", "truncate")

EXCLUSIVE = """
conn = connect(sys.argv[1], wal=False)
conn.execute("PRAGMA locking_mode=EXCLUSIVE")
insert(conn, "exclusive", 10)
say("mode", conn.execute("PRAGMA journal_mode=WAL").fetchone()[0])
insert(conn, "exclusive", 10, first=10)
say("rows", rows(conn))
conn.close()
"""


class Leftovers(harness.Case):
    @each("wal", "hot_journal", "own_log")
    def scenario_exclusive_over_a_leftover(self, what):
        if what == "wal":
            self.create_and_kill(engine="stock")
        elif what == "own_log":
            self.create_and_kill()
        else:
            self.leave_a_hot_journal()
        lines = self.run_program(EXCLUSIVE, self.path)
        self.assertEqual(lines, [["mode", "wal"], ["rows", str(len(self.acked))]])
        self.check(exact=self.acked)

    def leave_a_hot_journal(self):
        program = """
            conn = connect(sys.argv[1], wal=False)
            conn.execute("PRAGMA journal_mode=DELETE")
            conn.execute("PRAGMA cache_size=5")
            conn.execute(TABLE)
            insert(conn, "base", 20, pad=bytes(500))
            conn.execute("BEGIN")
            for n in range(200):
                conn.execute("INSERT INTO t VALUES ('never', ?, randomblob(2000))", (n,))
            die()
        """
        self.run_program(program, self.path, code=-9, engine="stock")

    @each("wal", "hot_journal")
    def scenario_leftover_of_stock(self, what):
        if what == "wal":
            self.create_and_kill(engine="stock")
        else:
            self.leave_a_hot_journal()
        self.run_program("conn = connect(sys.argv[1]); insert(conn, 'next', 10); conn.close()", self.path)
        self.check(exact=self.acked)

    @each("open_only", "read_only", "after_checkpoint", "in_transaction", "twice")
    def scenario_killed(self, when):
        # The next clean close removes whatever a killed process has left.
        last = {
            "open_only": "conn = connect(sys.argv[1]); die()",
            "read_only": "conn = connect(sys.argv[1]); rows(conn); die()",
            "after_checkpoint": "conn = connect(sys.argv[1]); insert(conn, 'a', 9);"
            "conn.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall(); die()",
            "in_transaction": "conn = connect(sys.argv[1]); conn.execute('BEGIN IMMEDIATE');"
            "conn.execute('DELETE FROM t'); die()",
            "twice": "conn = connect(sys.argv[1]); insert(conn, 'b', 5); die()",
        }[when]
        self.create(rows=5)
        if when == "twice":
            self.create_and_kill(rows=0)
        self.run_program(last, self.path, code=-9)
        self.check(exact=self.acked)

    @each("random", "zeroes")
    def scenario_first_sector_is_garbled(self, how):
        # The database as a checkpoint leaves it when the power fails; page 1 is in the log.
        program = """
            conn = connect(sys.argv[1])
            insert(conn, "log", 20)
            conn.execute("CREATE TABLE more (a)")
            conn.execute("INSERT INTO more VALUES (1)")
            insert(conn, "log", 5, first=20)
            die()
        """
        self.create(rows=5)
        self.run_program(program, self.path, code=-9)
        garbage = random.Random(8).randbytes(512) if how == "random" else bytes(512)
        with open(self.path, "r+b") as file:
            good = file.read(512)
            file.seek(0)
            file.write(garbage)
        if self.engine == "ppl":
            # No crash of `ppl` leaves this: what it writes into the database stays in the log until the database is durable. So
            # this is damage, and is reported.
            (line,) = self.run_program("say(*attempt(lambda: rows(connect(sys.argv[1], wal=False))))", self.path)
            self.assertEqual(line[0], "error", line)
            with open(self.path, "r+b") as file:
                file.write(good)
        self.check(exact=self.acked)


class JournalModes(harness.Case):
    @each("delete", "truncate", "persist", "memory", "off")
    def scenario_alone(self, mode):
        program = """
            path, mode = sys.argv[1:]
            conn = create(path)
            for turn in range(3):
                insert(conn, f"wal{turn}", 5)
                say("mode", conn.execute(f"PRAGMA journal_mode={mode}").fetchone()[0])
                insert(conn, f"other{turn}", 5)
                say("mode", conn.execute("PRAGMA journal_mode=WAL").fetchone()[0])
            conn.execute(f"PRAGMA journal_mode={mode}")
            insert(conn, "end", 5)
            conn.close()
        """
        lines = self.run_program(program, self.path, mode)
        self.assertEqual(lines, [["mode", mode], ["mode", "wal"]] * 3)
        self.check(exact=self.acked, clean=mode not in KEEP_A_JOURNAL)

    @each("delete", "truncate", "persist")
    def scenario_beside_others(self, mode):
        # The mode cannot change while others are connected, and changes after they have gone. No process loses a row.
        self.create()
        other = self.start(STEADY, self.path, "other")
        other.expect("open")
        program = """
            path, mode = sys.argv[1:]
            conn = connect(path, timeout=0.2)
            for turn in range(3):
                say("turn")
                hear()
                insert(conn, "switch", 5, first=5 * turn)
                what, value = attempt(lambda: conn.execute(f"PRAGMA journal_mode={mode}").fetchone()[0])
                say("mode", what, value)
            say("turn")
            hear()
            say("mode", conn.execute(f"PRAGMA journal_mode={mode}").fetchone()[0])
            say("turn")
            hear()
            say("rows", rows(conn))
            conn.close()
        """
        switch = self.start(program, self.path, mode)
        for _ in range(3):
            other.tell()
            other.expect("rows")
            switch.expect("turn")
            switch.tell()
            found = switch.expect("mode")
            self.assertTrue(found[0] == "error" or found[1] == "wal", found)
        other.finish()
        switch.expect("turn")
        switch.tell()
        self.assertEqual(switch.expect("mode"), [mode])
        other = self.start(STEADY, self.path, "again")
        other.expect("open")
        other.tell()
        other.expect("rows")
        switch.expect("turn")
        switch.tell()
        self.assertEqual(switch.expect("rows"), [str(len(self.acked))])
        switch.finish()
        other.tell()
        other.expect("rows")
        other.finish()
        self.check(exact=self.acked, clean=mode not in KEEP_A_JOURNAL)

    @each("delete", "truncate", "persist")
    def scenario_first_thing_after_a_kill(self, mode):
        program = """
            conn = connect(sys.argv[1], wal=False)
            say("mode", conn.execute(f"PRAGMA journal_mode={sys.argv[2]}").fetchone()[0])
            insert(conn, "after", 5)
            conn.close()
        """
        self.create_and_kill()
        self.assertEqual(self.run_program(program, self.path, mode), [["mode", mode]])
        self.check(exact=self.acked, clean=mode not in KEEP_A_JOURNAL)

    def scenario_exclusive_and_back(self):
        program = """
            path = sys.argv[1]
            conn = create(path)
            for turn in range(3):
                conn.execute("PRAGMA locking_mode=EXCLUSIVE")
                insert(conn, f"alone{turn}", 5)
                what, error = attempt(lambda: rows(connect(path, timeout=0, wal=False)))
                assert what == "error", "somebody got in"
                conn.execute("PRAGMA locking_mode=NORMAL")
                rows(conn)
                own(path, f"shared{turn}", 5)
            say("rows", rows(conn))
            conn.close()
        """
        self.assertEqual(self.run_program(program, self.path), [["rows", "30"]])
        self.check(exact=self.acked)


class Maintenance(harness.Case):
    @each("passive", "full", "restart", "truncate")
    def scenario_checkpoint(self, mode):
        program = """
            path, mode = sys.argv[1:]
            conn = create(path, timeout=0.2)
            reader = connect(path)
            for turn in range(4):
                insert(conn, f"turn{turn}", 20, pad=bytes(300))
                if turn == 2:
                    reader.execute("BEGIN")
                    rows(reader)
                    insert(conn, "more", 20)
                busy, log, done = conn.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
                assert done <= log and (turn >= 2 or not busy), (busy, log, done)
                assert turn < 2 or mode in ("passive",) or busy, "a checkpoint overtook a reader"
            assert rows(reader) == 60, rows(reader)
            reader.execute("COMMIT")
            busy, log, done = conn.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            assert not busy and log == done, (busy, log, done)
            if mode == "truncate":
                assert log == 0, log
            insert(conn, "end", 20)
            say("rows", rows(reader), rows(conn))
            reader.close()
            conn.close()
        """
        self.assertEqual(self.run_program(program, self.path, mode), [["rows", "120", "120"]])
        self.check(exact=self.acked)

    @each("delete", "truncate", "persist")
    def scenario_modes_beside_an_idle_connection(self, mode):
        # The idle connection holds no lock, and has run a transaction in this mode.
        program = """
            path, mode = sys.argv[1:]
            idle = connect(path, wal=False)
            idle.execute(f"PRAGMA journal_mode={mode}").fetchone()
            idle.execute(TABLE)
            insert(idle, "idle", 2)
            conn = connect(path)
            insert(conn, "wal", 5)
            assert conn.execute(f"PRAGMA journal_mode={mode}").fetchone()[0] == mode
            insert(conn, "undo", 5)
            insert(idle, "idle", 2, first=2)
            assert rows(conn) == 14
            conn.execute("PRAGMA page_size=16384")
            conn.execute("VACUUM")
            assert conn.execute("PRAGMA journal_mode=WAL").fetchone()[0] == "wal"
            insert(conn, "wal", 5, first=5)
            assert rows(connect(path, wal=False)) == 19
            insert(idle, "idle", 2, first=4)
            say("rows", rows(conn), rows(idle))
            conn.close()
            idle.close()
        """
        self.assertEqual(self.run_program(program, self.path, mode), [["rows", "21", "21"]])
        self.check(exact=self.acked)

    @each("plain", "page_size", "auto_vacuum", "beside_readers")
    def scenario_vacuum(self, how):
        program = """
            path, how = sys.argv[1:]
            conn = create(path)
            insert(conn, "base", 300, pad=bytes(1500))
            conn.execute("DELETE FROM t WHERE n % 3 = 0")
            reader = connect(path)
            if how == "page_size":
                # Outside WAL mode, as SQLite documents.
                reader.close()
                conn.execute("PRAGMA journal_mode=DELETE")
                conn.execute("PRAGMA page_size=16384")
            elif how == "auto_vacuum":
                conn.execute("PRAGMA auto_vacuum=INCREMENTAL")
            elif how == "beside_readers":
                cursor = reader.execute("SELECT n FROM t")
                cursor.fetchone()
            conn.execute("VACUUM")
            if how == "page_size":
                conn.execute("PRAGMA journal_mode=WAL")
                reader = connect(path)
                assert conn.execute("PRAGMA page_size").fetchone()[0] == 16384
            elif how == "beside_readers":
                assert len(cursor.fetchall()) == 199
            conn.execute("DELETE FROM t WHERE n % 3 = 1")
            conn.execute("PRAGMA incremental_vacuum").fetchall()
            conn.execute("VACUUM")
            say("rows", rows(conn), rows(reader))
            reader.close()
            conn.close()
        """
        self.assertEqual(self.run_program(program, self.path, how), [["rows", "100", "100"]])
        self.check(exact={row for row in self.acked if row[1] % 3 == 2})

    @each("out", "in", "steps_beside_a_writer")
    def scenario_backup(self, how):
        program = """
            path, how = sys.argv[1:]
            copy = path + ".copy"
            conn = create(path)
            insert(conn, "base", 200, pad=bytes(1000))
            if how == "out":
                target = sqlite3.connect(copy)
                conn.backup(target)
            elif how == "in":
                # While a reader is connected, the database is overwritten by another of a different size.
                source = create(copy)
                for n in range(400):
                    source.execute("INSERT INTO t VALUES ('copy', ?, ?)", (n, bytes(800)))
                reader = connect(path)
                assert rows(reader) == 200
                source.backup(conn)
                say("rows", rows(reader))
                reader.close()
                source.close()
                conn.close()
                sys.exit()
            else:
                target, writer = connect(copy), connect(path)
                steps = iter(range(1000))
                conn.backup(target, pages=7, sleep=0,
                            progress=lambda *_: insert(writer, "during", 1, first=next(steps)) if rows(writer) < 230 else None)
                writer.close()
            say("rows", rows(target))
            assert target.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            target.close()
            conn.close()
        """
        (line,) = self.run_program(program, self.path, how)
        self.assertEqual(line, ["rows", {"out": "200", "in": "400"}.get(how, "230")])
        self.check(exact={("copy", n) for n in range(400)} if how == "in" else self.acked)

    @each("wal_wal", "wal_delete", "delete_wal", "three")
    def scenario_several_files(self, modes):
        program = """
            path = sys.argv[1]
            modes = {"wal_wal": ("wal", "wal"), "wal_delete": ("wal", "delete"), "delete_wal": ("delete", "wal"),
                     "three": ("delete", "wal", "delete")}[sys.argv[2]]
            conn = connect(path, wal=False)
            names = ["main", "b", "c"][: len(modes)]
            for name, mode in zip(names, modes):
                if name != "main":
                    conn.execute(f"ATTACH ? AS {name}", (uri(path + name),))
                conn.execute(f"PRAGMA {name}.journal_mode={mode}")
                conn.execute(TABLE.replace("EXISTS t", f"EXISTS {name}.t"))
            for n in range(60):
                conn.execute("BEGIN")
                for name in names:
                    conn.execute(f"INSERT INTO {name}.t VALUES ('w', ?, NULL)", (n,))
                conn.execute("ROLLBACK" if n % 5 == 4 else "COMMIT")
                if n % 5 != 4:
                    ack("w", n)
            if len(sys.argv) > 3:
                die()
            conn.close()
        """
        self.run_program(program, self.path, modes, "kill", code=-9)
        for name in ("b", "c")[: 2 if modes == "three" else 1]:
            self.assertEqual(self.contents(f"{self.path}{name}"), self.acked)
        self.check(exact=self.acked)
        self.assertLessEqual(set(os.listdir(self.directory)), {"app.db", "app.dbb", "app.dbc"})

    @each(0, 65536, 1 << 28)
    def scenario_mmap(self, size):
        program = """
            path, size = sys.argv[1:]
            one, two = create(path), connect(path)
            for conn in (one, two):
                conn.execute(f"PRAGMA mmap_size={size}").fetchone()
            for turn in range(10):
                insert(one, f"one{turn}", 10, pad=bytes(2000))
                assert rows(two) == 20 * turn + 10
                insert(two, f"two{turn}", 10, pad=bytes(2000))
                assert rows(one) == 20 * turn + 20
                one.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                two.execute("UPDATE t SET pad = randomblob(700) WHERE n = ?", (turn,))
            one.execute("DELETE FROM t WHERE n > 4")
            one.execute("VACUUM")
            say("rows", rows(two), two.execute("PRAGMA integrity_check").fetchone()[0])
            two.close()
            one.close()
        """
        self.assertEqual(self.run_program(program, self.path, size), [["rows", "100", "ok"]])
        self.check(exact={row for row in self.acked if row[1] <= 4})

    @beyond_stock("the point is the engine's own state")
    def scenario_stock_works_on_it_between(self):
        # Duralite, then stock, then Duralite again. Each closes before the next opens.
        for turn in range(4):
            text = "conn = connect(sys.argv[1]); conn.execute(TABLE); insert(conn, sys.argv[2], 10); conn.close()"
            self.run_program(text, self.path, f"turn{turn}", engine="stock" if turn % 2 else None)
        self.check(exact=self.acked)


if __name__ == "__main__":
    unittest.main()
