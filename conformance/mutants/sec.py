"""Mutants of who else may touch what is shared."""

import os

from sharedtensor_conformance.mutants import mutant


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
