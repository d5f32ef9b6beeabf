"""The main hooks of the pytest plugin: configures a run and runs each case.

``conftest.py`` loads this module, or ``entry.py`` if the suite is installed. This
module loads the options, the collection and the fixtures. It does not depend on the
pytest settings of the project in which the suite runs, and it does not import the
implementation.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapter_trial import inspection
from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.harness.case import in_flight
from sharedtensor_conformance.plugin.cases import batch_of, case_id, marking_of
from sharedtensor_conformance.plugin.options import selection_of
from sharedtensor_conformance.plugin.plan import durations_of, plan_of
from sharedtensor_conformance.plugin.recorder import Recorder
from sharedtensor_conformance.plugin.runner import PreparedCase, Runner
from sharedtensor_conformance.plugin.smoke_test import run_smoke_test
from sharedtensor_conformance.plugin.stages import Stages
from sharedtensor_conformance.plugin.state import RECORDER, RUNNER, SELECTION
from sharedtensor_conformance.plugin.watchdog import case_limit
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

pytest_plugins = [
    "sharedtensor_conformance.plugin.options",
    "sharedtensor_conformance.plugin.collection",
    "sharedtensor_conformance.plugin.fixtures",
    "sharedtensor_conformance.plugin.progress",
]

SHARED_DATA_KEY = "sharedtensor_conformance"
"""The key of the data that the controller sends to the xdist workers."""

MAX_WORKERS = 16
"""The limit for ``-n auto``: more workers do not shorten the longest batch."""


# Start and end of a run


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load the adapter and make the selection; a usage error exits with status 4."""
    if config.option.help or config.option.markers:
        return
    config.add_cleanup(in_flight.raise_limit())
    worker = getattr(config, "workerinput", None)
    if worker is None:
        _configure_controller(config)
    else:
        _configure(config, worker[SHARED_DATA_KEY], _stages(worker[SHARED_DATA_KEY]))


def _configure_controller(config: pytest.Config) -> None:
    """Load the adapter, run the smoke test and start recording, for all workers."""
    implementation = _load_description(config)
    selection = selection_of(config, implementation)
    recorder = Recorder(config, implementation, selection)
    config.stash[RECORDER] = recorder
    config.pluginmanager.register(recorder, "conformance-recorder")
    if config.option.timings:
        durations_of(config, implementation)  # to report a usage error early
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
        stages.retire()  # workers start their own processes, but share the template
        shared["template"] = stages.template.address
    _configure(config, shared, stages)
    if config.option.tbstyle == "auto" and not selection.cases:
        config.option.tbstyle = "no"  # the end of the run shows what is broken
    if config.option.reportchars == "fE":  # pytest's default
        config.option.reportchars = ""


def _load_description(config: pytest.Config) -> Implementation:
    """Return what the adapter declares.

    Raises:
        pytest.UsageError: the adapter cannot be loaded, or is malformed.
    """
    name, timeout = config.option.impl, config.option.patience
    try:
        description = inspection.describe(
            name,
            timeout or inspection.LOADING_TIMEOUT,
            tell=lambda sentence: _tell(config, sentence),
        )
    except loader.LoadingError as error:
        raise pytest.UsageError(str(error)) from None
    if description.problems:
        raise pytest.UsageError(
            f"the adapter {name!r} is malformed: {description.problems[0]} "
            f"(`shared-tensor-spec check-adapter {name}` lists all problems)"
        )
    declared = description.implementation
    return replace(declared, patience=timeout) if timeout else declared


def _stages(shared: dict[str, Any]) -> Stages:
    implementation = Implementation.from_data(shared["implementation"])
    return Stages(shared["name"], implementation, shared["template"])


def _configure(config: pytest.Config, shared: dict[str, Any], stages: Stages) -> None:
    """Set up the selection and the runner, in the controller and in each worker."""
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
        usual_seconds=durations_of(config, implementation).seconds,
        stderr=_real_stderr(config),
    )
    config._conformance_shared = shared  # type: ignore[attr-defined]


def _limit_of(config: pytest.Config, implementation: Implementation) -> float:
    return float(config.option.case_limit or case_limit(implementation))


def _tell(config: pytest.Config, sentence: str) -> None:
    """Print a line that pytest does not capture, before it prints anything itself."""
    with os.fdopen(_real_stderr(config), "w") as stream:
        print(sentence, file=stream)


def _real_stderr(config: pytest.Config) -> int:
    """Return a descriptor of the stderr that pytest does not capture."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        return os.dup(2)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the data of the controller to an xdist worker."""
    node.workerinput[SHARED_DATA_KEY] = node.config._conformance_shared


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the number of workers for ``-n auto``: two for each processor.

    Cases mostly wait, so more workers than processors are faster. With
    ``--one-per-clause`` there are four for each processor, because a larger part of
    these cases waits for a full timeout. xdist's environment variable takes precedence.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    each = 4 if config.option.one_per_clause else 2
    return min(each * len(os.sched_getaffinity(0)), MAX_WORKERS)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker run all cases of a batch, whatever ``--dist`` says."""
    from sharedtensor_conformance.plugin.xdist_scheduler import BatchScheduling

    return BatchScheduling(config, log)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the header lines of the run."""
    recorder = config.stash.get(RECORDER, None)
    return recorder.header() if recorder else []


def pytest_unconfigure(config: pytest.Config) -> None:
    """End all processes."""
    if runner := config.stash.get(RUNNER, None):
        runner.close()


# Running


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a case, and report its verdict to pytest as an outcome."""
    marking = marking_of(pyfuncitem.function)
    if marking is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}

    def test() -> None:
        if "bystander" in arguments:  # before there are tensors that it could inherit
            arguments["bystander"].ensure_started()
        pyfuncitem.obj(**arguments)

    config = pyfuncitem.config
    runner = config.stash[RUNNER]
    plan = plan_of(config, config.stash[SELECTION], runner.implementation)
    planned = plan.chosen[case_id(pyfuncitem)]
    case = runner.run(PreparedCase(planned, test, batch_of(pyfuncitem)))
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
