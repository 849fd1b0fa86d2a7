"""The rounds of a run: which journal mode is forced, and what is compared with what.

A round has two sides. Without `concurrent`, the reference is stock SQLite, and Duralite is under test.
With it, the reference is Duralite as in the round before, and under test is Duralite with
`concurrent=on`.
"""

from dataclasses import dataclass, field

from .environment import COMPAT

# The keys of the two sides in a result.
SIDES = ("reference", "tested")


@dataclass(frozen=True)
class Side:
    """Which SQLite runs the tests, and with which variables of Duralite's."""

    name: str
    is_duralite: bool
    settings: dict = field(default_factory=dict, hash=False)
    # The words of `force.c` for a database that is open as this side has to open it: at once, or later.
    opens: tuple = ()


@dataclass(frozen=True)
class Round:
    journal: str
    concurrent: bool = False

    @property
    def name(self):
        return self.journal + "-concurrent" * self.concurrent

    @property
    def exceptions(self):
        """The list of differences that are known, with their reasons."""
        return COMPAT / ("exceptions-concurrent.txt" if self.concurrent else "exceptions.txt")

    def sides(self, settings):
        """The reference and the side under test, with these variables for an engine."""
        duralite = Side("duralite", True, settings, ("active", "idle"))
        if not self.concurrent:
            return Side("stock", False, {}, ("none",)), duralite
        return duralite, Side("concurrent", True, settings | {"DURALITE_CONCURRENT": "on"}, ("concurrent", "idle"))


def rounds(journals, concurrents):
    """Only in WAL mode do transactions run beside each other."""
    return [
        Round(journal, concurrent) for journal in journals for concurrent in concurrents if journal == "wal" or not concurrent
    ]
