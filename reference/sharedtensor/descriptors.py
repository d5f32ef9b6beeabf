"""Descriptors that are on their way out of this process.

They are closed with the object that owns them, and at once in a forked child: what a
process sends does not stay in its children.
"""

import os
import weakref


class OwnedDescriptor:
    """A descriptor that is closed with this object, or in a forked child at once."""

    def __init__(self, fd: int):
        self.fd = fd
        _owned.add(self)

    def close(self) -> None:
        """Close it, once."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        try:  # noqa: SIM105  (at the end of the interpreter modules may be gone)
            self.close()
        except (AttributeError, TypeError):
            pass


_owned: "weakref.WeakSet[OwnedDescriptor]" = weakref.WeakSet()


def _close_what_others_send() -> None:
    for owned in list(_owned):
        owned.close()


os.register_at_fork(after_in_child=_close_what_others_send)
