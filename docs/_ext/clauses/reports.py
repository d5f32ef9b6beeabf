"""Reads the committed reports: what runs of the suite said of each implementation.

A report is shown as it is. What the site adds is one comparison: a report names the
hash of each clause that it judged, so a verdict on another text than the one printed
beside it is marked as such. Several reports on the same version of an implementation,
each of a part of the suite, are one column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from sharedtensor_conformance.clauses import Clause, load_clauses
from sharedtensor_conformance.report.groups import groups_of
from sharedtensor_conformance.report.judge import lacks_cuda
from sharedtensor_conformance.report.known import Breach
from sharedtensor_conformance.report.needs import NOT_HERE, reason
from sharedtensor_conformance.report.records import (
    STAND_INS,
    Case,
    Report,
    Run,
    Summary,
    read_report,
)
from sharedtensor_conformance.report.verdicts import Need, Verdict
from sphinx.errors import ExtensionError

from clauses.known import Deviation, Deviations, stopping_the_build

SHOWN = 3
"""How many broken cases of a clause are shown with their evidence."""

SYMBOLS = {
    Verdict.PASS: "✓",
    Verdict.FAIL: "✗",
    Verdict.CRASH: "✗",
    Verdict.HANG: "✗",
    Verdict.ERROR: "!",
    Verdict.BLOCKED: "■",
    Verdict.FOLLOWS: "✗",
    Verdict.NOT_RUN: "○",
    Verdict.UNSUPPORTED: "·",
}
WORDS = {Verdict.NOT_RUN: "not run", Verdict.UNSUPPORTED: "not claimed"}
NOT_SHOWN = (
    "This deviation is intermittent, and did not show in this run. The program shows "
    "it every time, so the clause counts as broken."
)
NO_CUDA = (
    "the judged build is for the CPU: this library shares CUDA tensors in builds with "
    "CUDA, which need a GPU"
)
APART = {
    "torch-patched": "PyTorch with fixes that nobody ships",
    "reference": "this project's own reference",
    "copy": "a control that copies, and so has to fail",
    "numpy-copy": "a control that copies, and so has to fail",
}
"""What is judged and is no library to choose, and what it is."""

ON_A_DEVICE = "gpu/torch.jsonl"
"""The report of a run on a real device, in the folder of the reports."""


def word_of(verdict: Verdict) -> str:
    """Return a verdict as a word."""
    return WORDS.get(verdict, verdict.value)


class Setting(NamedTuple):
    """A strategy and a start method; empty where a case depends on none."""

    strategy: str
    start_method: str

    @classmethod
    def of(cls, case: Case) -> Setting:
        """Return the setting of a case."""
        return cls(*(case.axes.get(axis, "") for axis in cls._fields))

    def includes(self, other: Setting) -> bool:
        """Return whether a case with this setting speaks for another one."""
        return all(
            mine in ("", theirs) for mine, theirs in zip(self, other, strict=True)
        )


@dataclass
class Judgement:
    """What one report says of one clause, or of one case.

    Args:
        breach: what it breaks, if it is broken or held by chance.
        lacks_cuda: whether no case judged it since the run used no CUDA device.
        not_shown: known deviations about this clause that did not show in the run, as
            those that chance decides may. The clause held, and is broken all the same.
        needs: why no case judged it, if the machine did not permit it.
    """

    verdict: Verdict
    expected: bool
    text_hash: str
    cases: Counter[Verdict] = field(default_factory=Counter)
    causes: dict[Deviation, None] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)
    not_shown: dict[Deviation, None] = field(default_factory=dict)
    evidence: list[tuple[str, str]] = field(default_factory=list)
    held_with: set[Setting] = field(default_factory=set)
    broken_with: set[Setting] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    needs: tuple[Need, ...] = ()
    breach: Breach | None = None
    lacks_cuda: bool = False

    @property
    def says_something(self) -> bool:
        """Whether any case was judged, or could not be for a fault."""
        return self.verdict.judged or self.verdict.broken

    @property
    def symbol(self) -> str:
        """The sign of the verdict of a case."""
        return SYMBOLS[self.verdict]

    @property
    def words(self) -> str:
        """The verdict of a case in words: a known deviation is named as one."""
        word = NOT_HERE if self.needs else word_of(self.verdict)
        return f"{word}, known" if self.verdict.broken and self.expected else word

    @property
    def note(self) -> str:
        """Why the verdict counts as it does, where its cause is not in the report."""
        if self.needs:
            return f"Not judged, since {reason(self.needs)}."
        if self.lacks_cuda:
            return f"Not run, since {NO_CUDA}."
        return NOT_SHOWN if self.not_shown else ""

    @property
    def known(self) -> list[Deviation]:
        """The deviations that are known, whether they showed in the run or not."""
        return [*self.causes, *self.not_shown]

    @property
    def stand_ins(self) -> list[str]:
        """The devices that stood in for a real one where the clause was judged."""
        return sorted(STAND_INS & self.devices)

    def holds_with(self, setting: Setting) -> bool | None:
        """Return whether the clause holds with a setting; None if no case says so.

        Not each test is run with each setting. So a known deviation counts with those
        that its entry does not leave out, and with which the clause was judged.
        """
        if self._is_broken_with(setting):
            return False
        if any(one.includes(setting) for one in self.held_with):
            return True
        return None

    def _is_broken_with(self, setting: Setting) -> bool:
        if any(one.includes(setting) for one in self.broken_with):
            return True
        judged = self.held_with | self.broken_with
        return (
            any(one.strategy in ("", setting.strategy) for one in judged)
            and any(one.start_method in ("", setting.start_method) for one in judged)
            and any(one.occurs_with(*setting) for one in self.known)
        )

    def is_of_another_text(self, clause: Clause) -> bool:
        """Return whether another text was judged; of what is not claimed none was."""
        is_judged = self.verdict is not Verdict.UNSUPPORTED
        return is_judged and self.text_hash != clause.hash

    def has_evidence(self, clause: Clause) -> bool:
        """Return whether something is behind the verdict."""
        behind = self.known or self.evidence
        return bool(behind or self.is_of_another_text(clause))

    def add(self, case: Case, known: Deviations) -> None:
        """Count one case, and keep what a broken one left as evidence."""
        self.cases[case.verdict] += 1
        if case.verdict.broken or case.verdict is Verdict.FOLLOWS:
            self.broken_with.add(Setting.of(case))
        elif case.verdict is Verdict.PASS:
            self.held_with.add(Setting.of(case))
        if case.verdict.judged:
            self.devices.add(case.device)
        if case.verdict in (Verdict.NOT_RUN, Verdict.UNSUPPORTED) and case.evidence:
            self.reasons[case.evidence] = None
        if case.verdict.broken or case.verdict is Verdict.NOT_RUN:
            if cause := known.of(case):
                self.causes[cause] = None
            if len(self.evidence) < SHOWN and case.evidence:
                self.evidence.append((case.id, case.evidence))


class Shown:
    """One report, arranged by clause.

    Attributes:
        groups: what is broken, by cause, with what is known of it.
        cells: its cases of the fault table.
        place: its file, from the folder of the reports.
    """

    def __init__(self, file: Path, root: Path) -> None:
        """Read the report in `file`, a file of the repository at `root`.

        Raises:
            ExtensionError: it holds no report, or one of a run that was cut short.
        """
        report, summary = _whole(file)
        known = Deviations(root, report.run)
        groups = groups_of(report.cases, summary, load_clauses())
        self.file = file
        self.place = file.relative_to(root / "docs" / "reports").as_posix()
        self.run = report.run
        self.summary = summary
        self.name = name_of(report.run)
        self.title = f"{self.name} {report.run.implementation.version}".strip()
        self.started = report.run.started
        self.full = report.run.selection.full
        self.judgements = judgements(report, summary, known)
        self.groups = [(group, known.of(group.shown)) for group in groups]
        self.cells = [case for case in report.cases if "cell" in case.axes]

    @property
    def day(self) -> str:
        """The day of the run."""
        return self.started.partition("T")[0]


def name_of(run: Run) -> str:
    """Return the name of what a run judged; of device memory alone, with the device."""
    name, selection = run.implementation.name, run.selection
    return name if selection.host else f"{name}-{selection.device}"


class Column:
    """What all reports together say of one version of an implementation.

    Of two reports that judge the same, the later one counts.
    """

    def __init__(self, name: str, reports: Sequence[Shown]) -> None:
        in_time = sorted(reports, key=lambda report: report.started)
        cells = {case.id: case for report in in_time for case in report.cells}
        self.name = name
        self.title = reports[0].title
        self.reports = reports
        self.cells = list(cells.values())
        self.judgements: dict[str, Judgement] = {}
        for report in in_time:
            for id, judgement in report.judgements.items():
                if id not in self.judgements or judgement.says_something:
                    self.judgements[id] = judgement

    @property
    def slug(self) -> str:
        """The name as addresses and anchors have it."""
        return nodes.make_id(self.name)

    @property
    def version(self) -> str:
        """The version, which the title has after the name."""
        return self.title.removeprefix(self.name).strip()

    @property
    def day(self) -> str:
        """The day of the last run."""
        return max(report.day for report in self.reports)

    @property
    def apart(self) -> str:
        """What it is, if it is no library to choose."""
        return APART.get(self.name, "")

    @property
    def gpus(self) -> str:
        """The GPUs of its runs."""
        found = [r.run.machine.cuda for r in self.reports if r.run.machine.cuda]
        return ", ".join({gpu.name: None for cuda in found for gpu in cuda.gpus})

    @property
    def on_host(self) -> bool:
        """Whether a run judged host memory too, and not a device alone."""
        return any(report.run.selection.host for report in self.reports)

    def asks(self, clause: Clause) -> bool:
        """Return whether its runs were to judge a clause: on devices, those of CUDA."""
        return self.on_host or clause.profile == "cuda"


def columns(reports: Iterable[Shown]) -> list[Column]:
    """Return a column for each version of an implementation, in their order."""
    groups: dict[str, list[Shown]] = {}
    for report in reports:
        groups.setdefault(report.title, []).append(report)
    names = Counter(group[0].name for group in groups.values())
    return [
        Column(group[0].name if names[group[0].name] == 1 else title, group)
        for title, group in groups.items()
    ]


def read_all(root: Path, first: list[str]) -> list[Shown]:
    """Return the committed reports: those named `first`, then the others by name."""
    folder = root / "docs" / "reports"
    places = {name: place for place, name in enumerate(first)}
    return sorted(
        [
            Shown(path, root)
            for path in (*folder.glob("*.jsonl"), *folder.glob(ON_A_DEVICE))
        ],
        key=lambda report: (
            places.get(report.name, len(places)),
            report.name,
            not report.full,
            report.file.name,
        ),
    )


def _whole(file: Path) -> tuple[Report, Summary]:
    with stopping_the_build():
        report = read_report(file)
    if report.summary is None:
        raise ExtensionError(f"{file} was cut short: only whole runs are shown")
    return report, report.summary


def judgements(
    report: Report, summary: Summary, known: Deviations
) -> dict[str, Judgement]:
    """Return what a report says of each clause, with the cases that say it."""
    found = judged(report.run, summary)
    for case in report.cases:
        for id in set(case.clauses) & set(found):
            found[id].add(case, known)
    for id, deviation in known.not_shown(report.cases, summary):
        found[id].not_shown[deviation] = None
    for id, breach in known.breaches(report.cases, summary).items():
        found[id].breach = breach
    return found


def judged(run: Run, summary: Summary) -> dict[str, Judgement]:
    """Return what a summary says of each clause."""
    hashes = run.spec.hashes
    return {
        id: Judgement(
            one.verdict,
            one.expected,
            hashes.get(id, ""),
            needs=one.needs,
            lacks_cuda=lacks_cuda(run, one),
        )
        for id, one in summary.clauses.items()
    }
