"""A small application for gunicorn. With --preload its connection is there before the workers are."""

import os
import sqlite3

PATH = os.environ["APP_DATABASE"]
kept = sqlite3.connect(PATH, timeout=20, isolation_level=None, check_same_thread=False)
kept.execute("INSERT INTO t VALUES ('preloaded', 0)")


def application(environ, start_response):
    conn = sqlite3.connect(PATH, timeout=20, isolation_level=None)
    try:
        conn.execute("INSERT INTO t VALUES (?, ?)", (environ["PATH_INFO"], os.getpid()))
        (rows,) = conn.execute("SELECT count(*) FROM t").fetchone()
    finally:
        conn.close()
    body = f"{os.getpid()} {rows}".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
