"""Puts a program together: its steps, what they use of the suite, and the runtime."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.clauses import SPEC_VERSION, Clause
from sharedtensor_conformance.report.records import Case, Machine
from sharedtensor_conformance.reproduce.copying import SUITE, Copier
from sharedtensor_conformance.reproduce.sources import Unreplayable, read_source
from sharedtensor_conformance.reproduce.steps import Steps, folded, of_last_stage

RUNTIME = f"{__package__}.runtime"
OWN = {
    *("STRATEGY", "CHANNELS", "TIMEOUT", "DEADLINE", "GRACE"),
    *("SEGMENTS", "MANAGERS", "SEEN"),
}
"""The constants that each program defines."""

STEPS = 'def steps():\n    """Do what the test of the case does."""\n'
WIDTH = 88
MAX_EVIDENCE = 200


@dataclass(frozen=True)
class Subject:
    """The case that a program shows.

    Args:
        case: the case with its verdict.
        clause: its first clause.
        implementation: what the adapter declares, with the installed version.
        machine: the machine on which it ran.
    """

    case: Case
    clause: Clause
    implementation: Implementation
    machine: Machine


def write_program(
    subject: Subject,
    recorded: dict[str, Any],
    *,
    loops: bool = True,
    compares: bool = True,
) -> str:
    """Return the program for a recorded case.

    Args:
        subject: the case.
        recorded: what was recorded.
        loops: whether repeated steps are written as a loop.
        compares: whether all answers are compared, and not only the last one.

    Raises:
        Unreplayable: the case cannot be replayed by a program.
    """
    events = of_last_stage(recorded["events"], recorded["test"])
    steps = Steps(events, subject.case.evidence, compares=compares)
    lines = steps.write()
    shown = "\n".join(folded(lines) if loops else lines)
    imports, copied = _copied(subject.implementation.operations, steps, shown)
    parts = [
        _imports(imports | _numbers_in(shown)),
        _constants(subject),
        STEPS + textwrap.indent(shown, "    "),
        *copied,
        'if __name__ == "__main__":\n    main()\n',
    ]
    text = "\n\n\n".join(part.strip("\n") for part in parts if part)
    if SUITE in text:
        raise Unreplayable("it runs a program that imports the suite")
    return f"{_docstring(subject)}\n\nfrom __future__ import annotations\n\n{text}\n"


def _copied(operations: str, steps: Steps, shown: str) -> tuple[set[str], list[str]]:
    """Return what a program imports, and what it copies of the adapter and the suite.

    Args:
        operations: the place of the adapter's operations, as it declares it.
        steps: the steps, with what they use.
        shown: the text of the steps.
    """
    module, _, name = operations.partition(":")
    words = set(re.findall(r"\w+", shown))
    mentioned, before = {*steps.words, *words}, 0
    runtime = words & read_source(RUNTIME).statements.keys()
    while before < len(mentioned):  # copied code mentions other methods
        before = len(mentioned)
        copier = Copier(module, {*OWN, "steps", "Operations"}, mentioned)
        for place in sorted(steps.functions):  # first: the steps have their names
            source, _, function = place.partition(":")
            copier.define(source, function.partition(".")[0])
        for used in (*sorted(runtime), "main"):
            copier.define(RUNTIME, used)
        if "Layout(" in shown:
            copier.define(f"{SUITE}.adapter", "Layout")
        copier.provided.discard("Operations")
        named = copier.define(module, name)
    alias = "" if named == "Operations" else f"Operations = {named}"
    return copier.imports, [*copier.parts.values(), alias]


def _imports(lines: set[str]) -> str:
    """Return imports in the usual order, with one line for each module."""
    whole = sorted(line for line in lines if line.startswith("import "))
    names: dict[str, list[str]] = defaultdict(list)
    for line in sorted(lines - set(whole)):
        module, _, name = line.removeprefix("from ").partition(" import ")
        names[module].append(name)
    parts = [
        f"from {module} import {', '.join(names[module])}" for module in sorted(names)
    ]
    return "\n".join([*whole, *parts])


def _numbers_in(shown: str) -> set[str]:
    """Return the imports of the names that `repr` gives to special numbers."""
    names = [name for name in ("inf", "nan") if re.search(rf"\b{name}\b", shown)]
    return {f"from math import {name}" for name in names}


def _constants(subject: Subject) -> str:
    axes, implementation = subject.case.axes, subject.implementation
    deadline = 2 * implementation.deadline
    pattern = implementation.segment_pattern.replace("{pid}", r"\d+") or r"(?!sem\.)"
    evidence = subject.case.evidence.splitlines() or [str(subject.case.verdict)]
    return (
        f"STRATEGY = {axes['strategy']!r}\n"
        f"CHANNELS = {implementation.channels!r}\n"
        f"TIMEOUT, DEADLINE = {implementation.patience:g}, {deadline:g}  # seconds\n"
        f"GRACE = {implementation.grace:g}  # seconds\n"
        f'SEGMENTS = r"{pattern}"\n'
        f'MANAGERS = r"{implementation.manager_pattern or "(?!)"}"\n'
        f"SEEN = {evidence[0]!r}"
    )


def _docstring(subject: Subject) -> str:
    case, clause = subject.case, subject.clause
    implementation, machine = subject.implementation, subject.machine
    versions = (
        f"{implementation.name} {implementation.version}, Python {machine.python}, "
        f"Linux {machine.kernel}"
    )
    text = f"{clause.id} ({clause.level} in spec {SPEC_VERSION}): "
    text += clause.plain_text
    evidence = case.evidence.splitlines()[0] if case.evidence else str(case.verdict)
    axes = ", ".join(f"{name} {value}" for name, value in case.axes.items())
    said = (
        f"{clause.title}.",
        "",
        *_filled(text),
        "",
        *_filled(
            f"Seen: {textwrap.shorten(evidence, MAX_EVIDENCE, placeholder=' ...')}"
        ),
        *_filled(f"With: {versions}; {axes}."),
        f"Case: {case.id}",
        "Exit status: 0 if the deviation shows, 1 if it does not.",
    )
    body = "\n".join(said).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{body}\n"""'


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
