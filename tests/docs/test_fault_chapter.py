"""The chapter FAULT prints what its table is made of; the suite has it as data."""

from pathlib import Path

from sharedtensor_conformance.chapters.fault_table import FAULTS, ROLES, STEPS

CHAPTER = Path(__file__).parents[2] / "spec" / "fault.md"
CALLS = {"put": "send", "get": "receive", "last-drop": "last drop"}
"""Calls that the chapter names otherwise than the suite does."""


def tables():
    """Return the rows of each table of the chapter, without heads."""
    found = [[]]
    for line in CHAPTER.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
            found[-1].append(tuple(cells))
        elif found[-1]:
            found.append([])
    return [rows[2:] for rows in found if rows]


def test_chapter_prints_the_steps_roles_and_faults_that_are_judged():
    steps, roles, faults = tables()
    assert steps == [
        (
            step.name,
            step.description,
            step.actor,
            CALLS.get(step.operation, step.operation),
            "file_system" if step.managed else "both",
        )
        for step in STEPS
    ]
    assert roles == list(ROLES.items())
    assert faults == list(FAULTS.items())
