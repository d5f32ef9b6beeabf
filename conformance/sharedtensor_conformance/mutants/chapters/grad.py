"""Mutants of flags and gradients."""

import pickle
import weakref

from sharedtensor_conformance.mutants.registry import mutant


@mutant("clears_requires_grad", "GRAD-1", "TRAIN-3")
def clears_requires_grad(steps):
    """Nothing that arrives requires grad."""
    original = steps.export_flags
    steps.export_flags = lambda tensor: (False, original(tensor)[1])


@mutant("first_flag_stays", "GRAD-1")
def first_flag_stays(steps):
    """A storage that is sent again is sent with the flag of the first time."""
    original, flags = steps.export_flags, {}

    def export_flags(tensor):
        requires_grad, conjugated = original(tensor)
        if tensor.storage.segment is None:
            flags[tensor.storage.address] = requires_grad
        return flags.get(tensor.storage.address, requires_grad), conjugated

    steps.export_flags = export_flags


@mutant("drops_grad", "GRAD-2", "GRAD-3", "GRAD-8")
def drops_grad(steps):
    """A grad that is present is not sent."""
    steps.export_grad = lambda tensor: None


@mutant("drops_grad_of_shared", "GRAD-2", "GRAD-3", "GRAD-8")
def drops_grad_of_shared(steps):
    """A grad is sent with the first send of its tensor, and not with later ones."""
    original = steps.export_grad

    def export_grad(tensor):
        return original(tensor) if tensor.storage.segment is None else None

    steps.export_grad = export_grad


@mutant("copies_grad", "GRAD-3", "GRAD-8")
def copies_grad(steps):
    """A grad arrives with its values, as a copy."""
    original = steps.export_grad

    def export_grad(tensor):
        grad = original(tensor)
        return None if grad is None else grad.clone()

    steps.export_grad = export_grad


@mutant("grad_of_the_receiver_is_new", "GRAD-3", "GRAD-8")
def grad_of_the_receiver_is_new(steps):
    """The owner's grads are shared with others, and those of others with nobody."""
    import multiprocessing

    original = steps.export_grad

    def export_grad(tensor):
        grad = original(tensor)
        child = multiprocessing.parent_process() is not None
        return grad.clone() if child and grad is not None else grad

    steps.export_grad = export_grad


@mutant("makes_a_grad_for_all", "GRAD-4")
def makes_a_grad_for_all(steps):
    """A leaf that has no grad gets one when it is sent, and both sides share it."""
    original = steps.export_grad

    def export_grad(tensor):
        if tensor.grad is None and tensor.requires_grad:
            tensor.grad = tensor.detach().clone()
        return original(tensor)

    steps.export_grad = export_grad


@mutant("sends_non_leaves", "GRAD-5")
def sends_non_leaves(steps):
    """A non-leaf that requires grad is sent."""
    steps.refuse_non_leaf = lambda tensor: None


@mutant("sends_nested_non_leaves", "GRAD-5")
def sends_nested_non_leaves(steps):
    """A non-leaf is refused when it is the message, and sent inside of one."""
    refuse, pack = steps.refuse_non_leaf, steps.pack_message

    def pack_message(obj):
        if hasattr(obj, "is_leaf"):
            refuse(obj)
        return pack(obj)

    steps.refuse_non_leaf = lambda tensor: None
    steps.pack_message = pack_message


@mutant("refused_message_leaves_a_stub", "GRAD-6")
def refused_message_leaves_a_stub(steps):
    """A message that is refused on a pipe arrives as None."""
    from sharedtensor.multiprocessing.connection import Connection

    original = Connection.send

    def send(self, obj):
        try:
            original(self, obj)
        except RuntimeError:
            self.write(pickle.dumps(None))
            raise

    Connection.send = send


@mutant("detach_copies", "GRAD-7", "TRAIN-2")
def detach_copies(steps):
    """A detached tensor is a copy where the tensor requires grad."""
    from sharedtensor import Tensor

    original = Tensor.detach

    def detach(self):
        made = original(self)
        return made.clone() if self.requires_grad else made

    Tensor.detach = detach


@mutant("grad_is_lost_on_the_way_on", "GRAD-8")
def grad_is_lost_on_the_way_on(steps):
    """A grad arrives with its tensor and is not sent on with it."""
    attach, export = steps.attach_grad, steps.export_grad
    received = weakref.WeakValueDictionary()

    def attach_grad(tensor, grad):
        attach(tensor, grad)
        received[id(tensor)] = tensor

    steps.attach_grad = attach_grad
    steps.export_grad = lambda one: None if id(one) in received else export(one)


@mutant("tensor_is_cached_with_its_storage", "GRAD-9")
def tensor_is_cached_with_its_storage(steps):
    """What arrives again while its tensor lives here is that tensor, grad and all."""
    rebuild = steps.rebuild_tensor
    known = weakref.WeakValueDictionary()

    def rebuild_tensor(tensor_class, storage, window, flags):
        key = storage.segment.token, window, flags
        tensor = known.get(key)
        if tensor is None:
            known[key] = tensor = rebuild(tensor_class, storage, window, flags)
        return tensor

    steps.rebuild_tensor = rebuild_tensor
