"""Puts a program together: its steps, what they use of the suite, and the runtime."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.clauses import SPEC_VERSION, Clause
from sharedtensor_conformance.harness.remote import actor
from sharedtensor_conformance.report.records import Case, Machine
from sharedtensor_conformance.reproduce.copying import SUITE, Copier
from sharedtensor_conformance.reproduce.sources import Unreplayable, read_source
from sharedtensor_conformance.reproduce.steps import Steps, folded, of_last_stage

RUNTIME = f"{__package__}.runtime"
ACTOR = "Actor"
BEGIN = b"# " + b"-" * 86
"""The line of the runtime from which on it is copied."""

STUBS = {
    "channels.Channel": "()",
}
"""What stands for definitions that only some cases need, in code that all need."""

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
    copied = Copied(subject.implementation.operations, steps, shown)
    parts = [
        _imports(copied.copier.imports | _numbers_in(shown)),
        _constants(subject),
        STEPS + textwrap.indent(shown, "    "),
        *copied.parts,
        'if __name__ == "__main__":\n    main()\n',
    ]
    text = "\n\n\n".join(part.strip("\n") for part in parts if part)
    if SUITE in text:
        raise Unreplayable("it runs a program that imports the suite")
    return f"{_docstring(subject)}\n\nfrom __future__ import annotations\n\n{text}\n"


class Copied:
    """What a program copies of the adapter and of the suite.

    Args:
        operations: the place of the adapter's operations, as it declares it.
        steps: the steps, with what they use.
        shown: the text of the steps.
    """

    def __init__(self, operations: str, steps: Steps, shown: str) -> None:
        module, _, self.operations = operations.partition(":")
        self.source = read_source(actor.__name__)
        runtime = read_source(RUNTIME)
        self.steps = steps
        self.provided = {*runtime.statements} - {"Requests", "Operations", "run"}
        self.methods = _methods(runtime.statements[ACTOR][0]) | {"prepare"}
        mentioned = {*steps.words, *re.findall(r"\w+", shown)}
        before = 0
        while before < len(mentioned):  # copied code mentions other methods
            before = len(mentioned)
            self.copier = Copier(module, self.provided, mentioned)
            self.parts = self._copy(module, shown)

    def _copy(self, module: str, shown: str) -> list[str]:
        copier = self.copier
        name = copier.define(module, self.operations)
        for place in sorted(self.steps.functions):
            module, _, function = place.partition(":")
            copier.define(module, function.partition(".")[0])
        if "Layout(" in shown:
            copier.define(f"{SUITE}.adapter", "Layout")
        for place, unused in STUBS.items():
            module, _, stub = place.rpartition(".")
            if not (stub == "Channel" and "open_channel" in self.steps.requests):
                copier.stub(f"{SUITE}.harness.{module}", stub, unused)
        copier.define(actor.__name__, "run")
        requests = self._requests()
        alias = "" if name == "Operations" else f"Operations = {name}"
        return [*copier.parts.values(), alias, requests, *self._runtime()]

    def _requests(self) -> str:
        """Return the class with those methods of the suite's actor that are used."""
        (node,) = self.source.statements[ACTOR]
        assert isinstance(node, ast.ClassDef)
        methods = [m for m in node.body if self._is_used(m)]
        texts = [f"    {self.copier.text(self.source, m)}" for m in methods]
        own = _attributes(read_source(RUNTIME).statements[ACTOR][0])
        attributes = [
            f"    {name} = {ast.unparse(value)}\n"
            for name, value in _attributes(node).items()
            if name in self.copier.mentioned and name not in own
        ]
        head = 'class Requests:\n    """What the suite asks a process for."""\n'
        return "\n".join([head, *attributes, *(f"{text}\n" for text in texts)])

    def _runtime(self) -> Iterator[str]:
        """Yield the statements of the runtime that are copied."""
        source = read_source(RUNTIME)
        self.copier.provided |= source.statements.keys()
        self.copier.whole = True
        begin = source.text.index(BEGIN)
        nodes = {id(n): n for found in source.statements.values() for n in found}
        for node in sorted(nodes.values(), key=source.span):
            if source.span(node)[0] > begin:
                yield self.copier.text(source, node)

    def _is_used(self, node: ast.stmt) -> bool:
        if not isinstance(node, ast.FunctionDef) or node.name in self.methods:
            return False
        asked = node.name in self.steps.requests
        return asked or node.name in self.copier.mentioned - {"__init__"}


def _methods(node: ast.stmt) -> set[str]:
    assert isinstance(node, ast.ClassDef)
    return {one.name for one in node.body if isinstance(one, ast.FunctionDef)}


def _attributes(node: ast.stmt) -> dict[str, ast.expr]:
    """Return the attributes that the actor of the suite begins with."""
    assert isinstance(node, ast.ClassDef)
    found = {}
    for one in ast.walk(node.body[1]):
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value:
            target = one.targets[0] if isinstance(one, ast.Assign) else one.target
            if isinstance(target, ast.Attribute) and not _names(one.value):
                found[target.attr] = one.value
    return found


def _names(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Name) for one in ast.walk(node))


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
