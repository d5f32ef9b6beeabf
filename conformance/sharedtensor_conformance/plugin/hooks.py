"""The suite as pytest sees it: options, the matrix, running a case.

Loaded by ``conftest.py``, or by ``entry.py`` for an installed suite. Nothing depends on
the settings of the project in which the suite is run, and nothing of the implementation
is imported here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any
from zlib import crc32

import pytest

from sharedtensor_conformance.adapter import LONG_PROFILES, PROFILES, Implementation
from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.adapters.loader import SHIPPED
from sharedtensor_conformance.chapters.histories import search
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness import inspection
from sharedtensor_conformance.harness.marking import Marking
from sharedtensor_conformance.harness.matrix import (
    DIRECTIONS,
    LAYOUTS,
    Configuration,
    Selection,
    configurations,
    pairwise,
)
from sharedtensor_conformance.harness.watchdog import case_limit
from sharedtensor_conformance.plugin.one_per_clause import one_per_clause
from sharedtensor_conformance.plugin.recorder import Recorder
from sharedtensor_conformance.plugin.runner import Runner, Stages
from sharedtensor_conformance.plugin.smoke_test import climb
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

RUNNER = pytest.StashKey[Runner]()
RECORDER = pytest.StashKey[Recorder]()
SELECTION = pytest.StashKey[Selection]()
SHARED = "sharedtensor_conformance"
HISTORIES = 60
INDIRECT = ("configuration", "direction")


# Options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite.

    ``--strict`` is pytest's own; here it also lets SHOULD clauses decide.
    """
    group = parser.getgroup(
        "conformance",
        "shared-tensor conformance (with pytest's --strict, SHOULD clauses decide too)",
    )
    add = group.addoption
    add(
        "--impl",
        default="reference",
        metavar="NAME",
        help=f"implementation to judge: a shipped adapter ({', '.join(SHIPPED)}), an "
        "entry point, mutant:NAME, or package.module[:attribute]",
    )
    add(
        "--clause",
        action="append",
        default=[],
        metavar="ID",
        help="judge only this clause, such as GRAD-3 (may be repeated)",
    )
    add(
        "--profile",
        action="append",
        default=[],
        metavar="NAME",
        help=f"judge only this profile (may be repeated): {', '.join(PROFILES)}",
    )
    add("--strategy", action="append", default=[], metavar="NAME",
        help="only under this sharing strategy (may be repeated)")  # fmt: skip
    add("--start-method", action="append", default=[], metavar="NAME",
        help="only under this start method (may be repeated)")  # fmt: skip
    add(
        "--device",
        action="append",
        default=[],
        choices=["cpu", "simulated", "cuda"],
        help="where tensors live (may be repeated; default: cpu and simulated); "
        "simulated results never count as CUDA",
    )
    add(
        "--case",
        action="append",
        default=[],
        metavar="ID",
        help="only the case with this id, as a report names it; * matches anything",
    )
    add(
        "--one-per-clause",
        action="store_true",
        help="only one case for each clause: a look at the whole spec in seconds",
    )
    add(
        "--report",
        metavar="FILE",
        help="write the report, JSON Lines, as the run goes on",
    )
    add(
        "--expectations",
        metavar="FILE",
        help="expected deviations (default: those shipped for the implementation)",
    )
    add(
        "--patience",
        type=_seconds,
        metavar="SECONDS",
        help="seconds that the adapter may take to load, and a process to start and to "
        "import the implementation (default: what the adapter says)",
    )
    add(
        "--case-limit",
        type=_seconds,
        metavar="SECONDS",
        help="seconds after which a case loses its processes, whatever hangs; after as "
        "long again the run exits (default: far more than a case can need)",
    )
    add(
        "--histories",
        type=_count,
        default=HISTORIES,
        metavar="COUNT",
        help="random histories that a case about them takes (default: %(default)s)",
    )
    add(
        "--history-seed",
        type=int,
        default=0,
        metavar="NUMBER",
        help="which histories are taken (default: 0, so always the same)",
    )
    add(
        "--no-expectations",
        action="store_true",
        help="expect no deviation at all",
    )
    add(
        "--no-repetition",
        action="store_true",
        help="do not repeat a failure in fresh processes: it is told sooner, and not "
        "whether it depends on what ran before",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise ValueError(f"{text} is no positive number of seconds")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(f"{text} is no positive number")
    return count


def _closest(value: str, known: list[str]) -> str:
    for spelling in (value, value.upper(), value.lower()):
        if close := get_close_matches(spelling, known, n=1):
            return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}"


def _one_of(what: str, given: list[str], known: list[str]) -> tuple[str, ...]:
    for value in given:
        if value not in known:
            hint = _closest(value, known)
            raise pytest.UsageError(f"there is no {what} {value!r}: {hint}")
    return tuple(given)


def _selection(config: pytest.Config, implementation: Implementation) -> Selection:
    option = config.getoption
    return Selection(
        clauses=_one_of("clause", option("clause"), list(load_clauses())),
        profiles=_one_of("profile", option("profile"), list(PROFILES)),
        strategies=_one_of(
            f"strategy of {implementation.name}",
            option("strategy"),
            list(implementation.strategies),
        ),
        start_methods=_one_of(
            f"start method of {implementation.name}",
            option("start_method"),
            list(implementation.start_methods),
        ),
        devices=tuple(option("device")) or ("cpu", "simulated"),
        cases=tuple(option("case")),
        one_per_clause=option("one_per_clause"),
    )


# Start of a run


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Resolve the adapter and the selection; wrong use ends here, with status 4."""
    if config.option.help or config.option.markers:
        return
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        _configure(config, worker[SHARED], _stages(worker[SHARED]))
        return
    name = config.getoption("impl")
    try:
        patience = config.getoption("patience")
        description = inspection.describe(name, patience or inspection.DEADLINE)
    except loader.LoadingError as error:
        raise pytest.UsageError(str(error)) from None
    if description.problems:
        raise pytest.UsageError(
            f"the adapter {name!r} is malformed: {description.problems[0]} "
            f"(`shared-tensor-spec check-adapter {name}` says all)"
        )
    implementation = description.implementation
    if patience:
        implementation = replace(implementation, patience=patience)
    selection = _selection(config, implementation)
    recorder = Recorder(config, implementation, selection)
    config.stash[RECORDER] = recorder
    config.pluginmanager.register(recorder, "conformance-recorder")
    shared = {
        "name": name,
        "implementation": implementation.as_data(),
        "expectations": recorder.expectations_file,
        "blocked": "",
    }
    stages = _stages(shared)
    if not config.option.collectonly:
        climbed = climb(stages, selection, _limit_of(config, implementation))
        shared["blocked"], recorder.private_shm = climbed.blocked, climbed.private_shm
    if _distributes(config):
        stages.retire()  # its workers have processes of their own
    _configure(config, shared, stages)
    if config.option.tbstyle == "auto" and not selection.cases:
        config.option.tbstyle = "no"  # the end of the run says what is broken
    if config.option.reportchars == "fE":  # pytest's default
        config.option.reportchars = ""


def _stages(shared: dict[str, Any]) -> Stages:
    return Stages(shared["name"], Implementation.from_data(shared["implementation"]))


def _distributes(config: pytest.Config) -> bool:
    return bool(config.getoption("dist", "no") != "no")


def _configure(config: pytest.Config, shared: dict[str, Any], stages: Stages) -> None:
    implementation = stages.implementation
    config.stash[SELECTION] = _selection(config, implementation)
    config.stash[RUNNER] = Runner(
        stages,
        blocked=shared["blocked"],
        expectations=shared["expectations"],
        strict=config.getoption("strict"),
        repeats=not config.getoption("no_repetition"),
        limit=_limit_of(config, implementation),
        stderr=_real_stderr(config),
    )
    config._conformance_shared = shared  # type: ignore[attr-defined]


def _limit_of(config: pytest.Config, implementation: Implementation) -> float:
    return float(config.getoption("case_limit") or case_limit(implementation))


def _real_stderr(config: pytest.Config) -> int:
    """Return a descriptor of what stderr is when pytest does not capture it."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        return os.dup(2)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker what the controller found out."""
    node.workerinput[SHARED] = node.config._conformance_shared


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker run all cases of a configuration, whatever ``--dist`` says."""
    from sharedtensor_conformance.plugin.xdist_scheduler import ConfigurationScheduling

    return ConfigurationScheduling(config, log, config.stash[RUNNER].implementation)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is judged."""
    recorder = config.stash.get(RECORDER, None)
    return recorder.header() if recorder else []


def pytest_unconfigure(config: pytest.Config) -> None:
    """End all processes."""
    if runner := config.stash.get(RUNNER, None):
        runner.close()


# Collection


def _marking(function: object) -> Marking | None:
    found: Marking | None = getattr(function, "conformance", None)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module, obj: object
) -> list[pytest.Item] | None:
    """Leave out the tests that are not selected, before cases are made of them."""
    marking = _marking(obj)
    if marking and not _where(collector.config, marking):
        return []
    return None


def _where(config: pytest.Config, marking: Marking) -> list[Configuration]:
    selection = config.stash[SELECTION]
    if not _selects(selection, marking):
        return []
    return configurations(marking, config.stash[RUNNER].implementation, selection)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the cases of a test from the axes that its fixtures name."""
    marking = _marking(metafunc.function)
    if marking is None:
        return
    if "configuration" not in metafunc.fixturenames:
        metafunc.fixturenames.append("configuration")
    where = _where(metafunc.config, marking)
    axes: dict[str, Sequence[Any]] = {"configuration": where}
    all_axes = _axes(metafunc.config.stash[RUNNER].implementation)
    for name in [name for name in all_axes if name in metafunc.fixturenames]:
        axes[name] = all_axes[name][:1] if where[0].why_not else all_axes[name]
    if marking.pairwise:
        _parametrize(metafunc, tuple(axes), pairwise(list(axes.values())))
        return
    for name, values in axes.items():
        _parametrize(metafunc, (name,), [[value] for value in values])


def _parametrize(
    metafunc: pytest.Metafunc, names: tuple[str, ...], rows: list[list[Any]]
) -> None:
    ids = ["-".join(map(_id, row)) for row in rows]
    indirect = [name for name in names if name in INDIRECT]
    metafunc.parametrize(names, rows, ids=ids, indirect=indirect)


def _axes(implementation: Implementation) -> dict[str, tuple[Any, ...]]:
    return {
        "channel": implementation.channels,
        "direction": DIRECTIONS,
        "dtype": implementation.dtypes,
        "layout": LAYOUTS,
    }


def _id(value: Any) -> str:
    if isinstance(value, Configuration):
        return value.id
    return value if isinstance(value, str) else str(value.name)


def _selects(selection: Selection, marking: Marking) -> bool:
    clauses = [load_clauses()[id] for id in marking.clauses]
    named = selection.clauses or selection.profiles or selection.cases
    if marking.profiles & LONG_PROFILES and not named:
        return False
    if selection.clauses and not set(marking.clauses) & set(selection.clauses):
        return False
    profiles = {clause.profile for clause in clauses}
    return not selection.profiles or bool(profiles & set(selection.profiles))


def case_id(item: pytest.Item) -> str:
    """Return the id under which reports know a case."""
    assert isinstance(item, pytest.Function)
    parameters = f"[{item.callspec.id}]" if hasattr(item, "callspec") else ""
    return f"{item.path.name}::{item.originalname}{parameters}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keep the selected cases; order them by configuration, closing ones last.

    It does so after all others, such as a plugin that shuffles them.
    """
    ours = [item for item in items if _marking(_function(item))]
    others = [item for item in items if not _marking(_function(item))]
    if wanted := config.stash[SELECTION].cases:
        ours = [item for item in ours if _wanted(item, wanted)]
    if config.stash[SELECTION].one_per_clause:
        clauses = config.stash[SELECTION].clauses
        markings = {item: _function(item).conformance for item in ours}
        ours = one_per_clause(ours, markings.__getitem__, _configuration, clauses)
    order = {id: n for n, id in enumerate(dict.fromkeys(map(_group, ours)))}
    ours.sort(
        key=lambda item: (order[_group(item)], _function(item).conformance.runs_last)
    )
    items[:] = ours + others


def _wanted(item: pytest.Item, patterns: tuple[str, ...]) -> bool:
    return any(_matches(case_id(item), pattern) for pattern in patterns)


def _matches(id: str, pattern: str) -> bool:
    return id == pattern or fnmatchcase(id, pattern.replace("[", "[[]"))


def _function(item: pytest.Item) -> Any:
    return getattr(item, "function", None)


def _configuration(item: pytest.Item) -> Configuration:
    found: Configuration = item.callspec.params["configuration"]  # type: ignore[attr-defined]
    return found


def _group(item: pytest.Item) -> str:
    return _configuration(item).id


# Fixtures: what a test names


@pytest.fixture
def configuration(request: pytest.FixtureRequest) -> Configuration:
    """Where the case runs."""
    found: Configuration = request.param
    return found


@pytest.fixture
def direction(request: pytest.FixtureRequest) -> str:
    """Who sends."""
    return str(request.param)


@pytest.fixture
def stage(configuration: Configuration, request: pytest.FixtureRequest) -> Any:
    """The processes of the configuration; they start when they are needed."""
    return request.config.stash[RUNNER].stages.of(configuration)


@pytest.fixture
def owner(stage: Any) -> Any:
    """The process that starts the others."""
    return stage.owner


@pytest.fixture
def peer(stage: Any) -> Any:
    """A child of the owner."""
    return stage.peer


@pytest.fixture
def bystander(stage: Any) -> Any:
    """A third process, another child of the owner."""
    return stage.bystander


@pytest.fixture
def sender(owner: Any, peer: Any, direction: str) -> Any:
    """The owner or the peer, whoever sends."""
    return owner if direction == "to_peer" else peer


@pytest.fixture
def receiver(owner: Any, peer: Any, direction: str) -> Any:
    """The other one."""
    return peer if direction == "to_peer" else owner


@pytest.fixture
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """What the implementation says about itself."""
    return request.config.stash[RUNNER].implementation


@pytest.fixture
def strategy(configuration: Configuration) -> str:
    """The sharing strategy of the case."""
    return configuration.strategy


@pytest.fixture
def start_method(configuration: Configuration) -> str:
    """The start method of the case."""
    return configuration.start_method


@pytest.fixture
def histories() -> None:
    """A function that lets the processes take random histories of such steps."""


@pytest.fixture
def device(configuration: Configuration) -> str:
    """The device of the case."""
    return configuration.device


# Running


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a case, and give pytest the outcome that goes with its verdict."""
    marking = _marking(pyfuncitem.function)
    if marking is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    configuration = _configuration(pyfuncitem)
    axes = pyfuncitem.callspec.params

    def story() -> None:
        stage = runner.stages.of(configuration)
        if "bystander" in names:  # before any tensor is there that it could inherit
            stage.ensure(stage.bystander)
        pyfuncitem.obj(**{name: _argument(name, pyfuncitem, stage) for name in names})

    runner = pyfuncitem.config.stash[RUNNER]
    case = runner.run(case_id(pyfuncitem), marking, configuration, axes, story)
    pyfuncitem.user_properties.append(("case", json.dumps(case.as_data())))
    _tell_pytest(case, runner.decides(case))
    return True


def _argument(name: str, item: pytest.Function, stage: Any) -> Any:
    """Return a fixture's value; actors are those of the stage that is used now."""
    direction = item.funcargs.get("direction", item.callspec.params.get("direction"))
    sends: dict[object, tuple[str, str]] = {
        "to_peer": ("owner", "peer"),
        "to_owner": ("peer", "owner"),
    }
    match name:
        case "stage":
            return stage
        case "histories":
            option = item.config.getoption
            seed = option("history_seed") + crc32(stage.configuration.id.encode())
            return lambda kinds: search(stage, kinds, option("histories"), seed)
        case "owner" | "peer" | "bystander":
            return getattr(stage, name)
        case "sender":
            return getattr(stage, sends[direction][0])
        case "receiver":
            return getattr(stage, sends[direction][1])
    return item.funcargs[name]


def _tell_pytest(case: Case, decides: bool) -> None:
    said = f"{case.verdict}: {case.evidence}"
    if case.verdict in (Verdict.UNSUPPORTED, Verdict.NOT_RUN):
        pytest.skip(said)
    if case.verdict is Verdict.PASS:
        return
    if decides:
        pytest.fail(said, pytrace=False)
    pytest.xfail(case.cause or said)
