"""The steps of the protocol, one method each, and the one object that performs them.

Whatever a clause decides is decided here: when a storage moves, what a message says
about a tensor, which memory a handle leads to. The rest of the package calls
`steps.<step>` at the time of use, so replacing one method on `steps` changes that step
everywhere: in tensors, reducers, channels and strategies. The conformance suite makes
its mutants so.

The order of this file is the order of events: a tensor is shared, exported, put on a
channel, rebuilt, and at last released.
"""

import os
import threading
import warnings
import weakref
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from . import manager as names
from . import memory, transport
from .errors import HandleError, NonLeafError, ResizeError

if TYPE_CHECKING:
    from .multiprocessing.connection import Connection
    from .storage import Storage
    from .strategies import Segment
    from .tensors import Tensor

DEFAULT_STRATEGY = "file_descriptor"

Window = tuple[str, int, tuple[int, ...], tuple[int, ...]]
"""What a tensor is on its storage: dtype, offset, shape and strides."""


class Steps:
    """The protocol. One instance, `steps`, serves the whole process."""

    def __init__(self) -> None:
        self.strategy = DEFAULT_STRATEGY
        # One lock for all moves and look-ups: taken before a fork, so that no child
        # inherits a storage that is half moved.
        self.moving = threading.RLock()
        self.known: weakref.WeakValueDictionary[str, Storage] = (
            weakref.WeakValueDictionary()
        )

    # Strategies

    def current_strategy(self) -> str:
        """The name of the strategy for what is shared next.

        Clauses STRAT-1, STRAT-6.
        """
        return self.strategy

    def set_strategy(self, name: str) -> None:
        """Set the current strategy, whose name has been checked. Clause STRAT-2."""
        self.strategy = name

    def child_settings(self) -> tuple[str, str | None]:
        """What a child is told of its parent: strategy and manager. Clause START-6."""
        strategy = steps.current_strategy()
        return strategy, _strategies.manager_address(strategy)

    def enter_child(self, strategy: str, manager: str | None) -> None:
        """Take over the parent's settings in a new child. Clause START-6."""
        steps.set_strategy(_strategies.find_strategy(strategy).name)
        if manager is not None:
            names.adopt(manager)

    # Sharing

    def is_shared(self, storage: "Storage") -> bool:
        """Whether a storage is in a segment. Clauses SHARE-5, SHARE-6."""
        return storage.segment is not None

    def share_tensor(self, tensor: "Tensor") -> None:
        """Share a tensor's storage and, where it has one, its grad. Clause SHARE-5."""
        steps.share_storage(tensor.storage)
        if tensor.grad is not None and tensor.grad is not tensor:
            steps.share_storage(tensor.grad.storage)

    def share_storage(self, storage: "Storage") -> None:
        """Move a storage once; a shared one stays where it is.

        Clauses RESHARE-1, RESHARE-2, STRAT-4, and CHAN-5 for threads that race.
        """
        if storage.segment is None:
            with steps.moving:
                if storage.segment is None:
                    steps.move_storage(storage)

    def move_storage(self, storage: "Storage") -> None:
        """Copy a storage into a segment under the current strategy, at one address.

        Clauses SHARE-3, SHARE-7, SHARE-9, SHARE-10.
        """
        strategy = _strategies.find_strategy(steps.current_strategy())
        storage.segment = strategy.allocate(storage.memory, storage.nbytes)
        steps.remember_storage(storage)

    def create_unnamed(self, token: str) -> int:
        """Make the file of a segment under `file_descriptor`. Clause FD-1."""
        return _strategies.create_unnamed(token)

    def register_name(self, name: str, manager: str) -> None:
        """Tell the manager of a name before its file is made. Clauses FS-2, MGR-2."""
        names.register(name, address=manager)

    def seal_segment(self, fd: int) -> None:
        """Fix the size of a segment, so that nobody's access can become a SIGBUS."""
        _strategies.seal(fd)

    def permissions(self) -> int:
        """Who may open the file of a segment: its owner alone. Clause SEC-1."""
        return 0o600

    def map_segment(self, target: memory.Memory, fd: int) -> None:
        """Map a segment over memory, for reading and writing, shared.

        Clauses SHARE-1, SHARE-2.
        """
        _strategies.map_shared(target, fd)

    def resize_storage(self, storage: "Storage", nbytes: int) -> None:
        """Resize a private storage and refuse to resize a shared one.

        Clause SHARE-8.
        """
        if steps.is_shared(storage):
            raise ResizeError(
                f"A storage of {storage.nbytes} bytes was to be resized to {nbytes}, "
                "but it is shared, and other processes have mapped it at its size. "
                "Clone the tensor and resize the clone."
            )
        with steps.moving:
            old, kept = storage.memory, min(storage.nbytes, nbytes)
            storage.memory = memory.Memory(nbytes)
            storage.memory.bytes[:kept] = old.bytes[:kept]
            storage.nbytes = nbytes

    def clone_tensor(self, tensor: "Tensor") -> "Tensor":
        """A tensor with the same values in memory of its own. Clause SHARE-11."""
        return tensor._computed(tensor._values(), tensor)

    # Exporting

    def export_tensor(self, tensor: "Tensor") -> tuple[Any, ...]:
        """What a message says about a tensor: its storage, and the window on it.

        The grad travels in the pickle's state, after the tensor itself is known, so
        that a tensor which is its own grad can be sent. Clauses VIEW-1, GRAD-1,
        TRAIN-3.
        """
        steps.refuse_non_leaf(tensor)
        steps.warn_of_hooks(tensor)
        flags = steps.export_flags(tensor)
        window = steps.export_window(tensor)
        arguments = (steps.export_class(tensor), tensor.storage, window, flags)
        state = steps.export_state(tensor)
        if state is None:
            return _rebuild_tensor, arguments
        return _rebuild_tensor, arguments, state, None, None, _attach_state

    def refuse_non_leaf(self, tensor: "Tensor") -> None:
        """Refuse a result that requires grad, in the call that sends it.

        Clause GRAD-5.
        """
        if tensor.requires_grad and not tensor.is_leaf:
            raise NonLeafError(
                f"A tensor of shape {tensor.shape} requires grad and is not a leaf: it "
                "was computed, and what it was computed from cannot be sent with it. "
                "Send tensor.detach(), which shares its memory."
            )

    def warn_of_hooks(self, tensor: "Tensor") -> None:
        """Say that hooks stay behind: they are code of this process."""
        if tensor.hooks:
            message = (
                f"{len(tensor.hooks)} hooks of a tensor of shape {tensor.shape} are "
                "not sent with it. Register them in the receiver."
            )
            warnings.warn(message, stacklevel=2)

    def export_class(self, tensor: "Tensor") -> "type[Tensor]":
        """The class, so that a parameter arrives as a parameter. Clause TRAIN-3."""
        return type(tensor)

    def export_window(self, tensor: "Tensor") -> Window:
        """Offset, shape, strides and dtype of a tensor.

        Clauses VIEW-1, VIEW-2, VIEW-10.
        """
        return tensor.dtype.str, tensor.storage_offset(), tensor.shape, tensor.stride()

    def export_flags(self, tensor: "Tensor") -> tuple[bool, bool]:
        """Whether it requires grad, and whether it is read conjugated.

        Clauses GRAD-1, VIEW-9.
        """
        return tensor.requires_grad, tensor.is_conj()

    def export_state(self, tensor: "Tensor") -> tuple[Any, ...] | None:
        """The grad and the attributes of a tensor, or None if it has neither."""
        grad, attributes = steps.export_grad(tensor), tensor.__dict__
        if grad is None and not attributes:
            return None
        return grad, attributes

    def export_grad(self, tensor: "Tensor") -> "Tensor | None":
        """The grad that is present at the send.

        Clauses GRAD-2, GRAD-3, GRAD-4, GRAD-8.
        """
        return tensor.grad

    def export_storage(self, storage: "Storage") -> tuple[Any, ...]:
        """Share a storage and reduce it to its handle.

        The pickler's memo sends one handle for all its tensors. Clauses SHARE-6,
        VIEW-3.
        """
        steps.share_storage(storage)
        assert storage.segment is not None, "a shared storage has a segment"
        handle = steps.export_handle(storage.segment)
        return _rebuild_storage, (type(storage), handle)

    def export_handle(self, segment: "Segment") -> tuple[Any, ...]:
        """A handle: strategy, token, size, and where it is.

        Clauses STRAT-4, STRAT-5.
        """
        where = segment.strategy.export(segment)
        return segment.strategy.name, segment.token, segment.nbytes, where

    # Channels

    def pack_message(self, obj: Any) -> "Message":
        """Pickle an object and collect the descriptors that go with it.

        All tensors in it are shared when this returns. Clauses CHAN-3, CHAN-7, GRAD-5.
        """
        outbox = transport.Outbox()
        with transport.sending(outbox):
            payload = reduction.ForkingPickler.dumps(obj)
            steps.post_names(outbox)
        return Message(payload, outbox)

    def post_names(self, outbox: transport.Outbox) -> None:
        """Tell the managers which names a message carries, before it leaves.

        The message gets a descriptor for each manager; they are in flight as long as it
        is open. Clauses LIFE-2, LIFE-5, LIFE-8, FAULT-1.
        """
        for manager, tokens in outbox.names.items():
            owned = _strategies.posted.of(tokens, manager)
            outbox.add(owned.fd, owned)

    def put_message(self, obj: Any) -> "Message":
        """What `Queue.put` does in the caller, before it returns.

        Clauses CHAN-7, GRAD-5.

        The thread that feeds the channel only writes what this returns.
        """
        return steps.pack_message(obj)

    def write_message(self, message: "Message", connection: "Connection") -> None:
        """Write a message. Sent or not, its descriptors are let go.

        Clauses GRAD-6, FAULT-2.
        """
        try:
            connection.write(message.payload, message.outbox.descriptors)
        finally:
            message.outbox.clear()

    def write_at_once(self, message: "Message", connection: "Connection") -> bool:
        """Write a message without waiting; return whether it was written.

        `Queue.put` tries it first: what is in the pipe survives a kill. Clause LIFE-6.
        """
        try:
            connection.write(message.payload, message.outbox.descriptors, wait=False)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False  # the thread that feeds the channel waits, or reports it
        message.outbox.clear()
        return True

    def read_message(
        self, connection: "Connection", wait: bool = True
    ) -> tuple[Any, list[int]]:
        """Read a whole message, so that the next one can be read whatever is in it.

        Clauses FAULT-2, FAULT-4.
        """
        return connection.read(wait)

    def unpack_message(self, payload: Any, descriptors: list[int]) -> Any:
        """Rebuild what was packed; descriptors that nothing took are closed."""
        with transport.receiving(descriptors):
            return reduction.ForkingPickler.loads(payload)

    # Rebuilding

    def rebuild_storage(
        self, storage_class: "type[Storage]", handle: tuple[Any, ...]
    ) -> "Storage":
        """The storage that a handle names: the one this process has, or a new one.

        Clauses RESHARE-3, RESHARE-4, VIEW-4. Raises `HandleError` or `ResourceError`.
        """
        strategy_name, token, nbytes, where = handle
        strategy = _strategies.find_strategy(strategy_name)
        storage = steps.find_storage(token)
        if storage is not None:
            strategy.forget(token, where)
            return steps.verify_known(storage, nbytes)
        # No lock is held here, since the descriptor may have to come from the sender.
        storage = storage_class(nbytes)
        storage.segment = strategy.open(storage.memory, token, nbytes, where)
        return steps.remember_storage(storage)

    def acknowledge_name(self, name: str, manager: str) -> None:
        """Tell the manager that this process holds a name that it received.

        Before the message counts as received. Clauses FS-2, LIFE-2.
        """
        names.register(name, address=manager)

    def find_storage(self, token: str) -> "Storage | None":
        """The storage over a segment that this process holds, or None.

        Clauses RESHARE-3, RESHARE-4.
        """
        return self.known.get(token)

    def remember_storage(self, storage: "Storage") -> "Storage":
        """Make a storage findable as long as it lives, and return it.

        If another thread was faster, return that one's. Clauses RESHARE-3, RESHARE-4.
        """
        assert storage.segment is not None, "a shared storage has a segment"
        with steps.moving:
            return self.known.setdefault(storage.segment.token, storage)

    def verify_known(self, storage: "Storage", nbytes: int) -> "Storage":
        """Verify that a handle describes the storage this process has for it."""
        if storage.nbytes != nbytes:
            raise HandleError(
                f"A handle claims {nbytes} bytes for a storage of {storage.nbytes}. "
                "The handle is forged; send the tensor again."
            )
        return storage

    def rebuild_tensor(
        self,
        tensor_class: "type[Tensor]",
        storage: "Storage",
        window: Window,
        flags: tuple[bool, bool],
    ) -> "Tensor":
        """A leaf over the storage, through the same window.

        Clauses VIEW-1, VIEW-2, GRAD-1.

        Raises `HandleError` if the window does not lie within the storage.
        """
        try:
            return tensor_class._over(storage, *window, *flags)
        except (TypeError, ValueError) as error:
            raise HandleError(
                f"A message describes the window {window} on a storage of "
                f"{storage.nbytes} bytes, which is impossible: {error}. It is refused."
            ) from error

    def attach_state(self, tensor: "Tensor", state: tuple[Any, ...]) -> None:
        """Give a rebuilt tensor its grad and its attributes. Clauses GRAD-2, GRAD-8."""
        grad, attributes = state
        tensor.__dict__.update(attributes)
        steps.attach_grad(tensor, grad)

    def attach_grad(self, tensor: "Tensor", grad: "Tensor | None") -> None:
        """Give a rebuilt tensor the grad that came with it. Clauses GRAD-2, GRAD-3."""
        tensor.grad = grad

    # Releasing

    def release_segment(self, segment: "Segment") -> None:
        """Give back a segment's descriptor or name. Clauses LIFE-7, FD-2, FS-2."""
        segment.strategy.release(segment)


class Message:
    """A pickled object, and what travels beside its bytes."""

    __slots__ = ("outbox", "payload")

    def __init__(self, payload: Any, outbox: transport.Outbox):
        self.payload = payload
        self.outbox = outbox


steps = Steps()


# Pickles name functions; these look the step up when they are called.


def _rebuild_tensor(*arguments: Any) -> Any:
    return steps.rebuild_tensor(*arguments)


def _rebuild_storage(*arguments: Any) -> Any:
    return steps.rebuild_storage(*arguments)


def _attach_state(tensor: Any, state: tuple[Any, ...]) -> None:
    steps.attach_state(tensor, state)


def _moves_end_in_the_child() -> None:
    steps.moving = threading.RLock()


from . import strategies as _strategies  # noqa: E402  (it needs `steps`)

# Registered after the manager's client has registered its own, so that a fork takes
# this lock first and the client's second, as sharing does.
os.register_at_fork(
    before=lambda: steps.moving.acquire(),
    after_in_parent=lambda: steps.moving.release(),
    after_in_child=_moves_end_in_the_child,
)
