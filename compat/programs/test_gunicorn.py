"""gunicorn --preload with four workers: the application's own connection is open across the forks."""

import concurrent.futures
import http.client
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from common import ProgramTest

CLIENTS = 8
REQUESTS = 240


class Gunicorn(ProgramTest):
    def serve(self, *options):
        log = Path(self.folder.name) / "gunicorn.log"
        command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "4", "--bind", "127.0.0.1:0"]
        with log.open("wb") as output:
            server = subprocess.Popen(
                [*command, *options, "wsgi_app:application"],
                env=os.environ | {"APP_DATABASE": self.path}, stdout=output, stderr=output,
            )  # fmt: skip
        self.addCleanup(self.end, server, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and server.poll() is None:
            found = re.search(r"Listening at: http://127\.0\.0\.1:(\d+)", log.read_text(errors="replace"))
            if found:
                return server, int(found.group(1))
            time.sleep(0.05)
        self.fail(f"gunicorn does not listen: {log.read_text(errors='replace')[-2000:]}")

    def end(self, server, number=signal.SIGTERM):
        if server.poll() is None:
            server.send_signal(number)
            server.wait(60)

    def ask(self, port, meanwhile=None):
        """Sends the requests; returns how many got 200, and the other answers."""

        def request(number):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                client.request("GET", f"/{number}")
                answer = client.getresponse()
                return answer.status, answer.read().decode(errors="replace")
            except (OSError, http.client.HTTPException) as error:
                return 0, repr(error)
            finally:
                client.close()

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            asked = [clients.submit(request, number) for number in range(REQUESTS)]
            if meanwhile:
                meanwhile(asked)
            answers = [future.result() for future in asked]
        return [body for status, body in answers if status == 200], [answer for answer in answers if answer[0] != 200]

    def check_all_answered(self, *options):
        server, port = self.serve(*options)
        good, bad = self.ask(port)
        self.end(server)
        self.assertEqual(bad[:3], [])
        self.assertEqual(len(good), REQUESTS)
        self.assert_holds(REQUESTS + 1)

    def test_sync_workers(self):
        self.check_all_answered()

    def test_threads(self):
        self.check_all_answered("--worker-class", "gthread", "--threads", "4")

    def test_workers_that_are_replaced(self):
        self.check_all_answered("--max-requests", "20")

    def test_workers_that_are_killed(self):
        """What was answered is there, whoever was killed; gunicorn forks new workers."""
        server, port = self.serve()

        def kill_two(asked):
            for wanted in (60, 120):
                deadline = time.monotonic() + 60
                while sum(future.done() for future in asked) < wanted and time.monotonic() < deadline:
                    time.sleep(0.005)
                done = [future.result() for future in asked if future.done()]
                workers = [int(body.split()[0]) for status, body in done if status == 200]
                try:
                    os.kill(workers[-1], signal.SIGKILL)
                except (ProcessLookupError, IndexError):
                    pass

        good, bad = self.ask(port, kill_two)
        self.end(server)
        # The two that died may have had one request each under way, and some in their backlog.
        self.assertGreaterEqual(len(good), REQUESTS - 40)
        self.assertLessEqual(len(bad), 40)
        rows = self.count()
        self.assertGreaterEqual(rows, len(good) + 1)
        self.assertLessEqual(rows, REQUESTS + 1)
        self.assert_holds(rows)

    def test_started_again_after_a_kill(self):
        server, port = self.serve()
        good, _ = self.ask(port)
        # The master goes first, so that nobody tidies up; its workers end when they see that.
        self.end(server, signal.SIGKILL)
        self.check_rows_after_restart(len(good))

    def check_rows_after_restart(self, good):
        server, port = self.serve()
        more, bad = self.ask(port)
        self.end(server)
        self.assertEqual(bad[:3], [])
        self.assert_holds(good + len(more) + 2)
