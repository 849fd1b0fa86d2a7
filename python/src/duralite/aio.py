"""Duralite with aiosqlite, which the program installs: ``async with duralite.aio.connect("app.db") as conn``."""

import aiosqlite

import duralite


def connect(path, wal=True, **settings):
    """As `duralite.connect`, and errors as there; returns aiosqlite's connection, to be awaited or entered."""
    chunk = settings.pop("iter_chunk_size", 64)
    return aiosqlite.Connection(lambda: duralite.connect(path, wal, **settings), chunk)
