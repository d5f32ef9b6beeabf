"""Restricts a process as a container does, with namespaces and system call filters.

Namespaces and filters of system calls cannot be undone, so these actions are for
processes of one case. Each action returns why it is impossible here, or nothing if it
succeeded. Children that the process starts later inherit the restriction.

The first argument of each action is the actor.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import Any

from sharedtensor_conformance.harness import capabilities, private_shm
from sharedtensor_conformance.harness.private_shm import Way

NEW_PIDS = 0x20000000  # CLONE_NEWPID, unshare(2)
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}  # its number among the system calls

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # prctl(2)
# Instructions of a filter, seccomp(2): load the number, compare, and return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x00050000, 0x7FFF0000

_libc = ctypes.CDLL(None, use_errno=True)


def own_pid(actor: Any) -> int:
    """Return the id of the process in its own namespace."""
    return os.getpid()


def forbid_memfd_create(actor: Any, error: str) -> str:
    """Make `memfd_create` fail in this process with an error, for example ``EPERM``.

    This uses a filter of system calls, like container runtimes.
    """
    number = MEMFD_CREATE.get(platform.machine())
    if number is None:
        return f"the number of memfd_create is not known on {platform.machine()}"
    return refuse_call(number, error)


def refuse_call(number: int, error: str) -> str:
    """Make a system call fail in this process; return why that is impossible."""
    instructions = (
        (_LOAD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _REFUSE | getattr(errno, error)),
        (_RETURN, 0, 0, _ALLOW),
    )
    program = b"".join(struct.pack("HBBI", *one) for one in instructions)
    content = ctypes.create_string_buffer(program)
    # struct sock_fprog: how many instructions there are, and where
    described = struct.pack("HP", len(instructions), ctypes.addressof(content))
    _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if _libc.prctl(_SECCOMP, _FILTER, described, 0, 0) != 0:
        return f"the system sets no filter of system calls: {_error_text()}"
    return ""


def enter_pid_namespace(actor: Any) -> str:
    """Start the children of this process in a new PID namespace from now on.

    The first child has the pid 1 there, and the others end with it. So processes that
    the children have in common have to be started before. Until `leave_pid_namespace`,
    this process cannot start threads.
    """
    resource_tracker.ensure_running()
    if leave_pid_namespace(actor) or _libc.unshare(NEW_PIDS) != 0:
        return f"the system makes no namespace of process ids: {_error_text()}"
    return ""


def leave_pid_namespace(actor: Any) -> str:
    """Start the next children in the namespace of this process again."""
    with open("/proc/self/ns/pid") as own:
        if _libc.setns(own.fileno(), NEW_PIDS) != 0:
            return f"a process cannot go back to its own namespace: {_error_text()}"
    return ""


def mount_own_shm(actor: Any) -> str:
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
