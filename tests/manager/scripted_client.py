"""A process that uses the manager as it is told to, line by line.

Each line of its input is a piece of Python in JSON. It is run with `client`, `launch`,
`daemon` and the functions below in scope, and answered with the JSON of the variable
`result`, or with the type and the text of the exception.
"""

import json
import os
import sys

from sharedtensor.manager import client, daemon, launch, messages

NOBODY = 65534


class ForkedManager:
    """A manager that is forked and not started by its command line."""

    def __init__(self, listener, first, directory):
        numbers = (listener.fileno(), first.fileno())
        low, high = sorted(numbers)
        self.pid = os.fork()
        if self.pid:
            return
        for start, end in ((0, low), (low + 1, high), (high + 1, 1000)):
            os.closerange(start, end)
        try:
            daemon.main([daemon.TITLE, *map(str, numbers), directory, "0.3"])
        finally:
            os._exit(0)

    def wait(self, seconds):
        return os.waitpid(self.pid, 0)[1]


def become_nobody() -> None:
    """Go on as another user, who may be unable to run this interpreter anew."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    launch.spawn = ForkedManager


def announced(names: list[str]) -> int:
    """Announce a message; return the descriptor that goes with it, the caller's."""
    owned = client.announce(names)
    made = os.dup(owned.fd)
    owned.close()
    return made


def go_on_as_a_child() -> None:
    """Fork, and leave all that follows to the child."""
    if os.fork():
        os._exit(0)


def main() -> None:
    scope = {"client": client, "daemon": daemon, "launch": launch}
    scope["announced"] = announced
    scope["go_on_as_a_child"] = go_on_as_a_child
    scope["messages"] = messages
    scope["become_nobody"] = become_nobody
    scope["ForkedManager"] = ForkedManager
    for line in sys.stdin:
        scope["result"] = None
        try:
            exec(json.loads(line), scope)
            answer = {"result": scope["result"]}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
