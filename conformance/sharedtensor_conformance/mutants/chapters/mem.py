"""Mutants of the order of writes.

Processes that map the same memory see writes in order anyway. So each mutant puts
something between a process and its memory that breaks the order: values that are read
early, or writes that are made late.
"""

import os
from multiprocessing import synchronize

import numpy as np

from sharedtensor_conformance.mutants.held import held_storages
from sharedtensor_conformance.mutants.registry import mutant


def _key(storage):
    """Return a key that identifies a shared storage."""
    return storage.segment.token, storage.offset


class _Early:
    """Values of shared storages that are read earlier than the program reads them."""

    def __init__(self, setitem, interface, values):
        self._setitem, self._interface, self._values = setitem, interface, values
        self._contents = {}

    def read(self):
        """Return the bytes of all storages that this process shares, by key."""
        return {_key(one): one.memory.bytes.tobytes() for one in held_storages()}

    def use(self, contents):
        """Let the next read of each of these storages return this content."""
        self._contents = contents

    def tensor(self):
        """Return replacements: of writing an element, and of the two ways to read."""
        return (
            lambda tensor, index, value: self.write(tensor, index, value),
            property(lambda tensor: self._described(tensor)),
            lambda tensor: self._found(tensor),
        )

    def write(self, tensor, index, value):
        """Write, and discard the early value of the storage."""
        self._taken(tensor)
        self._setitem(tensor, index, value)

    def _described(self, tensor):
        described, early = self._interface.fget(tensor), self._taken(tensor)
        return described if early is None else described | {"data": early}

    def _found(self, tensor):
        return np.asarray(tensor) if self._has(tensor) else self._values(tensor)

    def _has(self, tensor):
        storage = tensor.storage
        return storage.segment is not None and _key(storage) in self._contents

    def _taken(self, tensor):
        has = self._has(tensor)
        return self._contents.pop(_key(tensor.storage)) if has else None


@mutant(
    "reads_before_the_message",
    "MEM-1",
    replaces=(
        "multiprocessing.connection.Connection.receive",
        "tensors.Tensor.__setitem__",
        "tensors.Tensor.__array_interface__",
        "tensors.Tensor._values",
    ),
)
def reads_before_the_message(receive, *tensor):
    """Who waits for a message has read its tensors before the message comes."""
    early = _Early(*tensor)

    def read(channel, *how):
        contents = early.read()
        message = receive(channel, *how)
        early.use(contents)
        return message

    return read, *early.tensor()


@mutant(
    "hears_of_its_senders_writes_alone",
    "MEM-2",
    replaces=(
        "protocol.pack_message",
        "protocol.pack_for_child",
        "multiprocessing.connection.Connection.receive",
        "protocol.unpack_message",
        "tensors.Tensor.__setitem__",
        "tensors.Tensor.__array_interface__",
        "tensors.Tensor._values",
    ),
)
def hears_of_its_senders_writes_alone(
    pack_message, pack_for_child, receive, unpack_message, *tensor
):
    """A message makes its receiver read again what its sender wrote, and no more."""
    early, written, contents = _Early(*tensor), set(), {}
    _, *reading = early.tensor()

    def read(channel, *how):
        before = early.read()
        message = receive(channel, *how)
        contents.clear()
        contents.update(before)
        return message

    def unpack(payload, descriptors):
        obj, by_sender = unpack_message(payload, descriptors)
        early.use({t: one for t, one in contents.items() if t not in by_sender})
        return obj

    def write(self, index, value):
        early.write(self, index, value)
        if self.storage.segment is not None:
            written.add(_key(self.storage))

    def pack(obj):
        return pack_message((obj, set(written)))

    def pack_arguments(obj):
        return pack_for_child((obj, set(written)))

    return pack, pack_arguments, read, unpack, write, *reading


@mutant(
    "last_writes_are_lost",
    "MEM-3",
    replaces=(
        "protocol.pack_message",
        "tensors.Tensor.__setitem__",
        "tensors.Tensor.__array_interface__",
        "tensors.Tensor._values",
    ),
)
def last_writes_are_lost(pack_message, setitem, interface, values):
    """A write is made when the process reads or sends next: never, if it ends first."""
    late = []

    def catch_up():
        while late:
            setitem(*late.pop(0))

    def write(self, index, value):
        if self.storage.segment is None:
            setitem(self, index, value)
        else:
            late.append((self, index, value))

    def after_all(step):
        def step_after_all(argument):
            catch_up()
            return step(argument)

        return step_after_all

    described = property(after_all(interface.fget))
    return after_all(pack_message), write, described, after_all(values)


@mutant(
    "reads_before_the_lock",
    "MEM-4",
    replaces=(
        "tensors.Tensor.__setitem__",
        "tensors.Tensor.__array_interface__",
        "tensors.Tensor._values",
    ),
)
def reads_before_the_lock(*tensor):
    """Who waits for a lock or a semaphore has read its tensors before it gets it."""
    early = _Early(*tensor)
    make_methods = synchronize.SemLock._make_methods

    def make_methods_that_read(self):
        make_methods(self)
        self.acquire = lambda *how: acquire(self, *how)

    def acquire(self, *how):
        contents = early.read()
        acquired = self._semlock.acquire(*how)
        early.use(contents)
        return acquired

    synchronize.SemLock._make_methods = make_methods_that_read
    synchronize.SemLock.__enter__ = lambda self: self.acquire()
    return early.tensor()


@mutant("writes_in_halves", "MEM-5", replaces="tensors.Tensor.__setitem__")
def writes_in_halves(setitem):
    """An element of 8 bytes is written as two of 4 bytes, one after the other."""

    def write(self, index, value):
        window = self._array()[index] if self.dtype == np.int64 else None
        if not isinstance(window, np.int64):
            setitem(self, index, value)
            return
        halves = self._array().view(np.int32).reshape(*self.shape, 2)[index]
        for half, part in enumerate(np.array([value]).view(np.int32)):
            halves[half] = part
            os.sched_yield()

    return write
