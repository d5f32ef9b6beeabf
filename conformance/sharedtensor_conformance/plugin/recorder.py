"""Collects the cases of a run, writes the report and judges the run.

The recorder is a pytest plugin object that is registered only in the controller. So
there is one report and one verdict under xdist, too.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.plugin.cases import CaseItem
from sharedtensor_conformance.plugin.enumeration import PlannedCase
from sharedtensor_conformance.plugin.parts import Parts, case_in
from sharedtensor_conformance.plugin.plan import plan_of
from sharedtensor_conformance.plugin.run_record import (
    expectations_file,
    now,
    run_record,
)
from sharedtensor_conformance.plugin.state import IMPLEMENTATION
from sharedtensor_conformance.report.expectations import (
    ExpectationsError,
    load_expectations,
)
from sharedtensor_conformance.report.judge import judge
from sharedtensor_conformance.report.records import (
    Case,
    ReportError,
    ReportWriter,
    Run,
    Summary,
)
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.scope import plural
from sharedtensor_conformance.report.terminal import render
from sharedtensor_conformance.report.verdicts import Verdict

STATUS_NOTHING_SELECTED = 4


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C during the block, so that report and memory have the same cases."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


class Recorder:
    """Collects the cases of a run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.implementation = config.stash[IMPLEMENTATION]
        self.expectations_file = expectations_file(config)
        self.cases: list[Case] = []
        self.parts = Parts()
        self.awaited: dict[str, PlannedCase] = {}
        self.started = time.monotonic()
        self.run: Run | None = None
        self.summary: Summary | None = None
        self.empty = False
        self.failed_elsewhere = False
        self.stopped = ""
        self.private_shm = False
        self.why_not_preloaded = ""
        try:
            self.expected = load_expectations(self.expectations_file)
            self.writer = ReportWriter(config.getoption("report"))
        except (ExpectationsError, ReportError) as error:
            raise pytest.UsageError(str(error)) from None

    # The run

    def header(self) -> list[str]:
        """Return the header lines: implementation, claims and expectations."""
        judged = self.implementation
        expected = self.expectations_file
        lines = [
            f"implementation: {judged.name} {judged.version}; "
            f"claims {', '.join(sorted(judged.claims))}",
            f"expectations: {Path(expected).name if expected else 'none'}",
        ]
        if judged.preload and self.why_not_preloaded:
            lines.append(f"preload: not used, because {self.why_not_preloaded}")
        return lines

    def begin(self, nodeids: Iterable[str]) -> None:
        """Write the first line of the report, with the number of planned cases.

        pytest may have deselected planned cases, and may have collected tests that do
        not belong to the suite.
        """
        self.parts.expect(nodeids)
        found, chosen = self.parts.awaited, plan_of(self.config).chosen
        awaited = {id: case for id, case in chosen.items() if id in found}
        if self.run or self.config.option.collectonly or not awaited:
            return
        self.awaited = awaited
        self.run = run_record(
            self.config,
            expectations=self.expectations_file,
            carried_over=self.expected.carried_over_to(self.implementation.version),
            private_shm=self.private_shm,
            planned=len(awaited),
        )
        self.writer.write(self.run)

    def add(self, case: Case) -> None:
        """Add a case, and write it to the report."""
        with uninterrupted():
            self.cases.append(case)
            self.writer.write(case)

    # Hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the case to the report before other plugins see it."""
        found = case_in(report)
        if report.when == "call" and found:
            if case := self.parts.add(report, found):
                self.add(case)
        elif report.failed:
            self.failed_elsewhere = True  # in setup, or in a test outside the suite

    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str] | None:
        """Count verdicts that pytest does not have, with the words of the table."""
        case = case_in(report)
        if report.when != "call" or not case:
            return None
        if self.parts.are_missing(case.id):
            return "", "", report.outcome.upper()  # it is not counted yet
        if case.verdict is Verdict.FOLLOWS:
            return "follows", "-", "FOLLOWS"
        if not case.verdict.broken or report.failed:
            return None
        known = case.expected
        return ("known", "x", "KNOWN") if known else ("advisory", "a", "ADVISORY")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which results to expect."""
        cases = (item for item in session.items if isinstance(item, CaseItem))
        self.begin(item.nodeid for item in cases)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Note which results to expect, under xdist."""
        self.begin(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> None:
        """Note why the run stops: Ctrl-C, or an option of pytest."""
        self.stopped = str(excinfo.value) or "interrupted"
        # pytest fails on a frame that was interrupted where Python knows no line
        excinfo.traceback = excinfo.traceback.filter(_has_line)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Judge the run; replace pytest's exit status by the suite's."""
        _silence_hypothesis(self.config.pluginmanager)
        if self.config.option.collectonly:
            return
        if self.run is None:
            self.empty = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
            session.exitstatus = STATUS_NOTHING_SELECTED if self.empty else exitstatus
            return
        self.stopped = str(session.shouldfail or session.shouldstop or self.stopped)
        for case in self.parts.incomplete_broken():
            self.add(case)
        self.summary = self._summarise(self.run)
        self.writer.write(self.summary)
        self.writer.close()
        # With workers, pytest reports a stop after failures as an interruption.
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if ended or self.stopped.startswith("stopping after"):
            session.exitstatus = self.summary.exit_status or self.failed_elsewhere

    def _summarise(self, run: Run) -> Summary:
        version, is_full = self.implementation.version, run.selection.full
        return judge(
            run,
            self.cases,
            load_clauses(),
            stale=self.expected.stale(self.cases, version) if is_full else (),
            finished=now(),
            seconds=round(time.monotonic() - self.started, 3),
            stopped=self.stopped,
        )

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Print the table by chapter and the broken clauses."""
        if self.empty:
            terminalreporter.write_line(f"ERROR: {self._why_empty()}", red=True)
        if self.summary and self.run:
            terminal = terminalreporter._tw
            width, colour = terminal.fullwidth, terminal.hasmarkup
            view = RunView(self.run, self.cases, self.summary, load_clauses())
            terminalreporter.write_line("")
            file = self.config.getoption("report")
            end = render(view, width, colour=colour, file=file)
            terminalreporter.write_line(end)

    def _why_empty(self) -> str:
        plan = plan_of(self.config)
        if plan.shard and plan.shard.cases and not plan.chosen:
            return (
                f"the shard {plan.shard} is empty: the selection has only "
                f"{plural(plan.shard.cases, 'case')}; use fewer shards"
            )
        return (
            "nothing was selected: no case of this implementation matches all these "
            "options; remove one of them, or list the cases with --collect-only"
        )


def _silence_hypothesis(plugins: pytest.PytestPluginManager) -> None:
    """Unregister Hypothesis' plugin: it would import Hypothesis to report no use."""
    if "hypothesis" not in sys.modules and plugins.hasplugin("hypothesispytest"):
        plugins.unregister(name="hypothesispytest")


def _has_line(entry: Any) -> bool:
    """Return whether a frame of a traceback has the line that pytest shows."""
    try:
        return bool(entry.lineno >= 0)
    except TypeError:
        return False
