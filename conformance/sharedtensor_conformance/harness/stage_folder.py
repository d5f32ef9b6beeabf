"""The folder of a stage, with the socket on which its controller accepts processes.

The supervisor makes the folder, and removes it. So nothing is left of it, even if the
controller is killed at any time. The controller chooses the name, and gets the socket,
which already listens when the first process connects.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from contextlib import suppress

from sharedtensor_conformance.harness.wire import Wire, WireClosed

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
    """Make only the folder; return a socket that listens in it.

    Raises:
        OSError: it exists already, or cannot be made.
    """
    os.mkdir(root, 0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(control(root))
    listener.listen(_BACKLOG)
    return listener


def make(root: str, controller: Wire) -> None:
    """Make the folder, and send the controller the socket that listens in it.

    Raises:
        OSError: it exists already, or cannot be made.
    """
    with listen_in(root) as listener:
        os.mkdir(temporary(root))
        with suppress(WireClosed):  # it has gone, as the first request will show
            controller.send_socket(listener)


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
