"""The contract for adapters: the interface between the suite and an implementation.

An adapter has two parts. `Implementation` is plain data that the suite reads before any
case runs: claims, patterns of names, time limits. `Operations` is what owner and peers
do with tensors. The suite never imports it in pytest's process, so that a crash in an
operation is a verdict and does not end the run. Both are first loaded in a process of
their own: if that crashes or hangs, nothing is judged.

Claims are declared, never detected. `PROFILES` has the operations that each profile
needs. A claim without its operations, or an operation without its claim, is an error of
the adapter; `shared-tensor-spec check-adapter` reports it.
"""

# The body of an operation is its docstring; pyright would expect a return statement.
# pyright: reportReturnType=false

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol


@dataclass(frozen=True)
class ContractChange:
    """The changes in a version of the contract, and the profiles that they concern."""

    profiles: frozenset[str]
    text: str


ADAPTER_CHANGES = {
    2: ContractChange(
        frozenset({"modules"}),
        "the profile 'modules' has buffers ('add_buffer', 'buffers')",
    ),
    3: ContractChange(
        frozenset({"grad", "forgery"}),
        "the profile 'grad' has 'set_grad_mode', and 'forge' has a parameter for the "
        "size of a false claim",
    ),
    4: ContractChange(
        frozenset({"cuda", "events"}),
        "'record_event' and 'wait_event' belong to the profile 'events'",
    ),
    5: ContractChange(
        frozenset({"versions"}),
        "'forge_version' has a parameter for the fields of the other version's handle",
    ),
    6: ContractChange(
        frozenset({"modules"}),
        "the profile 'modules' has 'add_parameter', and 'add_buffer' has a parameter "
        "for whether the buffer is in the 'state_dict'",
    ),
}
"""The versions of the contract after the first one.

An adapter of an earlier version is accepted if none of its claimed profiles has changed
since then.
"""

ADAPTER_VERSION = max(ADAPTER_CHANGES)
"""The version of the contract that this suite uses."""

Tensor = Any
"""A tensor of the implementation; the suite passes it only to the operations."""

Index = tuple[int, ...]
VIEWS = (
    "slices",
    "steps",
    "transposed",
    "expanded",
    "overlapping",
    "reinterpreted",
)
"""The kinds of views, by how their elements differ from those of the whole tensor.

- ``slices``: a part of the elements, in order and without gaps; every library with
  views has these.
- ``steps``: elements with gaps between them, as in steps, columns and blocks.
- ``transposed``: the axes are in another order.
- ``expanded``: an axis repeats the elements (its stride is 0).
- ``overlapping``: an element is in several rows, as in sliding windows.
- ``reinterpreted``: the bytes of the elements, with another dtype (`reinterpret`).

Views with negative strides are declared by ``negative_strides``.
"""

Number = bool | int | float | complex


NUMPY_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""The dtypes that an implementation over NumPy can claim."""

COMMON_DTYPES = tuple(
    name for name in NUMPY_DTYPES if name not in ("uint16", "uint32", "uint64")
)
"""Those of them that most libraries have: the wide unsigned integers are left out."""


@dataclass(frozen=True)
class Implementation:
    """What an adapter declares about its implementation.

    Args:
        name: the name that reports and expectations use.
        operations: ``"module:attribute"`` of a callable without arguments that returns
            the `Operations`; imported in owner and peers, and before the run in a
            process of its own, never in pytest's process.
        claims: the claimed profiles, of those in `PROFILES`; always with ``core``.
        version: the version, or ``"distribution:NAME"`` to read it from the metadata
            of an installed distribution.
        strategies: the sharing strategies to judge, by the implementation's names.
        start_methods: the start methods to judge.
        dtypes: the claimed dtypes, by their NumPy names; a dtype that NumPy does not
            have, by its usual name, for example ``bfloat16``.
        kinds: the kinds of tensors, in addition to the ordinary one, on which the
            profile ``kinds`` is judged; the adapter chooses their names.
        views: the kinds of views on which the profile ``views`` is judged, of those in
            `VIEWS`; without ``reinterpreted`` there is no operation `reinterpret`.
        negative_strides: whether a view may have negative strides, as in NumPy.
        private: whether a new tensor is private to its process until it is shared or
            sent. False if the library makes every tensor in shared memory, because its
            callers request that; then START-4 does not apply, and ``share`` has no
            tensor to move.
        channels: the channels to judge, of ``queue``, ``simple_queue``, ``pipe``.
        devices: ``cpu``, and ``simulated``, ``emulated`` or ``cuda`` if the profile
            ``cuda`` is claimed.
        segment_pattern: a regular expression for names of files in ``/dev/shm`` that
            belong to the implementation. ``{pid}`` stands for the process id.
        manager_pattern: a regular expression that is searched for in the command lines
            of all processes that the owner and its children started, including
            orphans. Processes with a match are managers.
        kept_segments: how many unused segments may be kept for each live process, for
            example by an arena, whose segments hold several storages, or by a cache. 0
            if each storage has its own segment, which is removed with it.
        grace: seconds after which everything that was dropped has to be gone; at most
            10 by the specification.
        deadline: seconds that one operation in one process may take; at most 60.
        patience: seconds that a process may take to start and to import the
            implementation; at most 600.
        trace_steps: the steps at which a process can be held, if the profile
            ``trace-points`` is claimed; empty for all steps. For other steps, a fault
            strikes between operations.
        preload: whether processes (owners, and children of fork servers) may be forked
            from a process that has imported the implementation and done nothing else.
        adapter_version: the version of this contract that the adapter was written for.
    """

    name: str
    operations: str
    claims: frozenset[str]
    version: str = ""
    strategies: tuple[str, ...] = ("default",)
    start_methods: tuple[str, ...] = ("fork", "spawn", "forkserver")
    dtypes: tuple[str, ...] = ("float32", "float64", "int32", "int64", "uint8")
    kinds: tuple[str, ...] = ()
    views: tuple[str, ...] = VIEWS
    negative_strides: bool = False
    private: bool = True
    channels: tuple[str, ...] = ("queue", "simple_queue", "pipe")
    devices: tuple[str, ...] = ("cpu",)
    segment_pattern: str = ""
    manager_pattern: str = ""
    kept_segments: int = 0
    trace_steps: tuple[str, ...] = ()
    grace: float = 3.0
    deadline: float = 20.0
    patience: float = 90.0
    preload: bool = False
    adapter_version: int = field(default=ADAPTER_VERSION)

    def as_data(self) -> dict[str, Any]:
        """Return the fields as JSON-ready data, for values of any type."""
        return {name: _as_json(value) for name, value in vars(self).items()}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Implementation:
        """Return the implementation that `as_data` described."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in data.items()
        }
        plain["claims"] = frozenset(data["claims"])
        return cls(**plain)


def _as_json(value: object) -> Any:
    """Return `value` as JSON-ready data; values of other types by their `repr`."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float() if math.isfinite(value):
            return value
        case tuple() | list():
            return [_as_json(item) for item in value]
        case set() | frozenset():
            return sorted(map(_as_json, value), key=str)
    return {"python": repr(value)}


@dataclass(frozen=True)
class Layout:
    """A window on a one-dimensional tensor.

    Args:
        name: a name of it, which case ids contain.
        offset: the number of elements before its first one.
        shape: its shape.
        strides: for each axis, the number of elements from one index to the next.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class CoreOperations(Protocol):
    """Profile ``core``: always claimed."""

    multiprocessing: ModuleType
    """The drop-in module (`multiprocessing` itself if channels are plain)."""

    def enter_child(self, strategy: str) -> None:
        """Prepare this process: called once in the owner and in each peer.

        The owner is a child process of the suite.
        """

    def make(self, values: list[Number], shape: Index, dtype: str) -> Tensor:
        """Return a new tensor of `shape` with the flat row-major `values`."""

    def is_tensor(self, value: object) -> bool:
        """Return whether a received object is a tensor, or the encoded form of one."""

    def shape(self, tensor: Tensor) -> Index:
        """Return the shape."""

    def dtype(self, tensor: Tensor) -> str:
        """Return the name of the dtype, as in `dtypes`."""

    def values(self, tensor: Tensor) -> list[Number]:
        """Return all values as Python numbers in a flat list, in row-major order."""

    def read(self, tensor: Tensor, index: Index) -> Number:
        """Return the value of one element."""

    def write(self, tensor: Tensor, index: Index, value: Number) -> None:
        """Write one element in place."""

    def encode(self, tensor: Tensor) -> object:
        """Return the object to put on a channel for the tensor (often the tensor)."""

    def decode(self, message: object) -> Tensor:
        """Return the tensor for a received object, which the sender's `encode` made."""

    def release(self, tensor: Tensor) -> None:
        """Release the tensor: the suite drops its reference right after this call."""


class ShareOperations(Protocol):
    """Profile ``share``: tensors can be moved to shared memory on request."""

    def share(self, tensor: Tensor) -> Tensor:
        """Move the tensor's storage to shared memory; return the result of the call."""

    def is_shared(self, tensor: Tensor) -> bool:
        """Return whether the tensor's storage is in shared memory."""

    def clone(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the same values in new memory."""


class IdentityOperations(Protocol):
    """Profile ``identity``: addresses can be observed."""

    def address(self, tensor: Tensor) -> int:
        """Return the address of the tensor's first element in this process."""


class ViewOperations(Protocol):
    """Profile ``views``: windows on a storage."""

    def view(self, tensor: Tensor, layout: Layout) -> Tensor:
        """Return the window `layout` on the one-dimensional contiguous `tensor`.

        A `Layout` has the fields `offset`, `shape` and `strides`, all counted in
        elements and not in bytes. The element at an index of the window is that of
        the tensor at ``offset`` plus the sum of each index times its stride.

        The layout is of the kinds in `views`, and has negative strides only if
        `negative_strides` is true. If the tensor requires grad, the window does too,
        and is not a leaf.
        """

    def strides(self, tensor: Tensor) -> Index:
        """Return the strides in elements."""

    def reinterpret(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return a view of the bytes of a one-dimensional contiguous tensor.

        The view has another dtype, and as many elements as fit into the bytes. Without
        ``reinterpreted`` in `views`, the adapter does not have this operation.
        """


class ResizeOperations(Protocol):
    """Profile ``resize``: a tensor can be asked to grow in place."""

    def resize(self, tensor: Tensor, count: int) -> None:
        """Resize the tensor in place to one dimension of `count` elements.

        The suite calls this with shared tensors, which have to refuse to grow, and with
        a private one to make it large. It does not check whether private tensors grow,
        or what new elements contain.
        """


class ArrayOperations(Protocol):
    """Profile ``arrays``: NumPy arrays over the tensor's memory."""

    def array(self, tensor: Tensor) -> Any:
        """Return a NumPy array over the same memory.

        Where tensors are such arrays, return a view: tests drop the two separately.
        """


class LazyOperations(Protocol):
    """Profile ``lazy``: views whose values are computed when they are read."""

    def conjugate(self, tensor: Tensor) -> Tensor:
        """Return the lazily conjugated view of a complex tensor."""


class KindOperations(Protocol):
    """Profile ``kinds``: tensors that are more than a window on a storage."""

    def make_kind(self, kind: str) -> Tensor:
        """Return a new tensor of one of the kinds in `kinds`, with a few values."""

    def describe(self, tensor: Tensor) -> list[Any]:
        """Return a complete description of the tensor as plain data.

        It has the class, shape, dtype and values, and all further properties of the
        kind. If a program can distinguish two tensors by anything other than their
        addresses, their descriptions differ.
        """

    def change(self, tensor: Tensor, value: int) -> bool:
        """Write `value` into one element in place; return whether that is possible."""


class GradOperations(Protocol):
    """Profile ``grad``: the state of automatic differentiation."""

    def requires_grad(self, tensor: Tensor) -> bool:
        """Return the flag ``requires_grad``."""

    def set_requires_grad(self, tensor: Tensor, flag: bool) -> None:
        """Set the flag ``requires_grad`` of a leaf."""

    def is_leaf(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a leaf."""

    def grad(self, tensor: Tensor) -> Tensor | None:
        """Return ``.grad``."""

    def set_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        """Set ``.grad``."""

    def non_leaf(self, tensor: Tensor) -> Tensor:
        """Return a tensor computed from `tensor`, which is a leaf that requires grad.

        The result also requires grad, and is not a leaf.
        """

    def detach(self, tensor: Tensor) -> Tensor:
        """Return a view of the same memory that does not require grad."""

    def set_grad_mode(self, on: bool) -> None:
        """Turn the recording of operations for differentiation on or off.

        This applies to the current thread. For a library without such a mode, it does
        nothing.
        """


class ModuleOperations(Protocol):
    """Profile ``modules``: modules with their parameters and buffers."""

    def make_module(self, parameters: dict[str, list[float]]) -> Any:
        """Return a module with one-dimensional float32 parameters of these names."""

    def add_parameter(self, module: Any, name: str, tensor: Tensor) -> None:
        """Add a parameter over the memory of the tensor, which may be a view."""

    def add_buffer(
        self, module: Any, name: str, values: list[float], persistent: bool
    ) -> None:
        """Add a one-dimensional float32 buffer, to ``state_dict`` if persistent."""

    def buffers(self, module: Any) -> dict[str, Tensor]:
        """Return the module's own buffers by name, the same objects each time."""

    def tie(self, module: Any, name: str, other: str) -> None:
        """Make the parameter `other` of the module the same object as `name`."""

    def parameters(self, module: Any) -> dict[str, Tensor]:
        """Return the parameters by name; tied parameters under each of their names."""

    def state_dict(self, module: Any) -> dict[str, Tensor]:
        """Return the ``state_dict()``."""

    def share_module(self, module: Any) -> None:
        """Call the module's ``share_memory()``."""

    def is_parameter(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a parameter."""


class CudaOperations(Protocol):
    """Profile ``cuda``: device memory, on a real, simulated or emulated device.

    If other profiles are claimed too, some tests call some of their operations with
    device tensors: ``address``, ``view`` and ``strides``, ``resize``, ``share`` and
    ``is_shared``, and those for ``requires_grad`` and ``grad`` of a leaf. Work is that
    on all devices of the process; memory is that of the device chosen by `use_device`.
    """

    def device_unavailable(self, device: str) -> str:
        """Return why `device`, one of `devices`, cannot be used, or ``""``."""

    def use_device(self, device: str) -> None:
        """Make `device` the one that the other operations use in this process."""

    def make_on_device(self, values: list[Number], dtype: str) -> Tensor:
        """Return a one-dimensional device tensor in an allocation of its own."""

    def carve(self, parts: list[tuple[list[Number], str]]) -> list[Tensor]:
        """Return device tensors in one common allocation, one for each part."""

    def write_later(self, tensor: Tensor, index: int, value: Number) -> None:
        """Enqueue a write of one element and return without waiting for it."""

    def device_values(self, tensor: Tensor) -> list[Number]:
        """Return the values that the device holds after `synchronize`."""

    def synchronize(self) -> None:
        """Wait for this process's work on the device and for what it depends on."""

    def collect(self) -> None:
        """Free memory that no other process uses any more or that is kept for reuse."""

    def device_memory_used(self) -> int:
        """Return the number of used bytes on the device, as the driver reports it."""

    def device_memory_free(self) -> int:
        """Return the number of free bytes on the device, as the driver reports it."""

    def make_block(self, nbytes: int) -> Tensor:
        """Return an uninitialised uint8 tensor in an allocation of its own.

        It may need most of the device's memory. An implementation that keeps freed
        memory for reuse must allocate it from the driver, not from the kept memory.
        """

    def device_count(self) -> int:
        """Return the number of devices that this process can use, at least 1."""

    def make_on(self, index: int, values: list[Number], dtype: str) -> Tensor:
        """Return a tensor like `make_on_device`, on the device with this index.

        The other operations still use the device that `use_device` chose.
        """

    def device_of(self, tensor: Tensor) -> int:
        """Return the index of the tensor's device in this process."""


class EventOperations(Protocol):
    """Profile ``events``: device events that can be sent."""

    def record_event(self) -> Any:
        """Return a new event after the work that this process has queued so far.

        The event is an object of the implementation that can be sent to other
        processes. To wait for it is to wait for that work. Its maker keeps it until it
        is dropped.
        """

    def wait_event(self, event: Any) -> None:
        """Make the work that this process queues from now on wait for the event.

        The event was made here or received. The call itself does not wait.
        """


class VirtualMemoryOperations(Protocol):
    """Profile ``virtual-memory``: device memory that processes map."""

    def use_virtual_memory(self, is_used: bool) -> None:
        """Choose where later device tensors of this process lie.

        ``make_on_device``, ``make_on``, ``carve`` and ``make_block`` make them in
        virtual memory that can be sent, or again where they made them before.
        """

    def make_across(self, values: list[Number], dtype: str) -> Tensor:
        """Return a tensor that lies across the border of two allocations.

        They are mapped side by side, and half of the elements lies in each of them.
        """

    def make_unexportable(self, values: list[Number], dtype: str) -> Tensor | None:
        """Return a tensor in virtual memory that was not made for other processes.

        None if the implementation makes no such memory.
        """


class ForgeryOperations(Protocol):
    """Profile ``forgery``: messages with false data, which have to be refused."""

    def forge(self, tensor: Tensor, how: str, excess: int) -> object:
        """Return the object to put on a channel to send a forged message of `tensor`.

        The tensor is contiguous and covers its whole storage.

        The message is a normal message of the implementation, made when it is sent,
        except for one change:

        - ``"size"``: the handle claims `excess` bytes more than the segment has;
        - ``"window"``: the tensor begins `excess` elements later, so that it claims as
          many elements beyond the end of its storage;
        - ``"outside"``: the handle names a file that is large enough but not a segment,
          by a path outside the directory of segments, or by a descriptor;
        - ``"truncated"``: the handle ends after its first half;
        - ``"again"``: each time the object is sent, the handle of the first time is
          sent again; the handle does not keep the tensor alive. If descriptors are sent
          outside the pickle, the pickle is sent again without them. So it may refer to
          a descriptor of another tensor in the message, or to a missing one. The suite
          requests this for device tensors too.
        """


class VersionOperations(Protocol):
    """Profile ``versions``: handles contain their version."""

    def handle_version(self) -> str:
        """Return the version of the handles that this process makes and understands."""

    def forge_version(self, tensor: Tensor, version: str, fields: str) -> object:
        """Return the object to put on a channel to send `tensor` as `version` would.

        The message is a normal message of the implementation, made when it is sent,
        except for the version in its handle and the fields after it: `fields` is
        ``"same"``, ``"more"`` if a field was added, or ``"fewer"`` if one is missing.
        """


class TraceOperations(Protocol):
    """Profile ``trace-points``: a process can be held at each step of the protocol.

    Without it, the faults of the profile ``fault-table`` strike between operations.
    """

    def break_at(self, step: str, pause: Callable[[], str]) -> None:
        """Call `pause` just before this process performs `step` the next time.

        `step` is one of `trace_steps`, or, if that is empty, any step of the table in
        the chapter FAULT that an owner or a peer performs. An exception of `pause` is
        raised from the step. The returned string says how to continue: ``""`` performs
        the step, ``"twice"`` performs it twice, and ``"skip"`` returns as if the step
        had been performed. The last two are for the faults ``duplicate`` and ``drop``
        of the fault table.
        """


PROFILES: dict[str, type | None] = {
    "core": CoreOperations,
    "share": ShareOperations,
    "identity": IdentityOperations,
    "views": ViewOperations,
    "resize": ResizeOperations,
    "arrays": ArrayOperations,
    "lazy": LazyOperations,
    "kinds": KindOperations,
    "grad": GradOperations,
    "modules": ModuleOperations,
    "cuda": CudaOperations,
    "events": EventOperations,
    "virtual-memory": VirtualMemoryOperations,
    "drop-in": None,
    "spawn": None,
    "strategies": None,
    "strategy-fd": None,
    "strategy-fs": None,
    "manager": None,
    "lifetime": None,
    "faults": None,
    "forgery": ForgeryOperations,
    "versions": VersionOperations,
    "fault-table": None,
    "trace-points": TraceOperations,
}
"""The profiles, with the operations that a claim of each profile needs."""


STRATEGY_OF = {
    "strategy-fd": "file_descriptor",
    "strategy-fs": "file_system",
    "manager": "file_system",
}
"""The profiles that are about one strategy, with the name of the strategy."""


LONG_PROFILES = frozenset({"fault-table"})
"""The profiles that are judged only on request, because they take minutes."""


def operations_of(profile: str) -> frozenset[str]:
    """Return the names of the operations that `profile` needs."""
    protocol = PROFILES[profile]
    if protocol is None:
        return frozenset()
    names = set(vars(protocol)) | set(getattr(protocol, "__annotations__", {}))
    return frozenset(name for name in names if not name.startswith("_"))


def problems_of(implementation: Implementation, operations: object) -> list[str]:
    """Return the problems of an adapter, one sentence for each."""
    problems = _problems_of_claims(implementation)
    for profile, protocol in PROFILES.items():
        for name in sorted(operations_of(profile)):
            claimed = profile in implementation.claims
            claimed = claimed and _is_claimed(name, implementation)
            present = hasattr(operations, name)
            if claimed and not present:
                dropped = "drop the claim"
                if name == "reinterpret":
                    dropped += ", or remove 'reinterpreted' from views"
                problems.append(
                    f"profile {profile!r} is claimed but the operation {name!r} is "
                    f"missing: add it, or {dropped}"
                )
            elif claimed and is_unwritten(getattr(operations, name)):
                problems.append(
                    f"profile {profile!r} is claimed but the operation {name!r} is "
                    f"not written yet{_place_of(getattr(operations, name))}: write it, "
                    f"or drop the claim"
                )
            elif claimed and (problem := _problem_of_call(name, protocol, operations)):
                problems.append(problem)
            elif present and not _is_claimed(name, implementation):
                what = f"its profile {profile!r} is not claimed: claim it"
                if profile in implementation.claims:
                    what = "views has no 'reinterpreted': add it"
                problems.append(
                    f"the operation {name!r} is there but {what}, or remove the "
                    f"operation"
                )
    return problems


def is_unwritten(operation: object) -> bool:
    """Return whether an operation does nothing but raise NotImplementedError."""
    body = _body_of(operation)
    return bool(body) and _is_not_implemented(body[0])


def _body_of(operation: object) -> list[ast.stmt]:
    """Return the statements of a function after its docstring; none without source."""
    try:
        lines = textwrap.dedent(inspect.getsource(operation))  # type: ignore[arg-type]
        (function,) = ast.parse(lines).body
    except (TypeError, OSError, SyntaxError, ValueError):
        return []
    if not isinstance(function, ast.FunctionDef):
        return []
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[1:] if has_docstring else function.body


def _is_not_implemented(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Raise):
        return False
    raised = statement.exc
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _place_of(operation: object) -> str:
    """Return the file and line of a function, in parentheses."""
    code = getattr(operation, "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""


def fits(operation: object, arguments: Sequence[object]) -> bool:
    """Return whether an operation can be called with this number of arguments.

    An operation without a signature, like some functions in C, is assumed to fit.
    """
    try:
        signature = inspect.signature(operation)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return callable(operation)
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _problem_of_call(name: str, protocol: type | None, operations: object) -> str:
    """Return the problem with the parameters of an operation, or ""."""
    declared = vars(protocol).get(name)
    if declared is None:
        return ""  # not a function: `multiprocessing`
    asked = list(inspect.signature(declared).parameters)[1:]
    if fits(getattr(operations, name), asked):
        return ""
    return (
        f"the operation {name!r} cannot be called as {name}({', '.join(asked)}), which "
        f"the suite does: give it these parameters"
    )


def _is_claimed(name: str, implementation: Implementation) -> bool:
    if name == "reinterpret" and "reinterpreted" not in implementation.views:
        return False
    return any(name in operations_of(p) for p in implementation.claims & set(PROFILES))


def _problems_of_claims(implementation: Implementation) -> list[str]:
    problems = [
        f"the claim {claim!r} is not a profile; profiles are {', '.join(PROFILES)}"
        for claim in sorted(implementation.claims - set(PROFILES))
    ]
    if "core" not in implementation.claims:
        problems.append("the profile 'core' is not claimed: every adapter claims it")
    problems += _claims_without_an_object(implementation)
    if implementation.dtypes and "float32" not in implementation.dtypes:
        problems.append(
            "the dtype 'float32' is not claimed, but most tests use it for their "
            "tensors: claim it"
        )
    problems += _problems_of_version(implementation)
    for field_name in ("strategies", "start_methods", "dtypes", "channels", "devices"):
        if not getattr(implementation, field_name):
            problems.append(f"{field_name} is empty, so nothing could be judged")
    return problems


def _problems_of_version(implementation: Implementation) -> list[str]:
    """Return the problems of an adapter for another version of the contract."""
    version = implementation.adapter_version
    written = f"the adapter was written for version {version} of the contract"
    if not 1 <= version <= ADAPTER_VERSION:
        return [
            f"{written}, but this suite supports versions 1 to {ADAPTER_VERSION}: use "
            f"the suite that it was written for"
        ]
    return [
        f"{written}, but since version {number} {change.text}: change the adapter, and "
        f"set adapter_version={ADAPTER_VERSION}"
        for number, change in ADAPTER_CHANGES.items()
        if number > version and change.profiles & implementation.claims
    ]


def _claims_without_an_object(implementation: Implementation) -> list[str]:
    """Return the claims that could not be judged, one sentence for each.

    Without this check, such a claim would look as if it held.
    """
    dtypes, devices = implementation.dtypes, implementation.devices
    kinds = {dtype.rstrip("0123456789") for dtype in dtypes}
    wanting = [
        ("views", "slices" in implementation.views, "'slices' in views"),
        ("share", implementation.private, "private=True"),
        ("lazy", "complex" in kinds, "a complex dtype"),
        ("kinds", implementation.kinds, "a name in kinds"),
        ("cuda", {"simulated", "cuda"} & set(devices), "a device, simulated or cuda"),
        ("strategy-fs", implementation.segment_pattern, "a segment_pattern"),
        ("manager", implementation.manager_pattern, "a manager_pattern"),
    ]
    wanting += [
        (profile, name in implementation.strategies, f"the strategy {name!r}")
        for profile, name in STRATEGY_OF.items()
    ]
    return [
        f"the profile {profile!r} is claimed, but there is nothing to judge it on: "
        f"add {what}, or drop the claim"
        for profile, is_there, what in wanting
        if profile in implementation.claims and not is_there
    ]
