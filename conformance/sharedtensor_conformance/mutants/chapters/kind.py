"""Mutants of tensors of special kinds, such as those of a subclass."""

import weakref

from sharedtensor_conformance.mutants.registry import mutant


@mutant("attributes_stay_behind", "KIND-1", replaces="protocol.export_state")
def attributes_stay_behind(export_state):
    """The attributes of a tensor of a subclass are not sent."""
    from sharedtensor import protocol

    def export(tensor):
        grad = protocol.export_grad(tensor)
        return None if grad is None else (grad, {})

    return export


@mutant(
    "attributes_go_no_further",
    "KIND-1",
    replaces=("protocol.attach_state", "protocol.export_state"),
)
def attributes_go_no_further(attach_state, export_state):
    """The attributes of a tensor that was received are not sent on with it."""
    received = weakref.WeakValueDictionary()

    def attach(tensor, extras):
        attach_state(tensor, extras)
        received[id(tensor)] = tensor

    def export(tensor):
        found = export_state(tensor)
        is_first = found is None or id(tensor) not in received
        return found if is_first else (found[0], {})

    return attach, export


@mutant("subclass_arrives_as_a_tensor", "KIND-1", replaces="protocol.export_class")
def subclass_arrives_as_a_tensor(export_class):
    """A tensor of a class that a program defines arrives as a plain one."""
    from sharedtensor import Tensor, nn

    return lambda tensor: type(tensor) if type(tensor) is nn.Parameter else Tensor


@mutant("subclass_is_copied", "KIND-2", replaces="protocol.export_tensor")
def subclass_is_copied(export_tensor):
    """A tensor of a class that a program defines arrives with a copy of its values."""
    from sharedtensor import Tensor, nn

    from sharedtensor_conformance.adapters.copy import export_copy

    def export(tensor):
        known = type(tensor) in (Tensor, nn.Parameter)
        return export_tensor(tensor) if known else export_copy(tensor)

    return export


@mutant("slots_stay_behind", "KIND-1", "KIND-3", replaces="protocol.export_state")
def slots_stay_behind(export_state):
    """Only the attributes of a tensor of a subclass are pickled, and not its slots."""

    def export(tensor):
        grad, state = export_state(tensor) or (None, None)
        return grad, state[0] if type(state) is tuple and len(state) == 2 else state

    return export


@mutant(
    "states_are_not_asked_for", "KIND-1", "KIND-3", replaces="protocol.export_state"
)
def states_are_not_asked_for(export_state):
    """The attributes are pickled, whatever a subclass has as `__getstate__`."""
    from sharedtensor import Tensor, protocol

    def export(tensor):
        found = Tensor.__getstate__(tensor)
        return protocol.export_grad(tensor), found

    return export


@mutant("deep_copies_lose_the_parts", "KIND-3", replaces="tensors.Tensor.__deepcopy__")
def deep_copies_lose_the_parts(deepcopy):
    """A deep copy of a tensor of a subclass has its values alone."""

    def copy(self, memo):
        made = memo[id(self)] = type(self)(self.detach().tolist())
        return made

    return copy
