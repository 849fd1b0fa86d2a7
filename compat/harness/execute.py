"""Runs one batch on one side, and goes on behind a test that killed or stopped its process."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field

from .environment import FORCE_LIBRARY, OUT, Unavailable, run
from .suites import ALL, BATCH_LIMIT, LAUNCH, TEST_LIMIT, Suite

WORDS = ("concurrent", "active", "idle", "none")
ATTEMPTS = 6
TIMED_OUT = "time-out of the batch"


@dataclass
class Outcome:
    """How one side's tests ended: test -> (outcome, text), and which VFS the opens of files went through."""

    tests: dict = field(default_factory=dict)
    opens: dict = field(default_factory=lambda: dict.fromkeys(WORDS, 0))
    complete: bool = False
    output: str = ""
    seconds: float = 0.0


def kept_variables():
    """The caller's environment, less what would change a test."""
    prefixes = ("DURALITE_", "PYTHON", "COMPAT_", "DJANGO", "PEEWEE", "SQLITE", "PYTEST")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def variables(environment, suite, side, journal, directory):
    values = kept_variables()
    values |= {
        "PYTHONHASHSEED": "0",
        "PYTHONFAULTHANDLER": "1",
        "HOME": str(directory),
        "TMPDIR": str(directory / "tmp"),
        "PATH": f"{environment.venv / 'bin'}:{values.get('PATH', '')}",
        "COMPAT_SIDE": "duralite" if side.is_duralite else "stock",
        "COMPAT_JOURNAL": journal,
        "COMPAT_FORCE_LIBRARY": str(FORCE_LIBRARY),
        "COMPAT_EVIDENCE": str(directory / "evidence"),
        "COMPAT_RESULTS": str(directory / "results"),
        "COMPAT_LIMIT": str(TEST_LIMIT),
    }
    if side.is_duralite:
        values |= {"DURALITE_LIBRARY": str(environment.library), "DURALITE_MAKE_DEFAULT": "1", **side.settings}
    return values | suite.variables(environment, directory / "tree")


def read_results(path):
    """test -> (outcome, text); the tests that were under way; whether the end was reached."""
    tests, started, ended = {}, {}, False
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # the line that the process died in
            continue
        if "start" in record:
            started[record["start"]] = True
        elif "end" in record:
            ended = True
        else:
            tests[record["test"]] = (record["outcome"], record["text"])
            started.pop(record["test"].split(" (again, ")[0], None)
    return tests, list(started), ended


def run_batch(environment, batch, side, this_round, arguments=None, tag=""):
    """Runs the batch, or only `arguments`, on that side."""
    suite = ALL[batch.suite]
    directory = OUT / "work" / this_round.name / batch.suite / (batch.name + tag) / side.name
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "tmp").mkdir(parents=True)
    (directory / "tree").mkdir()
    place = suite.lay_out(directory / "tree")
    values = variables(environment, suite, side, this_round.journal, directory)
    outcome = Outcome()
    started = time.monotonic()
    command = [str(environment.python), str(LAUNCH), *(arguments or batch.arguments)]
    log = directory / "output"
    for _ in range(ATTEMPTS):
        (directory / "results").unlink(missing_ok=True)
        status = run_process(command, place, values, log)
        tests, under_way, ended = read_results(directory / "results")
        outcome.tests.update(tests)
        tail = log.read_text(errors="replace")[-3000:]
        for test in under_way:
            outcome.tests[test] = ("failed", f"the process ended in this test, status {status}\n{tail}")
        outcome.complete = ended
        if ended or status == TIMED_OUT or not (tests or under_way):
            break
        (directory / "skip").write_text("\n".join(outcome.tests), encoding="utf-8")
        values["COMPAT_SKIP"] = str(directory / "skip")
    outcome.output = str(log)
    outcome.seconds = time.monotonic() - started
    evidence = directory / "evidence"
    if evidence.exists():
        for word in evidence.read_text().split():
            outcome.opens[word] = outcome.opens.get(word, 0) + 1
    return outcome


def preflight(environment, sides):
    """Opens one database on each side; a library that cannot be loaded is one error, not thousands of failures."""
    directory = OUT / "preflight"
    for side in sides:
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "tmp").mkdir(parents=True)
        values = variables(environment, Suite(), side, "wal", directory)
        code = "import sqlite3; c = sqlite3.connect('a.db'); c.execute('CREATE TABLE t(a)'); c.close()"
        run(environment.python, "-c", code, cwd=directory, env=values)
        words = (directory / "evidence").read_text().split() if (directory / "evidence").exists() else []
        if words != [side.opens[0]]:
            raise Unavailable(f"a database opened on {side.name} said {words}: see compat/inject")


def run_process(command, place, values, log):
    """In a session of its own, so that whatever the tests leave running ends with it."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=place, env=values, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    in_time = has_ended(process.pid, BATCH_LIMIT)
    # Before the process is reaped: until then its number is nobody else's.
    os.killpg(process.pid, signal.SIGKILL)
    status = process.wait()
    return status if in_time else TIMED_OUT


def has_ended(pid, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(0.05)
    return False
