"""Loads the Duralite SQLite extension.

`connect` opens a database through the VFS named ``duralite``. `register` makes that VFS known to the SQLite library of this
process. `load` does so through one connection, in Pythons that have ``enable_load_extension``. `enable` makes it the default
VFS. A registration lasts until the process ends. `run` runs a transaction, and runs it again if another connection has
overtaken it.
"""

import ctypes
import functools
import os
import sqlite3
import threading
from pathlib import Path
from urllib.parse import quote

from duralite import _default
from duralite._retry import explicit_transactions, run

__all__ = [
    "Connection",
    "Cursor",
    "LibraryNotFound",
    "connect",
    "enable",
    "last_error",
    "library_version",
    "load",
    "loadable_path",
    "register",
    "run",
]

#: The version of this package; `library_version` is the version of the library that it found.
__version__ = "0.1.0"

LIBRARY_NAME = "libduralite.so"
AUTO_ENTRY_POINT = "sqlite3_duralite_auto"
VFS_NAME = "duralite"

#: Arguments of `connect` that are meant for `sqlite3.connect`; all others are URI parameters.
CONNECT_ARGUMENTS = frozenset(
    "timeout detect_types isolation_level check_same_thread factory cached_statements autocommit".split()
)

_registering = threading.Lock()
_registered = False
_library = None
#: The number of refusals in this process. Once the library is loaded, this is its own counter.
_count = ctypes.c_uint64(0)


class LibraryNotFound(FileNotFoundError):
    """There is no libduralite.so where the package looked for it."""


def loadable_path():
    """The path of libduralite.so.

    It is the one that the environment variable DURALITE_LIBRARY names, or the one in this package, or the one that `make build`
    left in the source tree to which this package belongs.
    """
    named = os.environ.get("DURALITE_LIBRARY")
    here = Path(__file__).resolve().parent
    places = [Path(named)] if named else [here / LIBRARY_NAME, *_built_libraries(here)]
    for place in places:
        if place.is_file():
            return str(place.resolve())
    searched = ", ".join(str(place) for place in places)
    hint = "it is what DURALITE_LIBRARY names" if named else "build it with `make build`, or set DURALITE_LIBRARY"
    raise LibraryNotFound(f"{LIBRARY_NAME} is not at {searched}: {hint}")


def _built_libraries(here):
    """The place where a build leaves the library, if this file is in python/src of the source tree."""
    package, source, python = here.name, here.parent.name, here.parent.parent.name
    if (package, source, python) == ("duralite", "src", "python"):
        yield here.parents[2] / "target" / "release" / LIBRARY_NAME


def load(conn):
    """Registers the VFS through a connection.

    The connection itself keeps the VFS with which it was opened. Raises AttributeError in a Python without
    ``enable_load_extension``; `register` works there too.
    """
    path = loadable_path()
    conn.enable_load_extension(True)
    try:
        conn.load_extension(path)
    finally:
        conn.enable_load_extension(False)


def register():
    """Registers the VFS with the SQLite that the sqlite3 module uses. Further calls do no harm."""
    global _registered, _library, _count
    with _registering:
        if _registered:
            return
        if hasattr(sqlite3.Connection, "enable_load_extension"):
            conn = sqlite3.connect(":memory:")
            try:
                load(conn)
            finally:
                conn.close()
        else:
            _register_by_auto_extension()
        _library = _library or _load_library()
        _count = _library.duralite_refusal_count().contents
        _registered = True


def enable(wal=False, **settings):
    """Makes Duralite the default VFS of this process: code that opens databases by plain name uses it from now on.

    With ``strict=True``, the default, it is an error if plain SQLite would have to serve a database. A database that is not in
    WAL mode, such as a new one, can be read. Its first write fails with "attempt to write a readonly database", with the reason
    in `last_error`, until the program runs ``PRAGMA journal_mode=WAL``. With ``wal=True``, each database file that is opened
    for writing is set to WAL mode when it is opened. If that fails, as when another program holds the file locked, the first
    write is refused as before. In-memory and temporary databases do not change, and neither do connections that were opened
    before the call.

    Settings are those of `connect`; they go into the environment of this process (``DURALITE_JOURNAL`` …), so that child
    processes which load the library have them too. A wrong one fails each open. Every commit is as durable as the settings
    say; without any, as SQLite's own in WAL mode with ``synchronous=FULL``. Raises LibraryNotFound, or
    sqlite3.NotSupportedError in a Python whose SQLite hides its functions.
    """
    os.environ.update(_default.variables({"strict": True, **settings}, _text))
    register()
    sqlite = _sqlite_library()
    _default.make_default(sqlite, VFS_NAME)
    _default.set_wal_at_open(sqlite, wal)


def library_version():
    """The library's version, and the build id in brackets if it has one: ``0.1.0 (9f86d08)``."""
    return (_library or _load_library()).duralite_version().decode()


def connect(path, wal=True, **settings):
    """Opens a database through Duralite, in WAL mode, and returns an ordinary sqlite3.Connection.

    With ``strict="on"``, the default, it is an error if plain SQLite would have to serve the database: in another journal mode,
    or on a file system that cannot carry a log. With ``wal=False`` the journal mode stays unchanged, and `strict` is off unless
    it is given. The same holds if nothing can be written (``mode="ro"``, ``immutable``), for ``:memory:``, and with
    ``journal="off"``.

    Settings are URI parameters: ``journal="nvwal"``, ``nvram="emulate"``, ``sync="lazy"``, and SQLite's own, such as
    ``mode="ro"``. True and False become ``on`` and ``off``. The named arguments of `sqlite3.connect` (timeout, isolation_level,
    …) are passed to it.

    The connection is a `duralite.Connection`, unless a factory is given. If Duralite refuses something, the text of the
    exception has the reason.
    """
    register()
    arguments = {name: settings.pop(name) for name in CONNECT_ARGUMENTS & settings.keys()}
    arguments.setdefault("factory", Connection)
    wal = wal and _takes_a_log(path, settings)
    if wal:
        settings.setdefault("strict", True)
    before = _count.value
    try:
        conn = sqlite3.connect(_uri(path, settings), uri=True, **arguments)
        if wal:
            _set_wal(conn)
        return conn
    except sqlite3.Error as error:
        _explain(error, before)
        raise


def _takes_a_log(path, settings):
    """Whether a database that is opened with these settings can be written, and can be in WAL mode."""
    read_only = settings.get("mode") == "ro" or settings.get("immutable")
    return not (read_only or path == ":memory:" or settings.get("mode") == "memory" or settings.get("journal") == "off")


def _set_wal(conn):
    """Sets WAL mode, which is impossible in a transaction. Closes the connection if WAL mode cannot be set."""
    try:
        with explicit_transactions(conn):
            (mode,) = conn.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise sqlite3.OperationalError(f"the database stays in journal mode {mode}")
    except BaseException:
        conn.close()
        raise


def _telling(method):
    """A method of sqlite3 that adds Duralite's reason, if there is one, to the text of an exception."""

    @functools.wraps(method)
    def call(*arguments):
        before = _count.value
        try:
            return method(*arguments)
        except sqlite3.Error as error:
            _explain(error, before)
            raise

    return call


def _explain(error, before):
    """Raises the same exception again, with sqlite_errorcode if this Python has it."""
    reason = last_error() if _library and _library.duralite_last_refusal() > before else None
    if reason and not str(error).endswith(reason):
        error.args = (f"{error}: {reason}",)


class Cursor(sqlite3.Cursor):
    """A cursor whose exceptions give Duralite's reason if it refused a statement."""

    execute = _telling(sqlite3.Cursor.execute)
    executemany = _telling(sqlite3.Cursor.executemany)
    executescript = _telling(sqlite3.Cursor.executescript)


class Connection(sqlite3.Connection):
    """A connection whose exceptions give Duralite's reason if it refused a statement or a commit."""

    def cursor(self, factory=Cursor):
        return super().cursor(factory)

    execute = _telling(sqlite3.Connection.execute)
    executemany = _telling(sqlite3.Connection.executemany)
    executescript = _telling(sqlite3.Connection.executescript)
    __exit__ = _telling(sqlite3.Connection.__exit__)

    @_telling
    def commit(self):
        try:
            super().commit()
        except sqlite3.Error:
            # SQLite itself has rolled back. With autocommit=False, sqlite3 would continue as if a transaction were open, so one
            # begins here.
            if getattr(self, "autocommit", None) is False and not self.in_transaction:
                super().execute("BEGIN")
            raise


def last_error():
    """The reason of Duralite's last refusal in this thread, or else in this process. None if there was none."""
    text = (_library or _load_library()).duralite_last_error()
    return None if text is None else text.decode("utf-8", "replace")


def _uri(path, settings):
    """A file: URI for any path, even one that contains ?, #, % or bytes that are not UTF-8."""
    location = path if path == ":memory:" else "//" + quote(os.fsencode(os.path.abspath(path)))
    parameters = {"vfs": VFS_NAME, **settings}
    pairs = (f"{quote(name, safe='')}={quote(_text(value), safe='/')}" for name, value in parameters.items())
    return f"file:{location}?{'&'.join(pairs)}"


def _text(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    return os.fsencode(value) if isinstance(value, os.PathLike) else str(value)


def _load_library():
    """The library, for calls by name. SQLite has loaded the same library, or will share it."""
    library = ctypes.CDLL(loadable_path())
    library.duralite_last_error.restype = ctypes.c_char_p
    library.duralite_version.restype = ctypes.c_char_p
    library.duralite_last_refusal.restype = ctypes.c_uint64
    library.duralite_refusal_count.restype = ctypes.POINTER(ctypes.c_uint64)
    return library


def _register_by_auto_extension():
    """Registers the VFS in a Python whose sqlite3 module has no enable_load_extension.

    The functions are looked up through the file of this Python's sqlite3 module, so they belong to the SQLite that the module
    is linked to, and not to another copy. SQLite calls an automatic extension with its API table at each open; one open is
    enough.
    """
    sqlite = _sqlite_library()
    library = ctypes.CDLL(loadable_path())
    entry = ctypes.cast(getattr(library, AUTO_ENTRY_POINT), ctypes.c_void_p)
    code = sqlite.sqlite3_auto_extension(entry)
    if code != 0:
        raise sqlite3.OperationalError(f"sqlite3_auto_extension failed with code {code}")
    handle = ctypes.c_void_p()
    try:
        opened = sqlite.sqlite3_open(b":memory:", ctypes.byref(handle))
        message = sqlite.sqlite3_errmsg(handle).decode("utf-8", "replace")
    finally:
        sqlite.sqlite3_close(handle)
        sqlite.sqlite3_cancel_auto_extension(entry)
    if not sqlite.sqlite3_vfs_find(VFS_NAME.encode()):
        raise sqlite3.OperationalError(f"{LIBRARY_NAME} did not register its VFS: {message} (code {opened})")


def _sqlite_library():
    """The SQLite of this Python's sqlite3 module, with the signatures of the few functions that are needed."""
    import _sqlite3

    # None stands for the program itself: sqlite3 may be built into Python.
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures = {
        "sqlite3_auto_extension": (number, [pointer]),
        "sqlite3_cancel_auto_extension": (number, [pointer]),
        "sqlite3_open": (number, [text, ctypes.POINTER(pointer)]),
        "sqlite3_close": (number, [pointer]),
        "sqlite3_errmsg": (text, [pointer]),
        "sqlite3_vfs_find": (pointer, [text]),
        "sqlite3_vfs_register": (number, [pointer, number]),
        "sqlite3_db_filename": (text, [pointer, text]),
        "sqlite3_db_readonly": (number, [pointer, text]),
        "sqlite3_busy_timeout": (number, [pointer, number]),
        "sqlite3_exec": (number, [pointer, text, pointer, pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise sqlite3.NotSupportedError(
                f"the SQLite in this Python shows no {name}: it can neither load extensions nor be given one"
            ) from None
        function.restype, function.argtypes = result, arguments
    return library
