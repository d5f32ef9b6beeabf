"""The settings that every process of a stage needs; small, plain and picklable.

They are passed to the owner in the environment, because a spawned child needs them
before it has unpickled anything.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from sharedtensor_conformance.adapters import loader

VARIABLE = "SHAREDTENSOR_CONFORMANCE_SETTING"


@dataclass(frozen=True)
class Setting:
    """The implementation and the configuration of the processes of a stage."""

    implementation: str
    strategy: str
    channels: tuple[str, ...]
    control: str
    preload: bool

    @classmethod
    def from_environment(cls) -> Setting:
        """Return the setting that `environment` described."""
        data = json.loads(os.environ[VARIABLE])
        return cls(**data | {"channels": tuple(data["channels"])})

    @classmethod
    def of_template(cls, implementation: str) -> Setting:
        """Return the setting of a process that only imports the implementation."""
        return cls(implementation, "", (), "", preload=False)

    def environment(self) -> dict[str, str]:
        """Return the environment variables with this setting."""
        return {VARIABLE: json.dumps(asdict(self))}

    def apply_mutant(self) -> None:
        """Apply the mutant if the implementation is ``mutant:NAME``."""
        _, _, name = self.implementation.partition("mutant:")
        if name:
            from sharedtensor_conformance.mutants import registry

            registry.apply(name)

    def operations(self) -> Any:
        """Import the implementation in this process and return its operations."""
        self.apply_mutant()
        return loader.load_operations(self.implementation)
