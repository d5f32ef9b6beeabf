"""How a process ends, and how it starts other processes and programs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from typing import Any

from sharedtensor_conformance.chapters.worker_tasks import (
    add_in_process,
    add_when_written,
    send_strategy,
)
from sharedtensor_conformance.harness.actor import Actor
from sharedtensor_conformance.harness.marks import starts_processes
from sharedtensor_conformance.harness.threads import run_in_parallel

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


@starts_processes
def start_in_parallel(
    actor: Actor, payloads: list[Any], method: str
) -> list[int | None]:
    """Start a process for each payload, in a thread for each; return the exit codes."""
    context = actor.context(method)

    def start(payload: Any) -> int | None:
        arguments = (actor.setting, actor.outgoing(payload))
        process = context.Process(target=add_in_process, args=arguments)
        actor.by_implementation(process.start)
        process.join()
        status: int | None = process.exitcode
        return status

    return run_in_parallel(*(partial(start, payload) for payload in payloads))


@starts_processes
def strategy_of_a_child(actor: Actor, method: str) -> str:
    """Start a process that sets no strategy, and return which one it has.

    Raises:
        EOFError: the process ends without telling. It is the implementation's.
    """
    context = actor.context(method)
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader:
        with writer:
            arguments = (actor.setting, writer)
            process = context.Process(target=send_strategy, args=arguments)
            actor.by_implementation(process.start)
        found: str = actor.by_implementation(reader.recv)
    process.join()
    process.close()
    return found


@starts_processes
def start_in_vain(actor: Actor, payload: Any, method: str) -> int | None:
    """Start a process, kill it before it can do its task, and return its exit code."""
    context = actor.context(method)
    arguments = (actor.setting, actor.outgoing(payload))
    process = context.Process(target=add_in_process, args=arguments)
    actor.by_implementation(process.start)
    process.kill()
    process.join()
    status: int | None = process.exitcode
    process.close()
    return status


@starts_processes
def start_with_named_arguments(
    actor: Actor, written_later: Any, other: Any, value: int, method: str
) -> int | None:
    """Start a process with two tensors among its named arguments.

    The first tensor is written to when `start` has returned. The process waits for
    that. Then it adds 1 to both, and ends.

    Returns:
        The exit code.
    """
    context = actor.context(method)
    written = actor.by_implementation(lambda: context.Semaphore(0))
    payload = actor.outgoing([written_later, {"other": other}])
    process = context.Process(
        target=add_when_written,
        args=(actor.setting,),
        kwargs={"payload": payload, "written": written},
    )
    actor.by_implementation(process.start)
    actor.call("write", written_later, (0,), value)
    return _exit_code_after_writes(process, written)


def _exit_code_after_writes(process: Any, written: Any) -> int | None:
    """Let a process go on that waits for writes, and return its exit code."""
    written.release()
    process.join()
    status: int | None = process.exitcode
    process.close()
    return status


def raise_on_sigint(actor: Actor) -> None:
    """Let SIGINT raise `KeyboardInterrupt` in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
