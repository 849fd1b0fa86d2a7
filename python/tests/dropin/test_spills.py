"""Transactions that outgrow the cache and roll back to a savepoint."""

import unittest

from . import harness
from .harness import beyond_stock, each


class Spills(harness.Case):
    @each("changed", "new")
    @beyond_stock("SQLite before 3.41 loses what is committed then in a crash: it has written no checksums")
    def scenario_overwritten_in_place_and_cut(self, rows):
        program = """
            conn = create(sys.argv[1])
            conn.execute("PRAGMA wal_autocheckpoint=0")
            conn.execute("PRAGMA cache_size=5")
            conn.execute("CREATE TABLE f (k INTEGER PRIMARY KEY, b BLOB)")
            conn.execute("BEGIN")
            for k in range(200):
                conn.execute("INSERT INTO f VALUES (?, zeroblob(3000))", (k,))
            conn.execute("COMMIT")
            conn.execute("BEGIN")
            conn.execute("INSERT INTO t VALUES ('writer', 0, NULL)")
            conn.execute("SAVEPOINT s")
            first = 0 if sys.argv[2] == "changed" else 1000
            for k in range(first, first + 60):
                conn.execute("REPLACE INTO f VALUES (?, randomblob(3000))", (k,))
            for k in range(first + 40, first + 50):
                conn.execute("UPDATE f SET b = randomblob(3000) WHERE k = ?", (k,))
            conn.execute("ROLLBACK TO s")
            conn.execute("INSERT INTO t VALUES ('writer', 1, NULL)")
            conn.execute("COMMIT")
            ack("writer", 0)
            ack("writer", 1)
            insert(conn, "writer", 5, first=2)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        self.start(program, self.path, rows).finish(-9)
        self.check(exact=self.acked)


if __name__ == "__main__":
    unittest.main()
