"""The protocol between controller, supervisor and actors: length-prefixed JSON.

Plain values are sent as values. All other objects stay in their process and are named
by a key (a *reference*). So the pytest process never unpickles objects of an
implementation, and a faulty process can at worst send invalid JSON.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid, see SO_PEERCRED in unix(7)
_MAX_MESSAGE_BYTES = 256 << 20  # bytes of a message: more is no message
PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
_JSON_TYPES = frozenset({bool, int, float, str, type(None)})  # what JSON has itself


def after(seconds: float) -> float:
    """Return the deadline in `seconds` seconds, for `receive`."""
    return time.monotonic() + seconds


class WireClosed(Exception):
    """The other end is closed, or sent invalid data."""


class WireTimeout(Exception):
    """No complete message came within the deadline."""


class Wire:
    """A socket for messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.invalid_reason = ""  # why what came was no message; nothing comes after it

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            WireClosed: the other end has gone.
            WireTimeout: it did not read, see `limit_sending`.
        """
        data = json.dumps(message).encode()
        try:
            self.socket.sendall(_LENGTH.pack(len(data)) + data)
        except BlockingIOError:
            raise WireTimeout from None
        except OSError as error:
            raise WireClosed(f"the other end is gone: {error}") from error

    def process(self) -> int:
        """Return the pid of the process that connected, as the kernel saw it."""
        credentials = self.socket.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        pid, _, _ = _CREDENTIALS.unpack(credentials)
        return int(pid)

    def limit_sending(self, seconds: float) -> None:
        """Make `send` fail if the other end does not read for `seconds` seconds."""
        interval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)

    def receive(self, deadline: float | None = None, *, process_fd: int = -1) -> Any:
        """Return the next message; `deadline` is a time of `time.monotonic`.

        `process_fd` is a descriptor that becomes readable when the other process has
        ended.

        Raises:
            WireClosed: the other end is closed, or sent invalid data.
            WireTimeout: the deadline passed.
        """
        (length,) = _LENGTH.unpack(
            self._receive_exactly(_LENGTH.size, deadline, process_fd)
        )
        if length > _MAX_MESSAGE_BYTES:
            raise self._invalid_message(f"it has {length} bytes")
        try:
            message = json.loads(self._receive_exactly(length, deadline, process_fd))
        except (ValueError, RecursionError) as error:
            raise self._invalid_message(str(error)) from error
        if not isinstance(message, dict):
            raise self._invalid_message(f"{message!r:.80}")
        return message

    def _invalid_message(self, why: str) -> WireClosed:
        self.invalid_reason = f"this is no message: {why}"
        return WireClosed(self.invalid_reason)

    def _receive_exactly(
        self, count: int, deadline: float | None, process_fd: int
    ) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            self._wait(deadline, process_fd)
            try:
                part = self.socket.recv(count - len(parts))
            except OSError as error:
                raise WireClosed(f"the other end is gone: {error}") from error
            if not part:
                raise WireClosed("the other end is gone")
            parts += part
        return bytes(parts)

    def _wait(self, deadline: float | None, process_fd: int) -> None:
        if deadline is None:
            return
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        if process_fd >= 0:
            poller.register(process_fd, select.POLLIN)
        remaining = max(0.0, deadline - time.monotonic())
        ready = {fd for fd, _ in poller.poll(remaining * 1000)}
        if not ready:
            raise WireTimeout
        if self.socket.fileno() not in ready:
            raise WireClosed("the process has ended")

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def place_of(function: Callable[..., Any]) -> str:
    """Return the name by which another process imports a function; see `function_at`.

    Raises:
        ValueError: the function is local, so nothing can import it.
    """
    if "<" in function.__qualname__:
        raise ValueError(f"{function.__qualname__} is local")
    return f"{function.__module__}:{function.__qualname__}"


def function_at(place: str) -> Callable[..., Any]:
    """Return the function with this name, of a module or of a class."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = attrgetter(name)(import_module(module))
    return found


def encode(value: Any, refer: Callable[[Any], dict[str, Any]]) -> Any:
    """Return `value` as JSON-ready data; `refer` names what is not plain."""
    match value:
        case bool() | int() | float() | str() | None:
            return value
        case complex():
            return {"complex": [value.real, value.imag]}
        case bytes():
            return {"bytes": value.hex()}
        case list():
            if _JSON_TYPES.issuperset(map(type, value)):  # long ones are: of elements
                return value
            return [encode(item, refer) for item in value]
        case tuple() if type(value) is tuple:
            return {"tuple": [encode(item, refer) for item in value]}
        case set() | frozenset():
            return {"set": [encode(item, refer) for item in value]}
        case dict():
            pairs = [[encode(k, refer), encode(v, refer)] for k, v in value.items()]
            return {"dict": pairs}
        case _:
            return refer(value)


def decode(data: Any, resolve: Callable[[dict[str, Any]], Any]) -> Any:
    """Return the value that `encode` described; `resolve` finds references."""
    match data:
        case list():
            if _JSON_TYPES.issuperset(map(type, data)):
                return data
            return [decode(item, resolve) for item in data]
        case {"complex": [real, imag]}:
            return complex(real, imag)
        case {"bytes": digits}:
            return bytes.fromhex(digits)
        case {"tuple": items}:
            return tuple(decode(item, resolve) for item in items)
        case {"set": items}:
            return {decode(item, resolve) for item in items}
        case {"dict": pairs}:
            return {decode(k, resolve): decode(v, resolve) for k, v in pairs}
        case dict():
            return resolve(data)
        case _:
            return data
