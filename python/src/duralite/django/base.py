"""The connection of the backend: Django's own, on a database in WAL mode, with settings in OPTIONS.

What `duralite.connect` hands to sqlite3, and Django's ``transaction_mode`` and ``init_command``, mean in OPTIONS what they mean
for Django; all else is a setting. ``"wal": False`` leaves the journal mode alone.
"""

import contextlib

from django.db.backends.sqlite3 import base

import duralite
from duralite.django.creation import DatabaseCreation

DJANGO_ARGUMENTS = duralite.CONNECT_ARGUMENTS | {"database", "uri"}


class Cursor(base.SQLiteCursorWrapper):
    """Django's cursor, whose exceptions say why Duralite refused a statement."""

    execute = duralite._telling(base.SQLiteCursorWrapper.execute)
    executemany = duralite._telling(base.SQLiteCursorWrapper.executemany)


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's SQLite backend with connections through Duralite."""

    creation_class = DatabaseCreation
    _takes_lock = False

    @contextlib.contextmanager
    def beginning(self, takes_lock):
        """Whether transactions that begin meanwhile take the write lock at once, whatever ``transaction_mode`` says."""
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
        """As for sqlite3, with the settings in the URI; databases in memory, as tests have them, stay as they are."""
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
        """Opens it and sets WAL mode; raises what sqlite3 does, with Duralite's reason."""
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
