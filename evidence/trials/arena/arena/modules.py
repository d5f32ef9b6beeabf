"""Modules with parameters and buffers."""
from .tensor import Parameter, Tensor


class Module:
    def __init__(self):
        self.parameters, self.buffers, self.unsaved = {}, {}, set()

    def state_dict(self):
        saved = {name: value for name, value in self.buffers.items() if name not in self.unsaved}
        return {**{name: value.detach() for name, value in self.parameters.items()}, **saved}

    def share_memory(self):
        for value in (*self.parameters.values(), *self.buffers.values()):
            value.share_memory_()
        return self


def parameter(tensor):
    return Parameter(tensor.storage, tensor.dtype, tensor.shape, tensor.strides, tensor.offset)


class Scaled(Tensor):
    """Integers with a scale."""

    __slots__ = ("scale",)

    def __reduce_ex__(self, protocol):
        return _rescale, (super().__reduce_ex__(protocol), self.scale)


def _rescale(reduced, scale):
    rebuild, arguments = reduced
    found = rebuild(*arguments)
    found.scale = scale
    return found


class Sparse:
    """Two tensors: where, and what."""

    def __init__(self, size, indices, values):
        self.size, self.indices, self.values = size, indices, values
