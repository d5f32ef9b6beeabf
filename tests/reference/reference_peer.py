"""A process that does what the test's process asks of it, one request at a time.

Requests are functions of this module by name, so that a spawned peer finds them.
"""

import os

import sharedtensor
from sharedtensor.names import keeper, program
from sharedtensor_conformance.harness import process_tree

TIMEOUT = 30.0
held = {}


class Peer:
    """A peer in a process of its own; `ask` waits for the answer."""

    def __init__(self, ctx, queue="SimpleQueue"):
        self.requests, self.replies = getattr(ctx, queue)(), getattr(ctx, queue)()
        arguments = self.requests, self.replies
        self.process = ctx.Process(target=serve, args=arguments, daemon=True)
        self.process.start()

    def ask(self, action, *arguments):
        self.requests.put((action, arguments))
        return self.replies.get()

    def close(self):
        if self.process.is_alive():
            self.requests.put(None)
        self.process.join(TIMEOUT)
        assert self.process.exitcode is not None, "the peer did not end"
        for queue in (self.requests, self.replies):
            queue.close()


def serve(requests, replies):
    while (request := requests.get()) is not None:
        action, arguments = request
        del request
        reply = globals()[action](*arguments)
        del arguments
        replies.put(reply)
        del reply


def keep(name, value):
    held[name] = value


def kept(name):
    return held[name]


def address(name):
    return held[name].data_ptr()


def values(name):
    return held[name].tolist()


def write(name, index, value):
    held[name][index] = value


def drop(name):
    del held[name]


def make(values):
    return sharedtensor.tensor(values)


def strategy():
    return sharedtensor.get_sharing_strategy()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def limit_for(room):
    """Return the limit of open files at which so many more can be opened.

    The numbers of those that are open need not be the lowest ones.
    """
    number = 0
    while room:
        try:
            os.fstat(number)
        except OSError:
            room -= 1
        number += 1
    return number


def names():
    return sorted(n for n in os.listdir("/dev/shm") if n.startswith("sharedtensor-"))


def own_names():
    return [name for name in names() if name.split("-")[1] == str(os.getpid())]


def sweep():
    """Remove at once what the manager would remove a little later, and no more."""
    locks = keeper.open_locks()
    try:
        keeper.sweep(program.current(), locks)
    finally:
        os.close(locks)


def eventually(condition, deadline=10.0):
    assert process_tree.wait_until(condition, deadline), "it did not come true in time"
