"""Mutants of who else may touch what is shared."""

import itertools
import os
import re

from sharedtensor_conformance.mutants.registry import mutant

NAMES = 7


@mutant("group_may_read", "SEC-1")
def group_may_read(steps):
    """The user's group may read the file of a segment."""
    steps.permissions = lambda: 0o640


@mutant("directory_is_open", "SEC-2")
def directory_is_open(steps):
    """Others may enter the directory of the manager's socket."""
    from sharedtensor.manager import launch

    original = launch.start

    def start(directory):
        connection = original(directory)
        os.chmod(directory, 0o711)
        return connection

    launch.start = start


@mutant("umask_decides", "SEC-4")
def umask_decides(steps):
    """Who may open a segment is left to the umask."""
    steps.permissions = lambda: 0o666


@mutant("directory_is_made_for_all", "SEC-5")
def directory_is_made_for_all(steps):
    """The manager's directory and socket are as open as the umask has it."""
    from sharedtensor.manager import launch

    original = launch.start

    def start(directory):
        connection = original(directory)
        for path, mode in ((directory, 0o777), (f"{directory}/socket", 0o666)):
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(path, mode & ~mask)
        return connection

    launch.start = start


@mutant("names_are_counted", "SEC-3")
def names_are_counted(steps):
    """The names of a process's segments are numbered."""
    from sharedtensor import strategies

    numbers = itertools.count()
    strategies.new_token = lambda: f"{next(numbers):032x}"


@mutant("names_are_used_again", "SEC-3")
def names_are_used_again(steps):
    """There are but a few names, which are used in turn."""
    from sharedtensor import strategies

    few = itertools.cycle([os.urandom(16).hex() for _ in range(NAMES)])
    strategies.new_token = lambda: next(few)


@mutant("takes_any_file_of_that_name", "SEC-6")
def takes_any_file_of_that_name(steps):
    """Whatever has the name of a segment is mapped, whosever it is."""
    from sharedtensor import strategies

    def verify_named(fd, name, nbytes):
        strategies.verify_size(os.fstat(fd), name, nbytes)

    strategies.verify_named = verify_named


@mutant("believes_the_size", "SEC-7")
def believes_the_size(steps):
    """The size that a handle claims is not compared with its segment's."""
    from sharedtensor import strategies

    strategies.verify_size = lambda status, token, nbytes: None


@mutant("believes_the_size_of_what_it_has", "SEC-7")
def believes_the_size_of_what_it_has(steps):
    """A handle for a storage that the process has already is not looked at."""
    steps.verify_known = lambda storage, nbytes: storage


@mutant("believes_the_path", "SEC-8")
def believes_the_path(steps):
    """A name may lead anywhere, and a descriptor may be any file's."""
    from sharedtensor import strategies

    strategies.NAME = re.compile(".*")
    strategies.names = _Credulous(strategies.names)
    steps.acknowledge_name = _unless_a_path(steps.acknowledge_name)
    strategies.verify_unnamed = lambda fd, token, nbytes, inode: None


class _Credulous:
    """The module of the manager's clients, which takes a path for a name of its own."""

    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        found = getattr(self.module, name)
        return _unless_a_path(found) if name in ("hold", "claim", "release") else found


def _unless_a_path(original):
    return lambda name, *rest, **options: (
        None if "/" in name else original(name, *rest, **options)
    )


@mutant("guesses_what_is_missing", "SEC-9")
def guesses_what_is_missing(steps):
    """A handle without its last fields gives a small storage of zeros."""
    original = steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        if len(handle) < 4:
            return storage_class(4096)
        return original(storage_class, handle)

    steps.rebuild_storage = rebuild_storage


@mutant("takes_the_descriptor_at_hand", "SEC-10")
def takes_the_descriptor_at_hand(steps):
    """A message's descriptor is taken for that of the handle, whatever it is."""
    from sharedtensor import strategies

    strategies.verify_unnamed = lambda fd, token, nbytes, inode: None


@mutant("refused_handle_keeps_its_hold", "FAIL-8")
def refused_handle_keeps_its_hold(steps):
    """A handle that is refused for its size leaves what it opened open."""
    from sharedtensor import strategies

    original = strategies.verify_size

    def verify_size(status, token, nbytes):
        try:
            original(status, token, nbytes)
        except Exception:
            os.open("/dev/shm", os.O_RDONLY)
            raise

    strategies.verify_size = verify_size
