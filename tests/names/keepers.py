"""What the tests of names see of keepers, from outside."""

import os
import signal
from pathlib import Path

from holdings import eventually
from sharedtensor.names import keeper, program
from sharedtensor_conformance.harness.kernel import process_tree


def keepers_of(program_id):
    """Return the processes that are the keepers of a program."""
    pids = (int(each.name) for each in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if is_keeper(process_tree.command(pid), program_id)]


def is_keeper(command, program_id):
    return f"{keeper.TITLE} {program_id} " in command


def kill_keepers(program_id):
    """Kill the keepers of a program, and wait for their end."""
    for pid in keepers_of(program_id):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not program.has_keeper(program_id))


def unlocked(path):
    """Return a description of a file that has no lock."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
