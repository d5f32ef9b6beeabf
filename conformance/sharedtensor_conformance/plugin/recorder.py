"""The controller's memory of a run: collects cases, writes the report, judges.

A pytest plugin object, registered in the controller alone, so that under xdist there is
one report and one judgement.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.matrix import Selection
from sharedtensor_conformance.plugin.run_record import (
    expectations_file,
    now,
    run_record,
)
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
from sharedtensor_conformance.report.terminal import render

NOTHING_SELECTED = 4


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C for the block, so that report and memory stay equal."""
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
    """Collects what a run finds out."""

    def __init__(
        self, config: pytest.Config, implementation: Implementation, chosen: Selection
    ) -> None:
        self.config = config
        self.implementation = implementation
        self.chosen = chosen
        self.expectations_file = expectations_file(config, implementation)
        self.cases: list[Case] = []
        self.planned = -1
        self.started = time.monotonic()
        self.run: Run | None = None
        self.summary: Summary | None = None
        self.empty = False
        self.failed_elsewhere = False
        self.private_shm = False
        self.why_not_preloaded = ""
        try:
            self.expected = load_expectations(self.expectations_file)
            self.writer = ReportWriter(config.getoption("report"))
        except (ExpectationsError, ReportError) as error:
            raise pytest.UsageError(str(error)) from None

    # The run

    def header(self) -> list[str]:
        """Return what is judged, in a line or two."""
        judged = self.implementation
        expected = self.expectations_file
        lines = [
            f"implementation: {judged.name} {judged.version}; "
            f"claims {', '.join(sorted(judged.claims))}",
            f"expectations: {Path(expected).name if expected else 'none'}",
        ]
        if judged.preload and self.why_not_preloaded:
            lines.append(f"preload: not used, since {self.why_not_preloaded}")
        return lines

    def plan(self, count: int) -> None:
        """Begin the report: say how many results there will be."""
        if self.planned >= 0 or self.config.option.collectonly:
            return
        self.planned = count
        self.run = run_record(
            self.config,
            self.implementation,
            self.chosen,
            expectations=self.expectations_file,
            private_shm=self.private_shm,
            planned=count,
        )
        self.writer.write(self.run)

    def add(self, case: Case) -> None:
        """Take in one case."""
        with uninterrupted():
            self.cases.append(case)
            self.writer.write(case)

    # Hooks

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the case to the report."""
        found: Any = dict(report.user_properties).get("case")
        if report.when == "call" and found:
            self.add(Case.from_data(json.loads(found)))
        elif report.failed:
            self.failed_elsewhere = True  # in setup, or a test that is not the suite's

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Learn how many results there will be."""
        if not hasattr(session.config, "workerinput") and session.items:
            self.plan(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Learn how many results there will be, under xdist."""
        if ids:
            self.plan(len(ids))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Judge the run; the exit status is the suite's, not pytest's."""
        _silence_hypothesis(self.config.pluginmanager)
        if self.config.option.collectonly:
            return
        if self.planned < 0:
            self.empty = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
            session.exitstatus = NOTHING_SELECTED if self.empty else exitstatus
            return
        self.summary = self._summarise()
        self.writer.write(self.summary)
        self.writer.close()
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = self.summary.exit_status or self.failed_elsewhere

    def _summarise(self) -> Summary:
        assert self.run is not None
        version = self.implementation.version
        return judge(
            self.run,
            self.cases,
            load_clauses(),
            strict=self.run.selection.strict,
            full=self.chosen.full,
            stale=self.expected.stale(self.cases, version) if self.chosen.full else (),
            finished=now(),
            seconds=round(time.monotonic() - self.started, 3),
        )

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """End with the table by chapter and what is broken."""
        if self.empty:
            terminalreporter.write_line(
                "ERROR: nothing was selected: no case of this implementation matches "
                "these options together; drop one, or look with --collect-only",
                red=True,
            )
        if self.summary and self.run:
            width = terminalreporter._tw.fullwidth
            text = render(self.run, self.cases, self.summary, load_clauses(), width)
            terminalreporter.write_line("")
            terminalreporter.write_line(text)


def _silence_hypothesis(plugins: pytest.PytestPluginManager) -> None:
    """Let its plugin not import all of Hypothesis to say that nothing used it."""
    if "hypothesis" not in sys.modules and plugins.hasplugin("hypothesispytest"):
        plugins.unregister(name="hypothesispytest")
