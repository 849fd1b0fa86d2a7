"""Duralite with nothing but the standard library, where sqlite3 has enable_load_extension.

python3 with_load_extension.py target/release/libduralite.so app.db
"""

import sqlite3
import sys
from pathlib import Path
from urllib.parse import quote

library, path = sys.argv[1:]

# A process loads the library once, through any connection.
loader = sqlite3.connect(":memory:")
loader.enable_load_extension(True)
loader.load_extension(library)
loader.close()

uri = f"file:{quote(str(Path(path).resolve()))}?vfs=duralite&journal=nvwal&nvram=emulate"
conn = sqlite3.connect(uri, uri=True, isolation_level=None)
conn.execute("PRAGMA journal_mode=WAL")
conn.execute("PRAGMA synchronous=FULL")
conn.execute("CREATE TABLE IF NOT EXISTS t (a)")
for i in range(100):
    conn.execute("INSERT INTO t VALUES (?)", (i,))  # returns when the row is durable
print(conn.execute("PRAGMA duralite").fetchone()[0])
print(conn.execute("SELECT count(*) FROM t").fetchone()[0])
conn.close()
