"""Databases for tests."""

from django.db.backends.sqlite3 import creation


class DatabaseCreation(creation.DatabaseCreation):
    """Copies a test database for parallel tests only when it is one plain file."""

    def _clone_test_db(self, suffix, verbosity, keepdb=False):
        # Django copies the file alone. The last close brings what is in the log into it.
        self.connection.close()
        super()._clone_test_db(suffix, verbosity, keepdb)
