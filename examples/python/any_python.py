"""Duralite in any Python, even if its sqlite3 cannot load extensions.

PYTHONPATH=python/src python3 any_python.py app.db
"""

import sys

import duralite

conn = duralite.connect(sys.argv[1], journal="nvwal", nvram="emulate", isolation_level=None)
conn.execute("PRAGMA synchronous=FULL")
conn.execute("CREATE TABLE IF NOT EXISTS t (a)")
for i in range(100):
    conn.execute("INSERT INTO t VALUES (?)", (i,))  # returns when the row is durable
print(conn.execute("PRAGMA duralite").fetchone()[0])
print(conn.execute("SELECT count(*) FROM t").fetchone()[0])
conn.close()
