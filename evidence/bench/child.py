"""The function of a child process whose start is timed: it only sends one message.

It has its own module so that a spawned child imports nothing else.
"""

from typing import Any


def send_argument_count(connection: Any, *arguments: Any) -> None:
    """Send the first message."""
    connection.send(len(arguments))
