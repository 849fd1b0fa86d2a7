"""What the programs share: a database of their own, and how it is looked at afterwards."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TIMEOUT = 20


def connect(path, **arguments):
    return sqlite3.connect(path, timeout=TIMEOUT, isolation_level=None, **arguments)


def insert(path, who, count=1):
    """As most programs do it: a connection for the occasion."""
    conn = connect(path)
    try:
        for number in range(count):
            conn.execute("INSERT INTO t(who, number) VALUES (?, ?)", (who, number))
    finally:
        conn.close()
    return count


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = str(Path(self.folder.name) / "app.db")
        conn = connect(self.path)
        conn.execute("CREATE TABLE t(who, number)")
        conn.close()

    def count(self, path=None):
        conn = connect(path or self.path)
        try:
            return conn.execute("SELECT count(*) FROM t").fetchone()[0]
        finally:
            conn.close()

    def assert_holds(self, rows, path=None):
        conn = connect(path or self.path)
        try:
            self.assertEqual(conn.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
            self.assertEqual(conn.execute("SELECT count(*) FROM t").fetchone(), (rows,))
        finally:
            conn.close()

    def fork(self, body):
        """A child that runs `body` and leaves without this process's clean-up; returns its id."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                body()
                status = 0
            except BaseException as error:
                os.write(2, f"child {os.getpid()}: {error!r}\n".encode())
            finally:
                os._exit(status)
        return pid

    def wait_for(self, pids):
        """The exit statuses; children that do not end are killed."""
        deadline = time.monotonic() + 3 * TIMEOUT
        statuses = []
        for pid in pids:
            done, status = os.waitpid(pid, os.WNOHANG)
            while not done and time.monotonic() < deadline:
                time.sleep(0.01)
                done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                os.kill(pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
            statuses.append(os.waitstatus_to_exitcode(status))
        return statuses

    def python(self, code, *arguments, wait=True):
        """Another program, that has nothing from this process."""
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
        if not wait:
            return process
        output, _ = process.communicate(timeout=3 * TIMEOUT)
        return process.returncode, output.strip()


# A program that keeps its connection and dies with what it wrote acknowledged and not checkpointed.
KILLED = """
import os, signal, sqlite3, sys
conn = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
conn.execute("PRAGMA wal_autocheckpoint=0")
for number in range(int(sys.argv[2])):
    conn.execute("INSERT INTO t VALUES ('killed', ?)", (number,))
os.kill(os.getpid(), signal.SIGKILL)
"""
