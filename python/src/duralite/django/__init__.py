"""Django's database backend for SQLite, through Duralite: ``"ENGINE": "duralite.django"``."""

import time

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections, transaction

from duralite._retry import attempts


def run(work, using=DEFAULT_DB_ALIAS):
    """As `duralite.run`: runs ``work()`` in `transaction.atomic`, again if it was overtaken, and returns the result of
    `work`.

    It must open the outermost block: inside another block, and so with ``ATOMIC_REQUESTS``, Django raises RuntimeError.
    Functions passed to ``transaction.on_commit`` are called once, after the attempt that commits.
    """
    connection = connections[using]
    for attempt in attempts():
        time.sleep(attempt.pause)
        try:
            with connection.beginning(attempt.takes_lock), transaction.atomic(using, durable=True):
                return work()
        except OperationalError as error:
            if not attempt.may_run_again(error.__cause__):
                raise
