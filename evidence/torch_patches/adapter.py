"""PyTorch on the CPU with fixes in Python, to show that it can meet the clauses.

Its operations are those of the adapter `torch`. Before the first operation, the process
installs the fixes of this package; so does each process that it starts, under every
start method. It has its own name, because nobody ships this version of PyTorch.

``torch_patches.adapter:only_NAME`` is the adapter with one fix and those that it needs.
``torch_patches.adapter:without_NAME`` is the adapter without a fix and those that need
it. They show what a fix does and what it costs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sharedtensor_conformance.adapters.torch import TorchOperations
from sharedtensor_conformance.adapters.torch import conformance_adapter as unpatched

import torch_patches

conformance_adapter = replace(
    unpatched,
    name="torch-patched",
    operations=f"{__name__}:PatchedOperations",
)


class PatchedOperations(TorchOperations):
    """The operations on tensors of PyTorch once it is patched."""

    names: tuple[str, ...] = torch_patches.NAMES

    def __init__(self) -> None:
        super().__init__()
        torch_patches.install(self.names)


_CHOICES = {
    "only": torch_patches.with_needs,
    "without": torch_patches.without,
}


def __getattr__(name: str) -> Any:
    """Return the adapter with some of the fixes, or its operations."""
    how, _, rest = name.partition("_")
    if how == "operations":
        how, _, rest = rest.partition("_")
        names = {"names": _CHOICES[how](rest)}
        return type(name, (PatchedOperations,), names)
    if how not in _CHOICES or rest not in torch_patches.NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return replace(
        conformance_adapter,
        name=f"torch-patched-{how}-{rest}",
        operations=f"{__name__}:operations_{name}",
    )
