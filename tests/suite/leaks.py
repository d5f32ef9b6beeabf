"""Implementations that leak exactly one thing, once, and are perfect but for that.

Each leaks in the second tensor that its peer makes for a case: not in its first, which
the harness makes before the first case. In a case that fails (since nothing is shared
here) the leak is on the path of the failure.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from mmap import mmap
from socket import AF_UNIX, socket

from miniatures import Plain, plain

_kept: list[object] = []


def _process() -> None:
    _kept.append(subprocess.Popen(["sleep", "120"], close_fds=True))


def _segment() -> None:
    open(f"/dev/shm/miniature-{os.getpid()}", "x").close()


def _thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


LEAKS: dict[str, Callable[[], object]] = {
    "descriptor": lambda: os.open(os.devnull, os.O_RDONLY),
    "mapping": lambda: _kept.append(mmap(-1, 4096)),
    "segment": _segment,
    "process": _process,
    "thread": _thread,
    "socket": lambda: socket(AF_UNIX).detach(),
    "file": lambda: os.close(tempfile.mkstemp()[0]),
}
"""How one of each is leaked."""


class _LeaksOne(Plain):
    """It leaks one of its kind in one process of the two."""

    kind = ""
    made = 0

    def make(self, values, shape, dtype):
        cls = type(self)
        cls.made += 1
        if cls.made == 2 and multiprocessing.parent_process():
            LEAKS[cls.kind]()
        return super().make(values, shape, dtype)


def _adapter(kind: str):
    operations = type(f"LeaksOne_{kind}", (_LeaksOne,), {"kind": kind})
    globals()[operations.__name__] = operations
    return replace(
        plain,
        name=f"leaks-one-{kind}",
        operations=f"{__name__}:{operations.__name__}",
        claims=frozenset({"core", "lifetime"}),
        segment_pattern=r"miniature-{pid}",
    )


descriptor, mapping, segment, process, thread, socket_, file = map(_adapter, LEAKS)
clean = replace(plain, name="leaks-nothing", claims=descriptor.claims)
