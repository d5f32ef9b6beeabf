"""How a process ends, and how it starts other processes and programs."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import spawn
from typing import Any

from sharedtensor_conformance.chapters.worker_tasks import (
    add_in_process,
    add_when_written,
    send_strategy,
)
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.marks import starts_processes
from sharedtensor_conformance.harness.remote.setting import Setting
from sharedtensor_conformance.harness.remote.threads import run_in_parallel

WAITING_PROGRAM = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
"""The command of another program. It waits until a signal ends it."""


class Uncaught(Exception):
    """An exception of the suite that nothing catches, so that it ends the process."""


def end(actor: Actor, how: str) -> None:
    """End this process ``by os._exit``, ``by an exception`` or ``by SIGTERM``.

    The exception is raised after this action has been answered.
    """
    if how == "by os._exit":
        os._exit(0)
    if how == "by SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    actor.uncaught = Uncaught("this exception of the suite ends the process")


def fork_by_hand(actor: Actor, tensors: list[Any], value: int, normally: bool) -> int:
    """Fork a child by `os.fork` that writes to tensors and ends; return its status.

    Args:
        actor: this process, whose objects the child has as well.
        tensors: the tensors, to whose first elements the child writes.
        value: what it writes.
        normally: whether the child does what Python does at a normal exit.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        for tensor in tensors:
            actor.call("write", tensor, (0,), value)
        status = 0
        if normally:
            tensors.clear()
            actor.objects.clear()
            gc.collect()
            atexit._run_exitfuncs()
    finally:
        os._exit(status)


class Forked:
    """A child of `os.fork` that shares a tensor and drops it when it is asked to."""

    def __init__(self, actor: Actor, length: int) -> None:
        self.socket, end = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            try:
                self.socket.close()
                _share_when_asked(actor, length, end)
            finally:
                os._exit(0)
        end.close()


def _share_when_asked(actor: Actor, length: int, end: socket.socket) -> None:
    end.recv(1)
    tensor = actor.call("make", [19.0] * length, (length,), "float32")
    actor.call("share", tensor)
    del tensor
    gc.collect()
    end.send(b".")
    end.recv(1)  # until the parent ends this


def fork_one_that_shares(actor: Actor, length: int) -> Any:
    """Fork a child that shares a tensor of this length later."""
    return Forked(actor, length)


def let_it_share(actor: Actor, forked: Any) -> bool:
    """Have such a child share a tensor and drop it; return whether it has."""
    forked.socket.send(b".")
    return bool(forked.socket.recv(1))


def end_forked(actor: Actor, forked: Any) -> None:
    """End such a child."""
    forked.socket.close()
    os.waitpid(forked.pid, 0)


def start_program(actor: Actor) -> tuple[Any, int]:
    """Start another program, which gets all inheritable descriptors.

    Returns:
        The program and its pid.
    """
    program = subprocess.Popen(WAITING_PROGRAM, close_fds=False)
    return program, program.pid


def end_program(actor: Actor, program: Any) -> None:
    """End such a program."""
    program.kill()
    program.wait()


def set_umask(actor: Actor, mask: int) -> int:
    """Set the mask of the modes of new files; return the one before."""
    return os.umask(mask)


def ignore_signal(actor: Actor, number: int) -> None:
    """Ignore a signal in this process."""
    signal.signal(number, signal.SIG_IGN)


def wait_for_all_children(actor: Actor) -> None:
    """Let the handler of SIGCHLD wait for all children of this process that end."""

    def wait(*ignored: object) -> None:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    signal.signal(signal.SIGCHLD, wait)


def open_pipe(actor: Actor) -> tuple[int, int]:
    """Open a pipe, and return its descriptors."""
    reader, writer = os.pipe()
    for end_of_pipe in (reader, writer):
        os.set_inheritable(end_of_pipe, True)  # like one from a C library
    return reader, writer


def close_descriptor(actor: Actor, descriptor: int) -> None:
    """Close a descriptor of this process."""
    os.close(descriptor)


def variable(actor: Actor, name: str) -> str | None:
    """Return a variable of the environment; None if it is not set."""
    return os.environ.get(name)


def set_variable(actor: Actor, name: str, value: str | None) -> None:
    """Set a variable of the environment, or remove it if the value is None."""
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def started_process(
    actor: Actor,
    method: str,
    target: Callable[..., None],
    *arguments: Any,
    **named: Any,
) -> Any:
    """Return a process that was started; its function gets the setting first."""
    context = actor.context(method)
    given = (actor.setting, *arguments)
    process = context.Process(target=target, args=given, kwargs=named)
    actor.by_implementation(process.start)
    return process


def exit_code(process: Any) -> int | None:
    """Wait for the end of such a process, and return its exit code."""
    process.join()
    status: int | None = process.exitcode
    process.close()
    return status


@starts_processes
def start_in_parallel(
    actor: Actor, payloads: list[Any], method: str
) -> list[int | None]:
    """Start a process for each payload, in a thread for each; return the exit codes."""

    def start(payload: Any) -> int | None:
        outgoing = actor.outgoing(payload)
        return exit_code(started_process(actor, method, add_in_process, outgoing))

    return run_in_parallel(*(partial(start, payload) for payload in payloads))


@starts_processes
def strategy_of_a_child(actor: Actor, method: str) -> str:
    """Start a process that sets no strategy, and return which one it has.

    Raises:
        EOFError: the process ends without an answer. It is the implementation's.
    """
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader:
        with writer:
            process = started_process(actor, method, send_strategy, writer)
        found: str = actor.by_implementation(reader.recv)
    exit_code(process)
    return found


@starts_processes
def start_in_vain(actor: Actor, payload: Any, method: str) -> int | None:
    """Start a process, kill it before it can do its task, and return its exit code."""
    outgoing = actor.outgoing(payload)
    process = started_process(actor, method, add_in_process, outgoing)
    process.kill()
    return exit_code(process)


Finish = Callable[[], int | None]


def _start(context: Any, *arguments: Any, **named: Any) -> Finish:
    process = context.Process(*arguments, **named)
    process.start()
    return lambda: exit_code(process)


def _start_by_name(context: Any, setting: Setting, *others: Any) -> Finish:
    named = dict(zip(("payload", "written"), others, strict=True))
    return _start(context, target=add_when_written, args=(setting,), kwargs=named)


def _start_with_attributes(context: Any, *given: Any) -> Finish:
    process = context.Process(target=add_to_attributes)
    process.given_by_the_program = given
    process.start()
    return lambda: exit_code(process)


def add_to_attributes() -> None:
    """Call `add_when_written` with what the process has as an attribute."""
    process: Any = multiprocessing.current_process()
    add_when_written(*process.given_by_the_program)


def _open_pool(context: Any, *given: Any) -> Finish:
    pool = context.Pool(1, add_when_written, given)

    def finish() -> int:
        with pool:
            return pool.apply(abs, (0,))  # type: ignore[no-any-return]

    return finish


def _open_executor(context: Any, *given: Any) -> Finish:
    executor = ProcessPoolExecutor(1, context, add_when_written, given)
    called = executor.submit(abs, 0)

    def finish() -> int:
        with executor:
            return called.result()

    return finish


STARTS: dict[str, Callable[..., Finish]] = {
    "by name": _start_by_name,
    "by position": lambda context, *given: _start(
        context, None, add_when_written, None, given
    ),
    "in a list": lambda context, *given: _start(
        context, target=add_when_written, args=[*given]
    ),
    "as an attribute": _start_with_attributes,
    "to a pool's initializer": _open_pool,
    "to an executor's initializer": _open_executor,
}
"""The ways to give tensors to a process that starts.

Each function starts a process that calls `add_when_written`. It returns a function that
waits for the end of this call and returns 0 if it has not raised.
"""


@starts_processes
def start_with_arguments(
    actor: Actor, written_later: Any, other: Any, value: int, method: str, how: str
) -> int | None:
    """Start a process with two tensors, in one of the ways of `STARTS`.

    The first tensor is written to when the process has been started. The process waits
    for that. Then it adds 1 to both, and ends.

    Returns:
        The exit code.
    """
    written = new_semaphore(actor, method)
    payload = actor.outgoing([written_later, {"other": other}])
    given = (actor.context(method), actor.setting, payload, written)
    finish = actor.by_implementation(lambda: STARTS[how](*given))
    actor.call("write", written_later, (0,), value)
    written.release()
    status: int | None = actor.by_implementation(finish)
    return status


def new_semaphore(actor: Actor, method: str) -> Any:
    """Return a semaphore of the drop-in's context, with the value 0."""
    context = actor.context(method)
    return actor.by_implementation(lambda: context.Semaphore(0))


def set_interpreter(actor: Actor, paths: tuple[Any, Any]) -> tuple[Any, Any]:
    """Set which Python starts programs, and children; return what did before."""
    before = sys.executable, spawn.get_executable()
    sys.executable = paths[0]
    spawn.set_executable(paths[1])
    return before


def raise_on_sigint(actor: Actor) -> None:
    """Let SIGINT raise `KeyboardInterrupt` in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def forked_from(actor: Actor) -> int:
    """Return the pid of the actor that this process was forked from, or 0."""
    return actor.forked_from
