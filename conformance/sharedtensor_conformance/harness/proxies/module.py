"""The drop-in module in the process of an actor, as a test sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sharedtensor_conformance.harness.proxies.calls import Requester


class ModuleProxy:
    """The drop-in module of an actor; every function of the module is a method."""

    def __init__(self, actor: Requester) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._actor.request("module", name, *arguments)

    def lacks(self, names: list[str]) -> list[str]:
        """Return the names that the module does not have."""
        lacking: list[str] = self._actor.request("module_lacks", names)
        return lacking

    def context_lacks(self, method: str, names: list[str]) -> list[str]:
        """Return the names that the context of a start method does not have."""
        lacking: list[str] = self._actor.request("context_lacks", method, names)
        return lacking

    def context_start_method(self, method: str) -> str:
        """Return what the context of `method` says its start method is."""
        return str(self._actor.request("context_start_method", method))

    def try_context(self, method: str) -> None:
        """Call ``get_context(method)``."""
        self._actor.request("try_context", method)
