"""What the programs under test share. Each program begins with ``from dropin.program import *``.

Each line that a program prints is one word and its arguments. ``ack`` says that a row is committed, and so
must not be lost from then on. Each line is a single `write`, so the lines of forked processes do not mix.
"""

import ctypes
import gc
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback

ENGINE = os.environ["DROPIN_ENGINE"]
LOG_DIR = os.environ["DROPIN_LOG_DIR"]
IS_IN_MEMORY = ENGINE in ("nvwal", "ppl", "scratchpad")
TABLE = "CREATE TABLE IF NOT EXISTS t (who TEXT, n INTEGER, pad BLOB, PRIMARY KEY (who, n))"

if ENGINE != "stock":
    import duralite

    duralite.register()


def settings():
    """The URI parameters of the engine under test."""
    if IS_IN_MEMORY:
        region = {"scratchpad": "emulate", "home": "emulate"} if ENGINE == "scratchpad" else {}
        return {"journal": ENGINE, "nvram": "emulate", "nvram_dir": LOG_DIR, **region}
    return {}


def uri(path, **parameters):
    """The URI of a database on the engine under test."""
    vfs = {"vfs": "unix"} if ENGINE == "stock" else {"vfs": "duralite", **settings()}
    pairs = "&".join(f"{name}={value}" for name, value in {**vfs, **parameters}.items())
    special = {"%": "%25", "?": "%3f", "#": "%23"}
    location = "".join(special.get(c, c) for c in os.path.abspath(path))
    return f"file://{location}?{pairs}"


def connect(path, timeout=30, wal=True, threads=False, **parameters):
    """An open connection in autocommit mode, to a database in WAL mode with synchronous=FULL."""
    conn = sqlite3.connect(
        uri(path, **parameters), uri=True, timeout=timeout, isolation_level=None, check_same_thread=not threads
    )
    if wal:
        conn.execute("PRAGMA journal_mode=WAL").fetchone()
    return conn


def create(path, **arguments):
    """An open connection to a database with the table ``t``."""
    conn = connect(path, **arguments)
    conn.execute(TABLE)
    return conn


def say(*words):
    """Prints a line."""
    line = " ".join(str(word).replace("\n", " ") for word in words) + "\n"
    os.write(1, line.encode("utf-8", "surrogateescape"))


def ack(who, n):
    """Acknowledges that this row is committed."""
    say("ack", who, n)


def hear():
    """Waits for a line, or for the end of input."""
    return sys.stdin.readline().strip()


def insert(conn, who, count, first=0, pad=b""):
    """Commits rows one by one, and acknowledges each."""
    for n in range(first, first + count):
        conn.execute("INSERT INTO t VALUES (?, ?, ?)", (who, n, pad))
        ack(who, n)


def rows(conn, table="t"):
    """The number of rows."""
    return conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def attempt(function, *arguments, **named):
    """The outcome of a call: ``("ok", value)``, or ``("error", exception)`` for an error of SQLite's."""
    try:
        return "ok", function(*arguments, **named)
    except sqlite3.Error as error:
        return "error", error


def fork(function, *arguments):
    """Runs a function in a child. The child ends by os._exit, with status 1 if the function raises. Returns
    the child's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def join(*pids):
    """Waits for children. Reports every child that did not exit with status 0."""
    for pid in pids:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 0:
            say("child", code)


def own(path, who, count, **arguments):
    """Opens a connection, uses it and closes it."""
    conn = connect(path, **arguments)
    insert(conn, who, count)
    conn.close()


def die():
    """Kills this process, as the out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)
