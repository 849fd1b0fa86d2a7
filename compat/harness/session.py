"""One whole run: every batch on both sides, what differs again, verdicts, and the numbers."""

import json
import re
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import compare
from .environment import OUT, hash_of
from .execute import SIDES, run_batch
from .suites import ALL

# With more worse tests than this in a batch each is not run alone any more, only the batch again.
ALONE_LIMIT = 12
# How often one is run alone that differed once and then neither alone nor with its batch.
REPEATS = 5


class Session:
    def __init__(self, environment, journal, settings, jobs, say):
        self.environment = environment
        self.journal = journal
        self.settings = settings
        self.jobs = jobs
        self.say = say

    def _pair(self, pool, batch, arguments=None, tag=""):
        return [
            pool.submit(run_batch, self.environment, batch, side, self.journal, arguments, self.settings, tag)
            for side in SIDES
        ]

    def run(self, batches):
        """Returns a list with one result per batch."""
        results = []
        with ThreadPoolExecutor(self.jobs) as pool:
            first = [(batch, self._pair(pool, batch)) for batch in batches]
            for batch, pair in first:
                stock, duralite = (future.result() for future in pair)
                worse = compare.worse(stock.tests, duralite.tests)
                good = sum(1 for outcome, _ in stock.tests.values() if outcome == "passed")
                seconds = f"{stock.seconds:.0f} and {duralite.seconds:.0f} s"
                self.say(f"{batch.label}: {len(stock.tests)} tests, {good} pass on stock, {len(worse)} worse; {seconds}")
                results.append({"batch": batch, "stock": stock, "duralite": duralite, "worse": worse, "verdicts": []})
            doubtful = [result for result in results if result["worse"]]
            for result in doubtful:
                result["repeats"] = {}
                if len(result["worse"]) <= ALONE_LIMIT:
                    self._repeat(pool, result, result["worse"], 1)
            for result in doubtful:
                self._collect(result)
                result["again"] = self._pair(pool, result["batch"], tag="-again") if self._not_shown(result) else []
            for result in doubtful:
                result["again"] = [tuple(future.result().tests for future in result["again"])] if result["again"] else []
                doubts = [test for test in self._not_shown(result) if self._may_be_excused(result, test)]
                self._repeat(pool, result, doubts[:ALONE_LIMIT], REPEATS)
            for result in doubtful:
                self._collect(result)
                result["verdicts"] = self._verdicts(result)
        return results

    def _repeat(self, pool, result, tests, times):
        """Runs each of the tests alone, on both sides."""
        suite = ALL[result["batch"].suite]
        names = list(result["worse"])
        for test in tests:
            runs = result["repeats"].setdefault(test, [])
            for _ in range(times):
                tag = f"-alone-{names.index(test)}-{len(runs)}"
                runs.append(self._pair(pool, result["batch"], suite.arguments_for([test]), tag))

    @staticmethod
    def _collect(result):
        for runs in result["repeats"].values():
            runs[:] = [pair if isinstance(pair, tuple) else tuple(plain(run.result().tests) for run in pair) for pair in runs]

    @staticmethod
    def _runs(result, test):
        """The repetitions, by the plain name: alone it has no number, among the others of its batch it may."""
        name = plain_name(test)
        batch = ({name: side[test]} if test in side else {} for pair in result.get("again", []) for side in pair)
        return [*result["repeats"].get(test, []), *zip(batch, batch)]

    def _not_shown(self, result):
        stock = result["stock"].tests
        return [
            test for test in result["worse"]
            if not compare.shown_again(plain_name(test), test in stock, self._runs(result, test))
        ]  # fmt: skip

    @staticmethod
    def _may_be_excused(result, test):
        return ALL[result["batch"].suite].excusable and not compare.harms(result["worse"][test])

    def _verdicts(self, result):
        stock = result["stock"].tests
        verdicts = []
        for test, first in result["worse"].items():
            # One that was never run alone, since there were too many, is not excused.
            excusable = self._may_be_excused(result, test) and test in result["repeats"]
            runs = self._runs(result, test)
            verdict = compare.judge(plain_name(test), first, test in stock, runs, excusable)
            verdicts.append(compare.Verdict(test, verdict.kind, verdict.outcome, verdict.text))
        return verdicts


def plain_name(test):
    return re.sub(r" \(again, \d+\)$", "", test)


def plain(tests):
    return {plain_name(test): outcome for test, outcome in tests.items()}


def summarize(environment, journal, results, exceptions, started):
    """Per suite: the numbers, the names, and what is wrong with the run itself."""
    summary = {}
    used = set()
    for name in dict.fromkeys(result["batch"].suite for result in results):
        mine = [result for result in results if result["batch"].suite == name]
        entry = summary[name] = {
            "title": ALL[name].title, "version": environment.versions.get(name.removesuffix("-files"), ""), "tests": 0, "passed_on_both": 0,
            "failed_on_both": [], "only_stock_fails": [], "skipped": 0, "new": [], "excepted": [], "unsteady": [],
            "opens": {side: Counter() for side in SIDES}, "wrong": [],
        }  # fmt: skip
        for result in mine:
            add_batch(entry, result, name, journal, exceptions, used)
        opens = entry["opens"]
        if opens["stock"]["active"] or opens["stock"]["idle"]:
            entry["wrong"].append("Duralite was in the way of a run on stock SQLite")
        if opens["duralite"]["none"]:
            entry["wrong"].append(f"{opens['duralite']['none']} opens of a file did not go through Duralite")
        if not opens["duralite"]["active" if journal == "wal" else "idle"]:
            entry["wrong"].append("no open of a file went through Duralite: this tested plain SQLite")
        if not entry["passed_on_both"]:
            entry["wrong"].append("no test passed on both sides")
        if hash_of(environment.library) != environment.library_hash:
            entry["wrong"].append("the library under test was changed during the run")
    stale = [
        f"{item.suite} | {item.pattern}"
        for item in exceptions
        if item not in used and item.suite in summary and item.journal in ("*", journal)
    ]
    return {
        "journal": journal, "python": environment.version, "sqlite": environment.versions["sqlite"],
        "library": environment.library_hash,
        "seconds": round(time.monotonic() - started), "suites": summary, "exceptions_not_needed": stale,
    }  # fmt: skip


def add_batch(entry, result, suite, journal, exceptions, used):
    stock, duralite = result["stock"], result["duralite"]
    entry["tests"] += len(stock.tests)
    entry["passed_on_both"] += sum(
        1 for test, (outcome, _) in stock.tests.items()
        if outcome == "passed" and duralite.tests.get(test, compare.ABSENT)[0] == "passed"
    )  # fmt: skip
    entry["skipped"] += sum(1 for outcome, _ in stock.tests.values() if outcome == "skipped")
    entry["failed_on_both"] += compare.failed_on_both(stock.tests, duralite.tests)
    entry["only_stock_fails"] += compare.better(stock.tests, duralite.tests)
    for side, outcome in (("stock", stock), ("duralite", duralite)):
        entry["opens"][side].update(outcome.opens)
    if not stock.complete:
        entry["wrong"].append(f"{result['batch'].label} did not come to its end on stock SQLite: see {relative(stock.output)}")
    if not duralite.complete and not result["worse"]:
        entry["wrong"].append(f"{result['batch'].label} did not come to its end: see {relative(duralite.output)}")
    for verdict in result["verdicts"]:
        record = {"test": verdict.test, "outcome": verdict.outcome, "text": verdict.text, "batch": result["batch"].name}
        covering = [item for item in exceptions if item.covers(suite, verdict.test, journal)]
        if covering:
            used.update(covering)
            entry["excepted"].append(record | {"reason": covering[0].reason})
        else:
            entry[verdict.kind].append(record)


def relative(path):
    return Path(path).relative_to(OUT.parent.parent) if OUT.parent.parent in Path(path).parents else path


def write_json(summary, results, path):
    """The whole, with each test's end on both sides."""
    tests = {
        f"{result['batch'].label}": {
            test: [result[side].tests.get(test, compare.ABSENT)[0] for side in SIDES]
            for test in result["stock"].tests | result["duralite"].tests
        }
        for result in results
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary | {"tests": tests}, indent=1, sort_keys=True, default=str) + "\n")


def tidy(results, journal):
    """Keeps the directories of batches that differ."""
    for result in results:
        if not result["worse"] and result["stock"].complete and result["duralite"].complete:
            shutil.rmtree(OUT / "work" / journal / result["batch"].suite / result["batch"].name, ignore_errors=True)
