"""The end of a run in the terminal: a table, what is broken, and one sentence.

Plain text by default. What it shows comes from the report alone, so that a run and
``shared-tensor-spec report`` on its file end with the same words.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from sharedtensor_conformance.clauses import LEVELS, Clause
from sharedtensor_conformance.report import scope
from sharedtensor_conformance.report.judge import (
    Shortfalls,
    decides,
    required_levels,
    shortfalls,
)
from sharedtensor_conformance.report.records import Case, ClauseResult, Run, Summary
from sharedtensor_conformance.report.verdicts import WORST_FIRST, Verdict

EVIDENCE_LINES = 6
"""How many lines of evidence a clause gets; the report has all of them."""

CARRIED = ("--impl", "--device", "--expectations", "--no-expectations")
"""The options of a run that repeating one case of it needs."""

_RED, _GREEN, _YELLOW, _BOLD = "31", "32", "33", "1"


@dataclass(frozen=True)
class Row:
    """One line of the table: a chapter's clauses by what became of them.

    `seconds` is the time of the cases whose first clause is of the chapter.
    """

    chapter: str
    held: int = 0
    broken: int = 0
    expected: int = 0
    unsupported: int = 0
    not_run: int = 0
    cases: int = 0
    seconds: float = 0.0

    def __add__(self, other: Row) -> Row:
        mine, others = vars(self), vars(other)
        sums = {name: mine[name] + others[name] for name in mine if name != "chapter"}
        return Row(self.chapter, **sums)

    def text(self, column: str) -> str:
        """Return what a cell of the table shows."""
        return f"{self.seconds:.1f}" if column == "seconds" else str(vars(self)[column])


def render(
    run: Run,
    cases: Sequence[Case],
    summary: Summary,
    clauses: Mapping[str, Clause],
    width: int = 80,
    *,
    colour: bool = False,
) -> str:
    """Return the end of a run as text of at most `width` columns where words allow."""
    paint = _Paint(colour)
    blocks = [
        *_heading(run, cases, summary, width),
        _table(chapter_rows(summary, cases), paint),
        *_broken_blocks(run, cases, summary, clauses, width, paint),
        *_unjudged_block(run, summary, clauses, width),
        *_stale_block(summary, width),
        _final(run, summary, width, paint),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


class _Paint:
    """Wraps text in colour codes, or leaves it alone."""

    def __init__(self, active: bool) -> None:
        self.active = active

    def __call__(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.active else text


def _heading(
    run: Run, cases: Sequence[Case], summary: Summary, width: int
) -> list[str]:
    devices = sorted({case.device for case in cases}) or [run.selection.device]
    text = (
        f"{run.implementation}, spec {run.spec.version}, {scope.selected(run)}, on "
        f"{' and '.join(devices)}: {plural(summary.cases, 'case')} in "
        f"{summary.seconds:.1f}s"
    )
    paragraphs = [text, *scope.notes(run, summary)]
    return ["\n".join(line for p in paragraphs for line in wrapped(p, width, "", "  "))]


def chapter_rows(summary: Summary, cases: Iterable[Case] = ()) -> list[Row]:
    """Return the rows of the table, a chapter each, in the order of their names."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in cases:
        seconds[case.clauses[0].partition("-")[0]] += case.seconds
    rows: dict[str, Row] = {}
    for id, result in sorted(summary.clauses.items()):
        chapter = id.partition("-")[0]
        rows[chapter] = rows.get(chapter, Row(chapter)) + _row(chapter, result)
    rows = {name: replace(row, seconds=seconds[name]) for name, row in rows.items()}
    simulated = {
        id.partition("-")[0]
        for id, result in summary.clauses.items()
        if "simulated" in result.devices
    }
    return [
        replace(row, chapter=f"{row.chapter} (simulated)")
        if row.chapter in simulated
        else row
        for row in rows.values()
    ]


def _row(chapter: str, result: ClauseResult) -> Row:
    verdict = result.verdict
    return Row(
        chapter,
        held=int(verdict is Verdict.PASS),
        broken=int(verdict.broken and not result.expected),
        expected=int(verdict.broken and result.expected),
        unsupported=int(verdict is Verdict.UNSUPPORTED),
        not_run=int(verdict is Verdict.NOT_RUN),
        cases=sum(result.cases.values()),
    )


def columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns to show: ``expected`` only where there is something in it."""
    some_expected = any(row.expected for row in rows)
    names = [field.name for field in fields(Row)]
    return [name for name in names if name != "expected" or some_expected]


def _table(rows: list[Row], paint: _Paint) -> str:
    if not rows:
        return ""
    names = columns(rows)
    total = sum(rows, Row("all"))
    first = max(len(row.chapter) for row in [*rows, total, Row("chapter")])
    lines = [_table_line(names, [name.replace("_", " ") for name in names], first)]
    lines += [_table_line(names, _cells(row, names), first) for row in rows]
    total_line = _table_line(names, _cells(total, names), first)
    rule = "-" * len(lines[0])
    return "\n".join([paint(lines[0], _BOLD), rule, *lines[1:], rule, total_line])


def _cells(row: Row, names: list[str]) -> list[str]:
    return [row.text(name) if vars(row)[name] else "." for name in names]


def _table_line(names: list[str], cells: list[str], first: int) -> str:
    rest = zip(names[1:], cells[1:], strict=True)
    return "  ".join([cells[0].ljust(first), *(c.rjust(len(n)) for n, c in rest)])


def _broken_blocks(
    run: Run,
    cases: Sequence[Case],
    summary: Summary,
    clauses: Mapping[str, Clause],
    width: int,
    paint: _Paint,
) -> Iterator[str]:
    for id, result in broken_clauses(summary):
        its_cases = [c for c in cases if id in c.clauses and c.verdict.broken]
        yield "\n".join(
            [
                *_broken_title(id, result, clauses, width, paint),
                *_broken_facts(run, id, result, its_cases, width),
            ]
        )


def broken_clauses(summary: Summary) -> list[tuple[str, ClauseResult]]:
    """Return what is broken: the unexpected first, a MUST before a SHOULD."""
    broken = [(i, r) for i, r in summary.clauses.items() if r.verdict.broken]
    return sorted(broken, key=lambda x: (x[1].expected, LEVELS.index(x[1].level)))


def _broken_title(
    id: str,
    result: ClauseResult,
    clauses: Mapping[str, Clause],
    width: int,
    paint: _Paint,
) -> list[str]:
    code = _YELLOW if result.expected else _RED
    title = clauses[id].title if id in clauses else "(not in the installed spec)"
    first, *more = wrapped(f"{id}  {title}", width, "", " " * (len(id) + 2))
    return [paint(first, code), *more]


def _broken_facts(
    run: Run, id: str, result: ClauseResult, cases: list[Case], width: int
) -> Iterator[str]:
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result.cases.items())
    known = "expected" if result.expected else "not expected"
    label = " on the simulated device" if "simulated" in result.devices else ""
    facts = f"{result.level}, profile {result.profile}, {known}{label}: {counts}"
    yield from wrapped(facts, width, "  ", "  ")
    for cause in dict.fromkeys(case.cause for case in cases if case.cause):
        yield from wrapped(f"cause: {cause}", width, "  ", "    ")
    if shown := shortest(cases):
        yield from _case_lines(run, id, shown, width)
    if vanished := sum(case.state_dependent for case in cases):
        yield from wrapped(
            f"state-dependent: {vanished} of {plural(len(cases), 'broken case')} held "
            f"when repeated in a fresh pair; what ran before matters",
            width,
            "  ",
            "    ",
        )


def _case_lines(run: Run, id: str, case: Case, width: int) -> Iterator[str]:
    yield f"  {case.id}"
    evidence = case.evidence.splitlines() or ["(no evidence was recorded)"]
    for line in evidence[:EVIDENCE_LINES]:
        yield from wrapped(_printable(line), width, "    | ", "    | ")
    if len(evidence) > EVIDENCE_LINES:
        yield f"    | ({len(evidence) - EVIDENCE_LINES} more lines in the report)"
    yield f"  {repeat_command(run, id, case)}"


def _printable(line: str) -> str:
    # Evidence is whatever a judged process said; it must not steer the terminal.
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f]",
        lambda found: f"\\x{ord(found[0]):02x}",
        line.expandtabs(4),
    )


def shortest(cases: Iterable[Case]) -> Case | None:
    """Return the case that shows a broken clause best, if there is one.

    An unexpected one before an expected one, one that fails every time before one that
    depends on state, the worst verdict, and then the shortest evidence there is.
    """
    return min(
        cases,
        key=lambda case: (
            case.expected,
            case.state_dependent,
            WORST_FIRST.index(case.verdict),
            not case.evidence,
            len(case.evidence),
            case.id,
        ),
        default=None,
    )


def repeat_command(run: Run, clause: str, case: Case) -> str:
    """Return the command that repeats one case alone."""
    given = run.selection.options
    kept = [option for option in given if option.partition("=")[0] in CARRIED]
    if not any(option.startswith("--impl=") for option in kept):
        kept.insert(0, f"--impl={run.implementation.name}")
    where = ["--pyargs", "sharedtensor_conformance"]
    words = [
        "pytest",
        *(where if "--pyargs" in given else ["conformance"]),
        *kept,
        f"--clause={clause}",
        f"--case={case.id}",
    ]
    return " ".join(shlex.quote(word) for word in words)


def _unjudged_block(
    run: Run, summary: Summary, clauses: Mapping[str, Clause], width: int
) -> list[str]:
    selection = run.selection
    short = shortfalls(run, summary, strict=selection.strict, full=selection.full)
    if not short.unjudged:
        return []
    lines = ["Claimed, and judged by no case:"]
    for id in short.unjudged:
        title = clauses[id].title if id in clauses else ""
        lines += wrapped(f"{id}  {title}".rstrip(), width, "  ", "    ")
    return ["\n".join(lines)]


def _stale_block(summary: Summary, width: int) -> list[str]:
    if not summary.stale:
        return []
    lines = ["Stale expectations:"]
    for sentence in summary.stale:
        lines += wrapped(sentence, width, "  ", "    ")
    return ["\n".join(lines)]


def _final(run: Run, summary: Summary, width: int, paint: _Paint) -> str:
    text = verdict_sentence(run, summary)
    code = _RED if summary.exit_status else _GREEN
    return "\n".join(paint(line, code) for line in wrapped(text, width, "", ""))


def verdict_sentence(run: Run, summary: Summary) -> str:
    """Return what the run says of the implementation, in one sentence."""
    return f"{_verdict(run, summary)}{_device_note(run, summary)}."


def _verdict(run: Run, summary: Summary) -> str:
    name = str(run.implementation)
    if _ended_early(run, summary):
        said = f"{scope.cut_short(run, summary)}, so far {_tallied(run, summary)}"
        return f"{name} was not judged to the end: {said}"
    if summary.exit_status:
        return f"{name} does not pass: {_reasons(run, summary)}"
    if not run.selection.full:
        part = "shard" if run.selection.shard else "partial selection"
        return f"{name} passes this {part}: {_tallied(run, summary)}"
    if not summary.conforms:
        return f"{name} passes but does not conform: {_tallied(run, summary)}"
    levels = " and ".join(sorted(required_levels(strict=run.selection.strict)))
    return (
        f"{name} conforms, every {levels} of core and of the claimed profiles was "
        f"judged and held: {_tallied(run, summary)}"
    )


def _ended_early(run: Run, summary: Summary) -> bool:
    """Return whether cases are missing and nothing else is wrong."""
    selection = run.selection
    short = shortfalls(run, summary, strict=selection.strict, full=selection.full)
    return short == Shortfalls(cut_short=True)


def _tallied(run: Run, summary: Summary) -> str:
    results = summary.clauses.values()
    broken = [result for result in results if result.verdict.broken]
    strict = run.selection.strict
    deciding = sum(decides(run, result, strict=strict) for result in broken)
    other = len(broken) - deciding
    said = [f"{plural(sum(r.verdict is Verdict.PASS for r in results), 'clause')} held"]
    if deciding:
        said.append(f"{deciding} broken as expected")
    if other:
        said.append(f"{other} broken that do not decide")
    return ", ".join(said)


def _reasons(run: Run, summary: Summary) -> str:
    selection = run.selection
    short = shortfalls(run, summary, strict=selection.strict, full=selection.full)
    counted = (
        (len(short.broken), "clause", "broken"),
        (len(short.unjudged), "clause", "judged by no case"),
        (short.errors, "case", "ended in an error of the suite or the adapter"),
        (short.stale, "expectation", "stale"),
    )
    said = [f"{plural(n, what)} {state}" for n, what, state in counted if n]
    if short.cut_short:
        said.append(scope.cut_short(run, summary))
    return ", ".join(said)


def _device_note(run: Run, summary: Summary) -> str:
    if "cuda" not in run.implementation.claims:
        return ""
    cuda = [r for r in summary.clauses.values() if r.profile == "cuda"]
    devices = {device for result in cuda for device in result.devices}
    if "cuda" in devices or not (cuda or run.selection.full):
        return ""
    if "simulated" in devices:
        return "; profile cuda was judged on the simulated device only, never on CUDA"
    return "; profile cuda was not judged"


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: ``1 case``, ``2 cases``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    """Return `text` in lines of at most `width` columns; words are never cut."""
    return textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
