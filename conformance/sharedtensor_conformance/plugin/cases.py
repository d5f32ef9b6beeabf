"""A case of the suite as an item of pytest, and what its test gets for its parameters.

The items are made from the planned cases. So pytest runs exactly what was planned, and
neither its fixtures nor its parameters are needed.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from sharedtensor_conformance.chapters.random_histories import run_histories
from sharedtensor_conformance.harness.case.outcomes import HarnessFault
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.plugin.enumeration import PlannedCase
from sharedtensor_conformance.plugin.state import RUNNER
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict


class CaseItem(pytest.Item):
    """A case of the suite.

    Args:
        planned: the case.
        function: its test.
        batch: the number of the batch in which it runs, in its configuration.
    """

    def __init__(
        self,
        name: str,
        parent: pytest.Collector,
        *,
        planned: PlannedCase,
        function: Callable[..., None],
        batch: int,
        **node: Any,
    ) -> None:
        # pytest splits a node id that it gets as text into test and parameters, like
        # the ids in its cache. Otherwise --last-failed would not find the case there.
        super().__init__(name, parent, nodeid=f"{parent.nodeid}::{name}", **node)
        self.own_markers.extend(getattr(function, "pytestmark", []))
        self.planned = planned
        self.function = function
        self.batch = batch

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return where the test is, and what pytest calls the case."""
        return self.path, self.function.__code__.co_firstlineno - 1, self.name

    def runtest(self) -> None:
        """Run the case, and report its verdict to pytest as an outcome."""
        runner = self.config.stash[RUNNER]
        case = runner.run(self)
        self.user_properties.append(("case", json.dumps(case.as_data())))
        _report_to_pytest(case, runner.decides(case))

    def call_test(self) -> None:
        """Call the test, with the processes and values of the case."""
        stages = self.config.stash[RUNNER].stages
        stage = stages.of(self.planned.configuration, self.batch)
        known = self._values(stage)
        names = inspect.signature(self.function).parameters
        if unknown := sorted(names - known.keys()):
            raise HarnessFault(
                f"{self.function.__name__} has a parameter {unknown[0]}, which is none "
                f"of those that its cases have: {', '.join(sorted(known))}"
            )
        if "bystander" in names:  # before there are tensors that it could inherit
            stage.bystander.ensure_started()
        self.function(**{name: known[name] for name in names})

    def _values(self, stage: Stage) -> dict[str, Any]:
        """Return what a test can have as a parameter, by its name.

        The owner starts the other processes: the peer, and the bystander, a third one.
        These objects stay the same when their processes are replaced. The sender and
        the receiver are the owner and the peer, or the reverse, by the direction of the
        case. `histories` runs random histories of a family.
        """
        where, values = self.planned.configuration, self.planned.values
        pair = {"sender": stage.owner, "receiver": stage.peer}
        if values.get("direction") == "to_owner":
            pair = {"sender": stage.peer, "receiver": stage.owner}
        given = self.config.option
        # The seed differs between configurations.
        seed = int(given.history_seed) + crc32(where.id.encode())
        return {
            "strategy": where.strategy,
            "start_method": where.start_method,
            "device": where.device,
            "implementation": stage.implementation,
            "stage": stage,
            "owner": stage.owner,
            "peer": stage.peer,
            "bystander": stage.bystander,
            "histories": partial(
                run_histories, stage, count=given.histories, seed=seed
            ),
            **pair,
            **values,
        }


def _report_to_pytest(case: Case, decides: bool) -> None:
    said = f"{case.verdict}: {case.evidence}"
    if case.verdict in (Verdict.FOLLOWS, Verdict.UNSUPPORTED, Verdict.NOT_RUN):
        pytest.skip(said)
    if case.verdict is Verdict.PASS:
        return
    if decides:
        pytest.fail(said, pytrace=False)
    pytest.xfail(case.cause or said)
