"""Changes of the operating system's state that a test makes for a stage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from sharedtensor_conformance.harness.listening import listener
from sharedtensor_conformance.harness.outcomes import NotRun
from sharedtensor_conformance.harness.supervision import Supervision


class SystemControl:
    """Fills ``/dev/shm``, replaces segments, and acts as another user.

    Each is done by the supervisor, and in a ``/dev/shm`` of its own alone.
    """

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision

    @contextlib.contextmanager
    def limited_shm(self, spare: int) -> Iterator[None]:
        """Leave only `spare` bytes free in ``/dev/shm`` for a while.

        Raises:
            NotRun: the ``/dev/shm`` is not the stage's own.
        """
        if not self._supervision.private:
            raise NotRun("without a /dev/shm of its own the suite cannot fill it")
        listener().changed("fill /dev/shm")
        self._supervision.ask("limit_shm", spare=spare)
        try:
            yield
        finally:
            if self._supervision.is_started:
                self._supervision.ask("limit_shm", spare=None)

    @contextlib.contextmanager
    def unusable_shm(self, how: str) -> Iterator[None]:
        """Let ``/dev/shm`` be ``read-only`` or ``absent`` for a while.

        Raises:
            NotRun: the ``/dev/shm`` is not the stage's own.
        """
        if not self._supervision.private:
            raise NotRun("the suite makes a /dev/shm of its own unusable only")
        listener().changed(f"make /dev/shm {how}")
        self._supervision.ask("cover_shm", how=how)
        try:
            yield
        finally:
            if self._supervision.is_started:
                self._supervision.ask("uncover_shm")

    def as_nobody(self, action: str, path: str) -> str:
        """Let another user ``read``, ``write`` or ``connect`` to `path`.

        Returns ``done``, ``turned away``, or the name of the error.

        Raises:
            NotRun: the suite may not act as another user.
        """
        if os.geteuid() != 0:
            raise NotRun("only root can act as another user")
        listener().changed("act as another user")
        near = path.removeprefix(f"{self._supervision.temporary}/")
        outcome: str = self._supervision.ask("as_nobody", action=action, path=near)
        return outcome

    def replace_segment(self, name: str, how: str) -> None:
        """Put a ``link`` to another file, or ``nobody``'s file, where a segment is.

        Raises:
            NotRun: the ``/dev/shm`` is not the stage's own.
        """
        if not self._supervision.private:
            raise NotRun("the suite replaces files in a /dev/shm of its own only")
        listener().changed("replace a segment")
        self._supervision.ask("replace", name=name, how=how)

    def replacement_is_unchanged(self, name: str) -> bool:
        """Return whether what `replace_segment` has put there has its content still."""
        unchanged: bool = self._supervision.ask("replacement_is_unchanged", name=name)
        return unchanged
