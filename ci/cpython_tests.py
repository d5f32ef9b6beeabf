"""Runs CPython's own tests of multiprocessing on the reference's drop-in module.

    python ci/cpython_tests.py --out=docs/reports/cpython-tests-3.11.json

The tests come with the interpreter (`test._test_multiprocessing`). Each class runs
twice: on the standard library, as the baseline, and on a copy of the tests in which the
name ``multiprocessing`` is `sharedtensor.multiprocessing`, with the standard library
for names that a drop-in does not have. A test that passes on the baseline has to pass
on the drop-in, except for the exceptions in `cpython_exceptions.toml`. Each exception
names the clause that requires the difference.

Exit status: 0 if each difference has an exception and each exception has a difference,
1 if not, 4 for a usage error. A class that reaches its time limit is ended, with its
processes and files.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bounded
import outcomes
from outcomes import THE_END, Outcome, Outcomes
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.kernel.private_shm import mount_if_permitted
from soak.circumstances import circumstances

HERE = Path(__file__).parent
EXCEPTIONS = HERE / "cpython_exceptions.toml"
METHODS = ("fork", "spawn", "forkserver")
SUBJECTS = ("standard", "reference")
TESTS = "test._test_multiprocessing"
LAST_IMPORT = "\nfrom multiprocessing import util\n"
"""After this line, the tests have imported all of `multiprocessing` by that name."""

COPY = "_test_multiprocessing.py"  # some tests look for this name in a traceback
WRONG_USE = 4

DROP_IN = '''"""The name `multiprocessing` as a program has it that uses the drop-in."""
import importlib
import multiprocessing as standard
import types


class Overlay(types.ModuleType):
    """A module of the drop-in, and the standard library's for what it has not."""

    def __init__(self, name, behind):
        super().__init__(name)
        vars(self).update(behind=behind)

    def __getattr__(self, name):
        return getattr(self.behind, name)


def overlay(name, names):
    found = Overlay(name, importlib.import_module(name))
    module = importlib.import_module(f"sharedtensor.{name}")
    for public in names:
        setattr(found, public, getattr(module, public))
    return found


multiprocessing = overlay("multiprocessing", standard.__all__)
# Where tests take channels from submodules, they get ours.
multiprocessing.connection = overlay("multiprocessing.connection", ["Pipe"])
channels = ["Queue", "JoinableQueue", "SimpleQueue"]
multiprocessing.queues = overlay("multiprocessing.queues", channels)
'''

INSTALLED_TESTS = "test_installed.py"
VARIABLE = "CPYTHON_TESTS_METHOD"
INSTALLED = """import os

import _test_multiprocessing

method = os.environ["CPYTHON_TESTS_METHOD"]
_test_multiprocessing.install_tests_in_module_dict(globals(), method)
"""


class WrongUse(Exception):
    """The tests cannot be run; the message is one sentence."""


@dataclass(frozen=True)
class Allowed:
    """An exception: tests that may differ, and the clause that requires it."""

    tests: tuple[str, ...]
    clause: str
    reason: str


@dataclass(frozen=True)
class Difference:
    """A test that passes on the standard library, but not on the reference."""

    method: str
    test: str
    outcome: Outcome
    allowed: Allowed | None = None

    def as_data(self) -> dict[str, str]:
        """Return it for the record."""
        return {
            "method": self.method,
            "test": self.test,
            "outcome": self.outcome.kind,
            "said": self.outcome.text,
            "clause": self.allowed.clause if self.allowed else "",
            "reason": self.allowed.reason if self.allowed else "",
        }


@dataclass
class MethodRun:
    """The outcomes of both subjects under one start method."""

    method: str
    outcomes: dict[str, Outcomes] = field(
        default_factory=lambda: {subject: {} for subject in SUBJECTS}
    )
    seconds: Counter[str] = field(default_factory=Counter)

    def as_data(self) -> dict[str, Any]:
        """Return the number of tests with each outcome, for the record."""
        return {
            "method": self.method,
            "seconds": {name: round(self.seconds[name]) for name in SUBJECTS},
            "outcomes": {name: kinds_of(self.outcomes[name]) for name in SUBJECTS},
        }


def kinds_of(outcomes: Outcomes) -> dict[str, int]:
    """Return the number of tests with each outcome, without the ends of processes."""
    tests = {test for test in outcomes if not test.endswith(THE_END)}
    return dict(Counter(outcomes[test].kind for test in sorted(tests)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests, compare, and write the record."""
    given = _parser().parse_args(arguments)
    where = circumstances()
    bounded.end_with_signals()
    mount_if_permitted()
    try:
        allowed = read_exceptions(given.exceptions)
        with tempfile.TemporaryDirectory(prefix="sts-cpython-") as folder:
            prepare(Path(folder), given.tests)
            runs = [
                run_method(Path(folder), method, given.limit, given.only)
                for method in given.method or METHODS
            ]
    except WrongUse as error:
        print(f"cpython_tests: {error}", file=sys.stderr)
        return WRONG_USE
    found = [each for run in runs for each in differences(run, allowed)]
    is_whole = not given.only and not given.method
    unneeded = unneeded_tests(found, allowed) if is_whole else []
    tell(runs, found, unneeded)
    if given.out:
        write_record(given.out, where, runs, found)
    return 1 if unneeded or any(not each.allowed for each in found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="Exit status: 0 if each difference has an exception and each exception "
        "has a difference, 1 if not, 4 for a usage error.",
    )
    add = parser.add_argument
    text = "a start method (may be repeated; default: all)"
    add("--method", action="append", choices=METHODS, help=text)
    add("--only", default="", metavar="TEXT", help="only classes with TEXT in the name")
    text = "time limit of a class in seconds (default: %(default)g)"
    add("--limit", type=float, default=120.0, help=text)
    text = "the module with the tests (default: %(default)s)"
    add("--tests", metavar="MODULE", default=TESTS, help=text)
    text = "the file of exceptions (default: cpython_exceptions.toml in this folder)"
    add("--exceptions", metavar="FILE", type=Path, default=EXCEPTIONS, help=text)
    add("--out", type=Path, help="write the record to this file")
    return parser


def read_exceptions(file: Path) -> list[Allowed]:
    """Return the exceptions in a file.

    Raises:
        WrongUse: the file cannot be read, or names a clause that does not exist.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        found = [
            Allowed(tuple(one["tests"]), one["clause"], " ".join(one["reason"].split()))
            for one in data.get("exception", [])
        ]
    except (OSError, ValueError, KeyError) as error:
        raise WrongUse(f"{file} has no exceptions: {error}") from error
    clauses = load_clauses()
    for each in found:
        if each.clause not in clauses:
            raise WrongUse(f"{file.name} names the clause {each.clause!r}; correct it")
    return found


def prepare(folder: Path, tests: str) -> None:
    """Write the modules that both subjects import, a folder for each.

    Raises:
        WrongUse: the interpreter has no such tests, or they have an unknown form.
    """
    try:
        found = importlib.util.find_spec(tests)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise WrongUse(
            f"this Python has no {tests}: use one that was installed with its tests"
        )
    original = Path(found.origin)
    source = original.read_text(encoding="utf-8")
    if source.count(LAST_IMPORT) != 1:
        raise WrongUse(f"{tests} of this Python has another form: adapt LAST_IMPORT")
    replaced = source.replace(
        LAST_IMPORT, f"{LAST_IMPORT}from drop_in import multiprocessing\n"
    )
    for subject, text in zip(SUBJECTS, (source, replaced), strict=True):
        place = folder / subject
        place.mkdir()
        (place / COPY).write_text(text, encoding="utf-8")
        (place / INSTALLED_TESTS).write_text(INSTALLED, encoding="utf-8")
        (place / "drop_in.py").write_text(DROP_IN, encoding="utf-8")
        for program in original.parent.glob("mp_*.py"):  # some tests start them
            shutil.copy(program, place)


def run_method(folder: Path, method: str, limit: float, only: str) -> MethodRun:
    """Run the classes under one start method, each on both subjects in turn."""
    run = MethodRun(method)
    for name, tests in listed(folder / SUBJECTS[0], method).items():
        if only not in name:
            continue
        for subject in SUBJECTS:
            chosen = (f"{INSTALLED_TESTS}::{name}",)
            place, variables = folder / subject, {VARIABLE: method}
            seconds, of_nodes = outcomes.run(place, chosen, limit, **variables)
            found = {short(node, name): each for node, each in of_nodes.items()}
            run.seconds[subject] += seconds
            for test in (*tests, f"{name}.{THE_END}"):
                run.outcomes[subject][test] = found.get(test, Outcome("not run"))
            print(f"{method} {subject} {name}: {in_words(found)}, {seconds:g} s")
            sys.stdout.flush()
    return run


def short(node: str, name: str) -> str:
    """Return ``Class.test`` for a test, or for the end of the process of a class."""
    return f"{name}.{THE_END}" if node == THE_END else ".".join(node.split("::")[1:])


def in_words(outcomes: Outcomes) -> str:
    """Return the number of tests with each outcome, and the names of failed tests."""
    said = ", ".join(f"{count} {kind}" for kind, count in kinds_of(outcomes).items())
    others = [
        f"{test.partition('.')[2]}: {each.text:.80}"
        for test, each in outcomes.items()
        if each.kind not in ("pass", "skip")
    ]
    return f"{said} ({'; '.join(others)})" if others else said


def listed(folder: Path, method: str) -> dict[str, list[str]]:
    """Return the classes and their tests, without those that only use threads.

    Tests of `multiprocessing.dummy` have no processes, so a drop-in changes nothing.

    Raises:
        WrongUse: the tests cannot be imported.
    """
    done = subprocess.run(
        (sys.executable, "-m", "pytest", *outcomes.PLAIN, "--collect-only"),
        cwd=folder,
        env=outcomes.environment(folder, **{VARIABLE: method}),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines() or ["it printed nothing"]
        raise WrongUse(f"the tests cannot be listed: {lines[-1]}")
    found: dict[str, list[str]] = {}
    for name, test in re.findall(r"::(\w+)::(\w+)$", done.stdout, re.MULTILINE):
        if not name.startswith("WithThreads"):
            found.setdefault(name, []).append(f"{name}.{test}")
    return found


def differences(run: MethodRun, allowed: Sequence[Allowed]) -> Iterator[Difference]:
    """Yield the tests that pass only on the standard library."""
    standard, reference = (run.outcomes[subject] for subject in SUBJECTS)
    for test, outcome in reference.items():
        if standard[test].kind == "pass" and outcome.kind != "pass":
            exception = next((one for one in allowed if test in one.tests), None)
            yield Difference(run.method, test, outcome, exception)


def unneeded_tests(
    found: Sequence[Difference], allowed: Sequence[Allowed]
) -> list[str]:
    """Return the tests with an exception that do not differ under any start method."""
    differing = {each.test for each in found}
    return [test for one in allowed for test in one.tests if test not in differing]


def tell(
    runs: Sequence[MethodRun], found: Sequence[Difference], unneeded: Sequence[str]
) -> None:
    """Print the outcomes, the differences and the unneeded exceptions."""
    for run in runs:
        data = run.as_data()
        for subject in SUBJECTS:
            print(
                f"{run.method}, {subject}: {data['outcomes'][subject]} in "
                f"{data['seconds'][subject]} s"
            )
    for each in found:
        how = f"{each.outcome.kind} ({each.outcome.text})".replace(" ()", "")
        why = f"as {each.allowed.clause} asks" if each.allowed else "WITHOUT A REASON"
        print(f"{each.method} {each.test}: {how}, {why}")
    for test in unneeded:
        print(f"{test}: passes, so it needs no exception any more")


def write_record(
    file: Path,
    where: Mapping[str, Any],
    runs: Sequence[MethodRun],
    found: Sequence[Difference],
) -> None:
    """Write the record for the site."""
    data = {
        **where,
        "runs": [run.as_data() for run in runs],
        "differences": [each.as_data() for each in found],
    }
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
