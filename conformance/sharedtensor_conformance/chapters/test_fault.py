"""Chapter FAULT: runs the cells of the fault table.

In each cell one fault strikes one role at one step of the protocol.
"""

from typing import Any

import pytest

from sharedtensor_conformance.chapters.fault_round import FaultRound
from sharedtensor_conformance.chapters.fault_table import can_be_held, cells_of
from sharedtensor_conformance.harness import clause

BOTH_STRATEGIES: dict[str, Any] = {
    "prefers": "fork",
    "isolated": True,
    "profiles": ("share",),
}
"""The configurations of the cells of both strategies. Forked peers start fast."""

WITH_MANAGER: dict[str, Any] = {
    **BOTH_STRATEGIES,
    "strategies": ("file_system",),
    "profiles": ("share", "manager"),
}
"""The configurations of the cells that need a manager."""


def over_cells_of(clause_id: str, *, managed: bool = False) -> Any:
    """Return a decorator that parametrizes a test over the cells of a clause."""
    cells = cells_of(clause_id, managed=managed)
    return pytest.mark.parametrize("cell", cells, ids=[cell.name for cell in cells])


def run_cell(cell, stage, implementation):
    """Run the cell on an isolated stage."""
    with stage.fresh() as fresh:
        FaultRound(fresh, cell, exact=can_be_held(implementation, cell.step)).run()


@clause("FAULT-1", **BOTH_STRATEGIES)
@over_cells_of("FAULT-1")
def test_process_that_ends_takes_nobody_along(cell, stage, implementation):
    """One process ends at a step; the others finish, share anew, and leave nothing."""
    run_cell(cell, stage, implementation)


@clause("FAULT-1", **WITH_MANAGER)
@over_cells_of("FAULT-1", managed=True)
def test_process_that_ends_at_a_step_with_the_manager_takes_nobody_along(
    cell, stage, implementation
):
    """The same at the steps in which the manager is told something."""
    run_cell(cell, stage, implementation)


@clause("FAULT-2", **BOTH_STRATEGIES)
@over_cells_of("FAULT-2")
def test_step_that_raises_or_is_repeated_or_lost_costs_one_message(
    cell, stage, implementation
):
    """A step raises, is repeated or is lost; all go on, and nothing is left."""
    run_cell(cell, stage, implementation)


@clause("FAULT-2", **WITH_MANAGER)
@over_cells_of("FAULT-2", managed=True)
def test_step_with_the_manager_that_raises_costs_one_message(
    cell, stage, implementation
):
    """The same at the steps in which the manager is told something."""
    run_cell(cell, stage, implementation)


@clause("FAULT-3", **BOTH_STRATEGIES)
@over_cells_of("FAULT-3")
def test_process_that_is_stopped_stops_nobody_else(cell, stage, implementation):
    """One process is stopped at a step; the others share, then it goes on."""
    run_cell(cell, stage, implementation)


@clause("FAULT-3", **WITH_MANAGER)
@over_cells_of("FAULT-3", managed=True)
def test_process_that_is_stopped_at_a_step_with_the_manager_stops_nobody_else(
    cell, stage, implementation
):
    """The same at the steps in which the manager is told something."""
    run_cell(cell, stage, implementation)


@clause("FAULT-4", **BOTH_STRATEGIES)
@over_cells_of("FAULT-4")
def test_process_that_runs_out_of_something_gets_an_exception_at_worst(
    cell, stage, implementation
):
    """One process is out of descriptors or memory at a step, and then no more."""
    run_cell(cell, stage, implementation)


@clause("FAULT-4", **WITH_MANAGER)
@over_cells_of("FAULT-4", managed=True)
def test_process_out_of_something_at_a_step_with_the_manager_gets_an_exception(
    cell, stage, implementation
):
    """The same at the steps in which the manager is told something."""
    run_cell(cell, stage, implementation)


@clause("FAULT-5", **WITH_MANAGER)
@over_cells_of("FAULT-5", managed=True)
def test_fault_of_the_manager_takes_nobody_along(cell, stage, implementation):
    """The manager is ended, stopped or out of something at a step of the others."""
    run_cell(cell, stage, implementation)
