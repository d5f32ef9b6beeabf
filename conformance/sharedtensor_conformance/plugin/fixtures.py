"""The fixtures for the tests of the suite: processes, configuration and directions.

The actor objects of a stage stay the same when its processes are replaced. So the value
of a fixture stays valid for each execution of a case.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.chapters.random_histories import run_histories
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.plugin.cases import batch_of
from sharedtensor_conformance.plugin.state import RUNNER


@pytest.fixture
def configuration(request: pytest.FixtureRequest) -> Configuration:
    """The configuration of the case."""
    found: Configuration = request.param
    return found


@pytest.fixture
def strategy(configuration: Configuration) -> str:
    """The sharing strategy of the case."""
    return configuration.strategy


@pytest.fixture
def start_method(configuration: Configuration) -> str:
    """The start method of the case."""
    return configuration.start_method


@pytest.fixture
def device(configuration: Configuration) -> str:
    """The device of the case."""
    return configuration.device


@pytest.fixture
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """What the adapter declares about the implementation."""
    return request.config.stash[RUNNER].implementation


@pytest.fixture
def stage(configuration: Configuration, request: pytest.FixtureRequest) -> Stage:
    """The processes of the case's batch; they start when they are needed."""
    batch = batch_of(request.node)
    return request.config.stash[RUNNER].stages.of(configuration, batch)


@pytest.fixture
def owner(stage: Stage) -> ActorProxy:
    """The process that starts the others."""
    return stage.owner


@pytest.fixture
def peer(stage: Stage) -> ActorProxy:
    """A child of the owner."""
    return stage.peer


@pytest.fixture
def bystander(stage: Stage) -> ActorProxy:
    """A third process, another child of the owner."""
    return stage.bystander


@pytest.fixture
def direction(request: pytest.FixtureRequest) -> str:
    """The direction of the message: ``to_peer`` or ``to_owner``."""
    return str(request.param)


@pytest.fixture
def sender(owner: ActorProxy, peer: ActorProxy, direction: str) -> ActorProxy:
    """The process that sends: the owner or the peer."""
    return owner if direction == "to_peer" else peer


@pytest.fixture
def receiver(owner: ActorProxy, peer: ActorProxy, direction: str) -> ActorProxy:
    """The process that receives: the peer or the owner."""
    return peer if direction == "to_peer" else owner


@pytest.fixture
def histories(stage: Stage, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function that runs random histories of a family.

    Their seed differs between configurations.
    """
    given = request.config.option
    seed = int(given.history_seed) + crc32(stage.configuration.id.encode())
    return lambda family: run_histories(stage, family, given.histories, seed)
