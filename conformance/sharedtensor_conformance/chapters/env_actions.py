"""Gives a process another environment: descriptors, namespaces, system call filters.

Namespaces and filters of system calls cannot be undone, so these actions are for
processes of one case. Each of them returns why it is impossible here, or nothing if it
succeeded. Children that the process starts later inherit the restriction.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import resource
import stat
import tempfile
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import Any

from sharedtensor_conformance.chapters.confinement import refuse_call
from sharedtensor_conformance.chapters.system_actions import become_nobody
from sharedtensor_conformance.harness.kernel import capabilities, private_shm
from sharedtensor_conformance.harness.kernel.private_shm import Way
from sharedtensor_conformance.harness.kernel.user_namespace import NOBODY
from sharedtensor_conformance.harness.remote.actor import Actor

NEW_PIDS = 0x20000000  # CLONE_NEWPID, unshare(2)

NUMBERS = {
    "memfd_create": {"x86_64": 319, "aarch64": 279},
    "execve": {"x86_64": 59, "aarch64": 221},
}
"""The numbers of system calls on each kind of machine."""

_libc = ctypes.CDLL(None, use_errno=True)


def replace_descriptors(actor: Actor, values: list[int]) -> dict[str, Any]:
    """Send a tensor, and open files in the place of what that has opened.

    Then send the tensor again, and another one, and drop all.

    Returns:
        ``values`` of the tensor afterwards, ``wrong`` values that arrived, and for each
        file that is ``broken``, closed, replaced or written to, in what place it was.
    """
    ends = actor.operations.multiprocessing.Pipe()
    before = _descriptors()
    made = [actor.call("make", values, (len(values),), "int32")]
    made.append(_through(actor, ends, made[0]))
    opened = {number: _kind(number) for number in _descriptors() - before}
    for number in opened:
        os.close(number)
    content = _files_in_place_of(set(opened))
    wrong = []
    for sent in (actor.call("make", values, (len(values),), "int32"), made[0]):
        with contextlib.suppress(Exception):
            made.append(_through(actor, ends, sent))
            wrong += [
                found for found in [actor.call("values", made[-1])] if found != values
            ]
    found = actor.call("values", made[0])
    made.clear()
    del sent
    gc.collect()
    broken = [each for each, text in content.items() if _content(each) != text]
    for number in content.keys() - broken:
        os.close(number)
    places = sorted(opened.get(number, "of none") for number in broken)
    return {"values": found, "wrong": wrong, "broken": places}


def _files_in_place_of(numbers: set[int]) -> dict[int, bytes]:
    """Open files until they have all these numbers; return their contents."""
    content: dict[int, bytes] = {}
    while numbers - content.keys():
        number, path = tempfile.mkstemp()
        os.unlink(path)
        content[number] = b"%d" % number
        os.write(number, content[number])
    return content


def _descriptors() -> set[int]:
    numbers = map(int, os.listdir("/proc/self/fd"))
    return {each for each in numbers if os.path.exists(f"/proc/self/fd/{each}")}


def _kind(number: int) -> str:
    """Return of what kind an open descriptor is; numbers differ from run to run."""
    is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
    return "of a socket" if is_socket else "of a file"


def _through(actor: Actor, ends: Any, tensor: Any) -> Any:
    """Return the tensor that arrives at the other end of a pipe."""
    encode, decode = actor.operations.encode, actor.operations.decode
    actor.by_implementation(lambda: ends[0].send(encode(tensor)))
    return actor.by_implementation(lambda: decode(ends[1].recv()))


def _content(number: int) -> bytes | None:
    """Return the content of a file; or None if that number is not open."""
    try:
        return os.pread(number, 100, 0)
    except OSError:
        return None


def own_pid(actor: Actor) -> int:
    """Return the id of the process in its own namespace."""
    return os.getpid()


def change_user(actor: Actor) -> str:
    """Become a user without privileges; return why that is not possible, or ""."""
    if os.getuid() == NOBODY:
        return "the suite runs as the user that this process would become"
    try:
        become_nobody()
    except OSError as error:
        return f"the suite cannot become another user: {error.strerror}"
    return ""


def forbid(actor: Actor, call: str, error: str) -> str:
    """Make a system call fail in this process with an error, for example ``EPERM``.

    This uses a filter of system calls, like container runtimes.
    """
    number = NUMBERS[call].get(platform.machine())
    if number is None:
        return f"the number of {call} is not known on {platform.machine()}"
    return refuse_call(number, error)


def enter_pid_namespace(actor: Actor) -> str:
    """Start the children of this process in a new PID namespace from now on.

    The first child has the pid 1 there, and the others end with it. So processes that
    the children have in common have to be started before. Until `leave_pid_namespace`,
    this process cannot start threads.
    """
    resource_tracker.ensure_running()
    if leave_pid_namespace(actor) or _libc.unshare(NEW_PIDS) != 0:
        return f"the system makes no namespace of process ids: {_error_text()}"
    return ""


def leave_pid_namespace(actor: Actor) -> str:
    """Start the next children in the namespace of this process again."""
    with open("/proc/self/ns/pid") as own:
        if _libc.setns(own.fileno(), NEW_PIDS) != 0:
            return f"a process cannot go back to its own namespace: {_error_text()}"
    return ""


def mount_own_shm(actor: Actor) -> str:
    """Mount a private ``/dev/shm`` for this process.

    Without privileges that is possible only while the process has one thread.
    """
    before = capabilities.current()
    with suppress(OSError):
        private_shm.mount(Way.AS_ROOT)
        return ""
    try:
        private_shm.mount(Way.WITH_OWN_ID)
    except OSError as error:
        return f"the system mounts no /dev/shm for one process: {error.strerror}"
    capabilities.restrict_to(before)
    return ""


def _error_text() -> str:
    return os.strerror(ctypes.get_errno())


class Occupied:
    """The descriptors that this process opened, and its soft limit before."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.soft_limit = 0


_occupied = Occupied()


def occupy_descriptors(actor: Actor, below: int) -> str:
    """Open all descriptors below a number, so that the next one is not below it.

    The soft limit of descriptors is raised if necessary; `release_descriptors` restores
    it. Return why that is impossible here, or nothing.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * below:
        return f"a process may have {hard} open files, and this needs {2 * below}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * below), hard))
    _occupied.soft_limit, opened = soft, _occupied.opened
    while not opened or opened[-1] < below:
        opened.append(os.open(os.devnull, os.O_RDONLY))
    os.close(opened.pop())
    return ""


def release_descriptors(actor: Actor) -> None:
    """Close the descriptors that `occupy_descriptors` opened, and restore the limit."""
    while _occupied.opened:
        os.close(_occupied.opened.pop())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_occupied.soft_limit, hard))
