"""Occupies descriptors of a process, so that those opened later have high numbers."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.harness.actor import Actor


def occupy_descriptors(actor: Actor, below: int) -> Any:
    """Open all descriptors below a number, so that the next one is not below it.

    The soft limit of descriptors is raised if necessary.

    Returns:
        What `release_descriptors` gets; or why that is impossible here, as a text.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * below:
        return f"a process may have {hard} open files, and this needs {2 * below}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * below), hard))
    opened: list[int] = []
    while not opened or opened[-1] < below:
        opened.append(os.open(os.devnull, os.O_RDONLY))
    os.close(opened.pop())
    return Occupied(opened, soft)


def release_descriptors(actor: Actor, occupied: Any) -> None:
    """Close the descriptors that `occupy_descriptors` opened, and restore the limit."""
    while occupied.opened:
        os.close(occupied.opened.pop())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (occupied.soft_limit, hard))


@dataclass
class Occupied:
    """The opened descriptors, and the soft limit before."""

    opened: list[int]
    soft_limit: int
