"""What the supervisor of a stage does for a test: acts as another user, and replaces.

The supervisor has the needed privileges. It imports this module, which for that reason
uses only the standard library.
"""

from __future__ import annotations

import errno
import os
import socket

from sharedtensor_conformance.harness.kernel import capabilities
from sharedtensor_conformance.harness.kernel.process_tree import SHM
from sharedtensor_conformance.harness.kernel.user_namespace import NOBODY
from sharedtensor_conformance.harness.supervisor.supervisor import Supervisor

_CLOSE_TIMEOUT = 1.0  # seconds; a server that refuses closes the connection sooner


def has_other_user(supervisor: Supervisor) -> bool:
    """Return whether a child of the supervisor can become another user's."""
    if os.getuid() == NOBODY:
        return False
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            become_nobody()
            status = 0
        finally:
            os._exit(status)  # whatever happens
    return os.waitpid(pid, 0)[1] == 0


def become_nobody() -> None:
    """Become another user, without the capabilities that root alone loses by that."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    capabilities.drop_all()


def as_nobody(supervisor: Supervisor, action: str, path: str) -> str:
    """Let a process of another user do something to `path`.

    Args:
        supervisor: whose folder for temporary files is the working directory.
        action: ``read``, ``write``, or ``connect`` where the path is a socket's.

    Returns what came of it: ``done``, or the name of the error.

    Raises:
        ValueError: no process of another user could be had.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(supervisor.temporary)
            become_nobody()
            os.write(writer, _outcome(action, path).encode())
        finally:
            os._exit(0)  # whatever happens: there is to be one supervisor
    os.close(writer)
    with open(reader) as file:
        outcome = file.read()
    os.waitpid(pid, 0)
    if not outcome:
        raise ValueError("no process of another user could be had")
    return outcome


def _outcome(action: str, path: str) -> str:
    try:
        os.listdir(".")  # else it would be the suite's own folder that keeps others out
        if action == "connect":
            return _connection(path)
        os.close(os.open(path, {"read": os.O_RDONLY, "write": os.O_RDWR}[action]))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def _connection(path: str) -> str:
    """Connect to a socket of either kind; one that is closed at once is no success."""
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as sock:
            sock.settimeout(_CLOSE_TIMEOUT)
            try:
                sock.connect(path.replace("@", "\0", 1) if path[0] == "@" else path)
                return "turned away" if not sock.recv(1) else "done"
            except TimeoutError:
                return "done"
            except OSError as error:
                if error.errno == errno.EPROTOTYPE:
                    continue
                raise
    return "EPROTOTYPE"


class Replacement:
    """A file of ones that was put in the place of a segment.

    It stays open, to be read also when its name has been removed.
    """

    def __init__(self, path: str, size: int) -> None:
        self._content = b"\x01" * size
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(self._fd, self._content)

    def is_unchanged(self) -> bool:
        """Return whether the file has the content that it was made with."""
        return os.pread(self._fd, len(self._content) + 1, 0) == self._content


_replacements: dict[str, Replacement] = {}


def replace(supervisor: Supervisor, name: str, how: str) -> None:
    """Put something else in the place of a segment: a ``link``, or ``nobody``'s file.

    It is as large as the segment.
    """
    supervisor.require_private_shm()
    path = os.path.join(SHM, name)
    size = os.stat(path).st_size
    os.unlink(path)
    target = path
    if how == "link":
        target = os.path.join(supervisor.temporary, f"in-place-of-{name}")
    _replacements[name] = Replacement(target, size)
    os.chmod(target, 0o666)
    if how == "link":
        os.symlink(target, path)
    else:
        os.chown(target, NOBODY, NOBODY)


def is_unchanged(supervisor: Supervisor, name: str) -> bool:
    """Return whether what was put in the place of a segment is as it was."""
    return _replacements[name].is_unchanged()
