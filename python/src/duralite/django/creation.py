"""Databases for tests."""

from django.db.backends.sqlite3 import creation


class DatabaseCreation(creation.DatabaseCreation):
    """Copies a test database for parallel tests, but only while it is one plain file."""

    def _clone_test_db(self, suffix, verbosity, keepdb=False):
        # Django copies only the file. The last close writes the content of the log into
        # it.
        self.connection.close()
        super()._clone_test_db(suffix, verbosity, keepdb)
