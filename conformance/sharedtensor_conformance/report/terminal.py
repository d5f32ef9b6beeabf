"""Shows a report as text: a table, the broken clauses, and the verdict in one sentence.

The text depends only on the report, so that a run and ``shared-tensor-spec report``
print the same. It has colours only on a terminal.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report import scope
from sharedtensor_conformance.report.groups import Group, basic_first, groups_of
from sharedtensor_conformance.report.judge import (
    Shortfalls,
    Standing,
    deviates,
    required_levels,
    shortfalls,
    standing,
)
from sharedtensor_conformance.report.needs import NOT_HERE, by_need, reason
from sharedtensor_conformance.report.records import (
    STAND_INS,
    Case,
    ClauseResult,
    Run,
    Summary,
)
from sharedtensor_conformance.report.repeat import repeat_command
from sharedtensor_conformance.report.scope import plural
from sharedtensor_conformance.report.signatures import ALSO_LEFT
from sharedtensor_conformance.report.table import Row, chapter_rows, columns
from sharedtensor_conformance.report.verdicts import Verdict

EVIDENCE_LINES = 20
"""How many lines of evidence a group shows; the report has all of them."""

FAULT_LINES = 6
"""How many lines of a traceback are shown for a fault of the suite or the adapter."""

IN_FULL = 10
"""How many groups are shown with so much evidence; the others with its first line."""

MOST_LEAKS = 2
"""How many leaks are shown of a case that failed and also left something."""

WITH_TITLES = 10
"""Unjudged clauses are shown with their titles if there are at most this many."""

_RED, _GREEN, _YELLOW, _BOLD = "31", "32", "33", "1"


def render(
    run: Run,
    cases: Sequence[Case],
    summary: Summary,
    clauses: Mapping[str, Clause],
    width: int = 80,
    *,
    colour: bool = False,
    file: str | None = None,
    whole: bool = False,
) -> str:
    """Return the report as text of at most `width` columns, unless a word is longer.

    Args:
        run: the first line of the report.
        cases: its cases.
        summary: its summary.
        clauses: the clauses of the installed spec.
        width: the number of columns of the terminal.
        colour: whether to use colours.
        file: the file of the report, if there is one.
        whole: whether to show all evidence of each group.
    """
    paint = _Paint(colour)
    amount = _Amount(whole, file)
    groups = groups_of(cases, summary, clauses)
    blocks = [
        *_heading(run, cases, summary, width),
        _table(chapter_rows(run, summary, cases), paint),
        *_group_blocks(run, groups, summary, clauses, width, paint, amount),
        *_unjudged_block(run, summary, clauses, width),
        *_not_here_block(run, summary, width),
        *_stale_block(run, summary, width),
        _final(run, summary, width, paint),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


class _Amount:
    """Decides how much evidence is shown, and says where the rest is.

    Each group shows at least the first line of its evidence.
    """

    def __init__(self, whole: bool, file: str | None) -> None:
        self._whole, self._file = whole, file
        self._told = 0

    def of(self, case: Case) -> Iterator[str]:
        """Yield the lines of evidence to show of the next group."""
        lines = case.evidence.splitlines() or ["(no evidence was recorded)"]
        fault = case.verdict is Verdict.ERROR  # the last lines say where it happened
        most = FAULT_LINES if fault else EVIDENCE_LINES
        most = len(lines) if self._whole else most if self._told < IN_FULL else 1
        self._told += 1
        # Of a history the end explains the failure, which stands at the beginning.
        first = 0 if fault else (most + 1) // 2
        omitted = max(len(lines) - most, 0)
        for number, line in enumerate(lines):
            if number == first and omitted:
                yield f"({plural(omitted, 'more line')}{self._where})"
            if not first <= number < first + omitted:
                yield line if self._whole else _with_few_leaks(line)

    @property
    def _where(self) -> str:
        if not self._file:
            return "; --report=FILE keeps them"
        return f": shared-tensor-spec report {shlex.quote(self._file)} --all-evidence"


def _with_few_leaks(line: str) -> str:
    """Return a line of evidence; one about leaks with the first of them alone.

    The clauses about leaks have a case that tells all of them.
    """
    leaks = line.split("; ")
    if not line.startswith(ALSO_LEFT.strip()) or len(leaks) <= MOST_LEAKS:
        return line
    return "; ".join([*leaks[:MOST_LEAKS], f"and {len(leaks) - MOST_LEAKS} more"])


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
        f"{' and '.join(devices)}: {plural(summary.cases, 'case')}{_follow(summary)} "
        f"in {summary.seconds:.1f}s"
    )
    paragraphs = [text, *scope.notes(run, summary)]
    return ["\n".join(line for p in paragraphs for line in wrapped(p, width, "", "  "))]


def _follow(summary: Summary) -> str:
    """Return how many cases were not run because they follow from known deviations."""
    count = summary.verdicts.get(Verdict.FOLLOWS, 0)
    if not count:
        return ""
    follow = "follows" if count == 1 else "follow"
    return f" ({count} {follow} from known deviations, not run)"


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


def _group_blocks(
    run: Run,
    groups: Sequence[Group],
    summary: Summary,
    clauses: Mapping[str, Clause],
    width: int,
    paint: _Paint,
    amount: _Amount,
) -> Iterator[str]:
    """Yield a block for each clause that is the most basic one of its group."""
    by_clause = groupby(groups, key=lambda group: (group.first, group.expected))
    for (id, expected), its_groups in by_clause:
        said = facts(run, summary.clauses[id], expected=expected)
        lines = [
            *_title(id, clauses, width, paint, _YELLOW if expected else _RED),
            *wrapped(said, width, "  ", "  "),
        ]
        for group in its_groups:
            lines += _group_lines(run, group, width, amount)
        yield "\n".join(lines)


def _title(
    id: str, clauses: Mapping[str, Clause], width: int, paint: _Paint, code: str
) -> list[str]:
    title = clauses[id].title if id in clauses else "(not in the installed spec)"
    first, *more = wrapped(f"{id}  {title}", width, "", " " * (len(id) + 2))
    return [paint(first, code), *more]


def _group_lines(run: Run, group: Group, width: int, amount: _Amount) -> Iterator[str]:
    others = others_sentence(group) if group.others else ""
    cause = f"cause: {group.cause}" if group.cause else ""
    for sentence in (cause, others, state_sentence(group)):
        if sentence:
            yield from wrapped(sentence, width, "  ", "    ")
    if not group.cause:  # a known cause explains more than evidence
        for line in amount.of(group.shown):
            yield from wrapped(_printable(line), width, "    | ", "    | ")
    yield f"  {repeat_command(run, group.first, group.shown)}"


def facts(run: Run, result: ClauseResult, *, expected: bool) -> str:
    """Return level, profile and standing of a broken clause, and its cases.

    Args:
        run: the run.
        result: what became of the clause.
        expected: whether the failures are known deviations.
    """
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result.cases.items())
    return f"{label(run, result, expected=expected)}: {counts}"


def label(run: Run, result: ClauseResult, *, expected: bool) -> str:
    """Return level, profile and standing of a broken clause."""
    strict = run.selection.strict
    advisory = standing(run, result, strict=strict) is Standing.ADVISORY
    known = "expected" if expected else "not expected" + ", advisory" * advisory
    before = run.selection.carried_over
    known += f", as in {before}" if expected and before else ""
    where = " and the ".join(sorted(STAND_INS.intersection(result.devices)))
    device = f" on the {where} device" if where else ""
    return f"{result.level}, profile {result.profile}, {known}{device}"


def others_sentence(group: Group) -> str:
    """Return which other clauses are broken, probably by the same cause."""
    count = len(group.others)
    if group.shown.verdict is Verdict.BLOCKED:
        return f"not judged: {group.first} and {plural(count, 'other clause')}"
    fail = "fails" if count == 1 else "fail"
    how = "for the same cause" if group.cause else "in the same way"
    if group.rests:
        how += ", or depend on it" if count > 1 else ", or depends on it"
    others = plural(count, "other clause")
    return f"start with {group.first}: {others} {fail} {how}: {', '.join(group.others)}"


def state_sentence(group: Group) -> str:
    """Return how many failures vanished when they were repeated, or "" if none did.

    The command that repeats such a group runs other cases, too, so one case is named.
    """
    vanished = [case for case in group.cases if case.state_dependent]
    if not vanished:
        return ""
    return (
        f"state-dependent: {len(vanished)} of "
        f"{plural(len(group.cases), 'broken case')} held when repeated in fresh "
        f"processes, so earlier cases or timing matter; for example {vanished[0].id}"
    )


def _printable(line: str) -> str:
    # Evidence can contain output of a judged process: escape control characters.
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f]",
        lambda found: f"\\x{ord(found[0]):02x}",
        line.expandtabs(4),
    )


def _unjudged_block(
    run: Run, summary: Summary, clauses: Mapping[str, Clause], width: int
) -> list[str]:
    selection = run.selection
    short = shortfalls(run, summary, strict=selection.strict, full=selection.full)
    if not short.unjudged:
        return []
    lines = ["Claimed, and judged by no case:"]
    if len(short.unjudged) > WITH_TITLES:
        ids = basic_first(short.unjudged, summary.clauses)
        return ["\n".join([*lines, *wrapped(", ".join(ids), width, "  ", "  ")])]
    for id in short.unjudged:
        title = clauses[id].title if id in clauses else ""
        lines += wrapped(f"{id}  {title}".rstrip(), width, "  ", "    ")
    return ["\n".join(lines)]


def _not_here_block(run: Run, summary: Summary, width: int) -> list[str]:
    clauses = by_need(run, summary)
    if not clauses:
        return []
    lines = wrapped(
        f"{NOT_HERE.capitalize()}, since this machine does not permit it:",
        width,
        "",
        "",
    )
    for need, ids in clauses.items():
        lines += wrapped(f"{need}: {', '.join(ids)}", width, "  ", "    ")
        lines += wrapped(need.remedy, width, "    ", "    ")
    return ["\n".join(lines)]


def _stale_block(run: Run, summary: Summary, width: int) -> list[str]:
    if not summary.stale:
        return []
    lines = [f"{scope.stale_title(run)}:"]
    for sentence in summary.stale:
        lines += wrapped(sentence, width, "  ", "    ")
    return ["\n".join(lines)]


def _final(run: Run, summary: Summary, width: int, paint: _Paint) -> str:
    text = verdict_sentence(run, summary)
    code = _RED if summary.exit_status else _GREEN
    return "\n".join(paint(line, code) for line in wrapped(text, width, "", ""))


def verdict_sentence(run: Run, summary: Summary) -> str:
    """Return the verdict of the run on the implementation, in one sentence."""
    return f"{_verdict(run, summary)}{_device_note(run, summary)}."


def _verdict(run: Run, summary: Summary) -> str:
    name = str(run.implementation)
    if _ended_early(run, summary):
        said = f"{scope.cut_short(run, summary)}, so far {_tallied(run, summary)}"
        return f"{name} was not judged completely: {said}"
    found = {Verdict(one) for one in summary.verdicts}
    if Verdict.BLOCKED in found and not any(one.judged for one in found):
        return f"{name} was not judged: {_reasons(run, summary)}"
    if summary.exit_status:
        return f"{name} does not pass: {_reasons(run, summary)}"
    if not run.selection.full:
        part = "shard" if run.selection.shard else "partial selection"
        return f"{name} passes this {part}: {_tallied(run, summary)}"
    if not run.selection.host:
        return f"{name} passes on device memory: {_tallied(run, summary)}"
    strict = run.selection.strict
    if not summary.conforms:
        but = " but does not conform" if deviates(run, summary, strict=strict) else ""
        return f"{name} passes{but}: {_tallied(run, summary)}"
    levels = " and ".join(sorted(required_levels(strict=strict)))
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
    counts = standings(run, summary)
    said = [*_held(run, summary), *_advisory(counts)]
    if expected := counts[Standing.EXPECTED]:
        said.append(f"{plural(expected, 'clause')} broken as expected")
    if not_here := {id for ids in by_need(run, summary).values() for id in ids}:
        said.append(f"{len(not_here)} {NOT_HERE}")
    return ", ".join(said)


def _held(run: Run, summary: Summary) -> list[str]:
    """Return how many clauses held; those that were not asked for only in part."""
    held = [id for id, r in summary.clauses.items() if r.verdict is Verdict.PASS]
    count = sum(scope.asked_for(run, id) for id in held)
    others = len(held) - count
    in_part = [f"{plural(others, 'other')} held in part"] if others else []
    return [f"{plural(count, 'clause')} {scope.held(run)}", *in_part]


def standings(run: Run, summary: Summary) -> Counter[Standing]:
    """Return the number of clauses of each standing."""
    strict = run.selection.strict
    return Counter(standing(run, r, strict=strict) for r in summary.clauses.values())


def _advisory(counts: Counter[Standing]) -> list[str]:
    count = counts[Standing.ADVISORY]
    return [f"{plural(count, 'clause')} broken (advisory)"] if count else []


def _reasons(run: Run, summary: Summary) -> str:
    selection = run.selection
    short = shortfalls(run, summary, strict=selection.strict, full=selection.full)
    counted = (
        (len(short.broken), "clause", "broken"),
        (len(short.blocked), "clause", "blocked and not judged"),
        (len(short.unjudged), "clause", "judged by no case"),
        (len(short.not_here), "clause", f"{NOT_HERE} (--strict asks for every clause)"),
        (short.errors, "case", "ended in an error of the suite or the adapter"),
        (short.stale, "expectation", "stale"),
        (short.carried_over, "clause", "broken as in an earlier release"),
    )
    said = [f"{plural(n, what)} {state}" for n, what, state in counted if n]
    said += _advisory(standings(run, summary))
    if short.nothing:
        counts = (f"{n} {verdict}" for verdict, n in summary.verdicts.items())
        why = f", since {reason(lacking)}" if (lacking := by_need(run, summary)) else ""
        said.append(f"nothing was judged ({', '.join(counts)}){why}")
    if short.cut_short:
        said.append(scope.cut_short(run, summary))
    return ", ".join(said) + _advice(short.broken, summary)


def _advice(broken: Sequence[str], summary: Summary) -> str:
    """Return which clause to start with if several are broken, else ""."""
    if len(broken) < 2:
        return ""
    return f"; start with {basic_first(broken, summary.clauses)[0]}"


def _device_note(run: Run, summary: Summary) -> str:
    if "cuda" not in run.implementation.claims:
        return ""
    cuda = [r for r in summary.clauses.values() if r.profile == "cuda"]
    devices = {device for result in cuda for device in result.devices}
    if "cuda" in devices or not (cuda or run.selection.full):
        return ""
    if where := " and the ".join(sorted(STAND_INS & devices)):
        return f"; profile cuda was judged on the {where} device only, never on CUDA"
    return "; profile cuda was not judged"


def wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    """Return `text` in lines of at most `width` columns; words are never split."""
    return textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
