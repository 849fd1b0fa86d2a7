"""The wheel under the drivers and frameworks of others."""

import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import apsw
import sqlalchemy
from packaged.test_alone import run
from sqlalchemy import pool, text
from sqlalchemy.ext.asyncio import create_async_engine

import duralite
import duralite.aio
import duralite.apsw

ACTIVE = "state\tactive"


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.path = self.directory / "app.db"


class Apsw(Case):
    def test_commits_go_into_the_log(self):
        conn = duralite.apsw.connect(self.path)
        conn.execute("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        self.assertIn(ACTIVE, conn.execute("PRAGMA duralite").fetchone()[0])
        # Two copies of SQLite in one process must not both have one file: locks of POSIX are a process's.
        conn.close()
        again = duralite.apsw.connect(self.path)
        self.assertEqual(again.execute("SELECT a FROM t").fetchall(), [(1,)])
        again.close()

    def test_a_refusal_has_its_reason(self):
        with self.assertRaises(apsw.CantOpenError):
            duralite.apsw.connect(self.path, jornal="off")
        self.assertIn("did you mean journal", duralite.last_error())


class Aiosqlite(Case):
    def test_a_connection(self):
        async def use():
            async with duralite.aio.connect(self.path) as conn:
                await conn.execute("CREATE TABLE t (a)")
                await conn.commit()
                async with conn.execute("PRAGMA duralite") as cursor:
                    return (await cursor.fetchone())[0]

        self.assertIn(ACTIVE, asyncio.run(use()))


class SqlAlchemy(Case):
    def engine(self, query="", **arguments):
        engine = sqlalchemy.create_engine(f"sqlite+duralite:///{self.path}{query}", **arguments)
        self.addCleanup(engine.dispose)
        return engine

    def test_commits_go_into_the_log_through_each_pool(self):
        for number, kind in enumerate((None, pool.NullPool, pool.StaticPool)):
            with self.subTest(kind):
                engine = self.engine(poolclass=kind)
                with engine.begin() as conn:
                    conn.execute(text(f"CREATE TABLE t{number} (a)"))
                    self.assertIn(ACTIVE, conn.execute(text("PRAGMA duralite")).scalar())
                engine.dispose()

    def test_the_query_holds_settings_and_arguments(self):
        with self.engine("?durability=normal&timeout=7").connect() as conn:
            self.assertEqual(conn.execute(text("PRAGMA busy_timeout")).scalar(), 7000)
            self.assertEqual(conn.execute(text("PRAGMA duralite_durability")).scalar(), "normal")

    def test_wal_can_be_left_alone(self):
        with self.engine("?wal=off").connect() as conn:
            self.assertEqual(conn.execute(text("PRAGMA journal_mode")).scalar(), "delete")

    def test_a_refusal_has_its_reason(self):
        with self.assertRaisesRegex(sqlalchemy.exc.OperationalError, "did you mean journal"):
            self.engine("?jornal=off").connect()

    def test_memory(self):
        for url in ("sqlite+duralite://", "sqlite+duralite:///:memory:"):
            engine = sqlalchemy.create_engine(url)
            with engine.begin() as conn:
                conn.execute(text("CREATE TABLE t (a)"))
            with engine.connect() as conn:
                self.assertEqual(conn.execute(text("SELECT count(*) FROM t")).scalar(), 0)
            engine.dispose()

    def test_async(self):
        async def use():
            engine = create_async_engine(f"sqlite+aioduralite:///{self.path}?durability=normal")
            async with engine.begin() as conn:
                await conn.execute(text("CREATE TABLE t (a)"))
                found = (await conn.execute(text("PRAGMA duralite"))).scalar()
            await engine.dispose()
            return found

        found = asyncio.run(use())
        self.assertIn(ACTIVE, found)
        self.assertIn("durability\tnormal", found)


class Enable(Case):
    def test_strict_refuses_the_first_write_without_wal(self):
        program = """
            import sqlite3, duralite
            duralite.enable()
            conn = sqlite3.connect("app.db")
            try:
                conn.execute("CREATE TABLE t (a)")
            except sqlite3.OperationalError as error:
                print("readonly" in str(error), "WAL" in duralite.last_error())
            conn.execute("PRAGMA journal_mode=WAL")
            conn.execute("CREATE TABLE t (a)")
            print("active" in conn.execute("PRAGMA duralite").fetchone()[0])
        """
        self.assertEqual(run(program), ["True", "True", "True"])

    def test_plain_sqlalchemy_goes_through_it(self):
        program = """
            import duralite, sqlalchemy
            duralite.enable(wal=True, durability="normal")
            with sqlalchemy.create_engine("sqlite:///app.db").begin() as conn:
                conn.execute(sqlalchemy.text("CREATE TABLE t (a)"))
                text = conn.execute(sqlalchemy.text("PRAGMA duralite")).scalar()
            print("active" in text, "durability\\tnormal" in text)
            memory = __import__("sqlite3").connect(":memory:")
            memory.execute("CREATE TABLE t (a)")
            print(memory.execute("PRAGMA journal_mode").fetchone()[0])
        """
        self.assertEqual(run(program), ["True", "True", "memory"])


SETTINGS = """
SECRET_KEY = "tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "duralite.django", "NAME": "app.db", "OPTIONS": {"durability": "normal", "timeout": 9}%s}}
"""
MODELS = """
from django.db import models
class Item(models.Model):
    name = models.CharField(max_length=20)
"""
TESTS = """
from django.db import connection
from django.test import TestCase
from shop.models import Item
class First(TestCase):
    def test_items(self):
        Item.objects.create(name="a")
        self.assertEqual(Item.objects.count(), 1)
        if connection.settings_dict["NAME"].startswith("test"):
            assert "state\\tactive" in connection.cursor().execute("PRAGMA duralite").fetchone()[0]
class Second(First):
    pass
"""


class Django(Case):
    def setUp(self):
        super().setUp()
        shop = self.directory / "shop"
        (shop / "migrations").mkdir(parents=True)
        for name, content in {
            "__init__.py": "", "migrations/__init__.py": "", "models.py": MODELS, "tests.py": TESTS, "urls.py": "urlpatterns = []"
        }.items():
            (shop / name).write_text(content)

    def django(self, *command, more=""):
        (self.directory / "project.py").write_text(SETTINGS % more)
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "project", "PYTHONPATH": str(self.directory)}
        result = subprocess.run(
            [sys.executable, "-m", "django", *command], cwd=self.directory, env=environment,
            text=True, capture_output=True, timeout=120,
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout + result.stderr

    def test_migrations_and_settings(self):
        self.django("makemigrations", "shop")
        self.django("migrate")
        program = """
            from django.db import connection
            from shop.models import Item
            Item.objects.create(name="a")
            ask = lambda sql: connection.cursor().execute(sql).fetchone()[0]
            print(Item.objects.count(), "active" in ask("PRAGMA duralite"),
                  ask("PRAGMA duralite_durability"), ask("PRAGMA busy_timeout"))
        """
        self.assertTrue(self.django("shell", "-c", textwrap.dedent(program)).strip().endswith("1 True normal 9000"))

    def test_test_databases_in_memory_in_files_and_in_parallel(self):
        self.django("makemigrations", "shop")
        on_disk = ', "TEST": {"NAME": "test.db"}'
        for more in ("", on_disk):
            for command in (["test"], ["test", "--parallel", "2"]):
                with self.subTest(more=more, command=command):
                    self.assertIn("Ran 2 tests", self.django(*command, more=more))
