"""Compares the two sides test by test, and decides what counts.

A test is *worse* if it passed on stock SQLite and did not on Duralite (failed, was skipped, did not
run). A worse test is run again before it counts; see `Verdict`.
"""

import fnmatch
import re
from dataclasses import dataclass

GOOD = "passed"
ABSENT = ("absent", "did not run")
# What neither a slow machine nor the order of tests explains: once is enough.
HARM = re.compile(
    r"malformed|file is not a database|disk I/O error|unable to open database|integrity_check"
    r"|the process ended in this test|readonly database"
)


@dataclass(frozen=True)
class Verdict:
    """What came of a worse test.

    new         it fails on Duralite again and passes on stock, alone or once more with its batch; or it
                failed only once, but in a way that harms (HARM), or in a suite that has no unsteady tests,
                and stock passed every time
    unsteady    it passed on Duralite every time that it was run again; or stock did not pass again
    """

    test: str
    kind: str
    outcome: str
    text: str


@dataclass(frozen=True)
class Exception_:
    suite: str
    pattern: str
    journal: str
    reason: str

    def covers(self, suite, test, journal):
        return (
            self.suite == suite and self.journal in ("*", journal) and fnmatch.fnmatchcase(test, escaped(self.pattern))
        )


def escaped(pattern):
    """Only * is special: brackets belong to pytest's names."""
    return "".join(f"[{letter}]" if letter in "[]?" else letter for letter in pattern)


def read_exceptions(text):
    """Lines `suite | test | journal | reason`; # begins a comment."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|", 3)]
        if len(fields) != 4 or not all(fields):
            raise ValueError(f"exceptions, line {number}: not `suite | test | journal | reason`: {line}")
        yield Exception_(*fields)


def worse(stock, duralite):
    """test -> what it came to on Duralite, for those that passed on stock only."""
    found = {}
    for test, (outcome, _) in stock.items():
        here = duralite.get(test, ABSENT)
        if outcome == GOOD and here[0] != GOOD:
            found[test] = here
    # What stock does not even have: a class or module that could not be set up.
    for test, here in duralite.items():
        if test not in stock and here[0] == "failed":
            found[test] = here
    return found


def failed_on_both(stock, duralite):
    return [test for test, (outcome, _) in stock.items() if outcome == "failed" and duralite.get(test, ABSENT)[0] == "failed"]


def better(stock, duralite):
    return [test for test, (outcome, _) in stock.items() if outcome == "failed" and duralite.get(test, ABSENT)[0] == GOOD]


def shown_again(test, was_on_stock, again):
    """How it failed here in the first of the repetitions that stock passed and Duralite did not, or None.

    `again` are pairs (stock's tests, Duralite's). What exists only as a failure (of a class's set-up, say)
    passes by not being there.
    """
    unnamed = ABSENT if was_on_stock else (GOOD, "")
    for stock, duralite in again:
        if stock.get(test, unnamed)[0] == GOOD and duralite.get(test, unnamed)[0] != GOOD:
            return duralite.get(test, unnamed)
    return None


def judge(test, first, was_on_stock, again, excusable=True):
    """The verdict on a worse test, after its repetitions."""
    shown = shown_again(test, was_on_stock, again)
    if shown:
        return Verdict(test, "new", *shown)
    stock_is_steady = all(stock.get(test, ABSENT)[0] != "failed" for stock, _ in again)
    # A loss that shows one time in three is a loss.
    once_is_enough = not excusable or harms(first)
    return Verdict(test, "new" if once_is_enough and stock_is_steady else "unsteady", *first)


def harms(end):
    return end[0] == "failed" and HARM.search(end[1]) is not None
