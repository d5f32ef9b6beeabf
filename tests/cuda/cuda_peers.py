"""A peer: another process that does what a test tells it, in the test's order.

Requests and answers are messages, so nothing depends on time. A request is a
function of the test modules; its first argument is a dictionary in which the
peer keeps what it holds between requests.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
from functools import partial
from multiprocessing.reduction import ForkingPickler

from sharedtensor import cuda
from sharedtensor.cuda import devices, protocol

DEADLINE = 60.0


@contextlib.contextmanager
def nothing_stays_allocated(device):
    """Verify that a test leaves of the memory of a device what it has found."""
    cuda.ipc_collect(device)
    before = cuda.memory_info(device)
    yield
    gc.collect()  # what caught errors still refer to
    cuda.ipc_collect(device)
    assert cuda.memory_info(device) == before


class Peer:
    """A process under one of the start methods, with a pipe to it."""

    def __init__(self, method="spawn"):
        context = multiprocessing.get_context(method)
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, function, *args):
        """Have the peer call a function; return its result or raise its error."""
        self._pipe.send((function, args))
        if not self._pipe.poll(DEADLINE):
            raise TimeoutError(f"The peer did not answer to {function.__name__}.")
        kind, value = self._pipe.recv()
        if kind == "error":
            raise value
        return value

    def end(self):
        """Let the peer exit normally and wait for it."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._join()

    def kill(self):
        """Kill the peer by SIGKILL and wait for it."""
        os.kill(self.process.pid, signal.SIGKILL)
        self._join()

    def _join(self):
        self._pipe.close()
        self.process.join(DEADLINE)
        assert self.process.exitcode is not None, "the peer did not end"


class Driven:
    """The driver of a device in a peer, where its methods are called.

    Args:
        find: a function that puts the driver into ``held["device"]``.
    """

    def __init__(self, peer, find, *arguments):
        self.peer = peer
        peer.call(find, *arguments)

    def __getattr__(self, method):
        return partial(self.peer.call, drive, method)


def drive(held, method, *arguments):
    """Call a method of the driver."""
    return getattr(held["device"], method)(*arguments)


def drop_everything(held):
    """Hold nothing, and free what others have released."""
    held.clear()
    gc.collect()
    for state in devices._states.values():
        protocol.collect(state)


def _serve(pipe):
    held = {}
    while (request := pipe.recv()) is not None:
        function, args = request
        del request
        try:
            answer = "value", function(held, *args)
        except Exception as error:
            answer = "error", error
        del args  # the peer holds what it put in `held` and nothing else
        pipe.send(answer)
        del answer


# Requests about tensors


def keep(held, name, value):
    held[name] = value


def give(held, name):
    return held[name]


def drop(held, name):
    del held[name]


def read(held, name, index=Ellipsis):
    value = held[name].read(index)
    return value if held[name][index].shape == () else value.tolist()


def write(held, name, index, value):
    """Write and leave it pending."""
    held[name].write(index, value)


def synchronize(held, device="sim:0"):
    cuda.synchronize(device)


def dump(held, name):
    """Pickle a tensor for a channel, but keep the bytes."""
    return bytes(ForkingPickler.dumps(held[name]))


def load(held, name, message):
    held[name] = ForkingPickler.loads(message)
