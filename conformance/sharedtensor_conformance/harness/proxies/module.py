"""The drop-in module in the process of an actor, as a test sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sharedtensor_conformance.harness.actor import Actor
from sharedtensor_conformance.harness.proxies.calls import Requester


class ModuleProxy:
    """The drop-in module of an actor; every function of the module is a method."""

    def __init__(self, actor: Requester) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._actor.run(Actor.call_module, name, *arguments)
