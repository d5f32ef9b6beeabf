"""The exceptions that end a case, each of which leads to one verdict.

`CheckFailed` and `RemoteRaised` are failures of the implementation (``fail``),
`ActorDied` is a ``crash``, and `DeadlineExceeded` a ``hang``. `HarnessFault` is a fault
of the suite or the adapter (``error``), and so is any other exception. `NotRun` and
`Unsupported` judge nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharedtensor_conformance.report.verdicts import Need


class Broken(Exception):
    """A failure of the implementation.

    `clauses` are the clauses that the failed check is about, the most specific first,
    if the case judges several clauses and the check only some of them.
    """

    clauses: tuple[str, ...] = ()


class CheckFailed(Broken):
    """A check of the test failed."""


class LeftBehind(CheckFailed):
    """Something was not released.

    Args:
        sentence: what was not released, and after how long.
        cases: a case for each kind of leak, if other cases caused it.
        kinds: the kinds of leaks, for example ``descriptor /dev/null``.
        known: whether an earlier case had already waited for it in vain.
    """

    def __init__(
        self,
        sentence: str,
        cases: tuple[str, ...] = (),
        *,
        kinds: tuple[str, ...] = (),
        known: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.cases = cases
        self.kinds = kinds
        self.known = known


class HarnessFault(Exception):
    """The suite or the adapter is at fault, not the implementation."""


class NotRun(Exception):
    """The case needs a device, a privilege or a system that this machine lacks.

    Args:
        why: what this machine lacks.
        need: what the machine would have to permit; None where a device is missing that
            the run was asked to use.
    """

    def __init__(self, why: str, need: Need | None = None) -> None:
        super().__init__(why)
        self.need = need


class Unsupported(Exception):
    """The implementation has nothing that the clause is about, so it cannot break it.

    Missing claims are found before a case is run.
    """


@dataclass
class RemoteError:
    """An exception of the implementation, as it was raised in an actor.

    `errnos` are those of the exception and of its causes.
    """

    actor: str
    type: str
    bases: list[str]
    message: str
    traceback: str
    errnos: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        lines = self.message.strip().splitlines()
        return f"{self.actor}: {self.type}: {lines[0] if lines else ''}".rstrip(": ")


class RemoteRaised(Broken):
    """The implementation raised an exception where the test expects no refusal."""

    def __init__(self, error: RemoteError, request_name: str) -> None:
        super().__init__(f"{error} (while it was asked to {request_name})")
        self.error = error


class ActorDied(Broken):
    """A process of the implementation ended while it was asked to do something."""


class DeadlineExceeded(Broken):
    """An actor gave no answer within its deadline."""
