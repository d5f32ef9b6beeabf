"""Changes of the operating system's state that a test makes for a stage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sharedtensor_conformance.harness.listening import listener
from sharedtensor_conformance.harness.outcomes import NotRun
from sharedtensor_conformance.harness.supervision import Supervision
from sharedtensor_conformance.report.verdicts import Need


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
        self._require_private_shm()
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
        self._require_private_shm()
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
        self._require_second_user()
        listener().changed("act as another user")
        near = path.removeprefix(f"{self._supervision.temporary}/")
        outcome: str = self._supervision.ask("as_nobody", action=action, path=near)
        return outcome

    def replace_segment(self, name: str, how: str) -> None:
        """Put a ``link`` to another file, or ``nobody``'s file, where a segment is.

        Raises:
            NotRun: the ``/dev/shm`` is not the stage's own, or there is no other user.
        """
        self._require_private_shm()
        if how == "nobody":
            self._require_second_user()
        listener().changed("replace a segment")
        self._supervision.ask("replace", name=name, how=how)

    def replacement_is_unchanged(self, name: str) -> bool:
        """Return whether what `replace_segment` has put there has its content still."""
        unchanged: bool = self._supervision.ask("replacement_is_unchanged", name=name)
        return unchanged

    def require_no_other_cleaner(self) -> None:
        """Require that only processes of this stage can remove its segments.

        In a shared ``/dev/shm`` processes of other stages may do that for those that
        have ended, if an implementation lets each process remove what others left.

        Raises:
            NotRun: the ``/dev/shm`` is not the stage's own.
        """
        self._require_private_shm(
            "processes of other cases could remove what is left in this /dev/shm"
        )

    def _require_private_shm(
        self,
        why: str = "the suite changes only a /dev/shm of the stage's own, which it "
        "lacks",
    ) -> None:
        if not self._supervision.private:
            raise NotRun(why, Need.PRIVATE_SHM)

    def _require_second_user(self) -> None:
        if not self._supervision.ask("has_other_user"):
            raise NotRun("the suite cannot act as another user", Need.SECOND_USER)
