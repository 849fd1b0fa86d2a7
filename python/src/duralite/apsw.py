"""Duralite with apsw. The program installs apsw, which contains a SQLite of its own."""

import threading

import apsw

import duralite
from duralite import run

__all__ = ["connect", "register", "run"]

_registering = threading.Lock()


def register():
    """Registers the VFS with apsw's SQLite. Further calls do no harm."""
    with _registering:
        if duralite.VFS_NAME not in apsw.vfs_names():
            loader = apsw.Connection(":memory:")
            try:
                duralite.load(loader)
            finally:
                loader.close()


def connect(path, wal=True, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, **settings):
    """Opens a database through Duralite and returns an apsw.Connection.

    WAL mode, strictness and settings are those of `duralite.connect`. Of apsw's own arguments it takes only the
    flags. Raises apsw.Error if Duralite refuses; `duralite.last_error` gives the reason.
    """
    register()
    wal = wal and duralite._takes_a_log(path, settings) and not flags & apsw.SQLITE_OPEN_READONLY
    if wal:
        settings.setdefault("strict", True)
    conn = apsw.Connection(duralite._uri(path, settings), flags=flags | apsw.SQLITE_OPEN_URI)
    try:
        if wal and (mode := conn.execute("PRAGMA journal_mode=WAL").fetchone()[0]) != "wal":
            raise apsw.CantOpenError(f"the database stays in journal mode {mode}")
    except BaseException:
        conn.close()
        raise
    return conn
