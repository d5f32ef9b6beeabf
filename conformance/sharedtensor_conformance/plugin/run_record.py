"""Makes the first line of a report: implementation, machine and options of the run."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sharedtensor_conformance import __version__
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.plugin import cuda_facts
from sharedtensor_conformance.plugin.entry import PACKAGE, names_the_suite
from sharedtensor_conformance.plugin.matrix import Selection
from sharedtensor_conformance.plugin.options import OPTIONS, REPEATED
from sharedtensor_conformance.plugin.plan import plan_of
from sharedtensor_conformance.plugin.state import IMPLEMENTATION, SELECTION
from sharedtensor_conformance.report import records
from sharedtensor_conformance.report.expectations import shipped

LIMIT_OPTIONS = ("--patience", "--case-limit", "--histories", "--history-seed")
"""The options with a number that verdicts may depend on."""


def now() -> str:
    """Return the current time in UTC, in the format of the report."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def expectations_file(config: pytest.Config) -> str | None:
    """Return the file of known deviations, if there is one."""
    if config.option.no_expectations:
        return None
    if given := config.option.expectations:
        return str(given)
    path = shipped(f"{config.stash[IMPLEMENTATION].name}.toml")
    return str(path) if path else None


def run_record(
    config: pytest.Config,
    *,
    expectations: str | None,
    carried_over: str,
    private_shm: bool,
    planned: int,
) -> records.Run:
    """Return the record of a run that starts now with `planned` cases of its plan."""
    implementation, selection = config.stash[IMPLEMENTATION], config.stash[SELECTION]
    plan = plan_of(config)
    left_out = len(plan.chosen) - planned
    return records.Run(
        implementation=records.Subject.of(implementation),
        suite=__version__,
        spec=records.SpecRecord.of(load_clauses()),
        machine=records.Machine(
            python=platform.python_version(),
            platform=platform.machine(),
            kernel=platform.release(),
            cpus=os.cpu_count() or 1,
            privileged=os.geteuid() == 0,
            private_shm=private_shm,
            cuda=_cuda_of(selection),
        ),
        selection=records.Selection(
            full=selection.full and not left_out and plan.shard is None,
            options=_given(config, expectations),
            device="cuda" if "cuda" in selection.devices else "cpu",
            strict=bool(config.getoption("strict")),
            expectations=Path(expectations).name if expectations else None,
            left_out=left_out,
            left_out_by=tuple(selecting_options(config)) if left_out else (),
            shard=plan.shard,
            carried_over=carried_over,
            command=_command(config),
        ),
        planned=planned,
        started=now(),
    )


def _cuda_of(selection: Selection) -> records.Cuda | None:
    """Return the facts about CUDA, or None if no CUDA device was requested."""
    if not {"cuda", "emulated"}.intersection(selection.devices):
        return None
    found = cuda_facts.facts_of()
    return records.Cuda.from_data(found) if found else None


def _command(config: pytest.Config) -> tuple[str, ...]:
    """Return the command that started the suite, without its options."""
    by_module = Path(sys.argv[0]).name == "__main__.py"  # python -m pytest
    program = ("python", "-m", "pytest") if by_module else ("pytest",)
    invocation = config.invocation_params
    if any(map(names_the_suite, map(str, invocation.args))):
        return (*program, "--pyargs", PACKAGE)
    folder = Path(__file__).parents[2]
    return (*program, os.path.relpath(folder, invocation.dir))


def _given(config: pytest.Config, expectations: str | None) -> tuple[str, ...]:
    """Return the options that decide what is judged."""
    given = [f"--impl={config.option.impl}"]
    for option in REPEATED:
        values = getattr(config.option, option.key)
        given += [f"{option.name}={value}" for value in values]
    if config.option.expectations:
        given.append(f"--expectations={expectations}")
    if config.option.shard:
        given.append("--shard={}/{}".format(*config.option.shard))
    for option in OPTIONS:
        value = getattr(config.option, option.key)
        if option.name in LIMIT_OPTIONS and value != option.default:
            given.append(f"{option.name}={value}")
        elif not option.metavar and not option.choices and value:
            given.append(option.name)
    if config.getoption("strict"):
        given.append("--strict")
    return tuple(given)


def selecting_options(config: pytest.Config) -> Iterator[str]:
    """Yield the arguments of pytest that select cases; paths without their folders."""
    given = config.option
    for name, value in (("-k", given.keyword), ("-m", given.markexpr)):
        if value:
            yield f"{name} {value!r}"
    for name in ("deselect", "ignore", "ignore_glob"):
        for value in getattr(given, name) or ():
            yield f"--{name.replace('_', '-')} {_last_part(value)}"
    for name, option in (("lf", "--last-failed"), ("stepwise", "--stepwise")):
        if getattr(given, name, False):
            yield option
    for argument in config.args:
        path = argument.partition("::")[0]
        if path != argument or path.endswith(".py") or ".chapters." in path:
            yield _last_part(argument)


def _last_part(argument: str) -> str:
    path, mark, rest = argument.partition("::")
    return f"{Path(path).name}{mark}{rest}"
