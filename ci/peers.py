"""Runs other projects' tests of processes on the reference's drop-in module.

    python ci/peers.py [PROJECT ...] [--releases]

The tests come in the source packages of these projects and are not part of this tree.
Each project's code and tests are run twice: as they are, as the baseline, and with each
import of `multiprocessing` replaced by `sharedtensor.multiprocessing`. A test that
passes on the baseline has to pass on the drop-in.

Exit status: 0 if all do, 1 if not. What a project's code gets from submodules of the
standard library, such as `multiprocessing.synchronize`, stays the standard library's.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bounded
import outcomes
from outcomes import Outcome

DROP_IN = "sharedtensor.multiprocessing"
REPLACED = (
    (r"^( *)import multiprocessing$", rf"\1import {DROP_IN} as multiprocessing"),
    (r"^( *)import multiprocessing as (\w+)$", rf"\1import {DROP_IN} as \2"),
    (r"^( *)from multiprocessing import ", rf"\1from {DROP_IN} import "),
)
TIMEOUT = 1200.0
"""Seconds for the tests of one project."""


@dataclass(frozen=True)
class Peer:
    """A project whose tests use processes.

    Args:
        release: its name and version, as pip takes them.
        tests: the files or folders with tests, in its source package.
    """

    release: str
    tests: tuple[str, ...]


PEERS = {
    "pebble": Peer(
        "pebble==5.2.3",
        tuple(
            f"test/test_{kind}_{method}.py"
            for kind in ("concurrent_process", "asynchronous_process", "process_pool")
            for method in ("fork", "spawn", "forkserver")
        ),
    ),
    "stable-baselines3": Peer("stable-baselines3==2.9.2", ("tests/test_vec_envs.py",)),
}


class Sources:
    """A project's unpacked source package, as it is and on the drop-in."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        name = peer.release.partition("==")[0]
        download = ("download", "-q", "--no-deps", f"--no-binary={name}", peer.release)
        pip = (sys.executable, "-m", "pip", *download, "-d", str(folder))
        subprocess.run(pip, check=True)
        (archive,) = folder.glob("*.tar.gz")
        self.peer = peer
        self.baseline = self._unpack(archive, folder / "baseline")
        self.drop_in = self._unpack(archive, folder / "drop-in")
        for file in self.drop_in.rglob("*.py"):
            file.write_text(on_the_drop_in(file.read_text()))

    def _unpack(self, archive: Path, folder: Path) -> Path:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        (unpacked,) = folder.iterdir()
        return unpacked

    def outcomes(self, root: Path) -> outcomes.Outcomes:
        """Return the outcome of each test that is run in `root`, by its name."""
        return outcomes.run(root, self.peer.tests, TIMEOUT)[1]


def on_the_drop_in(source: str) -> str:
    """Return a program with the drop-in in the place of `multiprocessing`."""
    for pattern, replacement in REPLACED:
        source = re.sub(pattern, replacement, source, flags=re.MULTILINE)
    return source


def differences(name: str) -> list[str]:
    """Return the tests of a project that pass on the baseline alone."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        sources = Sources(PEERS[name], Path(folder))
        expected = sources.outcomes(sources.baseline)
        found = sources.outcomes(sources.drop_in)
    passed = [test for test, outcome in expected.items() if outcome.kind == "pass"]
    if not passed:
        sys.exit(f"{PEERS[name].release}: no test passes on the standard library.")
    missing = Outcome("not run")
    now = {test: found.get(test, missing).kind for test in passed}
    different = [f"{test}: {kind}" for test, kind in now.items() if kind != "pass"]
    held = len(passed) - len(different)
    print(f"{PEERS[name].release}: {held} of {len(passed)} tests hold on the drop-in")
    return different


def main() -> None:
    """Run the projects that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("project", nargs="*", help=", ".join(PEERS))
    text = "print the releases, as pip takes them, and run nothing"
    parser.add_argument("--releases", action="store_true", help=text)
    chosen = parser.parse_args()
    names = chosen.project or list(PEERS)
    if unknown := sorted(set(names) - set(PEERS)):
        known = ", ".join(PEERS)
        parser.error(f"there is no project {unknown[0]}; choose from {known}")
    if chosen.releases:
        print(*(PEERS[name].release for name in names))
        return
    bounded.end_with_signals()
    if different := [line for name in names for line in differences(name)]:
        sys.exit("\nThese pass on the standard library alone:\n" + "\n".join(different))


if __name__ == "__main__":
    main()
