"""The kinds of tensors of PyTorch other than the ordinary one, and how to make each.

The module is imported with PyTorch, which only owner and peers import. Pickle finds the
class of a sent object by its module and name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from sharedtensor_conformance.adapter import Tensor

torch = import_module("torch")

VALUES = [1.0, 2.0, 3.0, 4.0]


def _subclass_of_tensors(name: str, **names: Any) -> Any:
    return type(name, (torch.Tensor,), {"__module__": __name__, **names})


class Note:
    """What a program keeps beside a tensor; pickled by itself, it is empty."""

    text = ""

    def __getstate__(self) -> None:
        """Return nothing."""


def _label(tensor: Tensor) -> str:
    return str(tensor.note.text)


def _set_label(tensor: Tensor, label: str) -> None:
    tensor.note = Note()
    tensor.note.text = label


Labelled = _subclass_of_tensors("Labelled", label="")
"""A subclass, whose tensors have an attribute."""

Slotted = _subclass_of_tensors("Slotted", __slots__=("label",))
"""A subclass, whose tensors have a slot."""

Stateful = _subclass_of_tensors(
    "Stateful",
    label=property(_label, _set_label),
    __getstate__=lambda tensor: (tensor.label,),
    __setstate__=lambda tensor, state: _set_label(tensor, *state),
)
"""A subclass, whose tensors say what is pickled of them."""


def _new_wrapper(cls: Any, first: Tensor, second: Tensor) -> Tensor:
    made = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)
    made.first, made.second = first, second
    return made


def _compute_with_parts(
    cls: Any, function: Any, types: Any, arguments: Any = (), options: Any = None
) -> Tensor:
    """Return the wrapper of what a function returns of each of the two parts."""
    map_tensors = import_module("torch.utils._pytree").tree_map_only

    def computed(part: str) -> Tensor:
        given = [arguments, options or {}]
        plain = map_tensors(cls, lambda each: getattr(each, part), given)
        return function(*plain[0], **plain[1])

    return cls(computed("first"), computed("second"))


Wrapper: Any = _subclass_of_tensors(
    "Wrapper",
    __new__=_new_wrapper,
    __init__=lambda wrapper, *parts: None,
    __torch_dispatch__=classmethod(_compute_with_parts),
    __tensor_flatten__=lambda wrapper: (["first", "second"], None),
    __tensor_unflatten__=lambda parts, *rest: Wrapper(parts["first"], parts["second"]),
)
"""A subclass whose tensors wrap two others, and have no storage themselves."""


def _square() -> Tensor:
    return torch.tensor(VALUES).reshape(2, 2)


def _subclass(cls: Any) -> Tensor:
    made = torch.tensor(VALUES).as_subclass(cls)
    made.label = "weights"
    return made


def _wrapper() -> Tensor:
    return Wrapper(torch.tensor([1, 2]), torch.tensor([3, 4]))


def _nested() -> Tensor:
    # The layout `jagged` is left out: each process that uses it imports for seconds.
    parts = [torch.tensor(VALUES[:1]), torch.tensor(VALUES[1:])]
    return torch.nested.nested_tensor(parts, layout=torch.strided)


SORTS = ("empty", "dense", "uncoalesced", "narrow")
"""What the name of a sparse kind says besides the layout and the dtype."""


def _sparse(layout: str, *what: str) -> Tensor:
    """Return a sparse tensor, of ``float32`` unless another dtype is named.

    It has no specified elements where it is ``empty``, dimensions within its elements
    where it is ``dense``, elements at one place where it is ``uncoalesced``, and
    indices of ``int32`` instead of ``int64`` where it is ``narrow``.
    """
    named = [getattr(torch, name) for name in what if name not in SORTS]
    square = _square() * ("empty" not in what)
    if "dense" in what:
        square = square.unsqueeze(-1).expand(2, 2, 3)
    for dtype in named:
        square = square.to(dtype)
    if layout == "coo":
        made = square.to_sparse(2)
        return made if "uncoalesced" not in what else _twice(made)
    options: dict[str, Any] = {"dense_dim": 1} if "dense" in what else {}
    if layout in ("bsr", "bsc"):
        options["blocksize"] = (1, 2)
    made = square.to_sparse(layout=getattr(torch, f"sparse_{layout}"), **options)
    return made if "narrow" not in what else _narrow(made)


def _narrow(tensor: Tensor) -> Tensor:
    """Return a sparse tensor of a compressed layout with indices of ``int32``."""
    indices = [part.to(torch.int32) for part in _indices(tensor)]
    parts = (*indices, tensor.values(), tensor.shape)
    return torch.sparse_compressed_tensor(*parts, layout=tensor.layout)


def _indices(tensor: Tensor) -> list[Tensor]:
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    names = ("crow", "col") if by_row else ("ccol", "row")
    return [getattr(tensor, f"{name}_indices")() for name in names]


def _twice(tensor: Tensor) -> Tensor:
    """Return a sparse tensor with each element of another one twice."""
    places, values = (torch.cat([part, part], dim) for part, dim in _parts(tensor))
    return torch.sparse_coo_tensor(places, values, tensor.shape)


def _parts(tensor: Tensor) -> list[tuple[Tensor, int]]:
    return [(tensor._indices(), 1), (tensor._values(), 0)]


def _array() -> np.ndarray[Any, Any]:
    return np.array(VALUES, dtype=np.float32)


KINDS: dict[str, Callable[[], Tensor]] = {
    "parameter": lambda: torch.nn.Parameter(torch.tensor(VALUES)),
    "buffer": lambda: torch.nn.Buffer(torch.tensor(VALUES)),
    "subclass": lambda: _subclass(Labelled),
    "slotted": lambda: _subclass(Slotted),
    "stateful": lambda: _subclass(Stateful),
    "wrapper": _wrapper,
    "quantized": lambda: torch.quantize_per_tensor(_square(), 0.5, 3, torch.quint8),
    "quantized_channels": lambda: torch.quantize_per_channel(
        _square(), torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.qint8
    ),
    "nested": _nested,
    "negated": lambda: torch.tensor([1 - 2j, 3 - 4j]).conj().imag,
    "from_array": lambda: torch.from_numpy(_array()),
    "from_buffer": lambda: torch.frombuffer(bytearray(_array()), dtype=torch.float32),
    "from_dlpack": lambda: torch.from_dlpack(_array()),
    "parameter_from_array": lambda: torch.nn.Parameter(torch.from_numpy(_array())),
    "meta": lambda: torch.empty(2, 2, device="meta"),
}
"""How a tensor of each kind is made, but for sparse ones, whose names say it."""


def make(kind: str) -> Tensor:
    """Return a new tensor of a kind; some of them are called prototypes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        family, *what = kind.split("_")
        return _sparse(*what) if family == "sparse" else KINDS[kind]()


def describe(tensor: Tensor) -> list[Any]:
    """Return everything that makes the tensor what it is."""
    if isinstance(tensor, Wrapper):
        parts = describe(tensor.first), describe(tensor.second)
        return ["Wrapper", str(tensor.dtype), list(tensor.shape), *parts]
    flags = ("requires_grad", "is_quantized", "is_nested", "is_sparse", "is_meta")
    more: list[Any] = [bool(getattr(tensor, flag)) for flag in flags]
    more += [tensor.is_neg(), tensor.is_conj()]
    kind = [type(tensor).__qualname__, str(tensor.layout), str(tensor.dtype)]
    more.append(str(getattr(tensor, "label", "")))
    return [*kind, more, *_contents(tensor.detach())]


def _contents(tensor: Tensor) -> list[Any]:
    """Return the shape, the values, and what these are made of."""
    if tensor.is_meta:
        return [list(tensor.shape)]
    if tensor.is_nested:
        return [part.tolist() for part in tensor.unbind()]
    if tensor.layout != torch.strided:
        return [list(tensor.shape), *_sparse_contents(tensor)]
    if tensor.is_quantized:
        return [tensor.int_repr().tolist(), *_scales(tensor)]
    return [list(tensor.shape), tensor.tolist()]


def _sparse_contents(tensor: Tensor) -> list[Any]:
    """Return where the elements of a sparse tensor are, and what they are."""
    if tensor.layout == torch.sparse_coo:
        parts = [part for part, _ in _parts(tensor)]
        more = [bool(tensor.is_coalesced())]
    else:
        parts, more = [*_indices(tensor), tensor.values()], []
    told = [[str(part.dtype), list(part.shape), part.tolist()] for part in parts]
    return [tensor.dense_dim(), *more, *told]


def _scales(tensor: Tensor) -> list[Any]:
    if tensor.qscheme() == torch.per_tensor_affine:
        return [tensor.q_scale(), tensor.q_zero_point()]
    scales = (tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points())
    return [*(part.tolist() for part in scales), tensor.q_per_channel_axis()]


def change(tensor: Tensor, value: int) -> bool:
    """Write the first value in place, where it can be."""
    if tensor.is_meta or tensor.is_quantized:
        return False
    plain = tensor.second if isinstance(tensor, Wrapper) else tensor.detach()
    if tensor.is_nested:
        plain = plain.unbind()[0]
    elif tensor.layout == torch.sparse_coo:
        plain = plain._values()
    elif tensor.layout != torch.strided:
        plain = plain.values()
    if not plain.numel():
        return False
    # Of values that are true or false, the first is true when it is made.
    plain.view(-1)[0] = value % 2 == 0 if plain.dtype == torch.bool else value
    return True
