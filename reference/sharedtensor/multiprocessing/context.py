"""Contexts: the drop-in's channels and processes, for each start method.

They are the standard library's contexts with our own pipes, queues and processes, so
whatever takes a context, such as a pool or `concurrent.futures`, gets these. The choice
of the default start method stays with the standard library: a program has one.
"""

import multiprocessing
import multiprocessing.context as context
from multiprocessing import process
from typing import Any

from .. import protocol, transport
from ..errors import ResourceError, ignoring
from . import connection, packets, pool, queues

LARGEST_IN_A_PIPE = 2048
"""Bytes of a process that are written into the pipe of a child that is spawned.

The standard library writes before the child reads, and holds the reading end: if the
child is killed, it waits for ever when they do not fit, which may be 4096 bytes less
what it adds, pipe(7).
"""


class _Packed:
    """A process as its child gets it: a message, and what the child inherits beside it.

    The settings of its parent come first, as they are when it is started, so that the
    child knows its program before it unpickles the tensors among its arguments. The
    process of a `Manager()` gets them too. Clauses START-6, CHAN-10.

    The standard library pickles it in the place of the process, and asks for its name.
    """

    def __init__(self, process_obj: Any):
        self._name = process_obj._name
        self._process = process_obj

    def __reduce__(self) -> tuple[Any, ...]:
        """Pack the process, and let the child inherit. Clauses FD-6, FS-3, START-1."""
        settings = protocol.child_settings()
        payload = protocol.pack_for_child(self._process)
        outbox = transport.spawning_outbox()
        descriptors, in_a_file, in_a_batch = outbox.descriptors, 0, 0
        if len(payload) > LARGEST_IN_A_PIPE:
            with ignoring(ResourceError):  # all of it goes through the pipe then
                file = packets.in_a_file(payload)
                outbox.keep.append(file)
                descriptors, in_a_file = [file.fd, *descriptors], len(payload)
                payload = b""
        if len(descriptors) > transport.room_in_child():
            batch = packets.batch_of(descriptors)
            outbox.keep.append(batch)
            descriptors, in_a_batch = [batch.fd], len(descriptors)
        handles = [transport.leave_to_child(fd) for fd in descriptors]
        return _unpacked, (settings, payload, handles, in_a_file, in_a_batch)


def _unpacked(
    settings: tuple[str, str],
    payload: bytes | bytearray,
    handles: list[Any],
    in_a_file: int,
    in_a_batch: int,
) -> Any:
    """Return the process in the child. What nothing in it takes is closed."""
    protocol.enter_child(*settings)
    descriptors = transport.take_inherited(handles)
    if in_a_batch:
        packets.open_batch(descriptors, in_a_batch)
    if in_a_file:
        payload = packets.content_of(descriptors, in_a_file)
    return protocol.unpack_message(payload, descriptors)


class _ChildOfThisProgram(process.BaseProcess):
    """A process that starts with its parent's settings. Clause START-6."""

    def start(self) -> None:
        """Start the child; its tensor arguments are sent. Clauses START-1, START-2."""
        protocol.child_settings()  # so that a forked child inherits a program
        transport.spawning(super().start)


class Process(_ChildOfThisProgram, context.Process):
    """A process under the program's default start method."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return default_context.get_context().Process._Popen(process_obj)

    @staticmethod
    def _after_fork() -> None:
        default_context.get_context().Process._after_fork()


class ForkProcess(_ChildOfThisProgram, context.ForkProcess):
    """A copy of its parent. Clauses START-3, START-4."""


class SpawnProcess(_ChildOfThisProgram, context.SpawnProcess):
    """A fresh interpreter. Clauses START-1, START-2."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return context.SpawnProcess._Popen(_Packed(process_obj))  # type: ignore[arg-type]


class ForkServerProcess(_ChildOfThisProgram, context.ForkServerProcess):
    """A copy of a fresh interpreter. Clauses START-1, START-2."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return context.ForkServerProcess._Popen(_Packed(process_obj))  # type: ignore[arg-type]


class Channels(context.BaseContext):
    """The channels of every context, whoever takes it. Clauses API-3, CHAN-9."""

    def Pipe(self, duplex: bool = True) -> Any:
        """Return a pair of connections that carry tensors."""
        return connection.Pipe(duplex)

    def Queue(self, maxsize: int = 0) -> Any:
        """Return a queue that carries tensors."""
        return queues.Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize: int = 0) -> Any:
        """Return a queue that carries tensors and counts unfinished tasks."""
        return queues.JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self) -> Any:
        """Return a queue without a thread that carries tensors."""
        return queues.SimpleQueue(ctx=self.get_context())

    def Pool(
        self,
        processes: int | None = None,
        initializer: Any = None,
        initargs: Any = (),
        maxtasksperchild: int | None = None,
    ) -> Any:
        """Return a pool of processes whose tasks and results carry tensors."""
        arguments = processes, initializer, initargs, maxtasksperchild
        return pool.Pool(*arguments, context=self.get_context())

    def get_context(self, method: str | None = None) -> Any:
        """Return the context of a start method. Raises `ValueError` for another.

        Clauses START-5, FAIL-10.
        """
        if method is None:
            return self
        return CONTEXTS[multiprocessing.get_context(method).get_start_method()]


class ForkContext(Channels, context.ForkContext):
    """The context of the start method `fork`."""

    Process = ForkProcess


class SpawnContext(Channels, context.SpawnContext):
    """The context of the start method `spawn`."""

    Process = SpawnProcess


class ForkServerContext(Channels, context.ForkServerContext):
    """The context of the start method `forkserver`."""

    Process = ForkServerProcess


class DefaultContext(Channels, context.DefaultContext):
    """The context behind the functions of the module."""

    Process = Process

    def __init__(self) -> None:
        super().__init__(context._default_context)

    def get_context(self, method: str | None = None) -> Any:
        """Return the context of a start method, or of the program's. Clause START-5."""
        if method is None:
            method = self.get_start_method()
        return super().get_context(method)

    # The stubs of the standard library forget that it may be None.
    def get_start_method(  # type: ignore[override]
        self, allow_none: bool = False
    ) -> str | None:
        """Return the program's start method, or Python's default. Clause API-4."""
        return multiprocessing.get_start_method(allow_none)

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        """Set the program's start method, once. Clauses API-4, START-5."""
        multiprocessing.set_start_method(method, force)

    def get_all_start_methods(self) -> list[str]:
        """Return the start methods of this system, Python's default first.

        From Python 3.14 on the inherited method would make the default that of the
        program. Clause API-4.
        """
        return multiprocessing.get_all_start_methods()


CONTEXTS = {
    "fork": ForkContext(),
    "spawn": SpawnContext(),
    "forkserver": ForkServerContext(),
}
default_context = DefaultContext()
pool.Pool.default_context = default_context
