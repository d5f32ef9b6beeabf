"""Runs the programs that show an implementation's known deviations.

    python ci/run_causes.py torch
    python ci/run_causes.py torch --out=docs/reports/causes/torch.json
    python ci/run_causes.py torch --device --out=docs/reports/causes/torch-device.json

An expectation names a program in plain code of the implementation, which exits with 0
as long as the deviation shows. If a program exits with another status, the deviation is
gone or its cause was wrong, and this script fails. So expectations cannot remain after
their deviations are gone. Programs of expectations for other releases than the
installed one are not run. Programs in a folder ``device`` need a CUDA device, and
``--device`` runs these alone. Processes and files that a program leaves behind are
removed (see `bounded`).

With ``--out``, the script records the output of the programs, the versions, and the
line numbers of the places in Python that the file of causes names. The site shows them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path, PurePath
from typing import Any

import bounded
from packaging.specifiers import SpecifierSet
from sharedtensor_conformance.expectations.programs import (
    code_hash,
    program_names,
    program_text,
)

SUITE = Path(__file__).parents[1] / "conformance" / "sharedtensor_conformance"
EXPECTATIONS = SUITE / "expectations"
CAUSES = EXPECTATIONS / "causes"
FIND_PLACES = Path(__file__).with_name("find_places.py")
GONE = 1
LIMIT = 90  # seconds

FIND_DISTRIBUTION = """
import re, sys
from importlib.metadata import packages_distributions, version

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

found = {plain(module): names for module, names in packages_distributions().items()}
distributions = found.get(plain(sys.argv[1]), [])
"""
"""Finds the distributions of a module, ignoring case and `-` or `_`."""

ASK_MACHINE = """
import json, platform
(distribution, *_) = distributions
print(json.dumps({
    "version": version(distribution),
    "python": platform.python_version(),
    "kernel": f"{platform.system()} {platform.release()}",
    "prefix": sys.prefix,
}))
"""
"""Prints the versions of a module, of Python and of the kernel, as JSON."""

ASK_VERSION = """
for distribution in distributions[:1]:
    print(version(distribution))
"""
"""Prints the version of the distribution of a module, if there is one."""


def main() -> int:
    """Run all programs of an implementation; return 1 if a deviation is gone."""
    parser = argparse.ArgumentParser(
        description="Run the programs that show an implementation's known deviations.",
        epilog="Exit status: 0 if all deviations show, 1 if not, 2 for a usage error.",
    )
    parser.add_argument("implementation", help="for example torch")
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter that can import it"
    )
    parser.add_argument(
        "--device",
        action="store_true",
        help="run the programs that need a CUDA device instead of the others",
    )
    parser.add_argument("--out", type=Path, help="the record to write (JSON)")
    options = parser.parse_args()
    programs = [
        program
        for program in program_names(CAUSES, options.implementation)
        if ("/device/" in program) == options.device
    ]
    if not programs:
        print(f"There are no programs of {options.implementation!r} in {CAUSES}.")
        return 2
    others = of_other_releases(options.implementation, options.python)
    programs = [program for program in programs if program not in others]
    outputs = {program: output_of(program, options.python) for program in programs}
    shown = {program: said for program, said in outputs.items() if said is not None}
    print(f"{len(shown)} of {len(outputs)} deviations show.")
    if len(shown) < len(outputs):
        return 1
    if options.out:
        lines = lines_of(options.implementation, options.python)
        found = record(options.implementation, options.python, shown) | {"lines": lines}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def of_other_releases(implementation: str, python: str) -> set[str]:
    """Return the programs that only expectations for other releases name."""
    file = EXPECTATIONS / f"{implementation}.toml"
    ask = [python, "-c", FIND_DISTRIBUTION + ASK_VERSION, implementation]
    asked = subprocess.run(ask, capture_output=True, text=True, check=True)
    installed = asked.stdout.strip()
    if not (installed and file.is_file()):
        return set()
    named: dict[str, list[bool]] = {}
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["expect"]:
        versions = SpecifierSet(entry.get("version", ""))
        applies = versions.contains(installed, prereleases=True)
        named.setdefault(entry["reproducer"], []).append(applies)
    return {program for program, applies in named.items() if not any(applies)}


def output_of(program: str, python: str) -> str | None:
    """Run one program, print the result, and return its output; None if it failed."""
    name = PurePath(program).stem
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{name}.py")
        file.write_text(program_text(CAUSES, program), encoding="utf-8")
        command = [sys.executable, bounded.__file__, str(LIMIT), python, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == bounded.TOO_LONG:
        print(f"{name}: NO ANSWER within {LIMIT} seconds")
        return None
    if done.returncode == 0:
        print(f"{name}: {done.stdout.strip()}")
        return done.stdout
    if done.returncode == GONE and not done.stderr:
        print(f"{name}: GONE: remove the entries that expect it")
    else:
        print(f"{name}: BROKEN, exit code {done.returncode}: {done.stderr}")
    return None


def record(implementation: str, python: str, outputs: dict[str, str]) -> dict[str, Any]:
    """Return the record of the programs that showed their deviations."""
    ask = [python, "-c", FIND_DISTRIBUTION + ASK_MACHINE, implementation]
    machine = json.loads(subprocess.check_output(ask, text=True))
    prefix = machine.pop("prefix")
    programs = {
        PurePath(program).stem: {
            "sha256": code_hash(program_text(CAUSES, program)),
            "output": output.strip().replace(prefix, "PREFIX"),
        }
        for program, output in outputs.items()
    }
    date = datetime.date.today().isoformat()
    return {"date": date, **machine, "programs": programs}


def lines_of(implementation: str, python: str) -> dict[str, int]:
    """Return the lines of the places in Python that the file of causes names.

    Raises:
        SystemExit: a place does not exist.
    """
    file = CAUSES / f"{implementation}.toml"
    if not file.is_file():
        return {}
    causes = tomllib.loads(file.read_text(encoding="utf-8"))["causes"].values()
    named = {place for cause in causes for place in cause["where"]}
    places = json.dumps(sorted(place for place in named if ".py: " in place))
    command = [python, str(FIND_PLACES)]
    found = json.loads(subprocess.check_output(command, input=places, text=True))
    missing = [place for place, line in found.items() if line is None]
    if missing:
        sys.exit(f"{file}: these places do not exist: {', '.join(missing)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
