"""Mutants of models."""

from sharedtensor_conformance.mutants.registry import mutant


@mutant("parameters_are_copies", "TRAIN-1", replaces="protocol.export_tensor")
def parameters_are_copies(export_tensor):
    """Parameters arrive with their values, as copies; other tensors are shared."""
    from sharedtensor import Parameter

    def export(tensor):
        copied = isinstance(tensor, Parameter)
        return tensor.__reduce_ex__(4) if copied else export_tensor(tensor)

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
