"""One whole run: every batch on both sides, what differs again, verdicts, and the numbers."""

import json
import re
import shutil
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from . import compare
from .environment import OUT, hash_of
from .execute import run_batch
from .rounds import SIDES
from .suites import ALL

# With more worse tests than this in a batch each is not run alone any more, only the batch again.
ALONE_LIMIT = 12
# How often one is run alone that differed once and then neither alone nor with its batch.
REPEATS = 5


class Session:
    def __init__(self, environment, this_round, settings, jobs, say):
        self.environment = environment
        self.round = this_round
        self.sides = this_round.sides(settings)
        self.jobs = jobs
        self.say = say

    def _pair(self, pool, batch, arguments=None, tag=""):
        return [self._submit(pool, batch, side, arguments, tag) for side in self.sides]

    def _submit(self, pool, batch, side, arguments=None, tag=""):
        return pool.submit(run_batch, self.environment, batch, side, self.round, arguments, tag)

    def run(self, batches, known=None):
        """Returns a list with one result per batch. `known` has the outcome of the reference, by label, of batches that ran before."""
        results = []
        reference_side, tested_side = self.sides
        known = known or {}
        with ThreadPoolExecutor(self.jobs) as pool:
            first = []
            for batch in batches:
                before = done(known[batch.label]) if batch.label in known else self._submit(pool, batch, reference_side)
                first.append((batch, (before, self._submit(pool, batch, tested_side))))
            for batch, pair in first:
                reference, tested = (future.result() for future in pair)
                worse = compare.worse(reference.tests, tested.tests)
                good = sum(1 for outcome, _ in reference.tests.values() if outcome == "passed")
                seconds = f"{reference.seconds:.0f} and {tested.seconds:.0f} s"
                self.say(
                    f"{batch.label}: {len(reference.tests)} tests, {good} pass on {reference_side.name}, "
                    f"{len(worse)} worse on {tested_side.name}; {seconds}"
                )
                results.append({"batch": batch, "reference": reference, "tested": tested, "worse": worse, "verdicts": []})
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
        reference = result["reference"].tests
        return [
            test for test in result["worse"]
            if not compare.shown_again(plain_name(test), test in reference, self._runs(result, test))
        ]  # fmt: skip

    @staticmethod
    def _may_be_excused(result, test):
        return ALL[result["batch"].suite].excusable and not compare.harms(result["worse"][test])

    def _verdicts(self, result):
        reference = result["reference"].tests
        verdicts = []
        for test, first in result["worse"].items():
            # One that was never run alone, since there were too many, is not excused.
            excusable = self._may_be_excused(result, test) and test in result["repeats"]
            runs = self._runs(result, test)
            verdict = compare.judge(plain_name(test), first, test in reference, runs, excusable)
            verdicts.append(compare.Verdict(test, verdict.kind, verdict.outcome, verdict.text))
        return verdicts


def done(outcome):
    """What has a result already."""
    future = Future()
    future.set_result(outcome)
    return future


def plain_name(test):
    return re.sub(r" \(again, \d+\)$", "", test)


def plain(tests):
    return {plain_name(test): outcome for test, outcome in tests.items()}


def summarize(environment, this_round, results, exceptions, started, is_whole=False):
    """Per suite: the numbers, the names, and what is wrong with the run itself. `is_whole`: no batch was left out."""
    summary = {}
    used = set()
    for name in dict.fromkeys(result["batch"].suite for result in results):
        mine = [result for result in results if result["batch"].suite == name]
        entry = summary[name] = {
            "title": ALL[name].title, "version": environment.versions.get(name.removesuffix("-files"), ""), "tests": 0, "passed_on_both": 0,
            "failed_on_both": [], "only_reference_fails": [], "skipped": 0, "new": [], "excepted": [], "unsteady": [],
            "opens": {side: Counter() for side in SIDES}, "wrong": [],
        }  # fmt: skip
        for result in mine:
            add_batch(entry, result, name, this_round.journal, exceptions, used)
        for key, side in zip(SIDES, this_round.sides({})):
            entry["wrong"] += wrong_opens(entry["opens"][key], side, this_round.journal)
        if not entry["passed_on_both"]:
            entry["wrong"].append("no test passed on both sides")
        if hash_of(environment.library) != environment.library_hash:
            entry["wrong"].append("the library under test was changed during the run")
        entry["wrong"] += [
            f"the exception for {item.pattern} is not needed"
            for item in exceptions
            if item not in used and not item.is_of_timing and item.suite == name and item.journal in ("*", this_round.journal)
            and (is_whole or any(item.covers(name, test, item.journal) for result in mine for test in result["reference"].tests))
        ]  # fmt: skip
    return {
        "round": this_round.name, "python": environment.version, "sqlite": environment.versions["sqlite"],
        "library": environment.library_hash, "seconds": round(time.monotonic() - started), "suites": summary,
    }  # fmt: skip


def wrong_opens(opens, side, journal):
    """What is wrong with how a side has opened databases."""
    for word, count in opens.items():
        if count and word not in side.opens:
            yield f"{count} opens of a file on {side.name} were of another kind: {word}"
    if not opens[side.opens[0 if journal == "wal" else -1]]:
        yield f"no open of a file was as it has to be on {side.name}: this tested something else"


def add_batch(entry, result, suite, journal, exceptions, used):
    reference, tested = result["reference"], result["tested"]
    entry["tests"] += len(reference.tests)
    entry["passed_on_both"] += sum(
        1 for test, (outcome, _) in reference.tests.items()
        if outcome == "passed" and tested.tests.get(test, compare.ABSENT)[0] == "passed"
    )  # fmt: skip
    entry["skipped"] += sum(1 for outcome, _ in reference.tests.values() if outcome == "skipped")
    entry["failed_on_both"] += compare.failed_on_both(reference.tests, tested.tests)
    entry["only_reference_fails"] += compare.better(reference.tests, tested.tests)
    for side in SIDES:
        entry["opens"][side].update(result[side].opens)
    if not reference.complete:
        entry["wrong"].append(f"{result['batch'].label} did not come to its end on the reference: see {relative(reference.output)}")
    if not tested.complete and not result["worse"]:
        entry["wrong"].append(f"{result['batch'].label} did not come to its end: see {relative(tested.output)}")
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
            for test in result["reference"].tests | result["tested"].tests
        }
        for result in results
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary | {"tests": tests}, indent=1, sort_keys=True, default=str) + "\n")


def tidy(results, this_round):
    """Keeps the directories of batches that differ."""
    for result in results:
        if not result["worse"] and result["reference"].complete and result["tested"].complete:
            shutil.rmtree(OUT / "work" / this_round.name / result["batch"].suite / result["batch"].name, ignore_errors=True)
