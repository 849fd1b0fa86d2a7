"""One whole run: every batch on both sides, what differs again, verdicts, and the numbers."""

import json
import re
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import compare
from .environment import OUT
from .execute import SIDES, run_batch
from .suites import ALL

# With more worse tests than this in a batch each is not run alone any more, only the batch again.
ALONE_LIMIT = 12


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
                result["alone"] = self._alone(pool, result)
            for result in doubtful:
                result["alone"] = {
                    test: tuple(plain(future.result().tests) for future in pair) for test, pair in result["alone"].items()
                }
            for result in doubtful:
                undecided = [verdict for verdict in self._verdicts(result, []) if verdict.kind != "new"]
                result["again"] = self._pair(pool, result["batch"], tag="-again") if undecided else []
            for result in doubtful:
                again = [future.result().tests for future in result["again"]]
                result["verdicts"] = self._verdicts(result, [tuple(again)] if again else [])
        return results

    def _alone(self, pool, result):
        worse = result["worse"]
        if len(worse) > ALONE_LIMIT:
            return {}
        suite = ALL[result["batch"].suite]
        return {
            test: self._pair(pool, result["batch"], suite.arguments_for([test]), f"-alone-{number}")
            for number, test in enumerate(worse)
        }

    def _verdicts(self, result, again):
        stock = result["stock"].tests
        verdicts = []
        for test, first in result["worse"].items():
            runs = [tuple(result["alone"][test])] if test in result["alone"] else []
            name = re.sub(r" \(again, \d+\)$", "", test)
            verdict = compare.judge(name, first, test in stock, runs)
            if verdict.kind != "new":
                verdict = compare.judge(test, first, test in stock, again)
            verdicts.append(compare.Verdict(test, verdict.kind, verdict.outcome, verdict.text))
        return verdicts


def plain(tests):
    return {re.sub(r" \(again, \d+\)$", "", test): outcome for test, outcome in tests.items()}


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
    stale = [
        f"{item.suite} | {item.pattern}"
        for item in exceptions
        if item not in used and item.suite in summary and item.journal in ("*", journal)
    ]
    return {
        "journal": journal, "python": environment.version, "sqlite": environment.versions["sqlite"],
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
