"""The channels between two actors, made by the implementation's own context."""

from __future__ import annotations

from typing import Any


class Link:
    """All channels between the actors `one` and `other`, in both directions.

    It is made in the owner and travels to the peers among their process arguments, as
    `multiprocessing` wants it.
    """

    def __init__(
        self, context: Any, one: str, other: str, channels: tuple[str, ...]
    ) -> None:
        self.queues: dict[tuple[str, str], Any] = {}
        self.pipe: dict[str, Any] = {}
        for receiver in (one, other):
            if "queue" in channels:
                self.queues[receiver, "queue"] = context.Queue()
            if "simple_queue" in channels:
                self.queues[receiver, "simple_queue"] = context.SimpleQueue()
        if "pipe" in channels:
            self.pipe = dict(zip((one, other), context.Pipe(), strict=True))

    def put(self, sender: str, channel: str, message: object) -> None:
        """Send `message` from `sender` to the other actor."""
        if channel == "pipe":
            self.pipe[sender].send(message)
            return
        (queue,) = (
            queue
            for (receiver, kind), queue in self.queues.items()
            if kind == channel and receiver != sender
        )
        queue.put(message)

    def get(self, receiver: str, channel: str) -> Any:
        """Return the next message for `receiver`."""
        if channel == "pipe":
            return self.pipe[receiver].recv()
        return self.queues[receiver, channel].get()

    def has_message(self, receiver: str, channel: str) -> bool:
        """Tell whether a message for `receiver` can be received."""
        if channel == "pipe":
            return bool(self.pipe[receiver].poll(0))
        return not self.queues[receiver, channel].empty()

    def enter(self, name: str) -> None:
        """Close the end of the pipe that belongs to the other actor."""
        for owner in [owner for owner in self.pipe if owner != name]:
            self.pipe.pop(owner).close()

    def close(self) -> None:
        """Close all that this process has of the link."""
        for connection in self.pipe.values():
            connection.close()
        for queue in self.queues.values():
            if hasattr(queue, "close"):
                queue.close()
