"""Runs programs on an engine, records what they acknowledge, and checks the database afterwards.

A method ``scenario_x`` of a `Case` becomes the tests ``test_x__stock``, ``test_x__waldio``, ``test_x__nvwal`` and
``test_x__ppl``. Stock SQLite is the judge: an engine's test fails if stock does not pass the same scenario, unless the
scenario is marked with `beyond_stock`. Timeouts are only a safety net.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src"
ENGINES = ("stock", "waldio", "nvwal", "ppl", "scratchpad")
#: The engines whose logs are in memory, which is emulated here.
IN_MEMORY = ("nvwal", "ppl", "scratchpad")
PATIENCE = float(os.environ.get("DROPIN_PATIENCE", "40"))
#: The endings of files that may lie beside an open database: SQLite's. Duralite's files have its name in theirs.
SQLITES = ("-wal", "-shm", "-journal")

CHECK = """
conn = connect(sys.argv[1], wal=False)
if conn.execute("SELECT count(*) FROM sqlite_schema WHERE name = 't'").fetchone()[0]:
    for who, n in conn.execute("SELECT who, n FROM t").fetchall():
        say("row", who, n)
say("integrity", conn.execute("PRAGMA integrity_check").fetchone()[0])
conn.close()
"""

ANOTHER_WRITER = """
conn = connect(sys.argv[1], timeout=0, wal=False)
what, error = attempt(lambda: conn.execute("BEGIN IMMEDIATE").fetchall())
say("other", what, error)
"""


def each(*variants):
    """Makes one test per engine and variant. The scenario gets the variant as its argument."""

    def mark(scenario):
        scenario.variants = variants
        return scenario

    return mark


def beyond_stock(reason):
    """Marks a scenario that stock SQLite does not survive. Duralite has to survive it all the same."""

    def mark(scenario):
        scenario.beyond_stock = reason
        return scenario

    return mark


def known_limit(reason):
    """Marks a scenario that Duralite does not survive, as docs/limits.md says. The test fails if Duralite does
    survive."""

    def mark(scenario):
        scenario.known_limit = reason
        return scenario

    return mark


def left_in(directory):
    """The files in a directory, except regions: many logs share a region, and it may stay after its last log."""
    return [name for name in os.listdir(directory) if not name.startswith("duralite-region-")]


class Failed(AssertionError):
    """A program did not do what the test expected."""


class Program:
    """A running program, its lines, and its acknowledged rows."""

    def __init__(self, case, text, arguments, environment, interpreter=()):
        self.case, self.lines, self.taken = case, [], 0
        self.news = threading.Condition()
        self.ended = False
        self.errors = tempfile.TemporaryFile()
        code = "from dropin.program import *\n" + textwrap.dedent(text)
        self.process = subprocess.Popen(
            [*interpreter, sys.executable, "-c", code, *map(os.fspath, map(_argument, arguments))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for raw in self.process.stdout:
            words = raw.decode("utf-8", "surrogateescape").split()
            with self.news:
                if words and words[0] == "ack":
                    self.case.acked.add((words[1], int(words[2])))
                else:
                    self.lines.append(words)
                self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def failed(self, why):
        self.errors.seek(0)
        stderr = self.errors.read().decode("utf-8", "replace")[-3000:]
        return Failed(f"{why}\nlines: {self.lines[-8:]}\nstderr: {stderr}")

    def expect(self, word):
        """The arguments in the next line, which must begin with this word."""
        deadline = time.monotonic() + PATIENCE
        with self.news:
            while len(self.lines) <= self.taken:
                if self.ended:
                    raise self.failed(f"ended, code {self.process.poll()}, instead of saying {word!r}")
                if not self.news.wait(deadline - time.monotonic()) and time.monotonic() > deadline:
                    raise self.failed(f"hangs instead of saying {word!r}")
            words = self.lines[self.taken]
            self.taken += 1
        if words[0] != word:
            raise self.failed(f"says {words} instead of {word!r}")
        return words[1:]

    def tell(self, line="go"):
        try:
            self.process.stdin.write((line + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.failed(f"ended, code {self.process.wait()}, before it was told {line!r}") from None

    def kill(self, sign=signal.SIGKILL):
        """Sends a signal to this process alone."""
        os.kill(self.pid, sign)
        if sign == signal.SIGKILL:
            self.process.wait()

    def wait(self, code=0):
        """Waits for the end of the process itself. Its children may still run."""
        try:
            found = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise self.failed("hangs instead of ending") from None
        if code is not None and found != code:
            raise self.failed(f"ended with {found} instead of {code}")
        return found

    def finish(self, code=0):
        """Waits for the end of the process, and of all others that hold its output. Returns the lines that were not
        read yet."""
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        self.wait(code)
        self.reader.join(PATIENCE)
        if self.reader.is_alive():
            raise self.failed("children of it hang")
        lines, self.taken = self.lines[self.taken :], len(self.lines)
        for words in lines:
            if words and words[0] == "child":
                raise self.failed(f"a child ended with {words[1]}")
        return lines

    def end(self):
        """Kills the process, and everything in its session that belongs to its process group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.reader.join(5)
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        if not self.reader.is_alive():
            self.process.stdout.close()
        self.errors.close()


def _argument(value):
    return value if isinstance(value, (str, os.PathLike)) else str(value)


class Case(unittest.TestCase):
    """A directory with a database, for tests of one engine."""

    engine = "stock"
    _verdicts = {}

    def __init_subclass__(cls, **named):
        super().__init_subclass__(**named)
        cls._verdicts = {}
        for name, scenario in list(vars(cls).items()):
            if name.startswith("scenario_"):
                cls._generate(name.removeprefix("scenario_"), scenario)

    @classmethod
    def _generate(cls, name, scenario):
        beyond = getattr(scenario, "beyond_stock", None)
        for variant in getattr(scenario, "variants", (None,)):
            title = name if variant is None else f"{name}_{variant}"
            for engine in ENGINES:
                if engine == "stock" and beyond:
                    continue
                test = cls._test(title, scenario, variant, engine, beyond)
                setattr(cls, f"test_{title}__{engine}", test)

    @staticmethod
    def _test(title, scenario, variant, engine, beyond):
        @functools.wraps(scenario)
        def test(self):
            if engine != "stock" and not beyond:
                self._judge(title)
            elif engine == "stock" and title in self._verdicts:
                return self._retell(title)
            self.engine = engine
            if engine == "stock":
                self._verdicts[title] = "stock SQLite does not pass this"
            scenario(self) if variant is None else scenario(self, variant)
            if engine == "stock":
                self._verdicts[title] = None

        test.__name__ = f"test_{title}__{engine}"
        if engine != "stock" and getattr(scenario, "known_limit", None):
            return unittest.expectedFailure(test)
        return test

    def _judge(self, title):
        """Judges a scenario by stock SQLite. Tries again if stock fails, because stock itself may fail by chance."""
        for _ in range(3):
            if self._verdicts.get(title, "none yet") is None or isinstance(self._verdicts.get(title), Exception):
                break
            self._verdicts.pop(title, None)
            result = unittest.TestResult()
            type(self)(f"test_{title}__stock").run(result)
            for _, reason in result.skipped:
                self._verdicts[title] = unittest.SkipTest(reason)
            for _, why in result.failures + result.errors:
                self._verdicts[title] = f"stock SQLite does not pass this: {why}"
        self._retell(title)

    def _retell(self, title):
        verdict = self._verdicts[title]
        if isinstance(verdict, Exception):
            raise verdict
        if verdict:
            self.fail(verdict)

    @property
    def is_in_memory(self):
        """Whether the engine keeps its logs in memory."""
        return self.engine in IN_MEMORY

    def setUp(self):
        self.acked = set()
        # In some tests other users access this directory.
        self.base = Path(tempfile.mkdtemp(prefix="duralite-dropin-"))
        self.addCleanup(shutil.rmtree, self.base, ignore_errors=True)
        os.chmod(self.base, 0o755)
        self.directory = self.base / "data"
        self.directory.mkdir()
        self.log_dir = self.base / "logs-elsewhere"
        self.log_dir.mkdir()
        os.chmod(self.log_dir, 0o1777)
        self.path = self.directory / "app.db"

    def environment(self, log_dir=None, **more):
        path = os.pathsep.join((str(TESTS), str(SOURCE)))
        own = {"PYTHONPATH": path, "DROPIN_ENGINE": self.engine, "DROPIN_LOG_DIR": str(log_dir or self.log_dir)}
        return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "DURALITE_LOG": "stderr", **own, **more}

    def ends_as_the_only_writer(self, live, path):
        """Checks that a program which has locked the database keeps others from writing. Then lets that program run to
        its end."""
        live.expect("locked")
        (line,) = self.run_program(ANOTHER_WRITER, path)
        self.assertEqual(line[1], "error", "two have the database for writing")
        live.tell()
        live.finish()

    def start(self, text, *arguments, log_dir=None, engine=None, interpreter=(), **environment):
        """Starts a program."""
        variables = self.environment(log_dir, **environment)
        if engine:
            variables["DROPIN_ENGINE"] = engine
        program = Program(self, text, arguments, variables, interpreter)
        self.addCleanup(program.end)
        return program

    def run_program(self, text, *arguments, code=0, **options):
        """Runs a program to its end. Returns its lines."""
        return self.start(text, *arguments, **options).finish(code)

    def create(self, path=None, rows=0, **options):
        """Makes a closed database with the table ``t`` and `rows` acknowledged rows of ``base``."""
        text = "conn = create(sys.argv[1]); insert(conn, 'base', int(sys.argv[2])); conn.close()"
        self.run_program(text, path or self.path, rows, **options)

    def create_and_kill(self, path=None, rows=20, **options):
        """Makes a database whose only process was killed. Its rows are in the log."""
        text = "conn = create(sys.argv[1]); insert(conn, 'base', int(sys.argv[2])); die()"
        self.run_program(text, path or self.path, rows, code=-9, **options)

    def contents(self, path=None, **options):
        """The rows of a database, which a separate process reads after an integrity check."""
        lines = self.run_program(CHECK, path or self.path, **options)
        self.assertEqual(lines[-1], ["integrity", "ok"])
        return {(words[1], int(words[2])) for words in lines[:-1]}

    def check(self, path=None, exact=None, clean=True, **options):
        """Checks that every acknowledged row is there. After that, no other file may lie beside the database, and stock
        must read the same rows."""
        path = path or self.path
        found = self.contents(path, **options)
        if exact is not None and found != exact:
            lost, more = sorted(exact - found), sorted(found - exact)
            self.fail(f"{len(lost)} rows are lost, {len(more)} are too many: {lost[:5]} {more[:5]}")
        missing = self.acked - found if exact is None else set()
        if missing:
            self.fail(f"{len(missing)} of {len(self.acked)} acknowledged rows are lost: {sorted(missing)[:5]}")
        if clean:
            self.assert_clean(path)
            self.assertEqual(self.contents(path, engine="stock"), found)
        return found

    def assert_clean(self, path=None):
        """Checks that only the database is left."""
        path = Path(path or self.path)
        beside = [name for name in left_in(path.parent) if name.startswith((path.name + "-", "duralite-"))]
        self.assertEqual(beside, [], "left behind beside the database")
        self.assertEqual(left_in(self.log_dir), [], "left in the log directory")
