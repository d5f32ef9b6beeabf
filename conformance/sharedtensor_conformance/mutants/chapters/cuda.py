"""Mutants of the protocol for device memory, whose steps are an object of their own."""

import os
import weakref

from sharedtensor_conformance.mutants.registry import mutant


def _protocol():
    from sharedtensor.cuda import protocol

    return protocol.steps


@mutant("forked_child_reads_zeros", "CUDA-1")
def forked_child_reads_zeros(steps):
    """A device tensor that is used after a fork has zeros for values."""
    import numpy as np
    from sharedtensor.cuda import CudaTensor, ForkError

    original = CudaTensor.cpu

    def cpu(self):
        try:
            return original(self)
        except ForkError:
            return np.zeros(self.shape, self.dtype)

    CudaTensor.cpu = cpu


@mutant("forgets_device_offsets", "CUDA-2")
def forgets_device_offsets(steps):
    """Every tensor in an allocation arrives at its begin."""
    _protocol().offset_in_allocation = lambda driver, pointer: 0


@mutant("device_tensors_are_copies", "CUDA-3", "CUDA-2", "CUDA-19", "CUDA-21")
def device_tensors_are_copies(steps):
    """A device tensor arrives with its values, in an allocation of its own."""
    from multiprocessing.reduction import ForkingPickler

    from sharedtensor.cuda import CudaTensor

    from sharedtensor_conformance.adapters.copy import export_device_copy

    ForkingPickler.register(CudaTensor, export_device_copy)


@mutant("frees_what_is_in_use", "CUDA-4")
def frees_what_is_in_use(steps):
    """An allocation goes with the owner's last tensor, whoever uses it."""
    _protocol().may_free = lambda allocation: True


@mutant("never_frees", "CUDA-4")
def never_frees(steps):
    """An allocation that was sent is never freed."""
    _protocol().may_free = lambda allocation: allocation.table is None


@mutant("device_tensor_has_a_segment", "CUDA-5")
def device_tensor_has_a_segment(steps):
    """A send of a device tensor makes a file in `/dev/shm` beside it."""
    original = _protocol().count_send

    def count_send(allocation):
        name = f"sharedtensor-{os.getpid()}-{os.urandom(16).hex()}"
        with open(f"/dev/shm/{name}", "w"):
            return original(allocation)

    _protocol().count_send = count_send


@mutant("does_not_wait", "CUDA-6")
def does_not_wait(steps):
    """The receiver does not wait for the sender's pending work."""
    _protocol().wait_for_event = lambda driver, handle: None


@mutant("forgets_device_strides", "CUDA-7")
def forgets_device_strides(steps):
    """A view of device memory arrives at its place, and contiguous."""
    _on_rebuild(
        lambda tensor: tensor.as_strided(
            tensor.shape, _contiguous(tensor.shape), tensor.storage_offset()
        )
    )


def _contiguous(shape):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(shape)])


def _on_rebuild(change):
    """Change each tensor that has elements when it is received."""
    from sharedtensor.cuda import reducers

    original = reducers.rebuild_tensor

    def rebuild_tensor(*arguments):
        tensor = original(*arguments)
        return change(tensor) if tensor.storage else tensor

    _take_place(reducers, rebuild_tensor)


def _take_place(reducers, replacement):
    """Let a function be pickled, by its name, as the one that it replaces."""
    replacement.__module__ = reducers.__name__
    replacement.__qualname__ = replacement.__name__
    setattr(reducers, replacement.__name__, replacement)


@mutant("device_booleans_are_bytes", "CUDA-8")
def device_booleans_are_bytes(steps):
    """A tensor of booleans arrives as one of bytes."""
    import numpy as np

    def change(tensor):
        if tensor.dtype == "bool":
            tensor.dtype = np.dtype("uint8")
        return tensor

    _on_rebuild(change)


@mutant("second_receive_is_a_copy", "CUDA-9", "CUDA-10")
def second_receive_is_a_copy(steps):
    """What is received while it is open already arrives as a copy."""
    from sharedtensor import cuda
    from sharedtensor.cuda import protocol

    original = protocol.Sharing._receive
    copies = []

    def receive(sharing, message, count):
        known = sharing._known.get(message.memory)
        storage = original(sharing, message, count)
        if known is not None and known.held is not None:
            copies.append(storage)
        return storage

    def change(received):
        if not copies:
            return received
        copies.clear()
        return cuda.tensor(received.cpu(), device=received.device)

    protocol.Sharing._receive = receive
    _on_rebuild(change)


@mutant("counts_a_second_receive_for_ever", "CUDA-9")
def counts_a_second_receive_for_ever(steps):
    """The count of a message whose allocation is open already is not given back."""
    from sharedtensor.cuda import protocol

    original = protocol.Sharing._receive

    def receive(sharing, message, count):
        if message.memory not in sharing._known:
            return original(sharing, message, count)
        count.keep()
        lasting = type("Lasting", (), {"release": lambda self: None})()
        return original(sharing, message, lasting)

    protocol.Sharing._receive = receive


@mutant("closes_with_the_first_tensor", "CUDA-9")
def closes_with_the_first_tensor(steps):
    """Each receive has a storage; the first that goes closes the allocation."""
    from sharedtensor.cuda import protocol

    protocol.Sharing._storage = protocol.DeviceStorage
    protocol.Allocation.is_referred_to_here = lambda allocation: False


@mutant("knows_allocations_by_their_size", "CUDA-11")
def knows_allocations_by_their_size(steps):
    """An allocation is taken for one of the same size that is open already."""
    _known_by(
        lambda sharing, message: (
            each
            for each in sharing._known.values()
            if each.held is not None and each.nbytes == message.nbytes
        )
    )


def _known_by(find):
    """Take what `find` finds, if anything, for the allocation that is received."""
    from sharedtensor.cuda import protocol

    original = protocol.Sharing._receive

    def receive(sharing, message, count):
        found = next(find(sharing, message), None)
        if found is None:
            return original(sharing, message, count)
        if message.event is not None:
            protocol.steps.wait_for_event(sharing.driver, message.event)
        count.release()
        return sharing._storage(found)

    protocol.Sharing._receive = receive


@mutant("finds_what_was_closed", "CUDA-12")
def finds_what_was_closed(steps):
    """Memory that is used again is taken for the allocation that was closed there."""
    from sharedtensor.cuda import protocol

    closed = []
    original = protocol.Sharing._close

    def close(sharing, allocation):
        closed.append(allocation)
        original(sharing, allocation)

    protocol.Sharing._close = close
    _known_by(
        lambda sharing, message: (
            each for each in closed if each.nbytes == message.nbytes
        )
    )


@mutant("counts_the_first_send_only", "CUDA-13")
def counts_the_first_send_only(steps):
    """A second send of an allocation claims a count that names nothing."""

    def count_send(allocation):
        first = not hasattr(allocation, "was_sent")
        allocation.was_sent = True
        return allocation.table.claim(allocation.number if first else -1)

    _protocol().count_send = count_send


@mutant("a_drop_gives_all_counts_back", "CUDA-14")
def a_drop_gives_all_counts_back(steps):
    """The first receiver that drops gives back the counts of all."""
    from sharedtensor.cuda import counts

    def release(count):
        slots = count.table.slots
        number = slots[count.slot]["allocation"]
        slots["state"][slots["allocation"] == number] = counts.VACANT

    counts.Count.release = release


@mutant("a_death_ends_all_counts", "CUDA-15")
def a_death_ends_all_counts(steps):
    """Where one receiver has died, those that live count no more."""
    from sharedtensor.cuda import counts

    def forget_the_dead(table):
        received = table.slots["state"] >= counts.TAKEN
        holders = table.slots[["pid", "start"]][received].tolist()
        if not all(counts.is_alive(pid, start) for pid, start in holders):
            table.slots["state"][received] = counts.VACANT

    counts.CountTable._forget_the_dead = forget_the_dead


@mutant("the_dead_count_for_ever", "CUDA-16")
def the_dead_count_for_ever(steps):
    """What a killed receiver held stays counted."""
    from sharedtensor.cuda import counts

    counts.CountTable._forget_the_dead = lambda table: None


@mutant("collects_nothing_after_an_owners_end", "CUDA-17")
def collects_nothing_after_an_owners_end(steps):
    """Collecting asks every owner, also one that has ended, and raises."""
    from sharedtensor.cuda import OwnerGoneError, protocol

    original = protocol.Sharing._receive
    owners = []

    def receive(sharing, message, count):
        owners.append(message.table.pid)
        return original(sharing, message, count)

    def collect(sharing):
        if not all(os.path.exists(f"/proc/{pid}") for pid in owners):
            raise OwnerGoneError("An owner has ended.")
        sharing._retire_sends()

    protocol.Sharing._receive = receive
    protocol.Sharing._collect = collect


@mutant("a_dead_sender_sent_zeros", "CUDA-18")
def a_dead_sender_sent_zeros(steps):
    """A message whose sender has ended is received as new memory."""
    from sharedtensor.cuda import OwnerGoneError, protocol

    original = protocol.Sharing.receive

    def receive(sharing, message):
        try:
            return original(sharing, message)
        except OwnerGoneError:
            return sharing.allocate(message.nbytes)

    protocol.Sharing.receive = receive


def _on_forward(change):
    """Replace what is sent for a tensor that was received."""
    from multiprocessing.reduction import ForkingPickler

    from sharedtensor.cuda import CudaTensor, reducers

    def reduce_tensor(tensor):
        storage = tensor.storage
        if storage is not None and storage.allocation.held is not None:
            return change(tensor)
        return reducers.reduce_tensor(tensor)

    ForkingPickler.register(CudaTensor, reduce_tensor)


@mutant("sends_on_a_device_copy", "CUDA-19", "CUDA-20")
def sends_on_a_device_copy(steps):
    """A received device tensor is copied when it is sent on."""
    from sharedtensor_conformance.adapters.copy import export_device_copy

    _on_forward(export_device_copy)


@mutant("refuses_to_send_on", "CUDA-20")
def refuses_to_send_on(steps):
    """A received device tensor cannot be sent on."""
    from sharedtensor.cuda import DeviceError

    def refuse(tensor):
        raise DeviceError("Only the process that made it can send it.")

    _on_forward(refuse)


@mutant("sends_on_without_a_count", "CUDA-35")
def sends_on_without_a_count(steps):
    """A received device tensor is sent on and counted by nobody."""
    original = _protocol().count_send

    def count_send(allocation):
        if allocation.held is None:
            return original(allocation)
        return allocation.table.claim(-1)

    _protocol().count_send = count_send


@mutant("opens_what_is_its_own", "CUDA-20")
def opens_what_is_its_own(steps):
    """A tensor that comes home is opened like that of another process."""
    from sharedtensor.cuda import protocol

    original = protocol.Sharing._receive

    def receive(sharing, message, count):
        known = sharing._known.get(message.memory)
        if known is not None and known.held is None:
            del sharing._known[message.memory]
        return original(sharing, message, count)

    protocol.Sharing._receive = receive


@mutant("copies_what_is_its_own", "CUDA-21")
def copies_what_is_its_own(steps):
    """What a process receives from itself is a copy."""
    from sharedtensor import cuda

    def change(received):
        if received.storage.allocation.held is not None:
            return received
        return cuda.tensor(received.cpu(), device=received.device)

    _on_rebuild(change)


@mutant("empty_device_tensors_are_floats", "CUDA-22")
def empty_device_tensors_are_floats(steps):
    """A device tensor without elements arrives with the default type."""
    from multiprocessing.reduction import ForkingPickler

    from sharedtensor import cuda
    from sharedtensor.cuda import CudaTensor, reducers

    def reduce_tensor(sent):
        if sent.storage is not None:
            return reducers.reduce_tensor(sent)
        return cuda.tensor, ([], None, sent.device)

    ForkingPickler.register(CudaTensor, reduce_tensor)


@mutant("grows_into_new_memory", "CUDA-23")
def grows_into_new_memory(steps):
    """A device tensor that has to grow moves into memory of its own."""
    from sharedtensor.cuda import CudaTensor, DeviceError, empty_block

    original = CudaTensor.resize_

    def resize(self, count):
        try:
            return original(self, count)
        except DeviceError:
            self.storage = empty_block(self.dtype.itemsize * 1024, self.device)
            self.offset = 0
            return self

    CudaTensor.resize_ = resize


@mutant("sends_without_event_or_wait", "CUDA-24")
def sends_without_event_or_wait(steps):
    """Where events are short the sender does not wait for its work instead."""
    _protocol().complete_instead = lambda driver: None


@mutant("closes_without_waiting", "CUDA-25")
def closes_without_waiting(steps):
    """A receiver closes an allocation on which its work is pending."""

    def close_allocation(driver, allocation):
        driver.close_handle(allocation.base)
        allocation.held.release()

    _protocol().close_allocation = close_allocation


@mutant("frees_without_waiting", "CUDA-25")
def frees_without_waiting(steps):
    """An owner frees an allocation on which its work is pending."""
    _protocol().free_allocation = lambda driver, it: driver.free(it.base)


@mutant("gives_up_without_collecting", "CUDA-26")
def gives_up_without_collecting(steps):
    """An allocation for which there is no room fails at once."""
    _protocol().make_room = lambda collect: None


@mutant("counts_each_send_twice", "CUDA-27", "CUDA-4")
def counts_each_send_twice(steps):
    """A send claims two counts, of which the receiver gives one back."""
    original = _protocol().count_send

    def count_send(allocation):
        original(allocation)
        return original(allocation)

    _protocol().count_send = count_send


@mutant("never_closes", "CUDA-27", "CUDA-4")
def never_closes(steps):
    """A receiver gives its count back and leaves the allocation open."""

    def close_allocation(driver, allocation):
        driver.synchronize()
        allocation.held.release()

    _protocol().close_allocation = close_allocation


@mutant("device_arguments_are_copies", "CUDA-28")
def device_arguments_are_copies(steps):
    """A device tensor among the arguments of a process is a copy."""
    from multiprocessing import context
    from multiprocessing.reduction import ForkingPickler

    from sharedtensor.cuda import CudaTensor, reducers

    from sharedtensor_conformance.adapters.copy import export_device_copy

    def reduce_tensor(tensor):
        if context.get_spawning_popen() is not None:
            return export_device_copy(tensor)
        return reducers.reduce_tensor(tensor)

    ForkingPickler.register(CudaTensor, reduce_tensor)


@mutant("ignores_events", "CUDA-29")
def ignores_events(steps):
    """Waiting for an event that was sent does nothing."""
    _protocol().queue_wait = lambda driver, event: None


@mutant("sent_events_stand_for_nothing", "CUDA-29")
def sent_events_stand_for_nothing(steps):
    """An event that is sent is a new one, which was never recorded."""
    from multiprocessing.reduction import ForkingPickler

    from sharedtensor.cuda import Event, events

    sent = []

    def reduce_event(event):
        sent.append(Event(event._sharing.driver.name))
        return events.reduce_event(sent[-1])

    ForkingPickler.register(Event, reduce_event)


@mutant("arrives_on_the_first_device", "CUDA-30")
def arrives_on_the_first_device(steps):
    """A device tensor is received on the device with index 0."""
    from sharedtensor import cuda

    def change(received):
        first = received.device.partition(":")[0] + ":0"
        if received.device == first:
            return received
        return cuda.tensor(received.cpu(), device=first)

    _on_rebuild(change)


@mutant("device_grads_stay_behind", "CUDA-31")
def device_grads_stay_behind(steps):
    """A device tensor arrives with its flag and without its grad."""

    def state_of(tensor):
        return {"requires_grad": tensor.requires_grad}

    _protocol().state_of = state_of


@mutant("device_grads_are_copies", "CUDA-31")
def device_grads_are_copies(steps):
    """The grad of a device tensor arrives as a copy."""
    from sharedtensor import cuda

    original = _protocol().state_of

    def state_of(sent):
        state = original(sent)
        if state and state["_grad"] is not None:
            state["_grad"] = cuda.tensor(sent.grad.cpu(), device=sent.device)
        return state

    _protocol().state_of = state_of


@mutant("device_tensors_say_that_they_are_private", "CUDA-32")
def device_tensors_say_that_they_are_private(steps):
    """A device tensor says that it is not shared."""
    from sharedtensor.cuda import CudaTensor

    CudaTensor.is_shared = lambda self: False


@mutant("sharing_moves_a_device_tensor", "CUDA-32")
def sharing_moves_a_device_tensor(steps):
    """Asking to share a device tensor moves it into new memory."""
    from sharedtensor import cuda
    from sharedtensor.cuda import CudaTensor

    def share_memory(self):
        self.storage = cuda.tensor(self.cpu(), device=self.device).storage
        self.offset = 0
        return self

    CudaTensor.share_memory_ = share_memory


@mutant("host_memory_goes_with_its_sender", "CUDA-33")
def host_memory_goes_with_its_sender(steps):
    """A process that ends and used a device clears the tensors that it sent."""
    from sharedtensor.cuda import protocol

    sent = weakref.WeakSet()
    original, leave = steps.export_storage, protocol.Sharing.leave

    def export_storage(storage):
        sent.add(storage)
        return original(storage)

    def leave_and_clear(sharing):
        for storage in list(sent):
            storage.bytes[:] = 0
        leave(sharing)

    steps.export_storage = export_storage
    protocol.Sharing.leave = leave_and_clear


@mutant("receives_a_message_twice", "CUDA-34")
def receives_a_message_twice(steps):
    """A message is taken and its count given back as often as it is loaded."""
    from sharedtensor.cuda import counts

    def take(count):
        row = count.table.slots[count.slot]
        row["pid"], row["start"] = counts.own_identity()
        row["state"] = counts.TAKEN

    counts.Count.take = take
