"""The wheel with other people's drivers and frameworks."""

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
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

import duralite
import duralite.aio
import duralite.apsw
import duralite.sqlalchemy

ACTIVE = "state\tactive"
READ = "SELECT a FROM t"
ADD = "UPDATE t SET a = a + 1"
ATTEMPTS = 6


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.path = self.directory / "app.db"


class Overtaken(Case):
    """Each driver's `run`, while another connection of that driver overtakes its transactions."""

    def setUp(self):
        super().setUp()
        conn = duralite.connect(self.path)
        conn.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (0)")
        conn.close()

    def total(self):
        conn = duralite.connect(self.path)
        try:
            return conn.execute(READ).fetchone()[0]
        finally:
            conn.close()

    def overtake(self, execute, rival, times):
        """Reads, lets the rival write in the first attempts, and writes. Counts the attempts in `self.seen`."""
        execute(READ)
        self.seen += 1
        if self.seen <= times:
            rival(ADD)
        execute(ADD)
        return self.seen

    def each(self, run):
        """Calls `run` with the number of attempts that are overtaken."""
        for times in (0, 2, ATTEMPTS - 1):
            with self.subTest(times):
                self.seen, before = 0, self.total()
                self.assertEqual(run(times), times + 1)
                self.assertEqual(self.total(), before + times + 1)

    def test_apsw(self):
        def run(times):
            conn, rival = (duralite.apsw.connect(self.path, concurrent="on") for _ in range(2))
            try:
                return duralite.apsw.run(conn, lambda _: self.overtake(
                    lambda sql: conn.execute(sql).fetchall(), rival.execute, times))
            finally:
                conn.close()
                rival.close()

        self.each(run)

    def test_aiosqlite(self):
        async def use(times):
            async def work(conn):
                await conn.execute_fetchall(READ)
                self.overtake(lambda _: None, rival.execute, times)
                await conn.execute(ADD)
                return self.seen

            async with duralite.aio.connect(self.path, concurrent="on") as conn:
                return await duralite.aio.run(conn, work)

        rival = duralite.connect(self.path, concurrent="on", isolation_level=None)
        self.addCleanup(rival.close)
        self.each(lambda times: asyncio.run(use(times)))

    def test_sqlalchemy(self):
        ways = [{}, {"isolation_level": None}]
        if sys.version_info >= (3, 12):
            ways.append({"autocommit": False})
        for way in ways:
            url = f"sqlite+duralite:///{self.path}?concurrent=on"
            engine = sqlalchemy.create_engine(url, connect_args=way, poolclass=pool.NullPool)
            rival = duralite.connect(self.path, concurrent="on", isolation_level=None)
            for source in (engine, sessionmaker(engine)):
                with self.subTest(way=way, source=source):
                    self.each(lambda times: duralite.sqlalchemy.run(source, lambda conn: self.overtake(
                        lambda sql: conn.execute(text(sql)), rival.execute, times)))
            rival.close()
            engine.dispose()

    def test_sqlalchemy_async(self):
        rival = duralite.connect(self.path, concurrent="on", isolation_level=None)
        self.addCleanup(rival.close)

        async def use(kind, times):
            async def work(conn):
                return await conn.run_sync(
                    lambda sync: self.overtake(lambda sql: sync.execute(text(sql)), rival.execute, times)
                )

            engine = create_async_engine(f"sqlite+aioduralite:///{self.path}?concurrent=on")
            try:
                return await duralite.sqlalchemy.run_async(kind(engine), work)
            finally:
                await engine.dispose()

        for kind in (lambda engine: engine, async_sessionmaker):
            self.each(lambda times: asyncio.run(use(kind, times)))

    def test_sqlalchemy_raises_other_errors_at_once(self):
        engine = sqlalchemy.create_engine(f"sqlite+duralite:///{self.path}?concurrent=on")
        self.addCleanup(engine.dispose)
        seen = []

        def work(conn):
            seen.append(conn)
            conn.execute(text(ADD))
            conn.execute(text("SELECT none FROM nowhere"))

        with self.assertRaises(sqlalchemy.exc.OperationalError):
            duralite.sqlalchemy.run(engine, work)
        self.assertEqual((len(seen), self.total()), (1, 0))


class Apsw(Case):
    def test_commits_go_into_the_log(self):
        conn = duralite.apsw.connect(self.path)
        conn.execute("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        self.assertIn(ACTIVE, conn.execute("PRAGMA duralite").fetchone()[0])
        # Two copies of SQLite in one process must not open the same file: the process's POSIX locks belong to both.
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

    def test_transactions_that_are_overtaken_run_again(self):
        self.django("makemigrations", "shop")
        self.django("migrate")
        program = """
            import duralite
            from django.db import connection, transaction
            from duralite.django import run
            from shop.models import Item
            Item.objects.create(name="a")
            rival = duralite.connect("app.db", concurrent="on", isolation_level=None)
            def overtaken(times):
                seen, called = [], []
                def work():
                    seen.append(True)
                    item = Item.objects.get()
                    if len(seen) <= times:
                        rival.execute("UPDATE shop_item SET name = name || 'r'")
                    transaction.on_commit(lambda: called.append(True))
                    Item.objects.update(name=item.name + "d")
                    return len(seen)
                return (run(work), len(called))
            connection.close()
            connection.settings_dict["OPTIONS"]["concurrent"] = "on"
            print(*overtaken(0), *overtaken(2), *overtaken(5), Item.objects.get().name)
            try:
                with transaction.atomic():
                    run(lambda: None)
            except RuntimeError as error:
                print("durable" in str(error))
        """
        printed = self.django("shell", "-c", textwrap.dedent(program)).split()[-8:]
        self.assertEqual(printed, ["1", "1", "3", "1", "6", "1", "adrrdrrrrrd", "True"])

    def test_test_databases_in_memory_in_files_and_in_parallel(self):
        self.django("makemigrations", "shop")
        on_disk = ', "TEST": {"NAME": "test.db"}'
        for more in ("", on_disk):
            for command in (["test"], ["test", "--parallel", "2"]):
                with self.subTest(more=more, command=command):
                    self.assertIn("Ran 2 tests", self.django(*command, more=more))
