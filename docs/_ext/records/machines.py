"""The state machines that random histories with deaths follow, as tables.

They are data of the suite (`sharedtensor_conformance.chapters.state_machines`), so what
the page shows is what the model does.
"""

from __future__ import annotations

from clauses.domain import reference
from docutils import nodes
from elements import between, table
from sharedtensor_conformance.chapters.state_machines import (
    MACHINES,
    Machine,
    Transition,
)
from sphinx.util.docutils import SphinxDirective

STATES = ["State", "What it means"]
TRANSITIONS = ["State", "Event", "Next state", "Clauses"]


class StateMachinesDirective(SphinxDirective):
    """``{state-machines}``: a section for each machine."""

    def run(self) -> list[nodes.Node]:
        """Render the states and the transitions of each machine."""
        return [self.section(machine) for machine in MACHINES]

    def section(self, machine: Machine) -> nodes.section:
        """Return what there is to say of a machine."""
        section = nodes.section(ids=[f"machine-{machine.name}"])
        section += nodes.title("", machine.name.capitalize())
        section += table(STATES, machine.states.items())
        section += table(TRANSITIONS, map(self.row, machine.transitions))
        return section

    def row(self, transition: Transition) -> list[object]:
        """Return the row of a transition; a state that stays is not repeated."""
        links = (
            reference("clause", id, id, self.env.docname) for id in transition.clauses
        )
        stays = transition.next == transition.state
        then = "the same" if stays else transition.next
        cell = nodes.paragraph("", "", *between(links, " "))
        return [transition.state, transition.event, then, cell]
