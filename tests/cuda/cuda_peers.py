"""A peer, which is another process, what tests ask it for, and what they look at.

Requests and answers are messages, so nothing depends on time. A request is a
function of the test modules; its first argument is a dictionary in which the
peer keeps what it holds between requests.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler

from sharedtensor import cuda
from sharedtensor.cuda import counts, devices, protocol, simulated

TIMEOUT = 60.0
"""Seconds within which a peer answers."""


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
        if not self._pipe.poll(TIMEOUT):
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
        self.process.join(TIMEOUT)
        assert self.process.exitcode is not None, "the peer did not end"


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


def handed_out(owned):
    """Return descriptors as what can be sent to one peer."""
    return [resource_sharer.DupFd(each.fd) for each in owned]


def map_all(held, handed, sizes):
    """Map the memory to which descriptors lead, which are closed then."""
    fds = [each.detach() for each in handed]
    try:
        return held["device"].map_received(fds, sizes)
    finally:
        for fd in fds:
            os.close(fd)


def export_all(held, base):
    """Export what is mapped, for one other peer."""
    return handed_out(held["device"].export_mapped(base))


def run_alone(*arguments, folders=(), **options):
    """Run an interpreter that knows of no simulated device; return its end."""
    environment = {k: v for k, v in os.environ.items() if simulated.VARIABLE not in k}
    path = [*map(str, folders), *filter(None, sys.path)]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, env=environment, timeout=120, **options,
    )  # fmt: skip


def counts_in_use(device="sim:0"):
    """Return the states of the counts of all that this process has sent."""
    gc.collect()
    table = devices.device_state(device).own_table
    states = [] if table is None else table.slots["state"].tolist()
    return sorted(state for state in states if state != counts.VACANT)


def drop_everything(held):
    """Hold nothing, and free what others have released."""
    held.clear()
    gc.collect()
    for state in devices._states.values():
        protocol.collect(state)


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


def pickled_for_a_channel(value):
    """Return the bytes of a message that its receiver has not unpickled."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer:
        writer.send(value)
        return reader.recv_bytes()


def dump(held, name):
    """Pickle a tensor for a channel, but keep the bytes."""
    return pickled_for_a_channel(held[name])


def load(held, name, message):
    held[name] = ForkingPickler.loads(message)
