"""Shows the progress of a run in one line that is updated in place.

The line says how many clauses held and were broken so far, how many cases are done, how
much time is left, and in which configurations cases are running. On a terminal it
replaces pytest's dots, which only show how many cases are done. If the output is not a
terminal, or with ``-q`` or ``-v``, pytest's own output is unchanged.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable

import pytest

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.plugin.enumeration import id_in_report
from sharedtensor_conformance.plugin.plan import durations_of
from sharedtensor_conformance.plugin.recorder import Recorder
from sharedtensor_conformance.plugin.state import RECORDER
from sharedtensor_conformance.report.judge import required_levels
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict, of_clause

PRIOR_SECONDS = 10.0
"""The estimate starts as if cases of this recorded duration had taken exactly that."""


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Register the progress line if the output is a terminal."""
    config = session.config
    recorder = config.stash.get(RECORDER, None)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if recorder and reporter and is_shown(config, reporter):
        config.pluginmanager.register(
            Progress(recorder, reporter), "conformance-progress"
        )


def is_shown(config: pytest.Config, reporter: pytest.TerminalReporter) -> bool:
    """Return whether the output is a terminal that can rewrite a line."""
    plain = config.option.verbose == 0 and config.option.capture != "no"
    able = bool(reporter.isatty) and os.environ.get("TERM") != "dumb"
    return able and plain and not config.option.collectonly


class Clauses:
    """Counts the clauses by their state so far.

    Args:
        strict: SHOULD clauses decide too.
    """

    def __init__(self, *, strict: bool) -> None:
        self._levels = required_levels(strict=strict)
        self._verdicts: defaultdict[str, set[Verdict]] = defaultdict(set)
        self._unexpected: set[str] = set()

    def add(self, case: Case) -> None:
        """Count a case."""
        for id in case.clauses:
            self._verdicts[id].add(case.verdict)
            if not case.expected:
                self._unexpected.add(id)

    def __str__(self) -> str:
        now = {id: of_clause(seen) for id, seen in self._verdicts.items()}
        broken = {id for id, verdict in now.items() if verdict.broken}
        held = sum(verdict is Verdict.PASS for verdict in now.values())
        new = broken & self._unexpected
        deciding = {id for id in new if load_clauses()[id].level in self._levels}
        said = f"clauses: {held} held, {len(deciding)} new"
        if advisory := len(new - deciding):
            said += f", {advisory} advisory"
        if known := len(broken - new):
            said += f", {known} known"
        return said


class TimeEstimate:
    """Estimates the remaining time from recorded durations.

    Args:
        seconds: the recorded duration of each case.
        workers: how many cases run at the same time.
    """

    def __init__(self, seconds: dict[str, float], workers: int) -> None:
        self._remaining = dict(seconds)
        self._total = sum(seconds.values())
        self._workers = workers

    def done(self, id: str) -> None:
        """Note that a case has ended."""
        self._remaining.pop(id, None)

    def left(self, elapsed: float) -> float:
        """Return the remaining seconds, `elapsed` seconds after the first case began.

        The cases that have ended show how fast this machine is, compared with the one
        on which the durations were recorded.
        """
        remaining = sum(self._remaining.values())
        done = self._total - remaining
        pace = (elapsed + PRIOR_SECONDS / self._workers) / (done + PRIOR_SECONDS)
        return remaining * pace


def format_duration(seconds: float) -> str:
    """Return a rounded duration with its unit."""
    if seconds < 55:
        return f"{max(5, 5 * round(seconds / 5))} s"
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes / 60:.1f} h"


class Progress:
    """Writes the line while cases run; a pytest plugin object in the controller."""

    def __init__(self, recorder: Recorder, reporter: pytest.TerminalReporter) -> None:
        self.recorder = recorder
        self.reporter = reporter
        self.clauses = Clauses(strict=bool(reporter.config.getoption("strict")))
        self.clock: TimeEstimate | None = None
        self._began = 0.0
        self._seen = 0
        self._active = False
        self._running: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Replace pytest's dots during the run, and clear the line at the end."""
        self.reporter._show_progress_info = False  # the percentage beside the dots
        self.reporter.showfspath = False
        self._active = True
        try:
            return (yield)
        finally:
            self._active = False
            self._write("")

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> Generator[None, tuple[str, object, object], tuple[str, object, object]]:
        """Suppress the dot of a case."""
        category, letter, word = yield
        if self._active and "case" in dict(report.user_properties):
            return category, "", ""
        return category, letter, word

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Show the configuration of a case that begins."""
        case = self.recorder.awaited.get(id_in_report(nodeid))
        if case:
            self._began = self._began or time.monotonic()
            self._running[case.id] = case.configuration.id
            self._draw()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the case that the recorder has just received."""
        if report.when == "call":
            self._running.pop(id_in_report(report.nodeid), None)
            self._draw()

    def _draw(self) -> None:
        clock, cases = self._clock(), self.recorder.cases
        for case in cases[self._seen :]:
            self.clauses.add(case)
            clock.done(case.id)
        self._seen = len(cases)
        left = clock.left(time.monotonic() - self._began)
        parts = [
            str(self.clauses),
            f"{len(cases)} of {len(self.recorder.awaited)} cases",
            f"{format_duration(left)} left",
            _listed(self._running.values()),
        ]
        self._write(" | ".join(part for part in parts if part))

    def _clock(self) -> TimeEstimate:
        if self.clock is None:
            config, awaited = self.recorder.config, self.recorder.awaited
            durations = durations_of(config)
            seconds = {id: durations.seconds(case) for id, case in awaited.items()}
            workers = config.getoption("numprocesses", None) or 1
            self.clock = TimeEstimate(seconds, workers)
        return self.clock

    def _write(self, text: str) -> None:
        width = self.reporter._tw.fullwidth
        self.reporter.rewrite(text[: width - 1], erase=True)
        if text:
            self.reporter.currentfspath = -2  # the next writer begins a new line
        else:
            self.reporter._tw.write("\r")
            self.reporter.currentfspath = None
        self.reporter.flush()


def _listed(configurations: Iterable[str]) -> str:
    return ", ".join(sorted(set(configurations)))
