"""Describes an adapter without importing it in this process.

The import of an adapter may import the implementation and crash. So `describe` imports
it in a child process with a deadline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sharedtensor_conformance.adapter import Implementation, problems_of
from sharedtensor_conformance.adapter_trial.operation_trial import problems_of_calls
from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.harness.case.checks import wait_until
from sharedtensor_conformance.harness.case.outcomes import HarnessFault
from sharedtensor_conformance.harness.supervisor import stage_folder
from sharedtensor_conformance.harness.supervisor.supervisor_client import (
    ONE_THREAD,
    Supervisor,
    job_of,
    last_line,
)
from sharedtensor_conformance.sanitize import printable

LOADING_TIMEOUT = 120.0
NOTICE_AFTER = 10.0  # seconds of loading after which the user is told about it
MAX_REASON_CHARACTERS = 2000  # characters of a reason why an adapter cannot be loaded


@dataclass(frozen=True)
class Description:
    """The description of an adapter as plain data."""

    implementation: Implementation
    problems: list[str]
    operations: list[str]


def loaded(name: str) -> Implementation:
    """Return an adapter's `Implementation`, with the installed version.

    Raises:
        LoadingError: there is no adapter of this name, it is not an `Implementation`,
            or its implementation is not installed.
    """
    found = loader.load_implementation(name)
    return replace(found, version=_version(found.version))


def _version(declared: str) -> str:
    prefix = "distribution:"
    if not declared.startswith(prefix):
        return declared or "unknown"
    # A late import: it takes a tenth of the time of the child, which seldom needs it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(declared.removeprefix(prefix))
    except PackageNotFoundError as error:
        raise loader.LoadingError(
            f"the distribution {declared.removeprefix(prefix)!r} is not installed in "
            f"this environment: install it next to the suite"
        ) from error


def describe(
    name: str,
    deadline: float = LOADING_TIMEOUT,
    *,
    calls_operations: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Description:
    """Return what the adapter declares, loaded in a child with a deadline.

    If `calls_operations` is true, the operations of ``core`` are also called once. If
    loading takes long, `tell` is called once with a sentence about that.

    The child has a supervisor, so that all its processes are ended. Its output is
    ignored, and it is ended as soon as it has answered.

    Raises:
        LoadingError: it cannot be loaded, crashes, hangs or is not an adapter.
    """
    if not name.startswith("mutant:"):
        loader.target_of(name)  # a name that cannot be needs no child
    root = stage_folder.new_path()
    answer = Path(root, "answer")
    try:
        supervisor = Supervisor(
            _supervisor_job(name, root, answer, calls_operations), deadline
        )
        with closing(supervisor):
            answered = lambda: (  # noqa: E731
                answer.exists() or supervisor.status() is not None
            )
            late = deadline - NOTICE_AFTER
            if not wait_until(answered, min(NOTICE_AFTER, deadline)) and late > 0:
                if tell:
                    tell(f"still loading {name} (limit {deadline:g} s, --patience)")
                wait_until(answered, late)
            if answer.exists():
                return _checked_description(name, json.loads(answer.read_text()))
            how = _ending(supervisor.status(), deadline)
            said = last_line(Path(stage_folder.log(root))) or "it printed nothing"
    except HarnessFault as error:
        raise loader.LoadingError(
            f"the adapter {name!r} cannot be looked at: {error} "
            f"(set its time limit with `--patience`)"
        ) from None
    raise loader.LoadingError(f"the adapter {name!r} {how}: {said}")


def _supervisor_job(
    name: str, root: str, answer: Path, calls_operations: bool
) -> dict[str, Any]:
    """Return the job of the supervisor of the child that describes an adapter."""
    command = [sys.executable, "-m", __name__, name, str(answer)]
    option = ["call-operations"] if calls_operations else []
    variables = ONE_THREAD | {"SHAREDTENSOR_CONFORMANCE_DESCRIBE": "1"}
    return job_of(root, [*command, *option], variables)


def _ending(status: int | None, deadline: float) -> str:
    if status is None:
        return f"did not finish loading within {deadline:g} s"
    how = f"status {status}" if status >= 0 else f"signal {-status}"
    return f"could not be loaded: its process ended with {how}"


def _checked_description(name: str, data: dict[str, Any]) -> Description:
    # Here, since the child does without the libraries that these need.
    from sharedtensor_conformance.adapter_fields import problems_of_fields
    from sharedtensor_conformance.profiles import problems_of_needs

    fields = data.get("implementation")
    if fields and (problems := problems_of_fields(fields)):
        raise loader.LoadingError(f"the adapter {name!r} is malformed: {problems[0]}")
    if "error" in data:
        raise loader.LoadingError(data["error"])
    implementation = Implementation.from_data(data["implementation"])
    problems = [*data["problems"], *problems_of_needs(implementation.claims)]
    return Description(implementation, problems, data["operations"])


def _describe_in_this_process(name: str, calls_operations: bool) -> dict[str, Any]:
    """Return what is known of an adapter, as far as it can be loaded."""
    known: dict[str, Any] = {}
    try:
        known["implementation"] = loaded(name).as_data()
        implementation = Implementation.from_data(known["implementation"])
        operations = loader.resolve(implementation.operations)()
        known["problems"] = problems_of(implementation, operations)
        if calls_operations and not known["problems"]:
            known["problems"] = problems_of_calls(implementation, operations)
        known["operations"] = [n for n in dir(operations) if not n.startswith("_")]
    except loader.LoadingError as error:
        known["error"] = printable(str(error)[:MAX_REASON_CHARACTERS])
    except BaseException as error:  # it may call `sys.exit`
        known["error"] = loader.why_not_loaded(name, error)
    return known


def _write_description(name: str, file: Path, calls_operations: bool) -> None:
    """Write the description of an adapter, whole or not at all."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(_describe_in_this_process(name, calls_operations)))
    part.rename(file)


if __name__ == "__main__":
    _write_description(
        sys.argv[1], Path(sys.argv[2]), "call-operations" in sys.argv[3:]
    )
