"""What the subjects of `rounds.py` and `kills.py` have in common."""

from __future__ import annotations

from typing import Any

GO_ON, THE_LAST = "go on", "that was the last round"
"""What the two sides of `rounds.py` are told at a stop."""


def break_reference(mutant: str) -> None:
    """Apply a mutant, if one is named, in this process."""
    if mutant:
        from sharedtensor_conformance.mutants import registry

        registry.apply(mutant)


def make_channel(context: Any, kind: str) -> Any:
    """Return a channel for one direction: a ``pipe``, ``queue`` or ``simple_queue``."""
    if kind == "pipe":
        return context.Pipe(duplex=False)
    return context.Queue() if kind == "queue" else context.SimpleQueue()


def send(channel: Any, message: Any) -> None:
    """Send on such a channel."""
    (channel[1].send if isinstance(channel, tuple) else channel.put)(message)


def receive(channel: Any) -> Any:
    """Receive from such a channel."""
    return channel[0].recv() if isinstance(channel, tuple) else channel.get()


def is_empty(channel: Any) -> bool:
    """Return whether nothing can be received from such a channel now."""
    if isinstance(channel, tuple):
        return not channel[0].poll()
    return bool(channel.empty())
