"""Compares the two sides test by test, and decides what counts.

The reference is stock SQLite, or Duralite without the setting that is tried; see `rounds.py`. A test is
*worse* if it passed there and did not on the side under test (failed, was skipped, did not run). A worse test is run again before it counts; see `Verdict`.
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

    new         it fails again where it is tested and passes on the reference, alone or once more with its
                batch; or it failed only once, but in a way that harms (HARM), or in a suite that has no
                unsteady tests, and the reference passed every time
    unsteady    it passed every time that it was run again; or the reference did not pass again
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

    @property
    def is_of_timing(self):
        """Whether the test may also pass, by the reason's first word."""
        return self.reason.startswith("sometimes ")

    def covers(self, suite, test, journal):
        return (
            self.suite == suite and self.journal in ("*", journal) and fnmatch.fnmatchcase(test, escaped(self.pattern))
        )


def escaped(pattern):
    """Only * is special: brackets belong to pytest's names."""
    return "".join(f"[{letter}]" if letter in "[]?" else letter for letter in pattern)


def read_exceptions(text):
    """Lines `suite | test | journal | reason`; # begins a comment. A reason that begins with "sometimes" is that of a test
    that fails or passes by the timing of its threads."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|", 3)]
        if len(fields) != 4 or not all(fields):
            raise ValueError(f"exceptions, line {number}: not `suite | test | journal | reason`: {line}")
        yield Exception_(*fields)


def worse(reference, tested):
    """test -> what it came to on Duralite, for those that passed on reference only."""
    found = {}
    for test, (outcome, _) in reference.items():
        here = tested.get(test, ABSENT)
        if outcome == GOOD and here[0] != GOOD:
            found[test] = here
    # What the reference does not even have: a class or module that could not be set up.
    for test, here in tested.items():
        if test not in reference and here[0] == "failed":
            found[test] = here
    return found


def failed_on_both(reference, tested):
    return [test for test, (outcome, _) in reference.items() if outcome == "failed" and tested.get(test, ABSENT)[0] == "failed"]


def better(reference, tested):
    return [test for test, (outcome, _) in reference.items() if outcome == "failed" and tested.get(test, ABSENT)[0] == GOOD]


def shown_again(test, was_on_reference, again):
    """How it failed here in the first of the repetitions that the reference passed and this side did not, or None.

    `again` are pairs (the reference's tests, those of the side under test). What exists only as a failure (of a class's set-up, say)
    passes by not being there.
    """
    unnamed = ABSENT if was_on_reference else (GOOD, "")
    for reference, tested in again:
        if reference.get(test, unnamed)[0] == GOOD and tested.get(test, unnamed)[0] != GOOD:
            return tested.get(test, unnamed)
    return None


def judge(test, first, was_on_reference, again, excusable=True):
    """The verdict on a worse test, after its repetitions."""
    shown = shown_again(test, was_on_reference, again)
    if shown:
        return Verdict(test, "new", *shown)
    reference_is_steady = all(reference.get(test, ABSENT)[0] != "failed" for reference, _ in again)
    # A loss that shows one time in three is a loss.
    once_is_enough = not excusable or harms(first)
    return Verdict(test, "new" if once_is_enough and reference_is_steady else "unsteady", *first)


def harms(end):
    return end[0] == "failed" and HARM.search(end[1]) is not None
