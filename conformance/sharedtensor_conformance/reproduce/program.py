"""Assembles a program: its docstring, imports, helpers and processes."""

from __future__ import annotations

import ast
import io
import symtable
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.clauses import SPEC_VERSION, Clause
from sharedtensor_conformance.report.records import Case, Machine
from sharedtensor_conformance.reproduce import helpers
from sharedtensor_conformance.reproduce.events import OWNER, RecordedCase
from sharedtensor_conformance.reproduce.failure_steps import (
    exit_status_lines,
    failure_lines,
)
from sharedtensor_conformance.reproduce.functions import (
    FUNCTION_NAME,
    Body,
    extract_function,
)
from sharedtensor_conformance.reproduce.loops import (
    Line,
    Loop,
    Step,
    Turn,
    with_joined_dels,
    with_loops,
)
from sharedtensor_conformance.reproduce.operations import DROP_IN, Operations
from sharedtensor_conformance.reproduce.source import Untranslatable
from sharedtensor_conformance.reproduce.translation import Process, Translation

WIDTH = 88
MAX_LINES = 300
"""The maximum number of lines of a program; most have fewer than a hundred."""

MAX_EVIDENCE = 160
"""The maximum length of the evidence in the docstring of a program."""


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


def write_program(subject: Subject, recorded: RecordedCase, *, with_reads: bool) -> str:
    """Return the program for the recorded events of a case.

    Its variables do not have the names of its functions and imports. Which these are is
    known only when all events are translated. So if a variable has such a name, the
    events are translated again with this name reserved.

    Args:
        subject: the case.
        recorded: its recorded events.
        with_reads: whether to include operations that only read.

    Raises:
        Untranslatable: the events cannot be written as a program.
    """
    reserved: set[str] = set()
    text = _written(subject, recorded, with_reads, reserved)
    while taken := rebound_names(text) - reserved:
        reserved |= taken
        text = _written(subject, recorded, with_reads, reserved)
    if (lines := text.count("\n")) > MAX_LINES:
        raise Untranslatable(f"it would have {lines} lines, which is too long to read")
    return text


def _written(
    subject: Subject, recorded: RecordedCase, with_reads: bool, reserved: Set[str]
) -> str:
    """Return the program, in which no variable has a reserved name."""
    axes = subject.case.axes
    translation = Translation(
        recorded,
        Operations(subject.implementation.operations),
        axes["strategy"],
        axes["start_method"],
        with_reads=with_reads,
        reserved=reserved,
    )
    translation.translate()
    last = failure_lines(translation)
    steps = with_loops(translation.steps)
    return _Program(subject, translation, steps, last).text()


def rebound_names(text: str) -> set[str]:
    """Return the names of a program's functions and imports that functions bind again.

    In such a function, or after it, the name no longer means the function or import.
    """
    try:
        program = symtable.symtable(text, "program.py", "exec")
    except SyntaxError:  # the run of the program will show that it is faulty
        return set()
    symbols = program.get_symbols()
    own = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    functions = [t for t in program.get_children() if t.get_type() == "function"]
    inside = (symbol for function in functions for symbol in function.get_symbols())
    bound = {s.get_name() for s in inside if s.is_assigned() or s.is_parameter()}
    return own & bound


@dataclass
class _Program:
    """The parts of a program, from top to bottom."""

    subject: Subject
    translation: Translation
    steps: Sequence[Step]
    last: Sequence[str]

    def text(self) -> str:
        needs, operations = self.translation.needs, self.translation.operations
        body = [
            *self._constants(),
            *operations.definitions.values(),
            *operations.setup,
            *self._helpers(),
            *self._processes(),
        ]
        shown = "\n\n\n".join(part.strip("\n") for part in body if part)
        end = self._crash() if "crash" in needs else ["main()"]
        main = _indented(['if __name__ == "__main__":', *_indented_once(end)], 0)
        imports = "\n".join(_sorted(self._imports(f"{shown}\n{main}")))
        space = "\n\n\n" if shown.startswith(("def", "class")) else "\n\n"
        code = quoted(f"{imports}{space}{shown}\n\n\n{main}\n")
        return f"{self._docstring()}\n\n{code}"

    # The docstring

    def _docstring(self) -> str:
        case, clause = self.subject.case, self.subject.clause
        implementation, machine = self.subject.implementation, self.subject.machine
        versions = (
            f"{implementation.name} {implementation.version}, Python {machine.python}, "
            f"Linux {machine.kernel}"
        )
        text = f"{clause.id} ({clause.level} in spec {SPEC_VERSION}): "
        text += " ".join(clause.text.split())
        evidence = case.evidence.splitlines()[0] if case.evidence else str(case.verdict)
        evidence = textwrap.shorten(evidence, MAX_EVIDENCE, placeholder=" ...")
        said = (
            f"{clause.title}.",
            "",
            *_filled(text),
            "",
            *_filled(f"Seen: {evidence}"),
            *_filled(f"With: {versions}; {_axes(case)}."),
            f"Case: {case.id}",
            "Exit status: 0 if the deviation shows, 1 if it does not.",
        )
        body = "\n".join(said).replace("\\", "\\\\").replace('"""', "'''")
        return f'"""{body}\n"""'

    # Imports, constants and helpers

    def _imports(self, shown: str) -> Iterator[str]:
        names = {n.id for n in ast.walk(ast.parse(shown)) if isinstance(n, ast.Name)}
        for name in ("gc", "os", "re", "resource", "signal", "sys", "time"):
            if name in names:
                yield f"import {name}"
        if "suppress" in names:
            yield "from contextlib import suppress"
        if "Pipe" in names:
            yield "from multiprocessing import Pipe"
        drop_in = self.translation.operations.drop_in()
        if DROP_IN in names:
            yield f"import {drop_in} as {DROP_IN}"
        for name, line in self.translation.operations.imports.items():
            if name.partition(".")[0] in names and name != DROP_IN:
                yield line

    def _constants(self) -> Iterator[str]:
        needs = self.translation.needs
        lines = []
        if "peer" in needs or "too late" in needs:
            timeout = max(10, 3 * self.subject.implementation.deadline)
            lines.append(f"TIMEOUT = {timeout:.0f}  # seconds")
        if "growth" in needs:
            lines.append(f"GRACE = {self.subject.implementation.grace:g}  # seconds")
        if "segments" in needs:
            pattern = self.subject.implementation.segment_pattern or r"(?!sem\.)"
            lines += [f'PATTERN = r"{pattern}"', "PIDS = [os.getpid()]"]
        uses = any("context." in line for line in self._owner_lines())
        if "peer" in needs or uses:
            method = self.translation.start_method
            lines.append(f"context = {DROP_IN}.get_context({method!r})")
        yield "\n".join(lines)

    def _helpers(self) -> Iterator[str]:
        needs = self.translation.needs
        if "peer" in needs:
            yield self._helper_for_peers()
        yield from (text for what, text in helpers.BY_NAME.items() if what in needs)

    def _helper_for_peers(self) -> str:
        needs = self.translation.needs
        in_two = any(
            ".tell()" in line or ".wait()" in line for line in self._owner_lines()
        )
        turns = helpers.TURNS_AND_LEAVE if "leave" in needs else helpers.TURNS
        parts = {
            # A daemon cannot have children; other processes are ended with their owner.
            "{daemon}": "steps is not owner_steps" if "crash" in needs else "True",
            "{methods}": helpers.TELL_AND_WAIT if in_two else helpers.GO_ON,
            "{noted}": helpers.RECORD_PID if "segments" in needs else "",
            "{begin}": "".join(f"    {line}\n" for line in self._common_first_lines()),
            "{turns}": turns,
        }
        peer = helpers.PEER
        for part, text in parts.items():
            peer = peer.replace(part, text)
        return peer

    def _common_first_lines(self) -> list[str]:
        """Return the first lines that all peers have in common; none if they differ."""
        peers = [p for p in self.translation.processes.values() if p.name != OWNER]
        common = [process.first_lines for process in peers]
        same = all(lines == common[0] for lines in common)
        return common[0] if common and same else []

    def _owner_lines(self) -> list[str]:
        return [*_lines_of_owner(self.steps, self.translation), *self.last]

    # Processes

    def _processes(self) -> Iterator[str]:
        crash = "crash" in self.translation.needs
        peers = [p for p in self.translation.processes.values() if p.name != OWNER]
        signatures = [f"{p.steps}({', '.join(p.parameters)})" for p in peers]
        signatures.append("owner_steps()" if crash else "main()")
        owner = [*self._owner_lines()]
        if crash:
            owner = ["os.setpgrp()  # and all that it starts", *owner, "yield"]
        if inherited := sorted(self.translation.inherited):
            owner.insert(0, f"global {', '.join(inherited)}")
        bodies = [*map(self._peer, peers), Body(tuple(owner))]
        part, bodies = extract_function(bodies)
        if part:
            yield _indented([f"def {FUNCTION_NAME}():", *_indented_once(part)], 0)
        for signature, body in zip(signatures, bodies, strict=True):
            yield _indented([f"def {signature}:", *_indented_once(body.lines)], 0)

    def _peer(self, process: Process) -> Body:
        lines = [*_lines_of(self.steps, process.name)]
        if process.first_lines != self._common_first_lines():
            lines = [*process.first_lines, *lines]
        if not any("yield" in line for line in lines):
            lines.append("yield")
        return Body(tuple(lines), tuple(process.parameters))

    def _crash(self) -> list[str]:
        return [
            "owner = Peer(owner_steps)",
            "with suppress(EOFError, TimeoutError):\n    owner.go_on()",
            "owner.process.join(TIMEOUT)",
            "with suppress(ProcessLookupError):\n"
            "    os.killpg(owner.process.pid, signal.SIGKILL)",
            "status = owner.process.exitcode",
            *exit_status_lines(self.translation),
        ]


def quoted(code: str) -> str:
    """Return the code with double quotes around strings."""
    lines = code.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    for token in reversed(tokens):
        if token.type == tokenize.STRING and token.string[0] == "'":
            inside = token.string[1:-1]
            if token.start[0] == token.end[0] and not set(inside) & set("\"\\'"):
                line = lines[token.start[0] - 1]
                before, after = line[: token.start[1]], line[token.end[1] :]
                lines[token.start[0] - 1] = f'{before}"{inside}"{after}'
    return "".join(lines)


def _axes(case: Case) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.axes.items())


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _sorted(lines: Iterable[str]) -> list[str]:
    """Return imports in the usual order: the standard library first."""
    unique = sorted(dict.fromkeys(lines), key=lambda line: (line[0] == "f", line))
    root = {line: line.split()[1].partition(".")[0] for line in unique}
    own = [line for line in unique if root[line] in sys.stdlib_module_names]
    others = [line for line in unique if line not in own]
    return [*own, "", *others] if own and others else [*own, *others]


def _lines_of(steps: Sequence[Step], name: str) -> Iterator[str]:
    """Yield the lines of the peer `name`."""
    for step in steps:
        match step:
            case Turn(process=process) if process == name:
                yield from step.lines
                if step.how != "wait":
                    yield f"yield {step.result}".rstrip()
            case Loop():
                inside = list(_lines_of(step.body, name))
                if inside:
                    yield f"for _ in range({step.times}):\n" + _indented(inside, 1)


def _lines_of_owner(steps: Sequence[Step], translation: Translation) -> Iterator[str]:
    for step in steps:
        match step:
            case Line(text):
                yield text
            case Turn():
                variable = translation.processes[step.process].variable
                into = f"{step.into} = " if step.into else ""
                yield f"{into}{variable}.{step.how}()"
            case Loop():
                inside = list(_lines_of_owner(step.body, translation))
                yield f"for _ in range({step.times}):\n" + _indented(inside, 1)


def _indented_once(lines: Iterable[str]) -> list[str]:
    return [textwrap.indent(line, "    ") for line in with_joined_dels(lines)]


def _indented(lines: Iterable[str], depth: int) -> str:
    joined = with_joined_dels(lines)
    return textwrap.indent("\n".join(joined), "    " * depth)
