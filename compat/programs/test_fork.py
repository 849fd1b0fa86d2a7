"""Programs that fork: each process opens its own connection, one stays open across the fork."""

import concurrent.futures
import gc
import http.client
import multiprocessing
import os
import socketserver
import sys
import threading
import unittest
from http.server import BaseHTTPRequestHandler, HTTPServer

from common import ProgramTest, connect, insert

WORKERS = 8
TASKS = 50


class Pool(ProgramTest):
    def run_pool(self, context="fork", tasks=WORKERS * TASKS):
        with multiprocessing.get_context(context).Pool(WORKERS) as pool:
            return sum(pool.starmap(insert, [(self.path, number) for number in range(tasks)], chunksize=1))

    def test_no_connection_in_the_parent(self):
        self.assertEqual(self.run_pool(), WORKERS * TASKS)
        self.assert_holds(WORKERS * TASKS)

    def test_connection_open_in_the_parent(self):
        conn = connect(self.path)
        conn.execute("INSERT INTO t VALUES ('parent', 0)")
        self.assertEqual(self.run_pool(), WORKERS * TASKS)
        self.assertEqual(conn.execute("SELECT count(*) FROM t").fetchone(), (WORKERS * TASKS + 1,))
        conn.execute("INSERT INTO t VALUES ('parent', 1)")
        conn.close()
        self.assert_holds(WORKERS * TASKS + 2)

    def test_parent_writes_meanwhile(self):
        conn = connect(self.path, check_same_thread=False)
        conn.execute("INSERT INTO t VALUES ('parent', 0)")

        def write():
            for number in range(100):
                conn.execute("INSERT INTO t VALUES ('parent', ?)", (number,))

        writer = threading.Thread(target=write)
        with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
            tasks = pool.starmap_async(insert, [(self.path, number) for number in range(WORKERS * TASKS)], chunksize=1)
            writer.start()
            self.assertEqual(sum(tasks.get(timeout=60)), WORKERS * TASKS)
            writer.join()
        conn.close()
        self.assert_holds(WORKERS * TASKS + 101)

    def test_several_pools(self):
        conn = connect(self.path)
        for number in range(4):
            conn.execute("INSERT INTO t VALUES ('parent', ?)", (number,))
            self.assertEqual(self.run_pool(tasks=40), 40)
        conn.close()
        self.assert_holds(4 * 41)

    def test_spawned(self):
        conn = connect(self.path)
        conn.execute("INSERT INTO t VALUES ('parent', 0)")
        self.assertEqual(self.run_pool("spawn", 40), 40)
        conn.close()
        self.assert_holds(41)

    def test_executor_with_connections_of_the_workers(self):
        conn = connect(self.path)
        conn.execute("INSERT INTO t VALUES ('parent', 0)")
        context = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(4, context, keep_own, (self.path,)) as executor:
            done = sum(executor.map(insert_into_own, range(200)))
        self.assertEqual(done, 200)
        conn.close()
        self.assert_holds(201)


own = None


def keep_own(path):
    global own
    own = connect(path)


def insert_into_own(number):
    own.execute("INSERT INTO t VALUES ('own', ?)", (number,))
    return 1


class Inherited(ProgramTest):
    """What a child does to a connection that it must not use: end with it, that is."""

    def test_child_collects_it_while_the_parent_is_in_a_transaction(self):
        conn = connect(self.path)
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO t VALUES ('parent', 0)")

        def child():
            nonlocal conn
            conn = None
            gc.collect()

        self.assertEqual(self.wait_for([self.fork(child)]), [0])
        # The lock is still the parent's.
        other = connect(self.path)
        other.execute("PRAGMA busy_timeout=100")
        with self.assertRaisesRegex(Exception, "locked"):
            other.execute("INSERT INTO t VALUES ('other', 0)")
        conn.execute("COMMIT")
        other.execute("INSERT INTO t VALUES ('other', 0)")
        other.close()
        conn.close()
        self.assert_holds(2)

    def test_child_exits_as_programs_do(self):
        conn = connect(self.path)
        conn.execute("INSERT INTO t VALUES ('parent', 0)")
        for _ in range(5):
            process = multiprocessing.get_context("fork").Process(target=insert, args=(self.path, "child", 10))
            process.start()
            process.join(60)
            self.assertEqual(process.exitcode, 0)
            conn.execute("INSERT INTO t VALUES ('parent', 1)")
        conn.close()
        self.assert_holds(56)

    def test_parent_ends_first(self):
        """A daemon: both parents exit, and what is left opens its own."""
        read, write = os.pipe()
        path = self.path

        def middle():
            conn = connect(path)
            conn.execute("INSERT INTO t VALUES ('middle', 0)")
            self.fork(lambda: (os.setsid(), insert(path, "daemon", 20), os.write(write, b"done")))

        self.assertEqual(self.wait_for([self.fork(middle)]), [0])
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            self.assertEqual(pipe.read(), b"done")
        insert(path, "afterwards", 20)
        self.assert_holds(41)

    def test_commands_started_meanwhile(self):
        conn = connect(self.path)
        code = "import common, sys; common.insert(sys.argv[1], 'command', 10)"
        commands = [self.python(code, self.path, wait=False) for _ in range(4)]
        for number in range(50):
            conn.execute("INSERT INTO t VALUES ('parent', ?)", (number,))
        self.assertEqual([command.wait(60) for command in commands], [0] * 4)
        for command in commands:
            command.stdout.close()
        conn.close()
        self.assert_holds(90)


class Server(ProgramTest):
    def test_a_server_that_forks_for_each_request(self):
        path = self.path

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                insert(path, "request")
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments):
                pass

        class Forking(socketserver.ForkingMixIn, HTTPServer):
            pass

        conn = connect(path)
        conn.execute("INSERT INTO t VALUES ('server', 0)")
        with Forking(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                with concurrent.futures.ThreadPoolExecutor(4) as clients:
                    answers = list(clients.map(lambda _: post(server.server_address[1]), range(60)))
            finally:
                server.shutdown()
                thread.join()
        conn.close()
        self.assertEqual(answers, [200] * 60)
        self.assert_holds(61)


def post(port):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        client.request("POST", "/")
        return client.getresponse().status
    except OSError as error:
        return str(error)
    finally:
        client.close()


if __name__ == "__main__":
    sys.exit(unittest.main())
