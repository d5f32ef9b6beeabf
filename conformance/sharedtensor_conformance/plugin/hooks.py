"""The main hooks of the pytest plugin: configures a run, and ends it.

``conftest.py`` loads this module, or ``entry.py`` if the suite is installed. This
module loads the options, the collection and the progress line. It does not depend on
the pytest settings of the project in which the suite runs, and it does not import the
implementation.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapter_trial import inspection
from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.harness.case import in_flight
from sharedtensor_conformance.plugin.options import selection_of
from sharedtensor_conformance.plugin.plan import durations_of
from sharedtensor_conformance.plugin.recorder import Recorder
from sharedtensor_conformance.plugin.runner import Runner
from sharedtensor_conformance.plugin.smoke_test import run_smoke_test
from sharedtensor_conformance.plugin.stages import Stages
from sharedtensor_conformance.plugin.state import (
    IMPLEMENTATION,
    RECORDER,
    RUNNER,
    SELECTION,
)
from sharedtensor_conformance.plugin.watchdog import case_limit

pytest_plugins = [
    "sharedtensor_conformance.plugin.options",
    "sharedtensor_conformance.plugin.collection",
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
        return
    shared = worker[SHARED_DATA_KEY]
    _store(config, Implementation.from_data(shared["implementation"]))
    _make_runner(config, shared, _stages(config, shared))


def _configure_controller(config: pytest.Config) -> None:
    """Load the adapter, run the smoke test and start recording, for all workers."""
    implementation = _load_description(config)
    _store(config, implementation)
    config.stash[RECORDER] = recorder = Recorder(config)
    config.pluginmanager.register(recorder, "conformance-recorder")
    if config.option.timings:
        durations_of(config)  # to report a usage error early
    shared = {
        "name": config.option.impl,
        "implementation": implementation.as_data(),
        "expectations": recorder.expectations_file,
        "blocked": "",
        "template": "",
    }
    stages = _stages(config, shared)
    if not config.option.collectonly:
        found = run_smoke_test(stages, config.stash[SELECTION], _limit_of(config))
        shared["blocked"], recorder.private_shm = found.blocked, found.private_shm
        recorder.why_not_preloaded = stages.template.why_not
    if config.getoption("dist", "no") != "no":
        stages.retire()  # workers start their own processes, but share the template
        shared["template"] = stages.template.address
    _make_runner(config, shared, stages)
    if config.option.tbstyle == "auto" and not config.option.case:
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


def _store(config: pytest.Config, implementation: Implementation) -> None:
    config.stash[IMPLEMENTATION] = implementation
    config.stash[SELECTION] = selection_of(config, implementation)


def _stages(config: pytest.Config, shared: dict[str, Any]) -> Stages:
    return Stages(shared["name"], config.stash[IMPLEMENTATION], shared["template"])


def _make_runner(config: pytest.Config, shared: dict[str, Any], stages: Stages) -> None:
    """Make the runner, in the controller and in each worker."""
    config.stash[RUNNER] = Runner(
        stages,
        blocked=shared["blocked"],
        expectations=shared["expectations"],
        strict=bool(config.getoption("strict")),
        all_cases=bool(config.option.all_cases or config.option.case),
        repeats=not config.option.no_repetition,
        limit=_limit_of(config),
        usual_seconds=durations_of(config).seconds,
        stderr=_real_stderr(config),
    )
    config._conformance_shared = shared  # type: ignore[attr-defined]


def _limit_of(config: pytest.Config) -> float:
    return float(config.option.case_limit or case_limit(config.stash[IMPLEMENTATION]))


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
