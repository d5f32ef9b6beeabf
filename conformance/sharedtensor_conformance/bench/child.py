"""What a child does whose start is timed: nothing but say that it is there.

It is a module of its own, so that a spawned child imports no more than it needs.
"""

from typing import Any


def say_hello(connection: Any, *arguments: Any) -> None:
    """Send the first message."""
    connection.send(len(arguments))
