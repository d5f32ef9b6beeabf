"""The kinds of tensors of PyTorch beside the ordinary one: how each is made and told.

It is imported with PyTorch, which only owner and peers do; and a class that is sent has
to be found by its name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from sharedtensor_conformance.adapter import Tensor

torch = import_module("torch")

VALUES = [1.0, 2.0, 3.0, 4.0]


Labelled = type("Labelled", (torch.Tensor,), {"__module__": __name__, "label": ""})
"""A subclass, whose tensors have an attribute."""


def _square() -> Tensor:
    return torch.tensor(VALUES).reshape(2, 2)


def _subclass() -> Tensor:
    made = torch.tensor(VALUES).as_subclass(Labelled)
    made.label = "weights"
    return made


def _nested() -> Tensor:
    # The layout `jagged` is left out: each process that uses it imports for seconds.
    parts = [torch.tensor(VALUES[:1]), torch.tensor(VALUES[1:])]
    return torch.nested.nested_tensor(parts, layout=torch.strided)


KINDS: dict[str, Callable[[], Tensor]] = {
    "parameter": lambda: torch.nn.Parameter(torch.tensor(VALUES)),
    "buffer": lambda: torch.nn.Buffer(torch.tensor(VALUES)),
    "subclass": _subclass,
    "sparse_coo": lambda: _square().to_sparse().coalesce(),
    "sparse_csr": lambda: _square().to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(_square(), 0.5, 3, torch.quint8),
    "quantized_channels": lambda: torch.quantize_per_channel(
        _square(), torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.qint8
    ),
    "nested": _nested,
    "negated": lambda: torch.tensor([1 - 2j, 3 - 4j]).conj().imag,
    "meta": lambda: torch.empty(2, 2, device="meta"),
}
"""How a tensor of each kind is made."""


def make(kind: str) -> Tensor:
    """Return a new tensor of a kind; some of them are called prototypes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KINDS[kind]()


def describe(tensor: Tensor) -> list[Any]:
    """Return everything that makes the tensor what it is."""
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
    if tensor.layout == torch.sparse_coo:
        indices, values = tensor._indices(), tensor._values()
        return [list(tensor.shape), indices.tolist(), values.tolist()]
    if tensor.layout == torch.sparse_csr:
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        return [list(tensor.shape), *(part.tolist() for part in parts)]
    if tensor.is_quantized:
        return [tensor.int_repr().tolist(), *_scales(tensor)]
    return [list(tensor.shape), tensor.tolist()]


def _scales(tensor: Tensor) -> list[Any]:
    if tensor.qscheme() == torch.per_tensor_affine:
        return [tensor.q_scale(), tensor.q_zero_point()]
    scales = (tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points())
    return [*(part.tolist() for part in scales), tensor.q_per_channel_axis()]


def change(tensor: Tensor, value: int) -> bool:
    """Write the first value in place, where it can be."""
    if tensor.is_meta or tensor.is_quantized:
        return False
    plain = tensor.detach()
    if tensor.is_nested:
        plain = plain.unbind()[0]
    elif tensor.layout == torch.sparse_coo:
        plain = plain._values()
    elif tensor.layout == torch.sparse_csr:
        plain = plain.values()
    plain.view(-1)[0] = value
    return True
