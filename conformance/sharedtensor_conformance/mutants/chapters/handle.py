"""Mutants of the content of handles."""

import fcntl
import multiprocessing
import struct
import termios
import time

from sharedtensor_conformance.mutants.registry import mutant


@mutant("any_version_will_do", "HANDLE-1", replaces="protocol.verify_version")
def any_version_will_do(verify_version):
    """A handle of any version is read as one of the own."""
    return lambda version: None


@mutant("versions_are_not_named", "HANDLE-1", replaces="protocol.verify_version")
def versions_are_not_named(verify_version):
    """A handle of another version is refused as one that is damaged."""
    from sharedtensor.errors import HandleError

    def verify(version):
        try:
            verify_version(version)
        except HandleError:
            raise HandleError("The handle is damaged; send the tensor again.") from None

    return verify


@mutant(
    "sender_waits_until_it_was_fetched",
    "HANDLE-2",
    replaces=(
        "protocol.export_storage",
        "protocol.write_message",
        "protocol.write_at_once",
    ),
)
def sender_waits_until_it_was_fetched(export_storage, write_message, write_at_once):
    """Who sends a large storage stays until its message was read."""
    large = []

    def export(storage):
        if storage.nbytes > 1 << 16:
            large.append(storage.nbytes)
        return export_storage(storage)

    def wait(channel):
        unread = bytes(4)
        while (
            large
            and struct.unpack(
                "i", unread := fcntl.ioctl(channel.fileno(), termios.TIOCOUTQ, unread)
            )[0]
        ):
            time.sleep(0.001)
        large.clear()

    def write(message, channel):
        write_message(message, channel)
        wait(channel)

    def write_now(message, channel):
        written = write_at_once(message, channel)
        if written:
            wait(channel)
        return written

    return export, write, write_now


@mutant("large_views_are_sent_by_value", "HANDLE-2", replaces="protocol.export_tensor")
def large_views_are_sent_by_value(export_tensor):
    """A view with gaps that has a megabyte or more travels with its values."""
    from sharedtensor_conformance.adapters.copy import export_copy

    def export(tensor):
        large = tensor.nbytes >= 1 << 20 and not tensor.is_contiguous()
        return export_copy(tensor) if large else export_tensor(tensor)

    return export


@mutant("bytes_hold_the_memory", "HANDLE-3", replaces="transport.is_in_a_channel")
def bytes_hold_the_memory(is_in_a_channel):
    """Bytes that a program pickles hold a descriptor until they are read."""
    return lambda: True


@mutant("bytes_are_read_once", "HANDLE-3", replaces="protocol.rebuild_storage")
def bytes_are_read_once(rebuild_storage):
    """A process that reads the same bytes twice gets private memory the second time."""
    seen = set()

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        again = segment.token in seen
        seen.add(segment.token)
        return storage.clone() if again else storage

    return rebuild


@mutant("bytes_are_for_the_family", "HANDLE-3", replaces="protocol.rebuild_storage")
def bytes_are_for_the_family(rebuild_storage):
    """A process with another authentication key gets a copy of what it reads."""
    first = multiprocessing.current_process().authkey

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        same = multiprocessing.current_process().authkey == first
        return storage if same else storage.clone()

    return rebuild
