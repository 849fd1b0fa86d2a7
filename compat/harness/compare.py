"""Compares the two sides test by test, and decides what counts.

A test is *worse* if it passed on stock SQLite and did not on Duralite (failed, was skipped, did not
run). A worse test is run again before it counts; see `Verdict`.
"""

import fnmatch
from dataclasses import dataclass

GOOD = "passed"
ABSENT = ("absent", "did not run")


@dataclass(frozen=True)
class Verdict:
    """What came of a worse test.

    new         it fails on Duralite and passes on stock, run alone or once more with its batch
    unsteady    it passed when it was run again, both ways; or stock did not pass again
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


def judge(test, first, was_on_stock, again):
    """The verdict on a worse test; `again` are the repeated runs, each a pair (stock's tests, Duralite's)."""
    for stock, duralite in again:
        # What exists only as a failure (of a class's set-up, say) passes by not being there.
        unnamed = ABSENT if was_on_stock else (GOOD, "")
        there, here = stock.get(test, unnamed), duralite.get(test, unnamed)
        if there[0] == GOOD and here[0] != GOOD:
            return Verdict(test, "new", *here)
    return Verdict(test, "unsteady", *first)
