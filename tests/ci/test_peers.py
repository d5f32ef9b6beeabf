"""Other projects' code meets the drop-in wherever it imports `multiprocessing`."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "ci"))

import peers
from outcomes import Outcome


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("import multiprocessing", "sharedtensor.multiprocessing"),
        ("import multiprocessing as mp", "sharedtensor.multiprocessing"),
        ("    from multiprocessing import Queue", "sharedtensor.multiprocessing"),
        ("from multiprocessing.connection import wait", "multiprocessing.connection"),
        ("import multiprocessing_logging", "multiprocessing_logging"),
    ],
)
def test_imports_are_those_of_the_drop_in(line, module):
    (found,) = ast.parse(peers.on_the_drop_in(line).strip()).body
    named = found.module if isinstance(found, ast.ImportFrom) else found.names[0].name
    assert named == module


@pytest.mark.parametrize(
    ("on_the_drop_in", "said"),
    [("pass", []), ("fail", ["t: fail"]), (None, ["t: not run"])],
)
def test_test_that_passes_on_the_standard_library_alone_is_named(
    on_the_drop_in, said, monkeypatch
):
    class Sources:
        baseline, drop_in = "baseline", "drop-in"

        def __init__(self, peer, folder):
            pass

        def outcomes(self, root):
            kind = "pass" if root == "baseline" else on_the_drop_in
            found = {"t": kind, "u": "fail"} if kind else {}
            return {test: Outcome(kind) for test, kind in found.items()}

    monkeypatch.setattr(peers, "Sources", Sources)
    assert peers.differences("pebble") == said
