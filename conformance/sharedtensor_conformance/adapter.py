"""The contract between the suite and an implementation: the adapter.

An adapter has two halves. `Implementation` is plain data that the suite reads before
anything runs: what is claimed, where names appear, how long cleanup may take.
`Operations` is what owner and peers do with tensors; the suite imports it in those
processes only, so a crash there is a verdict and never the end of the run.

Claims are declared, never detected. Each profile in `PROFILES` names the operations
that claiming it needs; a claim without its operations, or operations without their
claim, is an error of the adapter (`shared-tensor-spec check-adapter` says which).
"""

# The body of an operation is its docstring, which pyright takes for code that returns.
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
    """What is new in a version of the contract, and which claims it concerns."""

    profiles: frozenset[str]
    text: str


ADAPTER_CHANGES = {
    2: ContractChange(
        frozenset({"modules"}),
        "the profile 'modules' has buffers ('add_buffer', 'buffers')",
    ),
    3: ContractChange(
        frozenset({"grad", "forgery"}),
        "the profile 'grad' has 'set_grad_mode', and 'forge' is told how much too much "
        "a message claims",
    ),
    4: ContractChange(
        frozenset({"cuda", "events"}),
        "'record_event' and 'wait_event' belong to the profile 'events'",
    ),
    5: ContractChange(
        frozenset({"versions"}),
        "'forge_version' is told how many fields a handle of the other version has",
    ),
}
"""The versions of the contract after the first one.

An adapter of an earlier version is accepted where none of its claims has changed since.
"""

ADAPTER_VERSION = max(ADAPTER_CHANGES)
"""The version that this suite speaks."""

Tensor = Any
"""A tensor of the implementation under test; the suite never looks inside."""

Index = tuple[int, ...]
VIEWS = (
    "slices",
    "steps",
    "transposed",
    "expanded",
    "overlapping",
    "reinterpreted",
)
"""The kinds of views, by what makes their elements differ from those of a whole tensor.

- ``slices``: a part of them, in their order and without gaps; every library with views
  has these.
- ``steps``: there are gaps between them, as in steps, columns and blocks.
- ``transposed``: the axes are in another order.
- ``expanded``: an axis repeats them (its stride is 0).
- ``overlapping``: one element lies in several rows, as in sliding windows.
- ``reinterpreted``: their bytes are those of another dtype (`reinterpret`).

Views that run backwards are declared by ``negative_strides``.
"""

Number = bool | int | float | complex


@dataclass(frozen=True)
class Implementation:
    """What an implementation says about itself.

    Args:
        name: the name that reports and expectations use.
        operations: ``"module:attribute"`` of a callable without arguments that returns
            the `Operations`; imported in owner and peers, never by pytest.
        claims: the profiles that are claimed, of those in `PROFILES`; ``core`` always.
        version: the version, or ``"distribution:NAME"`` to read it from the metadata
            of an installed distribution.
        strategies: the sharing strategies to judge, by their own names.
        start_methods: the start methods to judge.
        dtypes: the dtypes that are claimed, by their NumPy names; one that NumPy has
            not by its usual name, such as ``bfloat16``.
        kinds: the kinds of tensors, beside the ordinary one, that the profile ``kinds``
            is judged on; by names of the adapter's own.
        views: the kinds of views that the profile ``views`` is judged on, of those in
            `VIEWS`; without ``reinterpreted`` there is no operation `reinterpret`.
        negative_strides: whether a view may run backwards, as NumPy's may.
        private: whether a new tensor is its process's own until somebody shares or
            sends it. False where the library makes every tensor in shared memory,
            because whoever calls it asks for that; then START-4 has no tensor that it
            is about, and ``share`` none to move.
        channels: the channels to judge, of ``queue``, ``simple_queue``, ``pipe``.
        devices: ``cpu``, and ``simulated``, ``emulated`` or ``cuda`` where the profile
            ``cuda`` is claimed.
        segment_pattern: a regular expression; files in ``/dev/shm`` whose names it
            matches belong to the implementation. ``{pid}`` stands for the process id.
        manager_pattern: a regular expression that is searched for in the command
            lines of the processes which the owner and its children have started, the
            orphans among them: those in which it is found are managers.
        kept_segments: how many segments may be kept for later use for each process
            that lives, when nothing needs them: those of an arena, which hold several
            storages, or of a cache. 0 where each storage has a segment that goes with
            it.
        grace: seconds after which everything that was dropped has to be gone; the
            specification allows 10 at most.
        deadline: seconds that one operation in one process may take; it allows 60.
        patience: seconds that a process may take to start and to import the
            implementation; 600 at most.
        trace_steps: the steps at which a process can be held, where the profile
            ``trace-points`` is claimed; empty for all of them. At the others a fault
            strikes between operations.
        preload: whether processes may be forked from one that has imported the
            implementation and done nothing else: owners, and those of fork servers.
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
        """Return the fields as JSON-ready data, whatever kind their values are of."""
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
    """Return `value` as JSON; what that has no form for is named as Python shows it."""
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
    """A window on a one-dimensional base tensor, in elements."""

    name: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class CoreOperations(Protocol):
    """Profile ``core``: cannot be unclaimed."""

    multiprocessing: ModuleType
    """The drop-in module (`multiprocessing` itself where channels are plain)."""

    def enter_child(self, strategy: str) -> None:
        """Prepare this process: called once in the owner and in each peer.

        The owner is a child of the suite's.
        """

    def make(self, values: list[Number], shape: Index, dtype: str) -> Tensor:
        """Return a new tensor of `shape` with the flat row-major `values`."""

    def is_tensor(self, value: object) -> bool:
        """Return whether a received object is a tensor (or encoded as one)."""

    def shape(self, tensor: Tensor) -> Index:
        """Return the shape."""

    def dtype(self, tensor: Tensor) -> str:
        """Return the dtype by its name in `dtypes`."""

    def values(self, tensor: Tensor) -> list[Number]:
        """Return all values, flat, row-major, as Python numbers."""

    def read(self, tensor: Tensor, index: Index) -> Number:
        """Return the value of one element."""

    def write(self, tensor: Tensor, index: Index, value: Number) -> None:
        """Write one element in place."""

    def encode(self, tensor: Tensor) -> object:
        """Return what is put on a channel to send the tensor (often the tensor)."""

    def decode(self, message: object) -> Tensor:
        """Return the tensor for what `encode` produced on the other side."""

    def release(self, tensor: Tensor) -> None:
        """Give up the tensor: the suite forgets it right after this call."""


class ShareOperations(Protocol):
    """Profile ``share``: moving into shared memory on request."""

    def share(self, tensor: Tensor) -> Tensor:
        """Move the tensor's storage into shared memory; return the call's result."""

    def is_shared(self, tensor: Tensor) -> bool:
        """Return whether the tensor's storage is in shared memory."""

    def clone(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the same values in memory of its own."""


class IdentityOperations(Protocol):
    """Profile ``identity``: addresses can be observed."""

    def address(self, tensor: Tensor) -> int:
        """Return the address of the tensor's first element in this process."""


class ViewOperations(Protocol):
    """Profile ``views``: windows on a storage."""

    def view(self, tensor: Tensor, layout: Layout) -> Tensor:
        """Return the window `layout` on the one-dimensional contiguous `tensor`.

        Its layout is one of the kinds in `views`, or runs backwards where
        `negative_strides` says that it may. Where the tensor requires grad, the window
        does too, and is no leaf.
        """

    def strides(self, tensor: Tensor) -> Index:
        """Return the strides in elements."""

    def reinterpret(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return a view of the bytes of a one-dimensional contiguous tensor.

        It has another dtype, and as many elements as there are in the bytes. Where
        `views` has no ``reinterpreted``, this operation is left out.
        """


class ResizeOperations(Protocol):
    """Profile ``resize``: a tensor can be asked to grow in place."""

    def resize(self, tensor: Tensor, count: int) -> None:
        """Resize the tensor in place to one dimension of `count` elements.

        This is asked only of tensors that are shared, which have to refuse to grow.
        Whether private ones grow, and what new elements hold, is not looked at.
        """


class ArrayOperations(Protocol):
    """Profile ``arrays``: NumPy arrays over the tensor's memory."""

    def array(self, tensor: Tensor) -> Any:
        """Return a NumPy array over the same memory."""


class LazyOperations(Protocol):
    """Profile ``lazy``: views whose values are computed when they are read."""

    def conjugate(self, tensor: Tensor) -> Tensor:
        """Return the lazily conjugated view of a complex tensor."""


class KindOperations(Protocol):
    """Profile ``kinds``: tensors that are more than a window on a storage."""

    def make_kind(self, kind: str) -> Tensor:
        """Return a new tensor of a kind of those in `kinds`, with a few values."""

    def describe(self, tensor: Tensor) -> list[Any]:
        """Return everything that makes the tensor what it is, as plain data.

        That is its class, shape, dtype and values, and what its kind has besides. Two
        tensors that a program could tell apart, but for their addresses, differ here.
        """

    def change(self, tensor: Tensor, value: int) -> bool:
        """Write `value` into one element in place; return whether that is possible."""


class GradOperations(Protocol):
    """Profile ``grad``: the state of differentiation."""

    def requires_grad(self, tensor: Tensor) -> bool:
        """Return the flag."""

    def set_requires_grad(self, tensor: Tensor, flag: bool) -> None:
        """Set the flag of a leaf."""

    def is_leaf(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a leaf."""

    def grad(self, tensor: Tensor) -> Tensor | None:
        """Return ``.grad``."""

    def set_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        """Set ``.grad``."""

    def non_leaf(self, tensor: Tensor) -> Tensor:
        """Return a tensor computed from `tensor`, which is a leaf that requires grad.

        The result requires grad as well, and is no leaf.
        """

    def detach(self, tensor: Tensor) -> Tensor:
        """Return a view of the same memory that requires no grad."""

    def set_grad_mode(self, on: bool) -> None:
        """Let this thread record operations for differentiation, or cease to.

        A library that has no such mode does nothing.
        """


class ModuleOperations(Protocol):
    """Profile ``modules``: modules with their parameters and buffers."""

    def make_module(self, parameters: dict[str, list[float]]) -> Any:
        """Return a module with one-dimensional float32 parameters of these names."""

    def add_buffer(self, module: Any, name: str, values: list[float]) -> None:
        """Give the module a one-dimensional float32 buffer, part of its state."""

    def buffers(self, module: Any) -> dict[str, Tensor]:
        """Return the module's own buffers by name, the same objects each time."""

    def tie(self, module: Any, name: str, other: str) -> None:
        """Make the parameter `other` of the module the same object as `name`."""

    def parameters(self, module: Any) -> dict[str, Tensor]:
        """Return the parameters by name, tied ones under each of their names."""

    def state_dict(self, module: Any) -> dict[str, Tensor]:
        """Return the ``state_dict()``."""

    def share_module(self, module: Any) -> None:
        """Call the module's ``share_memory()``."""

    def is_parameter(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a parameter."""


class CudaOperations(Protocol):
    """Profile ``cuda``: device memory, on a real device or one that stands in.

    Where other profiles are claimed too, some tests call these operations of theirs
    with device tensors: ``address``, ``view`` and ``strides``, ``resize``, ``share``
    and ``is_shared``, and those for flag and grad of a leaf. Work on a device is work
    on any of them; memory is that of the device that `use_device` chose.
    """

    def device_unavailable(self, device: str) -> str:
        """Return why a `device` of those in `devices` cannot be used, or ``""``."""

    def use_device(self, device: str) -> None:
        """Make `device` the one that the other operations use in this process."""

    def make_on_device(self, values: list[Number], dtype: str) -> Tensor:
        """Return a one-dimensional device tensor in an allocation of its own."""

    def carve(self, parts: list[tuple[list[Number], str]]) -> list[Tensor]:
        """Return device tensors that lie in one allocation, one for each part."""

    def write_later(self, tensor: Tensor, index: int, value: Number) -> None:
        """Enqueue a write of one element and return without waiting for it."""

    def device_values(self, tensor: Tensor) -> list[Number]:
        """Return the values that the device holds after `synchronize`."""

    def synchronize(self) -> None:
        """Wait for this process's work on the device, and for what it depends on."""

    def collect(self) -> None:
        """Free what no other process uses any more, and what is kept for later."""

    def device_memory_used(self) -> int:
        """Return the bytes in use on the device, by the driver's own figures."""

    def device_memory_free(self) -> int:
        """Return the bytes that are free on the device, by the driver's own figures."""

    def make_block(self, nbytes: int) -> Tensor:
        """Return an uninitialised uint8 tensor in an allocation of its own.

        It may take most of the device: an implementation that keeps freed memory for
        later allocations takes the room from the driver, not from what it keeps.
        """

    def device_count(self) -> int:
        """Return how many devices this process can use, at least 1."""

    def make_on(self, index: int, values: list[Number], dtype: str) -> Tensor:
        """Do as `make_on_device`, on the device with this index.

        The device that `use_device` chose stays the one of the other operations.
        """

    def device_of(self, tensor: Tensor) -> int:
        """Return the index of the device on which the tensor lies, in this process."""


class EventOperations(Protocol):
    """Profile ``events``: events of a device, which can be sent."""

    def record_event(self) -> Any:
        """Return a new event behind the work that this process has queued so far.

        It is an object of the implementation that other processes can be sent. It
        stands for that work wherever it is waited for, and its maker keeps it until
        it is dropped.
        """

    def wait_event(self, event: Any) -> None:
        """Let the work that this process queues from now on come after the event.

        The event is its own or was received. The call does not wait for the work.
        """


class ForgeryOperations(Protocol):
    """Profile ``forgery``: messages that lie, to see that they are refused."""

    def forge(self, tensor: Tensor, how: str, excess: int) -> object:
        """Return what is put on a channel to send `tensor` with one lie in its message.

        The tensor is contiguous and the whole of its storage.

        The message is the implementation's own, made when it is sent, but for the lie:

        - ``"size"``: the handle claims `excess` bytes more than the segment has;
        - ``"window"``: the tensor begins `excess` elements later, so it claims as many
          beyond the end of its storage;
        - ``"outside"``: the handle names a file that is large enough and no segment, by
          a path that leads out of the directory of segments, or by a descriptor;
        - ``"truncated"``: the handle ends after its first half;
        - ``"again"``: each time it is sent, the very handle of the first time is sent;
          the tensor is not kept alive by it. Where descriptors travel beside the
          pickle, what the pickle says of them is sent again and none is added, so it
          may name a descriptor of another tensor in the message, or none that is
          there. This is asked of device tensors too.
        """


class VersionOperations(Protocol):
    """Profile ``versions``: handles say of which version they are."""

    def handle_version(self) -> str:
        """Return the version of the handles that this process makes and understands."""

    def forge_version(self, tensor: Tensor, version: str, fields: str) -> object:
        """Return what is put on a channel to send `tensor` as another version would.

        The message is the implementation's own, made when it is sent, but for the
        version that its handle says, and for what comes after the version: `fields` is
        ``"same"``, or a field has been added (``"more"``) or is missing (``"fewer"``).
        """


class TraceOperations(Protocol):
    """Profile ``trace-points``: a process can be held at each step of the protocol.

    Without it the faults of the profile ``fault-table`` strike between operations.
    """

    def break_at(self, step: str, pause: Callable[[], str]) -> None:
        """Call `pause` when this process is about to perform `step` for the next time.

        `step` is one of `trace_steps`, or where that is empty any step of the table
        in the chapter FAULT that an owner or a peer performs. What `pause` raises
        comes out of the step. What it returns says how to go on: ``""`` performs the
        step, ``"twice"`` performs it twice, and ``"skip"`` returns as if it had been
        performed; the last two are asked for where the fault table has the faults
        ``duplicate`` and ``drop``.
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
"""The profiles and the operations that claiming each one needs."""


STRATEGY_OF = {
    "strategy-fd": "file_descriptor",
    "strategy-fs": "file_system",
    "manager": "file_system",
}
"""Profiles that are about one strategy, and its name."""


LONG_PROFILES = frozenset({"fault-table"})
"""Profiles that are judged only when they are asked for: they take minutes."""


def operations_of(profile: str) -> frozenset[str]:
    """Return the names of the operations that `profile` needs."""
    protocol = PROFILES[profile]
    if protocol is None:
        return frozenset()
    names = set(vars(protocol)) | set(getattr(protocol, "__annotations__", {}))
    return frozenset(name for name in names if not name.startswith("_"))


def problems_of(implementation: Implementation, operations: object) -> list[str]:
    """Return what is wrong with the two halves of an adapter, a sentence each."""
    problems = _problems_of_claims(implementation)
    for profile, protocol in PROFILES.items():
        for name in sorted(operations_of(profile)):
            claimed = profile in implementation.claims
            claimed = claimed and _is_claimed(name, implementation)
            present = hasattr(operations, name)
            if claimed and not present:
                dropped = "drop the claim"
                if name == "reinterpret":
                    dropped += ", or take 'reinterpreted' out of views"
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
    """Return the statements of a function below its docstring; none without source."""
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
    """Return the file and line of a function, in brackets."""
    code = getattr(operation, "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""


def fits(operation: object, arguments: Sequence[object]) -> bool:
    """Return whether an operation can be called with so many arguments.

    Of what has no signature, such as some functions of C, nobody can tell: it fits.
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
    """Return what is wrong with how an operation is called; empty for nothing."""
    declared = vars(protocol).get(name)
    if declared is None:
        return ""  # it is no function: `multiprocessing`
    asked = list(inspect.signature(declared).parameters)[1:]
    if fits(getattr(operations, name), asked):
        return ""
    return (
        f"the operation {name!r} cannot be called as {name}({', '.join(asked)}), "
        f"which the suite does: give it these parameters"
    )


def _is_claimed(name: str, implementation: Implementation) -> bool:
    if name == "reinterpret" and "reinterpreted" not in implementation.views:
        return False
    return any(name in operations_of(p) for p in implementation.claims & set(PROFILES))


def _problems_of_claims(implementation: Implementation) -> list[str]:
    problems = [
        f"the claim {claim!r} is no profile; profiles are {', '.join(PROFILES)}"
        for claim in sorted(implementation.claims - set(PROFILES))
    ]
    if "core" not in implementation.claims:
        problems.append("the profile 'core' is not claimed, and it cannot be unclaimed")
    problems += _claims_without_an_object(implementation)
    if implementation.dtypes and "float32" not in implementation.dtypes:
        problems.append(
            "the dtype 'float32' is not claimed, and most tests make their tensors of "
            "it: claim it"
        )
    problems += _problems_of_version(implementation)
    for field_name in ("strategies", "start_methods", "dtypes", "channels", "devices"):
        if not getattr(implementation, field_name):
            problems.append(f"{field_name} is empty, so nothing could be judged")
    return problems


def _problems_of_version(implementation: Implementation) -> list[str]:
    """Return what an adapter of another version of the contract lacks."""
    version = implementation.adapter_version
    written = f"the adapter was written for version {version} of the contract"
    if not 1 <= version <= ADAPTER_VERSION:
        return [
            f"{written}, and this suite speaks 1 to {ADAPTER_VERSION}: use the suite "
            f"that it was written for"
        ]
    return [
        f"{written}, and since version {number} {change.text}: do so, and set "
        f"adapter_version={ADAPTER_VERSION}"
        for number, change in ADAPTER_CHANGES.items()
        if number > version and change.profiles & implementation.claims
    ]


def _claims_without_an_object(implementation: Implementation) -> list[str]:
    """Return which claims could not be judged, a sentence each.

    What is claimed and has nothing to be judged on would look as if it held.
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
        f"the profile {profile!r} is claimed, but nothing to judge it on: "
        f"add {what}, or drop the claim"
        for profile, is_there, what in wanting
        if profile in implementation.claims and not is_there
    ]
