"""Mutants of the protocol for device memory.

A message names `rebuild_tensor` as the function that makes the received tensor. So a
replacement needs the same name (`functools.wraps`).
"""

import functools
import multiprocessing
import os
import weakref

from sharedtensor_conformance.mutants.registry import mutant

REDUCE = "cuda.reducers.reduce_tensor"
REBUILD = "cuda.reducers.rebuild_tensor"


@mutant("forked_child_reads_zeros", "CUDA-1", replaces="cuda.tensors.CudaTensor.cpu")
def forked_child_reads_zeros(cpu):
    """A device tensor that is used after a fork has zeros for values."""
    import numpy as np
    from sharedtensor.cuda import ForkError

    def cpu_or_zeros(tensor):
        try:
            return cpu(tensor)
        except ForkError:
            return np.zeros(tensor.shape, tensor.dtype)

    return cpu_or_zeros


@mutant(
    "forgets_device_offsets",
    "CUDA-2", "CUDA-41",
    replaces="cuda.protocol.offset_in_allocation",
)  # fmt: skip
def forgets_device_offsets(offset_in_allocation):
    """Every tensor in an allocation arrives at its begin."""
    return lambda storage, pointer: 0


@mutant(
    "device_tensors_are_copies",
    "CUDA-3", "CUDA-2", "CUDA-19", "CUDA-21",
    replaces=REDUCE,
)  # fmt: skip
def device_tensors_are_copies(reduce_tensor):
    """A device tensor arrives with its values, in an allocation of its own."""
    from sharedtensor_conformance.adapters.copy import export_device_copy

    return export_device_copy


@mutant("frees_what_is_in_use", "CUDA-4", replaces="cuda.protocol.may_free")
def frees_what_is_in_use(may_free):
    """An allocation goes with the owner's last tensor, whoever uses it."""
    return lambda allocation: True


@mutant("never_frees", "CUDA-4", replaces="cuda.protocol.may_free")
def never_frees(may_free):
    """An allocation that was sent is never freed."""
    return lambda allocation: allocation.table is None


@mutant("device_tensor_has_a_segment", "CUDA-5", replaces="cuda.protocol.count_send")
def device_tensor_has_a_segment(count_send):
    """A send of a device tensor makes a file of the same size in `/dev/shm`."""

    def count_and_make_file(table, allocation):
        name = f"sharedtensor-{os.getpid()}-{os.urandom(16).hex()}"
        with open(f"/dev/shm/{name}", "w") as file:
            file.truncate(allocation.nbytes)
            return count_send(table, allocation)

    return count_and_make_file


@mutant("does_not_wait", "CUDA-6", replaces="cuda.protocol.wait_for_event")
def does_not_wait(wait_for_event):
    """The receiver does not wait for the sender's pending work."""
    return lambda driver, handle: None


@mutant("forgets_device_strides", "CUDA-7", replaces=REBUILD)
def forgets_device_strides(rebuild_tensor):
    """A view of device memory arrives at its place, and contiguous."""
    return _changed(
        rebuild_tensor,
        lambda tensor: tensor.as_strided(
            tensor.shape, _contiguous(tensor.shape), tensor.storage_offset()
        ),
    )


def _contiguous(shape):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(shape)])


def _changed(rebuild_tensor, change):
    """Return a `rebuild_tensor` that changes each tensor that has elements."""

    @functools.wraps(rebuild_tensor)
    def rebuild_and_change(*arguments):
        tensor = rebuild_tensor(*arguments)
        return change(tensor) if tensor.storage else tensor

    return rebuild_and_change


@mutant("device_booleans_are_bytes", "CUDA-8", replaces=REBUILD)
def device_booleans_are_bytes(rebuild_tensor):
    """A tensor of booleans arrives as one of bytes."""
    import numpy as np

    def change(tensor):
        if tensor.dtype == "bool":
            tensor.dtype = np.dtype("uint8")
        return tensor

    return _changed(rebuild_tensor, change)


@mutant(
    "second_receive_is_a_copy",
    "CUDA-9", "CUDA-10",
    replaces=("cuda.protocol.find_allocation", REBUILD),
)  # fmt: skip
def second_receive_is_a_copy(find_allocation, rebuild_tensor):
    """What is received while it is open already arrives as a copy."""
    from sharedtensor import cuda

    open_already = []

    def find_and_note(state, message):
        found = find_allocation(state, message)
        if found is not None and found.held is not None:
            open_already.append(found)
        return found

    def change(received):
        if not open_already:
            return received
        open_already.clear()
        return cuda.tensor(received.cpu(), device=received.device)

    return find_and_note, _changed(rebuild_tensor, change)


@mutant(
    "counts_a_second_receive_for_ever",
    "CUDA-9",
    replaces=("cuda.protocol.find_allocation", "cuda.counts.Count.release"),
)
def counts_a_second_receive_for_ever(find_allocation, release):
    """The count of a message whose allocation is open already is not given back."""
    open_already = set()

    def find_and_note(state, message):
        found = find_allocation(state, message)
        if found is not None:
            open_already.add((message.slot, message.serial))
        return found

    def release_but_the_second(count):
        if (count.slot, count.serial) in open_already:
            return count.keep()
        return release(count)

    return find_and_note, release_but_the_second


@mutant(
    "closes_with_the_first_tensor",
    "CUDA-9",
    replaces="cuda.state.Allocation.live_storage",
)
def closes_with_the_first_tensor(live_storage):
    """Each receive has a storage; the first that goes closes the allocation."""
    return lambda allocation: None


@mutant(
    "knows_allocations_by_their_size",
    "CUDA-11",
    replaces="cuda.protocol.find_allocation",
)
def knows_allocations_by_their_size(find_allocation):
    """An allocation is taken for one of the same size that is open already."""

    def find_by_size(state, message):
        received = (each for each in state.known.values() if each.held is not None)
        alike = (each for each in received if each.nbytes == message.nbytes)
        return next(alike, None) or find_allocation(state, message)

    return find_by_size


@mutant(
    "finds_what_was_closed",
    "CUDA-12",
    replaces=("cuda.protocol.close_allocation", "cuda.protocol.find_allocation"),
)
def finds_what_was_closed(close_allocation, find_allocation):
    """Memory that is used again is taken for the allocation that was closed there."""
    closed = []

    def close_and_note(state, allocation):
        closed.append(allocation)
        close_allocation(state, allocation)

    def find_closed(state, message):
        alike = (each for each in closed if each.nbytes == message.nbytes)
        return next(alike, None) or find_allocation(state, message)

    return close_and_note, find_closed


@mutant("counts_the_first_send_only", "CUDA-13", replaces="cuda.protocol.count_send")
def counts_the_first_send_only(count_send):
    """A second send of an allocation claims a count that names nothing."""

    def count_first(table, allocation):
        if hasattr(allocation, "was_sent"):
            return table.claim(-1)
        allocation.was_sent = True
        return count_send(table, allocation)

    return count_first


@mutant(
    "gives_events_back_before_its_waits",
    "CUDA-13", "CUDA-14",
    replaces="cuda.protocol.finish_after_waits",
)  # fmt: skip
def gives_events_back_before_its_waits(finish_after_waits):
    """A receiver is done with the sender's event while its wait for it is pending."""
    return lambda state, finish: finish()


@mutant("a_drop_gives_all_counts_back", "CUDA-14", replaces="cuda.counts.Count.release")
def a_drop_gives_all_counts_back(release):
    """The first receiver that drops gives back the counts of all."""
    from sharedtensor.cuda.counts import VACANT

    def release_all(count):
        slots = count.table.slots
        number = slots[count.slot]["allocation"]
        slots["state"][slots["allocation"] == number] = VACANT

    return release_all


@mutant("own_messages_count_for_ever", "CUDA-4", replaces="cuda.counts.Count.release")
def own_messages_count_for_ever(release):
    """The count of a message that its sender receives itself is not given back."""

    def release_those_of_others(count):
        if count.table.address.pid != os.getpid():
            release(count)

    return release_those_of_others


@mutant("refused_sends_count_for_ever", "CUDA-4", replaces="cuda.protocol.withdraw")
def refused_sends_count_for_ever(withdraw):
    """The count of a send that is refused is not taken back."""
    return lambda state, count: None


@mutant(
    "a_death_ends_all_counts", "CUDA-15", replaces="cuda.counts.CountTable.vacate_dead"
)
def a_death_ends_all_counts(vacate_dead):
    """Where one receiver has died, those that live count no more."""
    from sharedtensor.cuda import counts

    def vacate_all(table):
        received = table.slots["state"] >= counts.TAKEN
        holders = table.slots[["pid", "start"]][received].tolist()
        if not all(counts.is_alive(pid, start) for pid, start in holders):
            table.slots["state"][received] = counts.VACANT

    return vacate_all


@mutant(
    "a_death_ends_what_is_in_flight",
    "CUDA-4",
    replaces="cuda.counts.CountTable.vacate_dead",
)
def a_death_ends_what_is_in_flight(vacate_dead):
    """With a receiver that has died, messages in slots it once had count no more."""
    from sharedtensor.cuda import counts

    def vacate_whatever_names_the_dead(table):
        slots = table.slots
        received = slots["state"] >= counts.TAKEN
        for pid, start in slots[["pid", "start"]][received].tolist():
            if not counts.is_alive(pid, start):
                theirs = (slots["pid"] == pid) & (slots["start"] == start)
                slots["state"][theirs] = counts.VACANT

    return vacate_whatever_names_the_dead


@mutant(
    "the_dead_count_for_ever", "CUDA-16", replaces="cuda.counts.CountTable.vacate_dead"
)
def the_dead_count_for_ever(vacate_dead):
    """What a killed receiver held stays counted."""
    return lambda table: None


@mutant(
    "collects_nothing_after_an_owners_end",
    "CUDA-17",
    replaces=("cuda.protocol.find_table", "cuda.protocol.free_uncounted"),
)
def collects_nothing_after_an_owners_end(find_table, free_uncounted):
    """Collecting asks every owner, also one that has ended, and raises."""
    from sharedtensor.cuda import MakerGoneError

    owners = set()

    def find_and_note(state, address):
        owners.add(address.pid)
        return find_table(state, address)

    def ask_and_free(state):
        if not all(os.path.exists(f"/proc/{pid}") for pid in owners):
            raise MakerGoneError("A maker has ended.")
        free_uncounted(state)

    return find_and_note, ask_and_free


@mutant("a_dead_sender_sent_zeros", "CUDA-18", replaces="cuda.protocol.receive")
def a_dead_sender_sent_zeros(receive):
    """A message whose sender has ended is received as new memory."""
    from sharedtensor.cuda import MakerGoneError, protocol

    def receive_or_allocate(state, message):
        try:
            return receive(state, message)
        except MakerGoneError:
            return protocol.allocate(state, message.nbytes)

    return receive_or_allocate


def _on_forward(reduce_tensor, reduce_received):
    """Return a `reduce_tensor` that reduces received tensors with `reduce_received`."""

    def reduce(tensor):
        if tensor.storage is not None and tensor.storage.allocation.held is not None:
            return reduce_received(tensor)
        return reduce_tensor(tensor)

    return reduce


@mutant("sends_on_a_device_copy", "CUDA-19", "CUDA-20", replaces=REDUCE)
def sends_on_a_device_copy(reduce_tensor):
    """A received device tensor is copied when it is sent on."""
    from sharedtensor_conformance.adapters.copy import export_device_copy

    return _on_forward(reduce_tensor, export_device_copy)


@mutant("refuses_to_send_on", "CUDA-20", replaces=REDUCE)
def refuses_to_send_on(reduce_tensor):
    """A received device tensor cannot be sent on."""
    from sharedtensor.cuda import DeviceError

    def refuse(tensor):
        raise DeviceError("Only the process that made it can send it.")

    return _on_forward(reduce_tensor, refuse)


@mutant("sends_on_without_a_count", "CUDA-35", replaces="cuda.protocol.count_send")
def sends_on_without_a_count(count_send):
    """A received device tensor is sent on and counted by nobody."""

    def count_own(table, allocation):
        if allocation.held is None:
            return count_send(table, allocation)
        return table.claim(-1)

    return count_own


@mutant("opens_what_is_its_own", "CUDA-20", replaces="cuda.protocol.find_allocation")
def opens_what_is_its_own(find_allocation):
    """A tensor that comes home is opened like that of another process."""

    def find_received(state, message):
        found = find_allocation(state, message)
        return None if found is None or found.held is None else found

    return find_received


@mutant("copies_what_is_its_own", "CUDA-21", replaces=REBUILD)
def copies_what_is_its_own(rebuild_tensor):
    """What a process receives from itself is a copy."""
    from sharedtensor import cuda

    def change(received):
        if received.storage.allocation.held is not None:
            return received
        return cuda.tensor(received.cpu(), device=received.device)

    return _changed(rebuild_tensor, change)


@mutant("empty_device_tensors_are_floats", "CUDA-22", replaces=REDUCE)
def empty_device_tensors_are_floats(reduce_tensor):
    """A device tensor without elements arrives with the default type."""
    from sharedtensor import cuda

    def reduce(tensor):
        if tensor.storage is not None:
            return reduce_tensor(tensor)
        return cuda.tensor, ([], None, tensor.device)

    return reduce


@mutant("grows_into_new_memory", "CUDA-23", replaces="cuda.tensors.CudaTensor.resize_")
def grows_into_new_memory(resize_):
    """A device tensor that has to grow moves into memory of its own."""
    from sharedtensor.cuda import DeviceError, empty_block

    def resize_or_move(tensor, count):
        try:
            return resize_(tensor, count)
        except DeviceError:
            tensor.storage = empty_block(tensor.dtype.itemsize * 1024, tensor.device)
            tensor.byte_offset = 0
            return tensor

    return resize_or_move


@mutant("sends_without_event_or_wait", "CUDA-24", replaces="cuda.protocol.record_event")
def sends_without_event_or_wait(record_event):
    """Where events are short the sender does not wait for its work instead."""
    from sharedtensor.cuda import protocol

    def record_if_not_short(state, count):
        if len(state.sent_events) < protocol.MAX_EVENTS_IN_USE:
            return record_event(state, count)
        return None

    return record_if_not_short


@mutant("closes_without_waiting", "CUDA-25", replaces="cuda.protocol.close_allocation")
def closes_without_waiting(close_allocation):
    """A receiver closes an allocation on which its work is pending."""

    def close(state, allocation):
        state.unregister(allocation)
        state.driver.close_handle(allocation.base)
        allocation.held.release()

    return close


@mutant("frees_without_waiting", "CUDA-25", replaces="cuda.protocol.free_allocation")
def frees_without_waiting(free_allocation):
    """An owner frees an allocation on which its work is pending."""

    def free(state, allocation):
        state.unregister(allocation)
        state.driver.free(allocation.base)

    return free


@mutant(
    "gives_up_without_collecting",
    "CUDA-26",
    replaces="cuda.protocol.allocate_or_collect",
)
def gives_up_without_collecting(allocate_or_collect):
    """An allocation for which there is no room fails at once."""
    return lambda state, allocate, *arguments: allocate(*arguments)


@mutant(
    "counts_each_send_twice", "CUDA-27", "CUDA-4", replaces="cuda.protocol.count_send"
)
def counts_each_send_twice(count_send):
    """A send claims two counts, of which the receiver gives one back."""

    def count_twice(table, allocation):
        count_send(table, allocation)
        return count_send(table, allocation)

    return count_twice


@mutant("never_closes", "CUDA-27", "CUDA-4", replaces="cuda.protocol.close_allocation")
def never_closes(close_allocation):
    """A receiver gives its count back and leaves the allocation open."""

    def release_only(state, allocation):
        state.unregister(allocation)
        state.driver.synchronize()
        allocation.held.release()

    return release_only


@mutant("device_arguments_are_copies", "CUDA-28", replaces=REDUCE)
def device_arguments_are_copies(reduce_tensor):
    """A device tensor among the arguments of a process is a copy."""
    from multiprocessing import context

    from sharedtensor_conformance.adapters.copy import export_device_copy

    def reduce(tensor):
        if context.get_spawning_popen() is not None:
            return export_device_copy(tensor)
        return reduce_tensor(tensor)

    return reduce


@mutant("ignores_events", "CUDA-29", replaces="cuda.events.Event.wait")
def ignores_events(wait):
    """Waiting for an event that was sent does nothing."""
    return lambda event: None


@mutant("sent_events_stand_for_nothing", "CUDA-29", replaces="cuda.events.reduce_event")
def sent_events_stand_for_nothing(reduce_event):
    """An event that is sent is a new one, which was never recorded."""
    from sharedtensor.cuda import Event

    sent = []

    def reduce_new_event(event):
        sent.append(Event(event.device))
        return reduce_event(sent[-1])

    return reduce_new_event


@mutant("arrives_on_the_first_device", "CUDA-30", "CUDA-36", replaces=REBUILD)
def arrives_on_the_first_device(rebuild_tensor):
    """A device tensor is received on the device with index 0."""
    from sharedtensor import cuda

    def change(received):
        first = received.device.partition(":")[0] + ":0"
        if received.device == first:
            return received
        return cuda.tensor(received.cpu(), device=first)

    return _changed(rebuild_tensor, change)


@mutant("device_grads_stay_behind", "CUDA-31", replaces="cuda.reducers.attributes_of")
def device_grads_stay_behind(attributes_of):
    """A device tensor arrives with its flag and without its grad."""
    return lambda tensor: {"requires_grad": tensor.requires_grad}


@mutant("device_grads_are_copies", "CUDA-31", replaces="cuda.reducers.attributes_of")
def device_grads_are_copies(attributes_of):
    """The grad of a device tensor arrives as a copy."""
    from sharedtensor import cuda

    def copy_grad(sent):
        attributes = attributes_of(sent)
        if attributes and attributes["_grad"] is not None:
            copy = cuda.tensor(sent.grad.cpu(), device=sent.device)
            attributes["_grad"] = copy
        return attributes

    return copy_grad


@mutant(
    "device_tensors_say_that_they_are_private",
    "CUDA-32",
    replaces="cuda.tensors.CudaTensor.is_shared",
)
def device_tensors_say_that_they_are_private(is_shared):
    """A device tensor says that it is not shared."""
    return lambda tensor: False


@mutant(
    "sharing_moves_a_device_tensor",
    "CUDA-32",
    replaces="cuda.tensors.CudaTensor.share_memory_",
)
def sharing_moves_a_device_tensor(share_memory_):
    """Asking to share a device tensor moves it into new memory."""
    from sharedtensor import cuda

    def move(tensor):
        tensor.storage = cuda.tensor(tensor.cpu(), device=tensor.device).storage
        tensor.byte_offset = 0
        return tensor

    return move


@mutant(
    "host_memory_goes_with_its_sender",
    "CUDA-33",
    replaces=("protocol.export_storage", "cuda.protocol.shut_down"),
)
def host_memory_goes_with_its_sender(export_storage, shut_down):
    """A process that ends and used a device clears the tensors that it sent."""
    sent = weakref.WeakSet()

    def export_and_note(storage):
        sent.add(storage)
        return export_storage(storage)

    def clear_and_shut_down(state):
        for storage in list(sent):
            storage.bytes[:] = 0
        shut_down(state)

    return export_and_note, clear_and_shut_down


@mutant("receives_a_message_twice", "CUDA-34", replaces="cuda.counts.Count.take")
def receives_a_message_twice(take):
    """A message is taken and its count given back as often as it is loaded."""
    from sharedtensor.cuda import counts

    def take_again(count):
        row = count.table.slots[count.slot]
        row["pid"], row["start"] = counts.own_identity()
        row["state"] = counts.TAKEN

    return take_again


# Bytes that a program pickles itself


@mutant(
    "device_bytes_hold_the_memory",
    "CUDA-36", "CUDA-37",
    replaces="transport.is_in_a_message",
)  # fmt: skip
def device_bytes_hold_the_memory(is_in_a_message):
    """Bytes of a device tensor are counted as a message, which has one receiver."""
    return lambda: True


@mutant("pickles_what_is_pending", "CUDA-36", replaces="cuda.protocol.offer")
def pickles_what_is_pending(offer):
    """The work before the pickling is not completed."""

    def offer_at_once(state, allocation):
        state.driver.synchronize = lambda: None
        try:
            return offer(state, allocation)
        finally:
            del state.driver.synchronize

    return offer_at_once


@mutant("only_makers_pickle_good_bytes", "CUDA-36", replaces="cuda.protocol.offer")
def only_makers_pickle_good_bytes(offer):
    """Bytes of a received tensor are good until the maker has dropped its own."""
    from sharedtensor.cuda import counts

    def offer_and_withdraw(state, allocation):
        message = offer(state, allocation)
        if allocation.held is not None:
            slots = allocation.table.slots
            slots["state"][slots["state"] == counts.OFFERED] = counts.VACANT
        return message

    return offer_and_withdraw


@mutant("readers_of_bytes_stay", "CUDA-37", replaces="cuda.counts.CountTable.accept")
def readers_of_bytes_stay(accept):
    """A process that reads bytes is counted twice, and gives one count back."""

    def accept_twice(table, allocation):
        accept(table, allocation)
        return accept(table, allocation)

    return accept_twice


@mutant(
    "readers_of_bytes_do_not_count",
    "CUDA-38",
    replaces="cuda.counts.CountTable.accept",
)
def readers_of_bytes_do_not_count(accept):
    """The count of who reads bytes names no allocation."""

    def accept_nothing(table, allocation):
        count = accept(table, allocation)
        table.slots[count.slot]["allocation"] = -1
        return count

    return accept_nothing


@mutant("bytes_that_are_read_again_are_copied", "CUDA-38", replaces=REBUILD)
def bytes_that_are_read_again_are_copied(rebuild_tensor):
    """A process that reads the same bytes twice gets private memory the second time."""
    from sharedtensor import cuda

    seen = set()

    @functools.wraps(rebuild_tensor)
    def rebuild(identity, message, offset, view):
        received = rebuild_tensor(identity, message, offset, view)
        again = message in seen
        seen.add(message)
        if not again:
            return received
        return cuda.tensor(received.cpu(), device=received.device)

    return rebuild


@mutant("device_bytes_are_for_the_family", "CUDA-38", replaces=REBUILD)
def device_bytes_are_for_the_family(rebuild_tensor):
    """A process with another authentication key gets a copy of what it reads."""
    from sharedtensor import cuda

    first = multiprocessing.current_process().authkey

    def change(received):
        if multiprocessing.current_process().authkey == first:
            return received
        return cuda.tensor(received.cpu(), device=received.device)

    return _changed(rebuild_tensor, change)


@mutant("late_bytes_lead_to_new_memory", "CUDA-38", replaces="cuda.protocol.receive")
def late_bytes_lead_to_new_memory(receive):
    """Bytes whose memory was freed are read as new memory."""
    from sharedtensor.cuda import DeviceHandleError, protocol

    def receive_or_allocate(state, message):
        try:
            return receive(state, message)
        except DeviceHandleError:
            return protocol.allocate(state, message.nbytes)

    return receive_or_allocate


@mutant("bytes_outlive_their_maker", "CUDA-38", replaces="cuda.protocol.take_count")
def bytes_outlive_their_maker(take_count):
    """Who has the memory already does not notice that its maker has ended."""

    def take_any(table, message):
        if message.slot is None:
            return table.accept(message.allocation)
        return take_count(table, message)

    return take_any


# Virtual memory

UNMAP = "cuda.protocol.unmap_allocation"


@mutant("a_drop_clears_virtual_memory", "CUDA-39", "CUDA-35", replaces=UNMAP)
def a_drop_clears_virtual_memory(unmap_allocation):
    """A process that drops virtual memory clears it, though others hold it."""

    def clear_and_unmap(state, allocation):
        state.driver.copy_to_device(allocation.base, bytes(allocation.nbytes))
        unmap_allocation(state, allocation)

    return clear_and_unmap


@mutant("virtual_memory_stays_mapped", "CUDA-39", replaces=UNMAP)
def virtual_memory_stays_mapped(unmap_allocation):
    """A process that drops virtual memory does not unmap it."""
    return lambda state, allocation: state.unregister(allocation)


@mutant("each_tensor_costs_a_descriptor", "CUDA-40", replaces=REDUCE)
def each_tensor_costs_a_descriptor(reduce_tensor):
    """A message has the descriptors of an allocation once for each tensor in it."""

    def reduce(tensor):
        rebuild, arguments, *rest = reduce_tensor(tensor)
        if tensor.storage is not None and tensor.storage.allocation.pieces:
            again = object.__new__(type(tensor.storage))
            vars(again).update(vars(tensor.storage))
            arguments = (again, *arguments[1:])
        return rebuild, arguments, *rest

    return reduce


@mutant("senders_keep_descriptors", "CUDA-40", replaces="cuda.virtual.export")
def senders_keep_descriptors(export):
    """A sender keeps each descriptor that it exports."""

    def export_and_keep(state, allocation):
        exported = export(state, allocation)
        for owned in exported:
            os.dup(owned.fd)
        return exported

    return export_and_keep


@mutant("receivers_keep_descriptors", "CUDA-40", replaces="cuda.virtual.find_or_map")
def receivers_keep_descriptors(find_or_map):
    """A receiver keeps the descriptors of each message."""

    def map_and_keep(state, message, owned):
        for each in owned:
            os.dup(each.fd)
        return find_or_map(state, message, owned)

    return map_and_keep


@mutant(
    "maps_allocations_in_another_order",
    "CUDA-41",
    replaces="cuda.virtual.find_or_map",
)
def maps_allocations_in_another_order(find_or_map):
    """A receiver maps the last allocation of a range first."""

    def map_backwards(state, message, owned):
        return find_or_map(state, message, owned[::-1])

    return map_backwards


@mutant(
    "copies_what_cannot_be_exported",
    "CUDA-42",
    replaces="cuda.reducers.reduce_storage",
)
def copies_what_cannot_be_exported(reduce_storage):
    """In place of virtual memory that cannot be exported a copy is sent."""
    from sharedtensor.cuda import DeviceHandleError, virtual

    def reduce_it_or_a_copy(storage):
        try:
            return reduce_storage(storage)
        except DeviceHandleError:
            state, nbytes = storage.state, storage.nbytes
            made = state.use(virtual.allocate, state, [nbytes], True)
            content = state.use(state.driver.copy_to_host, storage.data_ptr(), nbytes)
            state.use(state.driver.copy_to_device, made.data_ptr(), content)
            return reduce_storage(made)

    return reduce_it_or_a_copy


@mutant("refused_virtual_memory_stays", "CUDA-42", replaces="cuda.virtual.send")
def refused_virtual_memory_stays(send):
    """What could not be exported is kept."""
    from sharedtensor.cuda import DeviceHandleError

    kept = []

    def send_or_keep(storage):
        try:
            return send(storage)
        except DeviceHandleError:
            kept.append(storage)
            raise

    return send_or_keep


@mutant(
    "virtual_memory_needs_its_sender",
    "CUDA-43",
    replaces=("cuda.virtual.send", "cuda.virtual.receive"),
)
def virtual_memory_needs_its_sender(send, receive):
    """A message is refused when its sender has ended."""
    from sharedtensor.cuda import MakerGoneError

    def send_by_process(storage):
        message = send(storage)
        return message._replace(name=(*message.name, os.getpid()))

    def receive_while_it_lives(state, message):
        *name, sender = message.name
        if not os.path.exists(f"/proc/{sender}"):
            raise MakerGoneError("The sender has ended.")
        return receive(state, message._replace(name=tuple(name)))

    return send_by_process, receive_while_it_lives


@mutant("sends_pending_virtual_memory", "CUDA-6", replaces="cuda.virtual.export")
def sends_pending_virtual_memory(export):
    """The work before a send of virtual memory is not completed."""
    return lambda state, allocation: state.driver.export_mapped(allocation.base)


@mutant("unmaps_without_waiting", "CUDA-25", replaces=UNMAP)
def unmaps_without_waiting(unmap_allocation):
    """A process unmaps memory on which its work is pending."""

    def unmap(state, allocation):
        state.unregister(allocation)
        state.driver.unmap(allocation.base)

    return unmap


@mutant(
    "maps_each_message_anew",
    "CUDA-10",
    replaces="cuda.virtual.find_or_map",
)
def maps_each_message_anew(find_or_map):
    """Virtual memory that a process has is mapped once more with each message."""

    def map_anew(state, message, owned):
        state.known.pop(message.name, None)
        return find_or_map(state, message, owned)

    return map_anew
