"""Mutants of the access of other users and processes to shared memory."""

import itertools
import os
import re

from sharedtensor_conformance.mutants.chapters.mgr import (
    socket_in_tmpdir,
    with_a_socket,
)
from sharedtensor_conformance.mutants.held import private_segment
from sharedtensor_conformance.mutants.registry import mutant

NAMES = 7


@mutant("group_may_read", "SEC-1", replaces="segments.permissions")
def group_may_read(permissions):
    """The user's group may read the file of a segment."""
    return lambda: 0o640


@mutant("large_segment_is_readable", "SEC-1", replaces="strategies.FileSystem.allocate")
def large_segment_is_readable(allocate):
    """Everybody may read the file of a segment of more than 1 MiB."""

    def allocate_and_open(self, segment, source, then):
        allocate(self, segment, source, then)
        if source.nbytes > 1 << 20:
            os.chmod(f"/dev/shm/{segment.token}", 0o644)

    return allocate_and_open


@mutant(
    "common_segment_is_readable", "SEC-4", replaces="strategies.FileSystem.allocate"
)
def common_segment_is_readable(allocate):
    """Everybody may read the file of a segment that several storages lie in."""
    from sharedtensor import memory

    def allocate_and_open(self, segment, source, then):
        allocate(self, segment, source, then)
        if isinstance(source, memory.Group):
            os.chmod(f"/dev/shm/{segment.token}", 0o644)

    return allocate_and_open


@mutant("directory_is_open", "SEC-2", replaces="names.program.options")
def directory_is_open(options):
    """Others may enter the directory of the manager's socket."""

    def path_of(program):
        path = socket_in_tmpdir(program)
        os.chmod(os.path.dirname(path), 0o711)
        return path

    return with_a_socket(options, "ignore", path_of)


@mutant("umask_decides", "SEC-4", replaces="segments.permissions")
def umask_decides(permissions):
    """Who may open a segment is left to the umask."""
    return lambda: 0o666


@mutant("directory_is_made_for_all", "SEC-5", replaces="names.program.options")
def directory_is_made_for_all(options):
    """The manager's directory and socket are as open as the umask has it."""

    def path_of(program):
        path = socket_in_tmpdir(program)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(os.path.dirname(path), 0o777 & ~mask)
        return path

    return with_a_socket(options, "ignore", path_of)


@mutant("names_are_counted", "SEC-3", replaces="names.program.new_token")
def names_are_counted(new_token):
    """The names of a process's segments are numbered."""
    numbers = itertools.count()

    def counted():
        number = next(numbers)
        return f"{number:08x}{new_token()[8:20]}{number:012x}"

    return counted


@mutant("names_have_16_random_bits", "SEC-3", replaces="names.program.new_token")
def names_have_16_random_bits(new_token):
    """A name is 16 random bits and a number."""
    numbers = itertools.count()

    def counted():
        number = next(numbers)
        return f"{os.urandom(2).hex()}{number:04x}{new_token()[8:20]}{0:012x}"

    return counted


@mutant("names_are_used_again", "FS-5", replaces="names.program.new_token")
def names_are_used_again(new_token):
    """There are but a few names, which are used in turn."""
    few = []

    def next_of_few():
        if not few:
            few.append(itertools.cycle([new_token() for _ in range(NAMES)]))
        return next(few[0])

    return next_of_few


@mutant("takes_any_file_of_that_name", "SEC-6", replaces="segments.verify_named")
def takes_any_file_of_that_name(verify_named):
    """Whatever has the name of a segment is mapped, whosever it is."""
    from sharedtensor import segments

    return lambda fd, name, nbytes: segments.verify_size(os.fstat(fd), name, nbytes)


@mutant("believes_the_size", "SEC-7", replaces="segments.verify_size")
def believes_the_size(verify_size):
    """The size that a handle claims is not compared with its segment's."""
    return lambda status, token, nbytes: None


@mutant("believes_one_byte_more", "SEC-7", replaces="segments.verify_size")
def believes_one_byte_more(verify_size):
    """A handle may claim one byte more than its segment has."""
    return lambda status, token, nbytes: verify_size(
        status, token, nbytes - (nbytes == status.st_size + 1)
    )


@mutant("believes_the_size_of_what_it_has", "SEC-7", replaces="protocol.verify_known")
def believes_the_size_of_what_it_has(verify_known):
    """A handle for a storage that the process has already is not looked at."""
    return lambda storage, nbytes: storage


@mutant("believes_what_has_no_dimensions", "SEC-7", replaces="protocol.rebuild_tensor")
def believes_what_has_no_dimensions(rebuild_tensor):
    """Where a tensor of no dimensions begins is not compared with its storage."""

    def rebuild(tensor_class, storage, window, flags):
        dtype, _, shape, strides = window
        if not shape:
            window = dtype, 0, shape, strides
        return rebuild_tensor(tensor_class, storage, window, flags)

    return rebuild


@mutant(
    "believes_the_path",
    "SEC-8",
    replaces=("segments.NAME", "segments.verify_unnamed"),
)
def believes_the_path(pattern, verify_unnamed):
    """A name may lead anywhere, and a descriptor may be any file's."""
    return re.compile(".*"), lambda fd, token, nbytes, inode: None


@mutant("guesses_what_is_missing", "SEC-9", replaces="protocol.rebuild_segment")
def guesses_what_is_missing(rebuild_segment):
    """A handle without its last fields gives a small storage of zeros."""

    def rebuild(handle):
        if len(handle) < 4:
            return private_segment(4096)
        return rebuild_segment(handle)

    return rebuild


@mutant("takes_the_descriptor_at_hand", "SEC-10", replaces="segments.verify_unnamed")
def takes_the_descriptor_at_hand(verify_unnamed):
    """A message's descriptor is taken for that of the handle, whatever it is."""
    return lambda fd, token, nbytes, inode: None


@mutant("refused_handle_keeps_its_hold", "FAIL-8", replaces="segments.verify_size")
def refused_handle_keeps_its_hold(verify_size):
    """A handle that is refused for its size leaves what it opened open."""

    def verify(status, token, nbytes):
        try:
            verify_size(status, token, nbytes)
        except Exception:
            os.open("/dev/shm", os.O_RDONLY)
            raise

    return verify


@mutant("believes_what_lies_beside", "SEC-7", replaces="segments.verify_part")
def believes_what_lies_beside(verify_part):
    """Where in a common segment a storage lies is believed."""
    return lambda token, nbytes, offset, size: None


@mutant("writes_before_it_refuses", "SEC-6", replaces="segments.verify_named")
def writes_before_it_refuses(verify_named):
    """A byte is written to a file before it is refused as that of another user."""

    def write_and_verify(fd, name, nbytes):
        if os.fstat(fd).st_uid != os.geteuid():
            os.pwrite(fd, b"\x02", 0)
        verify_named(fd, name, nbytes)

    return write_and_verify


@mutant("writes_through_a_link", "SEC-6", replaces="segments.open_named")
def writes_through_a_link(open_named):
    """A byte is written to the target of a symbolic link before the link is refused."""

    def write_and_open(name):
        path = f"/dev/shm/{name}"
        if os.path.islink(path):
            with open(path, "r+b") as file:
                file.write(b"\x02")
        return open_named(name)

    return write_and_open
