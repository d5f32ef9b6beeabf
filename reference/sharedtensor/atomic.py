"""Steps that an exception of a signal handler cannot divide.

Python runs a signal handler between two instructions of Python code, and a handler may
raise: that of Ctrl-C does. In ``fd = os.open(path)`` the exception can arise when the
call has returned and the name is not yet bound. The descriptor is then open, and no
variable has it. Python code cannot close this gap: a ``try`` begins after the call. Nor
does a ``with``: since Python 3.14 a handler can run after `__enter__` has returned and
before the block begins, and then nothing calls `__exit__`.

A function of C is not divided: handlers and other threads run after it has returned. So
what belongs together is done by one call of C that makes the other calls. `map` and
`starmap` make them and pass on what they return. This module gives these uses names.
The functions that are passed in have to be functions of C as well. Clauses FAULT-2,
THREAD-5 and THREAD-6.
"""

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat, starmap, takewhile
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
Call = tuple[Any, ...]
"""A function of C and its arguments."""

_once = ((),)
"""The arguments of one call that gets none."""

_exhaust: Callable[[Iterable[object]], object] = partial(deque, maxlen=0)


def assign(
    target: object, name: str, call: Callable[..., Any], *arguments: Any
) -> None:
    """Set an attribute to what a call returns."""
    any(map(setattr, (target,), (name,), starmap(call, (arguments,))))


def assign_each(
    targets: Sequence[object], name: str, call: Callable[..., Any], *arguments: Any
) -> None:
    """Set an attribute of each target to one of the values that a call returns."""
    values = chain.from_iterable(starmap(call, (arguments,)))
    _exhaust(map(setattr, targets, repeat(name), values))


def append(results: list[Any], call: Callable[..., Any], *arguments: Any) -> None:
    """Append what a call returns to a list."""
    results.extend(starmap(call, (arguments,)))


def call_each(calls: Iterable[Call]) -> None:
    """Make calls, one after the other."""
    _exhaust(starmap(operator.call, calls))


def are_right(calls: Iterable[Call], results: Iterable[object]) -> Iterator[bool]:
    """Make calls as it is iterated, and say of each if it returned what it should.

    Those beyond `results` should return None.
    """
    returned = starmap(operator.call, calls)
    return map(operator.eq, returned, chain(results, repeat(None)))


def call_while_right(
    calls: Iterable[Call], results: Iterable[object], undo: Iterable[Call]
) -> int:
    """Make calls until one does not return what it should; return how many did.

    The calls that `undo` has by then follow in the same step. See `are_right`.
    """
    right: list[bool] = []
    making = right.extend, takewhile(operator.truth, are_right(calls, results))
    undoing = _exhaust, starmap(operator.call, undo)
    call_each((making, undoing))
    return len(right)


def under(
    lock: Any, work: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Return what a function returns that is called under a lock of C.

    The lock is released whatever is raised, and wherever it arises: the step that takes
    it notes that, and what is noted is released.
    """
    taken: list[bool] = []
    releasing = map(lock.__exit__, taken, taken, taken)
    try:
        taken.extend(starmap(lock.__enter__, _once))
        return work(*arguments)
    finally:
        any(releasing)  # no handler runs before this call


def under_if_free(lock: Any, work: Callable[[], object]) -> bool:
    """Call a function under a lock, unless another thread has it; return if it did."""
    taken: list[bool] = []
    releasing = map(lock.__exit__, taken, taken, taken)
    try:
        taken.extend(filter(None, map(lock.acquire, (False,))))
        if taken:
            work()
        return bool(taken)
    finally:
        any(releasing)  # no handler runs before this call


def part_of(path: str) -> Any:
    """Return an attribute that is one of another: ``_lock.__enter__``, for example."""
    return property(operator.attrgetter(path))
