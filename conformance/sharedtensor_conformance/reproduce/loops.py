"""Writes repeated steps of a program as a loop, as a programmer would.

A test for leaks repeats the same steps, for example twenty times. The recorded events
have them twenty times, with different numbers. In the program they are a loop with the
numbers of the first time.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NUMBER = re.compile(r"(?<![\w.])-?\d+(\.\d+)?\b")
MIN_REPETITIONS = 3
"""The minimum number of repetitions in a row that become a loop."""


@dataclass(frozen=True)
class Line:
    """A line of the owner."""

    text: str


@dataclass(frozen=True)
class Turn:
    """A turn of another process: its lines up to its next ``yield``.

    Args:
        process: the name of the process.
        lines: the lines.
        how: the method by which the owner starts the turn: ``go_on``, which waits for
            its end; ``tell``, which does not wait; or ``wait``, which only waits for
            the end of a turn that ``tell`` started.
        result: the value that the turn yields.
        into: the name to which the owner assigns that value.
    """

    process: str
    lines: tuple[str, ...]
    how: str = "go_on"
    result: str = ""
    into: str = ""


@dataclass(frozen=True)
class Loop:
    """Steps that are repeated."""

    times: int
    body: tuple[Step, ...]


Step = Line | Turn | Loop


def with_loops(steps: Sequence[Step]) -> list[Step]:
    """Return the steps, with loops for repeated steps and with joined turns."""
    found: list[Step] = []
    place = 0
    while place < len(steps):
        times, length = _repetition(steps, place)
        if times >= MIN_REPETITIONS:
            found.append(_loop(times, join_turns(steps[place : place + length])))
        else:
            times, length = 1, 1
            found.append(steps[place])
        place += times * length
    return join_turns(found)


def _loop(times: int, body: list[Step]) -> Step:
    """Return a loop; if only one process acts in it, the loop is part of its turn."""
    match body:
        case [Turn(process, lines, "go_on", "", "")]:
            inside = textwrap.indent("\n".join(with_joined_dels(lines)), "    ")
            return Turn(process, (f"for _ in range({times}):\n{inside}",))
    return Loop(times, tuple(body))


def with_joined_dels(lines: Iterable[str]) -> list[str]:
    """Return the lines, with one ``del`` for several in a row."""
    found: list[str] = []
    for line in lines:
        if line.startswith("del ") and found and found[-1].startswith("del "):
            found[-1] += f", {line.removeprefix('del ')}"
        else:
            found.append(line)
    return found


def _repetition(steps: Sequence[Step], start: int) -> tuple[int, int]:
    """Return how often the steps from `start` are repeated, and the length of the body.

    Among several possibilities, the result is the one that covers the most steps, and
    among these the one with the shortest body.
    """
    shapes = [_shape(step) for step in steps[start:]]
    best = (1, 1)
    for length in range(1, len(shapes) // MIN_REPETITIONS + 1):
        times = 1
        block = shapes[:length]
        while shapes[times * length : (times + 1) * length] == block:
            times += 1
        if times >= MIN_REPETITIONS and times * length > best[0] * best[1]:
            best = times, length
    return best


def _shape(step: Step) -> str:
    return NUMBER.sub("#", repr(step))


def join_turns(steps: Sequence[Step]) -> list[Step]:
    """Return the steps, with consecutive turns of a process joined into one."""
    found: list[Step] = []
    for step in steps:
        last = found[-1] if found else None
        if isinstance(step, Turn) and isinstance(last, Turn) and _is_one(last, step):
            lines = last.lines + step.lines
            found[-1] = Turn(step.process, lines, step.how, step.result, step.into)
        else:
            found.append(step)
    return found


def _is_one(turn: Turn, following: Turn) -> bool:
    plain = turn.how == "go_on" and not turn.result
    return plain and following.process == turn.process and following.how != "wait"
