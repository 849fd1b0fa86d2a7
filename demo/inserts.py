"""One durable SQLite transaction per line of Debian's UnicodeData.txt.

Imported by demo.py for the timed runs; run as a program it is the process that is traced, or
killed in the middle of its work.
"""

import argparse
import json
import os
import signal
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "src"))

import duralite  # noqa: E402

SOURCE = Path("/usr/share/unicode/UnicodeData.txt")
SCHEMA = """
CREATE TABLE IF NOT EXISTS characters (
    line INTEGER PRIMARY KEY, code TEXT NOT NULL, name TEXT NOT NULL, category TEXT NOT NULL, rest TEXT NOT NULL)
"""
INSERT = "INSERT INTO characters VALUES (?, ?, ?, ?, ?)"
SELECT = "SELECT line, code, name, category, rest FROM characters ORDER BY line"
ACK_BYTES = 4


@dataclass(frozen=True)
class Mode:
    """A way to commit. Everything not said here is as SQLite ships it."""

    label: str
    duralite: bool = False
    engine: str | None = None
    exclusive: bool = False
    checkpoints: bool = True
    journal_mode: str = "WAL"


MODES = {
    "cold": Mode("stock WAL, log growing (cold)", checkpoints=False),
    "warm": Mode("stock WAL, log recycled (warm)"),
    "waldio": Mode("Duralite, nothing else set (waldio)", duralite=True),
    "nvwal": Mode("Duralite nvwal", duralite=True, engine="nvwal"),
    "exclusive": Mode("Duralite nvwal, exclusive", duralite=True, engine="nvwal", exclusive=True),
    "ppl": Mode("Duralite ppl", duralite=True, engine="ppl"),
    "scratchpad": Mode("Duralite scratchpad", duralite=True, engine="scratchpad"),
    "rollback": Mode("stock DELETE (rollback journal)", journal_mode="DELETE"),
    "scratchpad-delete": Mode("Duralite scratchpad, DELETE", duralite=True, engine="scratchpad", journal_mode="DELETE"),
}
# The database in memory too, which is emulated like the log's.
MEMORY = {"scratchpad": {"scratchpad": "emulate", "home": "emulate"}}


def read_rows(limit=None):
    """The lines of the file as rows, numbered from 1."""
    with open(SOURCE, encoding="utf-8") as file:
        lines = file.read().splitlines()[:limit]
    return [(number, *line.split(";", 3)) for number, line in enumerate(lines, 1)]


def connect(mode, path, pool, checkpoints=True):
    """Opens a database: synchronous=FULL, one transaction per statement."""
    if mode.duralite and not mode.engine:
        conn = duralite.connect(path, wal=False, isolation_level=None)
    elif mode.duralite:
        memory = MEMORY.get(mode.engine, {"nvram": "emulate"})
        conn = duralite.connect(path, wal=False, journal=mode.engine, nvram_dir=pool, isolation_level=None, **memory)
    else:
        conn = sqlite3.connect(path, isolation_level=None)
    if mode.exclusive:
        conn.execute("PRAGMA locking_mode=EXCLUSIVE")
    conn.execute(f"PRAGMA journal_mode={mode.journal_mode}")
    conn.execute("PRAGMA synchronous=FULL")
    if not (checkpoints and mode.checkpoints):
        conn.execute("PRAGMA wal_autocheckpoint=0")
    conn.execute(SCHEMA)
    return conn


def counters(conn):
    """PRAGMA duralite as a dictionary; empty on stock SQLite."""
    row = conn.execute("PRAGMA duralite").fetchone()
    return dict(line.split("\t", 1) for line in row[0].splitlines()) if row else {}


def insert_and_acknowledge(conn, rows, ack_fd):
    """Inserts row after row; each number goes down the pipe once its commit has returned."""
    for row in rows:
        conn.execute(INSERT, row)
        if ack_fd is not None:
            os.write(ack_fd, row[0].to_bytes(ACK_BYTES, "little"))


def examine(conn, rows):
    """What a database holds, compared with the file it was filled from."""
    found = conn.execute(SELECT).fetchall()
    return {
        "rows": len(found),
        "as_in_file": found == rows[: len(found)],
        "integrity": conn.execute("PRAGMA integrity_check").fetchone()[0],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("database")
    parser.add_argument("pool")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--ack-fd", type=int)
    parser.add_argument("--resume", action="store_true", help="report what is there, go on, and die without closing")
    options = parser.parse_args()
    # An interrupt from the keyboard is for the parent, which ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    rows = read_rows(options.rows)
    conn = connect(MODES[options.mode], options.database, options.pool, checkpoints=options.ack_fd is not None)
    if options.resume:
        report = examine(conn, rows)
        print(json.dumps(report), flush=True)
        rows = rows[report["rows"] :]
    insert_and_acknowledge(conn, rows, options.ack_fd)
    if options.resume:
        os.kill(os.getpid(), signal.SIGKILL)
    if options.ack_fd is not None:
        signal.pause()  # the kill is on its way
    conn.close()


if __name__ == "__main__":
    main()
