"""Progress bar, table and chart."""

import csv
import os
import subprocess
import sys
import time

REDRAW_SECONDS = 0.1
BAR_CELLS = 28


class Progress:
    """A bar on a terminal; elsewhere a line at each quarter."""

    def __init__(self, label, total, first=0, out=sys.stdout):
        self.label, self.total, self.first, self.out = label, total, first, out
        self.is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self.began = self.drawn = time.monotonic()
        self.quarter = 4 * first // max(total, 1)

    def update(self, done, force=False):
        if not self.is_terminal:
            quarter = 4 * done // max(self.total, 1)
            if quarter > self.quarter:
                self.quarter = quarter
                self._write(self._text(done) + "\n")
            return
        now = time.monotonic()
        if force or now - self.drawn >= REDRAW_SECONDS:
            self.drawn = now
            cells = BAR_CELLS * done // max(self.total, 1)
            self._write(f"\r\033[K{self._text(done, '#' * cells + '.' * (BAR_CELLS - cells))}")

    def finish(self, done):
        """The last state; a run may end before its total."""
        self.update(done, force=True)
        if self.is_terminal:
            self._write("\n")
        elif self.quarter < 4:
            self._write(self._text(done) + "\n")

    def _text(self, done, bar=None):
        rate = (done - self.first) / max(time.monotonic() - self.began, 1e-9)
        middle = f"[{bar}] " if bar else ""
        return f"  {self.label:<32} {middle}{done:>7,}/{self.total:,}  {rate:>9,.0f}/s"

    def _write(self, text):
        self.out.write(text)
        self.out.flush()


def table(heading, rows):
    """Aligned columns: the first to the left, figures to the right."""
    cells = [heading, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heading))]
    lines = []
    for row in cells:
        first, *others = (cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        lines.append("  " + "  ".join([first, *others]).rstrip())
    lines.insert(1, "  " + "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def chart(draw, path, title, labels, rates, logged_bytes):
    """Commits per second, and bytes logged per commit, one bar per run; logarithmic. `draw` is the command that draws a table."""
    source = path.with_suffix(".csv")
    with open(source, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["", "commits per second (more is better)", "bytes logged per commit (less is better)"])
        rows.writerows(zip(labels, rates, ("-" if value is None else value for value in logged_bytes)))
    subprocess.run([*draw, source, "--output", path, "--title", title, "--log"], check=True, stdout=subprocess.DEVNULL)
