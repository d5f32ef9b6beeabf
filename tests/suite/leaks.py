"""Implementations that leak, and are perfect but for that.

`one` leaks exactly one thing, once; `each` a descriptor for each message.

What it leaks is what its strategy is called. It does so in the first tensor that its
peer makes for a case: not in those that the harness makes before, one for each channel.
In a case that fails (since nothing is shared here) the leak is on the path of the
failure.
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
from sharedtensor_conformance.adapters import reference

_kept: list[object] = []


def _process() -> None:
    _kept.append(subprocess.Popen(["sleep", "120"], close_fds=True))


def _segment() -> None:
    open(f"/dev/shm/miniature-{os.getpid()}", "x").close()


def _thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


LEAKS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "descriptor": lambda: os.open(os.devnull, os.O_RDONLY),
    "mapping": lambda: _kept.append(mmap(-1, 4096)),
    "segment": _segment,
    "process": _process,
    "thread": _thread,
    "socket": lambda: socket(AF_UNIX).detach(),
    "file": lambda: os.close(tempfile.mkstemp()[0]),
}
"""How one of each is leaked."""


class LeaksOne(Plain):
    """It leaks one of its kind in each peer."""

    kind = ""
    made = 0
    channels = ("pipe",)

    def enter_child(self, strategy):
        self.kind = strategy

    def make(self, values, shape, dtype):
        if multiprocessing.parent_process():
            self.made += 1
            if self.made == len(self.channels) + 1:
                LEAKS[self.kind]()
        return super().make(values, shape, dtype)


one = replace(
    plain,
    name="leaks-one",
    operations=f"{__name__}:LeaksOne",
    claims=frozenset({"core", "lifetime"}),
    strategies=tuple(LEAKS),
    segment_pattern=r"miniature-{pid}",
)


class LeaksOneByEachChannel(LeaksOne):
    """It has more cases of a test, so that they can be divided."""

    channels = ("queue", "simple_queue", "pipe")


one_by_each_channel = replace(
    one,
    operations=f"{__name__}:LeaksOneByEachChannel",
    channels=LeaksOneByEachChannel.channels,
)


class LeaksEach(reference.ReferenceOperations):
    """It leaks a descriptor for each tensor that it sends."""

    def encode(self, tensor):
        os.open(os.devnull, os.O_RDONLY)
        return super().encode(tensor)


each = replace(
    reference.conformance_adapter,
    name="leaks-each",
    operations=f"{__name__}:LeaksEach",
)


class LeaksEachAndAPipe(LeaksEach):
    """It leaks a pipe as well, with the fourth tensor of a test."""

    sent = 0

    def encode(self, tensor):
        self.sent += self.values(tensor) != [1, 0, 1]  # which warms the processes
        if self.sent == 4:
            os.pipe()
        return super().encode(tensor)


each_and_a_pipe = replace(
    each,
    name="leaks-each-and-a-pipe",
    operations=f"{__name__}:LeaksEachAndAPipe",
)
