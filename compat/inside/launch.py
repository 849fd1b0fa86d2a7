"""Runs one batch of tests in this process and writes down how each test ends.

    launch.py unittest NAME...      as `python -m unittest` does
    launch.py pytest ARGUMENTS...
    launch.py script FILE ARGUMENTS...   a test program that uses unittest (Django's, peewee's)

COMPAT_RESULTS  file of one JSON object per line: {"start": test}, then {"test", "outcome", "text"};
                {"end": true} when the batch came to its end
COMPAT_SKIP     file with the names of tests that are not to be run: those that ran in an attempt before
COMPAT_LIMIT    seconds that one test may take; then the process ends, with its stacks on stderr
"""

import faulthandler
import json
import os
import runpy
import sys
from pathlib import Path

TEXT_LIMIT = 4000


class Log:
    """The file of results. It belongs to the process that opened it: children that tests fork are silent."""

    def __init__(self):
        self._file = open(os.environ["COMPAT_RESULTS"], "a", encoding="utf-8", buffering=1)
        self._pid = os.getpid()
        self._limit = float(os.environ.get("COMPAT_LIMIT", "120"))
        self._seen = {}
        skip = os.environ.get("COMPAT_SKIP")
        self.skip = frozenset(Path(skip).read_text(encoding="utf-8").splitlines()) if skip else frozenset()

    def _write(self, record):
        if os.getpid() == self._pid:
            self._file.write(json.dumps(record) + "\n")

    def start(self, test):
        # The stacks go to the real stderr, whatever the test runner captures.
        faulthandler.dump_traceback_later(self._limit, exit=True, file=sys.__stderr__)
        self._write({"start": test})

    def result(self, test, outcome, text=""):
        faulthandler.cancel_dump_traceback_later()
        count = self._seen[test] = self._seen.get(test, 0) + 1
        name = test if count == 1 else f"{test} (again, {count})"
        self._write({"test": name, "outcome": outcome, "text": text[-TEXT_LIMIT:]})

    def end(self):
        self._write({"end": True})


def record_unittest(log):
    """Taps unittest's result and test classes, which every runner of this kind derives from."""
    import traceback
    import unittest

    base = unittest.TestResult
    original = {name: getattr(base, name) for name in ("startTest", "stopTest", "addSubTest")}
    run = unittest.TestCase.run
    open_tests = {}

    def describe(error):
        return "".join(traceback.format_exception(*error))

    def put(test, outcome, text=""):
        name = test.id()
        if name not in open_tests:  # setUpClass, setUpModule: never started
            if outcome != "passed":
                log.result(name, outcome, text)
        elif open_tests[name] is None or outcome == "failed":
            open_tests[name] = (outcome, text)

    def start_test(self, test):
        open_tests[test.id()] = None
        log.start(test.id())
        return original["startTest"](self, test)

    def stop_test(self, test):
        name = test.id()
        if name in open_tests:
            log.result(name, *(open_tests.pop(name) or ("passed", "")))
        return original["stopTest"](self, test)

    def add_subtest(self, test, subtest, error):
        if error is not None:
            failed = not issubclass(error[0], unittest.SkipTest)
            put(test, "failed" if failed else "skipped", f"{subtest.id()}\n{describe(error)}")
        return original["addSubTest"](self, test, subtest, error)

    def tap(name, outcome, text_of):
        inner = getattr(base, name)

        def method(self, test, *arguments, **named):
            put(test, outcome, text_of(*arguments) if arguments else "")
            return inner(self, test, *arguments, **named)

        setattr(base, name, method)

    def run_unless_done(self, result=None):
        if self.id() in log.skip:
            return result
        return run(self, result)

    base.startTest, base.stopTest, base.addSubTest = start_test, stop_test, add_subtest
    tap("addSuccess", "passed", str)
    tap("addError", "failed", describe)
    tap("addFailure", "failed", describe)
    tap("addSkip", "skipped", str)
    tap("addExpectedFailure", "passed", lambda error: "expected failure")
    tap("addUnexpectedSuccess", "failed", str)
    unittest.TestCase.run = run_unless_done


class PytestRecorder:
    def __init__(self, log):
        self.log = log
        self.open = {}

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.nodeid not in self.log.skip]

    def pytest_runtest_logstart(self, nodeid):
        self.open[nodeid] = ("passed", "")
        self.log.start(nodeid)

    def pytest_runtest_logreport(self, report):
        outcome, text = self.open[report.nodeid]
        if report.failed:
            outcome, text = "failed", f"{text}{report.when}: {report.longreprtext}\n"
        elif report.skipped and outcome == "passed" and not hasattr(report, "wasxfail"):
            outcome, text = "skipped", str(report.longrepr)
        self.open[report.nodeid] = (outcome, text)

    def pytest_runtest_logfinish(self, nodeid):
        self.log.result(nodeid, *self.open.pop(nodeid))

    def pytest_collectreport(self, report):
        if report.failed:
            self.log.result(f"collection of {report.nodeid}", "failed", report.longreprtext)


def main():
    log = Log()
    kind, *arguments = sys.argv[1:]
    # As `python -m` and a script would find their modules.
    sys.path[0] = os.getcwd()
    try:
        if kind == "pytest":
            import pytest

            pytest.main(arguments, plugins=[PytestRecorder(log)])
        elif kind == "unittest":
            import unittest

            record_unittest(log)
            unittest.main(module=None, argv=["unittest", *arguments])
        elif kind == "script":
            record_unittest(log)
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            raise SystemExit(f"launch.py: what is {kind!r}?")
    finally:
        if isinstance(sys.exc_info()[1], (SystemExit, type(None))):
            log.end()


if __name__ == "__main__":
    main()
