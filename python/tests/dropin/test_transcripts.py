"""The same steps, one by one, on stock and on Duralite. Each step must have the same outcome on both."""

import os
import unittest

from . import harness
from .harness import each

#: Random steps of three connections in one process, with the outcome of each. No step waits, so no outcome depends on time.
STEPS = """
import random
path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
create(path).close()
conns = [connect(path, timeout=0) for _ in range(3)]
n = 0

def shown(what, value):
    if what == "error":
        return [value.sqlite_errorname, str(value)]
    return ["ok", repr(value)]

def run(conn, sql, *arguments):
    return shown(*attempt(lambda: conn.execute(sql, arguments).fetchall()))

for step in range(count):
    i = chance.randrange(3)
    conn = conns[i]
    kind = chance.choices(
        ["insert", "select", "begin", "immediate", "exclusive", "commit", "rollback", "savepoint", "release", "back",
         "update", "delete", "checkpoint", "reopen", "big", "mode", "version", "ddl", "vacuum", "pages"],
        [20, 15, 6, 6, 1, 12, 4, 3, 3, 3, 6, 4, 4, 3, 3, 1, 3, 2, 1, 2])[0]
    if kind == "insert":
        n += 1
        found = run(conn, "INSERT INTO t VALUES ('w', ?, ?)", n, bytes(chance.randrange(200)))
    elif kind == "select":
        found = run(conn, "SELECT count(*), total(n), total(length(pad)) FROM t")
    elif kind == "checkpoint":
        mode = chance.choice(["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
        found = shown(*attempt(lambda: conn.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0]))
    elif kind == "reopen":
        conn.close()
        found = shown(*attempt(lambda: connect(path, timeout=0)))[:1]
        what, conn = attempt(connect, path, timeout=0)
        found = ["ok"] if what == "ok" else shown(what, conn)
        conns[i] = conn if what == "ok" else connect(path, wal=False, timeout=0)
    elif kind == "big":
        found = run(conn, "INSERT INTO t SELECT 'big', ifnull((SELECT max(n) FROM t WHERE who='big'), 0) + value, zeroblob(900)"
                    " FROM (WITH RECURSIVE c(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM c WHERE value < 60)"
                    " SELECT value FROM c)")
    else:
        sql = {"begin": "BEGIN", "immediate": "BEGIN IMMEDIATE", "exclusive": "BEGIN EXCLUSIVE", "commit": "COMMIT",
               "rollback": "ROLLBACK", "savepoint": "SAVEPOINT s", "release": "RELEASE s", "back": "ROLLBACK TO s",
               "update": f"UPDATE t SET pad = zeroblob({chance.randrange(500)}) WHERE n % 7 = {chance.randrange(7)}",
               "delete": f"DELETE FROM t WHERE n % 11 = {chance.randrange(11)}",
               "mode": f"PRAGMA journal_mode={chance.choice(['DELETE', 'WAL', 'TRUNCATE'])}",
               "version": f"PRAGMA user_version={step}",
               "ddl": chance.choice(["CREATE TABLE IF NOT EXISTS u (a)", "DROP TABLE IF EXISTS u", "CREATE INDEX i ON t (n)"]),
               "vacuum": "VACUUM", "pages": "PRAGMA page_count"}[kind]
        found = run(conn, sql)
    say("step", step, i, kind, *found)
for conn in conns:
    conn.close()
conn = connect(path, wal=False)
say("end", conn.execute("SELECT count(*), total(n), total(length(pad)) FROM t").fetchone(),
    conn.execute("PRAGMA integrity_check").fetchone(), conn.execute("PRAGMA user_version").fetchone())
conn.close()
"""

#: Ways to open a database, with the outcome of each.
OPENS = """
path = sys.argv[1]

def look(name, target=path, before=None, **parameters):
    def work():
        conn = connect(target, wal=False, timeout=0, **parameters)
        found = [conn.execute("SELECT count(*) FROM t").fetchone()[0]]
        found.append(attempt(conn.execute, "INSERT INTO t VALUES (?, 1, NULL)", (name,))[0])
        conn.close()
        return found
    what, value = attempt(work)
    say("open", name, what, value.sqlite_errorname if what == "error" else value)

create(path).close()
look("plain")
look("ro", mode="ro")
look("rw", mode="rw")
look("rwc", mode="rwc")
look("missing", path + ".none", mode="rw")
look("missing_ro", path + ".none", mode="ro")
look("immutable", immutable=1)
look("shared", cache="shared")
look("private", cache="private")
look("psow", psow=0)
look("memory", mode="memory")
look("directory", os.path.dirname(path))
look("no_directory", path + "/none/app.db")
with open(path + ".text", "w") as file:
    file.write("this is no database, whatever it is " * 100)
look("text", path + ".text")
open(path + ".empty", "w").close()
look("empty", path + ".empty")
with open(path + ".short", "w") as file:
    file.write("short")
look("short", path + ".short")
os.symlink(path + ".nowhere", path + ".dangling")
look("dangling", path + ".dangling", mode="rw")
held = connect(path)
rows(held)
look("beside", path)
look("ro_beside", mode="ro")
look("shared_beside", cache="shared")
held.execute("BEGIN IMMEDIATE")
look("beside_a_writer", path)
held.execute("COMMIT")
held.close()
names = sorted(os.listdir(os.path.dirname(path)))
say("files", *names)
"""

#: What a connection reports about itself and its database.
ABOUT = """
path = sys.argv[1]
conn = create(path)
for name in ("journal_mode", "synchronous", "locking_mode", "page_size", "page_count", "freelist_count", "wal_autocheckpoint",
             "journal_size_limit", "encoding", "auto_vacuum", "cache_size", "mmap_size", "secure_delete", "application_id",
             "database_list", "quick_check", "foreign_key_check", "schema_version", "data_version", "read_uncommitted"):
    say("pragma", name, conn.execute(f"PRAGMA {name}").fetchall())
other = connect(path)
insert(other, "x", 3)
say("version", conn.execute("PRAGMA data_version").fetchone())
for mode in ("OFF", "NORMAL", "FULL", "EXTRA"):
    conn.execute(f"PRAGMA synchronous={mode}")
    insert(conn, mode, 3)
say("changes", conn.total_changes)
blob = conn.execute("INSERT INTO t VALUES ('blob', 1, zeroblob(100000))").lastrowid
with conn.blobopen("t", "pad", blob) as handle:
    for n in range(0, 100000, 5000):
        handle[n] = n % 251
    handle.seek(50000)
    handle.write(bytes(range(256)))
say("blob", sum(other.execute("SELECT pad FROM t WHERE who = 'blob'").fetchone()[0]))
say("image", len(conn.serialize()) % 4096)
copy = sqlite3.connect(":memory:")
copy.deserialize(conn.serialize())
say("copy", attempt(rows, copy)[0])
script = "\\n".join(conn.iterdump())
say("dump", len(script))
conn.set_progress_handler(lambda: 1, 1000)
say("interrupted", attempt(lambda: conn.execute("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c").fetchall())[1])
conn.set_progress_handler(None, 0)
say("constraint", attempt(conn.execute, "INSERT INTO t VALUES ('x', 1, NULL)")[1])
conn.execute("PRAGMA foreign_keys=ON")
conn.execute("PRAGMA cache_spill=1")
conn.execute("PRAGMA temp_store=FILE")
conn.execute("CREATE TEMP TABLE big AS SELECT * FROM t")
say("temp", rows(conn, "big"))
for name in ("optimize", "shrink_memory", "analysis_limit", "wal_checkpoint", "incremental_vacuum", "journal_size_limit=1000",
             "max_page_count", "max_page_count=100", "hard_heap_limit", "threads"):
    found = conn.execute(f"PRAGMA {name}").fetchall()
    say("pragma", name, found if name != "wal_checkpoint" else found[0][0])
say("full", attempt(conn.execute, "INSERT INTO t VALUES ('full', 1, zeroblob(9000000))")[1])
say("rows", rows(conn), rows(other))
other.close()
conn.close()
"""


class Transcripts(harness.Case):
    def both(self, program, *arguments):
        """Runs the program at the same path on stock and on the engine. Returns the lines of both."""
        found = []
        for engine in ("stock", self.engine):
            self.acked.clear()
            for name in os.listdir(self.directory):
                (self.directory / name).unlink()
            found.append(self.run_program(program, self.path, *arguments, engine=engine))
        return found

    def compare(self, program, *arguments):
        stock, engine = self.both(program, *arguments)
        for n, (expected, found) in enumerate(zip(stock, engine)):
            before = "\n".join(" ".join(words) for words in stock[max(0, n - 12) : n])
            self.assertEqual(found, expected, f"{arguments}: after\n{before}")
        self.assertEqual(len(stock), len(engine))
        self.check()

    @each(1, 2, 3, 4, 5, 6)
    def scenario_steps(self, number):
        first = int(os.environ.get("DROPIN_SEED", "0"))
        stock, engine = self.both(STEPS, first + number, 250)
        for n, (expected, found) in enumerate(zip(stock, engine)):
            if found != expected:
                before = "\n".join(" ".join(words) for words in stock[max(0, n - 25) : n])
                self.fail(f"seed {first + number}: {found} instead of {expected}, after\n{before}")
        self.assertEqual(len(stock), len(engine))
        self.check()

    def scenario_opens(self):
        self.compare(OPENS)

    def scenario_about(self):
        self.compare(ABOUT)


if __name__ == "__main__":
    unittest.main()
