"""Mutants of flags and gradients."""

import multiprocessing
import pickle
import weakref

from sharedtensor_conformance.mutants.registry import mutant


@mutant("clears_requires_grad", "GRAD-1", "TRAIN-3", replaces="protocol.export_flags")
def clears_requires_grad(export_flags):
    """Nothing that arrives requires grad."""
    return lambda tensor: (False, export_flags(tensor)[1])


@mutant("first_flag_stays", "GRAD-1", replaces="protocol.export_flags")
def first_flag_stays(export_flags):
    """A storage that is sent again is sent with the flag of the first time."""
    flags = {}

    def export(tensor):
        requires_grad, conjugated = export_flags(tensor)
        if tensor.storage.segment is None:
            flags[tensor.storage.address] = requires_grad
        return flags.get(tensor.storage.address, requires_grad), conjugated

    return export


@mutant("drops_grad", "GRAD-2", "GRAD-3", "GRAD-8", replaces="protocol.export_grad")
def drops_grad(export_grad):
    """A grad that is present is not sent."""
    return lambda tensor: None


@mutant(
    "drops_grad_of_shared",
    "GRAD-2",
    "GRAD-3",
    "GRAD-8",
    replaces="protocol.export_grad",
)
def drops_grad_of_shared(export_grad):
    """A grad is sent with the first send of its tensor, and not with later ones."""

    def export(tensor):
        return export_grad(tensor) if tensor.storage.segment is None else None

    return export


@mutant(
    "drops_grad_that_overflowed", "GRAD-2", "GRAD-3", replaces="protocol.export_grad"
)
def drops_grad_that_overflowed(export_grad):
    """A grad with an element that is no finite number is not sent."""
    import numpy

    def has_overflowed(grad):
        return not numpy.isfinite(numpy.asarray(grad)).all()

    def export(tensor):
        grad = export_grad(tensor)
        return None if grad is None or has_overflowed(grad) else grad

    return export


@mutant("copies_grad", "GRAD-3", "GRAD-8", replaces="protocol.export_grad")
def copies_grad(export_grad):
    """A grad arrives with its values, as a copy."""

    def export(tensor):
        grad = export_grad(tensor)
        return None if grad is None else grad.clone()

    return export


@mutant("copies_large_grads", "GRAD-3", replaces="protocol.export_grad")
def copies_large_grads(export_grad):
    """A grad of 64 KiB or more arrives with its values, as a copy."""

    def export(tensor):
        grad = export_grad(tensor)
        is_large = grad is not None and grad.storage.nbytes >= 64 << 10
        return grad.clone() if is_large else grad

    return export


@mutant(
    "grads_begin_with_their_storage",
    "GRAD-2",
    "GRAD-3",
    replaces="protocol.attach_grad",
)
def grads_begin_with_their_storage(attach_grad):
    """A grad arrives as the first elements of its storage, in a row."""
    from sharedtensor import Tensor
    from sharedtensor.layout import contiguous

    def attach(tensor, grad):
        if grad is not None and not grad.requires_grad:
            window = 0, grad.shape, contiguous(grad.shape)
            dtype = grad.dtype.str
            grad = Tensor.__new__(Tensor).look_at(grad.storage, dtype, *window)
        attach_grad(tensor, grad)

    return attach


@mutant(
    "grad_of_the_receiver_is_new", "GRAD-3", "GRAD-8", replaces="protocol.export_grad"
)
def grad_of_the_receiver_is_new(export_grad):
    """The owner's grads are shared with others, and those of others with nobody."""

    def export(tensor):
        grad = export_grad(tensor)
        child = multiprocessing.parent_process() is not None
        return grad.clone() if child and grad is not None else grad

    return export


@mutant("makes_a_grad_for_all", "GRAD-4", replaces="protocol.export_grad")
def makes_a_grad_for_all(export_grad):
    """A leaf that has no grad gets one when it is sent, and both sides share it."""

    def export(tensor):
        if tensor.grad is None and tensor.requires_grad:
            tensor.grad = tensor.detach().clone()
        return export_grad(tensor)

    return export


@mutant("sends_non_leaves", "GRAD-5", replaces="protocol.refuse_non_leaf")
def sends_non_leaves(refuse_non_leaf):
    """A non-leaf that requires grad is sent."""
    return lambda tensor: None


@mutant(
    "sends_nested_non_leaves",
    "GRAD-5",
    replaces=("protocol.refuse_non_leaf", "protocol.pack_message"),
)
def sends_nested_non_leaves(refuse_non_leaf, pack_message):
    """A non-leaf is refused when it is the message, and sent inside of one."""

    def pack(obj):
        if hasattr(obj, "is_leaf"):
            refuse_non_leaf(obj)
        return pack_message(obj)

    return lambda tensor: None, pack


@mutant(
    "queues_look_into_containers_only",
    "GRAD-5",
    replaces="multiprocessing.queues.Queue.put",
)
def queues_look_into_containers_only(put):
    """A non-leaf in an object that is no container is lost, as its queue accepts it."""
    from sharedtensor.errors import NonLeafError

    def has_non_leaf(obj):
        if type(obj) in (list, tuple):
            return any(map(has_non_leaf, obj))
        if isinstance(obj, dict):
            return any(map(has_non_leaf, obj.values()))
        return hasattr(obj, "is_leaf")

    def put_or_lose(self, obj, *arguments, **options):
        try:
            put(self, obj, *arguments, **options)
        except NonLeafError:
            if has_non_leaf(obj):
                raise

    return put_or_lose


@mutant("pools_return_non_leaves", "GRAD-5", replaces="protocol.refuse_non_leaf")
def pools_return_non_leaves(refuse_non_leaf):
    """What a worker of a pool returns is sent, though it is no leaf."""

    def refuse(tensor):
        if "PoolWorker" not in multiprocessing.current_process().name:
            refuse_non_leaf(tensor)

    return refuse


@mutant(
    "refused_message_leaves_a_stub",
    "GRAD-6",
    replaces="multiprocessing.connection.Connection.send",
)
def refused_message_leaves_a_stub(send):
    """A message that is refused on a pipe arrives as None."""

    def send_or_stub(self, obj):
        try:
            send(self, obj)
        except RuntimeError:
            self.write(pickle.dumps(None))
            raise

    return send_or_stub


@mutant("detach_copies", "GRAD-7", "TRAIN-2", replaces="tensors.Tensor.detach")
def detach_copies(detach):
    """A detached tensor is a copy where the tensor requires grad."""

    def detach_or_clone(self):
        made = detach(self)
        return made.clone() if self.requires_grad else made

    return detach_or_clone


@mutant(
    "grad_is_lost_on_the_way_on",
    "GRAD-8",
    replaces=("protocol.attach_grad", "protocol.export_grad"),
)
def grad_is_lost_on_the_way_on(attach_grad, export_grad):
    """A grad arrives with its tensor and is not sent on with it."""
    received = weakref.WeakValueDictionary()

    def attach(tensor, grad):
        attach_grad(tensor, grad)
        received[id(tensor)] = tensor

    return attach, lambda one: None if id(one) in received else export_grad(one)


@mutant(
    "tensor_is_cached_with_its_storage", "GRAD-9", replaces="protocol.rebuild_tensor"
)
def tensor_is_cached_with_its_storage(rebuild_tensor):
    """What arrives again while its tensor lives here is that tensor, grad and all."""
    known = weakref.WeakValueDictionary()

    def rebuild(tensor_class, storage, window, flags):
        key = storage.segment.token, window, flags
        tensor = known.get(key)
        if tensor is None:
            known[key] = tensor = rebuild_tensor(tensor_class, storage, window, flags)
        return tensor

    return rebuild


@mutant("workers_return_no_grads", "GRAD-2", replaces="protocol.export_grad")
def workers_return_no_grads(export_grad):
    """A pool's worker sends no grad."""

    def export(tensor):
        in_worker = "PoolWorker" in multiprocessing.current_process().name
        return None if in_worker else export_grad(tensor)

    return export


@mutant("grad_is_sent_for_ever", "GRAD-2", "GRAD-4", replaces="protocol.export_grad")
def grad_is_sent_for_ever(export_grad):
    """A grad that was sent once is sent again when it has been taken away."""
    sent = weakref.WeakKeyDictionary()

    def export(tensor):
        if (grad := export_grad(tensor)) is not None:
            sent[tensor] = grad
        return sent.get(tensor)

    return export


@mutant("empty_results_are_sent", "GRAD-5", replaces="protocol.refuse_non_leaf")
def empty_results_are_sent(refuse_non_leaf):
    """A non-leaf without elements is sent as a leaf."""
    return lambda tensor: refuse_non_leaf(tensor) if tensor.numel() else None


@mutant(
    "first_of_several_is_not_refused", "GRAD-5", replaces="protocol.refuse_non_leaf"
)
def first_of_several_is_not_refused(refuse_non_leaf):
    """A non-leaf is not refused as the first item of a message with several tensors."""
    from sharedtensor import errors, protocol

    pack_into, waiting = protocol.pack_into, []

    def refuse_later(tensor):
        try:
            refuse_non_leaf(tensor)
        except errors.NonLeafError as error:
            waiting.append(error)
        else:
            waiting.append(None)

    def pack(outbox, obj):
        waiting.clear()
        payload = pack_into(outbox, obj)
        for error in waiting if len(waiting) == 1 else waiting[1:]:
            if error is not None:
                raise error
        return payload

    protocol.pack_into = pack
    return refuse_later
