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
import ast
import datetime
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from importlib import metadata
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
GONE = 1
LIMIT = 90  # seconds

STANDARD = "Lib/"
"""How the name of a file begins that belongs to Python itself."""


def main() -> int:
    """Run all programs of an implementation; return 1 if a deviation is gone."""
    parser = argparse.ArgumentParser(
        description="Run the programs that show an implementation's known deviations.",
        epilog="Exit status: 0 if all deviations show, 1 if not, 2 for a usage error.",
    )
    parser.add_argument("implementation", help="for example torch")
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
    others = of_other_releases(options.implementation)
    programs = [program for program in programs if program not in others]
    outputs = {program: output_of(program) for program in programs}
    shown = {program: said for program, said in outputs.items() if said is not None}
    print(f"{len(shown)} of {len(outputs)} deviations show.")
    if len(shown) < len(outputs):
        return 1
    if options.out:
        found = record(options.implementation, shown)
        found["lines"] = lines_of(options.implementation)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def version_of(module: str) -> str:
    """Return the version of the distribution of a module; empty if there is none.

    Case, and `-` or `_` in its name, make no difference.
    """
    found = metadata.packages_distributions()
    same = [names[0] for name, names in found.items() if plain(name) == plain(module)]
    return metadata.version(same[-1]) if same else ""


def plain(name: str) -> str:
    """Return a name in the form in which names are compared."""
    return re.sub("[-_.]+", "-", name).lower()


def of_other_releases(implementation: str) -> set[str]:
    """Return the programs that only expectations for other releases name."""
    file = EXPECTATIONS / f"{implementation}.toml"
    installed = version_of(implementation)
    if not (installed and file.is_file()):
        return set()
    named: dict[str, list[bool]] = {}
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["expect"]:
        versions = SpecifierSet(entry.get("version", ""))
        applies = versions.contains(installed, prereleases=True)
        named.setdefault(entry["reproducer"], []).append(applies)
    return {program for program, applies in named.items() if not any(applies)}


def output_of(program: str) -> str | None:
    """Run one program, print the result, and return its output; None if it failed."""
    name = PurePath(program).stem
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{name}.py")
        file.write_text(program_text(CAUSES, program), encoding="utf-8")
        limited = [sys.executable, bounded.__file__, str(LIMIT)]
        command = [*limited, sys.executable, str(file)]
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


def record(implementation: str, outputs: dict[str, str]) -> dict[str, Any]:
    """Return the record of the programs that showed their deviations."""
    programs = {
        PurePath(program).stem: {
            "sha256": code_hash(program_text(CAUSES, program)),
            "output": output.strip().replace(sys.prefix, "PREFIX"),
        }
        for program, output in outputs.items()
    }
    return {
        "date": datetime.date.today().isoformat(),
        "version": version_of(implementation),
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "programs": programs,
    }


def lines_of(implementation: str) -> dict[str, int]:
    """Return the lines of the places in Python that the file of causes names.

    Raises:
        SystemExit: a place does not exist.
    """
    file = CAUSES / f"{implementation}.toml"
    if not file.is_file():
        return {}
    causes = tomllib.loads(file.read_text(encoding="utf-8"))["causes"].values()
    named = {place for cause in causes for place in cause["where"]}
    found = {place: line_of(place) for place in sorted(named) if ".py: " in place}
    missing = [place for place, line in found.items() if line is None]
    if missing:
        sys.exit(f"{file}: these places do not exist: {', '.join(missing)}")
    return {place: line for place, line in found.items() if line is not None}


def line_of(place: str) -> int | None:
    """Return the line on which the function of a place begins, or None."""
    name, _, function = place.partition(": ")
    file = file_of(name)
    if not file.is_file():
        return None
    scopes: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    for part in function.split("."):
        inside = (node for scope in scopes for node in ast.walk(scope))
        scopes = [
            node
            for node in inside
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
        ]
    return next((node.lineno for node in scopes), None)


def file_of(name: str) -> Path:
    """Return the path of a name like ``Lib/queue.py`` or ``torch/storage.py``."""
    if name.startswith(STANDARD):
        return Path(sysconfig.get_path("stdlib"), name.removeprefix(STANDARD))
    there = (Path(folder, name) for folder in sys.path)
    return next((file for file in there if file.is_file()), Path(name))


if __name__ == "__main__":
    sys.exit(main())
