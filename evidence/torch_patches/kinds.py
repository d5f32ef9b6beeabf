"""Fix: a tensor arrives with its signs, its scales, and one common buffer."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch_patches.grads import register
from torch_patches.replacing import wrap


def apply() -> None:
    """Restores VIEW-9, KIND-1, KIND-2.

    Wraps ``reductions.reduce_tensor``. The bits by which a tensor is read conjugated or
    negated travel beside the window. A quantized tensor is sent with its scales
    and zero points. A nested tensor is built around the received buffer, where
    ``rebuild_nested_tensor`` copies it.

    Nested tensors that require grad arrive as leaves, as before; nested tensors of the
    layout `jagged` are sent as before.
    """
    torch = import_module("torch")
    reductions = import_module("torch.multiprocessing.reductions")
    wrap(reductions, "reduce_tensor", _reduce)
    wrap(reductions, "rebuild_nested_tensor", _rebuild_nested)
    register(torch, reductions.reduce_tensor)


def _reduce(before: Any, tensor: Any) -> Any:
    if tensor.is_quantized:
        return rebuild_quantized, _quantized(tensor)
    reduced = before(tensor)
    if tensor.layout != import_module("torch").strided or tensor.is_nested:
        return reduced
    bits = tensor.is_conj(), tensor.is_neg()
    if not any(bits):
        return reduced
    rebuild, arguments, *state = reduced
    return rebuild_read_otherwise, (bits, rebuild, arguments), *state


def rebuild_read_otherwise(
    bits: tuple[bool, bool], rebuild: Any, arguments: tuple[Any, ...]
) -> Any:
    """Return the tensor, read conjugated, negated or both."""
    torch = import_module("torch")
    tensor = rebuild(*arguments)
    torch._C._set_conj(tensor, bits[0])
    torch._C._set_neg(tensor, bits[1])
    return tensor


def _quantized(tensor: Any) -> tuple[Any, ...]:
    torch = import_module("torch")
    scheme = tensor.qscheme()
    scales: tuple[Any, ...] = tensor.q_scale, tensor.q_zero_point
    if scheme != torch.per_tensor_affine:
        points = tensor.q_per_channel_scales, tensor.q_per_channel_zero_points
        scales = *points, tensor.q_per_channel_axis
    window = tensor.storage_offset(), tensor.size(), tensor.stride()
    read_by = scheme, *(scale() for scale in scales)
    return tensor._typed_storage(), *window, read_by, tensor.requires_grad


def rebuild_quantized(storage: Any, *rest: Any) -> Any:
    """Return the quantized tensor over the received storage."""
    return import_module("torch")._utils._rebuild_qtensor(storage, *rest, {})


def _rebuild_nested(before: Any, *parts: Any) -> Any:
    torch = import_module("torch")
    rebuilt = [rebuild(*args) for rebuild, args in zip(*[iter(parts)] * 2, strict=True)]
    with torch.no_grad():
        buffer, *shape = rebuilt
        nested = torch._nested_view_from_buffer(buffer.detach(), *shape)
    return nested.detach().requires_grad_(buffer.requires_grad)
