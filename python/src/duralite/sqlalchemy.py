"""SQLAlchemy's dialects ``sqlite+duralite`` and ``sqlite+aioduralite``. The query of the URL contains settings.

In ``sqlite+duralite:///app.db?durability=fua&timeout=30``, the arguments that `duralite.connect` passes to sqlite3 are
passed on; everything else is a setting. With ``wal=off`` the journal mode stays unchanged. A refusal raises
sqlalchemy.exc.OperationalError with the reason. `run` and `run_async` run a transaction, and run it again if another
connection has overtaken it.
"""

import asyncio
import sqlite3
import time

from sqlalchemy import text
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import duralite
from duralite._retry import attempts

OFF = ("off", "false", "no", "0")


class _Settings:
    """How both dialects read a URL."""

    def create_connect_args(self, url):
        """SQLAlchemy's own arguments, and beside them the settings, which SQLAlchemy does not know."""
        settings = {key: value for key, value in url.query.items() if key not in duralite.CONNECT_ARGUMENTS}
        arguments, options = super().create_connect_args(url.difference_update_query(settings))
        if "wal" in settings:
            settings["wal"] = settings["wal"].lower() not in OFF
        return arguments, {**options, **settings}


class Dialect(_Settings, SQLiteDialect_pysqlite):
    """``sqlite+duralite``: sqlite3 through Duralite, with SQLAlchemy's pools for SQLite."""

    driver = "duralite"
    supports_statement_cache = True  # SQLAlchemy expects it in each class, not inherited

    def connect(self, *arguments, **options):
        """A new connection for the pool."""
        return duralite.connect(*arguments, **options)

    @classmethod
    def import_dbapi(cls):
        """The DBAPI is sqlite3."""
        return sqlite3


class AsyncDialect(_Settings, SQLiteDialect_aiosqlite):
    """``sqlite+aioduralite``: aiosqlite through Duralite."""

    driver = "aioduralite"
    supports_statement_cache = True  # SQLAlchemy expects it in each class, not inherited

    def connect(self, *arguments, **options):
        """A new connection for the pool."""
        return super().connect(*arguments, async_creator_fn=_create, **options)


def _create(*arguments, **options):
    """Keeps aiosqlite's thread from holding up the end of a program that forgot to dispose of its engine."""
    from duralite import aio

    connection = aio.connect(*arguments, **options)
    getattr(connection, "_thread", connection).daemon = True
    return connection


def run(source, work):
    """As `duralite.run`: runs `work` as a transaction, again if it was overtaken, and returns the result of `work`.

    `source` is an engine or a sessionmaker. `work` is called with the connection or the session that the source's ``begin``
    returns.
    """
    for attempt in attempts():
        time.sleep(attempt.pause)
        try:
            with source.begin() as conn:
                _begin(conn, attempt.begin)
                return work(conn)
        except OperationalError as error:
            if not attempt.may_run_again(error.orig):
                raise


async def run_async(source, work):
    """As `run`, with an async engine or an async_sessionmaker. `work` is a coroutine function."""
    for attempt in attempts():
        await asyncio.sleep(attempt.pause)
        try:
            async with source.begin() as conn:
                await conn.run_sync(_begin, attempt.begin)
                return await work(conn)
        except OperationalError as error:
            if not attempt.may_run_again(error.orig):
                raise


def _begin(conn, statement):
    """Begins now, while sqlite3 would wait for the first write. If an empty transaction is open already, ends that first."""
    core = conn.connection() if isinstance(conn, Session) else conn
    if core.connection.driver_connection.in_transaction:
        core.execute(text("ROLLBACK"))
    core.execute(text(statement))
