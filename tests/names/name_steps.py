"""Processes that share, receive, drop and sweep one name, a system call at a time.

The code is the package's own, and the locks are those of the kernel. They belong to
open file descriptions, so several processes can live in one: each is a thread that
stops before each system call that others can notice. A killed one closes what it has
open.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from functools import partial
from unittest import mock

from interleavings import (
    Choice,
    Killed,
    Machine,
    Process,
    Violation,
    at_once,
    current_process,
)
from sharedtensor import descriptors, segments
from sharedtensor.names import keeper, program

PROGRAM = "0123456789ab"
NAME = f"sharedtensor-1-{'f' * 8}{PROGRAM}{'0' * 11}7"
NOTICED = ("open", "close", "fstat", "unlink", "flock", "fcntl", "listdir")


class Stepped:
    """A module whose calls are steps of the process that makes them."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        found = getattr(self._module, name)
        if name not in NOTICED:
            return found

        def stepped(*arguments, **options):
            actor = current_process()
            if actor is None or arguments[0] == keeper.DIRECTORY:
                return found(*arguments, **options)
            return actor.call(name, found, *arguments, **options)

        return stepped


class Actor(Process):
    """One process, which does some work: what it holds."""

    def __init__(self, machine, name, work):
        self.machine, self._work = machine, work
        self.mapping = self.message = None
        super().__init__(name)

    def work(self):
        self._work(self)

    def fail(self, error):
        self.machine.violation = f"{self.name}: {error!r}"

    def end(self):
        if self.was_killed:
            self.let_go()

    def call(self, what, call, *arguments, **options):
        """Make a system call as a step; note what came of it."""
        if self.was_killed:
            return call(*arguments, **options)
        is_shared = what == "flock" and arguments[1] & fcntl.LOCK_SH
        try:
            self.point(what, partial(is_free, arguments[0]) if is_shared else at_once)
        except Killed:
            if what == "close":
                call(*arguments)
            raise
        try:
            result = call(*arguments, **options)
        except OSError as error:
            self.observe(type(error).__name__)
            raise
        self.observe(self.said(what, result, arguments))
        return result

    def said(self, what, result, arguments):
        """Return what a process has learnt: of a file, which of that name it is."""
        if what == "open":
            self.machine.files += bool(arguments[1] & os.O_CREAT)
            return self.machine.files
        if what == "fstat":
            return result.st_nlink
        return tuple(result) if what in ("fcntl", "listdir") and result else None

    def map(self, owned):
        """Map the file, which keeps its lock; close the descriptor."""
        os.truncate(owned.fd, mmap.PAGESIZE)
        self.mapping = mmap.mmap(owned.fd, mmap.PAGESIZE)
        owned.close()

    def drop(self):
        """Drop the mapping, as the release of a segment does."""
        self.point("drops")
        self.mapping.close()
        self.mapping = None
        program.remove_unless_held(NAME)

    def let_go(self):
        """Close what a process has open at its end."""
        for held in (self.mapping, self.message):
            if held is not None:
                held.close()
        self.mapping = self.message = None


def is_free(fd):
    """Return whether a shared lock of a file can be had."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def shares(actor):
    """Make a segment, send it, and drop it."""
    actor.map(segments.create_named(NAME))
    actor.message = program.in_flight([NAME])
    actor.point("sends")
    actor.machine.channel.append(actor.message)
    actor.message = None
    actor.drop()


def keeps(actor):
    """Make a segment, and drop it."""
    actor.map(segments.create_named(NAME))
    actor.drop()


def receives(actor):
    """Receive the segment, and drop it."""
    actor.point("receives", lambda: actor.machine.channel)
    actor.message = actor.machine.channel.pop()
    actor.map(segments.open_named(NAME))
    actor.point("closes the message")
    actor.message.close()
    actor.message = None
    actor.drop()


def receives_carelessly(actor):
    """Receive the segment, and close the message before it is held."""
    actor.point("receives", lambda: actor.machine.channel)
    actor.machine.channel.pop().close()
    actor.map(segments.open_named(NAME))


def sweeps(actor):
    """Look at all names once, as the keeper does."""
    locks = keeper.open_locks()
    try:
        keeper.sweep(PROGRAM, locks)
    finally:
        os.close(locks)


class NameMachine(Machine):
    """The processes, their channel and the directory of segments."""

    def __init__(self, directory, works: dict[str, Callable[[Actor], None]], mortal):
        super().__init__()
        self.mortal = mortal
        self.path = f"{directory}/{NAME}"
        self.channel, self.files = [], 0
        self._patches = [
            mock.patch.object(keeper, "DIRECTORY", str(directory)),
            mock.patch.object(segments, "DIRECTORY", str(directory)),
            *(mock.patch.object(each, "os", Stepped(os)) for each in MODULES),
            mock.patch.object(keeper, "fcntl", Stepped(fcntl)),
            mock.patch.object(descriptors, "fcntl", Stepped(fcntl)),
        ]
        for patch in self._patches:
            patch.start()
        for name, work in works.items():
            self.processes[name] = Actor(self, name, work)

    def key(self):
        done = [(each.history, each.was_killed) for each in self.processes.values()]
        return hash((*done, os.path.exists(self.path), len(self.channel)))

    def may_die(self, process):
        return process.name in self.mortal

    def take(self, choice: Choice):
        super().take(choice)
        if self.holders() and not os.path.exists(self.path):
            raise Violation(f"the name is gone that {self.holders()} has")

    def holders(self):
        """Return who holds the name, a message in flight too."""
        found = [each.name for each in self.processes.values() if each.mapping]
        found += [f"message of {a.name}" for a in self.processes.values() if a.message]
        return found + ["channel"] * len(self.channel)

    def verify_end(self):
        """Raise Violation unless what nobody holds is removed at last.

        Where nobody was killed, and no keeper looked, the last one to drop it did that.
        """
        for actor in self.processes.values():
            if not actor.is_over and actor.label != "receives":
                raise Violation(f"{actor.name} waits for ever")
        is_alone = "keeper" not in self.processes and not self.channel
        deaths = any(actor.was_killed for actor in self.processes.values())
        if is_alone and not deaths and os.path.exists(self.path):
            raise Violation("the name was left by who dropped it last")
        for held in (*self.channel, *self.processes.values()):
            held.close() if held in self.channel else held.let_go()
        self.channel.clear()
        sweeps(None)
        if os.path.exists(self.path):
            raise Violation("the name is left that nobody has")

    def close(self):
        super().close()
        for actor in self.processes.values():
            actor.let_go()
        for message in self.channel:
            message.close()
        for patch in reversed(self._patches):
            patch.stop()
        if os.path.exists(self.path):
            os.unlink(self.path)


MODULES = (keeper, segments, program, descriptors)
