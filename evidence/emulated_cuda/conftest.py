"""What the tests of the emulated runtime share: a machine of their own, and peers.

They are run by `nox -s emulated_cuda`, which builds the runtime; without it they fail.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cuda"), str(ROOT / "ci")]

from gpu_rules import Peer  # noqa: E402  its folder is on the path from here on


@pytest.fixture(scope="session", autouse=True)
def machine():
    """The folder of a machine with two devices, which this process joins, too."""
    with tempfile.TemporaryDirectory(prefix="sts-emulated-") as folder:
        os.environ["EMULATED_CUDA_FOLDER"] = folder
        yield Path(folder)


@pytest.fixture
def new_peer():
    """A function that starts a peer with changes to its environment."""
    started = []

    def start(**changes):
        before = dict(os.environ)
        os.environ.update(changes)
        try:
            started.append(Peer())
        finally:
            os.environ.clear()
            os.environ.update(before)
        return started[-1]

    yield start
    for peer in started:
        if peer.process.is_alive():
            peer.kill()


@pytest.fixture
def peer(new_peer):
    """A peer of this test alone, which the test may end or kill."""
    return new_peer()
