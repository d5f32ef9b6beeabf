"""Runs the programs that show an implementation's known deviations.

    python ci/run_causes.py torch

An expectation names a cause, and the cause has a program in plain code of the
implementation, which exits with 0 as long as the deviation shows. A program that exits
otherwise means that the deviation has gone, or that the cause was never the right one:
this fails, so that the expectations cannot outlive what they excuse. Programs of
expectations that are about other releases than the installed one are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

SUITE = Path(__file__).parents[1] / "conformance" / "sharedtensor_conformance"
EXPECTATIONS = SUITE / "expectations"
CAUSES = EXPECTATIONS / "causes"
GONE = 1
LIMIT = 90

ASK_VERSION = """
import sys
from importlib.metadata import packages_distributions, version
for distribution in packages_distributions().get(sys.argv[1], [])[:1]:
    print(version(distribution))
"""
"""Prints the version of the distribution of a module; nothing where there is none."""


def main() -> int:
    """Run all causes of the implementation that the command line names."""
    parser = argparse.ArgumentParser(description="Run the causes of deviations.")
    parser.add_argument("implementation", help="such as torch")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that has it"
    )
    options = parser.parse_args()
    programs = sorted((CAUSES / options.implementation).glob("*.py"))
    if not programs:
        print(f"There are no causes of {options.implementation!r} in {CAUSES}.")
        return 2
    others = of_other_releases(options.implementation, options.python)
    programs = [program for program in programs if program not in others]
    shown = [shows(program, options.python) for program in programs]
    print(f"{sum(shown)} of {len(shown)} deviations show.")
    return 0 if all(shown) else 1


def of_other_releases(implementation: str, python: str) -> set[Path]:
    """Return the programs that only expectations about other releases name."""
    file = EXPECTATIONS / f"{implementation}.toml"
    ask = [python, "-c", ASK_VERSION, implementation]
    asked = subprocess.run(ask, capture_output=True, text=True, check=True)
    installed = asked.stdout.strip()
    if not (installed and file.is_file()):
        return set()
    named: dict[Path, list[bool]] = {}
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["expect"]:
        versions = SpecifierSet(entry.get("version", ""))
        applies = versions.contains(installed, prereleases=True)
        named.setdefault(CAUSES / entry["reproducer"], []).append(applies)
    return {program for program, applies in named.items() if not any(applies)}


def shows(program: Path, python: str) -> bool:
    """Run one program, say what came of it, and return whether the deviation shows."""
    try:
        done = subprocess.run(
            [python, str(program)], capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        print(f"{program.stem}: NO ANSWER within {LIMIT} seconds")
        return False
    if done.returncode == 0:
        print(f"{program.stem}: {done.stdout.strip()}")
    elif done.returncode == GONE and not done.stderr:
        print(f"{program.stem}: GONE, so remove what expects it")
    else:
        print(f"{program.stem}: BROKEN, exit code {done.returncode}: {done.stderr}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
