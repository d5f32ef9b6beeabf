"""Changes of the operating system's state that a test makes for a stage.

The supervisor of the stage makes each, and only in a ``/dev/shm`` that no other program
uses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sharedtensor_conformance.chapters import system_actions
from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.case.outcomes import NotRun
from sharedtensor_conformance.harness.kernel import private_shm
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.report.verdicts import Need

Result = TypeVar("Result")


@contextlib.contextmanager
def limited_shm(stage: Stage, spare: int) -> Iterator[None]:
    """Leave only `spare` bytes free in ``/dev/shm`` for a while.

    Raises:
        NotRun: the ``/dev/shm`` is not the stage's own.
    """
    _require_private_shm(stage)
    _change(stage, private_shm.limit, spare)
    try:
        yield
    finally:
        if stage.supervision.is_started:
            _change(stage, private_shm.limit, None)


@contextlib.contextmanager
def unusable_shm(stage: Stage, how: str) -> Iterator[None]:
    """Let ``/dev/shm`` be ``read-only`` or ``absent`` for a while.

    Raises:
        NotRun: the ``/dev/shm`` is not the stage's own.
    """
    _require_private_shm(stage)
    _change(stage, private_shm.cover, how)
    try:
        yield
    finally:
        if stage.supervision.is_started:
            _change(stage, private_shm.uncover)


def as_nobody(stage: Stage, action: str, path: str) -> str:
    """Let another user ``read``, ``write`` or ``connect`` to `path`.

    Returns ``done``, ``turned away``, or the name of the error.

    Raises:
        NotRun: the suite may not act as another user.
    """
    _require_second_user(stage)
    near = path.removeprefix(f"{stage.supervision.temporary}/")
    return _change(stage, system_actions.as_nobody, action, near)


def replace_segment(stage: Stage, name: str, how: str) -> None:
    """Put a ``link`` to another file, or ``nobody``'s file, where a segment is.

    Raises:
        NotRun: the ``/dev/shm`` is not the stage's own, or there is no other user.
    """
    _require_private_shm(stage)
    if how == "nobody":
        _require_second_user(stage)
    _change(stage, system_actions.replace, name, how)


def replacement_is_unchanged(stage: Stage, name: str) -> bool:
    """Return whether what `replace_segment` has put there has its content still."""
    return stage.supervision.run(system_actions.is_unchanged, name)


def require_no_other_cleaner(stage: Stage) -> None:
    """Require that only processes of this stage can remove its segments.

    In a shared ``/dev/shm`` processes of other stages may do that for those that
    have ended, if an implementation lets each process remove what others left.

    Raises:
        NotRun: the ``/dev/shm`` is not the stage's own.
    """
    _require_private_shm(
        stage, "processes of other cases could remove what is left in this /dev/shm"
    )


def _change(stage: Stage, function: Callable[..., Result], *given: Any) -> Result:
    """Have the supervisor call a function that changes the system."""
    listener().changed(function, *given)
    return stage.supervision.run(function, *given)


def _require_private_shm(
    stage: Stage,
    why: str = "the suite changes only a /dev/shm of the stage's own, which it lacks",
) -> None:
    if not stage.supervision.private:
        raise NotRun(why, Need.PRIVATE_SHM)


def _require_second_user(stage: Stage) -> None:
    if not stage.supervision.run(system_actions.has_other_user):
        raise NotRun("the suite cannot act as another user", Need.SECOND_USER)
