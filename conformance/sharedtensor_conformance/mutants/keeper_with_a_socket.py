"""The keeper of the reference with a socket, for mutants of the clauses about one.

    python -I -S keeper_with_a_socket.py KEEPER PATH BIND REACTION TITLE ...

The keeper of the reference has no socket, so what a socket can break is put in with it.
This script runs the script KEEPER with what follows, and listens at PATH meanwhile,
which it binds as a whole, or in its folder if BIND is "inside". REACTION is the name of
the function of this module that reacts to what comes.
"""

import importlib.util
import os
import socket
import sys
from contextlib import suppress
from typing import Any

TOO_LONG = 256
TOO_MUCH = 512 << 10
SHORTEST_NAME = 4


def ignore(connection: socket.socket, message: bytes, brought: int) -> None:
    """Do nothing."""


def end_by_length(connection: socket.socket, message: bytes, brought: int) -> None:
    """End where a message is longer than a manager can use."""
    if len(message) >= TOO_LONG:
        os._exit(1)


def end_by_amount(connection: socket.socket, message: bytes, brought: int) -> None:
    """End where a connection has brought very much."""
    if brought > TOO_MUCH:
        os._exit(1)


def wait_for_the_rest(connection: socket.socket, message: bytes, brought: int) -> None:
    """Wait for the rest of a message that is shorter than a name."""
    if 1 < len(message) < SHORTEST_NAME:
        connection.setblocking(True)
        connection.recv(TOO_LONG)


class Server:
    """Reads what comes to a socket, whenever the keeper looks at its names."""

    def __init__(self, address: str, reaction: Any) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.setblocking(False)
        self.listener.bind(address)
        self.listener.listen(512)
        self.reaction = reaction
        self.brought: dict[socket.socket, int] = {}

    def serve(self) -> None:
        """Accept all connections, and read all of their messages."""
        try:
            while True:
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                self.brought[connection] = 0
        except BlockingIOError:
            pass
        for connection in self.brought:
            try:
                while message := connection.recv(TOO_MUCH * 4):
                    self.brought[connection] += len(message)
                    self.reaction(connection, message, self.brought[connection])
            except OSError:
                pass


def main(
    script: str, path: str, bind: str, reaction: str, arguments: list[str]
) -> None:
    """Run a keeper that has a socket; remove that with its folder at the end."""
    spec = importlib.util.spec_from_file_location("keeper", script)
    assert spec is not None
    assert spec.loader is not None
    keeper: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(keeper)
    if bind == "inside":
        os.chdir(os.path.dirname(path))
    address = os.path.basename(path) if bind == "inside" else path
    with suppress(FileNotFoundError):
        os.unlink(address)  # that of a keeper that was killed
    server = Server(address, globals()[reaction])
    os.chdir("/")
    sweep, keep = keeper.sweep, keeper.keep

    def serve_and_sweep(program: str, locks: int) -> int:
        server.serve()
        left: int = sweep(program, locks)
        return left

    def keep_and_remove(*given: Any) -> None:
        keep(*given)
        os.unlink(path)
        folder = os.path.dirname(path)
        if not os.listdir(folder):
            os.rmdir(folder)

    keeper.INTERVAL = 0.01  # it looks at the socket as often as at the names
    keeper.sweep, keeper.keep = serve_and_sweep, keep_and_remove
    program, grace, presence = arguments
    keeper.main(program, float(grace), int(presence))


if __name__ == "__main__":
    script, path, bind, reaction, _, *arguments = sys.argv[1:]
    main(script, path, bind, reaction, arguments)
    os._exit(0)
