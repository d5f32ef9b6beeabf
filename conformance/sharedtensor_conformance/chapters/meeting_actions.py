"""Two programs without a common parent, which meet on a socket, as jobs of MPI do."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import connection, current_process
from typing import Any

from sharedtensor_conformance.chapters.tensor_actions import pickled_to_share, unpickled
from sharedtensor_conformance.harness.remote.actor import Actor, FromImplementation
from sharedtensor_conformance.harness.remote.marks import starts_processes
from sharedtensor_conformance.harness.remote.setting import Setting

PROGRAM = """
import sys
from sharedtensor_conformance.chapters.meeting_actions import listen
listen(bytes.fromhex(sys.argv[1]), sys.argv[2] == "common")
"""
"""A program that another one connects to: see `listen`."""

KEY = b"the authentication key of the connection"


def set_authentication_key(actor: Actor, key: bytes = KEY) -> None:
    """Give this process another authentication key than its parent's."""
    current_process().authkey = key


@starts_processes
def meet(actor: Actor, tensor: Any, common_key: bool) -> list[Any]:
    """Start a program, connect to it, and send it a tensor; receive one from it.

    Both are sent on the connection first, and as bytes of `ForkingPickler` then. The
    receiver writes 71 to the first element of what arrives, and each sender says which
    values its tensor has then.

    Returns:
        For each turn and each tensor, the owner's first, the values that its receiver
        has read, None if it was refused; and the values that its sender reads then.
    """
    if common_key:
        set_authentication_key(actor)
    command = [sys.executable, "-c", PROGRAM, KEY.hex()]
    environment = os.environ | actor.setting.environment()
    program = subprocess.Popen(
        [*command, "common" if common_key else "own"],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        with connection.Client(address, authkey=KEY) as socket:
            return [_exchange(actor, socket, tensor, turn) for turn in range(2)]


def _exchange(actor: Actor, socket: Any, tensor: Any, turn: int) -> list[Any]:
    _send(actor, socket, tensor, in_bytes=turn == 1)
    ours = [actor.by_implementation(socket.recv), actor.call("values", tensor)]
    theirs = _read_and_write(actor, _receive(actor, socket, in_bytes=turn == 1))
    socket.send("it was written")
    return [ours, [theirs, actor.by_implementation(socket.recv)]]


def _read_and_write(actor: Actor, tensor: Any) -> Any:
    """Return the values that have arrived, if any have, and write to the first one."""
    if tensor is None:
        return None
    values = actor.call("values", tensor)
    actor.call("write", tensor, (0,), 71)
    return values


def _send(actor: Actor, socket: Any, tensor: Any, in_bytes: bool) -> None:
    """Send a tensor, or None where that is refused."""
    message = actor.encoded(tensor)
    try:
        if in_bytes:
            message = pickled_to_share(actor, message)
        actor.by_implementation(lambda: socket.send(message))
    except FromImplementation:
        socket.send(None)


def _receive(actor: Actor, socket: Any, in_bytes: bool) -> Any:
    """Return the next tensor, or None where one is refused."""
    try:
        message = actor.by_implementation(socket.recv)
        if in_bytes and message is not None:
            message = unpickled(actor, message)
        return actor.decoded(message)
    except FromImplementation:
        return None


def listen(key: bytes, common_key: bool) -> None:
    """Run the other program, which answers `meet`."""
    actor = Actor("stranger", Setting.from_environment())
    actor.prepare(enter=True)
    if common_key:
        set_authentication_key(actor, key)
    with connection.Listener(family="AF_UNIX", authkey=key) as listener:
        print(listener.address, flush=True)
        with listener.accept() as socket:
            for turn in range(2):
                _answer(actor, socket, in_bytes=turn == 1)


def _answer(actor: Actor, socket: Any, in_bytes: bool) -> None:
    socket.send(_read_and_write(actor, _receive(actor, socket, in_bytes)))
    made = actor.call("make", [72, 73], (2,), "float32")
    _send(actor, socket, made, in_bytes)
    socket.recv()
    socket.send(actor.call("values", made))
