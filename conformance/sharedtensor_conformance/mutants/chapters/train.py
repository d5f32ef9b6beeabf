"""Mutants of models."""

from sharedtensor_conformance.mutants.registry import mutant


@mutant("parameters_are_copies", "TRAIN-1")
def parameters_are_copies(steps):
    """Parameters arrive with their values, as copies; other tensors are shared."""
    from sharedtensor import Parameter

    original = steps.export_tensor

    def export_tensor(tensor):
        copied = isinstance(tensor, Parameter)
        return tensor.__reduce_ex__(4) if copied else original(tensor)

    steps.export_tensor = export_tensor


@mutant("state_dict_copies", "TRAIN-2")
def state_dict_copies(steps):
    """A `state_dict()` has copies of the module's tensors."""
    from sharedtensor import Module

    original = Module.state_dict

    def state_dict(self):
        return {name: value.clone() for name, value in original(self).items()}

    Module.state_dict = state_dict


@mutant("parameter_arrives_as_a_tensor", "TRAIN-3")
def parameter_arrives_as_a_tensor(steps):
    """A parameter arrives as a tensor with its flag."""
    from sharedtensor import Tensor

    steps.export_class = lambda tensor: Tensor


@mutant("shares_one_parameter", "TRAIN-4")
def shares_one_parameter(steps):
    """A module's `share_memory()` shares its first parameter alone."""
    from sharedtensor import Module

    def share_memory(self):
        next(self.parameters()).share_memory_()
        return self

    Module.share_memory = share_memory
