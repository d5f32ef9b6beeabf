"""The folder of a stage, with the socket on which its controller accepts processes.

The supervisor makes the folder, and removes it. So nothing is left of it, even if the
controller is killed at any time. The controller chooses the name, and makes the socket,
which listens before the first process is started.

No socket is sent from one process to another for that: descriptors that are on their
way count for all programs of a user together (unix(7)), and an implementation may have
as many on their way as the system permits.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from contextlib import suppress

from sharedtensor_conformance.harness.remote.wire import Wire, WireClosed, WireTimeout

_PREFIX = "sts-"
_MAX_SOCKET_PATH = 107  # bytes of a path that fit into the address of a socket, unix(7)
_RESERVED_BYTES = 55  # for what is put below the temporary folder, also by others
_BACKLOG = 16


def new_path() -> str:
    """Return a path for a new folder that is short enough for sockets in it."""
    return os.path.join(folder_for_sockets(), f"{_PREFIX}{os.urandom(5).hex()}")


def folder_for_sockets() -> str:
    """Return the folder for temporary files, or ``/tmp`` if its path is too long."""
    usual = tempfile.gettempdir()
    is_short = len(os.fsencode(usual)) <= _MAX_SOCKET_PATH - _RESERVED_BYTES
    return usual if is_short else "/tmp"


def is_stage_folder(root: str) -> bool:
    """Return whether this is the path of a stage's folder, by its name."""
    return os.path.basename(root).startswith(_PREFIX)


def temporary(root: str) -> str:
    """Return the folder below `root` for the processes' temporary files."""
    return os.path.join(root, "t")


def control(root: str) -> str:
    """Return the address of the socket below `root`."""
    return os.path.join(root, "c")


def log(root: str) -> str:
    """Return the file below `root` with what the processes print."""
    return os.path.join(root, "log")


def open_log(root: str) -> int:
    """Return a descriptor of the log, to write at its end."""
    return os.open(log(root), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def listen_in(root: str) -> socket.socket:
    """Return a socket that listens in the folder.

    Raises:
        OSError: there is no folder, or something listens in it.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(control(root))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def make(root: str, controller: Wire) -> None:
    """Make the folder, and wait until the controller listens in it.

    Raises:
        OSError: it exists already, or cannot be made.
    """
    os.mkdir(root, 0o700)
    os.mkdir(temporary(root))
    with suppress(WireClosed):  # it has gone, as the first request will show
        controller.send({"made": root})
        controller.receive()


def listen_when_made(root: str, supervisor: Wire, deadline: float) -> socket.socket:
    """Return the controller's socket in the folder, once the supervisor has made it.

    Raises:
        OSError: a process has removed it.
        WireClosed, WireTimeout: it was not made.
    """
    supervisor.receive(deadline)
    listener = listen_in(root)
    try:
        supervisor.send({"listens": True})
    except (WireClosed, WireTimeout):
        listener.close()
        raise
    return listener


def remove(root: str) -> None:
    """Remove the folder, even if parts of it are read-only."""
    if not is_stage_folder(root):
        raise ValueError(f"{root!r} is no folder of a stage: it is not removed")
    with suppress(OSError):
        os.chmod(root, 0o700)
    for parent, folders, _ in os.walk(root):
        for path in (os.path.join(parent, name) for name in folders):
            if not os.path.islink(path):
                with suppress(OSError):
                    os.chmod(path, 0o700)  # before the walk comes to it
    shutil.rmtree(root, ignore_errors=True)
