"""Django's database backend for SQLite, through Duralite: ``"ENGINE": "duralite.django"``."""
