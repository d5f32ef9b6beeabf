"""The suite as pytest sees it: a run is configured, and each case is run.

Loaded by ``conftest.py``, or by ``entry.py`` for an installed suite, and with it the
options, the collection and the fixtures. Nothing depends on the settings of the project
in which the suite is run, and nothing of the implementation is imported here.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.harness import inspection
from sharedtensor_conformance.harness.watchdog import case_limit
from sharedtensor_conformance.plugin.cases import batch_of, case_id, marking_of
from sharedtensor_conformance.plugin.options import selection_of
from sharedtensor_conformance.plugin.plan import durations_of, plan_of
from sharedtensor_conformance.plugin.recorder import Recorder
from sharedtensor_conformance.plugin.runner import Runner, Story
from sharedtensor_conformance.plugin.smoke_test import run_smoke_test
from sharedtensor_conformance.plugin.stages import Stages
from sharedtensor_conformance.plugin.state import RECORDER, RUNNER, SELECTION
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

pytest_plugins = [
    "sharedtensor_conformance.plugin.options",
    "sharedtensor_conformance.plugin.collection",
    "sharedtensor_conformance.plugin.fixtures",
    "sharedtensor_conformance.plugin.progress",
]

SHARED = "sharedtensor_conformance"
"""The name under which the controller tells xdist workers what it found out."""

MOST_WORKERS = 16
"""With ``-n auto``; the longest batch takes as long with more of them."""


# Start and end of a run


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Resolve the adapter and the selection; wrong use ends here, with status 4."""
    if config.option.help or config.option.markers:
        return
    worker = getattr(config, "workerinput", None)
    if worker is None:
        _configure_controller(config)
    else:
        _configure(config, worker[SHARED], _stages(worker[SHARED]))


def _configure_controller(config: pytest.Config) -> None:
    """Learn what workers need as well; then report, and judge, for all of them."""
    implementation = _described(config)
    selection = selection_of(config, implementation)
    recorder = Recorder(config, implementation, selection)
    config.stash[RECORDER] = recorder
    config.pluginmanager.register(recorder, "conformance-recorder")
    if config.option.timings:
        durations_of(config, implementation)  # wrong use, before anything is run
    shared = {
        "name": config.option.impl,
        "implementation": implementation.as_data(),
        "expectations": recorder.expectations_file,
        "blocked": "",
        "template": "",
    }
    stages = _stages(shared)
    if not config.option.collectonly:
        found = run_smoke_test(stages, selection, _limit_of(config, implementation))
        shared["blocked"], recorder.private_shm = found.blocked, found.private_shm
        recorder.why_not_preloaded = stages.template.why_not
    if config.getoption("dist", "no") != "no":
        stages.retire()  # its workers have processes of their own, but for the template
        shared["template"] = stages.template.address
    _configure(config, shared, stages)
    if config.option.tbstyle == "auto" and not selection.cases:
        config.option.tbstyle = "no"  # the end of the run says what is broken
    if config.option.reportchars == "fE":  # pytest's default
        config.option.reportchars = ""


def _described(config: pytest.Config) -> Implementation:
    """Return what the adapter declares.

    Raises:
        pytest.UsageError: it cannot be loaded, or is malformed.
    """
    name, timeout = config.option.impl, config.option.patience
    try:
        description = inspection.describe(name, timeout or inspection.DEADLINE)
    except loader.LoadingError as error:
        raise pytest.UsageError(str(error)) from None
    if description.problems:
        raise pytest.UsageError(
            f"the adapter {name!r} is malformed: {description.problems[0]} "
            f"(`shared-tensor-spec check-adapter {name}` says all)"
        )
    declared = description.implementation
    return replace(declared, patience=timeout) if timeout else declared


def _stages(shared: dict[str, Any]) -> Stages:
    implementation = Implementation.from_data(shared["implementation"])
    return Stages(shared["name"], implementation, shared["template"])


def _configure(config: pytest.Config, shared: dict[str, Any], stages: Stages) -> None:
    """Do what controller and workers both do."""
    implementation = stages.implementation
    config.stash[SELECTION] = selection_of(config, implementation)
    config.stash[RUNNER] = Runner(
        stages,
        blocked=shared["blocked"],
        expectations=shared["expectations"],
        strict=bool(config.getoption("strict")),
        all_cases=bool(config.option.all_cases or config.option.case),
        repeats=not config.option.no_repetition,
        limit=_limit_of(config, implementation),
        stderr=_real_stderr(config),
    )
    config._conformance_shared = shared  # type: ignore[attr-defined]


def _limit_of(config: pytest.Config, implementation: Implementation) -> float:
    return float(config.option.case_limit or case_limit(implementation))


def _real_stderr(config: pytest.Config) -> int:
    """Return a descriptor of what stderr is when pytest does not capture it."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        return os.dup(2)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker what the controller found out."""
    node.workerinput[SHARED] = node.config._conformance_shared


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return how many workers ``-n auto`` has: two for each processor, as cases wait.

    It has four where one case stands for a clause: more of those wait in full, for what
    is known to hang or to stay. Where xdist's own environment variable says how many,
    that holds.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    each = 4 if config.option.one_per_clause else 2
    return min(each * len(os.sched_getaffinity(0)), MOST_WORKERS)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker run all cases of a batch, whatever ``--dist`` says."""
    from sharedtensor_conformance.plugin.xdist_scheduler import BatchScheduling

    return BatchScheduling(config, log)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is judged."""
    recorder = config.stash.get(RECORDER, None)
    return recorder.header() if recorder else []


def pytest_unconfigure(config: pytest.Config) -> None:
    """End all processes."""
    if runner := config.stash.get(RUNNER, None):
        runner.close()


# Running


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a case, and give pytest the outcome that goes with its verdict."""
    marking = marking_of(pyfuncitem.function)
    if marking is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}

    def test() -> None:
        if "bystander" in arguments:  # before any tensor is there: it could inherit it
            arguments["bystander"].ensure_started()
        pyfuncitem.obj(**arguments)

    config = pyfuncitem.config
    runner = config.stash[RUNNER]
    plan = plan_of(config, config.stash[SELECTION], runner.implementation)
    planned = plan.chosen[case_id(pyfuncitem)]
    case = runner.run(Story(planned, test, batch_of(pyfuncitem)))
    pyfuncitem.user_properties.append(("case", json.dumps(case.as_data())))
    _report_to_pytest(case, runner.decides(case))
    return True


def _report_to_pytest(case: Case, decides: bool) -> None:
    said = f"{case.verdict}: {case.evidence}"
    if case.verdict in (Verdict.FOLLOWS, Verdict.UNSUPPORTED, Verdict.NOT_RUN):
        pytest.skip(said)
    if case.verdict is Verdict.PASS:
        return
    if decides:
        pytest.fail(said, pytrace=False)
    pytest.xfail(case.cause or said)
