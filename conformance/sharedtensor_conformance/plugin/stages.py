"""Manages the stages of a run: one for each batch, of which one has processes."""

from __future__ import annotations

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.harness.supervisor.template import Template


class Stages:
    """Holds a stage for each batch; only the current stage has processes.

    Args:
        name: the adapter's name.
        implementation: what the adapter declares.
        template: the address of a template process that another process started.
    """

    def __init__(
        self, name: str, implementation: Implementation, template: str = ""
    ) -> None:
        self.name = name
        self.implementation = implementation
        self.template = Template(name, implementation, template)
        self.current: Stage | None = None
        self._known: dict[tuple[Configuration, int], Stage] = {}

    def of(self, configuration: Configuration, batch: int = 0) -> Stage:
        """Return the stage of a batch, and end the processes of the previous one."""
        place = configuration, batch
        if place not in self._known:
            made = Stage(self.name, self.implementation, configuration, self.template)
            self._known[place] = made
        found = self._known[place]
        if self.current is not found:
            self.retire()
            self.current = found
        return found

    def retire(self) -> None:
        """End all processes; the next case gets new ones."""
        if self.current:
            self.current.close()

    def close(self) -> None:
        """End all processes, including the template."""
        self.retire()
        self.template.close()

    def abandon(self) -> None:
        """Kill all processes, from any thread."""
        if stage := self.current:
            stage.abandon()
