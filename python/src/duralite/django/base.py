"""The connection of the backend: Django's own, on a database in WAL mode, with settings in OPTIONS.

In OPTIONS, Django's ``transaction_mode`` and ``init_command``, and the arguments that `duralite.connect` passes to sqlite3,
keep the meaning that they have for Django. Everything else is a setting. With ``"wal": False`` the journal mode stays
unchanged.
"""

import contextlib

from django.db.backends.sqlite3 import base

import duralite
from duralite.django.creation import DatabaseCreation

DJANGO_ARGUMENTS = duralite.CONNECT_ARGUMENTS | {"database", "uri"}


class Cursor(base.SQLiteCursorWrapper):
    """Django's cursor, whose exceptions give Duralite's reason if it refused a statement."""

    execute = duralite._telling(base.SQLiteCursorWrapper.execute)
    executemany = duralite._telling(base.SQLiteCursorWrapper.executemany)


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's SQLite backend, with connections through Duralite."""

    creation_class = DatabaseCreation
    _takes_lock = False

    @contextlib.contextmanager
    def beginning(self, takes_lock):
        """Whether transactions take the write lock at their beginning for now, whatever ``transaction_mode`` says."""
        self._takes_lock = takes_lock
        try:
            yield
        finally:
            self._takes_lock = False

    def _start_transaction_under_autocommit(self):
        if self._takes_lock:
            self.cursor().execute("BEGIN IMMEDIATE")
        else:
            super()._start_transaction_under_autocommit()

    def get_connection_params(self):
        """The parameters for sqlite3, with the settings in the URI. Databases in memory, which tests use, keep their name."""
        options = super().get_connection_params()
        settings = {name: options.pop(name) for name in options.keys() - DJANGO_ARGUMENTS}
        self._wal = settings.pop("wal", True) and duralite._takes_a_log(options["database"], settings)
        if self.is_in_memory_db():
            self._wal = False
            return options
        if self._wal:
            settings.setdefault("strict", True)
        options["database"] = duralite._uri(options["database"], settings)
        return {"factory": duralite.Connection, **options}

    def get_new_connection(self, conn_params):
        """Opens the database and sets WAL mode. Raises sqlite3's exceptions, with Duralite's reason."""
        duralite.register()
        before = duralite._count.value
        try:
            conn = super().get_new_connection(conn_params)
            if self._wal:
                duralite._set_wal(conn)
            return conn
        except self.Database.Error as error:
            duralite._explain(error, before)
            raise

    def create_cursor(self, name=None):
        """A cursor for Django."""
        return self.connection.cursor(factory=Cursor)
