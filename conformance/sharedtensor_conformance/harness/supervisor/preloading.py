"""The template process: it has imported the implementation, and forks owners of stages.

The import of a framework takes seconds, and every stage needs an owner. If the adapter
declares `preload`, one process of each run imports the implementation and does nothing
else, for all workers of pytest-xdist. Each owner is forked from it, under its own
supervisor, and continues like an owner that was started from a clean interpreter and
has finished its imports.

The parent of a process cannot be changed. So the process that is forked from the
template forks the owner, and then becomes the program of the supervisor, which keeps
its children (execve(2)).
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sharedtensor_conformance.harness.kernel import (
    capabilities,
    private_shm,
    process_tree,
)
from sharedtensor_conformance.harness.remote.setting import Setting
from sharedtensor_conformance.harness.remote.wire import Wire, WireClosed
from sharedtensor_conformance.harness.supervisor import stage_folder

TEMPLATE_OPTION = "--template"
"""The option that makes an owner's main program a template; a descriptor follows."""

STAGE_VARIABLE = "SHAREDTENSOR_CONFORMANCE_STAGE"
"""An environment variable with space for the path of a stage's folder."""

STAGE_VARIABLE_LENGTH = 256

# Among the fields of /proc/PID/stat from the state on, proc(5).
_ARGUMENTS_START = 45
_ENVIRONMENT_START = 47


class Template:
    """Answers the controllers; forks a supervisor with an owner for each job.

    The workers of pytest-xdist connect to its `listener`, in a separate folder.

    Args:
        first: the socket of the process that started it; it ends with that process.
    """

    def __init__(self, first: socket.socket) -> None:
        self.first = first
        self.controllers = {first: Wire(first)}
        self.folder = ""

    def serve(self) -> bool:
        """Return True in each owner; False here when the first controller has ended."""
        process_tree.signal_at_parent_death(signal.SIGKILL)  # the import may hang
        why_not = preload()
        process_tree.signal_at_parent_death(None)
        self.folder = stage_folder.new_path()
        os.mkdir(self.folder, 0o700)
        self.listener = stage_folder.listen_in(self.folder)
        answer = {"refused": why_not, "address": self.listener.getsockname()}
        with suppress(WireClosed):  # serving finds it
            self.controllers[self.first].send(answer)
        while self.first in self.controllers:
            for ready in select.select([self.listener, *self.controllers], [], [])[0]:
                if ready is self.listener:
                    self._accept()
                elif self._serve_one(ready):
                    return True
        return False

    def remove_folder(self) -> None:
        """Remove the folder that `serve` made, if it exists."""
        if self.folder:
            stage_folder.remove(self.folder)

    def _accept(self) -> None:
        controller, _ = self.listener.accept()
        self.controllers[controller] = Wire(controller)

    def _serve_one(self, controller: socket.socket) -> bool:
        """Fork a supervisor for the job on a connection; return True in its owner.

        The connection becomes the supervisor's. That of the first controller has none.
        """
        wire = self.controllers.pop(controller)
        try:
            job = wire.receive()
        except WireClosed:
            controller.close()
            return False
        _reap()
        way = private_shm.best_way()
        if os.fork() == 0:
            for sock in (self.listener, *self.controllers):
                sock.close()
            with suppress(WireClosed):  # the controller has gone
                wire.send({"pid": os.getpid()})
            _supervise(job, controller, way)  # returns in the owner alone
            return True
        controller.close()
        return False


def _reap() -> None:
    """Reap the supervisors that have ended, without reading their status."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def preload() -> str:
    """Import the implementation; return why nothing can be forked from this process.

    The output of the import is discarded. If the import fails, an owner that is started
    from a clean interpreter fails in the same way, and its output is used.
    """
    before = _descriptors()
    errors = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        Setting.from_environment().operations()
    except Exception as error:
        return f"the import raises {type(error).__name__}"
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        os.close(null)
    gc.collect()
    gc.freeze()  # the pages of what was imported stay shared
    return _unfit_reason(before)


def _descriptors() -> dict[str, str]:
    """Return the targets of this process's descriptors, by number."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def _unfit_reason(before: dict[str, str]) -> str:
    """Return what a forked process would lack or share; empty if nothing."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"the import leaves {threads} threads, and a fork has one of them"
    if opened := _descriptors().items() - before.items():
        return f"the import leaves {sorted(target for _, target in opened)[0]} open"
    if process_tree.children(os.getpid()):
        return "the import starts a process"
    try:
        # As it is: may it be written at all?
        _write_stage_folder(os.environ[STAGE_VARIABLE].strip())
    except OSError as error:
        return f"a process may not rewrite its environment here ({error.strerror})"
    return ""


def _supervise(
    job: dict[str, Any], control: socket.socket, way: private_shm.Way
) -> None:
    """Fork the owner, and become its supervisor; returns only in the owner."""
    owner, before = -1, capabilities.current()
    try:
        private_shm.mount(way)
        stage_folder.make(job["root"], Wire(control))
        log = stage_folder.open_log(job["root"])
        owner = os.fork()
        if owner:
            control.set_inheritable(True)
            if way.in_user_namespace:
                capabilities.keep_for_program()
                capabilities.limit_programs(before)
            adopted = [control.fileno(), job["root"], owner, way]
            command = [*job["supervisor"], *map(str, adopted)]
            os.execve(command[0], command, os.environ)
        control.close()
        capabilities.restrict_to(before)
        _become_owner(job, log)
    finally:
        if owner:  # it could not become a supervisor, which the controller will notice
            os._exit(1)


def _become_owner(job: dict[str, Any], log: int) -> None:
    """Make this process like an owner that was started with the job."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, descriptor)
    os.close(null)
    os.close(log)
    process_tree.prefer_for_oom_kill(os.getpid())
    os.environ.clear()
    os.environ.update(job["environment"])
    _write_stage_folder(job["root"])
    _clear_arguments()
    tempfile.tempdir = None  # it follows TMPDIR
    del sys.argv[1:]


def _write_stage_folder(root: str) -> None:
    """Show the stage's folder in ``/proc/PID/environ``, where sweeping looks for it.

    All processes that this process forks inherit it, even if they detach themselves.
    """
    with open("/proc/self/environ", "rb") as file:
        before = f"{STAGE_VARIABLE}=".encode()
        offset = file.read().index(before) + len(before)
    padded = os.fsencode(root).ljust(STAGE_VARIABLE_LENGTH)
    _overwrite(_ENVIRONMENT_START, offset, padded)


def _clear_arguments() -> None:
    """Change the command line to that of an owner, for evidence and process lists."""
    with open("/proc/self/cmdline", "rb") as file:
        line = file.read()
    offset = line.index(TEMPLATE_OPTION.encode())
    _overwrite(_ARGUMENTS_START, offset, bytes(len(line) - offset))


def _overwrite(field: int, offset: int, text: bytes) -> None:
    """Write to the memory that holds the command line or the environment."""
    start = int(process_tree.stat(os.getpid())[field])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start + offset)
        memory.write(text)


def restore_ignored_signals() -> None:
    """Reset what a parent ignored, as under nohup; Python itself ignores two."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def main(own: Callable[[], None]) -> None:
    """Run the template; in each owner, continue with `own`."""
    restore_ignored_signals()
    sock = socket.socket(fileno=int(sys.argv[2]))
    sock.set_inheritable(False)
    template, itself = Template(sock), os.getpid()
    try:
        is_owner = template.serve()
    finally:
        if os.getpid() == itself:
            template.remove_folder()
    if not is_owner:
        os._exit(0)  # nothing of the implementation was used, so nothing has to end
    own()
