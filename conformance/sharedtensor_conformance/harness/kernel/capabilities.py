"""The capabilities of this process, which a user namespace adds to: capabilities(7).

What makes the environment of a stage needs them, and the implementation may not have
them. A set of capabilities is a number here, with a bit for each.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3, capget(2)
_MAX_CAPABILITIES = 64
_READ_BOUNDING, _DROP_BOUNDING = 23, 24  # PR_CAPBSET_READ, PR_CAPBSET_DROP, prctl(2)
_AMBIENT, _RAISE = 47, 2  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE

_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


_Data = ctypes.c_uint32 * 6  # the low halves of three sets, then the high halves


class Before(NamedTuple):
    """The capabilities of this process before it entered a user namespace.

    Args:
        permitted: those that it may use.
        bounding: those that a program may get when it is executed.
    """

    permitted: int
    bounding: int


def current() -> Before:
    """Return the capabilities that this process has, and may get."""
    return Before(_get()[1], _bounding())


def _bounding() -> int:
    found = 0
    for number in range(_MAX_CAPABILITIES):
        if _libc.prctl(_READ_BOUNDING, number, 0, 0, 0) == 1:
            found |= 1 << number
    return found


def limit_programs(before: Before) -> None:
    """Let what is executed later get only capabilities that it could get before."""
    for number in _numbers(_bounding() & ~before.bounding):
        _check(_libc.prctl(_DROP_BOUNDING, number, 0, 0, 0))


def restrict_to(before: Before) -> None:
    """Drop the capabilities that were gained."""
    limit_programs(before)
    effective, permitted, inheritable = _get()
    _set(effective & before.permitted, permitted & before.permitted, inheritable)


def drop_all() -> None:
    """Drop all capabilities."""
    _set(0, 0, 0)


def keep_for_program() -> None:
    """Let the program that this process executes next have its capabilities.

    The program has to call `forbid_inheriting`. `limit_programs` comes after this.
    """
    kept = _get()[1]
    _set(kept, kept, kept)
    for number in _numbers(kept):
        _check(_libc.prctl(_AMBIENT, _RAISE, number, 0, 0))


def forbid_inheriting() -> None:
    """Undo `keep_for_program`: what is executed next has no capabilities of these.

    What is not inheritable is not ambient either.
    """
    effective, permitted, _ = _get()
    _set(effective, permitted, 0)


def _numbers(capabilities: int) -> list[int]:
    return [n for n in range(_MAX_CAPABILITIES) if capabilities >> n & 1]


def _get() -> tuple[int, ...]:
    """Return the effective, permitted and inheritable capabilities."""
    header, data = _Header(_VERSION, 0), _Data()
    _check(_libc.capget(ctypes.byref(header), data))
    return tuple(low | high << 32 for low, high in zip(data[:3], data[3:], strict=True))


def _set(*sets: int) -> None:
    """Set the effective, permitted and inheritable capabilities."""
    halves = [part & 0xFFFFFFFF for part in (*sets, *(part >> 32 for part in sets))]
    header = _Header(_VERSION, 0)
    _check(_libc.capset(ctypes.byref(header), _Data(*halves)))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capabilities cannot be changed: {os.strerror(number)}")
