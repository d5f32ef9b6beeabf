"""The protocol: what is done with a tensor on its way from one process to another.

One function a step, in the order of events: a tensor is shared, exported, packed into a
message, announced, written, read, unpacked and rebuilt. Whatever a clause decides about
a message is decided here; how a segment is made, opened, acknowledged and released is
up to the strategies below.

Steps are called as ``protocol.step(...)``, or by name within this module, so a step
that is replaced here is replaced everywhere: in storages, tensors and channels. The
conformance suite makes its mutants so.
"""

from __future__ import annotations

import contextlib
import copyreg
import errno
import pickle
import struct
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from . import announcements, atomic, memory, segments, state, strategies, transport
from .descriptors import ReceivedDescriptors, hold_reserve
from .errors import (
    HandleError,
    NonLeafError,
    ResourceError,
    pass_on,
    resource_error,
)
from .names import program

if TYPE_CHECKING:
    from .multiprocessing.connection import Connection
    from .storage import Storage
    from .tensors import Tensor

T = TypeVar("T", bound="Tensor")
Known = TypeVar("Known", "Storage", strategies.Segment)

Window = tuple[str, int, tuple[int, ...], tuple[int, ...]]
"""What a tensor is on its storage: dtype, offset, shape and strides."""

HANDLE_VERSION = 5
"""The version of handles: raised when they, or what is beside them, change."""

SMALL = 64 << 10
"""Storages of at most so many bytes can have a segment in common. Clause LIFE-26."""

LARGEST_COMMON = 4 << 20
"""A common segment has at most so many bytes, which one storage can keep."""

RETRY_PAUSE = 0.005
"""Seconds between two attempts to write a message that was accepted."""

TABLE_SIZE = struct.Struct("!I")
"""How the size of a message's table is written behind it."""


# Settings


def get_sharing_strategy() -> str:
    """Return the name of the current strategy. Clauses STRAT-1, STRAT-6."""
    return state.strategy


def set_sharing_strategy(name: str) -> None:
    """Make a strategy the current one, for storages that are shared from now on.

    Raises `StrategyError` for another name, and changes nothing then. Clauses STRAT-2,
    STRAT-3, FAIL-10.
    """
    set_strategy(strategies.find_strategy(name).name)


def set_strategy(name: str) -> None:
    """Set the current strategy, whose name has been checked. Clause STRAT-2."""
    state.strategy = name


def child_settings() -> tuple[str, str]:
    """Return what a child takes over from its parent: strategy and program.

    Only `file_system` needs a program, with its manager. Clauses START-6, MGR-5.
    """
    needs_program = state.strategy == strategies.FileSystem.name
    return state.strategy, program.current() if needs_program else ""


def enter_child(strategy: str, program_id: str) -> None:
    """Take over the parent's settings in a new child. Clauses START-6, CHAN-10."""
    set_sharing_strategy(strategy)
    program.adopt(program_id)


# Sharing


def share_storage(storage: Storage) -> None:
    """Move a storage once; a shared one stays where it is.

    Clauses RESHARE-1, RESHARE-2, STRAT-4. Raises `NestedMoveError`.
    """
    if storage.segment is None:
        state.change([storage], move_storage, storage)


def share_storages(storages: Iterable[Storage]) -> None:
    """Move storages that one call shares; the small ones move together.

    Clauses LIFE-26, RESHARE-1, RESHARE-2.
    """
    private = {id(each): each for each in storages if each.segment is None}
    if len(private) > 1:
        share_small([each for each in private.values() if is_small(each)])
    for storage in private.values():
        share_storage(storage)


def is_small(storage: Storage) -> bool:
    """Return whether a storage can have a segment in common with others."""
    return storage.memory.capacity <= SMALL


def share_small(storages: Iterable[Storage]) -> None:
    """Move small storages, as many together as one segment may have.

    Where that is refused they stay private: a limit of the size of files, for instance,
    may leave room for each of them alone. Clauses LIFE-26, CHAN-5, FAIL-5. Raises
    `NestedMoveError`.
    """
    small = list(storages)
    with contextlib.suppress(ResourceError):
        state.change(small, move_in_groups, small)


def move_in_groups(storages: Iterable[Storage]) -> None:
    """Move those of small storages that are private, in groups.

    Clauses FD-8, LIFE-26.
    """
    for group in groups_of(each for each in storages if each.segment is None):
        move_together(group)


def groups_of(storages: Iterable[Storage]) -> Iterator[list[Storage]]:
    """Yield small storages in groups that fit into a segment. Clause LIFE-26."""
    group: list[Storage] = []
    size = 0
    for storage in storages:
        pages = storage.memory.capacity
        if size + pages > LARGEST_COMMON:
            yield group
            group, size = [], 0
        group.append(storage)
        size += pages
    if len(group) > 1:
        yield group


def move_storage(storage: Storage) -> None:
    """Move a storage alone. One that another thread has moved first is left.

    Clauses CHAN-5, LIFE-26.
    """
    if storage.segment is None:
        move_together([storage])


def move_together(storages: list[Storage]) -> None:
    """Copy storages into one segment under the current strategy, each at its address.

    The segment can be found before they are in it. That they are is said in the same
    step of C as maps it. So whatever is raised, and wherever it arises, all have moved
    and know the segment, or nothing has happened. Nothing else makes a segment. The
    module `memory` says which writes of other threads can be lost meanwhile. Clauses
    LIFE-26, SHARE-3, SHARE-7, SHARE-9, SHARE-10, START-4, FD-4, FS-1, FS-6, FAIL-6,
    FAULT-2.
    """
    strategy = strategies.find_strategy(state.strategy)
    source = memory.together([storage.memory for storage in storages])
    segment = strategies.Segment(strategy.new_resource(source.nbytes))
    then: list[atomic.Call] = []
    for storage, offset in zip(storages, source.offsets, strict=True):
        storage.offset = offset
        segment.storages[offset] = weakref.ref(storage)
        then.append((setattr, storage, "segment", segment))
    remember_segment(segment)
    try:
        strategy.allocate(segment.resource, source, then)
    except BaseException:
        if storages[0].segment is not segment:
            state.segments.pop(segment.token, None)
            strategies.release_segment(segment.resource)
        raise


# Exporting


def export_tensor(tensor: Tensor) -> tuple[Any, ...]:
    """Return what a message says about a tensor. Clauses VIEW-1, GRAD-1, TRAIN-3."""
    refuse_non_leaf(tensor)
    return reduce_tensor(tensor)


def reduce_tensor(tensor: Tensor) -> tuple[Any, ...]:
    """Return what any pickle says about a tensor: its storage, and the window on it.

    The storage is an object of the pickle, so the pickler decides whether it is shared
    or copied, and its memo has it once for all of its tensors. The grad travels in the
    pickle's state, after the tensor itself is known, so that a tensor which is its own
    grad can be sent. Clauses SHARE-14, SHARE-15.
    """
    what = export_class(tensor), tensor.storage, export_window(tensor)
    arguments = (*what, export_flags(tensor), *new_arguments(tensor))
    extras = export_state(tensor)
    if extras is None:
        return rebuild_tensor, arguments
    return rebuild_tensor, arguments, extras, None, None, attach_state


def refuse_non_leaf(tensor: Tensor) -> None:
    """Refuse a result that requires grad, in the call that sends it. Clause GRAD-5."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise NonLeafError(
            f"A tensor of shape {tensor.shape} requires grad (requires_grad is True) "
            "and is not a leaf: it was computed, and what it was computed from cannot "
            "be sent with it. Send tensor.detach(), which shares its memory."
        )


def export_class(tensor: T) -> type[T]:
    """Return the class, so that a parameter arrives as a parameter.

    Clauses TRAIN-3, KIND-1.
    """
    return type(tensor)


def new_arguments(tensor: Tensor) -> tuple[Any, ...]:
    """Return what `__new__` of the class gets, as pickle has it. Clause KIND-3."""
    if hasattr(tensor, "__getnewargs_ex__"):
        arguments, options = tensor.__getnewargs_ex__()
        return arguments, options
    if hasattr(tensor, "__getnewargs__"):
        return (tensor.__getnewargs__(),)
    return ()


def export_window(tensor: Tensor) -> Window:
    """Return the dtype, offset, shape and strides of a tensor.

    Clauses VIEW-1, VIEW-2, VIEW-8, VIEW-10.
    """
    return tensor.dtype.str, tensor.storage_offset(), tensor.shape, tensor.stride()


def export_flags(tensor: Tensor) -> tuple[bool, bool]:
    """Return whether it requires grad, and whether it is read conjugated.

    Clauses GRAD-1, VIEW-9.
    """
    return tensor.requires_grad, tensor.is_conj()


def export_state(tensor: Tensor) -> tuple[Any, ...] | None:
    """Return the grad and what a subclass adds, or None if there is neither.

    Clauses KIND-1, KIND-3.
    """
    grad, state = export_grad(tensor), tensor.__getstate__()
    if grad is None and state is None:
        return None
    return grad, state


def export_grad(tensor: Tensor) -> Tensor | None:
    """Return the grad that is present at the send.

    Clauses GRAD-2, GRAD-3, GRAD-4, GRAD-8.
    """
    return tensor.grad


def export_storage(storage: Storage) -> tuple[Any, ...]:
    """Reduce a storage to its handle, or to its place in the table of the message.

    In the table are those that may have a segment in common: what moves because of the
    message moves when all of it is known, and a segment is sent once. Others, and those
    of what is no message of ours, are shared here. The pickler's memo sends one of it
    for all its tensors. Clauses SHARE-4, SHARE-6, VIEW-3, LIFE-26.
    """
    outbox = transport.current_outbox()
    if outbox is not None and has_neighbours(storage):
        return find_sent, (outbox.place_of(storage),)
    share_storage(storage)
    return export_shared(storage)


def has_neighbours(storage: Storage) -> bool:
    """Return whether a storage shares a segment with others, or may get to."""
    if storage.segment is None:
        return is_small(storage)
    return len(storage.segment.storages) > 1


def export_shared(storage: Storage) -> tuple[Any, ...]:
    """Reduce a shared storage to its handle, and where it lies in its segment.

    One that was received is sent on by its handle like any other. The version comes
    before all that depends on it. Clauses RESHARE-5, HANDLE-1, HANDLE-2.
    """
    segment = segment_of(storage)
    part = type(storage), storage.offset, storage.nbytes
    return _rebuild_storage, (HANDLE_VERSION, export_handle(segment), *part)


def segment_of(storage: Storage) -> strategies.Segment:
    """Return the segment of a shared storage."""
    assert storage.segment is not None, "a shared storage has a segment"
    return storage.segment


def export_handle(segment: strategies.Segment) -> tuple[Any, ...]:
    """Return a handle: strategy, token, size, and where it is.

    Clauses STRAT-4, STRAT-5.
    """
    where = segment.strategy.export(segment.resource)
    return segment.strategy.name, segment.token, segment.nbytes, where


# Messages


def pack_message(obj: Any) -> transport.Outbox:
    """Pickle an object and collect the descriptors that go with it.

    All tensors in it are shared when this returns, the memo keeps what is one object
    one, and whatever is no tensor is pickled as ever. Clauses CHAN-3, CHAN-6, CHAN-7,
    GRAD-5, RESHARE-6.
    """
    message = transport.Outbox()
    message.payload = transport.sending(message, pack_into, message, obj)
    return message


def pack_for_child(obj: Any) -> bytes:
    """Pickle what a child is started with, as a message that does not wait.

    Its descriptors are in the outbox of the start. Clauses FD-6, FS-3, START-1.
    """
    outbox = transport.spawning_outbox()
    payload = bytes(transport.sending(outbox, pack_into, outbox, obj))
    announce_names(outbox)
    return payload


def pack_into(outbox: transport.Outbox, obj: Any) -> Any:
    """Return the bytes of a message; what goes beside them is in its outbox."""
    payload: Any = pickle_object(obj)
    if outbox.storages:
        share_storages(outbox.storages)
        table = export_table(outbox.storages)
        payload = b"".join((payload, table, TABLE_SIZE.pack(len(table))))
    return payload


def pickle_object(obj: Any) -> memoryview:
    """Pickle an object by whatever is registered with `ForkingPickler`.

    Plain `pickle` is left alone: it copies. Clauses CHAN-3, CHAN-9, RESHARE-6.
    """
    return reduction.ForkingPickler.dumps(obj)


class _Reducers(dict[type, Any]):
    """The table of a pickler, which finds what is registered later as well.

    Each class of tensors is registered with `ForkingPickler` where it is defined: every
    channel of the standard library pickles with it. What is pickled may itself define
    or import a class of tensors. The copy that `ForkingPickler` makes of its tables for
    each object would not have the class, and its tensors would be copied. Clause
    CHAN-3.
    """

    __missing__: ClassVar[Any] = reduction.ForkingPickler._extra_reducers.__getitem__  # type: ignore[attr-defined]

    def copy(self) -> _Reducers:
        return _Reducers(copyreg.dispatch_table)


reduction.ForkingPickler._copyreg_dispatch_table = _Reducers()  # type: ignore[attr-defined]


def export_table(storages: list[Storage]) -> bytes:
    """Return the table of a message: the handles of its storages, each segment's once.

    Pickles end where they end, so it can lie behind the object. Clauses HANDLE-1,
    HANDLE-2, RESHARE-5, VIEW-3.
    """
    parts = defaultdict(list)
    for place, storage in enumerate(storages):
        part = place, type(storage), storage.offset, storage.nbytes
        parts[segment_of(storage)].append(part)
    table = [(export_handle(segment), some) for segment, some in parts.items()]
    return pickle.dumps((HANDLE_VERSION, table), pickle.HIGHEST_PROTOCOL)


def announce_names(outbox: transport.Outbox) -> None:
    """Have a message hold the names that it carries, before it leaves.

    It gets one descriptor for all of them: they are in flight as long as that is open.
    Clauses LIFE-2, LIFE-5, LIFE-8, FAULT-1.
    """
    if outbox.names:
        owned = announcements.descriptor_of(outbox.names)
        outbox.add(owned.fd, owned)


def write_message(message: transport.Outbox, channel: Connection) -> None:
    """Write a message. Sent or not, its descriptors are released.

    One that was accepted is written as soon as the system permits it. Clauses FAIL-1,
    GRAD-6, FAULT-2.
    """
    try:
        while True:
            try:
                return announce_and_write(message, channel, wait=True)
            except ResourceError as error:
                pass_on(error)
                if message.reserve is None:
                    raise
            time.sleep(RETRY_PAUSE)
    finally:
        message.clear()


def write_at_once(message: transport.Outbox, channel: Connection) -> bool:
    """Write a message without waiting; return whether it was written.

    `Queue.put` tries it first: what is in the pipe survives a kill. Clause LIFE-6.
    """
    try:
        announce_and_write(message, channel, wait=False)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError) as error:
        pass_on(error)
        return False  # the thread that feeds the channel waits, or reports it
    except ResourceError as error:
        pass_on(error)
        if error.errno != errno.ETOOMANYREFS:
            raise
        return False
    message.clear()
    return True


def announce_and_write(
    message: transport.Outbox, channel: Connection, wait: bool
) -> None:
    """Announce the names of a message and write it.

    Once it is written it is in flight, and nothing of it is undone: clause CUDA-4. One
    that was not written, since there is no room for it, is in flight nowhere: this
    process holds its names while it waits, and no descriptor stands for them. Clauses
    FS-3, FS-11, FAIL-1, LIFE-2.
    """
    own = len(message.descriptors)
    try:
        announce_names(message)
        if message.reserve is not None:
            message.verify()  # the program may have closed a descriptor meanwhile
        channel.write(message.payload, message.descriptors, wait, message.accepted)
    finally:
        message.keep_first(own)


def make_ready(message: transport.Outbox, channel: Connection) -> None:
    """Accept a message that has to wait.

    What `put` has accepted arrives, though descriptors run out before there is room.
    Raises `ResourceError`. Clause FAIL-1.
    """
    count = len(message.descriptors) + bool(message.names)
    channel.verify_sendable(message.payload, count)
    try:
        message.reserve = hold_reserve()
    except OSError as error:
        pass_on(error)
        raise resource_error(error.errno, "Having a message wait") from error


def unpack_message(payload: Any, descriptors: ReceivedDescriptors) -> Any:
    """Rebuild what was packed; descriptors that nothing took are closed.

    Clauses CHAN-6, LIFE-19.
    """
    inbox = transport.Inbox(descriptors, payload)
    return transport.receiving(inbox, pickle.loads, payload)


def find_sent(place: int) -> Storage:
    """Return the storage in a place of the message that is being unpickled.

    Raises `HandleError` if there is none.
    """
    inbox = transport.current_inbox()
    if inbox.storages is None:
        inbox.storages = read_table(inbox.payload)
    try:
        found: Storage = inbox.storages[place]
    except IndexError as error:
        raise HandleError(
            f"The message has no storage in place {place}, which a tensor in it names. "
            "It was cut short; send the tensor again."
        ) from error
    return found


def read_table(payload: Any) -> list[Storage]:
    """Rebuild the storages of a message, from the table behind its object.

    Clauses HANDLE-1, LIFE-19. Raises `HandleError` or `ResourceError`.
    """
    found: dict[int, Storage] = {}
    version, *rest = pickle.loads(table_of(payload))
    verify_version(version)
    [table] = rest
    for handle, parts in table:
        segment = rebuild_segment(handle)
        for place, *part in parts:
            found[place] = rebuild_storage(segment, *part)
    return [found[place] for place in range(len(found))]


def table_of(payload: Any) -> Any:
    """Return the bytes of a message's table. Raises `HandleError`."""
    content = memoryview(payload)
    end = content.nbytes - TABLE_SIZE.size
    size = TABLE_SIZE.unpack_from(content, end)[0] if end >= 0 else -1
    if not 0 < size <= end:
        raise HandleError(
            "This is a tensor without its message, which has the descriptor or name of "
            "its memory. Receive messages with the method that matches how they were "
            "sent, and each of them once."
        )
    return content[end - size : end]


# Rebuilding


def verify_version(version: Any) -> None:
    """Verify that this process understands a handle of that version. Clause HANDLE-1.

    Raises `HandleError`.
    """
    if version != HANDLE_VERSION:
        raise HandleError(
            f"A handle of version {version} came, and this process understands version "
            f"{HANDLE_VERSION}. Sender and receiver have different releases of "
            "sharedtensor: install the same one for both."
        )


def rebuild_segment(handle: tuple[Any, ...]) -> strategies.Segment:
    """Return the segment that a handle names, mapped as a whole.

    A process that has it already does without the handle. No lock is held here, since
    a descriptor may have to come from the sender. Clauses RESHARE-7, SEC-7.
    """
    strategy_name, token, nbytes, where = parse_handle(handle)
    strategy = strategies.find_strategy(strategy_name)
    known = find_segment(token)
    if known is not None:
        strategy.discard_handle(token, where)
        return verify_known(known, nbytes)
    target = memory.Memory(nbytes)
    resource = strategy.open(target, token, nbytes, where)
    resource.mapping = target
    return remember_segment(strategies.Segment(resource))


def find_segment(token: str) -> strategies.Segment | None:
    """Return the segment that this process has, or None.

    Clauses RESHARE-3, RESHARE-4, SEC-10.
    """
    return state.segments.get(token)


def remember_segment(segment: strategies.Segment) -> strategies.Segment:
    """Make a segment findable as long as it lives, and return it.

    Storages that are moving are in it before a thread can look for it: until then no
    handle has the token. If another thread was faster, return that one's. Clauses
    RESHARE-3, RESHARE-4.
    """
    add = state.segments.setdefault
    return atomic.under(state.moving, add, segment.token, segment)


def rebuild_storage(
    segment: strategies.Segment,
    storage_class: type[Storage],
    offset: int,
    nbytes: int,
) -> Storage:
    """Return the storage in a part of a segment: the one that is here, or a new one.

    Clauses RESHARE-3, RESHARE-4, SEC-7, SHARE-12, VIEW-4. Raises `HandleError`.
    """
    part = segment, storage_class, offset, nbytes
    return atomic.under(state.moving, find_or_make_part, *part)


def find_or_make_part(
    segment: strategies.Segment,
    storage_class: type[Storage],
    offset: int,
    nbytes: int,
) -> Storage:
    """Return the storage in a part of a segment. Its caller holds `state.moving`."""
    known = find_part(segment, offset)
    if known is not None:
        return verify_known(known, nbytes)
    segments.verify_part(segment.token, segment.nbytes, offset, nbytes)
    mapped = mapping_of(segment).part(offset, nbytes)
    storage = storage_class.over(mapped, segment, offset)
    segment.storages[offset] = weakref.ref(storage)
    return storage


def find_part(segment: strategies.Segment, offset: int) -> Storage | None:
    """Return the storage at an offset that this process holds, or None."""
    found = segment.storages.get(offset)
    return None if found is None else found()


def mapping_of(segment: strategies.Segment) -> memory.Memory:
    """Return the memory of a whole segment, mapped when it is first needed.

    Who moved storages into it has mapped these alone, each at its address.
    """
    resource = segment.resource
    if resource.mapping is None:
        target = memory.Memory(segment.nbytes)
        segment.strategy.map_again(target, resource)
        resource.mapping = target
    return resource.mapping


def parse_handle(handle: Any) -> tuple[str, str, int, tuple[Any, ...]]:
    """Return the four fields of a handle. Clause SEC-9.

    Raises `HandleError` if some of them are missing.
    """
    try:
        strategy, token, nbytes, (place, carrier) = handle
    except (TypeError, ValueError) as error:
        raise HandleError(
            f"{handle!r} is no handle: it has to name a strategy, a token, a size, and "
            "a place in two parts. It was cut short, or is of another version; send "
            "the tensor again."
        ) from error
    return strategy, token, nbytes, (place, carrier)


def verify_known(known: Known, nbytes: int) -> Known:
    """Verify that a handle describes what this process has for it.

    Clause SEC-7. Raises `HandleError`.
    """
    if known.nbytes != nbytes:
        raise HandleError(
            f"A handle claims {nbytes} bytes for shared memory of {known.nbytes}. "
            "The handle is forged; send the tensor again."
        )
    return known


def rebuild_tensor(
    tensor_class: type[T],
    storage: Storage,
    window: Window,
    flags: tuple[bool, bool],
    arguments: tuple[Any, ...] = (),
    options: dict[str, Any] | None = None,
) -> T:
    """Return a new leaf over the storage, through the same window.

    Each arrival is a new tensor with its own grad. The arguments and the options are
    for `__new__`. Clauses VIEW-1, VIEW-2, GRAD-1, GRAD-9, KIND-3, SEC-7.

    Raises `HandleError` if the window does not lie within the storage.
    """
    made = tensor_class.__new__(tensor_class, *arguments, **(options or {}))
    try:
        return made.look_at(storage, *window, *flags)
    except (TypeError, ValueError) as error:
        raise HandleError(
            f"A message describes the window {window} on a storage of "
            f"{storage.nbytes} bytes, which is impossible: {error}. It is refused."
        ) from error


def attach_state(tensor: Tensor, extras: tuple[Any, ...]) -> None:
    """Give a rebuilt tensor its grad and what a subclass adds.

    Clauses GRAD-2, GRAD-8, KIND-1, KIND-3.
    """
    grad, state = extras
    attach_grad(tensor, grad)
    if state is not None:
        tensor.__setstate__(state)


def attach_grad(tensor: Tensor, grad: Tensor | None) -> None:
    """Give a rebuilt tensor the grad that came with it. Clauses GRAD-2, GRAD-3."""
    tensor.grad = grad


# What the pickle of a storage alone names, without a table behind it


def _rebuild_storage(version: Any, handle: Any, *part: Any) -> Any:
    verify_version(version)
    return rebuild_storage(rebuild_segment(handle), *part)
