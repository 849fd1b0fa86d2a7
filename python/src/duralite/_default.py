"""Duralite as the default VFS of a process, through the C interface of the SQLite that Python uses."""

import ctypes
import os

#: How long setting WAL mode waits for another program's lock, in milliseconds. sqlite3.connect waits as long by default.
BUSY_MILLISECONDS = 5000

#: The function that SQLite calls at each open. SQLite identifies an automatic extension by its address, so there is only one.
_at_open = None


def variables(settings, text):
    """The environment variables of settings; `text` turns a value into a string."""
    return {f"DURALITE_{name.upper()}": os.fsdecode(text(value)) for name, value in settings.items()}


def make_default(sqlite, name):
    """Makes the registered VFS of that name the default."""
    code = sqlite.sqlite3_vfs_register(sqlite.sqlite3_vfs_find(name.encode()), 1)
    if code != 0:
        raise OSError(f"sqlite3_vfs_register failed with code {code}")


def set_wal_at_open(sqlite, wanted):
    """From now on, sets each database file to WAL mode when it is opened, or stops doing so."""
    global _at_open
    if _at_open is None:
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        _at_open = prototype(lambda handle, *_: _set_wal(sqlite, handle))
    entry = ctypes.cast(_at_open, ctypes.c_void_p)
    change = sqlite.sqlite3_auto_extension if wanted else sqlite.sqlite3_cancel_auto_extension
    change(entry)


def _set_wal(sqlite, handle):
    """Does not let the open fail: a database that cannot be set to WAL mode can be read, and in strict mode its first write
    is refused."""
    if sqlite.sqlite3_db_filename(handle, b"main") and sqlite.sqlite3_db_readonly(handle, b"main") == 0:
        sqlite.sqlite3_busy_timeout(handle, BUSY_MILLISECONDS)
        sqlite.sqlite3_exec(handle, b"PRAGMA journal_mode=WAL", None, None, None)
    return 0
