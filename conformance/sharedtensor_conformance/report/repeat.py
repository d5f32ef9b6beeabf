"""Makes the command that repeats a single case with the options of its run."""

from __future__ import annotations

import shlex

from sharedtensor_conformance.report.records import Case, Run
from sharedtensor_conformance.report.scope import ONE_PER_CLAUSE
from sharedtensor_conformance.report.verdicts import Verdict

CARRIED = (
    "--impl",
    "--device",
    "--strategy",
    "--start-method",
    "--expectations",
    "--no-expectations",
    "--strict",
    "--patience",
    "--case-limit",
)
"""The options of a run that are needed to repeat a case of it.

Which start method a case has can depend on those that the run was asked for.
"""

OF_HISTORIES = ("--histories", "--history-seed")
"""The options that are needed only for a case about histories."""

HISTORIES = "test_histories.py::"

MANY_STEPS = (HISTORIES, "test_load.py::", "test_fault.py::", "test_bundles.py::")
"""The files of tests whose cases take many steps, or steps at the same time."""

CONFIGURING = ("--strategy", "--start-method")
"""The options that select configurations."""

MOST_LEAKING = 3
"""How many of the leaking cases are repeated before the case that judges them."""


def repeat_command(run: Run, clause: str, case: Case) -> str:
    """Return the command that repeats one case.

    A leak is repeated with the cases that leaked and the case that judges the leak. A
    failure that vanished in fresh processes depends on earlier cases, so its whole
    configuration is repeated. A blocked case is repeated with the same smoke test.
    """
    words = [*run.selection.command, *_carried(run, case)]
    if case.verdict is Verdict.BLOCKED and ONE_PER_CLAUSE in run.selection.options:
        words += [ONE_PER_CLAUSE, f"--clause={clause}"]
    elif case.leaking:
        cases = (*case.leaking[:MOST_LEAKING], case.id)
        words += [f"--case={id}" for id in cases]
    elif case.state_dependent:
        words = [word for word in words if word.partition("=")[0] not in CONFIGURING]
        words += _configuration(case)
    else:
        words += [f"--clause={clause}", f"--case={case.id}"]
    return " ".join(shlex.quote(word) for word in words)


def _carried(run: Run, case: Case) -> list[str]:
    """Return the options of the run that the case needs, including ``--impl``."""
    names = CARRIED + (OF_HISTORIES if case.test.startswith(HISTORIES) else ())
    given = run.selection.options
    kept = [option for option in given if option.partition("=")[0] in names]
    if not any(option.startswith("--impl=") for option in kept):
        kept.insert(0, f"--impl={run.implementation.name}")
    return kept


def _configuration(case: Case) -> list[str]:
    """Return the options that select the configuration of a case."""
    named = (("strategy", "--strategy"), ("start_method", "--start-method"))
    return [
        f"{option}={case.axes[axis]}" for axis, option in named if axis in case.axes
    ]
