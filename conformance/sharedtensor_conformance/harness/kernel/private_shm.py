"""Gives a process a ``/dev/shm`` that only it and its children see.

Only root may mount, and in some containers not even root. In a user namespace every
user may. A system may forbid these, or permit to enter one in which mounting is
refused. Since nothing leads back out of one, `best_way` tries it in a child.

It uses only the standard library, because the supervisor imports it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from enum import StrEnum
from typing import TYPE_CHECKING

from sharedtensor_conformance.harness.kernel import user_namespace
from sharedtensor_conformance.harness.kernel.process_tree import SHM

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.supervisor.supervisor import Supervisor

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS, unshare(2)
_RECURSIVE_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE, mount(2)
_NO_SETUID_NO_DEVICES = 2 | 4  # MS_NOSUID | MS_NODEV
_REMOUNT, _BIND, _READ_ONLY = 32, 0x1000, 1  # MS_REMOUNT, MS_BIND, MS_RDONLY
_DETACH = 2  # MNT_DETACH, umount(2)

_libc = ctypes.CDLL(None, use_errno=True)


class Way(StrEnum):
    """How a ``/dev/shm`` can be mounted, the best way first."""

    AS_ROOT = "as-root"
    WITH_ALL_IDS = "with-all-ids"  # in a user namespace, like the following
    WITH_SECOND_ID = "with-second-id"
    WITH_OWN_ID = "with-own-id"
    NONE = "none"

    @property
    def in_user_namespace(self) -> bool:
        """Whether the process is in a new user namespace afterwards."""
        return self not in (Way.AS_ROOT, Way.NONE)


_MAPPERS = {
    Way.WITH_ALL_IDS: user_namespace.map_all_ids,
    Way.WITH_SECOND_ID: user_namespace.map_second_id,
    Way.WITH_OWN_ID: None,
}


@functools.cache
def best_way() -> Way:
    """Return the first way that succeeds in a child of this process."""
    return next(way for way in Way if _is_possible(way))


def _is_possible(way: Way) -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            mount(way)
            status = 0
        finally:
            os._exit(status)  # whatever happens
    return os.waitpid(child, 0)[1] == 0


def mount(way: Way) -> None:
    """Mount a ``/dev/shm`` that only this process and its children see.

    Raises:
        OSError: that is not permitted, or not in this way.
    """
    if way is Way.NONE:
        return
    if way is Way.AS_ROOT:
        if os.geteuid() != 0:
            raise PermissionError("only root may mount")
        user_namespace.unshare(_NEW_MOUNTS)
    else:
        user_namespace.enter(_NEW_MOUNTS, _MAPPERS[way])
    _mount(None, b"/", None, _RECURSIVE_PRIVATE)
    _mount(b"tmpfs", SHM.encode(), b"tmpfs", _NO_SETUID_NO_DEVICES, b"mode=1777")


def mount_as_root() -> bool:
    """Mount it without a user namespace; return whether that is permitted.

    What a process of several threads may do, and one that goes on to mount more.
    """
    try:
        mount(Way.AS_ROOT)
    except OSError:
        return False
    return True


def mount_if_permitted() -> bool:
    """Mount it in the best way; return whether one is permitted."""
    way = best_way()
    mount(way)
    return way is not Way.NONE


def cover(supervisor: Supervisor, how: str) -> None:
    """Make the private ``/dev/shm`` unusable; `uncover` ends that.

    It is covered by itself where it is to be ``read-only``, and by a directory that has
    been removed where it is to be ``absent``: nothing can be made in such a one. What
    is open and mapped stays so.

    Args:
        supervisor: whose ``/dev/shm`` it is.
        how: ``read-only`` or ``absent``.

    Raises:
        OSError: it cannot be covered.
        ValueError: others have it too.
    """
    supervisor.require_private_shm()
    absent = os.path.join(supervisor.job["root"], "absent")
    source = SHM if how == "read-only" else absent
    if source != SHM:
        os.mkdir(source)
    try:
        _mount(source.encode(), SHM.encode(), None, _BIND)
    finally:
        if source != SHM:
            os.rmdir(source)
    if how == "read-only":
        flags = _BIND | _REMOUNT | _READ_ONLY | _NO_SETUID_NO_DEVICES
        _mount(None, SHM.encode(), None, flags)


def uncover(supervisor: Supervisor) -> None:
    """Undo `cover`."""
    supervisor.require_private_shm()
    if _libc.umount2(SHM.encode(), _DETACH) != 0:
        raise OSError(ctypes.get_errno(), "/dev/shm cannot be uncovered")


def limit(supervisor: Supervisor, spare: int | None) -> None:
    """Leave only `spare` bytes free in the private ``/dev/shm``; None undoes that.

    Raises:
        OSError: it cannot be given another size.
        ValueError: others have it too.
    """
    supervisor.require_private_shm()
    size = "50%"  # of the machine's memory, which is the kernel's own choice
    if spare is not None:
        found = os.statvfs(SHM)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        size = str(max(used + spare, 1))  # 0 would be no limit
    flags = _REMOUNT | _NO_SETUID_NO_DEVICES
    _mount(b"tmpfs", SHM.encode(), b"tmpfs", flags, f"size={size}".encode())


def _mount(
    source: bytes | None,
    target: bytes,
    kind: bytes | None,
    flags: int,
    options: bytes | None = None,
) -> None:
    if _libc.mount(source, target, kind, flags, options) != 0:
        number = ctypes.get_errno()
        what = f"{target.decode()} cannot be mounted: {os.strerror(number)}"
        raise OSError(number, what)
