"""Mutants of models."""

import weakref

from sharedtensor_conformance.mutants.registry import mutant


@mutant("parameters_are_copies", "TRAIN-1", replaces="protocol.export_tensor")
def parameters_are_copies(export_tensor):
    """Parameters arrive with their values, as copies; other tensors are shared."""
    from sharedtensor import Parameter

    from sharedtensor_conformance.adapters.copy import export_copy

    def export(tensor):
        copied = isinstance(tensor, Parameter)
        return export_copy(tensor) if copied else export_tensor(tensor)

    return export


@mutant("state_dict_copies", "TRAIN-2", replaces="nn.Module.state_dict")
def state_dict_copies(state_dict):
    """A `state_dict()` has copies of the module's tensors."""

    def copied(self):
        return {name: value.clone() for name, value in state_dict(self).items()}

    return copied


@mutant("parameter_arrives_as_a_tensor", "TRAIN-3", replaces="protocol.export_class")
def parameter_arrives_as_a_tensor(export_class):
    """A parameter arrives as a tensor with its flag."""
    from sharedtensor import Tensor

    return lambda tensor: Tensor


@mutant("shares_one_parameter", "TRAIN-4", replaces="nn.Module.share_memory")
def shares_one_parameter(share_memory):
    """A module's `share_memory()` shares its first parameter alone."""

    def share_first(self):
        next(self.parameters()).share_memory_()
        return self

    return share_first


@mutant("buffers_are_copies", "TRAIN-5", replaces="nn.Module.register_buffer")
def buffers_are_copies(register_buffer):
    """The buffers of a module that is sent arrive as copies; all else is shared."""
    from sharedtensor import Tensor

    class Buffer(Tensor):
        """A tensor that pickles as `pickle` does, which copies."""

        __slots__ = ()

        def __reduce_ex__(self, version):
            return Tensor, (self.numpy().tolist(), "float32")

    def register(self, name, value):
        register_buffer(self, name, Buffer(value.numpy().tolist(), "float32"))

    return register


@mutant("state_dict_forgets_buffers", "TRAIN-5", replaces="nn.Module.state_dict")
def state_dict_forgets_buffers(state_dict):
    """A `state_dict()` has the parameters alone."""
    return lambda self: {
        name: value.detach() for name, value in self.named_parameters()
    }


@mutant("shares_parameters_alone", "TRAIN-6", replaces="nn.Module.share_memory")
def shares_parameters_alone(share_memory):
    """A module's `share_memory()` forgets the buffers."""

    def share(self):
        for parameter in self.parameters():
            parameter.share_memory_()
        return self

    return share


@mutant("shares_new_buffers", "TRAIN-6", replaces="nn.Module.share_memory")
def shares_new_buffers(share_memory):
    """A module's `share_memory()` puts shared copies in the place of the buffers."""

    def share(self):
        for name, buffer in list(self.named_buffers()):
            self.register_buffer(name, buffer.clone())
        return share_memory(self)

    return share


@mutant("state_dict_is_made_once", "TRAIN-2", replaces="nn.Module.state_dict")
def state_dict_is_made_once(state_dict):
    """A `state_dict()` has what the module had at the first, unless there is more."""
    first = weakref.WeakKeyDictionary()

    def remembered(self):
        now = state_dict(self)
        if first.get(self, {}).keys() != now.keys():
            first[self] = now
        return dict(first[self])

    return remembered


@mutant(
    "module_is_shared_once", "TRAIN-4", "TRAIN-6", replaces="nn.Module.share_memory"
)
def module_is_shared_once(share_memory):
    """What a module gets after it was shared is not shared when it is shared again."""
    shared = weakref.WeakSet()

    def share(self):
        if self not in shared:
            shared.add(self)
            share_memory(self)
        return self

    return share


@mutant("empty_parameters_are_left_out", "TRAIN-1", replaces="nn.Module._tensors")
def empty_parameters_are_left_out(tensors):
    """A module has no parameters and no buffers without elements."""

    def filled(self, kind, prefix=""):
        for name, value in tensors(self, kind, prefix):
            if value.numel():
                yield name, value

    return filled


@mutant("module_shares_no_grads", "TRAIN-7", replaces="nn.Module.share_memory")
def module_shares_no_grads(share_memory):
    """A module's `share_memory()` leaves the grads of its parameters private."""

    def share(self):
        for kind in ("_parameters", "_buffers"):
            for _, value in self._tensors(kind):
                value.storage.share()
        return self

    return share


@mutant("module_gets_new_grads", "TRAIN-7", replaces="nn.Module.share_memory")
def module_gets_new_grads(share_memory):
    """A module's `share_memory()` puts shared copies in the place of the grads."""

    def share(self):
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
        return share_memory(self)

    return share


@mutant("shared_module_is_left_alone", "TRAIN-7", replaces="nn.Module.share_memory")
def shared_module_is_left_alone(share_memory):
    """A module whose parameters and buffers are all shared already is left as it is."""

    def share(self):
        tensors = self.state_dict().values()
        shared = all(tensor.is_shared() for tensor in tensors)
        return self if shared else share_memory(self)

    return share
