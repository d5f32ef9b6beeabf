"""Makes system calls of a process fail, as the filters of containers do.

This cannot be undone, and later children inherit it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # prctl(2)
# Instructions of a filter, seccomp(2): load the number, compare, and return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x00050000, 0x7FFF0000

_libc = ctypes.CDLL(None, use_errno=True)


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
        why = os.strerror(ctypes.get_errno())
        return f"the system sets no filter of system calls: {why}"
    return ""
