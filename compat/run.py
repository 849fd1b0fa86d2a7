#!/usr/bin/env python3
"""Other people's tests with Duralite as the default VFS, beside stock SQLite. See CONTRIBUTING.md.

Both sides run the same tests in the same Python on the same SQLite, with WAL mode and
synchronous=FULL forced on each database file (`--journal wal`), or with the journal modes that
the programs choose (`--journal as-is`). What passes on stock SQLite and not on Duralite is a
failure, unless `exceptions.txt` gives a reason for it. In a round of its own, what passes on
Duralite has to pass with `concurrent=on` too, unless `exceptions-concurrent.txt` gives a reason.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import compare, execute, rounds, session  # noqa: E402
from harness.environment import OUT, Environment, Unavailable, choose_python  # noqa: E402
from harness.suites import ALL  # noqa: E402

ENGINES = {"waldio": {}, "nvwal": {"DURALITE_NVRAM": "emulate"}}
SHOWN = 40


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(ALL)}; all of them without a name")
    parser.add_argument("--quick", action="store_true", help="the part that continuous integration runs")
    parser.add_argument("--or-skip", action="store_true", help="skip what cannot be had here, as --quick does")
    parser.add_argument("--journal", choices=("wal", "as-is", "both"), default="both")
    parser.add_argument("--concurrent", choices=("off", "on", "both"), default="both",
                        help="on: with that setting, beside Duralite without it, in WAL mode")  # fmt: skip
    parser.add_argument("--engine", choices=ENGINES, default="waldio")
    parser.add_argument("--batch", metavar="TEXT", help="only batches whose name contains it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="batches at a time")
    parser.add_argument("--list", action="store_true", help="list the batches, run nothing")
    chosen = parser.parse_args()
    for name in chosen.suites:
        if name not in ALL:
            parser.error(f"{name} is no suite; there are {', '.join(ALL)}")
    chosen.rounds = chosen_rounds(chosen)
    if not chosen.rounds:
        parser.error("concurrent=on has no effect but in WAL mode")
    return chosen


def chosen_rounds(chosen):
    # The journal modes as they are: Duralite passes them on, which the long run looks at.
    every = ("wal",) if chosen.quick else ("wal", "as-is")
    journals = every if chosen.journal == "both" else (chosen.journal,)
    concurrents = {"off": (False,), "on": (True,), "both": (False, True)}[chosen.concurrent]
    return rounds.rounds(journals, concurrents)


def say(text):
    print(text, flush=True)


def show(summary):
    say("")
    say(f"library {summary['library'][:16]}, round {summary['round']}, SQLite {summary['sqlite']}, Python {summary['python']}, {summary['seconds']} s")
    columns = "{:<14}{:<22}{:>7}{:>8}{:>8}{:>8}{:>8}{:>9}{:>9}   {}"
    say(columns.format("suite", "version", "tests", "both", "neither", "skipped", "NEW", "excepted", "unsteady",
                       "opens of files: concurrent, in a log, not yet, not Duralite"))  # fmt: skip
    for name, suite in summary["suites"].items():
        opens = suite["opens"]["tested"]
        say(columns.format(
            name, suite["version"][:21], suite["tests"], suite["passed_on_both"], len(suite["failed_on_both"]), suite["skipped"],
            len(suite["new"]), len(suite["excepted"]), len(suite["unsteady"]), ", ".join(str(opens[word]) for word in execute.WORDS),
        ))  # fmt: skip
    for name, suite in summary["suites"].items():
        for item in suite["unsteady"]:
            say(f"unsteady: {name}: {item['test']}: {last_line(item['text'])}")
        for item in suite["excepted"]:
            say(f"excepted: {name}: {item['test']}: {item['reason']}")
        for test in suite["only_reference_fails"]:
            say(f"only the reference fails: {name}: {test}")
        if suite["new"]:
            say(f"{name}: new failures by their last line:")
            for text, count in Counter(last_line(item["text"]) for item in suite["new"]).most_common(15):
                say(f"  {count:>5}  {text}")


def last_line(text):
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if lines and lines[0].startswith("the process ended"):
        return lines[0]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return (errors or lines or ["no text"])[-1][:150]


def count(summaries):
    passed = failed = excepted = 0
    for summary in summaries:
        for name, suite in summary["suites"].items():
            where = f"{name}, round {summary['round']}"
            for item in suite["new"][:SHOWN]:
                say(f"FAIL: {where}: {item['test']}")
            if len(suite["new"]) > SHOWN:
                say(f"FAIL: {where}: and {len(suite['new']) - SHOWN} more")
            for text in suite["wrong"]:
                say(f"FAIL: {where}: {text}")
            passed += suite["passed_on_both"]
            failed += len(suite["new"]) + len(suite["wrong"])
            excepted += len(suite["excepted"])
    return passed, failed, excepted


def main():
    chosen = arguments()
    suites = chosen.suites or list(ALL)
    environment = Environment(choose_python())
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        environment.prepare(suites)
        if not chosen.list:
            for this_round in chosen.rounds:
                execute.preflight(environment, this_round.sides(ENGINES[chosen.engine]))
    except Unavailable as missing:
        say(f"compat: {missing}")
        if os.environ.get("DURALITE_REQUIRE_RIGS") == "1" or not (chosen.quick or chosen.or_skip):
            say("0 passed, 1 failed")
            return 1
        say("compat: skipped")
        say("0 passed, 0 failed")
        return 0
    batches = [
        batch
        for name in suites
        for batch in ALL[name].batches(environment)
        if (batch.quick or not chosen.quick) and (chosen.batch or "") in batch.name
    ]
    if chosen.list:
        for batch in batches:
            say(f"{batch.label}{' (quick)' if batch.quick else ''}: {' '.join(batch.arguments)}")
        return 0
    summaries = []
    # Of the round before: its side under test is the reference of the next one.
    known = {}
    is_whole = not chosen.quick and not chosen.batch
    for this_round in chosen.rounds:
        started = time.monotonic()
        run = session.Session(environment, this_round, ENGINES[chosen.engine], chosen.jobs, say)
        results = run.run(batches, known if this_round.concurrent else None)
        exceptions = list(compare.read_exceptions(this_round.exceptions.read_text(encoding="utf-8")))
        summary = session.summarize(environment, this_round, results, exceptions, started, is_whole)
        session.write_json(summary, results, OUT / f"results-{this_round.name}.json")
        session.tidy(results, this_round)
        known = {result["batch"].label: result["tested"] for result in results}
        show(summary)
        summaries.append(summary)
    passed, failed, excepted = count(summaries)
    files = ", ".join(f"out/compat/results-{summary['round']}.json" for summary in summaries)
    say(f"\nthe results, test by test: {files}")
    say(f"{passed} passed, {failed} failed, {excepted} skipped" if excepted else f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
