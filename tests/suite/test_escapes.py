"""Nobody gets away in the moment in which a parent ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sharedtensor_conformance.harness.kernel import process_tree

ROOT, PARENT, CHILD, GRANDCHILD = 1, 2, 3, 4
KILLS = """
import subprocess, sys
from sharedtensor_conformance.harness.kernel import process_tree

tree = process_tree.ProcessTree()
child = subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL)
# The pipe that Popen waits for is closed a moment before the kernel has the arguments.
assert process_tree.wait_until(lambda: process_tree.command(child.pid), 20)
looks = {"blind at first": [[]], "dying": [[child.pid]] * 3}[sys.argv[1]]
seen = tree.living
tree.living = lambda: looks.pop() if looks else seen()
print(tree.kill(), tree.reap())
child.kill()
"""


@pytest.fixture
def kernel(monkeypatch):
    """A kernel in which a process ends as soon as its children are asked for."""
    below = {ROOT: [PARENT], PARENT: [CHILD], CHILD: [GRANDCHILD]}
    ends = set()

    def children(pid):
        if pid in ends:
            below[ROOT] += below.pop(pid, [])
        return list(below.get(pid, []))

    monkeypatch.setattr(process_tree, "_children", children)
    return ends


@pytest.mark.parametrize("ending", [{PARENT}, {CHILD}, {PARENT, CHILD}, set()])
def test_orphans_are_found_though_their_parent_ends_meanwhile(kernel, ending):
    kernel |= ending
    assert set(process_tree.descendants(ROOT)) >= {PARENT, CHILD, GRANDCHILD} - ending


@pytest.mark.parametrize("look", ["blind at first", "dying"])
def test_supervisor_kills_until_the_kernel_says_that_nobody_is_left(look):
    """It overlooks a child at first, or sees one that it killed go on for a while."""
    command = [sys.executable, "-c", KILLS, look]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "['sleep 100'] False\n", done.stderr
