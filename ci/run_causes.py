"""Runs the programs that show an implementation's known deviations.

    python ci/run_causes.py torch

An expectation names a cause, and the cause has a program in plain code of the
implementation, which exits with 0 as long as the deviation shows. A program that exits
otherwise means that the deviation has gone, or that the cause was never the right one:
this fails, so that the expectations cannot outlive what they excuse.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

SUITE = Path(__file__).parents[1] / "conformance" / "sharedtensor_conformance"
CAUSES = SUITE / "expectations" / "causes"
GONE = 1
LIMIT = 90


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
    shown = [shows(program, options.python) for program in programs]
    print(f"{sum(shown)} of {len(shown)} deviations show.")
    return 0 if all(shown) else 1


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
