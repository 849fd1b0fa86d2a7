"""The wheel in an environment without any other package."""

import importlib.metadata
import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import duralite


def run(program, *arguments, **environment):
    """Runs a program in a fresh process and an empty directory. Returns what it prints."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
        result = subprocess.run(
            command, cwd=directory, env={**os.environ, **environment}, text=True, capture_output=True, timeout=60
        )
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return result.stdout.split()


class Alone(unittest.TestCase):
    def test_it_is_the_installed_one_with_its_own_library(self):
        self.assertIn(sys.prefix, duralite.loadable_path())
        self.assertEqual(importlib.metadata.version("duralite"), duralite.__version__)
        self.assertRegex(duralite.library_version(), rf"^{duralite.__version__} \(.+\)$")

    def test_connect_is_durable_and_leaves_a_plain_file(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "app.db"
            conn = duralite.connect(path)
            with conn:
                conn.execute("CREATE TABLE t (a)")
                conn.execute("INSERT INTO t VALUES (1)")
            (text,) = conn.execute("PRAGMA duralite").fetchone()
            self.assertIn(f"version\t{duralite.library_version()}", text)
            self.assertIn("state\tactive", text)
            conn.close()
            plain = sqlite3.connect(path)
            self.assertEqual(plain.execute("SELECT a FROM t").fetchone(), (1,))
            plain.close()

    def test_enable_reaches_plain_names(self):
        program = """
            import sqlite3, duralite
            duralite.enable(wal=True)
            conn = sqlite3.connect("app.db")
            conn.execute("CREATE TABLE t (a)")
            print("active" in conn.execute("PRAGMA duralite").fetchone()[0])
        """
        self.assertEqual(run(program), ["True"])

    def test_a_missing_library_is_named(self):
        program = """
            import duralite
            try:
                duralite.connect("app.db")
            except duralite.LibraryNotFound as error:
                print("gone.so" in str(error))
        """
        self.assertEqual(run(program, DURALITE_LIBRARY="gone.so"), ["True"])
