"""Enters a user namespace, in which an ordinary user may mount: user_namespaces(7).

The process keeps its user and its groups, as it sees them. It gets all capabilities in
the namespace; the module `capabilities` takes them from others.

It uses only the standard library, because the supervisor imports it.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
from collections.abc import Callable
from contextlib import suppress

NOBODY = 65534
"""The id of the other user, and of its group."""

_NEW_USERS = 0x10000000  # CLONE_NEWUSER, unshare(2)
_KINDS = ("uid", "gid")

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give this process new namespaces.

    Raises:
        OSError: the system refuses that.
    """
    if _libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no namespace can be made: {os.strerror(number)}")


def enter(flags: int, map_ids: Callable[[int], None] | None = None) -> None:
    """Enter a new user namespace, and those of `flags`, which it owns.

    If that fails, this process may be left in a namespace in which it is a stranger.

    Args:
        map_ids: maps the ids of the namespace of a process, from outside; without it
            only the own ids are mapped.

    Raises:
        OSError: the system refuses that.
    """
    if map_ids is None:
        own = {"uid": os.geteuid(), "gid": os.getegid()}
        unshare(flags | _NEW_USERS)
        _write("/proc/self/setgroups", "deny")
        for kind, number in own.items():
            _write(f"/proc/self/{kind}_map", f"{number} {number} 1")
    else:
        _enter_with(map_ids, flags)


def _enter_with(map_ids: Callable[[int], None], flags: int) -> None:
    """Enter a namespace whose ids a process maps that stays outside."""
    target = os.getpid()
    reader, writer = os.pipe()
    helper = os.fork()
    if helper == 0:
        status = 1
        try:
            os.close(writer)
            if os.read(reader, 1):
                map_ids(target)
                status = 0
        finally:
            os._exit(status)
    os.close(reader)
    try:
        unshare(flags | _NEW_USERS)
        os.write(writer, b".")
    finally:
        os.close(writer)
        _, status = os.waitpid(helper, 0)
    if status:
        raise OSError(f"the ids of the user namespace of {target} cannot be mapped")


def map_all_ids(pid: int) -> None:
    """Map every id of this namespace to itself, in the namespace of a process.

    Raises:
        OSError: this process may not do that (CAP_SETUID, CAP_SETGID).
    """
    for kind in _KINDS:
        with open(f"/proc/self/{kind}_map") as file:
            ranges = [line.split() for line in file]
        lines = [f"{first} {first} {count}\n" for first, _, count in ranges]
        _write(f"/proc/{pid}/{kind}_map", "".join(lines))


def map_second_id(pid: int) -> None:
    """Map the own ids and those of `NOBODY`, in the namespace of a process.

    Raises:
        OSError: the user has no subordinate ids, or there is no ``newuidmap``.
    """
    own = {"uid": os.geteuid(), "gid": os.getegid()}
    if NOBODY in own.values():
        raise OSError("the user is the other user")
    for kind, number in own.items():
        ranges = [(number, number, 1), (NOBODY, _subordinate_id(f"/etc/sub{kind}"), 1)]
        _run(f"new{kind}map", pid, *(field for one in ranges for field in one))


def _subordinate_id(file: str) -> int:
    """Return the first subordinate id that the user has, subuid(5)."""
    uid = os.getuid()
    names = {str(uid)}
    with suppress(KeyError):  # in a container, a user may have no account
        names.add(pwd.getpwuid(uid).pw_name)
    with open(file) as lines:
        for line in lines:
            name, _, numbers = line.strip().partition(":")
            if name in names:
                return int(numbers.partition(":")[0])
    raise OSError(f"{file} has no id for the user {uid}")


def _run(program: str, *arguments: int) -> None:
    path = shutil.which(program)
    if path is None:
        raise OSError(f"there is no program {program}")
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (1, 2)]
    command = [path, *map(str, arguments)]
    child = os.posix_spawn(path, command, os.environ, file_actions=null)
    if os.waitpid(child, 0)[1]:
        raise OSError(f"{program} failed")


def _write(path: str, text: str) -> None:
    """Write to a file of the kernel, which takes the text as a whole."""
    with open(path, "wb", buffering=0) as file:
        file.write(text.encode())
