"""What can come out of a case, as exceptions: each kind leads to one verdict.

`CheckFailed` and `RemoteRaised` speak against the implementation (``fail``),
`ActorDied` is a ``crash``, `DeadlineExceeded` a ``hang``; `HarnessFault` is the suite's
own fault or the adapter's (``error``), and so is any other exception. `NotRun` and
`Unsupported` judge nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class Broken(Exception):
    """What speaks against the implementation.

    `clauses` are those that the failed statement is about, the nearest first, where a
    case judges several and the statement only some of them.
    """

    clauses: tuple[str, ...] = ()


class CheckFailed(Broken):
    """A statement of the test does not hold."""


class LeftBehind(CheckFailed):
    """Something was not given back.

    Args:
        sentence: what, and after how long.
        cases: a case for each kind of it, where other cases have left it.
        kinds: of what there is more, such as ``descriptor /dev/null``.
        known: it was waited for in an earlier case, and did not come back then.
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
    """The case needs a device, a privilege or a system that is not here."""


class Unsupported(Exception):
    """The implementation has nothing that the clause is about, and so cannot break it.

    What follows from the adapter's claims is known before a case is run: `matrix`.
    """


@dataclass
class RemoteError:
    """An exception of the implementation, as it was raised in an actor.

    `errnos` are those of the exception and of what it was raised from.
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
    """The implementation raised where the test did not ask for a refusal."""

    def __init__(self, error: RemoteError, doing: str) -> None:
        super().__init__(f"{error} (while it was asked to {doing})")
        self.error = error


class ActorDied(Broken):
    """A process of the implementation ended while it was asked to do something."""


class DeadlineExceeded(Broken):
    """An actor gave no answer within its deadline."""
