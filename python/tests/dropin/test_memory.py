"""A program in C under valgrind: it must not read bytes that were never written, or outside its memory."""

import os
import subprocess
from pathlib import Path

from . import harness

URI = """
say("uri", uri(sys.argv[1]))
say("library", "" if ENGINE == "stock" else duralite.loadable_path())
"""


class MemoryCase(harness.Case):
    def scenario_nothing_is_read_that_is_not_there(self):
        program = self.base / "memory"
        source = Path(__file__).with_name("memory.c")
        subprocess.run(["cc", "-g", "-pthread", source, "-o", program, "-lsqlite3"], check=True)
        (_, uri), (_, *library) = self.run_program(URI, self.path)
        environment = {**os.environ, "DURALITE_LIBRARY": library[0]} if library else os.environ
        # Leaks are not checked: for that, valgrind would walk through memory that a child has not inherited.
        checked = ["valgrind", "--error-exitcode=9", "--leak-check=no", program, uri]
        done = subprocess.run(checked, env=environment, capture_output=True, text=True, timeout=10 * harness.PATIENCE)
        self.assertEqual((done.returncode, done.stdout), (0, "ok\n"), done.stderr[-6000:])
