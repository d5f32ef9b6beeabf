"""Writes the end of a program: the step that shows the failure, and what is printed.

Each kind of failure has a function here. It adds the last steps to a `Translation`, and
returns the last lines of the owner.
"""

from __future__ import annotations

import builtins
import re
import textwrap
from collections.abc import Callable
from typing import Any

from sharedtensor_conformance.harness.checks import SHOWN_CHARACTERS
from sharedtensor_conformance.reproduce.events import OWNER, Event, references_in
from sharedtensor_conformance.reproduce.loops import Line, Turn
from sharedtensor_conformance.reproduce.source import Untranslatable
from sharedtensor_conformance.reproduce.translation import Translation

MAX_SENTENCE = 75
"""The length of a sentence that is printed with a statement of one line."""

READINGS = {
    "segments": "segments()",
    "descriptors": 'len(os.listdir(f"/proc/{{{pid}}}/fd"))',
    "mappings": "mappings({pid})",
}
"""The readings of the ledger; if several grew, the first of these is shown."""


def failure_lines(translation: Translation) -> list[str]:
    """Return the last lines of the program.

    Raises:
        Untranslatable: the failure cannot be shown by a program.
    """
    kind = translation.recorded.failure.kind
    end = LINES_BY_KIND.get(kind)
    if end is None:
        raise Untranslatable("the failure is not the answer to a single request")
    return end(translation)


# A wrong value


def _value(translation: Translation) -> list[str]:
    failure, event = translation.recorded.failure, translation.recorded.failing_call
    shown, returned = translation.unnamed_source(event), event.returned
    if failure.kind == "condition" and any(references_in(returned)):
        shown, returned = f"{shown} is None", False  # there should be no value
    found = f"repr({shown})" if failure.as_text else shown
    sentence = f"not so: {_escaped(failure.sentence)}: got {_shown('found', returned)}"
    if failure.kind == "condition":
        right = "is not" if returned is None or isinstance(returned, bool) else "!="
        lines = _assign_in_owner(translation, event.process, "found", found)
        value = translation.source(event.process, returned)
        return [*lines, *_exit_or_print(f"found {right} {value}", sentence)]
    sentence = f"{sentence}, not {_shown('expected', failure.expected)}"
    lines = _found_and_expected(translation, event.process, found)
    return [*lines, *_exit_or_print("found == expected", sentence)]


def _found_and_expected(
    translation: Translation, process: str, found: str
) -> list[str]:
    """Return the lines that give the owner the found and the expected value."""
    if translation.expects_an_address:
        both = f"{found}, expected"
        return _assign_in_owner(translation, process, "found, expected", both)
    expected = translation.source(process, translation.recorded.failure.expected)
    lines = _assign_in_owner(translation, process, "found", found)
    return [*lines, f"expected = {expected}"]


def _shown(name: str, value: Any) -> str:
    """Return the part of an f-string that shows a value; a long value is cut."""
    cut = f":.{SHOWN_CHARACTERS}" if len(repr(value)) > SHOWN_CHARACTERS else ""
    return f"{{{name}!r{cut}}}"


def _assign_in_owner(
    translation: Translation, process: str, name: str, source: str
) -> list[str]:
    """Return the lines that assign a value of a process to a name in the owner."""
    if process == OWNER:
        return [f"{name} = {source}"]
    translation.steps.append(Turn(process, (), result=source, into=name))
    return []


def _exit_or_print(gone: str, sentence: str) -> list[str]:
    """Return lines that exit with 1 if `gone` is true, and else print the sentence."""
    text = sentence.replace("\\", "\\\\").replace('"', '\\"')
    said = f'{"f" * ("{" in text)}"{text}"'
    fits = len(said) < MAX_SENTENCE
    shown = f"print({said})" if fits else f"print(\n    {said}\n)"
    return [f"if {gone}:\n    sys.exit(1)", shown]


def _escaped(sentence: str) -> str:
    return sentence.replace("{", "{{").replace("}", "}}")


# An exception, or none


def _exception(translation: Translation) -> list[str]:
    event = translation.recorded.failing_call
    known = _caught_class(event.raised)
    _attempt(translation, event, known or "Exception")
    gone = "not raised" if known else f'not raised.startswith("{event.raised}(")'
    return _exit_or_print(gone, "it raised {raised}")


def _caught_class(raised: str) -> str:
    """Return the exception class that the program catches; "" for one of a library.

    If another process has ended, the error of a system call may differ. So every such
    error is caught as `OSError`.
    """
    kind = getattr(builtins, raised, None)
    return "OSError" if kind and issubclass(kind, OSError) else raised * bool(kind)


def _refusal(translation: Translation) -> list[str]:
    _attempt(translation, translation.recorded.failing_call)
    sentence = (
        f"not so: {_escaped(translation.recorded.failure.sentence)}: nothing was raised"
    )
    return _exit_or_print("raised", sentence)


def _attempt(translation: Translation, event: Event, caught: str = "Exception") -> None:
    """Let a process execute a request, and store the exception in `raised`."""
    shown = textwrap.indent(translation.unnamed_source(event), "    ")
    lines = (
        'raised = ""',
        f"try:\n{shown}\nexcept {caught} as error:\n    raised = repr(error)",
    )
    if event.process == OWNER:
        translation.steps += [Line(line) for line in lines]
    else:
        turn = Turn(event.process, lines, result="raised", into="raised")
        translation.steps.append(turn)


# A process that dies, or does not answer


def _crash(translation: Translation) -> list[str]:
    event = translation.recorded.failing_call
    process = translation.process(event.process)
    if event.process == OWNER:
        translation.needs |= {"peer", "crash"}
        translation.add(OWNER, translation.unnamed_source(event))
        return []
    _begin_call(translation, event)
    return [
        f"with suppress(EOFError, TimeoutError):\n    {process.variable}.wait()",
        f"{process.variable}.process.join(TIMEOUT)",
        f"status = {process.variable}.process.exitcode",
        *exit_status_lines(translation),
    ]


def exit_status_lines(translation: Translation) -> list[str]:
    """Return the lines that check whether the process died as in the case.

    A process with an uncaught exception exits with status 1, which is not a crash.
    """
    found = re.search(
        r"exited with status (\d+)", translation.recorded.failure.sentence
    )
    gone = f"status != {found[1]}" if found else "status is None or status >= 0"
    return _exit_or_print(gone, "the process ended with status {status}")


def _begin_call(translation: Translation, event: Event) -> None:
    """Make a process begin the call that does not return, if it has not begun yet."""
    if not translation.call_continues:
        line = translation.unnamed_source(event)
        translation.steps.append(Turn(event.process, (line,), "tell"))


def _hang(translation: Translation) -> list[str]:
    event = translation.recorded.failing_call
    process = translation.process(event.process)
    sentence = f"{process.name} did not answer within {{TIMEOUT}} seconds"
    if event.process == OWNER:
        translation.needs |= {"too late"}
        step = translation.unnamed_source(event)
        waits = ["signal.signal(signal.SIGALRM, too_late)", "signal.alarm(TIMEOUT)"]
    else:
        _begin_call(translation, event)
        step, waits = f"{process.variable}.wait()", []
    step = textwrap.indent(step, "    ")
    hangs = f"try:\n{step}\n    sys.exit(1)\nexcept TimeoutError:\n"
    return [*waits, f'{hangs}    print(f"{sentence}")']


# Something that is left


def _growth(translation: Translation) -> list[str]:
    recorded = translation.recorded
    if not recorded.reading_groups:
        raise Untranslatable("the value that it waits for is not read from the ledger")
    if recorded.baseline is None:
        raise Untranslatable("the leak is not more than was there before")
    place = translation.reading_positions[recorded.baseline]
    return _compare_readings(
        translation, place, min(recorded.grown_readings, key=_rank)
    )


SELF_PATH = '"/proc/self/'


def _rank(event: Event) -> int:
    return list(READINGS).index(event.request)


def _compare_readings(translation: Translation, place: int, grew: Event) -> list[str]:
    """Read the value that grew before and at the end, and compare."""
    translation.needs |= {"growth", grew.request}
    pid = translation.process(grew.process).pid if grew.process else ""
    reading = (
        READINGS[grew.request]
        .format(pid=pid)
        .replace('f"/proc/{os.getpid()}/', SELF_PATH)
    )
    translation.steps[place:place] = [Line(f"before = {reading}")]
    of_whom = f" of {grew.process}" if grew.process else ""
    sentence = f"not so: {_escaped(translation.recorded.failure.sentence)}: "
    return [
        "deadline = time.monotonic() + GRACE",
        f"while {reading} > before and time.monotonic() < deadline:\n"
        f"    time.sleep(0.1)",
        f"more = {reading} - before",
        *_exit_or_print(
            "more <= 0", f"{sentence}{{more}} more {grew.request}{of_whom}"
        ),
    ]


LINES_BY_KIND: dict[str, Callable[[Translation], list[Any]]] = {
    "equality": _value,
    "condition": _value,
    "refusal": _refusal,
    "raised": _exception,
    "crash": _crash,
    "hang": _hang,
    "growth": _growth,
}
