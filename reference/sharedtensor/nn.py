"""Parameters and modules: as much of a model as sharing has to respect.

A module knows its parameters, buffers and submodules by name. It has no behaviour of
its own that concerns sharing: it is pickled like any object, and its tensors do the
rest.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import protocol
from .layout import NUMERIC
from .tensors import Tensor


class Parameter(Tensor):
    """A leaf tensor that a module trains, over the memory of `data`. Clause TRAIN-3."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True):
        source = data.detach() if isinstance(data, Tensor) else Tensor(data)
        window = source.dtype, source._offset, source._shape, source._strides
        self.look_at(source.storage, *window, conjugated=source._conjugated)
        self.requires_grad = requires_grad


class Module:
    """A container of parameters, buffers and submodules, registered by assignment."""

    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _unsaved: set[str]

    def __init__(self) -> None:
        self.__dict__.update(_parameters={}, _buffers={}, _modules={}, _unsaved=set())

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                "Call super().__init__() before assigning to a module."
            )
        home = self._home(name, value)
        for other in (self._parameters, self._buffers, self._modules, self.__dict__):
            if other is not home:
                other.pop(name, None)
        if home is self.__dict__:
            super().__setattr__(name, value)  # into a slot or a property, where one is
        else:
            home[name] = value

    def _home(self, name: str, value: Any) -> dict[str, Any]:
        """The dictionary to which an attribute belongs."""
        if isinstance(value, Parameter):
            return self._parameters
        if isinstance(value, Module):
            return self._modules
        return self._buffers if name in self._buffers else self.__dict__

    def __getattr__(self, name: str) -> Any:
        for home in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(home, ()):
                return self.__dict__[home][name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")

    def __delattr__(self, name: str) -> None:
        for home in (self._parameters, self._buffers, self._modules):
            if name in home:
                del home[name]
                return
        super().__delattr__(name)

    def register_buffer(
        self, name: str, value: Tensor, persistent: bool = True
    ) -> None:
        """Add a tensor that is not trained; `state_dict` has it if it is persistent."""
        self.__dict__.pop(name, None)
        self._buffers[name] = value
        (self._unsaved.discard if persistent else self._unsaved.add)(name)

    def forward(self, *inputs: Any) -> Any:
        """Compute the module's result; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward().")

    def __call__(self, *inputs: Any) -> Any:
        """Compute the module's result by way of `forward`."""
        return self.forward(*inputs)

    def _tensors(
        self, kind: str, prefix: str = "", *, saved: bool = False
    ) -> Iterator[tuple[str, Any]]:
        for name, value in self.__dict__[kind].items():
            if not (saved and name in self._unsaved):
                yield prefix + name, value
        for name, module in self._modules.items():
            yield from module._tensors(kind, f"{prefix}{name}.", saved=saved)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Each parameter once, under its first name: tied ones are one parameter."""
        seen: set[int] = set()
        for name, parameter in self._tensors("_parameters"):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def parameters(self) -> Iterator[Parameter]:
        """Each parameter once. Clause TRAIN-1."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Each buffer under its name. Clause TRAIN-5."""
        return self._tensors("_buffers")

    def state_dict(self) -> dict[str, Tensor]:
        """Detached views of parameters and persistent buffers. Clause TRAIN-2."""
        kinds = "_parameters", "_buffers"
        named = (each for kind in kinds for each in self._tensors(kind, saved=True))
        return {name: value.detach() for name, value in named}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy values into the module's own tensors, which stay where they are.

        Raises `RuntimeError`, which lists what does not fit, and changes nothing then.
        """
        own = self.state_dict()
        if misfits := list(_misfits(own, state)):
            listed = "".join(f"\n  {each}" for each in misfits)
            raise RuntimeError(
                f"The state does not fit this {type(self).__name__}; nothing was "
                f"changed. Load the state of a module of the same form.{listed}"
            )
        for name, value in own.items():
            value.copy_(state[name])

    def share_memory(self) -> "Module":
        """Share all parameters, their grads (clause TRAIN-7) and all buffers.

        Clauses TRAIN-4, TRAIN-6, LIFE-26.
        """
        kinds = "_parameters", "_buffers"
        shared = [value for kind in kinds for _, value in self._tensors(kind)]
        grads = [value.grad for value in shared if value.grad is not None]
        protocol.share_storages([each.storage for each in (*shared, *grads)])
        for value in shared:
            value.share_memory_()
        return self

    def zero_grad(self) -> None:
        """Set the grads to None, so that later ones are private. Clause GRAD-4."""
        for parameter in self.parameters():
            parameter.grad = None


def _misfits(own: dict[str, Tensor], state: dict[str, Any]) -> Iterator[str]:
    for name, value in own.items():
        if name not in state:
            yield f"missing: {name}"
            continue
        given = np.asarray(state[name])
        if given.dtype.kind not in NUMERIC:
            yield f"no tensor: {name}, a {type(state[name]).__name__}"
        elif given.shape != value.shape:
            yield f"size mismatch: {name} of shape {given.shape}, not {value.shape}"
    yield from (f"unexpected: {name}" for name in state if name not in own)
