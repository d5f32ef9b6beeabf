"""Tensors in arenas that processes share."""
from .store import ArenaError
from .tensor import Parameter, Tensor, tensor

__all__ = ["ArenaError", "Parameter", "Tensor", "tensor"]
__version__ = "0.1"
