"""The C interface of the SQLite library that ``SQLITE_LIBRARY`` names. No Python is linked to these versions."""

import ctypes
import os
from pathlib import Path

LIBRARY = os.environ.get("SQLITE_LIBRARY", "libsqlite3.so.0")
ROOT = Path(__file__).resolve().parents[3]
DURALITE = os.environ.get("DURALITE_LIBRARY", str(ROOT / "target/release/libduralite.so"))
ENGINES = {
    "waldio": "",
    "nvwal": "&nvram=emulate",
    "ppl": "&nvram=emulate",
    "scratchpad": "&scratchpad=emulate&home=emulate",
}
OK, READONLY, NOTADB, ROW, DONE = 0, 8, 26, 100, 101
OPEN_READONLY, OPEN_READWRITE, OPEN_CREATE, OPEN_URI = 1, 2, 4, 64
FCNTL_FILE_POINTER = 7

_lib = ctypes.CDLL(LIBRARY)
_lib.sqlite3_column_text.restype = ctypes.c_char_p
_lib.sqlite3_errmsg.restype = ctypes.c_char_p
_lib.sqlite3_libversion.restype = ctypes.c_char_p
VERSION = _lib.sqlite3_libversion().decode()
NUMBER = _lib.sqlite3_libversion_number()
#: Whether this SQLite may lose commits if the log starts over while a checkpoint runs.
HAS_RESET_BUG = NUMBER < 3051003 and VERSION not in ("3.44.6", "3.50.7")


class Methods(ctypes.Structure):
    """``sqlite3_io_methods`` of version 3, whose last two pointers are ``xFetch`` and ``xUnfetch``."""

    _fields_ = [("version", ctypes.c_int), ("others", ctypes.c_void_p * 17), ("unfetch", ctypes.c_void_p)]


class File(ctypes.Structure):
    _fields_ = [("methods", ctypes.c_void_p)]


UNFETCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(File), ctypes.c_int64, ctypes.c_void_p)


class Error(Exception):
    """A statement or an open failed; ``code`` is SQLite's result code."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


class Connection:
    """A connection. `close`, or the end of a ``with``, closes it."""

    def __init__(self, path, parameters="", flags=OPEN_READWRITE | OPEN_CREATE):
        self.db = ctypes.c_void_p()
        uri = f"file:{path}?{parameters}".encode()
        code = _lib.sqlite3_open_v2(uri, ctypes.byref(self.db), flags | OPEN_URI, None)
        if code != OK:
            error = Error(code, self.message())
            self.close()
            raise error

    def message(self):
        return _lib.sqlite3_errmsg(self.db).decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.db:
            code = _lib.sqlite3_close(self.db)
            self.db = ctypes.c_void_p()
            assert code == OK, code

    def run(self, sql):
        """All rows of one statement, as strings."""
        statement = ctypes.c_void_p()
        code = _lib.sqlite3_prepare_v2(self.db, sql.encode(), -1, ctypes.byref(statement), None)
        rows = []
        while code in (OK, ROW):
            code = _lib.sqlite3_step(statement)
            if code == ROW:
                columns = range(_lib.sqlite3_column_count(statement))
                texts = [_lib.sqlite3_column_text(statement, column) for column in columns]
                rows.append([text.decode() if text is not None else None for text in texts])
        message = self.message()
        _lib.sqlite3_finalize(statement)
        if code != DONE:
            raise Error(code, message)
        return rows

    def is_autocommit(self):
        """Whether no transaction is open on the connection."""
        return bool(_lib.sqlite3_get_autocommit(self.db))

    def value(self, sql):
        return self.run(sql)[0][0]

    def load(self):
        """Registers Duralite with this SQLite."""
        assert _lib.sqlite3_enable_load_extension(self.db, 1) == OK
        message = ctypes.c_char_p()
        code = _lib.sqlite3_load_extension(self.db, DURALITE.encode(), None, ctypes.byref(message))
        if code != OK:
            raise Error(code, (message.value or b"").decode())

    def before_checkpoints(self, act):
        """        Runs ``act`` once, in the middle of this connection's next checkpoint. At that point SQLite has
        read the header of the wal-index, and releases mapped pages because others have changed the database. It has
        not yet looked for frames to write home."""
        file = ctypes.POINTER(File)()
        assert _lib.sqlite3_file_control(self.db, b"main", FCNTL_FILE_POINTER, ctypes.byref(file)) == OK
        original = file.contents.methods
        self._methods = Methods.from_buffer_copy(Methods.from_address(original))
        assert self._methods.version >= 3
        passed_on = UNFETCH(self._methods.unfetch)

        def unfetch(this, offset, page):
            file.contents.methods = original
            act()
            return passed_on(this, offset, page)

        self._callback = UNFETCH(unfetch)
        self._methods.unfetch = ctypes.cast(self._callback, ctypes.c_void_p).value
        file.contents.methods = ctypes.addressof(self._methods)
