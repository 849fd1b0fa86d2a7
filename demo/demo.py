#!/usr/bin/python3
"""Durable commits, fast: stock SQLite inserts a real file, one transaction per line.

First as it is, then with Duralite loaded; then a process is killed in the middle of its work
and everything it had acknowledged is shown to be there. Ends with a table and out/demo.svg.
Exit status: 0 if every acknowledged row was found, 1 if not, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import inserts
from inserts import ACK_BYTES, MODES
from show import Progress, chart, table

PROJECT = Path(__file__).resolve().parents[1]
INSERTS = [sys.executable, str(PROJECT / "demo" / "inserts.py")]
CLI = PROJECT / "target" / "release" / "duralite"
SHARED_MEMORY = "/dev/shm"
RUN_SECONDS = 3.0
ROWS_BETWEEN_LOOKS = 64
# Lines that a process inserts which is killed.
KILLED_ROWS = 4000
TRACED_COMMITS = 1000
FRAME_HEADER_BYTES = 24


class Failed(Exception):
    """The demonstration did not show what it is there to show."""


@dataclass
class Run:
    """What a timed run measured. None where stock SQLite has no such thing, or nothing counts it."""

    label: str
    rows: int
    rate: float
    logged_bytes: float | None = None
    lines: float | None = None
    fences: float | None = None
    system_calls: float | None = None


class Demo:
    def __init__(self, options, pool):
        self.options, self.pool, self.out = options, pool, options.out
        self.rows = inserts.read_rows(options.rows)
        self.killed_rows = self.rows[:KILLED_ROWS]
        self.directory = self.out / "demo"
        self.children = []

    def database(self, name):
        """A path for a new database."""
        for old in self.directory.glob(f"{name}.db*"):
            old.unlink()
        return self.directory / f"{name}.db"

    # The timed runs

    def timed(self, key):
        """Inserts the file, or as much of it as the time allows."""
        mode, path = MODES[key], self.database(key)
        conn = inserts.connect(mode, path, self.pool)
        progress = Progress(mode.label, len(self.rows))
        before = inserts.counters(conn)
        wal = Path(f"{path}-wal")
        wal_before = wal.stat().st_size if wal.exists() else 0
        done, began = 0, time.perf_counter()
        for row in self.rows:
            conn.execute(inserts.INSERT, row)
            done += 1
            if done % ROWS_BETWEEN_LOOKS == 0:
                progress.update(done)
                if time.perf_counter() - began > RUN_SECONDS:
                    break
        seconds = time.perf_counter() - began
        progress.finish(done)
        after = inserts.counters(conn)
        run = Run(mode.label, done, done / seconds)
        if mode.duralite and not mode.engine:
            run.logged_bytes = (int(after["device_bytes"]) - int(before["device_bytes"])) / done
        elif mode.duralite:
            spent = {name: (int(after[name]) - int(before.get(name, 0))) / done for name in ("stored_bytes", "flushed_lines", "fences")}
            run.logged_bytes, run.lines, run.fences = spent["stored_bytes"], spent["flushed_lines"], spent["fences"]
        elif not mode.checkpoints:
            run.logged_bytes = (wal.stat().st_size - wal_before) / done
        conn.close()
        self.expect_rows(path, done)
        path.unlink()
        return run

    def expect_rows(self, path, count):
        """The closed database is a plain one, and holds the first lines of the file."""
        found = self.read_plain(path)
        if found != {"rows": count, "as_in_file": True, "integrity": "ok"}:
            raise Failed(f"{path} should hold {count} rows, but: {found}")

    def read_plain(self, path):
        conn = sqlite3.connect(f"file:{path}?vfs=unix&mode=ro", uri=True)
        try:
            return inserts.examine(conn, self.rows)
        finally:
            conn.close()

    def system_calls(self, key):
        """System calls per commit: the difference of two traced runs, so that start-up cancels out."""
        if not shutil.which("strace"):
            return None
        totals = []
        for count in (TRACED_COMMITS, 2 * TRACED_COMMITS):
            path, summary = self.database("traced"), self.directory / "strace.txt"
            command = ["strace", "-f", "-c", "-o", str(summary), *INSERTS, key, str(path), self.pool, f"--rows={count}"]
            process = self.start(command, stderr=subprocess.PIPE)
            _, complaint = process.communicate()
            if process.returncode != 0:
                print(f"  system calls not counted: {complaint.strip().splitlines()[-1]}")
                return None
            total = re.search(r"^\s*\S+\s+\S+\s+(?:\S+\s+)?(\d+)\s+(?:\d+\s+)?total$", summary.read_text(), re.MULTILINE)
            totals.append(int(total.group(1)))
        return (totals[1] - totals[0]) / TRACED_COMMITS

    def start(self, command, **others):
        """A child in a process group of its own, so that it can be ended with all its children."""
        process = subprocess.Popen(command, text=True, start_new_session=True, **others)
        self.children.append(process)
        return process

    def end_children(self):
        for process in self.children:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    # The kill

    def child(self, key, path, *arguments):
        """Starts the inserting process; returns it and the reading end of its acknowledgements."""
        reading, writing = os.pipe()
        command = [*INSERTS, key, str(path), self.pool, f"--ack-fd={writing}", *arguments]
        command.append(f"--rows={len(self.killed_rows)}")
        process = self.start(command, pass_fds=[writing], stdout=subprocess.PIPE)
        os.close(writing)
        return process, reading

    def follow(self, label, process, reading, first=0, kill_at=None, delay=0.0):
        """Reads acknowledgements until the pipe closes; kills the process at one of them."""
        progress, acknowledged, rest = Progress(label, len(self.killed_rows), first), first, b""
        with open(reading, "rb", buffering=0) as pipe:
            while chunk := pipe.read(1 << 16):
                rest += chunk
                whole = len(rest) - len(rest) % ACK_BYTES
                if whole:
                    acknowledged = int.from_bytes(rest[whole - ACK_BYTES : whole], "little")
                    rest = rest[whole:]
                progress.update(acknowledged)
                if kill_at is not None and acknowledged >= kill_at:
                    time.sleep(delay)
                    process.send_signal(signal.SIGKILL)
                    kill_at = None
        status = process.wait()
        progress.finish(acknowledged)
        if status != -signal.SIGKILL:
            raise Failed(f"the inserting process ended with status {status} instead of being killed")
        return acknowledged

    def durability(self, key):
        seed = self.options.seed
        dice = random.Random(f"{seed} {key}")
        kill_at = dice.randrange(len(self.killed_rows) // 5, len(self.killed_rows) * 4 // 5)
        path = self.database("killed")

        print(f"\n{key}, killed in the middle (seed {seed}): SIGKILL shortly after acknowledgement {kill_at:,}")
        process, reading = self.child(key, path)
        acknowledged = self.follow("inserting until killed", process, reading, 0, kill_at, dice.uniform(0, 0.003))
        print(f"  killed; its last acknowledged row is {acknowledged:,}")

        self.show_refusal(path)
        process, reading = self.child(key, path, "--resume")
        report = json.loads(process.stdout.readline() or "{}")
        if not report:
            raise Failed("the database could not be reopened after the kill")
        print(f"  reopened: {report['rows']:,} rows, integrity_check {report['integrity']}")
        if report["rows"] < acknowledged or not report["as_in_file"] or report["integrity"] != "ok":
            raise Failed(f"{acknowledged} rows were acknowledged; found after the kill: {report}")
        print(f"  every one of the {acknowledged:,} acknowledged rows is there and equals its line of the file")

        last = self.follow("inserting the rest", process, reading, report["rows"])
        if last != len(self.killed_rows):
            raise Failed(f"the second process acknowledged {last} rows of {len(self.killed_rows)}")
        kept = "its newest commits are in the log only" if MODES[key].journal_mode == "WAL" else "the guard is on"
        print(f"  killed again, without closing the database: {kept}")
        command = [str(CLI), "checkpoint", self.shown(path), "--nvram-dir", self.pool]
        print(f"  $ duralite {' '.join(command[1:])}")
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise Failed(f"duralite checkpoint: {result.stderr.strip()}")
        print(f"    {result.stdout.strip()}")
        answer = self.sqlite3(path, "SELECT count(*) || ' rows, integrity_check ' FROM characters; PRAGMA integrity_check")
        print(f"  $ sqlite3 {self.shown(path)}   (plain, nothing loaded): {' '.join(answer.stdout.split())}")
        self.expect_rows(path, len(self.killed_rows))

    def crowd(self):
        """Many connections at once: where stock SQLite starves all but one."""
        print("\nMany writers at once, two seconds each (busy timeout 20 s) ...")
        command = [str(CLI), "bench", "--json", "--rounds", "1", "--dir", str(self.directory / "crowd"), "waldio_crowds"]
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, complaint = process.communicate()
        shutil.rmtree(self.directory / "crowd", ignore_errors=True)
        if process.returncode != 0:
            raise Failed(f"duralite bench: {complaint.strip()}")
        rows = [row for row in json.loads(output)["tables"][0]["rows"] if "embedded" not in row[1]]
        print(table(["", "", "commits/s", "of stock", "slowest / mean", "worst commit, ms", "SQLITE_BUSY"], rows))

    def show_refusal(self, path):
        """Without Duralite the database must not open: its newest commits are in the log."""
        answer = self.sqlite3(path, "SELECT count(*) FROM characters")
        if answer.returncode == 0:
            raise Failed(f"plain sqlite3 opened a database that has commits in a log: {answer.stdout}")
        print(f"  $ sqlite3 {self.shown(path)}   (plain, nothing loaded): {answer.stderr.strip().splitlines()[-1]}")

    def sqlite3(self, path, sql):
        return subprocess.run(["sqlite3", path, sql], capture_output=True, text=True)

    def shown(self, path):
        return os.path.relpath(path)

    # All of it

    def run(self):
        print(f"SQLite {sqlite3.sqlite_version} as Debian ships it, Python {platform.python_version()};")
        print(f"{len(self.rows):,} lines of {inserts.SOURCE}, each one durable transaction")
        print(f"(synchronous=FULL, journal_mode=WAL where nothing else is said). Databases: {self.shown(self.directory)} ({file_system(self.directory)}).")
        if file_system(self.directory) in ("tmpfs", "ramfs"):
            print("NOTE: that is memory and not a disk: stock SQLite's figures below mean nothing.")
        print(f"NVRAM: emulated in {SHARED_MEMORY}. It survives a process crash, NOT a power loss.\n")
        runs = {key: self.timed(key) for key in MODES}
        # The same transactions write the same frames, whether their file grows or is recycled.
        runs["warm"].logged_bytes = runs["cold"].logged_bytes
        self.durability("waldio")
        self.durability("nvwal")
        self.durability("ppl")
        self.durability("scratchpad")
        self.durability("scratchpad-delete")
        if self.options.rows is None:
            self.crowd()
        if shutil.which("strace"):
            print("\nCounting system calls with strace ...")
        else:
            print("\nSystem calls are not counted: there is no strace.")
        for key in ("cold", "waldio", "nvwal", "exclusive", "ppl", "scratchpad", "rollback", "scratchpad-delete"):
            runs[key].system_calls = self.system_calls(key)
        runs["warm"].system_calls = runs["cold"].system_calls
        self.report(list(runs.values()))

    def report(self, runs):
        heading = ["", "commits", "commits/s", "bytes logged", "lines flushed", "fences", "system calls"]
        rows = [
            [
                run.label,
                f"{run.rows:,}",
                f"{run.rate:,.0f}",
                "-" if run.logged_bytes is None else f"{run.logged_bytes:,.0f}",
                *("-" if figure is None else f"{figure:.1f}" for figure in (run.lines, run.fences, run.system_calls)),
            ]
            for run in runs
        ]
        print("\nFigures from `bytes logged` on are per commit.\n")
        print(table(heading, rows))
        cold, warm, disk, shared, exclusive, pages, region, rollback, undo = (run.rate for run in runs)
        print(f"\n  On the disk, with one connection: {disk / cold:.1f} times the commits/s of stock SQLite with a growing log,")
        print(f"  {disk / warm:.1f} times with a recycled one: as fast as the disk's own durable write; and it survives a power loss.")
        print(f"  In NVRAM: {shared / cold:.0f} times the commits/s, {exclusive / cold:.0f} times with")
        print(f"  locking_mode=EXCLUSIVE; with a recycled log: {shared / warm:.0f} and {exclusive / warm:.0f} times.")
        print(f"  With a log for each page, which spares the flash: {pages / cold:.0f} and {pages / warm:.0f} times.")
        print(f"  With the database in persistent memory too: {region / cold:.0f} and {region / warm:.0f} times; and with a program that never")
        print(f"  asks for WAL {undo / rollback:.0f} times the commits/s of its rollback journal on the disk.")
        print(f"  A run ends after {RUN_SECONDS:.0f} s; the cold one never checkpoints, the others as SQLite does by itself.")
        print("  System calls: commits only, no checkpoints. Python's own time is in all runs.")
        print("  Emulated NVRAM survives a process crash, not a power loss; stock SQLite's commits here survive both.")
        path = self.out / "demo.svg"
        title = f"{len(self.rows):,} durable inserts, SQLite {sqlite3.sqlite_version}, synchronous=FULL; NVRAM emulated (no power-loss guarantee)"
        chart([CLI, "chart"], path, title, [run.label for run in runs], [run.rate for run in runs], [run.logged_bytes for run in runs])
        print(f"  Chart: {self.shown(path)}")


def file_system(path):
    answer = subprocess.run(["stat", "--file-system", "--format=%T", path], capture_output=True, text=True)
    return answer.stdout.strip() or "unknown file system"


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, help="only the first ROWS lines")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="repeats a kill")
    parser.add_argument("--out", type=Path, default=PROJECT / "out", help="where databases and chart go")
    options = parser.parse_args()
    if options.rows is not None and options.rows < 10:
        parser.error("--rows is at least 10")
    return options


def main():
    options = parse_options()
    for needed in (inserts.SOURCE, CLI):
        if not needed.exists():
            sys.exit(f"{needed} is missing; run `make demo`, which sees to it")
    (options.out / "demo").mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool = tempfile.mkdtemp(prefix="duralite-demo-", dir=SHARED_MEMORY)
    demo = Demo(options, pool)
    try:
        demo.run()
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is left running")
        return 130
    except (Failed, sqlite3.Error, OSError, subprocess.SubprocessError) as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    finally:
        demo.end_children()
        shutil.rmtree(pool, ignore_errors=True)
        shutil.rmtree(options.out / "demo", ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
