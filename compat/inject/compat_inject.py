"""Imported by every Python of the test environment as it starts: see `harness/environment.py`.

Makes Duralite the default VFS of this process's SQLite if COMPAT_SIDE is "duralite", and on both
sides loads the extension that forces WAL mode (`force.c`). What fails here ends the process: a
test must not run on another SQLite than it is counted for.
"""

import os


def load_force(library_path):
    import ctypes

    import duralite

    sqlite = duralite._sqlite_library()
    # The extension stays for as long as the process; so does this reference to it.
    library = ctypes.CDLL(library_path)
    code = sqlite.sqlite3_auto_extension(ctypes.cast(library.compat_force, ctypes.c_void_p))
    if code != 0:
        raise RuntimeError(f"sqlite3_auto_extension failed with code {code}")


def put_memory_into_files():
    """Gives each ":memory:" a new file: most of some suites' databases are there, where no VFS is in the way."""
    import functools
    import itertools
    import sqlite3
    import tempfile

    inner = sqlite3.connect
    number = itertools.count()

    @functools.wraps(inner)
    def connect(database, *arguments, **named):
        if database == ":memory:":
            database = os.path.join(tempfile.gettempdir(), f"memory-{os.getpid()}-{next(number)}.db")
        return inner(database, *arguments, **named)

    sqlite3.connect = sqlite3.dbapi2.connect = connect


def inject():
    import duralite

    side = os.environ["COMPAT_SIDE"]
    if side == "duralite":
        duralite.register()
    elif side != "stock":
        raise RuntimeError(f"COMPAT_SIDE is {side!r}")
    load_force(os.environ["COMPAT_FORCE_LIBRARY"])
    if os.environ.get("COMPAT_MEMORY") == "file":
        put_memory_into_files()


if "COMPAT_SIDE" in os.environ:
    try:
        inject()
    except BaseException as error:  # site.py would report it and go on
        os.write(2, f"compat: cannot inject: {error!r}\n".encode())
        os._exit(70)
