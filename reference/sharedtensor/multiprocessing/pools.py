"""The pool of the standard library over our queues, which nobody locks.

A worker of the standard library's pool that is killed while it waits for a task has the
lock that all other workers need. Here there is no such lock, so the pool goes on.
"""

import threading
from multiprocessing import pool

from .queues import SimpleQueue


class Pool(pool.Pool):
    """A pool of worker processes: two queues. Clauses CHAN-1, CHAN-2, LIFE-16."""

    @staticmethod
    def _help_stuff_finish(
        inqueue: SimpleQueue, task_handler: threading.Thread, size: int
    ) -> None:
        """Empty the queue of tasks, so that the thread that fills it can end.

        The base class locks the workers out, since it waits for a message that one of
        them might take.
        """
        while task_handler.is_alive():
            try:
                _, descriptors = inqueue._reader.receive(wait=False)
            except BlockingIOError:
                return
            descriptors.close()
