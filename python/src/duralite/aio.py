"""Duralite with aiosqlite, which the program installs: ``async with duralite.aio.connect("app.db") as conn``."""

import asyncio

import aiosqlite

import duralite
from duralite._retry import attempts


def connect(path, wal=True, **settings):
    """As `duralite.connect`, with the same errors. Returns aiosqlite's connection, which the caller awaits or enters."""
    chunk = settings.pop("iter_chunk_size", 64)
    return aiosqlite.Connection(lambda: duralite.connect(path, wal, **settings), chunk)


async def run(conn, work):
    """As `duralite.run`, with a coroutine function: runs ``await work(conn)`` as a transaction, and again if it was
    overtaken.

    Until it returns, nothing else may use the connection.
    """
    for attempt in attempts():
        await asyncio.sleep(attempt.pause)
        await conn.execute(attempt.begin)
        try:
            result = await work(conn)
            await conn.execute("COMMIT")
            return result
        except BaseException as error:
            if conn.in_transaction:
                await conn.execute("ROLLBACK")
            if not attempt.may_run_again(error):
                raise
