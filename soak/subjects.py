"""Functions that the processes of `rounds.py` and `kills.py` share."""

from __future__ import annotations

from typing import Any

GO_ON, THE_LAST = "go on", "that was the last round"
"""The messages to the owner of `rounds.py` at a stop."""


def break_reference(mutant: str) -> None:
    """Apply a mutant in this process, if one is given."""
    if mutant:
        from sharedtensor_conformance.mutants import registry

        registry.apply(mutant)


def make_channel(context: Any, kind: str) -> Any:
    """Return a channel for one direction: a ``pipe``, ``queue`` or ``simple_queue``."""
    if kind == "pipe":
        return context.Pipe(duplex=False)
    return context.Queue() if kind == "queue" else context.SimpleQueue()


def send(channel: Any, message: Any) -> None:
    """Send a message on such a channel."""
    (channel[1].send if isinstance(channel, tuple) else channel.put)(message)


def receive(channel: Any) -> Any:
    """Receive a message from such a channel."""
    return channel[0].recv() if isinstance(channel, tuple) else channel.get()


def is_empty(channel: Any) -> bool:
    """Return whether such a channel currently has no message."""
    if isinstance(channel, tuple):
        return not channel[0].poll()
    return bool(channel.empty())
